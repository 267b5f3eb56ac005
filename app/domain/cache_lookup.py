"""The longest cached prefix that every layer group can resume from.

Each kind of group accepts a length on its own terms: full attention needs every block before it, a
window only those in sight, a recurrent layer the state at exactly that boundary. Their lengths are
reconciled by shrinking until all agree. Source: vLLM 0.33.0 v1/core/kv_cache_coordinator.py and
v1/core/single_type_kv_cache_manager.py; measured: tests/data/vllm_kv_cache_manager_scenarios.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.cache_groups import (
    ChunkGroup,
    FullGroup,
    GroupSpec,
    StateGroup,
    WindowGroup,
    ceil_div,
)
from app.domain.pool import NULL_BLOCK, BlockPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a lookup found: one run of blocks per group, block 0 where a group needs none."""

    tables: tuple[tuple[int, ...], ...]
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Groups with one specification: they are cached and looked up together."""

    spec: GroupSpec
    groups: tuple[int, ...]

    @property
    def drops(self) -> bool:
        """Return whether a hit gives up its last block in these groups."""
        return self.spec.drops_last_block


def merge_alike(specs: Sequence[GroupSpec]) -> tuple[Alike, ...]:
    """Return the groups by specification, full attention first: its lengths bound the others'.

    Where a drafter reads one of several groups that are otherwise alike, all give up the block.
    """
    members: dict[GroupSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        members.setdefault(_without_drop(spec), []).append(index)
    alike = [
        Alike(
            spec=next((specs[at] for at in groups if specs[at].drops_last_block), spec),
            groups=tuple(groups),
        )
        for spec, groups in members.items()
    ]
    return tuple(sorted(alike, key=lambda one: not isinstance(one.spec, FullGroup)))


def _without_drop(spec: GroupSpec) -> GroupSpec:
    if isinstance(spec, FullGroup | WindowGroup):
        return replace(spec, drops_last_block=False)
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A request's hashes as the pool knows them, and where a hit may end."""

    pool: BlockPool
    hashes: Sequence[str]
    hash_size: int
    alignment: int

    def blocks_of(self, alike: Alike, index: int) -> tuple[int, ...] | None:
        """Return the cached block of each group at this index of the table, or None."""
        each = alike.spec.block_size // self.hash_size
        name = self.hashes[(index + 1) * each - 1]
        found = [self.pool.find((name, group)) for group in alike.groups]
        blocks = tuple(block for block in found if block is not None)
        return blocks if len(blocks) == len(found) else None

    def most(self, alike: Alike, max_tokens: int) -> int:
        """Return how many blocks of this size have a name and end within `max_tokens`."""
        size = alike.spec.block_size
        return min(max_tokens // size, len(self.hashes) * self.hash_size // size)

    def aligned(self, tokens: int) -> bool:
        """Return whether a hit may end here."""
        return tokens % self.alignment == 0


_Rows = list[tuple[int, ...]]


def _full_rows(lookup: Lookup, alike: Alike, max_tokens: int, *, drops: bool) -> _Rows:
    size = alike.spec.block_size
    rows: _Rows = []
    for index in range(lookup.most(alike, max_tokens)):
        blocks = lookup.blocks_of(alike, index)
        if blocks is None:
            break
        rows.append(blocks)
    tokens = len(rows) * size
    if drops and tokens:
        tokens -= min(lookup.alignment, size)
    tokens -= tokens % lookup.alignment
    return rows[: ceil_div(tokens, size)]


def _shrunk_to_alignment(lookup: Lookup, alike: Alike, rows: _Rows) -> _Rows:
    count = len(rows)
    while not lookup.aligned(count * alike.spec.block_size):
        count -= 1
    return rows[:count]


def _window_rows(
    lookup: Lookup, alike: Alike, spec: WindowGroup, max_tokens: int, *, drops: bool
) -> _Rows:
    """Return the longest prefix whose last blocks, as far as the window sees, are all cached."""
    size, need = spec.block_size, spec.blocks_for_hit(drops=drops)
    null = (NULL_BLOCK,) * len(alike.groups)
    rows: _Rows = [null] * lookup.most(alike, max_tokens)
    run = 0
    for index in range(len(rows) - 1, -1, -1):
        blocks = lookup.blocks_of(alike, index)
        if blocks is None:
            run = 0
            continue
        end = index if drops else index + 1
        if run == 0 and not lookup.aligned(end * size):
            continue
        rows[index] = blocks
        run += 1
        if run >= need:
            rows = rows[: index + run]
            break
    else:
        # An unbroken run from the start is a hit however short.
        rows = _shrunk_to_alignment(lookup, alike, rows[:run])
    if drops and rows:
        rows = _shrunk_to_alignment(lookup, alike, rows[:-1])
    return rows


def _chunk_rows(lookup: Lookup, alike: Alike, spec: ChunkGroup, max_tokens: int) -> _Rows:
    """Return nulls up to the chunk of the next token, and what is cached of that chunk."""
    first = max_tokens // spec.chunk * spec.chunk // spec.block_size
    rows: _Rows = [(NULL_BLOCK,) * len(alike.groups)] * first
    for index in range(first, lookup.most(alike, max_tokens)):
        blocks = lookup.blocks_of(alike, index)
        if blocks is None:
            break
        rows.append(blocks)
    return rows


def _state_rows(lookup: Lookup, alike: Alike, max_tokens: int) -> _Rows:
    """Return nulls and the latest state that was kept at a boundary where a hit may end."""
    for index in range(lookup.most(alike, max_tokens) - 1, -1, -1):
        blocks = lookup.blocks_of(alike, index)
        if blocks is not None and lookup.aligned((index + 1) * alike.spec.block_size):
            return [(NULL_BLOCK,) * len(alike.groups)] * index + [blocks]
    return []


def _rows(lookup: Lookup, alike: Alike, max_tokens: int, *, drops: bool) -> _Rows:
    spec = alike.spec
    if isinstance(spec, StateGroup):
        return _state_rows(lookup, alike, max_tokens)
    if isinstance(spec, ChunkGroup):
        return _chunk_rows(lookup, alike, spec, max_tokens)
    if isinstance(spec, WindowGroup):
        return _window_rows(lookup, alike, spec, max_tokens, drops=drops)
    return _full_rows(lookup, alike, max_tokens, drops=drops)


class _Reconciled:
    """The lengths that several kinds of groups offer, shrunk until all accept one."""

    def __init__(self, lookup: Lookup, alike: Sequence[Alike]) -> None:
        self.lookup = lookup
        self.alike = alike
        self.rows: dict[int, _Rows] = {}
        # Kinds that have given up their drafter's block at the length under trial; once is enough.
        self.dropped: set[int] = set()

    def tokens(self, position: int) -> int:
        """Return the length that a kind offered last."""
        return len(self.rows[position]) * self.alike[position].spec.block_size

    def offer(self, position: int, length: int) -> int:
        """Return the length that a kind accepts, at most `length`."""
        one = self.alike[position]
        if isinstance(one.spec, FullGroup) and position in self.rows:
            # What lies before a full hit is a hit too, so it is looked up once and then shortened.
            return min(length, self.tokens(position))
        drops = one.drops and position not in self.dropped
        # A kind that drops a block may match one beyond the length, and lands on the length again.
        most = length + one.spec.block_size if drops else length
        self.rows[position] = _rows(self.lookup, one, most, drops=drops)
        accepted = self.tokens(position)
        if drops:
            self.dropped.add(position)
        elif accepted < length:
            self.dropped.clear()
        return accepted

    def settle(self, max_tokens: int) -> int:
        """Return the length that every kind accepts."""
        # One other kind beside full attention accepts, in one pass, what it will accept again.
        first, *others = self.alike
        one_pass = isinstance(first.spec, FullGroup) and not others[1:]
        length = max_tokens
        while True:
            current = length
            for position in range(len(self.alike)):
                current = self.offer(position, current)
            if current >= length:
                return length
            length = current
            if one_pass:
                return length


def longest_hit(lookup: Lookup, specs: Sequence[GroupSpec], max_tokens: int) -> Hit:
    """Return the longest cached prefix of at most `max_tokens` that every group can resume from."""
    alike = merge_alike(specs)
    tables: list[tuple[int, ...]] = [()] * len(specs)
    if len(specs) == 1:
        rows = _rows(lookup, alike[0], max_tokens, drops=alike[0].drops)
        return Hit(tables=(tuple(row[0] for row in rows),), tokens=len(rows) * specs[0].block_size)
    reconciled = _Reconciled(lookup, alike)
    tokens = reconciled.settle(max_tokens)
    for position, one in enumerate(alike):
        rows = reconciled.rows[position]
        if isinstance(one.spec, FullGroup):
            rows = rows[: ceil_div(tokens, one.spec.block_size)]
        for column, group in enumerate(one.groups):
            tables[group] = tuple(row[column] for row in rows)
    return Hit(tables=tuple(tables), tokens=tokens)
