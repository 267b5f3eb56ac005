"""Why a step of a simulated pool did what it did, one sentence a thing."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.notes import Note

_SHOWN_BLOCKS = 8


def block_list(blocks: Sequence[int]) -> str:
    """Return block ids for a sentence; of many, the first and the last."""
    if len(blocks) <= _SHOWN_BLOCKS:
        return ", ".join(map(str, blocks))
    head = ", ".join(map(str, blocks[: _SHOWN_BLOCKS - 1]))
    return f"{head}, … {blocks[-1]}"


def hit(blocks: Sequence[int], tokens: int, total: int) -> Note:
    """Say that cached blocks are taken over."""
    return Note(
        "pool_hit",
        "Found in the cache: {blocks}. Each has one holder more now, and {tokens} of {total} "
        "positions need no computing.",
        {"blocks": block_list(blocks), "tokens": tokens, "total": total},
    )


def miss() -> Note:
    """Say that nothing was found."""
    return Note("pool_miss", "No full block of this prefix is cached; all of it is computed.")


def revived(blocks: Sequence[int]) -> Note:
    """Say that free blocks are hit before anything was written over them."""
    return Note(
        "pool_revived",
        "Free, but not yet written over: {blocks}. What is hit leaves the free queue with its "
        "content.",
        {"blocks": block_list(blocks)},
    )


def allocated(blocks: Sequence[int]) -> Note:
    """Say that new blocks come off the queue."""
    return Note(
        "pool_allocated",
        "Taken off the head of the free queue, with one holder each: {blocks}.",
        {"blocks": block_list(blocks)},
    )


def evicted(blocks: Sequence[int]) -> Note:
    """Say that cached content is overwritten."""
    return Note(
        "pool_evicted",
        "Cached content lost, since something else is written there: {blocks}. No lookup finds it "
        "any more.",
        {"blocks": block_list(blocks)},
    )


def named(blocks: Sequence[int]) -> Note:
    """Say that full blocks get their hash."""
    return Note(
        "pool_named",
        "Full, and from now on found by the hash: {blocks}.",
        {"blocks": block_list(blocks)},
    )


def duplicate(block: int, other: int) -> Note:
    """Say that two blocks hold one content."""
    return Note(
        "pool_duplicate",
        "Block {block} holds what block {other} holds too. Both stay, since a table entry does not "
        "change once given; lookups find block {other}.",
        {"block": block, "other": other},
    )


def shared(child: str, blocks: Sequence[int]) -> Note:
    """Say that a fork takes the whole table."""
    return Note(
        "pool_forked",
        "{child} takes over the table: one holder more for {blocks}, and nothing is written.",
        {"child": child, "blocks": block_list(blocks)},
    )


def forked_by_lookup(child: str) -> Note:
    """Say that a fork is a new request."""
    return Note(
        "pool_forked_by_lookup",
        "The engine knows no fork: {child} is a new request with the same tokens, and shares the "
        "full blocks that its lookup finds.",
        {"child": child},
    )


def copied(source: int, target: int, holders: int) -> Note:
    """Say that a shared block is copied before it is written."""
    return Note(
        "pool_copied",
        "Block {source} has {holders} holders and room for the next token: it is copied to block "
        "{target} before anything is written, and loses this holder.",
        {"source": source, "target": target, "holders": holders},
    )


def in_place(block: int) -> Note:
    """Say that a block without other holders is written."""
    return Note(
        "pool_in_place",
        "Block {block} has room and no other holder: it is written in place.",
        {"block": block},
    )


def last_recomputed() -> Note:
    """Say that even a full match runs the last position."""
    return Note(
        "pool_last_recomputed",
        "Every position is there, but the last one runs through the model once more for its "
        "logits; its keys and values are not stored again.",
    )


def dropped(blocks: Sequence[int]) -> Note:
    """Say that a window has passed blocks."""
    return Note(
        "pool_dropped",
        "Wholly before the window, and given back: {blocks}. Block 0 stands in the table instead.",
        {"blocks": block_list(blocks)},
    )


def freed(blocks: Sequence[int], *, hashed: bool, to_head: bool) -> Note:
    """Say where blocks without a holder go."""
    if hashed:
        return Note(
            "pool_freed_cached",
            "No holder left, so to the tail of the free queue: {blocks}. Until it is written over, "
            "the content can be hit.",
            {"blocks": block_list(blocks)},
        )
    if to_head:
        return Note(
            "pool_freed_first",
            "No holder left and no hash, so to the head of the free queue, to be used up first: "
            "{blocks}.",
            {"blocks": block_list(blocks)},
        )
    return Note(
        "pool_freed",
        "No holder left, so to the tail of the free queue: {blocks}.",
        {"blocks": block_list(blocks)},
    )


def still_held(blocks: Sequence[int]) -> Note:
    """Say that another request needs them."""
    return Note(
        "pool_still_held",
        "One holder less, but still needed by others: {blocks}.",
        {"blocks": block_list(blocks)},
    )


def held_nothing(request: str) -> Note:
    """Say that a request that waited had nothing to give back."""
    return Note(
        "pool_held_nothing",
        "{request} was waiting and held no blocks: it is forgotten.",
        {"request": request},
    )


def refused(needed: int, free: int) -> Note:
    """Say that there is no room."""
    return Note(
        "pool_refused",
        "Blocks needed: {needed}; free: {free}. Refused, and nothing is taken.",
        {"needed": needed, "free": free},
    )


def preempted(request: str, positions: int) -> Note:
    """Say that the last running request gives way."""
    return Note(
        "pool_preempted",
        "{request}, the last one admitted, gives up its blocks. Its {positions} positions are "
        "computed again when it resumes, unless they are still cached.",
        {"request": request, "positions": positions},
    )


def preempts_itself(request: str) -> Note:
    """Say that nobody else is left to give way."""
    return Note(
        "pool_preempts_itself",
        "{request} is itself the last one admitted: it waits with the new tokens.",
        {"request": request},
    )


def not_running(request: str, state: str) -> Note:
    """Say that there is nothing to act on."""
    return Note(
        "pool_not_running",
        "{request} is {state} and holds no blocks: nothing is done.",
        {"request": request, "state": Note("", state)},
    )


def nobody_running() -> Note:
    """Say that there is nobody to preempt."""
    return Note("pool_nobody_running", "No request is running: nothing is done.")


def already_running(request: str) -> Note:
    """Say that a running request need not resume."""
    return Note(
        "pool_already_running",
        "{request} is running already: nothing is done.",
        {"request": request},
    )


def names_taken(blocks: Sequence[int]) -> Note:
    """Say that blocks lose their names without being overwritten."""
    return Note(
        "pool_names_taken",
        "Hash taken away: {blocks}. No lookup finds that content any more; whoever holds it keeps "
        "it.",
        {"blocks": block_list(blocks)},
    )


def no_names() -> Note:
    """Say that there is nothing to take away."""
    return Note("pool_no_names", "None of these blocks is cached: nothing is done.")


def reset_refused(used: int) -> Note:
    """Say that the cache is emptied only when idle."""
    return Note(
        "pool_reset_refused",
        "Blocks in use: {used}. The cache is emptied only when none is.",
        {"used": used},
    )


def reset_done() -> Note:
    """Say that all names are gone."""
    return Note("pool_reset", "No block is in use, so every block loses its hash.")


def looked_up(blocks: Sequence[int], tokens: int, total: int) -> Note:
    """Say what a lookup found, which takes nothing."""
    return Note(
        "pool_looked_up",
        "A request with these {total} tokens would reuse {tokens} positions, in blocks: {blocks}. "
        "Nothing is taken.",
        {"blocks": block_list(blocks) or Note("", "none"), "tokens": tokens, "total": total},
    )
