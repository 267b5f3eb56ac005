"""Heads and their widths in plain decoders: MHA, MQA and GQA under all their names.

The rules are those of each type's modelling code in Transformers 5.24 (models/<type>/), measured:
tests/data/hf_cases.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict, FieldPath
from app.domain.state import FullAttention
from app.readers.hf_config.fields import Fields

KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_query_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """KV heads of one layer, and the widths of a key and of a value."""

    kv_heads: int
    k_dim: int
    v_dim: int

    def full(self) -> FullAttention:
        """Return the state that keeps every position."""
        return FullAttention(kv_heads=self.kv_heads, k_dim=self.k_dim, v_dim=self.v_dim)


def shared_heads(fields: Fields, *names: str) -> int:
    """Return how many KV heads query heads share (GQA); as many as query heads when null.

    Raises:
        Conflict: when the query heads do not divide into that many groups.

    """
    spellings = names or KV_HEADS
    kv_heads = fields.integer_or_none(*spellings, high=MAX_SHARED)
    if kv_heads is None:
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
        must_divide(
            fields.heads(), kv_heads, fields.at(fields.key(*spellings) or spellings[0]), "KV heads"
        )
    return kv_heads


MAX_SHARED = 65_536


def must_divide(total: int, parts: int, field: FieldPath, what: str) -> int:
    """Return total / parts.

    Raises:
        Conflict: when it is not whole.

    """
    if total % parts:
        raise Conflict(
            "{field} is {parts}, and {total} does not divide into so many {what}",
            field=field,
            parts=parts,
            total=total,
            what=what,
        )
    return total // parts


def head_width(fields: Fields, *names: str, own: bool = True) -> int:
    """Return the width of a head: its own field, else the hidden size over the heads.

    `own` is False for types whose code ignores a `head_dim` in the file.
    """
    if own:
        width = fields.integer_or_none(*(names or ("head_dim",)), high=1_048_576)
        if width is not None:
            return width
    hidden = fields.dim("hidden_size")
    return must_divide(
        hidden, fields.heads(), fields.at(fields.key("num_attention_heads") or "num_attention_heads"),
        "heads",
    )  # fmt: skip


def grouped(fields: Fields) -> HeadShape:
    """Return the heads of a decoder with `num_key_value_heads` and `head_dim`."""
    width = head_width(fields)
    return HeadShape(kv_heads=shared_heads(fields), k_dim=width, v_dim=width)


def multi_head(fields: Fields, *, own: bool = False) -> HeadShape:
    """Return the heads of a decoder in which every head keeps its own key and value (MHA)."""
    width = head_width(fields, own=own)
    return HeadShape(kv_heads=fields.heads(), k_dim=width, v_dim=width)
