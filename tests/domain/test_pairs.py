"""Closed forms of the pairs that attention reads, against sums taken one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.pairs import Chunked, Constant, Growing, Sight, tetrahedral, triangular

SIGHTS = st.one_of(
    st.builds(Growing, group=st.integers(1, 7), limit=st.none() | st.integers(0, 9)),
    st.builds(Chunked, chunk=st.integers(1, 9)),
    st.builds(Constant, count=st.integers(0, 9)),
)


@given(SIGHTS, st.integers(0, 40))
def test_sums_equal_counting_one_by_one(sight: Sight, n: int) -> None:
    """Every total is the sum of its steps, at any length, limit, chunk and group."""
    seen = [sight.seen(t) for t in range(1, n + 1)]
    assert sight.seen_up_to(n) == sum(seen)
    assert sight.seen_by_all_prefixes(n) == sum(sum(seen[:m]) for m in range(1, n + 1))
    assert sight.rows_of_all_prefixes(n) == sum(sight.rows(m) for m in range(1, n + 1))


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (Growing(), [1, 2, 3, 4, 5, 6, 7]),
        (Growing(limit=3), [1, 2, 3, 3, 3, 3, 3]),
        (Growing(group=4), [0, 0, 0, 1, 1, 1, 1]),
        (Growing(group=2, limit=2), [0, 1, 1, 2, 2, 2, 2]),
        (Chunked(chunk=3), [1, 2, 3, 1, 2, 3, 1]),
        (Constant(count=5), [5, 5, 5, 5, 5, 5, 5]),
    ],
)
def test_what_each_query_sees(sight: Sight, expected: list[int]) -> None:
    """The first seven queries read as many rows as the layer's rule leaves in sight."""
    assert [sight.seen(t) for t in range(1, 8)] == expected


@pytest.mark.parametrize(
    "sight", [Growing(), Growing(limit=3), Chunked(chunk=3), Constant(count=5)]
)
def test_nothing_is_read_before_the_first_position(sight: Sight) -> None:
    """An empty sequence has no query, so it reads nothing."""
    assert sight.seen(0) == sight.rows(0) == sight.seen_up_to(0) == 0


def test_a_million_positions_at_once() -> None:
    """Full attention over 10^6 positions reads 500000500000 pairs, and anew for each 1.67e17."""
    assert Growing().seen_up_to(10**6) == 500_000_500_000
    assert Growing().seen_by_all_prefixes(10**6) == 166_667_166_667_000_000


def test_figurate_numbers() -> None:
    """The first triangular numbers are 0 1 3 6 10, and their running sums 0 1 4 10 20."""
    assert [triangular(n) for n in range(5)] == [0, 1, 3, 6, 10]
    assert [tetrahedral(n) for n in range(5)] == [0, 1, 4, 10, 20]
