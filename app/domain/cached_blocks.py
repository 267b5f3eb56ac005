"""What a pool keeps for one block of a prefix, in bytes of a model and in blocks of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.formats import StateGroup
from app.domain.ledgers import MAX_BLOCK_SIZE
from app.domain.notes import Note
from app.domain.per_token import grows, window_positions
from app.domain.request_bytes import Groups
from app.domain.state import LatentAttention, Recurrent
from app.domain.traces import MAX_BLOCK_TOKENS
from app.domain.working import Working, position_term


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBlock:
    """One block of a log, and what its tokens take in a pool.

    `bytes` is 0 for a model that keeps nothing by positions: its prefixes are not kept in blocks.
    """

    tokens: int
    bytes: int
    working: Working
    assumptions: tuple[Note, ...]


def cached_block(groups: Groups, tokens: int, engine_tokens: int) -> CachedBlock:
    """Return what one block of `tokens` positions takes in a pool of a model.

    512 tokens at 131072 B/token take 64 MiB, whatever the engine's own block size,
    `engine_tokens`, about which the assumptions say what it changes.

    Raises:
        OutOfRange: for a block size out of bounds.

    """
    checked_int(tokens, "block_tokens", low=1, high=MAX_BLOCK_TOKENS)
    checked_int(engine_tokens, "block_size", low=1, high=MAX_BLOCK_SIZE)
    paged = [group for group in groups if _is_paged(group)]
    total = sum(-(-tokens * group.position_bytes // _entry_tokens(group)) for group in paged)
    terms = []
    for group in paged:
        entry = _entry_tokens(group)
        term = position_term(group)
        terms.append(term if entry == 1 else f"({term}) ÷ {entry}")
    return CachedBlock(
        tokens=tokens,
        bytes=total,
        working=Working(
            symbols="tokens of a block × Σ over layers that keep positions of bytes of a position",
            numbers=f"{tokens} tokens × ({' + '.join(terms) or '0 B'}) = {total} B",
            result=total,
            unit="B",
            source="a hit needs the block's keys and values in every layer that keeps positions",
        ),
        assumptions=tuple(_assumptions(groups, tokens, engine_tokens)),
    )


def _is_paged(group: StateGroup) -> bool:
    return grows(group.state) or window_positions(group.state) is not None


def _entry_tokens(group: StateGroup) -> int:
    return group.state.tokens_per_entry if isinstance(group.state, LatentAttention) else 1


def _assumptions(groups: Groups, tokens: int, engine_tokens: int) -> Iterator[Note]:
    if any(window_positions(group.state) is not None for group in groups):
        yield Note(
            "cached_windows",
            "A cached block keeps all of its positions in layers with a window too, since a hit may"
            " end in any block: an engine that drops what windows have passed needs less.",
        )
    if any(isinstance(group.state, Recurrent) for group in groups):
        yield Note(
            "cached_recurrent",
            "Recurrent states are not counted in a cached block. An engine reuses a prefix only"
            " where it has stored one, so that it has fewer hits than shown.",
        )
    if tokens % engine_tokens:
        yield Note(
            "engine_block_other",
            "The engine's blocks of {engine_tokens} tokens do not divide the log's blocks of"
            " {tokens}. An engine finds only whole blocks of its own: fewer hits than shown.",
            {"engine_tokens": engine_tokens, "tokens": tokens},
        )
    elif tokens > engine_tokens:
        yield Note(
            "engine_block_smaller",
            "The log names blocks of {tokens} tokens. An engine with blocks of {engine_tokens} may"
            " find a part of one that the log counts as missing.",
            {"engine_tokens": engine_tokens, "tokens": tokens},
        )
