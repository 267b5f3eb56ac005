"""The bundled models: a small index in memory, configs read one line at a time when asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError, Unknown, shown
from app.domain.formats import KvFormats
from app.domain.per_token import shape_of
from app.readers.reading import ModelReading

DATA = Path(__file__).parent / "data"
CONFIGS = DATA / "models.jsonl"
INDEX = DATA / "models_index.json"
_KEPT_READINGS = 256


@lru_cache(maxsize=1)
def index() -> Mapping[str, Mapping[str, Any]]:
    """Return the index by id, in the order of ids."""
    return {row["id"]: row for row in json.loads(INDEX.read_text(encoding="utf-8"))}


def model_ids() -> tuple[str, ...]:
    """Return the ids of all entries."""
    return tuple(index())


@lru_cache(maxsize=_KEPT_READINGS)
def entry(model_id: str) -> Mapping[str, Any]:
    """Return one entry with its config, source and confidence.

    Raises:
        Unknown: for an id that the catalogue lacks; upper and lower case are alike.

    """
    row = index().get(model_id) or _by_casefold().get(model_id.casefold())
    if row is None:
        raise Unknown(
            "{field} {value} is not in the catalogue of {count} models",
            field="id",
            value=shown(model_id),
            count=len(index()),
        )
    with CONFIGS.open("rb") as file:
        file.seek(row["offset"])
        loaded: dict[str, Any] = json.loads(file.read(row["size"]))
    return loaded


@lru_cache(maxsize=1)
def _by_casefold() -> Mapping[str, Mapping[str, Any]]:
    return {model_id.casefold(): row for model_id, row in index().items()}


@lru_cache(maxsize=_KEPT_READINGS)
def read_entry(model_id: str, *, encoder_tokens: int | None = None) -> ModelReading:
    """Return the reading of a catalogue entry.

    Raises:
        Unknown: for an id that the catalogue lacks.
        DomainError: for an entry that cannot be read, naming the field of its config.

    """
    from app.readers.hf_config import read_config  # noqa: PLC0415 - loads every family's rules

    config = entry(model_id)["config"]
    try:
        return read_config(config, encoder_tokens=encoder_tokens)
    except DomainError as error:
        raise error.under("config") from None


def summary_of(loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a listing shows of an entry: its shape at 16 bits, or why it cannot be read."""
    from app.readers.hf_config import read_config  # noqa: PLC0415 - only to build the index

    config = loaded["config"]
    shown_facts = {
        "id": loaded["id"],
        "model_type": str(config.get("model_type") or ""),
        "parameters": loaded["parameters"],
        "counted_parameters": _counted_parameters(config),
        "confidence": loaded["confidence"],
    }
    try:
        reading = read_config(config)
    except DomainError as error:
        field = ".".join(map(str, error.field))
        return {**shown_facts, "readable": False, "field": field, "reason": str(error)}
    shape = shape_of(reading.state, KvFormats.same(dtype_named("bf16")))
    return {
        **shown_facts,
        "readable": True,
        "family": reading.family,
        "layers": reading.state.num_layers,
        "kinds": sorted(reading.state.kinds),
        "bytes_per_token": shape.bytes_per_token,
        "fixed_bytes": shape.fixed_bytes,
        "window_bytes": shape.window_bytes,
        "max_context_tokens": reading.max_context_tokens,
        "assumed": len(reading.assumptions),
    }


def _counted_parameters(config: Mapping[str, Any]) -> int | None:
    """Return the parameters that a config's shapes amount to, or None where they are not known."""
    from app.readers.weights import read_weights  # noqa: PLC0415 - only to build the index

    try:
        return read_weights(config).parameters()
    except DomainError:
        return None
