"""What a distribution of lengths comes to: exact percentiles, extremes and the sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.state import MAX_TOKENS

MAX_DISTINCT_LENGTHS = 1_000_000
# In thousandths, so that the 99.9th is an integer too.
PERMILLES = (10, 50, 100, 250, 500, 750, 900, 950, 990, 999)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Lengths of some requests; `percentiles` are (thousandths, length).

    The p-th percentile is the nearest rank: the smallest length that at least p of all requests
    do not exceed. It is always a length that occurs, never a mean of two.
    """

    HEADER: ClassVar[tuple[str, ...]] = ("percentile", "tokens")

    requests: int
    total_tokens: int
    shortest_tokens: int
    longest_tokens: int
    percentiles: tuple[tuple[int, int], ...]

    @property
    def mean_tokens(self) -> int:
        """Return the mean, rounded down; 0 of nothing."""
        return self.total_tokens // max(1, self.requests)

    def rows(self) -> Iterator[tuple[str, int]]:
        """Yield rows under HEADER: the shortest, the percentiles, the longest."""
        yield "0", self.shortest_tokens
        for permille, tokens in self.percentiles:
            whole, tenth = divmod(permille, 10)
            yield f"{whole}.{tenth}" if tenth else str(whole), tokens
        yield "100", self.longest_tokens


def summarise_lengths(counts: Mapping[int, int]) -> LengthSummary:
    """Return the summary of lengths, given how many requests have each; zeros of nothing."""
    lengths = sorted(length for length, count in counts.items() if count)
    reached = list(accumulate(counts[length] for length in lengths))
    requests = reached[-1] if reached else 0
    percentiles = []
    at = 0
    for permille in PERMILLES if requests else ():
        while reached[at] * 1000 < permille * requests:
            at += 1
        percentiles.append((permille, lengths[at]))
    return LengthSummary(
        requests=requests,
        total_tokens=sum(length * counts[length] for length in lengths),
        shortest_tokens=lengths[0] if lengths else 0,
        longest_tokens=lengths[-1] if lengths else 0,
        percentiles=tuple(percentiles),
    )


class LengthCounter:
    """Counts lengths one by one; memory follows the distinct ones, and is bounded."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, tokens: int, field: str) -> None:
        """Count one length.

        Raises:
            OutOfRange: for a length out of bounds, or more distinct ones than are kept.

        """
        self._counts[checked_int(tokens, field, low=0, high=MAX_TOKENS)] += 1
        if len(self._counts) > MAX_DISTINCT_LENGTHS:
            raise OutOfRange(
                "{field}: more than {high} different lengths",
                field=field,
                high=MAX_DISTINCT_LENGTHS,
            )

    def summary(self) -> LengthSummary:
        """Return the summary of what was counted so far."""
        return summarise_lengths(self._counts)
