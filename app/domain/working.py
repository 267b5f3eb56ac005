"""How a figure came about: the rule in symbols, the same with the request's numbers, its source."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.domain.dtypes import DType
from app.domain.formats import StateGroup
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Recurrent,
    SlidingWindow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """One figure's working; `numbers` ends in the result."""

    symbols: str
    numbers: str
    result: int
    unit: str
    source: str


# What `position_term` adds at its outermost level.
_ADDED_INDEX = re.compile(r" \+ \d+ layers? × \d+ index × ")


def plural(count: int, noun: str) -> str:
    """Return `1 layer`, `2 layers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _both(key: str, value: str, key_format: DType, value_format: DType) -> str:
    if key_format == value_format:
        return f"({key} + {value}) × {key_format.bytes_text}"
    return f"({key} × {key_format.bytes_text} + {value} × {value_format.bytes_text})"


def _heads_term(group: StateGroup, heads: str, key: int, value: int, form: KvFormat) -> str:
    layers = plural(group.count, "layer")
    if key == value and form.key == form.value:
        return f"2 × {layers} × {heads} × {key} × {form.key.bytes_text}"
    return f"{layers} × {heads} × {_both(str(key), str(value), form.key, form.value)}"


def position_term(group: StateGroup) -> str:
    """Return the expression of what one position takes in the layers of a group.

    `2 × 32 layers × 8 KV heads × 128 × 2 B` where K and V are alike; sums spelled out elsewhere.
    """
    state, form = group.state, group.format
    layers = plural(group.count, "layer")
    if isinstance(state, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention):
        heads = plural(state.kv_heads, "KV head")
        term = _heads_term(group, heads, state.k_dim, state.v_dim, form)
        if isinstance(state, FullAttention) and state.index_dim:
            term += f" + {layers} × {state.index_dim} index × {form.key.bytes_text}"
        return term
    if isinstance(state, LatentAttention):
        parts = [f"{state.latent_dim} latent", f"{state.rope_dim} rope"]
        same = state.index_format in (None, form.key)
        if state.index_dim and same:
            parts.append(f"{state.index_dim} index")
        term = f"{layers} × ({' + '.join(parts)}) × {form.key.bytes_text}"
        if state.index_dim and not same and state.index_format is not None:
            term += f" + {layers} × {state.index_dim} index × {state.index_format.bytes_text}"
        return term
    return f"{layers} × 0 B"


def position_factor(group: StateGroup) -> str:
    """Return the same expression as a factor: in brackets where it is a sum."""
    term = position_term(group)
    return f"({term})" if _ADDED_INDEX.search(term) else term


def fixed_term(group: StateGroup) -> str:
    """Return the expression of the constant part of a group of recurrent layers.

    `36 layers × (32 × 128 × 128 × 4 B + 8192 × 3 × 2 B)`: a product for each tensor of a layer.
    """
    layers = plural(group.count, "layer")
    if not isinstance(group.state, Recurrent):
        return f"{layers} × {group.state.fixed_bytes()} B"
    tensors = [
        f"{' × '.join(map(str, tensor.shape))} × {tensor.dtype.bytes_text}"
        for tensor in group.state.tensors
    ]
    return f"{layers} × ({' + '.join(tensors)})"
