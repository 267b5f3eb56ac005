"""What the config class of a model type assumes of absent fields: data from Transformers 5.24.

defaults.json was made by building each config class without arguments, and again with other sizes,
to tell constants from what is derived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DEFAULTS_FILE = Path(__file__).with_name("defaults.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassDefaults:
    """What the config class of a model type assumes.

    `values` holds constants, and the rules "=heads" and "=hidden/heads"; `aliases` the class's
    attribute map (canonical name to the name in the file); `not_null` fields that it refuses as
    null; `parts` the nested configs it has, with the model type that each takes when none is named.
    """

    values: Mapping[str, object]
    aliases: Mapping[str, str]
    not_null: frozenset[str]
    parts: Mapping[str, str]


_NO_DEFAULTS = ClassDefaults(values={}, aliases={}, not_null=frozenset(), parts={})


@cache
def _default_rows() -> dict[str, ClassDefaults]:
    rows = json.loads(_DEFAULTS_FILE.read_text(encoding="utf-8"))
    return {
        model_type: ClassDefaults(
            values=row.get("values", {}),
            aliases=row.get("aliases", {}),
            not_null=frozenset(row.get("not_null", ())),
            parts=row.get("parts", {}),
        )
        for model_type, row in rows.items()
    }


def class_defaults(model_type: str) -> ClassDefaults:
    """Return what Transformers 5.24's config class of that type assumes; empty when it has none."""
    return _default_rows().get(model_type, _NO_DEFAULTS)
