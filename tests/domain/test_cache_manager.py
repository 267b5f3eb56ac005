"""The cache manager against vLLM's own: measured scenarios and recorded traces, step by step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.domain.cache_groups import (
    ChunkGroup,
    FullGroup,
    GroupSpec,
    StateGroup,
    WindowGroup,
)
from app.domain.cache_manager import CacheManager
from app.domain.cache_settings import CacheSettings
from app.domain.errors import Conflict, DomainError, OutOfRange, Unknown, Unsupported
from app.domain.vllm_prompt import MultimodalItem, PromptEmbeddings, VllmPrompt

DATA = Path(__file__).parents[1] / "data"


@cache
def measured() -> list[dict[str, Any]]:
    """Return the scenarios that vLLM 0.33.0's manager ran."""
    scenarios: list[dict[str, Any]] = json.loads(
        (DATA / "vllm_kv_cache_manager_scenarios.json").read_text()
    )
    assert len(scenarios) >= 10
    return scenarios


@cache
def traces() -> list[dict[str, Any]]:
    """Return random steps that vLLM 0.33.0's manager took, over groups of every kind."""
    recorded: list[dict[str, Any]] = json.loads(
        gzip.decompress((DATA / "vllm_cache_traces.json.gz").read_bytes())
    )
    assert len(recorded) >= 50
    return recorded


def measured_group(spec: dict[str, Any]) -> GroupSpec:
    """Return a layer group from the engine's own description of it."""
    size = spec["block_size"]
    if spec["type"] == "FullAttentionSpec":
        return FullGroup(block_size=size)
    if spec["type"] == "SlidingWindowSpec":
        return WindowGroup(
            block_size=size,
            window=spec["sliding_window"],
            extra_retained=spec["extra_retained_tokens"],
        )
    assert spec["type"] == "MambaSpec"
    return StateGroup(
        block_size=size,
        mode=spec["mamba_cache_mode"],
        speculative_blocks=spec["num_speculative_blocks"],
    )


def prompt(tokens: list[int], lookahead: int = 0) -> VllmPrompt:
    """Return a prompt; the manager hashes it in its own blocks."""
    return VllmPrompt(tokens=tokens, block_size=1, lookahead_tokens=lookahead)


def pool_after(manager: CacheManager) -> dict[str, object]:
    """Return the pool in the measurement's words."""
    usage = manager.pool.usage
    return {
        "free_order": list(manager.pool.free_queue),
        "num_free": manager.pool.free_blocks,
        "ref_cnt": {str(block): count for block, count in manager.pool.ref_counts.items()},
        "usage": round(usage.used_blocks / usage.usable_blocks, 9),
    }


def replay(scenario: dict[str, Any], lookahead_tokens: int) -> None:
    """Take a scenario's steps and compare each with what was measured."""
    given = scenario["input"]
    manager = CacheManager(
        CacheSettings(
            num_blocks=given["num_blocks"],
            groups=[measured_group(spec) for spec in given["specs"]],
            caching=given.get("caching", True),
            max_model_len=given.get("mml", 10**6),
            in_flight_tokens=given.get("inflight"),
            watermark_blocks=int(given.get("watermark", 0) * given["num_blocks"]),
        )
    )
    for name, request in scenario["requests"].items():
        manager.add(name, prompt(request["prompt_tokens"]))
    assert scenario["steps"]
    for step in scenario["steps"]:
        name = step["req"]
        if step["op"] == "free":
            manager.free(name)
        else:
            if manager.computed(name) == len(manager.tokens(name)):
                manager.append(name, [1_000 + manager.computed(name)])
            manager.begin_step()
            done = manager.schedule(name, step["num_new_tokens"], lookahead_tokens=lookahead_tokens)
            assert done.admitted == step["ok"]
            assert done.hit_tokens == step["prefix_hit_tokens"]
            if done.admitted:
                assert [list(row) for row in done.new_blocks] == step["new_block_ids"]
                assert [list(row) for row in done.tables] == step["all_block_ids"]
        assert pool_after(manager) == step["after"]


@pytest.mark.parametrize("scenario", measured(), ids=lambda scenario: scenario["name"])
def test_every_measured_step_is_reproduced(scenario: dict[str, Any]) -> None:
    """Hits, admissions, tables, free order and counts equal the engine's after every step.

    The scenario with a drafter's look-ahead does not say how much; its tables follow from 1 to 3.
    """
    ahead = (1, 2, 3) if scenario["name"] == "spec_decode_lookahead" else (0,)
    for lookahead_tokens in ahead:
        replay(scenario, lookahead_tokens)


KINDS: dict[str, type[FullGroup | WindowGroup | ChunkGroup | StateGroup]] = {
    kind.kind: kind for kind in (FullGroup, WindowGroup, ChunkGroup, StateGroup)
}


def traced_group(fields: dict[str, Any]) -> GroupSpec:
    """Return a recorded trace's layer group."""
    return KINDS[fields["kind"]](**{key: value for key, value in fields.items() if key != "kind"})


def take_step(manager: CacheManager, step: list[Any], lookahead: int) -> None:
    """Take one recorded step and compare what it answers."""
    op, *given = step
    if op == "begin_step":
        manager.begin_step()
    elif op == "add":
        manager.add(given[0], prompt(given[1], lookahead))
    elif op == "append":
        manager.append(given[0], given[1])
    elif op == "schedule":
        name, count, ahead, whole, in_flight, hit, new_blocks = given
        done = manager.schedule(
            name,
            count,
            lookahead_tokens=ahead,
            whole_must_fit=whole,
            in_flight_tokens=in_flight,
        )
        assert done.hit_tokens == hit
        assert done.admitted == (new_blocks is not None)
        assert [list(row) for row in done.new_blocks] == (new_blocks or [])
    elif op == "free":
        manager.free(given[0])
    elif op == "preempt":
        manager.preempt(given[0])
    elif op == "evict":
        manager.pool.evict(given[0])
    elif op == "reset":
        assert manager.pool.reset() == given[0]
    else:
        assert op == "after"
        free_queue, counts, cached, tables = given
        assert list(manager.pool.free_queue) == free_queue
        assert manager.pool.ref_counts == dict(counts)
        assert [(b, name[:8]) for b, name in manager.pool.cached.items()] == [
            (block, name) for block, name in cached
        ]
        for request, rows in tables.items():
            assert [list(row) for row in manager.tables(request)] == rows


@pytest.mark.parametrize("index", range(len(traces())))
def test_every_recorded_trace_is_reproduced(index: int) -> None:
    """Full, window, chunk and recurrent groups, alone and mixed, go the engine's way throughout."""
    trace = traces()[index]
    manager = CacheManager(
        CacheSettings(
            num_blocks=trace["num_blocks"],
            groups=[traced_group(fields) for fields in trace["groups"]],
            caching=trace["caching"],
            max_model_len=trace["max_model_len"],
            in_flight_tokens=trace["in_flight_tokens"],
            watermark_blocks=trace["watermark_blocks"],
        )
    )
    assert trace["steps"]
    for step in trace["steps"]:
        take_step(manager, step, trace["lookahead_hash_tokens"])


def test_the_traces_cover_every_kind_of_group() -> None:
    """Full, windowed, chunked and recurrent groups, drafters, and blocks of different sizes."""
    groups = [group for trace in traces() for group in trace["groups"]]
    assert {group["kind"] for group in groups} == set(KINDS)
    assert any(group.get("drops_last_block") for group in groups)
    assert any(group.get("mode") == "align" for group in groups)
    assert any(len({g["block_size"] for g in trace["groups"]}) > 1 for trace in traces())


FULL = FullGroup(block_size=4)
PLAIN = CacheSettings(num_blocks=10, groups=(FULL,))


def manager_with(**requests: list[int]) -> CacheManager:
    """Return a manager of one full-attention group with some requests waiting."""
    manager = CacheManager(PLAIN)
    for name, tokens in requests.items():
        manager.add(name, prompt(tokens))
    return manager


def test_a_fork_shares_full_blocks_only() -> None:
    """Ten tokens in blocks of 4: a second sample hits 8 of them and computes 2 itself."""
    manager = manager_with(a=list(range(10)))
    manager.schedule("a")
    manager.fork("a", "b")
    assert manager.lookup("b").tokens == 8
    manager.schedule("b")
    assert manager.tables("a") == ((1, 2, 3),)
    assert manager.tables("b") == ((1, 2, 4),)


def test_a_probe_takes_nothing() -> None:
    """Asking what a prompt would hit queues no request and changes no count."""
    manager = manager_with(a=list(range(8)))
    manager.schedule("a")
    before = pool_after(manager)
    assert manager.probe(prompt(list(range(9)))).tables == ((1, 2),)
    assert pool_after(manager) == before


def test_a_preempted_request_is_computed_again() -> None:
    """Its blocks go back, and when it resumes it hits those that are still cached."""
    manager = manager_with(a=list(range(8)))
    manager.schedule("a")
    assert manager.preempt("a") == (2, 1)
    assert manager.computed("a") == 0
    assert manager.schedule("a").hit_tokens == 4
    assert manager.computed("a") == 8


def test_tokens_that_are_not_computed_can_be_withdrawn() -> None:
    """Their hashes go with them; computed ones stay."""
    manager = manager_with(a=list(range(4)))
    manager.schedule("a")
    manager.append("a", [4, 5, 6, 7])
    assert len(manager.hashes("a")) == 2
    manager.withdraw("a", 1)
    assert (len(manager.tokens("a")), len(manager.hashes("a"))) == (7, 1)
    with pytest.raises(OutOfRange, match="count"):
        manager.withdraw("a", 4)


def test_hashes_grow_as_if_computed_at_once() -> None:
    """A salted or illustrated request appended in parts has the hashes of the whole."""
    image = MultimodalItem(identifier="cat", offset=1, length=3)
    for extras in ({"cache_salt": "t"}, {"multimodal": (image,)}):
        parts, whole = CacheManager(PLAIN), CacheManager(PLAIN)
        parts.add("a", replace(prompt(list(range(6))), **extras))
        parts.append("a", [6, 7, 8])
        parts.append("a", [9, 10, 11])
        whole.add("a", replace(prompt(list(range(12))), **extras))
        assert parts.hashes("a") == whole.hashes("a")
        assert len(whole.hashes("a")) == 3


def test_a_state_that_lost_its_name_is_named_anew_where_the_prompt_resumes() -> None:
    """Of 13 tokens in blocks of 2 the state after 12 can be resumed from, also once evicted."""
    groups = (StateGroup(block_size=2, mode="align", speculative_blocks=1), FullGroup(block_size=2))
    manager = CacheManager(CacheSettings(num_blocks=24, groups=groups))
    manager.add("a", prompt(list(range(13))))
    manager.schedule("a", 12)
    state = manager.tables("a")[0][5]
    assert manager.pool.evict([state]) == (state,)
    manager.schedule("a", 1)
    assert manager.pool.cached[state] == manager.hashes("a")[5]
    manager.pool.evict([state])
    manager.append("a", [13])
    manager.schedule("a")
    assert not manager.pool.is_hashed(state)


def test_unknown_and_doubled_requests_are_refused() -> None:
    """A name stands for one request, which must be there; vectors have no table here."""
    manager = manager_with(a=[1])
    with pytest.raises(Conflict, match="already there"):
        manager.add("a", prompt([1]))
    with pytest.raises(Unknown, match="is not there"):
        manager.schedule("b")
    with pytest.raises(Unknown, match="is not there"):
        manager.tables("b")
    vectors = PromptEmbeddings(data=b"1234", bytes_per_position=1)
    with pytest.raises(Unsupported, match="embeddings"):
        manager.add("c", replace(prompt([]), embeddings=vectors))


def test_a_step_computes_what_is_left_and_no_more() -> None:
    """Zero or too many new tokens are refused, and a computed request has nothing to do."""
    manager = manager_with(a=[1, 2, 3])
    for count in (0, 4):
        with pytest.raises(OutOfRange, match="new_tokens"):
            manager.schedule("a", count)
    manager.schedule("a")
    with pytest.raises(Conflict, match="no token left"):
        manager.schedule("a")


@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"groups": ()}, OutOfRange, ("groups",)),
        ({"num_blocks": 0}, OutOfRange, ("num_blocks",)),
        ({"max_model_len": 0}, OutOfRange, ("max_model_len",)),
        ({"in_flight_tokens": 0}, OutOfRange, ("in_flight_tokens",)),
        ({"watermark_blocks": -1}, OutOfRange, ("watermark_blocks",)),
        ({"groups": (StateGroup(block_size=4),)}, Conflict, ("groups", 0, "mode")),
        (
            {"groups": (FULL, StateGroup(block_size=8, mode="align"))},
            Unsupported,
            ("groups", 1, "block_size"),
        ),
        (
            {"groups": (FULL, ChunkGroup(block_size=8, chunk=8))},
            Conflict,
            ("groups", 1, "block_size"),
        ),
    ],
)
def test_what_cannot_be_cached_is_refused(
    settings: dict[str, Any], error: type[DomainError], field: tuple[str | int, ...]
) -> None:
    """A combination whose hits are not modelled names the group and the field."""
    with pytest.raises(error) as caught:
        CacheManager(replace(PLAIN, **settings))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (lambda: FullGroup(block_size=0), OutOfRange),
        (lambda: WindowGroup(block_size=4, window=0), OutOfRange),
        (lambda: WindowGroup(block_size=4, window=4, extra_retained=-1), OutOfRange),
        (lambda: ChunkGroup(block_size=4, chunk=0), OutOfRange),
        (lambda: StateGroup(block_size=4, mode="all"), Unknown),
        (lambda: StateGroup(block_size=4, speculative_blocks=65), OutOfRange),
    ],
)
def test_bad_groups_are_refused(group: Callable[[], GroupSpec], error: type[DomainError]) -> None:
    """Sizes and modes have bounds, each with an error of its own."""
    with pytest.raises(error):
        group()


@pytest.mark.parametrize(
    ("group", "computed", "skipped"),
    [
        (FULL, 100, 0),
        (WindowGroup(block_size=4, window=8), 16, 9),
        (WindowGroup(block_size=4, window=8, extra_retained=3), 16, 6),
        (WindowGroup(block_size=4, window=8), 5, 0),
        (ChunkGroup(block_size=4, chunk=8), 13, 8),
        (ChunkGroup(block_size=4, chunk=8), 8, 8),
        (ChunkGroup(block_size=4, chunk=8), 7, 0),
        (StateGroup(block_size=4), 7, 6),
        (StateGroup(block_size=4), 0, 0),
    ],
)
def test_each_kind_of_group_skips_what_it_has_passed(
    group: GroupSpec, computed: int, skipped: int
) -> None:
    """Window: computed − w + 1; chunk: whole chunks; recurrent: all but the last position."""
    assert group.skipped_tokens(computed) == skipped


@pytest.mark.parametrize(
    ("group", "blocks"),
    [
        (FULL, None),
        (WindowGroup(block_size=4, window=8), 5),
        (WindowGroup(block_size=4, window=8, extra_retained=2), 6),
        (ChunkGroup(block_size=4, chunk=8), 4),
        (StateGroup(block_size=4), None),
    ],
)
def test_admission_reserves_no_more_than_a_request_can_hold(
    group: GroupSpec, blocks: int | None
) -> None:
    """With 8 tokens in flight a window of 8 holds ⌈15 / 4⌉ + 1 blocks at most, a chunk four."""
    assert group.most_blocks(8, 1_000) == blocks
