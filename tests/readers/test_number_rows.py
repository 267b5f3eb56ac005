"""Vectors as they are typed: rows, numbers, and what is neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import OutOfRange, WrongType
from app.readers.number_rows import MAX_ROWS_CHARACTERS, read_rows, rows_text


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", []),
        ("  \n \n", []),
        ("0", [[0]]),
        ("1 2\n3 4", [[1, 2], [3, 4]]),
        ("1, 2; 3,4", [[1, 2], [3, 4]]),
        ("-1.5 +2. .5 1e3 −7", [[-1.5, 2, 0.5, 1000, -7]]),
        ("1\r\n2\r\n", [[1], [2]]),
    ],
)
def test_rows(text: str, rows: list[list[float]]) -> None:
    """A line or a semicolon ends a row; spaces and commas part its numbers."""
    assert read_rows(text, "past_keys") == rows


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("nan", (0, 0)),
        ("1 inf", (0, 1)),
        ("1\n2 x", (1, 1)),
        ("0x10", (0, 0)),
        ("1e9999", (0, 0)),
        ("1_000", (0, 0)),
        ("-", (0, 0)),
        ("9" * 41, (0, 0)),
    ],
)
def test_what_is_no_number(text: str, at: tuple[int, int]) -> None:
    """Anything else is refused with its row and its place in it."""
    with pytest.raises(WrongType) as caught:
        read_rows(text, "query")
    assert caught.value.field == ("query", *at)


def test_a_text_is_bounded() -> None:
    """A text beyond the bound is refused before it is read."""
    with pytest.raises(OutOfRange) as caught:
        read_rows("0 " * (MAX_ROWS_CHARACTERS // 2 + 1), "query")
    assert caught.value.field == ("query",)


@given(
    st.lists(
        st.lists(st.integers(-9999, 9999).map(lambda n: n / 100), min_size=1, max_size=4),
        max_size=5,
    )
)
def test_written_rows_are_read_again(rows: list[list[float]]) -> None:
    """Numbers of two decimals, as the lab draws them, survive being written and read."""
    assert read_rows(rows_text(rows), "query") == rows
