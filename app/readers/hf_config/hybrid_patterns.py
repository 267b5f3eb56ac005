"""Which layers of a hybrid attend, which recur, and which do both or neither.

`layer_types` or `layers_block_type` decides where the file has it; else the type's own rule does
(Transformers 5.24 models/<type>/configuration_<type>.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.domain.errors import Conflict, Missing, Unsupported, shown
from app.domain.notes import Note
from app.domain.state import MAX_LAYERS
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.recurrent_shapes import linear_part

ATTENTION, LINEAR, BOTH = "full_attention", "linear_attention", "hybrid"
SLIDING, BOTH_SLIDING = "sliding_attention", "hybrid_sliding"
NONE = "none"

# Spellings of the kinds of layer; "mamba" and "attention" are those of older files.
WORDS: Mapping[str, str] = {
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "indexed_attention": ATTENTION,
    "qwen_sparse_attention": ATTENTION,
    "sliding_attention": SLIDING,
    "mamba": LINEAR,
    "conv": LINEAR,
    "linear_attention": LINEAR,
    "recurrent": LINEAR,
    "hybrid": BOTH,
    "hybrid_sliding": BOTH_SLIDING,
    "moe": NONE,
    "mlp": NONE,
}

Pattern = Callable[[Fields, int], list[str]]


# Which layer is of which kind


def stated(fields: Fields, layers: int | None) -> list[str] | None:
    """Return the kinds that `layer_types` or `layers_block_type` names, in order."""
    words = fields.words("layer_types", "layers_block_type", length=layers)
    if words is None:
        return None
    for index, word in enumerate(words):
        if word not in WORDS:
            raise Unsupported(
                "{field} is {value}, a kind of layer that {model_type} is not known to have",
                field=fields.at("layer_types", index),
                value=shown(word),
                model_type=fields.model_type,
            )
    return [WORDS[word] for word in words]


def assumed(fields: Fields, kinds: list[str]) -> list[str]:
    """Return the kinds, noting that the file does not say and where attention is."""
    fields.guess("layer_types")
    fields.assume(
        "layer_pattern",
        "the file does not say which layers attend; {model_type} has attention in {count} of "
        "{layers}, from {first}",
        model_type=fields.model_type,
        count=sum(kind != LINEAR for kind in kinds),
        layers=len(kinds),
        first=next((index for index, kind in enumerate(kinds) if kind != LINEAR), Note("", "none")),
    )
    return kinds


def last_of_each(period: int | None, *names: str) -> Pattern:
    """Return the rule: attention in every n-th layer, and recurrence between."""

    def kinds(fields: Fields, layers: int) -> list[str]:
        step = fields.integer(*names, high=MAX_LAYERS, otherwise=period) if names else period or 1
        return [LINEAR if (index + 1) % step else ATTENTION for index in range(layers)]

    return kinds


def at_offset(kind: str) -> Pattern:
    """Return the rule of Jamba: attention where index mod period is the offset."""

    def kinds(fields: Fields, layers: int) -> list[str]:
        period = fields.integer("attn_layer_period", high=MAX_LAYERS)
        offset = fields.integer("attn_layer_offset", low=0, high=MAX_LAYERS)
        if offset >= period:
            raise Conflict(
                "{field} is {offset}, but the period is {period}",
                field=fields.at("attn_layer_offset"),
                offset=offset,
                period=period,
            )
        return [kind if index % period == offset else LINEAR for index in range(layers)]

    return kinds


def everywhere(kind: str) -> Pattern:
    """Return the rule: every layer is of that kind."""
    return lambda _, layers: [kind] * layers


def all_recurrent(fields: Fields, layers: int) -> list[str]:
    """Return the rule of Granite 4 hybrid: no layer attends unless the file names it."""
    return assumed(fields, [LINEAR] * layers)


def after_three(fields: Fields, layers: int) -> list[str]:
    """Layers 0 and 1 are plain and layer 2 hybrid; the period counts from layer 3."""
    first = [LINEAR, LINEAR, BOTH][:layers]
    return first + at_offset(BOTH)(fields, max(layers - 3, 0))


def listed(fields: Fields, layers: int) -> list[str]:
    """Return the rule of Bamba: attention in the layers that `attn_layer_indices` names."""
    attention = set(fields.integers("attn_layer_indices", high=layers - 1) or ())
    return [ATTENTION if index in attention else LINEAR for index in range(layers)]


def full_attn_idxs(fields: Fields, layers: int) -> list[str]:
    """Return the rule of LFM2: attention in the layers named, convolutions in the others."""
    attention = fields.integers("full_attn_idxs", high=layers - 1)
    if attention is None:
        raise Missing(
            "{field} is missing, and nothing else says which layers attend",
            field=fields.at("layer_types"),
        )
    return [ATTENTION if index in set(attention) else LINEAR for index in range(layers)]


def third_of_four(fields: Fields, layers: int) -> list[str]:
    """Return the rule of LFM3: of every four, a window, a full layer, and convolutions."""
    kinds = [LINEAR] * layers
    for index in range(layers):
        if index % 4 == 2:  # noqa: PLR2004 - the third of every four
            kinds[index] = ATTENTION
        elif index % 4 == 0 and index:
            kinds[index] = SLIDING
    return assumed(fields, kinds)


def five_in_turn(fields: Fields, layers: int) -> list[str]:
    """Return the rule of Lara: five kinds in turn."""
    each = (LINEAR, SLIDING, LINEAR, ATTENTION, SLIDING)
    return assumed(fields, [each[index % len(each)] for index in range(layers)])


def fourth_or_last(fields: Fields, layers: int) -> list[str]:
    """Return the rule of OLMo hybrid: every fourth layer, or at least the last, attends."""
    kinds = last_of_each(4)(fields, layers)
    if ATTENTION not in kinds:
        kinds[-1] = ATTENTION
    return assumed(fields, kinds)


def repeated_blocks(fields: Fields, layers: int) -> list[str]:
    """`block_types` is repeated over the layers."""
    blocks = fields.words("block_types")
    if not blocks:
        blocks = ["recurrent", "recurrent", "attention"]
        fields.assume_default("block_types", ", ".join(blocks))
    kinds = {"recurrent": LINEAR, "attention": SLIDING}
    for index, block in enumerate(blocks):
        if block not in kinds:
            raise Unsupported(
                "{field} must be recurrent or attention, got {value}",
                field=fields.at("block_types", index),
                value=shown(block),
            )
    return [kinds[blocks[index % len(blocks)]] for index in range(layers)]


def counted_from_one(fields: Fields, layers: int) -> list[str]:
    """The file counts its layers from 1, in `full_attn_layers` and `kda_layers`."""
    part = linear_part(fields)
    if part is None or not (part.says("full_attn_layers") and part.says("kda_layers")):
        return assumed(
            fields,
            [ATTENTION if index and index % 4 == 0 else LINEAR for index in range(layers)],
        )
    kinds = [""] * layers
    for name, kind in (("full_attn_layers", ATTENTION), ("kda_layers", LINEAR)):
        for index in part.integers(name, low=1, high=layers) or ():
            kinds[index - 1] = kind
    if "" in kinds:
        raise Missing(
            "{field} names no kind for layer {layer}",
            field=fields.at("linear_attn_config"),
            layer=kinds.index(""),
        )
    return kinds


def flagged(fields: Fields, layers: int) -> list[str]:
    """`attn_type_list` of the remote code has a 1 for softmax attention, a 0 for lightning."""
    flags = fields.integers("attn_type_list", length=layers, high=1)
    if flags is not None:
        return [ATTENTION if flag else LINEAR for flag in flags]
    if fields.model_type != "minimax":
        raise fields.missing("attn_type_list")
    kinds = [LINEAR if (index + 1) % 2 == 0 else ATTENTION for index in range(layers)]
    return assumed(fields, kinds)


def lettered(fields: Fields, pattern: str) -> list[str]:
    """Return the kinds that a string of M, *, - and E spells."""
    letters = {"M": LINEAR, "*": ATTENTION, "-": NONE, "E": NONE}
    for index, letter in enumerate(pattern[: MAX_LAYERS + 1]):
        if letter not in letters:
            raise Unsupported(
                "{field} may hold M, *, - and E, got {value}",
                field=fields.at("hybrid_override_pattern", index),
                value=shown(letter),
            )
    return [letters[letter] for letter in pattern[: MAX_LAYERS + 1]]


def no_rule(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    """Refuse: the class's own list fits one size of model only."""
    raise Missing(
        "{field} is missing, and nothing else says which layers attend",
        field=fields.at("layers_block_type"),
    )
