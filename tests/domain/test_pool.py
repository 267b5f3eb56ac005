"""The block pool: free order, reference counts, names, eviction; measured step by step."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.domain.errors import DomainError, Malformed, OutOfRange, Unsupported, WrongType
from app.domain.pool import NEWEST_RULES, TEXTBOOK_RULES, BlockPool, PoolRules, rules_of
from app.domain.vllm_hashes import vllm_chain
from app.domain.vllm_prompt import VllmPrompt

SCENARIOS = Path(__file__).parents[1] / "data" / "vllm_block_pool_scenarios.json"


@cache
def measured() -> list[dict[str, Any]]:
    """Return the steps that vLLM 0.33.0's own pool took."""
    scenarios: list[dict[str, Any]] = json.loads(SCENARIOS.read_text())
    assert len(scenarios) >= 5
    return scenarios


class Replay:
    """One measured scenario on our pool."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.size = scenario["block_size"]
        self.pool = BlockPool(scenario["num_gpu_blocks"], caching=scenario["enable_caching"])
        self.named: dict[str, tuple[int, ...]] = {}

    def hashes(self, tokens: list[int]) -> tuple[str, ...]:
        """Return the hashes that the measurement used: sha256 from seed 0."""
        return vllm_chain(VllmPrompt(tokens=tokens, block_size=self.size, hash_seed="0")).hashes

    def do(self, step: dict[str, Any]) -> object:
        """Take a step and return what it answered."""
        op = step["op"]
        if op == "alloc":
            try:
                self.named[step["as"]], _ = self.pool.allocate(step["n"])
            except OutOfRange:
                return f"ValueError: Cannot get {step['n']} free blocks from the pool"
            return list(self.named[step["as"]])
        if op == "cache":
            hashes = self.hashes(step["tokens"])
            for index, (block, name) in enumerate(
                zip(self.named[step["as"]], hashes, strict=False)
            ):
                self.pool.cache_full(block, (name, 0), (index + 1) * self.size)
            return [name[:16] for name in hashes]
        if op == "lookup":
            return list(self.pool.find_prefix([(name, 0) for name in self.hashes(step["tokens"])]))
        if op == "free":
            self.pool.release(reversed(self.named[step["as"]]))
        elif op == "free_ids":
            self.pool.release(step["ids"])
        elif op == "touch":
            self.pool.touch(step["ids"])
        else:
            assert op == "evict"
            self.pool.evict(step["ids"])
        return None

    def after(self) -> dict[str, object]:
        """Return the pool in the measurement's words."""
        usage = self.pool.usage
        return {
            "free_order": list(self.pool.free_queue),
            "num_free": self.pool.free_blocks,
            "ref_cnt": {str(block): count for block, count in self.pool.ref_counts.items()},
            "cached": {str(block): name[:16] for block, name in self.pool.cached.items()},
            "usage": 1 - (usage.usable_blocks - usage.used_blocks) / usage.usable_blocks,
        }


@pytest.mark.parametrize("scenario", measured(), ids=lambda scenario: scenario["name"])
def test_every_measured_step_is_reproduced(scenario: dict[str, Any]) -> None:
    """Answers, free order, counts, names and usage equal the engine's after every step."""
    replay = Replay(scenario)
    assert scenario["initial"] == {"null_block_id": 0, "first_free": replay.pool.free_queue[0]}
    assert scenario["steps"]
    for step in scenario["steps"]:
        assert (replay.do(step), replay.after()) == (step["result"], step["after"])


def freed_order(rules: PoolRules, *, caching: bool) -> tuple[int, ...]:
    """Return the queue after blocks 1, 2 (named where caching) and 3 (not full) are freed."""
    pool = BlockPool(8, rules=rules, caching=caching)
    blocks, _ = pool.allocate(3)
    if caching:
        for block in blocks[:2]:
            pool.cache_full(block, (f"h{block}", 0), 4 * block)
    pool.release(reversed(blocks))
    return pool.free_queue


@pytest.mark.parametrize(
    ("version", "caching", "order"),
    [
        ("0.33.0", True, (3, 4, 5, 6, 7, 2, 1)),
        ("0.28.0", True, (3, 4, 5, 6, 7, 2, 1)),
        ("0.27.1", True, (3, 4, 5, 6, 7, 2, 1)),
        ("0.24.0", True, (3, 4, 5, 6, 7, 2, 1)),
        ("0.23.0", True, (4, 5, 6, 7, 3, 2, 1)),
        ("0.8.5.post1", True, (4, 5, 6, 7, 3, 2, 1)),
        ("0.33.0", False, (3, 2, 1, 4, 5, 6, 7)),
        ("0.27.0", False, (4, 5, 6, 7, 3, 2, 1)),
        ("0.26.0", False, (3, 2, 1, 4, 5, 6, 7)),
        ("0.23.0", False, (4, 5, 6, 7, 3, 2, 1)),
    ],
)
def test_the_order_of_freed_blocks_changed_with_releases(
    version: str,
    caching: bool,  # noqa: FBT001 - a column of the table
    order: tuple[int, ...],
) -> None:
    """Unhashed blocks go to the head since 0.24, but in 0.27 not where caching is off."""
    assert freed_order(rules_of(version), caching=caching) == order


@pytest.mark.parametrize(("version", "used", "usable"), [("0.10.2", 0, 7), ("0.10.1", 1, 8)])
def test_the_null_block_counted_as_used_before_0_10_2(version: str, used: int, usable: int) -> None:
    """An empty pool of 8 shows 1 of 8 used until 0.10.1, and 0 of 7 since."""
    usage = BlockPool(8, rules=rules_of(version)).usage
    assert (usage.used_blocks, usage.usable_blocks) == (used, usable)


@pytest.mark.parametrize(
    ("version", "error"),
    [("0.7.3", Unsupported), ("0.34.0", Unsupported), ("1.0", Unsupported), ("main", Malformed)],
)
def test_releases_that_were_not_read_are_refused(version: str, error: type[DomainError]) -> None:
    """The pool's rules are known from 0.8 to 0.33."""
    with pytest.raises(error, match="version"):
        rules_of(version)


@pytest.mark.parametrize(
    ("size", "error"), [(0, OutOfRange), (True, WrongType), (65_537, OutOfRange)]
)
def test_a_pool_has_a_bounded_number_of_blocks(size: int, error: type[DomainError]) -> None:
    """At least one, and few enough to hold."""
    with pytest.raises(error, match="num_blocks"):
        BlockPool(size)


def test_a_freed_block_is_hit_until_it_is_overwritten() -> None:
    """A count of zero makes a block replaceable, not empty: its name finds it until it is taken."""
    pool = BlockPool(3)
    (first,), _ = pool.allocate(1)
    pool.cache_full(first, ("a", 0), 4)
    pool.release([first])
    assert pool.find(("a", 0)) == first
    assert pool.touch([first]) == (first,)
    assert pool.release([first]) == (first,)
    taken, evicted = pool.allocate(2)
    assert first in taken
    assert evicted == (first,)
    assert pool.find(("a", 0)) is None
    assert pool.key_of(first) is None


def test_from_two_holders_to_one_is_not_free() -> None:
    """A block with one holder left does not enter the queue."""
    pool = BlockPool(3)
    (block,), _ = pool.allocate(1)
    assert pool.touch([block]) == ()
    assert pool.release([block]) == ()
    assert block not in pool.free_queue
    assert pool.references(block) == 1


def test_a_free_block_cannot_be_released() -> None:
    """Nobody holds it, so that releasing it again would count below zero."""
    pool = BlockPool(3)
    with pytest.raises(OutOfRange, match="block 1 is free"):
        pool.release([1])


def test_a_textbook_pool_gives_out_block_0() -> None:
    """Without a null block all blocks are usable, and block 0 is the first."""
    pool = BlockPool(2, rules=TEXTBOOK_RULES)
    assert not pool.is_null(0)
    assert pool.allocate(2)[0] == (0, 1)
    assert pool.usage.usable_blocks == 2


def test_reset_empties_the_cache_of_an_idle_pool_only() -> None:
    """While a block is in use nothing is forgotten; afterwards no name is left."""
    pool = BlockPool(4)
    blocks, _ = pool.allocate(2)
    pool.cache_full(blocks[0], ("a", 0), 4)
    assert not pool.reset()
    assert pool.find(("a", 0)) == blocks[0]
    pool.release(blocks)
    assert pool.reset()
    assert pool.cached == {}
    assert pool.free_blocks == 3


def test_a_name_inside_a_block_gives_way_to_a_later_one() -> None:
    """A partly full block is named by its prefix; when it grows, the old name goes."""
    pool = BlockPool(4)
    (block,), _ = pool.allocate(1)
    pool.cache_part(block, ("half", 0), 2)
    assert pool.find(("half", 0)) == block
    pool.cache_part(block, ("half", 0), 2)
    pool.cache_part(block, ("more", 0), 3)
    assert pool.find(("half", 0)) is None
    pool.cache_full(block, ("full", 0), 4)
    assert pool.find(("more", 0)) is None
    pool.cache_full(block, ("full", 0), 4)
    pool.cache_part(block, ("half", 0), 2)
    assert pool.find(("half", 0)) == pool.find(("full", 0)) == block
    assert pool.key_of(block) == ("full", 0)
    assert pool.evict([block]) == (block,)
    assert pool.holders_of(("half", 0)) == ()
    pool.cache_part(0, ("null", 0), 2)
    assert pool.find(("null", 0)) is None


class PoolMachine(RuleBasedStateMachine):
    """Requests that take, share, name and give back blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, rules=NEWEST_RULES)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 10))
    def take(self, count: int) -> None:
        """Allocate, or be refused without any change."""
        before = (self.pool.free_queue, self.pool.ref_counts, self.pool.cached)
        if count > self.pool.free_blocks:
            with pytest.raises(OutOfRange):
                self.pool.allocate(count)
            assert (self.pool.free_queue, self.pool.ref_counts, self.pool.cached) == before
            return
        expected = self.pool.free_queue[:count]
        taken, evicted = self.pool.allocate(count)
        assert taken == expected
        assert set(evicted) <= set(before[2])
        self.tables.append(list(taken))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """Let another request hold a prefix of a table."""
        table = data.draw(st.sampled_from(self.tables))
        kept = table[: data.draw(st.integers(0, len(table)))]
        self.pool.touch(kept)
        self.tables.append(list(kept))

    @rule(name=st.sampled_from("abcd"))
    def hit(self, name: str) -> None:
        """Take whatever a name finds, free or held."""
        block = self.pool.find((name, 0))
        if block is not None:
            was_free = block in self.pool.free_queue
            assert (self.pool.touch([block]) == (block,)) == was_free
            self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), name=st.sampled_from("abcd"))
    def name_one(self, data: st.DataObject, name: str) -> None:
        """Name a held block."""
        table = data.draw(st.sampled_from(self.tables))
        if table:
            self.pool.cache_full(data.draw(st.sampled_from(table)), (name, 0), 4)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """End a request."""
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(reversed(table))

    @rule(blocks=st.lists(st.integers(0, 8), max_size=3))
    def forget(self, blocks: list[int]) -> None:
        """Take names away from any blocks."""
        self.pool.evict(blocks)

    @rule()
    def empty(self) -> None:
        """Empty the cache, which works exactly when nothing is held."""
        assert self.pool.reset() == (not any(self.tables))

    @invariant()
    def no_block_is_lost_or_doubled(self) -> None:
        """Each block but the null is either free, once, or held."""
        free = self.pool.free_queue
        assert len(set(free)) == len(free)
        assert set(free) | set(self.pool.ref_counts) == set(range(1, 9))
        assert not set(free) & set(self.pool.ref_counts)

    @invariant()
    def counts_add_up_to_table_entries(self) -> None:
        """Compare the reference counts with the entries of all tables."""
        entries = [block for table in self.tables for block in table]
        assert sum(self.pool.ref_counts.values()) == len(entries)
        for block, count in self.pool.ref_counts.items():
            assert entries.count(block) == count

    @invariant()
    def names_and_blocks_agree(self) -> None:
        """Every named block is found under its name, and a name finds only blocks that have it."""
        for block, name in self.pool.cached.items():
            assert block in self.pool.holders_of((name, 0))
        for name in "abcd":
            for block in self.pool.holders_of((name, 0)):
                assert self.pool.cached[block] == name


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
