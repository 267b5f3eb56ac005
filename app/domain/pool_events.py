"""What one may do to a simulated pool, and what each step of it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import FieldPath, Missing, OutOfRange, Unknown, shown
from app.domain.hashing import checked_text, checked_tokens
from app.domain.notes import Note

MAX_EVENTS = 1_000
MAX_SIMULATED_BLOCKS = 2_048
MAX_CHILDREN = 64
MAX_EVENT_TOKENS = 32_768
MAX_NAME_BYTES = 64

OPS = (
    "allocate",
    "append",
    "lookup",
    "fork",
    "free",
    "evict",
    "preempt",
    "resume",
    "reset",
)
_NEEDS_REQUEST = frozenset({"allocate", "append", "fork", "free", "resume"})
_NEEDS_TOKENS = frozenset({"allocate", "append", "lookup"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """One thing that happens to the pool.

    - allocate: a new `request` with `tokens` (and perhaps an `adapter` or a `salt`);
    - append: more `tokens` of a running request;
    - lookup: what `tokens` would find, nothing else;
    - fork: `children` that continue a request's tokens (beams, samples);
    - free: a request ends; evict: `blocks` lose their cached content; reset: all do;
    - preempt: a request (none named: the last running one) gives up its blocks and waits;
    - resume: a waiting request is tried again.
    """

    op: str
    request: str = ""
    tokens: Sequence[int] = ()
    children: Sequence[str] = ()
    blocks: Sequence[int] = ()
    adapter: str | None = None
    salt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStep:
    """The pool after one event, and what the event did.

    `accepted` is False where there was no room or nothing to act on. `states` says of each request
    whether it is running, waiting (never admitted) or preempted. `filled` counts the positions in
    each block that is in use. `cached` gives the hash under which a lookup finds a block.
    `admitted_tokens` counts the positions of admitted requests, of which `hit_tokens` were found.
    """

    index: int
    op: str
    request: str
    accepted: bool
    tables: dict[str, tuple[int, ...]]
    states: dict[str, str]
    ref_counts: dict[int, int]
    filled: dict[int, int]
    free_queue: tuple[int, ...]
    cached: dict[int, str]
    hits: tuple[int, ...]
    hit_tokens: int
    admitted_tokens: int
    computed_tokens: int
    allocated: tuple[int, ...]
    evictions: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    freed: tuple[int, ...]
    preempted: tuple[str, ...]
    used_blocks: int
    free_blocks: int
    notes: tuple[Note, ...]

    @property
    def saved_blocks(self) -> int:
        """Return how many blocks more the tables would take if no block had several holders."""
        return sum(self.ref_counts.values()) - len(self.ref_counts)

    @property
    def cached_free_blocks(self) -> int:
        """Return how many free blocks a lookup can still find."""
        return sum(block in self.cached for block in self.free_queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTotals:
    """What all steps came to; looking up alone counts for nothing."""

    hit_tokens: int
    admitted_tokens: int
    computed_tokens: int
    evictions: int
    copies: int
    refusals: int
    preemptions: int
    peak_used_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSimulation:
    """A pool through a series of events; `usable_blocks` are those that can hold anything."""

    num_blocks: int
    usable_blocks: int
    block_size: int
    policy: str
    when_full: str
    version: str
    steps: tuple[PoolStep, ...]
    totals: PoolTotals
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]


def _checked_name(name: str, field: FieldPath) -> None:
    if not name:
        raise Missing("{field} is missing: say which request", field=field)
    if len(checked_text(name, field).encode("utf-8")) > MAX_NAME_BYTES:
        raise OutOfRange(
            "{field} must take at most {high} bytes in UTF-8, got {value}",
            field=field,
            high=MAX_NAME_BYTES,
            value=shown(name),
        )


def _checked_event(event: PoolEvent, path: FieldPath, num_blocks: int) -> int:
    """Return how many tokens the event brings."""
    if event.op not in OPS:
        raise Unknown(
            "{field} must be one of {known}, got {value}",
            field=(*path, "op"),
            known=", ".join(OPS),
            value=shown(event.op),
        )
    if event.op in _NEEDS_REQUEST or event.request:
        _checked_name(event.request, (*path, "request"))
    if event.op in _NEEDS_TOKENS:
        checked_int(len(event.tokens), (*path, "tokens"), low=1, high=MAX_EVENT_TOKENS)
        checked_tokens(event.tokens, (*path, "tokens"))
    if event.op == "fork":
        checked_int(len(event.children), (*path, "children"), low=1, high=MAX_CHILDREN)
        for index, child in enumerate(event.children):
            _checked_name(child, (*path, "children", index))
    if event.op == "evict":
        checked_int(len(event.blocks), (*path, "blocks"), low=1, high=num_blocks)
        for index, block in enumerate(event.blocks):
            checked_int(block, (*path, "blocks", index), low=0, high=num_blocks - 1)
    for name in ("adapter", "salt"):
        if getattr(event, name) is not None:
            checked_text(getattr(event, name), (*path, name))
    return len(event.tokens)


def check_events(events: Sequence[PoolEvent], num_blocks: int) -> None:
    """Refuse events that are malformed, or too many, before any of them happens.

    Raises:
        Unknown: for another operation than those of OPS.
        Missing: where an operation needs a request's name.
        WrongType, OutOfRange, Malformed: for bad names, tokens or blocks, and for too many.

    """
    checked_int(len(events), "events", low=0, high=MAX_EVENTS)
    total = 0
    for index, event in enumerate(events):
        total += _checked_event(event, ("events", index), num_blocks)
        if total > MAX_EVENT_TOKENS:
            raise OutOfRange(
                "{field} would bring the tokens of all events over {high}",
                field=("events", index, "tokens"),
                high=MAX_EVENT_TOKENS,
            )
