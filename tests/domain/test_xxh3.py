"""XXH3-128 in plain Python against the reference implementation."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import xxhash
from hypothesis import given

from app.domain.xxh3 import xxh3_128_digest

# Each side of every length where the algorithm takes another way, and of its stripes and blocks.
LENGTHS = (
    *range(18),
    *(at + step for at in (32, 64, 96, 128, 160, 192, 224, 240, 256) for step in (-1, 0, 1)),
    *(at + step for at in (1_024, 2_048, 65_536) for step in (-1, 0, 1, 63, 64, 65)),
)


@pytest.mark.parametrize("size", LENGTHS)
def test_every_length_agrees_with_the_reference(size: int) -> None:
    """At each boundary of the algorithm the digest is the reference's, high half first."""
    data = bytes((index * index + 7 * index + size) % 251 for index in range(size))
    assert xxh3_128_digest(data) == xxhash.xxh3_128_digest(data)


def test_the_empty_input_has_the_published_digest() -> None:
    """XXH3-128 of nothing is 99aa06d3014798d86001c324468d497f."""
    assert xxh3_128_digest(b"").hex() == "99aa06d3014798d86001c324468d497f"


@given(st.binary(max_size=1_500))
def test_any_bytes_agree_with_the_reference(data: bytes) -> None:
    """Whatever the bytes, the digest is the reference's."""
    assert xxh3_128_digest(data) == xxhash.xxh3_128_digest(data)
