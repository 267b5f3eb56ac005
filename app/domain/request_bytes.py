"""What one request takes, as a function of its tokens: its own state, or whole blocks of it."""

from __future__ import annotations

from app.domain.formats import StateGroup
from app.domain.per_token import window_positions

Groups = tuple[StateGroup, ...]


def effective_bytes(groups: Groups, tokens: int) -> int:
    """Return the bytes of the state of `tokens` that have gone through the model."""
    if not tokens:
        return 0
    return sum(
        group.state.kept_tokens(tokens) * group.position_bytes + group.fixed_bytes
        for group in groups
    )


def paged_bytes(groups: Groups, tokens: int, block_size: int) -> int:
    """Return the same in whole blocks of `block_size` positions; a constant state is not paged."""
    if not tokens:
        return 0
    return sum(
        -(-group.state.kept_tokens(tokens) // block_size) * block_size * group.position_bytes
        + group.fixed_bytes
        for group in groups
    )


def reserved_bytes(groups: Groups, max_tokens: int) -> int:
    """Return what holds a request at any length up to `max_tokens`, laid out in one piece.

    A window or a chunk never holds more than it lets a query see, and holds that much already
    before the longest length (a chunk is empty at its boundary, and yet was full just before).
    """
    if not max_tokens:
        return 0
    total = 0
    for group in groups:
        most = window_positions(group.state)
        tokens = max_tokens if most is None else min(max_tokens, most)
        total += group.state.kept_tokens(tokens) * group.position_bytes + group.fixed_bytes
    return total
