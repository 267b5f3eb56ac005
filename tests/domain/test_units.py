"""Bytes in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.units import bytes_text, percent_text, si_text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (536_870_912, "512 MiB"),
        (805_306_368, "768 MiB"),
        (2**20 - 1, "1 MiB"),
        (2**30 - 1, "1 GiB"),
        (11_173_199_872, "10.41 GiB"),
        (137_438_953_472, "128 GiB"),
        (2**50 * 3, "3 PiB"),
        (2**50 * 2048, "2048 PiB"),
        (-2048, "−2 KiB"),
    ],
)
def test_words(amount: int, text: str) -> None:
    """A count is put into the largest binary unit it reaches, rounded half up to two decimals."""
    assert bytes_text(amount) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_no_unit_shows_1024_of_itself(amount: int) -> None:
    """A count that rounds up to 1024 of a unit is shown as 1 of the next."""
    number, unit = bytes_text(amount).split()
    assert unit == "PiB" or float(number) < 1024


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (1, 3, "33.3 %"), (2, 3, "66.7 %"), (16, 96, "16.7 %"), (5, 5, "100 %")],
)
def test_percent(part: int, whole: int, text: str) -> None:
    """A share has one decimal, rounded half up; the share of nothing is nothing."""
    assert percent_text(part, whole) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 MAC"),
        (999, "999 MAC"),
        (1000, "1 kMAC"),
        (7_504_658_432, "7.5 GMAC"),
        (2**30, "1.07 GMAC"),
        (5 * 10**21, "5000 EMAC"),
    ],
)
def test_decimal_prefixes(amount: int, text: str) -> None:
    """Counts of work take decimal prefixes, so that G is 10^9 and nothing else."""
    assert si_text(amount, "MAC") == text
