"""Amounts of bytes and shares as people type them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.domain.errors import DomainError
from app.readers.amounts import parse_bytes, parse_share, parse_signed_bytes


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1073741824", 2**30), ("1 GiB", 2**30), ("1GB", 10**9), ("46.8 GiB", 50_251_117_363),
        ("1.5kib", 1536), ("0", 0), ("7 B", 7), ("2 TiB", 2**41), ("2.5 TB", 2_500_000_000_000),
        (" 3 MB ", 3_000_000), ("3 MiB", 3 * 2**20), ("3 kB", 3000),
    ],
)  # fmt: skip
def test_bytes(text: str, amount: int) -> None:
    """GiB is binary, GB decimal, a bare number bytes; a part of a byte is dropped."""
    assert parse_bytes(text, field="memory") == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("-2.14 GiB", -2_297_807_503), ("− 1 GiB", -(2**30)), (" -7", -7), ("1 KiB", 1024),
     ("-0", 0)],
)  # fmt: skip
def test_what_is_lacking(text: str, amount: int) -> None:
    """A minus sign of either kind makes it less than nothing; the digits are as exact."""
    assert parse_signed_bytes(text, field="state") == amount


@pytest.mark.parametrize("text", ["", "-", "--1 GiB", "-−1", "1-", "-9000 TiB"])
def test_lacking_amounts_that_are_not(text: str) -> None:
    """One sign at most, and the same bound either way."""
    with pytest.raises(DomainError) as raised:
        parse_signed_bytes(text, field="state")
    assert raised.value.field == ("state",)


@pytest.mark.parametrize("text", ["", "GiB", "-1 GiB", "1,5 GiB", "3 apples", "1e9", "9000 TiB"])
def test_amounts_that_are_not(text: str) -> None:
    """Anything else is refused at its field."""
    with pytest.raises(DomainError) as raised:
        parse_bytes(text, field="memory")
    assert raised.value.field == ("memory",)


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.92", Fraction(23, 25)), ("92 %", Fraction(23, 25)), (".5", Fraction(1, 2)),
     ("1", Fraction(1)), ("1.5", Fraction(3, 2))],
)  # fmt: skip
def test_shares(text: str, share: Fraction) -> None:
    """A share is exact, as a number or in percent."""
    assert parse_share(text, field="utilisation") == share


@pytest.mark.parametrize("text", ["", "%", "half", "-0.1", "."])
def test_shares_that_are_not(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(DomainError):
        parse_share(text, field="utilisation")
