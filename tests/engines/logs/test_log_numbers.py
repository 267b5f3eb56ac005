"""What a printed number leaves open, and counts with whatever separator."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.engines.logs.numbers import count, decimal, gib_text


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("2.48", "2.475", "2.485"),
        ("24.0", "23.95", "24.05"),
        ("62", "61.5", "62.5"),
        ("2,48", "2.475", "2.485"),
        ("1,048.58", "1048.575", "1048.585"),
        ("-2.14", "-2.145", "-2.135"),
        ("46.80.", "46.795", "46.805"),
    ],
)
def test_half_a_unit_of_the_last_digit(text: str, low: str, high: str) -> None:
    """A decimal stands for half a unit of its last digit either side; a comma may be its point."""
    found = decimal(text)
    assert found is not None
    assert (found.low, found.high) == (Fraction(low), Fraction(high))


def test_dropped_zeros_are_put_back() -> None:
    """Where an engine rounds to two decimals, 22.5 means 22.495 to 22.505."""
    found = decimal("22.5", least_decimals=2)
    assert found is not None
    assert (found.low, found.high) == (Fraction("22.495"), Fraction("22.505"))


def test_bytes_that_print_so() -> None:
    """6.51 GiB are 6,984,690,566 to 6,995,427,983 bytes."""
    found = decimal("6.51")
    assert found is not None
    assert found.bytes("GiB") == (6_984_690_566, 6_995_427_983)
    assert found.holds_bytes(6_984_690_566, "GiB")
    assert not found.holds_bytes(6_984_690_565, "GiB")


@pytest.mark.parametrize("text", ["", "x", ".", "1.2.3", "1e5", "9" * 19])
def test_no_decimal(text: str) -> None:
    """What is no decimal of a sane length is none."""
    assert decimal(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("75,840", 75_840), ("75.840", 75_840), ("75 840", 75_840), ("75_840", 75_840),
        ("75840", 75_840), ("1,048,576 tokens", 1_048_576), ("7", 7), ("12,34", 12),
    ],
)  # fmt: skip
def test_counts(text: str, value: int) -> None:
    """Separators of any kind stand between groups of three digits."""
    assert count(text) == value


@pytest.mark.parametrize("text", ["", "tokens", "-"])
def test_no_count(text: str) -> None:
    """What does not begin with a digit is no count."""
    assert count(text) is None


def test_gib() -> None:
    """Bytes are said in GiB with two decimals, or as many as asked for."""
    assert gib_text(6_990_113_505) == "6.51 GiB"
    assert gib_text(990_904_320, 3) == "0.923 GiB"
