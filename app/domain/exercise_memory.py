"""Practice tasks about memory: the three ledgers, and blocks that requests share."""

from __future__ import annotations

from fractions import Fraction

from app.domain.exercise_choices import capacity_omissions, reuse_conditions
from app.domain.exercise_parts import (
    block_given,
    drawn_model,
    in_bytes,
    in_count,
    positions_line,
)
from app.domain.notes import Note
from app.domain.practice import Asked, Draws, Exercise, Given, Slip

_BLOCK_SIZES = (8, 16, 32)

_KEYS_ALONE = Note("keys_alone", "That is the keys alone; values take as much again.")
_THAT_IS_PADDED = Note(
    "that_is_padded", "That is the padded figure: only positions with state count."
)
_THAT_IS_EFFECTIVE = Note(
    "that_is_effective", "That is the effective figure: every request takes the longest one's room."
)
_NO_ROUNDING = Note(
    "no_rounding", "That is the effective figure: each length is rounded up to whole blocks first."
)
_SHARED_ONCE = Note(
    "shared_once", "That counts the shared prefix for each request; it is in memory once."
)


def capacity_whole(seed: int) -> Exercise:
    """Lengths that fill their blocks: paging costs nothing, padding does."""
    draws = Draws("capacity_whole", seed)
    block = 16 if seed == 0 else draws.pick(_BLOCK_SIZES)
    lengths = (1024, 3072) if seed == 0 else _whole_lengths(draws, block)
    return _capacity(
        "capacity_whole",
        seed,
        Note("capacity_whole", "Capacity: lengths that fill their blocks"),
        draws,
        lengths,
        block,
    )


def capacity_ragged(seed: int) -> Exercise:
    """Lengths around a block's edge: each request leaves a tail."""
    draws = Draws("capacity_ragged", seed)
    block = 16 if seed == 0 else draws.pick(_BLOCK_SIZES)
    lengths = (17, 31, 32) if seed == 0 else _ragged_lengths(draws, block)
    return _capacity(
        "capacity_ragged",
        seed,
        Note("capacity_ragged", "Capacity: lengths around a block's edge"),
        draws,
        lengths,
        block,
    )


def _whole_lengths(draws: Draws, block: int) -> tuple[int, ...]:
    first = draws.between(4, 64)
    return (first * block, (first + draws.between(8, 128)) * block)


def _ragged_lengths(draws: Draws, block: int) -> tuple[int, ...]:
    """Return one length just past a block, one just short of a block and one that fills it."""
    over = draws.between(1, 3) * block + draws.between(1, 3)
    short = draws.between(2, 4) * block - draws.between(1, 3)
    return (over, short, draws.between(2, 4) * block)


def _capacity(
    kind: str, seed: int, title: Note, draws: Draws, lengths: tuple[int, ...], block: int
) -> Exercise:
    model = drawn_model(draws, seed)
    each = model.bytes_per_token
    effective, padded = sum(lengths), len(lengths) * max(lengths)
    blocks = sum(-(-length // block) for length in lengths)
    paged = blocks * block
    per_token = Asked(
        code="bytes_per_token",
        label=Note("bytes_per_token", "bytes of one position"),
        expected=Fraction(each),
        unit="B",
        slips=(Slip(value=Fraction(each, 2), remark=_KEYS_ALONE),),
    )
    longest = Slip(value=Fraction(each * padded), remark=_THAT_IS_PADDED)
    return Exercise(
        kind=kind,
        seed=seed,
        title=title,
        question=Note(
            "capacity_question",
            "Fill in the three ledgers of these requests, each in memory of its own.",
        ),
        givens=(
            *model.givens,
            Given(
                code="lengths",
                label=Note("lengths", "lengths in positions"),
                value=", ".join(map(str, lengths)),
            ),
            block_given(block),
        ),
        figures=(
            per_token,
            in_bytes(
                "effective_bytes", Note("effective", "effective bytes"), each * effective, longest
            ),
            in_bytes(
                "padded_bytes",
                Note("padded", "bytes padded to the longest"),
                each * padded,
                Slip(value=Fraction(each * effective), remark=_THAT_IS_EFFECTIVE),
            ),
            in_bytes(
                "paged_bytes",
                Note("paged", "bytes in pages"),
                each * paged,
                Slip(value=Fraction(each * effective), remark=_NO_ROUNDING),
            ),
            in_count(
                "tail_waste_tokens",
                Note("tail_waste", "empty positions in last blocks"),
                paged - effective,
            ),
        ),
        omissions=capacity_omissions(draws),
        conditions=reuse_conditions(draws),
        working=(
            model.working,
            Note(
                "effective_line",
                "effective: {sum} = {tokens} positions × {each} B = {bytes} B = {text}",
                positions_line(model, effective, sum=" + ".join(map(str, lengths))),
            ),
            Note(
                "padded_line",
                "padded: {requests} × {longest} = {tokens} positions × {each} B = {bytes} B = "
                "{text}",
                positions_line(model, padded, requests=len(lengths), longest=max(lengths)),
            ),
            Note(
                "paged_line",
                "paged: {blocks} blocks × {block} = {tokens} positions × {each} B = {bytes} B = "
                "{text}",
                positions_line(model, paged, blocks=blocks, block=block),
            ),
            Note(
                "tail_line",
                "tails: {paged} − {effective} = {waste} positions, at most {bound}: "
                "{block} − 1 for each request",
                {
                    "paged": paged,
                    "effective": effective,
                    "waste": paged - effective,
                    "bound": len(lengths) * (block - 1),
                    "block": block,
                },
            ),
        ),
    )


def unique_blocks(seed: int) -> Exercise:
    """A shared prefix is in memory once, and each table names it."""
    draws = Draws("unique_blocks", seed)
    block = 16 if seed == 0 else draws.pick(_BLOCK_SIZES)
    shared = 2 if seed == 0 else draws.between(1, 12)
    branches: tuple[int, ...] = (1, 1)
    if seed:
        branches = tuple(draws.between(1, 2 * block) for _ in range(draws.between(2, 4)))
    model = drawn_model(draws, seed)
    each = model.bytes_per_token
    tails = [-(-branch // block) for branch in branches]
    entries = len(branches) * shared + sum(tails)
    unique = shared + sum(tails)
    effective = shared * block + sum(branches)
    return Exercise(
        kind="unique_blocks",
        seed=seed,
        title=Note("unique_blocks", "Shared blocks count once"),
        question=Note(
            "unique_question",
            "Requests share a prefix and then go their own ways, each with positions of its own. "
            "How much memory do they take together?",
        ),
        givens=(
            *model.givens,
            block_given(block),
            Given(
                code="prefix",
                label=Note("prefix", "shared positions"),
                value=str(shared * block),
            ),
            Given(
                code="branches",
                label=Note("branches", "own positions of each request"),
                value=", ".join(map(str, branches)),
            ),
        ),
        figures=(
            in_count(
                "table_entries", Note("table_entries", "entries of all block tables"), entries
            ),
            in_count(
                "unique_blocks",
                Note("unique", "unique physical blocks"),
                unique,
                Slip(value=Fraction(entries), remark=_SHARED_ONCE),
            ),
            in_bytes(
                "paged_bytes",
                Note("paged", "bytes in pages"),
                each * unique * block,
                Slip(value=Fraction(each * entries * block), remark=_SHARED_ONCE),
            ),
            in_count(
                "effective_tokens",
                Note("effective_tokens", "positions that hold state"),
                effective,
                Slip(
                    value=Fraction(effective + (len(branches) - 1) * shared * block),
                    remark=_SHARED_ONCE,
                ),
            ),
        ),
        omissions=capacity_omissions(draws),
        conditions=reuse_conditions(draws),
        working=(
            Note(
                "entries_line",
                "entries: {requests} × {shared} shared + {tails} own = {entries}",
                {
                    "requests": len(branches),
                    "shared": shared,
                    "tails": sum(tails),
                    "entries": entries,
                },
            ),
            Note(
                "unique_line",
                "unique: {shared} shared once + {tails} own = {unique}",
                {"shared": shared, "tails": sum(tails), "unique": unique},
            ),
            model.working,
            Note(
                "paged_line",
                "paged: {blocks} blocks × {block} = {tokens} positions × {each} B = {bytes} B = "
                "{text}",
                positions_line(model, unique * block, blocks=unique, block=block),
            ),
            Note(
                "effective_tokens_line",
                "state: {prefix} shared once + {own} = {tokens} positions",
                {
                    "prefix": shared * block,
                    "own": " + ".join(map(str, branches)),
                    "tokens": effective,
                },
            ),
        ),
    )
