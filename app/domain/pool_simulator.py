"""A pool through a series of events, step by step, the engine's way or the textbook's.

The engine's way (vLLM V1): only full blocks are shared, and only by being found in the cache; a
fork is a new request; a full pool makes the last running request give way. The textbook's
(PagedAttention, arXiv 2309.06180, section 4.4): a fork shares every block, and a block that others
hold is copied before it is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.domain import pool_notes as why
from app.domain.errors import Conflict, OutOfRange, Unknown, shown
from app.domain.notes import Note
from app.domain.pool import BlockPool
from app.domain.pool_events import PoolEvent, PoolStep

MAX_SNAPSHOT_CELLS = 500_000
MAX_HELD_TOKENS = 1_000_000

RUNNING = "running"
WAITING = "waiting"
PREEMPTED = "preempted"


@dataclass(slots=True)
class Trace:
    """What has happened so far in one step."""

    notes: list[Note] = field(default_factory=list)
    accepted: bool = True
    hits: tuple[int, ...] = ()
    hit_tokens: int = 0
    admitted_tokens: int = 0
    computed_tokens: int = 0
    allocated: list[int] = field(default_factory=list)
    evictions: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)

    def took(self, blocks: Sequence[int], lost: Sequence[int]) -> None:
        """Note blocks that came off the queue, and those of them that lost their content."""
        if blocks:
            self.allocated.extend(blocks)
            self.notes.append(why.allocated(blocks))
        if lost:
            self.evictions.extend(lost)
            self.notes.append(why.evicted(lost))

    def refuse(self, note: Note) -> None:
        """Note that the event had no effect, and why."""
        self.accepted = False
        self.notes.append(note)


class Simulator(ABC):
    """What both ways have in common: the order of requests, and the events that only give back."""

    def __init__(self, pool: BlockPool, block_size: int, *, preempts: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self.preempts = preempts
        self.states: dict[str, str] = {}
        # Admitted requests in the order of their admission: the last is the first to give way.
        self.running: list[str] = []
        self.held_tokens = 0
        self.cells = 0

    @abstractmethod
    def table(self, request: str) -> tuple[int, ...]:
        """Return a request's table."""

    @abstractmethod
    def length(self, request: str) -> int:
        """Return how many tokens a request has."""

    @abstractmethod
    def allocate(self, trace: Trace, event: PoolEvent) -> None:
        """Add a request and admit it, if there is room."""

    @abstractmethod
    def grow(self, trace: Trace, request: str, tokens: Sequence[int]) -> int | None:
        """Add tokens to a running request; return how many blocks it wanted if there is no room."""

    @abstractmethod
    def keep_tokens(self, request: str, tokens: Sequence[int]) -> None:
        """Add tokens to a request that waits."""

    @abstractmethod
    def fork(self, trace: Trace, parent: str, child: str) -> None:
        """Add a request that continues another one's tokens."""

    @abstractmethod
    def look_up(self, trace: Trace, event: PoolEvent) -> None:
        """Say what tokens would find."""

    @abstractmethod
    def resume(self, trace: Trace, request: str) -> None:
        """Try a waiting request again."""

    @abstractmethod
    def give_back(self, request: str, *, forget: bool) -> tuple[int, ...]:
        """Release a request's blocks; return those that are free now."""

    @property
    def usable_blocks(self) -> int:
        """Return how many blocks can hold anything."""
        return self.pool.num_blocks - int(self.pool.rules.keeps_null_block)

    def add(self, request: str, tokens: int) -> None:
        """Enter a new request.

        Raises:
            Conflict: when there is one of this name.
            OutOfRange: when all requests together would have too many tokens.

        """
        if request in self.states:
            raise Conflict("{field} {name} is already there", field="request", name=shown(request))
        self.hold(tokens)
        self.states[request] = WAITING

    def hold(self, tokens: int) -> None:
        """Count tokens that requests hold, forks included."""
        self.held_tokens += tokens
        if self.held_tokens > MAX_HELD_TOKENS:
            raise OutOfRange(
                "{field} would bring the tokens of all requests over {high}",
                field="request",
                high=MAX_HELD_TOKENS,
            )

    def admit(self, request: str) -> None:
        """Enter a request among the running ones."""
        self.states[request] = RUNNING
        self.running.append(request)

    def known(self, request: str) -> str:
        """Return the state of a request.

        Raises:
            Unknown: when there is none of this name.

        """
        if request not in self.states:
            raise Unknown("{field} {name} is not there", field="request", name=shown(request))
        return self.states[request]

    def _give_back(self, trace: Trace, request: str, *, forget: bool) -> None:
        held = dict.fromkeys(block for block in self.table(request) if not self.pool.is_null(block))
        freed = self.give_back(request, forget=forget)
        trace.freed.extend(freed)
        hashed = [block for block in freed if self.pool.is_hashed(block)]
        rest = [block for block in freed if not self.pool.is_hashed(block)]
        still = [block for block in held if self.pool.references(block)]
        rules = self.pool.rules
        first = rules.unhashed_first and (self.pool.caching or rules.also_without_caching)
        if rest:
            trace.notes.append(why.freed(rest, hashed=False, to_head=first))
        if hashed:
            trace.notes.append(why.freed(hashed, hashed=True, to_head=False))
        if still:
            trace.notes.append(why.still_held(still))

    def _preempt(self, trace: Trace, request: str) -> None:
        trace.notes.append(why.preempted(request, self.length(request)))
        trace.preempted.append(request)
        self.running.remove(request)
        self.states[request] = PREEMPTED
        self._give_back(trace, request, forget=False)

    def _append(self, trace: Trace, request: str, tokens: Sequence[int]) -> None:
        """Grow a request; where there is no room, the last running ones give way, as in vLLM."""
        while True:
            free = self.pool.free_blocks
            needed = self.grow(trace, request, tokens)
            if needed is None:
                self.hold(len(tokens))
                return
            if not self.preempts:
                trace.refuse(why.refused(needed, free))
                return
            victim = self.running[-1]
            self._preempt(trace, victim)
            if victim == request:
                trace.refuse(why.preempts_itself(request))
                self.hold(len(tokens))
                self.keep_tokens(request, tokens)
                return

    def _apply_to_request(self, trace: Trace, event: PoolEvent) -> None:
        state = self.known(event.request)
        if event.op == "free":
            self._give_back(trace, event.request, forget=True)
            del self.states[event.request]
            if state == RUNNING:
                self.running.remove(event.request)
            else:
                trace.notes.append(why.held_nothing(event.request))
        elif event.op == "resume":
            if state == RUNNING:
                trace.refuse(why.already_running(event.request))
            else:
                self.resume(trace, event.request)
        elif state != RUNNING:
            trace.refuse(why.not_running(event.request, state))
        elif event.op == "append":
            self._append(trace, event.request, event.tokens)
        elif event.op == "preempt":
            self._preempt(trace, event.request)
        else:
            for child in event.children:
                self.add(child, self.length(event.request))
                self.fork(trace, event.request, child)

    def _apply_to_pool(self, trace: Trace, event: PoolEvent) -> None:
        if event.op == "lookup":
            self.look_up(trace, event)
        elif event.op == "evict":
            gone = self.pool.evict(event.blocks)
            trace.evictions.extend(gone)
            trace.notes.append(why.names_taken(gone) if gone else why.no_names())
        elif event.op == "reset":
            if self.pool.reset():
                trace.notes.append(why.reset_done())
            else:
                trace.refuse(why.reset_refused(self.usable_blocks - self.pool.free_blocks))
        elif self.running:
            self._preempt(trace, self.running[-1])
        else:
            trace.refuse(why.nobody_running())

    def apply(self, index: int, event: PoolEvent) -> PoolStep:
        """Let one event happen and return the pool after it."""
        trace = Trace()
        if event.op == "allocate":
            self.add(event.request, len(event.tokens))
            self.allocate(trace, event)
        elif event.request and event.op not in {"lookup", "evict", "reset"}:
            self._apply_to_request(trace, event)
        else:
            self._apply_to_pool(trace, event)
        return self._snapshot(index, event, trace)

    def _snapshot(self, index: int, event: PoolEvent, trace: Trace) -> PoolStep:
        tables = {request: self.table(request) for request in self.states}
        queue, cached = self.pool.free_queue, self.pool.cached
        self.cells += sum(map(len, tables.values())) + len(queue) + len(cached)
        if self.cells > MAX_SNAPSHOT_CELLS:
            raise OutOfRange(
                "{field}: the tables of all steps up to here would have more than {high} entries; "
                "take fewer events or a smaller pool",
                field=("events", index),
                high=MAX_SNAPSHOT_CELLS,
            )
        return PoolStep(
            index=index,
            op=event.op,
            request=event.request or next(iter(trace.preempted), ""),
            accepted=trace.accepted,
            tables=tables,
            states=dict(self.states),
            ref_counts=self.pool.ref_counts,
            filled=self._filled(tables),
            free_queue=queue,
            cached=cached,
            hits=trace.hits,
            hit_tokens=trace.hit_tokens,
            admitted_tokens=trace.admitted_tokens,
            computed_tokens=trace.computed_tokens,
            allocated=tuple(trace.allocated),
            evictions=tuple(trace.evictions),
            copies=tuple(trace.copies),
            freed=tuple(trace.freed),
            preempted=tuple(trace.preempted),
            used_blocks=self.usable_blocks - len(queue),
            free_blocks=len(queue),
            notes=tuple(trace.notes),
        )

    def _filled(self, tables: dict[str, tuple[int, ...]]) -> dict[int, int]:
        """Return how many positions each block in use holds."""
        filled: dict[int, int] = {}
        for request, table in tables.items():
            rest = self.length(request)
            for block in table:
                if not self.pool.is_null(block):
                    filled[block] = max(filled.get(block, 0), min(rest, self.block_size))
                rest -= self.block_size
        return filled
