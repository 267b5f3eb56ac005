"""Which positions a query may see, as arrays [B, N, T] of truths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.demo.backends import Bools


def causal(past_tokens: int, new_tokens: int, window: int | None = None) -> Bools:
    """Return the mask of `new_tokens` queries after `past_tokens` cached positions.

    Query i stands at position past + i and sees itself and what came before, of that the last
    `window` positions, itself included.
    """
    query = past_tokens + np.arange(new_tokens)[:, None]
    position = np.arange(past_tokens + new_tokens)[None, :]
    seen = position <= query
    if window is not None:
        seen &= position > query - window
    return np.asarray(seen[None])


def padded(lengths: Sequence[int], *, on_left: bool, new_tokens: int = 1) -> Bools:
    """Return the mask of a ragged batch, padded to its longest, for the last `new_tokens` of each.

    Padding on the left puts a sequence's last position at the end of the row; on the right its
    first at the start. A query sees its own sequence up to itself, and never padding. A sequence
    shorter than `new_tokens` has queries that see nothing.
    """
    total = max(lengths)
    position = np.arange(total)[None, None, :]
    size = np.asarray(lengths)[:, None, None]
    first = total - size if on_left else np.zeros_like(size)
    query = first + size - new_tokens + np.arange(new_tokens)[None, :, None]
    return np.asarray((position >= first) & (position <= query) & (query >= first))


def everything(new_tokens: int, total_tokens: int) -> Bools:
    """Return the mask that hides nothing: what goes wrong without one."""
    return np.ones((1, new_tokens, total_tokens), dtype=np.bool_)
