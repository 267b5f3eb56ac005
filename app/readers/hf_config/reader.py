"""From a config to a reading: find the language model in it, its family, and ask that."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.checks import checked_int
from app.domain.errors import Missing, Unknown, WrongType, shown
from app.domain.state import MAX_TOKENS, ModelState
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields, class_defaults, is_mapping
from app.readers.hf_config.registry import FAMILIES
from app.readers.hf_config.specials import refuse_unread
from app.readers.reading import ModelReading

# A wrapper inside a wrapper inside a wrapper is as deep as published configs go (an "omni" model's
# thinker, and its text part); deeper nesting is no config.
MAX_WRAPPERS = 4
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_CONTEXT = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len",
    "model_max_length", "n_ctx",
)  # fmt: skip


def read_config(
    config: Mapping[str, object], *, encoder_tokens: int | None = None
) -> ModelReading:
    """Return what the model of that config keeps.

    `encoder_tokens` is the encoder's length, for models that attend to one; where a model has a
    fixed or longest one, that is assumed when it is None.

    Raises:
        DomainError: when the config does not decide what layers keep; the error names the field.

    """
    if not is_mapping(config):
        raise WrongType("{field} must be an object, got {value}", field="config", value=shown(config))
    if encoder_tokens is not None:
        checked_int(encoder_tokens, "encoder_tokens", low=0, high=MAX_TOKENS)
    top = Fields.of(config, _model_type(config), encoder_tokens=encoder_tokens)
    family, fields = _language_model(top)
    layers = family.layers(fields)
    draft = tuple(family.draft(fields)) if family.draft else ()
    refuse_unread(fields, family.reads)
    return ModelReading(
        state=ModelState.of_layers(layers),
        family=family.name,
        name=_name(config),
        dtype=fields.weights_dtype,
        max_context_tokens=_context(fields.raw),
        draft_layers=draft,
        assumptions=tuple(fields.assumptions),
        notes=tuple(fields.notes),
    )


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type")
    if value is None:
        raise Missing("{field} is missing: without it nothing says what layers keep", field="model_type")
    if not isinstance(value, str):
        raise WrongType("{field} must be a string, got {value}", field="model_type", value=shown(value))
    return value


def _language_model(top: Fields) -> tuple[Family, Fields]:
    """Return the family that reads the innermost language model, and its fields."""
    fields = top
    for _ in range(MAX_WRAPPERS):
        family = FAMILIES.get(fields.model_type)
        if family is not None:
            return family, _with_own(fields, family)
        parts = class_defaults(fields.model_type).parts
        inner = next(
            (part for name in _PARTS if (part := fields.part(name, model_type=parts.get(name)))),
            None,
        )
        if not parts or inner is None:
            break
        fields = inner
    raise Unknown(
        "{field} {value} is not a known model type; an unknown one is never read as a known one",
        field=(*fields.path, "model_type"),
        value=shown(fields.model_type),
    )


def _with_own(fields: Fields, family: Family) -> Fields:
    if family.defaults:
        fields.defaults = {**fields.defaults, **family.defaults}
    if family.aliases:
        fields.aliases = {**fields.aliases, **family.aliases}
    return fields


def _name(config: Mapping[str, object]) -> str:
    value = config.get("_name_or_path")
    return value[:200] if isinstance(value, str) else ""


def _context(config: Mapping[str, object]) -> int | None:
    for key in _CONTEXT:
        value = config.get(key)
        if type(value) is int and 0 < value <= MAX_TOKENS:
            return value
    return None
