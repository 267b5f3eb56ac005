"""The deterministic CBOR that block hashes are taken over."""

from __future__ import annotations

import pytest

from app.domain.cbor import CborValue, deterministic_cbor
from app.domain.errors import OutOfRange, WrongType

# Appendix A of RFC 8949, and the boundaries where an integer's head grows.
ENCODINGS: list[tuple[CborValue, str]] = [
    (None, "f6"),
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (65_535, "19ffff"),
    (65_536, "1a00010000"),
    (4_294_967_295, "1affffffff"),
    (4_294_967_296, "1b0000000100000000"),
    (2**64 - 1, "1bffffffffffffffff"),
    (-1, "20"),
    (-10, "29"),
    (-24, "37"),
    (-25, "3818"),
    (-100, "3863"),
    (-1000, "3903e7"),
    (-(2**64), "3bffffffffffffffff"),
    (b"", "40"),
    (b"\x01\x02\x03\x04", "4401020304"),
    ("", "60"),
    ("IETF", "6449455446"),
    ("\u00fc", "62c3bc"),
    ("\u6c34", "63e6b0b4"),
    ((), "80"),
    ((1, 2, 3), "83010203"),
    ([1, (2, 3), [4, 5]], "8301820203820405"),
    (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ((b"", (1, 500), None), "834082011901f4f6"),
]


@pytest.mark.parametrize(("value", "encoded"), ENCODINGS)
def test_every_value_has_its_shortest_encoding(value: CborValue, encoded: str) -> None:
    """Equal values give the RFC's own bytes, with the shortest head of each type."""
    assert deterministic_cbor(value).hex() == encoded


def test_a_list_and_a_tuple_are_one_array() -> None:
    """The container's Python type leaves no trace."""
    assert deterministic_cbor([1, "a"]) == deterministic_cbor((1, "a"))


@pytest.mark.parametrize("value", [True, 1.5, {"a": 1}, {1}, (1, False)])
def test_what_has_no_encoding_here_is_refused(value: object) -> None:
    """A bool, a float and a mapping are refused rather than encoded by accident."""
    with pytest.raises(WrongType):
        deterministic_cbor(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2**64, -(2**64) - 1])
def test_an_integer_beyond_64_bits_is_refused(value: int) -> None:
    """There is no head for it."""
    with pytest.raises(OutOfRange, match="64 bits"):
        deterministic_cbor(value)
