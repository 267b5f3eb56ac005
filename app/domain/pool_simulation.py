"""Simulate a block pool: events in, the pool after each of them and the reasons out."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain.cache_groups import FullGroup, WindowGroup
from app.domain.cache_settings import CacheSettings
from app.domain.checks import checked_int
from app.domain.errors import Conflict, DomainError, Unknown, shown
from app.domain.hashing import MAX_BLOCK_TOKENS
from app.domain.notes import Note
from app.domain.pool import TEXTBOOK_RULES, BlockPool, rules_of
from app.domain.pool_engine import EngineSimulator
from app.domain.pool_events import (
    MAX_SIMULATED_BLOCKS,
    PoolEvent,
    PoolSimulation,
    PoolStep,
    PoolTotals,
    check_events,
)
from app.domain.pool_simulator import Simulator
from app.domain.pool_textbook import TextbookSimulator

POLICIES = ("engine", "textbook")
WHEN_FULL = ("refuse", "preempt")
NEWEST_VERSION = "0.33.0"

_ENGINE_NOTES = (
    Note(
        "pool_engine_way",
        "The engine's way: blocks are shared only when full and found by their hash; the last "
        "position is always computed, and with it the rest of its block.",
    ),
    Note(
        "pool_null_block",
        "Block 0 is set aside as the placeholder in tables: it is never given out.",
    ),
    Note(
        "pool_whole_steps",
        "Every event is one scheduling step that computes all its tokens; a budget of tokens a "
        "step, and a sampled token that has not been computed yet, are left out.",
    ),
)
_TEXTBOOK_NOTES = (
    Note(
        "pool_textbook_way",
        "The textbook's way: a fork shares every block, the partly filled last one included, and "
        "a block that others hold is copied before it is written. Full blocks are also found by "
        "their hash.",
    ),
)
_CACHING_OFF = Note("pool_caching_off", "Caching is off: no block has a hash, and nothing is hit.")
_NOT_COUNTED = (
    Note(
        "pool_no_bytes",
        "Blocks are counted, not bytes: what a block takes follows from the model and its layers.",
    ),
    Note(
        "pool_one_group",
        "One table a request: a model whose layers form several cache groups takes a block of "
        "each.",
    ),
)


def _chosen(value: str | None, default: str, known: tuple[str, ...], field: str) -> str:
    if value is None:
        return default
    if value not in known:
        raise Unknown(
            "{field} must be one of {known}, got {value}",
            field=field,
            known=", ".join(known),
            value=shown(value),
        )
    return value


def _assumptions(policy: str, version: str, *, caching: bool) -> tuple[Note, ...]:
    notes = list(_ENGINE_NOTES if policy == "engine" else _TEXTBOOK_NOTES)
    if policy == "engine" and version != NEWEST_VERSION:
        notes.append(
            Note(
                "pool_older_queue",
                "Of vLLM {version} only the order of the free queue is followed; lookups, "
                "admission and windows go as in {newest}.",
                {"version": version, "newest": NEWEST_VERSION},
            )
        )
    if not caching:
        notes.append(_CACHING_OFF)
    return tuple(notes)


def _totals(steps: Sequence[PoolStep]) -> PoolTotals:
    return PoolTotals(
        hit_tokens=sum(step.hit_tokens for step in steps if step.op != "lookup"),
        admitted_tokens=sum(step.admitted_tokens for step in steps),
        computed_tokens=sum(step.computed_tokens for step in steps),
        evictions=sum(len(step.evictions) for step in steps),
        copies=sum(len(step.copies) for step in steps),
        refusals=sum(not step.accepted for step in steps),
        preemptions=sum(len(step.preempted) for step in steps),
        peak_used_blocks=max((step.used_blocks for step in steps), default=0),
    )


def simulator_of(
    num_blocks: int,
    block_size: int,
    *,
    policy: str,
    when_full: str,
    caching: bool,
    window: int | None,
    version: str,
) -> Simulator:
    """Return a simulator before its first event; raises as `simulate` does for bad settings."""
    checked_int(num_blocks, "num_blocks", low=2, high=MAX_SIMULATED_BLOCKS)
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_TOKENS)
    rules = rules_of(version)
    preempts = when_full == "preempt"
    if policy == "textbook":
        if window is not None:
            raise Conflict(
                "{field} is simulated in the engine's way only: the textbook has no windows",
                field="window",
            )
        pool = BlockPool(num_blocks, rules=TEXTBOOK_RULES, caching=caching)
        return TextbookSimulator(pool, block_size, preempts=preempts)
    group = (
        FullGroup(block_size=block_size)
        if window is None
        else WindowGroup(block_size=block_size, window=window)
    )
    settings = CacheSettings(num_blocks=num_blocks, groups=(group,), caching=caching, rules=rules)
    return EngineSimulator(settings, preempts=preempts)


def simulate(
    num_blocks: int,
    block_size: int,
    events: Sequence[PoolEvent],
    *,
    policy: str | None = None,
    when_full: str | None = None,
    caching: bool = True,
    window: int | None = None,
    version: str = NEWEST_VERSION,
) -> PoolSimulation:
    """Return the pool after each event: tables, counts, free queue, hits, evictions, and why.

    `policy` is `engine` (vLLM, the default) or `textbook` (copy on write). `when_full` says what
    happens when a running request's next block is not there: `refuse` it, or `preempt` the last
    running request (the engine's default). A `window` makes all layers sliding ones (engine only).
    `version` picks the order of that release's free queue.

    Raises:
        Unknown: for another policy, operation or request.
        Conflict: for a request that is there already, or a window in the textbook's way.
        Missing, WrongType, OutOfRange, Malformed, Unsupported: for bad settings or events.

    """
    way = _chosen(policy, "engine", POLICIES, "policy")
    full = _chosen(when_full, "preempt" if way == "engine" else "refuse", WHEN_FULL, "when_full")
    simulator = simulator_of(
        num_blocks,
        block_size,
        policy=way,
        when_full=full,
        caching=caching,
        window=window,
        version=version,
    )
    check_events(events, num_blocks)
    steps: list[PoolStep] = []
    for index, event in enumerate(events):
        try:
            steps.append(simulator.apply(index, event))
        except DomainError as error:
            raise error.under("events", index) if error.field[0] != "events" else error from None
    return PoolSimulation(
        num_blocks=num_blocks,
        usable_blocks=simulator.usable_blocks,
        block_size=block_size,
        policy=way,
        when_full=full,
        version=version,
        steps=tuple(steps),
        totals=_totals(steps),
        assumptions=_assumptions(way, version, caching=caching),
        not_counted=_NOT_COUNTED,
    )
