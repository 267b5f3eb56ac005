"""How many requests of drawn lengths fit: exact by the longest and the mean, a bound between."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.capacity import MAX_CONCURRENCY
from app.domain.errors import OutOfRange
from app.domain.percentile import drawn_concurrency

COSTS = {1: 500, 10: 400, 100: 90, 1000: 10}


def test_the_three_answers() -> None:
    """The longest bounds from below, the mean from above; the percentile lies between."""
    drawn = drawn_concurrency(COSTS, 20_000, Fraction(99, 100))
    assert (drawn.by_longest, drawn.by_mean) == (20, 851)
    assert drawn.by_longest < drawn.at_percentile < drawn.by_mean


def test_a_hundred_percent_is_the_longest() -> None:
    """To be sure of every draw, each request is counted as the longest."""
    assert drawn_concurrency(COSTS, 20_000, Fraction(1)).at_percentile == 20


def test_equal_requests_leave_nothing_to_chance() -> None:
    """Requests that are all alike fit as often as they divide the room."""
    drawn = drawn_concurrency({10: 7}, 105, Fraction(99, 100))
    assert (drawn.by_longest, drawn.at_percentile, drawn.by_mean) == (10, 10, 10)


@pytest.mark.parametrize(("room", "cost", "all_fit"), [(0, 5, 0), (-1, 5, 0), (-1, 0, 0),
                                                       (5, 0, MAX_CONCURRENCY)])  # fmt: skip
def test_no_room_or_no_cost(room: int, cost: int, all_fit: int) -> None:
    """Nothing fits into no room; what costs nothing is bounded only by the bound."""
    drawn = drawn_concurrency({cost: 1}, room, Fraction(9, 10))
    assert (drawn.by_longest, drawn.at_percentile, drawn.by_mean) == (all_fit,) * 3


def chance(zero_or_ten: int, draws: int, room: int) -> float:
    """Return how often the sum of draws from {0 in 10, 10} stays within the room, exactly."""
    most = room // 10
    share = zero_or_ten / 100
    return math.fsum(
        math.comb(draws, k) * share**k * (1 - share) ** (draws - k)
        for k in range(min(most, draws) + 1)
    )


@given(st.integers(1, 99), st.integers(1, 60), st.sampled_from([50, 90, 99, 99.9]))
def test_the_bound_holds_against_the_exact_distribution(
    per_cent: int, most: int, percentile: float
) -> None:
    """For costs of nothing or ten the true chance, a binomial sum, is at least the one promised."""
    drawn = drawn_concurrency({0: 100 - per_cent, 10: per_cent}, 10 * most,
                              Fraction(str(percentile)) / 100)  # fmt: skip
    assert drawn.by_longest <= drawn.at_percentile <= drawn.by_mean
    if drawn.at_percentile < 1000:
        held = chance(per_cent, drawn.at_percentile, 10 * most)
        assert held >= percentile / 100 - 1e-9 or drawn.at_percentile == drawn.by_longest


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 50), min_size=1, max_size=8),
       st.integers(1, 10**6))  # fmt: skip
def test_a_higher_percentile_never_allows_more(costs: dict[int, int], room: int) -> None:
    """To be surer, fewer requests may run; the answer does not depend on the day."""
    found = [drawn_concurrency(costs, room, Fraction(p, 1000)).at_percentile
             for p in (500, 900, 990, 999, 1000)]  # fmt: skip
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("costs", [{}, {5: 0}])
def test_no_requests(costs: dict[int, int]) -> None:
    """A distribution of nothing is refused."""
    with pytest.raises(OutOfRange, match="lengths"):
        drawn_concurrency(costs, 1, Fraction(1, 2))


@pytest.mark.parametrize("percentile", ["0.49", "1.01"])
def test_percentiles_are_bounded(percentile: str) -> None:
    """Below the middle, or above everything, is refused."""
    with pytest.raises(OutOfRange, match="percentile"):
        drawn_concurrency({1: 1}, 1, Fraction(percentile))
