"""One step of a pool as the page draws it: cells, free queue, tables, and what a lookup finds."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.pool_events import PoolEvent, PoolSimulation, PoolStep
from app.readers.event_lines import event_line
from app.web.marks import mark

CELLS_SHOWN = 512
ENTRIES_SHOWN = 64
HASHES_SHOWN = 128
STATE_NAMES = {
    "running": mark("running"),
    "waiting": mark("waiting"),
    "preempted": mark("preempted"),
}
CELL_NAMES = {
    "null": mark("placeholder"),
    "held": mark("held"),
    "cached": mark("free, still cached"),
    "free": mark("free"),
}
CHANGE_NAMES = {
    "new": mark("new"),
    "hit": mark("hit"),
    "copy": mark("copied to"),
    "lost": mark("content lost"),
    "freed": mark("freed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One block of the pool: who holds it, or what it still holds, and what just happened."""

    block: int
    state: str
    holders: int
    filled: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One request: its state, and its table's first entries; `more` are not drawn."""

    request: str
    state: str
    entries: list[int]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """The pool after one event; before the first it is empty, and `step` is None."""

    number: int
    line: str
    step: PoolStep | None
    cells: list[Cell]
    more_cells: int
    queue: list[int]
    more_queue: int
    tables: list[Table]
    hashes: list[tuple[int, str]]
    more_hashes: int
    previous: int | None
    next: int | None


def step_view(simulation: PoolSimulation, events: list[PoolEvent], number: int) -> StepView:
    """Return the pool after so many events; of what is long, the first part and how much more."""
    step = simulation.steps[number - 1] if number else None
    first = simulation.num_blocks - simulation.usable_blocks
    queue = list(range(first, simulation.num_blocks)) if step is None else list(step.free_queue)
    cached = {} if step is None else step.cached
    tables = {} if step is None else step.tables
    return StepView(
        number=number,
        line=event_line(events[number - 1]) if number else "",
        step=step,
        cells=_cells(simulation, step),
        more_cells=max(simulation.num_blocks - CELLS_SHOWN, 0),
        queue=queue[:CELLS_SHOWN],
        more_queue=max(len(queue) - CELLS_SHOWN, 0),
        tables=[
            Table(
                request=request,
                state=step.states[request] if step else "",
                entries=list(table[:ENTRIES_SHOWN]),
                more=max(len(table) - ENTRIES_SHOWN, 0),
            )
            for request, table in tables.items()
        ],
        hashes=list(cached.items())[:HASHES_SHOWN],
        more_hashes=max(len(cached) - HASHES_SHOWN, 0),
        previous=number - 1 if number else None,
        next=number + 1 if number < len(simulation.steps) else None,
    )


def _cells(simulation: PoolSimulation, step: PoolStep | None) -> list[Cell]:
    nulls = simulation.num_blocks - simulation.usable_blocks
    shown = range(min(simulation.num_blocks, CELLS_SHOWN))
    if step is None:
        return [
            Cell(block=block, state="null" if block < nulls else "free", holders=0, filled=0,
                 changes=())
            for block in shown
        ]  # fmt: skip
    changed = {
        "new": frozenset(step.allocated),
        "hit": frozenset(step.hits),
        "copy": frozenset(target for _, target in step.copies),
        "lost": frozenset(step.evictions),
        "freed": frozenset(step.freed),
    }
    cells: list[Cell] = []
    for block in shown:
        holders = step.ref_counts.get(block, 0)
        if block < nulls:
            state = "null"
        elif holders:
            state = "held"
        else:
            state = "cached" if block in step.cached else "free"
        cells.append(
            Cell(
                block=block,
                state=state,
                holders=holders,
                filled=step.filled.get(block, 0),
                changes=tuple(name for name, blocks in changed.items() if block in blocks),
            )
        )
    return cells
