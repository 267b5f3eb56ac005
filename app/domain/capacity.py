"""A device's memory as lines, and the inverse questions: how many requests, how long a context.

Every line has a basis: computed from shapes, measured (a driver's or a log's figure), given by the
user, or assumed. An assumed line is a range, and so is what remains for the state: `least` counts
every line at its high end, `most` at its low end. What fits into `least` fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.errors import Conflict, OutOfRange
from app.domain.formats import StateGroup
from app.domain.notes import Note
from app.domain.per_token import peak_tokens
from app.domain.state import MAX_TOKENS

MAX_BYTES = 2**53
MAX_CONCURRENCY = 10**9
# The line that says what is left for the state; an engine that lacks memory prints it below 0.
ROOM_LINE = "state"


class Basis(StrEnum):
    """Where a figure comes from."""

    COMPUTED = "computed"
    MEASURED = "measured"
    GIVEN = "given"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a device's memory, on the rank that holds most of it.

    No line is below 0 but the room for the state: there it is what lacks before any state.
    """

    name: str
    low_bytes: int
    high_bytes: int
    basis: Basis
    note: Note

    def __post_init__(self) -> None:
        low = -MAX_BYTES if self.name == ROOM_LINE else 0
        checked_int(self.low_bytes, self.name, low=low, high=MAX_BYTES)
        checked_int(self.high_bytes, self.name, low=low, high=MAX_BYTES)
        if self.high_bytes < self.low_bytes:
            raise Conflict("{field}: the range {low}..{high} is empty", field=self.name,
                           low=self.low_bytes, high=self.high_bytes)  # fmt: skip

    @property
    def is_range(self) -> bool:
        """Return whether the line is not one figure."""
        return self.low_bytes != self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one rank has for the state: at least, and at most; below 0 it lacks so much."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One device: its memory, the share that may be used, and what is taken before any state.

    `weights` are those of one rank of each stage. `state` replaces all of it where the bytes for
    the state are known from a log.
    """

    memory: Line
    utilisation: Fraction
    weights: tuple[int, ...]
    lines: tuple[Line, ...]
    state: Line | None = None

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise OutOfRange(
                "{field} must be above 0 and at most 1, got {value}",
                field="utilisation",
                value=float(self.utilisation),
            )

    def usable(self, memory_bytes: int) -> int:
        """Return the bytes that may be used of so many: rounded up, as vLLM 0.14.1 and later do."""
        return -(-memory_bytes * self.utilisation.numerator // self.utilisation.denominator)

    def rooms(self) -> tuple[Room, ...]:
        """Return each stage's room for the state."""
        if self.state is not None:
            return (Room(least=self.state.low_bytes, most=self.state.high_bytes),) * len(
                self.weights
            )
        low = self.usable(self.memory.low_bytes) - sum(line.high_bytes for line in self.lines)
        high = self.usable(self.memory.high_bytes) - sum(line.low_bytes for line in self.lines)
        return tuple(Room(least=low - own, most=high - own) for own in self.weights)


# What a request of so many tokens takes on one rank at its peak; never less for more tokens.
Demand = Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDemand:
    """The peak of a request on its way to a length, in whole blocks, on one rank.

    `interleaved` groups hold one position in `context`; the rank asked for is the first, which
    holds most. Chunked attention drops its positions at a boundary, so its peak lies before it.
    """

    plain: tuple[StateGroup, ...]
    interleaved: tuple[StateGroup, ...]
    context: int
    block_size: int

    def __call__(self, tokens: int) -> int:
        """Return the bytes; nothing for a request of no tokens."""
        if not tokens:
            return 0
        share = -(-tokens // self.context)
        total = 0
        for groups, own in ((self.plain, tokens), (self.interleaved, share)):
            for group in groups:
                total += group.fixed_bytes
                if group.position_bytes:
                    blocks = -(-peak_tokens(group.state, own) // self.block_size)
                    total += blocks * self.block_size * group.position_bytes
        return total


def fits(demands: Sequence[Demand], rooms: Sequence[int], tokens: int, concurrency: int) -> bool:
    """Return whether so many requests of so many tokens fit on every rank."""
    return all(
        concurrency * demand(tokens) <= room for demand, room in zip(demands, rooms, strict=True)
    )


def largest_concurrency(demands: Sequence[Demand], rooms: Sequence[int], tokens: int) -> int:
    """Return how many requests of so many tokens fit: the smallest rank decides.

    One more does not fit on some rank. Requests that take nothing anywhere are bounded by
    MAX_CONCURRENCY.
    """
    checked_int(tokens, "context_tokens", low=1, high=MAX_TOKENS)
    found = MAX_CONCURRENCY
    for demand, room in zip(demands, rooms, strict=True):
        if room < 0:
            return 0
        each = demand(tokens)
        if each:
            found = min(found, room // each)
    return found


def longest_context(demands: Sequence[Demand], rooms: Sequence[int], concurrency: int) -> int:
    """Return how many tokens each of so many requests may have; one more does not fit.

    A demand never falls, so halving the interval is exact. MAX_TOKENS where no length is too long.
    """
    checked_int(concurrency, "concurrency", low=1, high=MAX_CONCURRENCY)
    if any(room < 0 for room in rooms):
        return 0
    low, high = 0, MAX_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if fits(demands, rooms, middle, concurrency):
            low = middle
        else:
            high = middle - 1
    return low


def deciding(demands: Sequence[Demand], rooms: Sequence[int], tokens: int) -> int:
    """Return the rank that decides: where the fewest requests of so many tokens fit."""

    def allowed(index: int) -> Fraction:
        each = demands[index](tokens)
        return Fraction(rooms[index], each) if each else Fraction(MAX_CONCURRENCY)

    return min(range(len(rooms)), key=allowed)
