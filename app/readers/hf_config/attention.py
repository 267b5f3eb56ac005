"""Heads and their widths in plain decoders: MHA, MQA and GQA under all their names.

The rules are those of each type's modelling code in Transformers 5.24 (models/<type>/), measured:
tests/data/hf_cases.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.errors import Conflict, FieldPath, shown
from app.domain.notes import Note
from app.domain.state import MAX_DIM, MAX_HEADS, FullAttention
from app.readers.hf_config.fields import Fields

MAX_DIGITS = 6
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """KV heads of one layer, and the widths of a key and of a value."""

    kv_heads: int
    k_dim: int
    v_dim: int

    def full(self, *, index_dim: int = 0) -> FullAttention:
        """Return the state that keeps every position."""
        return FullAttention(
            kv_heads=self.kv_heads, k_dim=self.k_dim, v_dim=self.v_dim, index_dim=index_dim
        )


Heads = Callable[[Fields], HeadShape]


def shared_heads(fields: Fields, *names: str) -> int:
    """Return how many KV heads the query heads share (GQA); as many as query heads when null.

    Raises:
        Conflict: when the query heads do not divide into that many groups.

    """
    spellings = names or KV_HEADS
    kv_heads = fields.integer_or_none(*spellings, high=MAX_HEADS)
    if kv_heads is None:
        if not fields.has(*spellings):
            fields.guess(spellings[0])
        kv_heads = fields.heads()
        fields.assume(
            "kv_heads_as_heads",
            "{field} is not given: {model_type} then has as many KV heads as heads, {value}",
            field=".".join(map(str, fields.at(spellings[0]))),
            model_type=fields.model_type,
            value=kv_heads,
        )
        return kv_heads
    if fields.says("num_attention_heads"):
        field = fields.at(fields.key(*spellings) or spellings[0])
        must_divide(fields.heads(), kv_heads, field, "KV heads")
    return kv_heads


def must_divide(total: int, parts: int, field: FieldPath, template: str) -> int:
    """Return total / parts; the template says what parts these are.

    Raises:
        Conflict: when it is not whole.

    """
    if total % parts:
        raise Conflict(
            "{field} is {parts}, and {total} does not divide into so many {what}",
            field=field,
            parts=parts,
            total=total,
            what=Note("", template),
        )
    return total // parts


def head_width(fields: Fields, *names: str) -> int:
    """Return the width of a head: its own field, else the hidden size over the heads."""
    width = fields.integer_or_none(*(names or ("head_dim",)), high=MAX_DIM)
    return split_width(fields) if width is None else width


def split_width(fields: Fields) -> int:
    """Return the hidden size over the heads, for types whose code has no other width."""
    field = fields.at(fields.key("num_attention_heads") or "num_attention_heads")
    return must_divide(fields.dim("hidden_size"), fields.heads(), field, "heads")


def grouped(fields: Fields) -> HeadShape:
    """Return the heads of a decoder with `num_key_value_heads` and `head_dim`."""
    width = head_width(fields)
    return HeadShape(kv_heads=shared_heads(fields), k_dim=width, v_dim=width)


def grouped_split(fields: Fields) -> HeadShape:
    """Return the same for a type that has no `head_dim`, or sets its own over the file's."""
    fields.seen("head_dim")
    width = split_width(fields)
    return HeadShape(kv_heads=shared_heads(fields), k_dim=width, v_dim=width)


def multi_head(fields: Fields) -> HeadShape:
    """Return the heads of a decoder in which every head keeps its own key and value (MHA).

    A `head_dim` in the file is ignored, as the code of these types does.
    """
    fields.seen("head_dim")
    width = split_width(fields)
    return HeadShape(kv_heads=fields.heads(), k_dim=width, v_dim=width)


def multi_head_own_width(*names: str) -> Heads:
    """Return the same for a type with a width of its own under one of `names`."""

    def heads(fields: Fields) -> HeadShape:
        width = head_width(fields, *names)
        return HeadShape(kv_heads=fields.heads(), k_dim=width, v_dim=width)

    return heads


def one_if_multi_query(fields: Fields) -> HeadShape:
    """Return one KV head where `multi_query` is true (MQA), else as many as heads."""
    fields.seen("head_dim")
    width = split_width(fields)
    kv_heads = 1 if fields.flag("multi_query") else fields.heads()
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def per_layer(fields: Fields, layers: int) -> dict[int, Fields]:
    """Return the layers that `per_layer_config` gives fields of their own, each with its fields.

    Keys are layer numbers, as text in a file (Transformers 5.24 configuration_utils.py).
    """
    given = fields.part("per_layer_config")
    if given is None:
        return {}
    found: dict[int, Fields] = {}
    for key in given.raw:
        known = (
            isinstance(key, str)
            and key.isdecimal()
            and len(key) <= MAX_DIGITS
            and int(key) < layers
        )
        if not known:
            raise Conflict(
                "{field} names a layer that a model of {layers} layers lacks",
                field=given.at(shown(key)),
                layers=layers,
            )
        own = given.part(key)
        if own is not None:
            found[int(key)] = fields.overlaid(own.raw, own.path)
    return found
