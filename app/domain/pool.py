"""A pool of equal blocks: who holds each, what each still holds, and which is overwritten next.

A block is in use while its reference count is above zero. At zero it goes into the free queue, but
what it holds stays there until it is overwritten: until then its hash finds it, and a hit takes it
out of the queue again. Source of the queue's order: vLLM v1/core/block_pool.py, 0.8 to 0.33;
measured: tests/data/vllm_block_pool_scenarios.json.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.domain.checks import checked_int
from app.domain.errors import Malformed, OutOfRange, Unsupported, shown

MAX_POOL_BLOCKS = 65_536

# In vLLM's pool block 0 stands in tables for what was dropped; it is never free and never counted.
NULL_BLOCK = 0

# A block's name in the cache: its hash, and the cache group that it belongs to.
BlockKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """How a pool keeps its free queue.

    `keeps_null_block` sets block 0 aside. `unhashed_first` puts freed blocks without a hash at the
    head of the queue, where they are used up first (`also_without_caching`: even when the pool
    caches nothing); otherwise all go to the tail. `usage_counts_null` counts block 0 in the usage.
    """

    keeps_null_block: bool = True
    unhashed_first: bool = True
    also_without_caching: bool = True
    usage_counts_null: bool = False


NEWEST_RULES = PoolRules()
TEXTBOOK_RULES = PoolRules(keeps_null_block=False)

# The first release of each rule, newest first.
_RULES: tuple[tuple[tuple[int, int, int], PoolRules], ...] = (
    ((0, 28, 0), NEWEST_RULES),
    ((0, 27, 0), PoolRules(also_without_caching=False)),
    ((0, 24, 0), NEWEST_RULES),
    ((0, 10, 2), PoolRules(unhashed_first=False)),
    ((0, 8, 0), PoolRules(unhashed_first=False, usage_counts_null=True)),
)


def rules_of(version: str) -> PoolRules:
    """Return the rules of a release of vLLM (V1 engine).

    Raises:
        Malformed: when it is not a release number.
        Unsupported: before 0.8 or after 0.33, which were not read.

    """
    match = re.fullmatch(
        r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:\.?(?:post|rc)\d{1,3})?", version
    )
    if match is None:
        raise Malformed(
            "{field} must be a release such as 0.33.0, got {value}",
            field="version",
            value=shown(version),
        )
    major, minor, patch = (int(number or 0) for number in match.groups())
    if (major, minor) <= (0, 33):
        for since, rules in _RULES:
            if (major, minor, patch) >= since:
                return rules
    raise Unsupported(
        "{field} must be between 0.8.0 and 0.33, got {value}", field="version", value=version
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How many of the pool's usable blocks are held; as a fraction, used / usable."""

    used_blocks: int
    usable_blocks: int


@dataclass(slots=True)
class _Block:
    """One block: its holders, and its names in the cache with the prefix length of each."""

    references: int
    names: dict[BlockKey, int]


class BlockPool:
    """Blocks 0 … n−1 with their reference counts, names and free queue."""

    def __init__(
        self, num_blocks: int, *, rules: PoolRules = NEWEST_RULES, caching: bool = True
    ) -> None:
        """Fill the queue in the order of ids; block 0 is set aside where the rules keep a null.

        Raises:
            WrongType, OutOfRange: for another number of blocks than 1..MAX_POOL_BLOCKS.

        """
        checked_int(num_blocks, "num_blocks", low=1, high=MAX_POOL_BLOCKS)
        self.num_blocks = num_blocks
        self.rules = rules
        self.caching = caching
        self._blocks = [_Block(0, {}) for _ in range(num_blocks)]
        self._free = OrderedDict.fromkeys(range(int(self.rules.keeps_null_block), num_blocks))
        self._cached: dict[BlockKey, dict[int, None]] = {}

    def is_null(self, block: int) -> bool:
        """Return whether the block is the placeholder for what was dropped."""
        return self.rules.keeps_null_block and block == NULL_BLOCK

    @property
    def free_blocks(self) -> int:
        """Return how many blocks nobody holds."""
        return len(self._free)

    @property
    def free_queue(self) -> tuple[int, ...]:
        """Return the free blocks in the order in which they are overwritten."""
        return tuple(self._free)

    @property
    def ref_counts(self) -> dict[int, int]:
        """Return the holders of every block that has any."""
        return {
            index: block.references for index, block in enumerate(self._blocks) if block.references
        }

    @property
    def cached(self) -> dict[int, str]:
        """Return the hash of every block that a lookup can find."""
        return {
            index: next(iter(block.names))[0]
            for index, block in enumerate(self._blocks)
            if block.names
        }

    @property
    def usage(self) -> Usage:
        """Return the share of blocks in use; the null block counts in releases before 0.10.2."""
        kept = int(self.rules.keeps_null_block)
        usable = self.num_blocks - (0 if self.rules.usage_counts_null else kept)
        return Usage(used_blocks=usable - len(self._free), usable_blocks=usable)

    def references(self, block: int) -> int:
        """Return how many hold the block."""
        return self._blocks[block].references

    def key_of(self, block: int) -> BlockKey | None:
        """Return the name under which the block was cached first."""
        return next(iter(self._blocks[block].names), None)

    def is_hashed(self, block: int) -> bool:
        """Return whether a lookup can find the block."""
        return bool(self._blocks[block].names)

    def holders_of(self, key: BlockKey) -> tuple[int, ...]:
        """Return the blocks under a name, the first cached first."""
        return tuple(self._cached.get(key, ()))

    def find(self, key: BlockKey) -> int | None:
        """Return the block that a lookup of the name finds: the first that was cached under it."""
        return next(iter(self._cached.get(key, ())), None)

    def find_prefix(self, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """Return the blocks of the longest run of names that are all cached, from the start."""
        found: list[int] = []
        for key in keys:
            block = self.find(key)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def allocate(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take blocks from the head of the queue; return them, and those that lost their content.

        Taking a block that still has a name is what eviction is: from now on no lookup finds it.

        Raises:
            OutOfRange: when fewer are free; then nothing changes.

        """
        if count > len(self._free):
            raise OutOfRange(
                "{field} must be at most the {high} free blocks, got {value}",
                field="count",
                high=len(self._free),
                value=count,
            )
        taken = tuple(self._free.popitem(last=False)[0] for _ in range(count))
        for block in taken:
            self._blocks[block].references = 1
        return taken, self.evict(taken)

    def touch(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Add a holder to each block; return those that were free and leave the queue."""
        revived: list[int] = []
        for block in blocks:
            if self.is_null(block):
                continue
            if self._blocks[block].references == 0:
                del self._free[block]
                revived.append(block)
            self._blocks[block].references += 1
        return tuple(revived)

    def release(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Take a holder from each block, in this order; return those that have none left.

        A request's blocks are released from its tail, so that its tail is overwritten first: what
        begins a prompt is what others may still need.

        Raises:
            OutOfRange: when nobody holds one of them.

        """
        to_head: list[int] = []
        to_tail: list[int] = []
        for block in blocks:
            if self.is_null(block):
                continue
            held = self._blocks[block]
            if held.references == 0:
                raise OutOfRange(
                    "{field} must be held by somebody, block {value} is free",
                    field="blocks",
                    value=block,
                )
            held.references -= 1
            if held.references == 0:
                (to_head if self._goes_first(held) else to_tail).append(block)
        for block in reversed(to_head):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        for block in to_tail:
            self._free[block] = None
        return (*to_head, *to_tail)

    def _goes_first(self, block: _Block) -> bool:
        if not self.rules.unhashed_first:
            return False
        if self.caching:
            return not block.names
        return self.rules.also_without_caching

    def cache_full(self, block: int, key: BlockKey, prefix_tokens: int) -> None:
        """Name a block that is full; a name that it had when it was only partly full goes.

        A second block with the same content gets the same name and both stay: nothing is merged,
        because a table entry, once given, does not change.
        """
        if key not in self._blocks[block].names:
            self.evict((block,))
            self._name(block, key, prefix_tokens)

    def cache_part(self, block: int, key: BlockKey, prefix_tokens: int) -> None:
        """Name a block by a prefix that ends inside it, beside its name as a full block."""
        names = self._blocks[block].names
        if self.is_null(block) or key in names:
            return
        if names and next(iter(names.values())) < prefix_tokens:
            self.evict((block,))
        self._name(block, key, prefix_tokens)

    def _name(self, block: int, key: BlockKey, prefix_tokens: int) -> None:
        self._blocks[block].names[key] = prefix_tokens
        self._cached.setdefault(key, {})[block] = None

    def evict(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """Take the names from blocks, held or free; return those that had one."""
        evicted: list[int] = []
        for block in blocks:
            names = self._blocks[block].names
            for key in names:
                same = self._cached[key]
                del same[block]
                if not same:
                    del self._cached[key]
            if names:
                evicted.append(block)
                self._blocks[block].names = {}
        return tuple(evicted)

    def reset(self) -> bool:
        """Take every name away, if no block is in use; return whether it was done."""
        if len(self._free) != self.num_blocks - int(self.rules.keeps_null_block):
            return False
        self.evict(range(self.num_blocks))
        return True
