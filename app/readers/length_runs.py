"""Request lengths as ordered runs, and the mistake that names its place and what came before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.domain.errors import Malformed

if TYPE_CHECKING:
    from app.domain.notes import Note

MAX_LENGTH_TOKENS = 10**9
MAX_REQUESTS = 10**7
# Lines or items of a file, so that no dropped file holds a worker for more than seconds.
MAX_RECORDS = 1_000_000
# A range or a file may name every length once, so that runs, not requests, are what memory holds.
MAX_RUNS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLengths:
    """Lengths in the order given; `runs` are (length in tokens, how many requests).

    Neighbouring equal lengths are one run, so the same requests written in two ways compare equal.
    """

    runs: tuple[tuple[int, int], ...]
    notes: tuple[Note, ...] = ()

    @property
    def requests(self) -> int:
        """Return how many requests there are."""
        return sum(count for _, count in self.runs)

    @property
    def tokens(self) -> int:
        """Return the sum of all lengths."""
        return sum(length * count for length, count in self.runs)

    @property
    def longest_tokens(self) -> int:
        """Return the longest length, 0 where there is no request."""
        return max((length for length, _ in self.runs), default=0)


class LengthsMistake(Malformed):
    """Lengths that cannot be read: where, which fragment, and what was understood before it.

    `position` counts characters of a text from 0; `line` and `column` count from 1. A file of
    records has no column, and a JSON list names its `item`, so the one that does not apply is 0.
    """

    def __init__(
        self,
        template: str,
        *,
        field: str | tuple[str | int, ...],
        understood: ParsedLengths,
        position: int,
        **params: object,
    ) -> None:
        self.understood = understood
        self.position = position
        super().__init__(
            template,
            field=field,
            requests=understood.requests,
            tokens=understood.tokens,
            **params,
        )


class RunsBuilder:
    """Collects runs in order; says no, before it grows, to more than the bounds allow."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._counts: list[int] = []
        self._requests = 0
        self.notes: list[Note] = []

    def room_for(self, runs: int, count: int) -> bool:
        """Tell whether `runs` more runs of `count` requests each keep within the bounds."""
        return (
            len(self._lengths) + runs <= MAX_RUNS and self._requests + runs * count <= MAX_REQUESTS
        )

    def add(self, length: int, count: int) -> None:
        """Append `count` requests of `length` tokens; the caller has asked `room_for`."""
        self._requests += count
        if self._lengths and self._lengths[-1] == length:
            self._counts[-1] += count
        else:
            self._lengths.append(length)
            self._counts.append(count)

    def parsed(self) -> ParsedLengths:
        """Return what was collected so far."""
        return ParsedLengths(
            runs=tuple(zip(self._lengths, self._counts, strict=True)),
            notes=tuple(self.notes),
        )
