"""One layer group's block tables: what a step needs, takes, names and gives back.

Source: vLLM 0.33.0 v1/core/single_type_kv_cache_manager.py; measured:
tests/data/vllm_kv_cache_manager_scenarios.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.cache_groups import FullGroup, GroupSpec, StateGroup, ceil_div
from app.domain.pool import NULL_BLOCK, BlockKey, BlockPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a step asks of a group.

    `slots` are the positions that need a place, a drafter's guesses included; `real_slots` without
    them. `done` positions are computed or hit, `hit` are the group's blocks of a new request's hit,
    and `most_blocks` caps what the whole request is reserved for.
    """

    slots: int
    real_slots: int
    done: int
    hit: tuple[int, ...]
    most_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTokens:
    """How much of a request may be named now: its hashes, and the positions that are settled.

    `resume_at` is where a hit of the same prompt, sent again, would end.
    """

    hashes: Sequence[str]
    hash_size: int
    tokens: int
    prompt_tokens: int
    resume_at: int


class GroupTables:
    """The tables of one group over the common pool."""

    def __init__(self, spec: GroupSpec, group: int, pool: BlockPool, alignment: int) -> None:
        self.spec = spec
        self.group = group
        self.pool = pool
        self.alignment = alignment
        self.rows: dict[str, list[int]] = {}
        self._named: dict[str, int] = {}

    def row(self, request: str) -> list[int]:
        """Return a request's table; an empty one before its first block."""
        return self.rows.setdefault(request, [])

    def begin_step(self) -> None:
        """Note that a new scheduling pass begins."""

    def needed(self, request: str, demand: Demand) -> int:
        """Return how many blocks must be free: new ones, and hits that are free until taken."""
        required = ceil_div(self._padded(demand.slots), self.spec.block_size)
        if demand.most_blocks is not None:
            required = min(required, demand.most_blocks)
        skipped = self.spec.skipped_tokens(demand.done) // self.spec.block_size
        held = len(self.row(request)) + len(demand.hit)
        return max(required - max(skipped, held), 0) + self._idle(demand.hit[skipped:])

    def _padded(self, slots: int) -> int:
        """Return the slots with those of a recurrent drafter's scratch states."""
        if isinstance(self.spec, StateGroup):
            return slots + self.spec.block_size * self.spec.speculative_blocks
        return slots

    def _idle(self, blocks: Sequence[int]) -> int:
        return sum(
            not self.pool.is_null(block) and not self.pool.references(block) for block in blocks
        )

    def adopt(self, request: str, hit: tuple[int, ...], done: int) -> tuple[int, ...]:
        """Begin a new request's table with the blocks it hit; return those that were free."""
        skipped = self.spec.skipped_tokens(done) // self.spec.block_size
        kept = hit[skipped:]
        revived = self.pool.touch(kept)
        row = self.row(request)
        row.extend((NULL_BLOCK,) * skipped)
        row.extend(kept)
        self._named[request] = len(row)
        return revived

    def extend(self, request: str, demand: Demand) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Allocate up to the demand's slots; return what the row gained, and what was evicted."""
        row = self.row(request)
        missing = ceil_div(self._padded(demand.slots), self.spec.block_size) - len(row)
        taken, evicted = self.pool.allocate(max(missing, 0))
        row.extend(taken)
        return taken, evicted

    def name(self, request: str, named: NamedTokens) -> tuple[int, ...]:
        """Give the blocks that are now full their names; return those that got one."""
        size = self.spec.block_size
        covered = min(named.tokens, len(named.hashes) * named.hash_size)
        row, done, full = self.row(request), self._named.get(request, 0), covered // size
        fresh: list[int] = []
        for index in range(done, full):
            block = row[index]
            if self.pool.is_null(block) or not self.spec.is_reachable(index, self.alignment):
                continue
            end = (index + 1) * size
            self.pool.cache_full(block, self._key(named, end), end)
            fresh.append(block)
        if full > done:
            self._named[request] = full
        if isinstance(self.spec, FullGroup) and size != named.hash_size:
            self._name_prompt_tail(row, named)
        return tuple(fresh)

    def _key(self, named: NamedTokens, end: int) -> BlockKey:
        return (named.hashes[end // named.hash_size - 1], self.group)

    def _name_prompt_tail(self, row: list[int], named: NamedTokens) -> None:
        """Name the block in which the prompt ends by the last whole hash before that end.

        Only where hashes are finer than blocks. A prompt sent again matches at most its length less
        one, unless a drafter's group matches all of it before giving up a block.
        """
        limit = named.prompt_tokens - (0 if self.spec.drops_last_block else 1)
        end = min(limit // named.hash_size, len(named.hashes)) * named.hash_size
        index, inside = divmod(end, self.spec.block_size)
        if 0 < end <= named.tokens and inside and index < len(row):
            self.pool.cache_part(row[index], self._key(named, end), end)

    def drop_skipped(self, request: str, done: int) -> tuple[int, ...]:
        """Free the blocks that no later query sees, latest first; return those freed."""
        row = self.row(request)
        end = min(self.spec.skipped_tokens(done) // self.spec.block_size, len(row))
        dropped: list[int] = []
        # Behind a dropped block all are dropped.
        while end and not self.pool.is_null(row[end - 1]):
            end -= 1
            dropped.append(row[end])
            row[end] = NULL_BLOCK
        return self.pool.release(dropped)

    def take_away(self, request: str) -> tuple[int, ...]:
        """Forget a request; return its blocks in the order in which they are to be released."""
        row = self.rows.pop(request, [])
        self._named.pop(request, None)
        return tuple(block for block in reversed(row) if not self.pool.is_null(block))


class AlignedStates(GroupTables):
    """Tables of a recurrent group that leaves a state behind at block boundaries.

    A row has one place per block of positions, but holds few blocks: the state that runs, the one
    it was copied from, those kept at boundaries, and a drafter's scratch states at the end.
    """

    def __init__(self, spec: StateGroup, group: int, pool: BlockPool, alignment: int) -> None:
        super().__init__(spec, group, pool, alignment)
        self._scratch = spec.speculative_blocks
        self._stepped: set[str] = set()
        self._retired: dict[str, int] = {}
        self._named_now: set[BlockKey] = set()

    def begin_step(self) -> None:
        """Let states named in the last pass be hit: until now they were not yet computed."""
        self._named_now.clear()

    def needed(self, request: str, demand: Demand) -> int:
        """Return the states to allocate: one, and scratch states the first time.

        A state that this very pass computes cannot be resumed from; the request waits for the next.
        """
        if demand.hit and self.pool.key_of(demand.hit[-1]) in self._named_now:
            return self.pool.num_blocks + 1
        missing = self._places(demand) - len(demand.hit) - len(self.row(request))
        most = 1 if request in self._stepped else 1 + self._scratch
        return max(min(missing, most), 0) + self._idle(demand.hit)

    def _places(self, demand: Demand) -> int:
        return ceil_div(demand.real_slots, self.spec.block_size) + self._scratch

    def extend(self, request: str, demand: Demand) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Move the running state on to the block of the last position; return the row's gain."""
        row = self.row(request)
        before, places = len(row), self._places(demand)
        stepped = request in self._stepped
        self._stepped.add(request)
        if places <= before:
            return (), ()
        running = places - self._scratch - 1
        row.extend((NULL_BLOCK,) * max(running - before, 0))
        if stepped:
            for index in range(before - self._scratch, min(before, running)):
                row.append(row[index])
                row[index] = NULL_BLOCK
        taken, evicted = self.pool.allocate(max(places - len(row), 0))
        row.extend(taken)
        return tuple(row[before:]), evicted

    def name(self, request: str, named: NamedTokens) -> tuple[int, ...]:
        """Name the states at the boundaries passed, and remember that they are of this pass."""
        fresh = super().name(request, named)
        last = self._name_resumable(request, named)
        if last is not None:
            fresh = (*fresh, last)
        keys = (self.pool.key_of(block) for block in fresh)
        self._named_now.update(key for key in keys if key is not None)
        return fresh

    def _name_resumable(self, request: str, named: NamedTokens) -> int | None:
        """Name the state at the prompt's resumable boundary anew, if it lost its name since."""
        if not 0 < named.tokens == named.resume_at:
            return None
        row, index = self.row(request), ceil_div(named.tokens, self.spec.block_size) - 1
        if index >= len(row) or self.pool.is_null(row[index]) or self.pool.key_of(row[index]):
            return None
        self.pool.cache_full(row[index], self._key(named, named.tokens), named.tokens)
        return row[index]

    def drop_skipped(self, request: str, done: int) -> tuple[int, ...]:
        """Free the states before the last position's block, whatever lies between them."""
        row = self.row(request)
        start = self._retired.get(request, 0)
        end = min(self.spec.skipped_tokens(done) // self.spec.block_size, len(row))
        dropped: list[int] = []
        for index in range(end - 1, start - 1, -1):
            if not self.pool.is_null(row[index]):
                dropped.append(row[index])
                row[index] = NULL_BLOCK
        if start < end:
            self._retired[request] = end
        return self.pool.release(dropped)

    def take_away(self, request: str) -> tuple[int, ...]:
        """Forget a request; return its blocks in the order in which they are to be released."""
        self._stepped.discard(request)
        self._retired.pop(request, None)
        return super().take_away(request)


def tables_for(spec: GroupSpec, group: int, pool: BlockPool, alignment: int) -> GroupTables:
    """Return empty tables for a group."""
    if isinstance(spec, StateGroup) and spec.aligns:
        return AlignedStates(spec, group, pool, alignment)
    return GroupTables(spec, group, pool, alignment)
