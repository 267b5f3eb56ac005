"""Does a load fit on a device, what decides it, and how far from the edge it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.capacity import (
    MAX_CONCURRENCY,
    Basis,
    Budget,
    Demand,
    Line,
    deciding,
    largest_concurrency,
    longest_context,
)
from app.domain.checks import checked_int
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.domain.units import bytes_text

# What the lines are called in a sentence.
LINE_LABELS: Mapping[str, Note] = {
    "memory": Note("memory", "Memory of the device"),
    "weights": Note("weights", "Weights"),
    "activations": Note("activations", "Activations of the largest batch"),
    "framework": Note("framework", "Framework and device context"),
    "communication": Note("communication", "Communication buffers"),
    "cuda_graphs": Note("cuda_graphs", "CUDA graphs"),
    "reserve": Note("reserve", "Kept free"),
    "state": Note("state", "State of the load"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many requests of so many tokens at the same time, on one replica."""

    tokens: int
    concurrency: int

    def __post_init__(self) -> None:
        checked_int(self.tokens, "context_tokens", low=1, high=MAX_TOKENS)
        checked_int(self.concurrency, "concurrency", low=1, high=MAX_CONCURRENCY)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFit:
    """One stage: its weights, its room at least and at most, and what the load asks of it."""

    weights: int
    room: int
    room_at_most: int
    request_bytes: int
    max_concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a load fits: `fits` is None where only an assumed line decides.

    The figures without `at_most` count every assumed line at its high end: what they promise holds.
    `rank` is the stage that decides.
    """

    load: Load
    fits: bool | None
    rank: int
    stages: tuple[StageFit, ...]
    max_concurrency: int
    max_concurrency_at_most: int
    max_context: int
    max_context_at_most: int
    lines: tuple[Line, ...]
    usable: int
    usable_at_most: int
    verdict: Note
    deciding_line: str

    @property
    def room(self) -> int:
        """Return what the deciding rank has for the state, below 0 where it lacks."""
        return self.stages[self.rank].room

    @property
    def room_at_most(self) -> int:
        """Return the same with every assumed line at its low end."""
        return self.stages[self.rank].room_at_most

    @property
    def request_bytes(self) -> int:
        """Return what one request of the load takes on the deciding rank."""
        return self.stages[self.rank].request_bytes

    @property
    def needed_bytes(self) -> int:
        """Return what the load takes on the deciding rank."""
        return self.request_bytes * self.load.concurrency


# Some engines hand out whole blocks of a pool only; this says what requests may have of a room.
Usable = Callable[[int], int]


def fit(
    budget: Budget, demands: Sequence[Demand], load: Load, usable: Sequence[Usable] | None = None
) -> Fit:
    """Return whether a load fits, and the answers to the inverse questions.

    `usable` says, stage by stage, what an engine hands out of a room; all of it when None.
    """
    rooms = budget.rooms()
    least, most = [room.least for room in rooms], [room.most for room in rooms]
    if usable is not None:
        least = [use(room) for use, room in zip(usable, least, strict=True)]
        most = [use(room) for use, room in zip(usable, most, strict=True)]
    rank = deciding(demands, least, load.tokens)
    stages = tuple(
        StageFit(
            weights=own,
            room=room.least,
            room_at_most=room.most,
            request_bytes=demand(load.tokens),
            max_concurrency=largest_concurrency([demand], [have], load.tokens),
        )
        for own, room, demand, have in zip(budget.weights, rooms, demands, least, strict=True)
    )
    surely = min(stage.max_concurrency for stage in stages)
    perhaps = largest_concurrency(demands, most, load.tokens)
    fits = True if surely >= load.concurrency else None if perhaps >= load.concurrency else False
    context = longest_context(demands, least, load.concurrency)
    longest = context if least == most else longest_context(demands, most, load.concurrency)
    low, high = budget.usable(budget.memory.low_bytes), budget.usable(budget.memory.high_bytes)
    lines = budget.lines
    name, verdict = _verdict(budget, stages[rank], load, surely, fits=fits)
    return Fit(
        load=load,
        fits=fits,
        rank=rank,
        stages=stages,
        max_concurrency=surely,
        max_concurrency_at_most=perhaps,
        max_context=context,
        max_context_at_most=longest,
        lines=lines,
        usable=low,
        usable_at_most=high,
        verdict=verdict,
        deciding_line=name,
    )


def _verdict(
    budget: Budget, stage: StageFit, load: Load, surely: int, *, fits: bool | None
) -> tuple[str, Note]:
    """Return the line that decides and the sentence that says so."""
    asked: dict[str, object] = {
        "concurrency": load.concurrency,
        "tokens": load.tokens,
        "needed": bytes_text(stage.request_bytes * load.concurrency),
        "room": bytes_text(max(stage.room, 0)),
        "most": surely,
    }
    if fits:
        return "state", Note(
            "fits",
            "It fits: {concurrency} × {tokens} tokens take {needed} of the {room} that the "
            "deciding rank has for the state; {most} such requests would fit.",
            asked,
        )
    if fits is None:
        ranges = [budget.memory, *budget.lines]
        widest = max(ranges, key=lambda line: line.high_bytes - line.low_bytes)
        return widest.name, Note(
            "may_fit",
            "It depends: {concurrency} × {tokens} tokens take {needed}, and the room is between "
            "{room} and {room_at_most}; the line that decides is “{line}”, which is assumed: "
            "measure it.",
            {
                **asked,
                "line": LINE_LABELS[widest.name],
                "room_at_most": bytes_text(stage.room_at_most),
            },
        )
    usable = budget.usable(budget.memory.high_bytes)
    if budget.state is None and stage.weights > usable:
        return "weights", Note(
            "weights_too_large",
            "It does not fit: the weights alone, {weights} on the deciding rank, are more than the "
            "{usable} that may be used.",
            {"weights": bytes_text(stage.weights), "usable": bytes_text(usable)},
        )
    lines = {line.name: line.low_bytes for line in budget.lines}
    if budget.state is None:
        lines["weights"] = stage.weights
    needed = stage.request_bytes * load.concurrency
    lines["state"] = needed
    name = max(lines, key=lambda key: lines[key])
    return name, Note(
        "does_not_fit",
        "It does not fit: {concurrency} × {tokens} tokens take {needed}, at most {room_at_most} "
        "are left for them, {lacking} too few; the largest line is “{line}”; {most} such requests "
        "fit for certain.",
        {**asked, "room_at_most": bytes_text(max(stage.room_at_most, 0)),
         "lacking": bytes_text(needed - stage.room_at_most), "line": LINE_LABELS[name]},
    )  # fmt: skip


def given_line(name: str, amount: int) -> Line:
    """Return a line that a user gave as a measured figure."""
    note = Note("measured", "As given: measured on a running server.")
    return Line(name=name, low_bytes=amount, high_bytes=amount, basis=Basis.MEASURED, note=note)
