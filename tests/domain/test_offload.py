"""Tiers beyond the device: what they hold, and a lower bound of the time to move it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import OutOfRange
from app.domain.offload import Tier, offload


def tier(capacity: int = 100, bandwidth: int = 10, *, shared: bool = False) -> Tier:
    """Return a tier."""
    return Tier(name="host", capacity_bytes=capacity, bandwidth_bytes_per_s=bandwidth,
                shared=shared)  # fmt: skip


@pytest.mark.parametrize(
    ("shared", "requests", "moved", "nanoseconds"),
    [(False, 3, 30, 3 * 10**9), (True, 2, 50, 5 * 10**9)],
)
def test_own_and_shared_tiers(shared: bool, requests: int, moved: int, nanoseconds: int) -> None:  # noqa: FBT001 - a parameter of the table
    """A worker's own tier is full with the fullest rank's; a shared one holds all ranks'."""
    found = offload(tier(shared=shared), (30, 20), 7)
    assert (found.requests, found.tokens) == (requests, 7 * requests)
    assert (found.moved_bytes, found.least_nanoseconds) == (moved, nanoseconds)


def test_nothing_takes_no_time() -> None:
    """A request that keeps nothing is moved at once, as often as the bound allows."""
    found = offload(tier(), (0,), 1)
    assert (found.requests, found.least_nanoseconds) == (10**9, 0)


@given(st.integers(0, 2**50), st.integers(1, 10**12), st.integers(1, 2**40))
def test_no_transfer_is_faster(capacity: int, bandwidth: int, each: int) -> None:
    """In the bound's time the link moves at least the bytes; in a nanosecond less it does not."""
    found = offload(tier(capacity, bandwidth), (each,), 1)
    assert found.least_nanoseconds * bandwidth >= each * 10**9
    assert (found.least_nanoseconds - 1) * bandwidth < each * 10**9
    assert found.requests * each <= capacity
    assert found.requests == 10**9 or capacity < (found.requests + 1) * each


@pytest.mark.parametrize("wrong", [{"capacity": -1}, {"bandwidth": 0}])
def test_tiers_are_checked(wrong: dict[str, int]) -> None:
    """No bandwidth, or a capacity below nothing, is refused."""
    with pytest.raises(OutOfRange):
        tier(**wrong)  # type: ignore[arg-type] # each is a whole number
