"""Which kind of layer each one is: a list in the config, a pattern string, or the family's rule."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import Conflict, shown
from app.readers.weights.experts import num_layers
from app.readers.weights.fields import Fields

# One word for each kind, whatever the release of Transformers that wrote the file.
_WORDS = {
    "attention": "full",
    "full_attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "full",
    "linear_attention": "linear",
    "lightning_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "conv": "conv",
    "hybrid": "hybrid",
    "mlp": "mlp",
    "moe": "moe",
}

Rule = Callable[[Fields, int], str]


def layer_kind(name: str, otherwise: Rule, count: Callable[[Fields], int] = num_layers) -> Rule:
    """Return a rule: the config's list `name`, else the family's own."""

    def kind(fields: Fields, layer: int) -> str:
        words = fields.words(name, length=count(fields))
        if words is None:
            return otherwise(fields, layer)
        found = _WORDS.get(words[layer])
        if found is None:
            raise Conflict("{field} {value} is no known kind of layer",
                           field=(*fields.at(name), layer), value=shown(words[layer]))  # fmt: skip
        return found

    return kind


def every(name: str, default: int, chosen: str, rest: str) -> Rule:
    """Return a rule: each `name`-th layer is `chosen`, counted from 1."""

    def kind(fields: Fields, layer: int) -> str:
        period = fields.size_or_none(name, low=1) or default
        return rest if (layer + 1) % period else chosen

    return kind


def always(word: str) -> Rule:
    """Return a rule that gives one kind."""
    return lambda _fields, _layer: word
