"""What one sequence takes at each of a list of lengths: the slope, the windows, the fixed part.

A figure a token hides that windows stop growing and that states never grow; this table does not.
A layer that drops its positions at a chunk's boundary is counted at the most it held on the way to
a length, which is what must be kept free for it: so no row takes less than a shorter one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.formats import KvFormats, StateGroup, state_groups
from app.domain.per_token import peak_tokens, window_positions
from app.domain.state import MAX_TOKENS, CrossAttention, ModelState

# 1k, 2k, 4k … 1M positions.
CONTEXT_TOKENS = tuple(2**power for power in range(10, 21))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One sequence of `tokens` positions, by what its bytes depend on.

    `growing_bytes` goes with every position, `window_bytes` with those still in sight (of a
    chunk: at its fullest on the way), `fixed_bytes` with none (states, and the encoder's side
    of cross-attention). `as_if_full_bytes` is what the formula says that keeps every position in
    every layer which keeps positions.
    """

    tokens: int
    growing_bytes: int
    window_bytes: int
    fixed_bytes: int
    as_if_full_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return what the sequence takes."""
        return self.growing_bytes + self.window_bytes + self.fixed_bytes

    @property
    def average_bytes(self) -> int:
        """Return the bytes a position comes to on average, rounded half up; 0 of no positions."""
        if not self.tokens:
            return 0
        return (2 * self.total_bytes + self.tokens) // (2 * self.tokens)


def context_table(
    model: ModelState, formats: KvFormats, lengths: Iterable[int] = CONTEXT_TOKENS
) -> tuple[ContextRow, ...]:
    """Return a row for each length.

    32 layers of 8 KV heads, 128 wide, 2 bytes an element: 131,072 bytes a position, so 1,024 of
    them take 134,217,728.

    Raises:
        WrongType, OutOfRange: for a length that is no number of positions.
        Unsupported: when a row does not divide into the format's blocks.

    """
    groups = state_groups(model, formats)
    return tuple(
        _row(groups, checked_int(tokens, "lengths", low=0, high=MAX_TOKENS)) for tokens in lengths
    )


def _row(groups: tuple[StateGroup, ...], tokens: int) -> ContextRow:
    growing = window = as_if_full = 0
    fixed = sum(group.fixed_bytes for group in groups) if tokens else 0
    for group in groups:
        held = group.position_bytes * peak_tokens(group.state, tokens)
        if isinstance(group.state, CrossAttention):
            fixed += held
            continue
        as_if_full += group.position_bytes * tokens
        if window_positions(group.state) is None:
            growing += held
        else:
            window += held
    return ContextRow(
        tokens=tokens,
        growing_bytes=growing,
        window_bytes=window,
        fixed_bytes=fixed,
        as_if_full_bytes=as_if_full,
    )
