"""Find, in a config.json, the config of the decoder whose cache is asked about.

A wrapper nests it (`text_config`, `decoder`, …) or, in older files, spreads it over its own top
level; its class decides which config class reads the part. The rules are those of Transformers
5.24 (configuration_utils.py: get_text_config, SubConfigSpec, and each class's own __post_init__);
class_facts.json holds what its classes assume of the fields that decide a cache, their aliases and
their parts: facts of the config classes, nothing derived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from app.domain.errors import Missing, Unsupported, WrongType, shown
from app.readers.hf_config.fields import Fields, class_defaults, is_mapping

_FACTS_FILE = Path(__file__).with_name("class_facts.json")

# Where get_text_config(decoder=True) looks, and the two wrappers that override it.
_DECODER_PARTS = ("decoder", "generator", "text_config")
_OWN_PARTS = {
    "qwen2_5_omni": "thinker_config",
    "qwen3_omni_moe": "thinker_config",
    "bark": "semantic_config",
    "canary": "decoder_config",
    "dia": "decoder_config",
}

# Classes that take the text model's fields from their own top level when no part is given; the
# other wrappers take the part's defaults whatever stands beside it.
_FLAT = frozenset(
    {
        "dots3_note", "fuyu", "glm5_next", "hunyuan_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl",
        "unlimited_ocr",
    }
)  # fmt: skip


# Classes that read a given part on top of their own defaults for it.
_STARTED = frozenset({"glmasr", "voxtral", "voxtral_realtime"})

# Text model types of first releases, which their wrappers rename.
_RENAMED = {
    ("exaone4_5", "exaone4_5_text"): "exaone4",
    ("kimi_k25", "kimi_k2"): "deepseek_v3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """A nested config: its default type, whether the class insists on it, what it starts from."""

    model_type: str
    fixed: bool
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """What class_facts.json says of one model type."""

    values: Mapping[str, object] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, PartFacts] = field(default_factory=dict)


@cache
def _rows() -> dict[str, ClassFacts]:
    rows = json.loads(_FACTS_FILE.read_text(encoding="utf-8"))
    return {
        model_type: ClassFacts(
            values=row.get("values", {}),
            aliases=row.get("aliases", {}),
            parts={
                name: PartFacts(model_type=part[0], fixed=part[1], values=part[2])
                for name, part in row.get("parts", {}).items()
            },
        )
        for model_type, row in rows.items()
    }


def class_facts(model_type: str) -> ClassFacts:
    """Return what is known of the config class of that type.

    Raises:
        Unsupported: when Transformers 5.24 has no class of its own for it.

    """
    found = _rows().get(model_type)
    if found is None:
        raise Unsupported(
            "{field} {value}: Transformers 5.24 has no model of that type that keeps a cache; code "
            "that comes with a checkpoint decides its own",
            field="model_type",
            value=shown(model_type),
        )
    return found


def fields_of(
    raw: Mapping[str, object], model_type: str, *, of: Fields | None = None, at: str = ""
) -> Fields:
    """Return the fields of a config with the defaults of its class; a part shares `of`'s notes."""
    facts = class_facts(model_type)
    fields = Fields(
        raw=raw,
        model_type=model_type,
        defaults=facts.values,
        aliases=facts.aliases,
        not_null=class_defaults(model_type).not_null,
    )
    if of is not None:
        fields = replace(fields, path=(*of.path, at), assumptions=of.assumptions, notes=of.notes)
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A config as its class reads it: the wrapper's fields and the decoder's, often the same."""

    outer: Fields
    text: Fields

    @property
    def architecture(self) -> str:
        """Return the model class that the file names first, or nothing."""
        named = self.outer.items("architectures")
        return str(named[0]) if named else ""


def find_model(config: Mapping[str, object]) -> Model:
    """Return the model of a config.json.

    Raises:
        Missing: without a model_type.
        WrongType: for a model_type or part of the wrong type.
        Unsupported: for a type that Transformers has no class for.

    """
    model_type = config.get("model_type")
    if model_type is None:
        raise Missing("{field} is missing: it names the class that decides the cache",
                      field="model_type")  # fmt: skip
    if not isinstance(model_type, str):
        raise WrongType("{field} must be a string, got {value}",
                        field="model_type", value=shown(model_type))  # fmt: skip
    outer = fields_of(config, model_type)
    return Model(outer=outer, text=_decoder(outer))


def _decoder(outer: Fields, depth: int = 0) -> Fields:
    """Return the nested decoder config, or the config itself; wrappers nest at most twice."""
    facts = class_facts(outer.model_type)
    name = _OWN_PARTS.get(outer.model_type) or next(
        (part for part in _DECODER_PARTS if outer.raw.get(part) is not None), None
    )
    if name is None:
        name = next((part for part in _DECODER_PARTS if part in facts.parts), None)
    if name is None or depth > 2:  # noqa: PLR2004 - a thinker in a wrapper, its text in the thinker
        return outer
    return _decoder(_part(outer, name, facts.parts.get(name)), depth + 1)


def _part(outer: Fields, name: str, facts: PartFacts | None) -> Fields:
    raw = outer.raw.get(name)
    if raw is None and facts is not None:
        return _absent(outer, name, facts)
    if not is_mapping(raw):
        raise WrongType(
            "{field} must be an object, got {value}", field=outer.at(name), value=shown(raw)
        )
    own = raw.get("model_type")
    if facts is not None and (facts.fixed or own is None):
        own = facts.model_type
    own = _RENAMED.get((outer.model_type, str(own)), own)
    if not isinstance(own, str):
        raise Missing(
            "{field} is missing: it names the class of the part", field=outer.at(name, "model_type")
        )
    if facts is not None and outer.model_type in _STARTED:
        raw = {**facts.values, **raw}
    return fields_of(raw, own, of=outer, at=name)


def _absent(outer: Fields, name: str, facts: PartFacts) -> Fields:
    """Return the part of a file that has none: spread over its top level, or the class's own."""
    if outer.model_type in _FLAT:
        nested = outer.raw.get("language_config")
        flat = outer.raw
        if is_mapping(nested):
            window = {k: outer.raw[k] for k in ("sliding_window",) if k in outer.raw}
            flat = {**nested, **window}
        return replace(fields_of(flat, facts.model_type, of=outer, at=name), path=outer.path)
    outer.assume(
        "part_default",
        "{field} is not in the file; {model_type} takes the defaults of {part}",
        field=".".join(map(str, outer.at(name))),
        model_type=outer.model_type,
        part=facts.model_type,
    )
    return fields_of(facts.values, facts.model_type, of=outer, at=name)
