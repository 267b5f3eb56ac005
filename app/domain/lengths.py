"""A multiset of request lengths in their given order: runs of (length, count)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.state import MAX_TOKENS

MAX_REQUESTS = 10_000_000


# No slots: they would leave no room for what is worked out once.
@dataclass(frozen=True, kw_only=True)
class RequestLengths:
    """Lengths in tokens that have gone through the model, one per request.

    `runs` keeps the given order; `counts` says how often each length occurs. A million requests of
    few distinct lengths cost no more than the distinct ones.
    """

    runs: Sequence[int] | Sequence[tuple[int, int]]
    counts: Mapping[int, int]
    requests: int

    @classmethod
    def of_list(cls, lengths: Sequence[int]) -> RequestLengths:
        """Return the lengths of a plain list.

        Raises:
            WrongType: for an element that is not an int (a bool is not).
            OutOfRange: for a negative or overlong length, or too many requests.

        """
        _check_requests(len(lengths))
        if set(map(type, lengths)) - {int}:
            for index, length in enumerate(lengths):
                checked_int(length, ("lengths", index), low=0, high=MAX_TOKENS)
        counts = Counter(lengths)
        if counts and not (min(counts) >= 0 and max(counts) <= MAX_TOKENS):
            for index, length in enumerate(lengths):
                checked_int(length, ("lengths", index), low=0, high=MAX_TOKENS)
        return cls(runs=lengths, counts=counts, requests=len(lengths))

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[int, int]]) -> RequestLengths:
        """Return the lengths of (length, count) pairs; raises as `of_list` does."""
        counts: Counter[int] = Counter()
        for index, (length, count) in enumerate(runs):
            checked_int(length, ("lengths", index, "length"), low=0, high=MAX_TOKENS)
            checked_int(count, ("lengths", index, "count"), low=0, high=MAX_REQUESTS)
            if count:
                counts[length] += count
        requests = counts.total()
        _check_requests(requests)
        return cls(runs=runs, counts=counts, requests=requests)

    @cached_property
    def longest(self) -> int:
        """Return the longest length, 0 where there is no request."""
        return max(self.counts, default=0)

    @cached_property
    def tokens(self) -> int:
        """Return the sum of all lengths."""
        return sum(map(mul, self.counts.keys(), self.counts.values()))

    @property
    def non_empty(self) -> int:
        """Return how many requests hold at least one token."""
        return self.requests - self.counts.get(0, 0)

    def page(self, offset: int, limit: int) -> Iterator[tuple[int, int]]:
        """Yield (request index, length) of `limit` requests from `offset` on, in given order."""
        end = min(offset + limit, self.requests)
        if self.runs and isinstance(self.runs[0], int):
            yield from enumerate(self.runs[offset:end], offset)
            return
        start = 0
        for item in self.runs:
            if start >= end:
                return
            length, count = (item, 1) if isinstance(item, int) else item
            for index in range(max(start, offset), min(start + count, end)):
                yield index, length
            start += count


def _check_requests(requests: int) -> None:
    if requests > MAX_REQUESTS:
        raise OutOfRange(
            "{field} must name at most {high} requests, got {value}",
            field="lengths",
            high=MAX_REQUESTS,
            value=requests,
        )
