"""All families by model type, and the model types that wrap another."""

from __future__ import annotations

from app.readers.hf_config import (
    compressed,
    encoder_decoder,
    hybrid,
    latent,
    loops,
    odd,
    periodic,
    plain,
    recurrent,
    remote,
    sharing,
    tables,
    uneven,
)
from app.readers.hf_config.family import Family

_MODULES = (
    plain,
    odd,
    periodic,
    latent,
    compressed,
    sharing,
    uneven,
    loops,
    remote,
    tables,
    recurrent,
    hybrid,
    encoder_decoder,
)


def _by_type() -> dict[str, Family]:
    found: dict[str, Family] = {}
    for module in _MODULES:
        for family in module.FAMILIES:
            for model_type in family.model_types:
                if model_type in found:
                    raise RuntimeError(f"{model_type} is registered twice")
                found[model_type] = family
    return found


FAMILIES: dict[str, Family] = _by_type()
