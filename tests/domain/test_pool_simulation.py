"""A pool through events, the engine's way and the textbook's: literal steps, and invariants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unknown,
    Unsupported,
    WrongType,
)
from app.domain.pool_events import MAX_EVENTS, OPS, PoolEvent, PoolSimulation, PoolStep
from app.domain.pool_notes import block_list
from app.domain.pool_scenarios import SCENARIOS, PoolScenario
from app.domain.pool_simulation import POLICIES, WHEN_FULL, simulate, simulator_of

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def allocate(request: str, *tokens: int, salt: str | None = None) -> PoolEvent:
    """Return the event of a new request."""
    return PoolEvent(op="allocate", request=request, tokens=tokens, salt=salt)


def append(request: str, *tokens: int) -> PoolEvent:
    """Return the event of more tokens."""
    return PoolEvent(op="append", request=request, tokens=tokens)


def run(scenario: str, policy: str) -> PoolSimulation:
    """Return a built-in scenario, played one way."""
    story = BY_NAME[scenario]
    return simulate(story.num_blocks, story.block_size, story.events, policy=policy)


def codes(step: PoolStep) -> list[str]:
    """Return the codes of a step's reasons."""
    return [note.code for note in step.notes]


def test_two_requests_share_and_diverge() -> None:
    """Two full blocks are shared and counted twice; each request has a third block of its own."""
    steps = run("share_and_diverge", "engine").steps
    assert steps[1].tables == {"a": (1, 2, 3), "b": (1, 2, 4)}
    assert steps[1].ref_counts == {1: 2, 2: 2, 3: 1, 4: 1}
    assert (steps[1].hits, steps[1].hit_tokens, steps[1].computed_tokens) == ((1, 2), 8, 1)
    assert steps[1].filled == {1: 4, 2: 4, 3: 2, 4: 1}
    assert [step.saved_blocks for step in steps] == [0, 2, 2, 2, 0, 0, 0]
    assert [step.cached_free_blocks for step in steps] == [0, 0, 0, 0, 1, 1, 4]
    assert codes(steps[4]) == ["pool_freed_cached", "pool_still_held"]
    assert steps[4].freed == (3,)
    assert steps[5].hits == (1, 2, 3)
    assert steps[6].free_queue == (5, 6, 7, 8, 9, 3, 4, 2, 1)
    assert steps[6].tables == {}


def test_a_fully_matched_prompt_differs_by_policy() -> None:
    """12 cached tokens: the engine computes 4 again, the textbook runs 1 and stores none."""
    engine, textbook = run("fully_matched", "engine"), run("fully_matched", "textbook")
    again = engine.steps[2]
    assert (again.hit_tokens, again.computed_tokens, again.allocated) == (8, 4, (4,))
    assert "hit_recomputes_last_block" in codes(again)
    assert "pool_duplicate" in codes(again)
    assert engine.steps[4].hit_tokens == 12
    same = textbook.steps[2]
    assert (same.hit_tokens, same.computed_tokens, same.allocated) == (12, 1, ())
    assert "pool_last_recomputed" in codes(same)
    assert (engine.totals.computed_tokens, textbook.totals.computed_tokens) == (17, 14)
    assert (engine.totals.hit_tokens, engine.totals.admitted_tokens) == (20, 37)
    assert (textbook.totals.hit_tokens, textbook.totals.admitted_tokens) == (24, 37)


def test_a_beam_of_four_copies_or_computes_again() -> None:
    """Ten steps of four beams: the textbook copies blocks, the engine never; both end in four."""
    engine, textbook = run("beam_of_four", "engine"), run("beam_of_four", "textbook")
    for played in (engine, textbook):
        assert len(played.steps[-1].tables) == 4
        assert played.totals.refusals == 0
        assert {len(table) for table in played.steps[-1].tables.values()} == {5}
    assert engine.totals.copies == 0
    assert textbook.totals.copies > 0
    # 10 tokens of the prompt and 40 sampled ones; the engine computes partly full blocks again.
    assert textbook.totals.computed_tokens == 50
    assert engine.totals.computed_tokens > 50
    first_write = textbook.steps[4]
    assert (first_write.op, first_write.request) == ("append", "beam 0")
    assert first_write.copies == ((2, 3),)
    assert "pool_copied" in codes(first_write)


def test_an_eviction_storm_leaves_nothing_of_the_first_prompt() -> None:
    """Blocks freed longest ago are written over first; the newest prompt is still found."""
    played = run("eviction_storm", "engine")
    assert played.steps[12].hits == (4, 3)
    assert played.steps[13].hits == ()
    assert "pool_evicted" in codes(played.steps[14])
    assert played.totals.evictions == 7
    assert played.totals.peak_used_blocks == 3


def test_one_block_too_few_preempts_the_last_request() -> None:
    """The request admitted last gives way, and resumes from what is still cached."""
    steps = run("one_block_too_few", "engine").steps
    assert not steps[2].accepted
    assert steps[2].states["c"] == "waiting"
    assert steps[4].preempted == ("b",)
    assert steps[4].tables == {"a": (1, 2, 3, 6), "b": (), "c": ()}
    assert steps[7].states["b"] == "running"
    assert steps[7].hit_tokens == 4
    refused = run("one_block_too_few", "textbook").steps[5]
    assert not refused.accepted
    assert codes(refused) == ["pool_refused"]
    assert refused.tables["a"] == (0, 1, 2, 6)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_step_of_a_scenario_says_why(scenario: PoolScenario, policy: str) -> None:
    """Each event has at least one reason whose sentence has its numbers in it."""
    played = simulate(scenario.num_blocks, scenario.block_size, scenario.events, policy=policy)
    assert len(played.steps) == len(scenario.events) > 0
    assert scenario.title.text
    for step in played.steps:
        assert step.notes
        assert all("{" not in note.text for note in step.notes)
    assert played.assumptions
    assert played.not_counted


def test_a_fork_shares_every_block_until_one_is_written() -> None:
    """Copy on write: the first to write the shared block copies it, the last writes in place."""
    played = simulate(
        8,
        4,
        [
            allocate("a", 1, 2, 3, 4, 5),
            PoolEvent(op="fork", request="a", children=("b", "c")),
            append("b", 6),
            append("c", 7),
            append("a", 8),
        ],
        policy="textbook",
    )
    steps = played.steps
    assert steps[1].tables == {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    assert steps[1].ref_counts == {0: 3, 1: 3}
    assert steps[2].copies == ((1, 2),)
    assert steps[3].copies == ((1, 3),)
    assert steps[4].copies == ()
    assert "pool_in_place" in codes(steps[4])
    assert steps[4].tables == {"a": (0, 1), "b": (0, 2), "c": (0, 3)}
    assert played.totals.copies == 2


def test_a_full_shared_block_is_not_copied() -> None:
    """A fork at a block's edge writes into a new block of its own."""
    steps = simulate(
        8,
        4,
        [
            allocate("a", 1, 2, 3, 4),
            PoolEvent(op="fork", request="a", children=("b",)),
            append("b", 5),
        ],
        policy="textbook",
    ).steps
    assert steps[2].copies == ()
    assert steps[2].tables == {"a": (0,), "b": (0, 1)}


def test_the_engines_fork_shares_full_blocks_through_the_cache() -> None:
    """Ten tokens in blocks of 4, three samples: 5 blocks in all, 2 tokens computed again each."""
    steps = simulate(
        16,
        4,
        [allocate("a", *range(10)), PoolEvent(op="fork", request="a", children=("b", "c"))],
    ).steps
    assert steps[1].tables == {"a": (1, 2, 3), "b": (1, 2, 4), "c": (1, 2, 5)}
    assert (steps[1].hit_tokens, steps[1].computed_tokens) == (16, 4)
    assert steps[1].used_blocks == 5


def test_without_caching_nothing_is_shared() -> None:
    """Three full copies, no hash, and freed blocks at the head of the queue."""
    events = [
        allocate("a", 1, 2, 3, 4),
        allocate("b", 1, 2, 3, 4),
        PoolEvent(op="lookup", tokens=(1, 2, 3, 4, 5)),
        PoolEvent(op="free", request="b"),
    ]
    for policy in POLICIES:
        played = simulate(8, 4, events, policy=policy, caching=False)
        assert played.totals.hit_tokens == 0
        assert played.steps[2].hits == ()
        assert played.steps[3].cached == {}
        assert played.steps[3].free_queue[0] == played.steps[3].freed[0]
        assert "pool_caching_off" in [note.code for note in played.assumptions]


def test_an_older_release_frees_to_the_tail() -> None:
    """Until 0.23 a block without a hash went to the tail, too."""
    events = [allocate("a", 1), PoolEvent(op="free", request="a")]
    newest, older = simulate(4, 4, events), simulate(4, 4, events, version="0.23.0")
    assert newest.steps[1].free_queue == (1, 2, 3)
    assert codes(newest.steps[1]) == ["pool_freed_first"]
    assert older.steps[1].free_queue == (2, 3, 1)
    assert "pool_older_queue" in [note.code for note in older.assumptions]
    assert codes(older.steps[1]) == ["pool_freed"]


def test_other_salts_and_adapters_share_nothing() -> None:
    """Equal tokens under another salt or adapter are another computation."""
    for policy in POLICIES:
        played = simulate(
            16,
            2,
            [
                allocate("a", 1, 2, 3),
                allocate("b", 1, 2, 3, salt="t"),
                PoolEvent(op="allocate", request="c", tokens=(1, 2, 3), adapter="sql"),
                allocate("d", 1, 2, 3),
            ],
            policy=policy,
        )
        assert [step.hit_tokens for step in played.steps] == [0, 0, 0, 2]


def test_a_window_gives_blocks_back_as_it_moves_on() -> None:
    """A window of 4 over blocks of 2: after 8 positions the first two blocks are dropped."""
    steps = simulate(8, 2, [allocate("a", *range(8)), append("a", 8)], window=4).steps
    assert steps[1].tables == {"a": (0, 0, 3, 4, 5)}
    assert steps[1].freed == (2, 1)
    assert "pool_dropped" in codes(steps[1])
    assert set(steps[1].filled) == {3, 4, 5}


def test_a_request_may_be_its_own_victim() -> None:
    """The only running request waits with its new tokens, and resumes when there is room."""
    for policy in POLICIES:
        usable = 3 if policy == "engine" else 2
        played = simulate(
            usable,
            2,
            [
                allocate("a", 1, 2, 3, 4),
                append("a", 5),
                append("a", 6),
                PoolEvent(op="resume", request="a"),
            ],
            policy=policy,
            when_full="preempt",
        )
        assert played.steps[1].preempted == ("a",)
        assert codes(played.steps[1])[-1] == "pool_preempts_itself"
        assert played.steps[2].accepted is False
        assert codes(played.steps[2]) == ["pool_not_running"]
        assert played.steps[3].accepted is False
        assert codes(played.steps[3]) == ["pool_refused"]


def test_preempting_without_a_name_takes_the_last_admitted() -> None:
    """The last one admitted goes first; with nobody running, nothing is done."""
    steps = simulate(
        8,
        2,
        [
            allocate("a", 1, 2),
            allocate("b", 3, 4),
            PoolEvent(op="preempt"),
            PoolEvent(op="preempt", request="a"),
            PoolEvent(op="preempt"),
            PoolEvent(op="resume", request="b"),
            PoolEvent(op="resume", request="b"),
            PoolEvent(op="free", request="a"),
        ],
    ).steps
    assert (steps[2].request, steps[2].preempted) == ("b", ("b",))
    assert steps[3].preempted == ("a",)
    assert codes(steps[4]) == ["pool_nobody_running"]
    assert steps[5].accepted
    assert codes(steps[6]) == ["pool_already_running"]
    assert steps[7].states == {"b": "running"}


def test_evict_and_reset_take_names_away() -> None:
    """An evicted block is found no more; the whole cache is emptied only when no block is used."""
    steps = simulate(
        8,
        2,
        [
            allocate("a", 1, 2, 3, 4),
            PoolEvent(op="evict", blocks=(1,)),
            PoolEvent(op="evict", blocks=(1,)),
            PoolEvent(op="lookup", tokens=(1, 2, 3, 4)),
            PoolEvent(op="reset"),
            PoolEvent(op="free", request="a"),
            PoolEvent(op="reset"),
        ],
    ).steps
    assert steps[1].evictions == (1,)
    assert codes(steps[2]) == ["pool_no_names"]
    assert steps[3].hits == ()
    assert (steps[4].accepted, codes(steps[4])) == (False, ["pool_reset_refused"])
    assert steps[5].cached == {2: steps[0].cached[2]}
    assert (steps[6].accepted, steps[6].cached) == (True, {})


def test_the_textbook_too_keeps_two_blocks_of_one_content() -> None:
    """When a parent is evicted its child is computed again: the child's content is there twice."""
    steps = simulate(
        8,
        2,
        [
            allocate("a", 1, 2, 3, 4),
            PoolEvent(op="evict", blocks=(0,)),
            allocate("b", 1, 2, 3, 4),
        ],
        policy="textbook",
    ).steps
    assert steps[2].tables == {"a": (0, 1), "b": (2, 3)}
    assert codes(steps[2])[-1] == "pool_duplicate"
    assert steps[2].notes[-1].params == {"block": 3, "other": 1}


def test_a_long_list_of_blocks_is_shortened_in_words() -> None:
    """A sentence names the first blocks and the last."""
    assert block_list([1, 2]) == "1, 2"
    assert block_list(range(1, 21)) == "1, 2, 3, 4, 5, 6, 7, … 20"


BIG = tuple(range(10_000))


@pytest.mark.parametrize(
    ("event", "error", "field"),
    [
        (PoolEvent(op="steal"), Unknown, ("events", 1, "op")),
        (PoolEvent(op="free"), Missing, ("events", 1, "request")),
        (PoolEvent(op="free", request="x" * 65), OutOfRange, ("events", 1, "request")),
        (PoolEvent(op="free", request="b"), Unknown, ("events", 1, "request")),
        (allocate("a", 1), Conflict, ("events", 1, "request")),
        (allocate("b"), OutOfRange, ("events", 1, "tokens")),
        (allocate("b", -1), OutOfRange, ("events", 1, "tokens", 0)),
        (append("a"), OutOfRange, ("events", 1, "tokens")),
        (PoolEvent(op="lookup"), OutOfRange, ("events", 1, "tokens")),
        (PoolEvent(op="fork", request="a"), OutOfRange, ("events", 1, "children")),
        (
            PoolEvent(op="fork", request="a", children=("",)),
            Missing,
            ("events", 1, "children", 0),
        ),
        (PoolEvent(op="fork", request="a", children=("a",)), Conflict, ("events", 1, "request")),
        (PoolEvent(op="evict"), OutOfRange, ("events", 1, "blocks")),
        (PoolEvent(op="evict", blocks=(99,)), OutOfRange, ("events", 1, "blocks", 0)),
        (
            PoolEvent(op="allocate", request="b", tokens=(1,), salt=7),  # type: ignore[arg-type]
            WrongType,
            ("events", 1, "salt"),
        ),
    ],
)
def test_bad_events_are_refused(
    event: PoolEvent, error: type[DomainError], field: tuple[str | int, ...]
) -> None:
    """The error names the event and its field."""
    with pytest.raises(error) as caught:
        simulate(8, 2, [allocate("a", 1, 2), event])
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given_settings", "error", "field"),
    [
        ({"policy": "both"}, Unknown, "policy"),
        ({"when_full": "wait"}, Unknown, "when_full"),
        ({"num_blocks": 1}, OutOfRange, "num_blocks"),
        ({"num_blocks": 4_096}, OutOfRange, "num_blocks"),
        ({"block_size": 0}, OutOfRange, "block_size"),
        ({"window": 0}, OutOfRange, "window"),
        ({"window": 4, "policy": "textbook"}, Conflict, "window"),
        ({"version": "0.6.0"}, Unsupported, "version"),
        ({"events": [allocate("a", 1)] * (MAX_EVENTS + 1)}, OutOfRange, "events"),
    ],
)
def test_bad_settings_are_refused(
    given_settings: dict[str, object], error: type[DomainError], field: str
) -> None:
    """Each setting has its own bound or list of names."""
    settings_of: dict[str, object] = {"num_blocks": 8, "block_size": 2, "events": []}
    with pytest.raises(error) as caught:
        simulate(**(settings_of | given_settings))  # type: ignore[arg-type]
    assert caught.value.field == (field,)


def test_work_and_memory_are_bounded() -> None:
    """Too many tokens in all, too many held by forks, and too many table entries are refused."""
    with pytest.raises(OutOfRange, match="tokens of all events"):
        simulate(8, 2, [allocate(f"r{n}", *BIG) for n in range(4)])
    forks = [
        PoolEvent(op="fork", request="a", children=tuple(f"b{n}.{m}" for m in range(30)))
        for n in range(3)
    ]
    with pytest.raises(OutOfRange, match="tokens of all requests"):
        simulate(1_000, 100, [allocate("a", *BIG, *BIG), *forks])
    lookups = [PoolEvent(op="lookup", tokens=(1,))] * 300
    with pytest.raises(OutOfRange, match="fewer events or a smaller pool"):
        simulate(2_048, 16, lookups)


NAMES = st.sampled_from(["a", "b", "c", "d"])
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)
EVENTS = st.one_of(
    st.builds(PoolEvent, op=st.just("allocate"), request=NAMES, tokens=TOKENS),
    st.builds(PoolEvent, op=st.just("append"), request=NAMES, tokens=TOKENS),
    st.builds(PoolEvent, op=st.just("append"), request=NAMES, tokens=st.just((1,))),
    st.builds(
        PoolEvent,
        op=st.just("fork"),
        request=NAMES,
        children=st.lists(NAMES, min_size=1, max_size=2, unique=True).map(tuple),
    ),
    st.builds(PoolEvent, op=st.sampled_from(["free", "preempt", "resume"]), request=NAMES),
    st.builds(
        PoolEvent,
        op=st.just("evict"),
        blocks=st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(PoolEvent, op=st.sampled_from(["preempt", "reset"])),
    st.builds(PoolEvent, op=st.just("lookup"), tokens=TOKENS),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(EVENTS, max_size=25),
    st.sampled_from(POLICIES),
    st.sampled_from(WHEN_FULL),
    st.booleans(),
    st.integers(1, 3),
)
def test_no_block_is_lost_or_doubled_whatever_happens(
    events: list[PoolEvent],
    policy: str,
    when_full: str,
    caching: bool,  # noqa: FBT001 - drawn
    block_size: int,
) -> None:
    """Every usable block is free once or held, and counts add up to table entries."""
    simulator = simulator_of(
        7,
        block_size,
        policy=policy,
        when_full=when_full,
        caching=caching,
        window=None,
        version="0.33.0",
    )
    usable = set(range(7 - simulator.usable_blocks, 7))
    for index, event in enumerate(events):
        try:
            step = simulator.apply(index, event)
        except (Conflict, Unknown):
            # A name that is taken or not there.
            continue
        entries = Counter(
            block for table in step.tables.values() for block in table if block in usable
        )
        assert dict(entries) == step.ref_counts
        assert len(set(step.free_queue)) == len(step.free_queue)
        assert set(step.free_queue) | set(step.ref_counts) == usable
        assert not set(step.free_queue) & set(step.ref_counts)
        assert step.used_blocks == len(step.ref_counts) == len(usable) - step.free_blocks
        assert set(step.filled) == set(step.ref_counts)
        assert set(step.cached) <= usable
        assert all(1 <= filled <= block_size for filled in step.filled.values())
        assert step.op in OPS
        assert step.notes
        running = [name for name, state in step.states.items() if state == "running"]
        assert all(step.tables[name] for name in running)
        assert not any(step.tables[name] for name in step.states if name not in running)
