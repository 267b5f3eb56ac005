"""From a config to a reading: find the language model in it, its family, and ask that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from app.domain.checks import checked_int
from app.domain.errors import Missing, Unknown, Unsupported, WrongType, shown
from app.domain.state import MAX_TOKENS, ModelState
from app.readers.hf_config.draft import pass_over_draft
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields, class_defaults, is_mapping
from app.readers.hf_config.registry import FAMILIES
from app.readers.hf_config.specials import refuse_unread
from app.readers.hf_config.tables import TABLE, dialect, known_as
from app.readers.hf_config.wrappers import PARTS, REMOTE
from app.readers.reading import ModelReading

# A wrapper inside a wrapper inside a wrapper is as deep as published configs go (an "omni" model's
# thinker, and its text part); deeper nesting is no config.
MAX_WRAPPERS = 4
_SIZES = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "hidden_size")
_CONTEXT = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len",
    "model_max_length", "n_ctx", "block_size", "max_model_len", "sequence_len", "maxContext",
)  # fmt: skip
_LONGEST_NAME = 200
_ARCHITECTURES_FILE = Path(__file__).with_name("architectures.json")


@cache
def _architectures() -> dict[str, str]:
    """Return the model type of each class name that belongs to one type alone."""
    found: dict[str, str] = json.loads(_ARCHITECTURES_FILE.read_text(encoding="utf-8"))
    return found


def read_config(config: Mapping[str, object], *, encoder_tokens: int | None = None) -> ModelReading:
    """Return what the model of that config keeps.

    `encoder_tokens` is the encoder's length, for models that attend to one; where a model has a
    fixed or longest one, that is assumed when it is None.

    Raises:
        DomainError: when the config does not decide what layers keep; the error names the field.

    """
    if not is_mapping(config):
        raise WrongType(
            "{field} must be an object, got {value}", field="config", value=shown(config)
        )
    if encoder_tokens is not None:
        checked_int(encoder_tokens, "encoder_tokens", low=0, high=MAX_TOKENS)
    family, fields = _language_model(_top(config, encoder_tokens))
    layers = family.layers(fields)
    draft = tuple(family.draft(fields)) if family.draft else ()
    if family.draft is None:
        pass_over_draft(fields)
    refuse_unread(fields, family.reads)
    return ModelReading(
        state=ModelState.of_layers(layers),
        family=family.name,
        name=_name(config),
        dtype=fields.weights_dtype,
        max_context_tokens=_context(fields.raw) or _context(config),
        draft_layers=draft,
        assumptions=tuple(fields.assumptions),
        notes=tuple(fields.notes),
    )


# What type of model it is


def _top(config: Mapping[str, object], encoder_tokens: int | None) -> Fields:
    """Return the fields of a config under its model type.

    Without one, the class named in `architectures` decides where it belongs to one type alone; else
    the config is taken for a table of sizes. Both give less than a whole config.
    """
    value = config.get("model_type")
    if value is not None and value != TABLE:
        if not isinstance(value, str):
            raise WrongType(
                "{field} must be a string, got {value}", field="model_type", value=shown(value)
            )
        fields = Fields.of(config, value, encoder_tokens=encoder_tokens)
        return fields if _is_known(fields) else _by_class(fields)
    named = _architecture(config)
    if named is not None:
        model_type = _architectures().get(named)
        if model_type is None:
            raise Unknown(
                "{field} {value} is not a known class, and there is no model_type",
                field="architectures",
                value=shown(named),
            )
        fields = Fields.of(config, model_type, encoder_tokens=encoder_tokens, complete=False)
        fields.assume(
            "type_by_class",
            "there is no model_type; the class {name} is that of {model_type}",
            name=named,
            model_type=model_type,
        )
        return fields
    return _table(config, encoder_tokens)


def _is_known(fields: Fields) -> bool:
    return fields.model_type in FAMILIES or _parts_of(fields) is not None


def _by_class(fields: Fields) -> Fields:
    """Return a config of an unknown type under its class's type, if the class makes it certain.

    An engine then runs that class (vLLM 0.33.0 model_executor/models/registry.py goes by it). Code
    of its own (`auto_map`) may be anything under any name.
    """
    named = _architecture(fields.raw)
    model_type = _architectures().get(named or "")
    if model_type is None or fields.raw.get("auto_map"):
        return fields
    found = Fields.of(fields.raw, model_type, encoder_tokens=fields.encoder_tokens)
    found.assume(
        "type_by_class",
        "{model_type} is no known type; the class {name} is that of {known}",
        model_type=shown(fields.model_type),
        name=named,
        known=model_type,
    )
    return found


def _architecture(config: Mapping[str, object]) -> str | None:
    names = config.get("architectures")
    if isinstance(names, (list, tuple)) and len(names) == 1 and isinstance(names[0], str):
        return names[0][:_LONGEST_NAME]
    return None


def _table(config: Mapping[str, object], encoder_tokens: int | None) -> Fields:
    found = dialect(config)
    if found is None:
        raise Missing(
            "{field} is missing: without it nothing says what layers keep", field="model_type"
        )
    model_type, more = known_as(config)
    fields = Fields.of(
        {**config, **more}, model_type, encoder_tokens=encoder_tokens, complete=False
    )
    fields.assume(
        "table",
        "there is no model_type: this is read as a table of sizes in the names of {dialect}; what "
        "it does not mention is taken not to be there",
        dialect=found[0],
    )
    if more:
        fields.seen(*config)
        fields.assume(
            "table_as_type",
            "the table's fields are those of {model_type}, whose rule is used",
            model_type=model_type,
        )
    return fields


# Which part of it is the language model


def _language_model(top: Fields) -> tuple[Family, Fields]:
    """Return the family that reads the innermost language model, and its fields."""
    fields = top
    for _ in range(MAX_WRAPPERS):
        family = FAMILIES.get(fields.model_type)
        inner = None if family is not None and family.nested else _inner(fields, family)
        if inner is not None:
            fields = inner
            continue
        if family is not None:
            return family, _with_own(fields, family)
        fields = _flat(fields)
    raise Unsupported(
        "{field}: no published config nests its language model so deep", field=fields.path
    )


def _inner(fields: Fields, family: Family | None) -> Fields | None:
    """Return the nested language model of a wrapper, or None when the config has none.

    A known language model's type on top of a nested one is a wrapper under its part's name.
    """
    parts = _parts_of(fields)
    if family is None and parts is None:
        raise Unknown(
            "{field} {value} is not a known model type, and none is read as another",
            field=fields.at("model_type"),
            value=shown(fields.model_type),
        )
    for name in PARTS:
        value = fields.raw.get(name)
        if not is_mapping(value) or (family is not None and not any(s in value for s in _SIZES)):
            continue
        own = (parts or {}).get(name) or (parts or {}).get("") or None
        named = value.get("model_type")
        if not named and own is None:
            raise Missing("{field} is missing", field=(*fields.at(name), "model_type"))
        if named is not None and not isinstance(named, str):
            raise WrongType(
                "{field} must be a string, got {value}",
                field=(*fields.at(name), "model_type"),
                value=shown(named),
            )
        inner = fields.part(name, model_type=own)
        if inner is not None and not named and own is not None:
            inner.assume(
                "inner_type",
                "{field} names no model_type; {model_type} has {inner} there",
                field=name,
                model_type=fields.model_type,
                inner=own,
            )
        return inner
    return None


def _parts_of(fields: Fields) -> Mapping[str, str] | None:
    """Return the types of a wrapper's parts ("" for any), or None for a type that wraps nothing."""
    known = class_defaults(fields.model_type).parts
    if known:
        return known
    if fields.model_type in REMOTE:
        return {"": REMOTE[fields.model_type]}
    return None


def _flat(fields: Fields) -> Fields:
    """Return a wrapper whose file has the language model's fields at its own level, as older do."""
    parts = _parts_of(fields) or {}
    own = next((part for part in parts.values() if part), None)
    if own is None or own == fields.model_type or not any(s in fields.raw for s in _SIZES):
        raise Missing(
            "{field} is missing: the language model's part of the config",
            field=fields.at(next(iter(parts), "") or PARTS[0]),
        )
    flat = Fields.of(
        fields.raw,
        own,
        path=fields.path,
        encoder_tokens=fields.encoder_tokens,
        weights_dtype=fields.weights_dtype,
        complete=fields.complete,
        assumptions=fields.assumptions,
        notes=fields.notes,
    )
    flat.outer = fields.outer
    return flat


def _with_own(fields: Fields, family: Family) -> Fields:
    if family.defaults:
        fields.defaults = {**fields.defaults, **family.defaults}
    if family.aliases:
        fields.aliases = {**fields.aliases, **family.aliases}
    return fields


# What else it says


def _name(config: Mapping[str, object]) -> str:
    value = config.get("_name_or_path")
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def _context(config: Mapping[str, object]) -> int | None:
    for key in _CONTEXT:
        value = config.get(key)
        if type(value) is int and 0 < value <= MAX_TOKENS:
            return value
    return None
