"""`/block-pool`: a pool of blocks through a series of events, the pool after each of them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from app.api import block_pool_schemas as s
from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.errors import Conflict
from app.domain.pool_events import PoolEvent, PoolSimulation, PoolStep, PoolTotals

router = APIRouter(tags=["blocks"], responses=REFUSED, route_class=JsonRoute)

# Which fields an event takes beside its operation and a request.
_TAKES = {
    "allocate": {"tokens", "adapter", "salt"},
    "append": {"tokens"},
    "lookup": {"tokens", "adapter", "salt"},
    "fork": {"children"},
    "evict": {"blocks"},
}
_NAMELESS = frozenset({"lookup", "evict", "reset"})


class CopyAnswer(Answer):
    """A block copied before it was written."""

    source: int
    target: int


class StepAnswer(Answer):
    """The pool after one event, and what the event did."""

    index: int
    op: str
    request: str
    accepted: bool = Field(description="False: refused, or nothing to act on.")
    block_tables: dict[str, list[int]]
    states: dict[str, str] = Field(description="Of each request: running, waiting or preempted.")
    ref_counts: dict[int, int]
    filled_tokens: dict[int, int] = Field(description="Positions in each block that is in use.")
    free_queue: list[int] = Field(description="The block to be overwritten next comes first.")
    cached: dict[int, str] = Field(description="The hash under which a lookup finds a block.")
    hits: list[int]
    hit_tokens: int = Field(description="Positions found in the cache: computing saved.")
    admitted_tokens: int = Field(description="Positions of the requests admitted in this step.")
    computed_tokens: int
    allocated: list[int]
    evictions: list[int]
    copies: list[CopyAnswer]
    freed: list[int]
    preempted: list[str]
    used_blocks: int
    free_blocks: int
    cached_free_blocks: int = Field(description="Free blocks that a lookup can still find.")
    saved_blocks: int = Field(description="Table entries beyond one a block: memory saved now.")
    reasons: list[NoteAnswer]


class BlockPoolAnswer(Answer):
    """A pool through a series of events."""

    num_blocks: int
    usable_blocks: int
    block_size: int
    policy: str
    when_full: str
    version: str
    steps: list[StepAnswer]
    totals: PoolTotals
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


def _event(index: int, event: s.EventInput) -> PoolEvent:
    """Return an event as the domain has it.

    Raises:
        Conflict: for a field that the operation would pass over.

    """
    takes = _TAKES.get(event.op, set())
    for name in ("tokens", "children", "blocks", "adapter", "salt"):
        if getattr(event, name) not in (None, []) and name not in takes:
            raise Conflict("{field} is no part of {op}", field=("events", index, name), op=event.op)
    if event.op in _NAMELESS and event.request is not None:
        raise Conflict(
            "{field} is no part of {op}", field=("events", index, "request"), op=event.op
        )
    return PoolEvent(
        op=event.op,
        request=event.request or "",
        tokens=tuple(event.tokens),
        children=tuple(event.children),
        blocks=tuple(event.blocks),
        adapter=event.adapter,
        salt=event.salt,
    )


def event_body(event: PoolEvent) -> dict[str, object]:
    """Return an event as a request's body has it."""
    body: dict[str, object] = {"op": event.op}
    if event.request:
        body["request"] = event.request
    for name in ("tokens", "children", "blocks"):
        if getattr(event, name):
            body[name] = list(getattr(event, name))
    for name in ("adapter", "salt"):
        if getattr(event, name) is not None:
            body[name] = getattr(event, name)
    return body


def compute_pool(request: s.BlockPoolRequest) -> PoolSimulation:
    """Return a request's simulation; raises a DomainError that names the field."""
    from app.domain.pool_simulation import NEWEST_VERSION, simulate

    return simulate(
        request.num_blocks,
        request.block_size,
        [_event(index, event) for index, event in enumerate(request.events)],
        policy=request.policy,
        when_full=request.when_full,
        caching=request.caching,
        window=request.window,
        version=request.version or NEWEST_VERSION,
    )


def _step(step: PoolStep) -> StepAnswer:
    return StepAnswer(
        index=step.index,
        op=step.op,
        request=step.request,
        accepted=step.accepted,
        block_tables={name: list(table) for name, table in step.tables.items()},
        states=step.states,
        ref_counts=step.ref_counts,
        filled_tokens=step.filled,
        free_queue=list(step.free_queue),
        cached=step.cached,
        hits=list(step.hits),
        hit_tokens=step.hit_tokens,
        admitted_tokens=step.admitted_tokens,
        computed_tokens=step.computed_tokens,
        allocated=list(step.allocated),
        evictions=list(step.evictions),
        copies=[CopyAnswer(source=source, target=target) for source, target in step.copies],
        freed=list(step.freed),
        preempted=list(step.preempted),
        used_blocks=step.used_blocks,
        free_blocks=step.free_blocks,
        cached_free_blocks=step.cached_free_blocks,
        saved_blocks=step.saved_blocks,
        reasons=notes_answer(step.notes),
    )


def pool_answer(simulation: PoolSimulation) -> BlockPoolAnswer:
    """Return the answer of `/block-pool` from its domain value."""
    return BlockPoolAnswer(
        num_blocks=simulation.num_blocks,
        usable_blocks=simulation.usable_blocks,
        block_size=simulation.block_size,
        policy=simulation.policy,
        when_full=simulation.when_full,
        version=simulation.version,
        steps=[_step(step) for step in simulation.steps],
        totals=simulation.totals,
        assumptions=notes_answer(simulation.assumptions),
        not_counted=notes_answer(simulation.not_counted),
    )


def answer_pool(request: s.BlockPoolRequest) -> BlockPoolAnswer:
    """Return the answer of `/block-pool`."""
    return pool_answer(compute_pool(request))


# Not async: a thousand events take longer than the event loop should wait.
@router.post("/block-pool", summary="A pool of blocks, event by event")
def block_pool(request: s.BlockPoolRequest) -> BlockPoolAnswer:
    """Return after each event: tables, reference counts, free queue, hits, evictions, and why."""
    return answer_pool(request)
