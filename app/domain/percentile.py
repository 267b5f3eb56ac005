"""How many requests drawn from given lengths fit, so that memory runs out only so rarely.

Three answers. By the longest: every request as large as the largest, exact. By the mean: the sum's
mean, exact, and too much half of the time. At a percentile: a Chernoff bound on the sum of
independent draws, P(S > room) <= min over t of exp(-t room) E[exp(t X)]^n. It holds for any
distribution of costs and any n, so that at least the stated share of draws fits; the true number
can be a little larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.capacity import MAX_CONCURRENCY
from app.domain.errors import OutOfRange

# Golden-section steps: each takes about 38 % off the interval of t, 40 leave a part in 10^8.
_STEPS = 40
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnConcurrency:
    """How many requests of drawn lengths fit: at most the mean's, surely the longest's."""

    percentile: Fraction
    by_longest: int
    at_percentile: int
    by_mean: int


def drawn_concurrency(
    costs: Mapping[int, int], room: int, percentile: Fraction
) -> DrawnConcurrency:
    """Return how many requests fit whose bytes are drawn from `costs` (bytes to how often).

    Raises:
        OutOfRange: for no cost at all, or a percentile outside 50..100 (100 is the longest).

    """
    if not costs or not any(costs.values()):
        raise OutOfRange("{field} must name at least one request", field="lengths")
    if not Fraction(1, 2) <= percentile <= 1:
        raise OutOfRange("{field} must be between 50 and 100, got {value}", field="percentile",
                         value=float(100 * percentile))  # fmt: skip
    largest = max(cost for cost, count in costs.items() if count)
    total = sum(costs.values())
    summed = sum(cost * count for cost, count in costs.items())
    if room <= 0 or largest == 0:
        all_fit = MAX_CONCURRENCY if largest == 0 and room >= 0 else 0
        return DrawnConcurrency(percentile=percentile, by_longest=all_fit, at_percentile=all_fit,
                                by_mean=all_fit)  # fmt: skip
    by_longest = min(room // largest, MAX_CONCURRENCY)
    by_mean = min(room * total // summed, MAX_CONCURRENCY)
    found = by_longest
    if percentile < 1 and by_mean > by_longest:
        found = _at(costs, room, percentile, by_longest, by_mean)
    return DrawnConcurrency(
        percentile=percentile, by_longest=by_longest, at_percentile=found, by_mean=by_mean
    )


def _at(costs: Mapping[int, int], room: int, percentile: Fraction, low: int, high: int) -> int:
    """Return the largest n in low..high whose bound is at most 1 - percentile."""
    largest = max(costs)
    total = sum(costs.values())
    rows = [(cost / largest, count / total) for cost, count in costs.items() if count]
    relative = room / largest
    allowed = math.log(float(1 - percentile))
    while low < high:
        middle = (low + high + 1) // 2
        if _log_bound(rows, relative, middle) <= allowed:
            low = middle
        else:
            high = middle - 1
    return low


def _log_bound(rows: list[tuple[float, float]], room: float, draws: int) -> float:
    """Return the least over t of n log E[exp(t X)] - t room; costs and room in largest costs."""

    def at(t: float) -> float:
        # E[exp(t X)] = exp(t) E[exp(t (X - 1))]: no power overflows, since X <= 1.
        spread = math.fsum(share * math.exp(t * (cost - 1)) for cost, share in rows)
        return draws * (t + math.log(spread)) - t * room

    low, high = 0.0, 64.0
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = at(left), at(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = at(right)
    return min(at_left, at_right, 0.0)
