"""Token ids as text: what is read, what is refused with its place, and the shortest text back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, OutOfRange
from app.readers.token_ids import (
    MAX_TEXT_CHARACTERS,
    byte_ids,
    parse_sequences,
    parse_token_ids,
    token_ids_text,
)

TOP = 2**32 - 1


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ()),
        ("  \n", ()),
        ("1 2 3", (1, 2, 3)),
        ("1,2;3\n4\t5", (1, 2, 3, 4, 5)),
        ("[1, 2, 3]", (1, 2, 3)),
        ("1，2；3、4", (1, 2, 3, 4)),
        ("1..4 9", (1, 2, 3, 4, 9)),
        ("7..7", (7,)),
        ("007", (7,)),
        ("0", (0,)),
        (str(TOP), (TOP,)),
    ],
)
def test_what_is_read(text: str, ids: tuple[int, ...]) -> None:
    """Ids stand between separators of any kind; two dots make a range, both ends included."""
    assert parse_token_ids(text) == ids


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("1 x 3", Malformed, "'x' at character 3"),
        ("-1", Malformed, "'-1' at character 1"),
        ("1.5", Malformed, "'1.5'"),
        ("１", Malformed, "character 1"),  # noqa: RUF001 - a full-width digit
        ("4..1", Malformed, "'4..1' at character 1 runs backwards"),
        ("1 ..3", Malformed, "'..3' at character 3"),
        (str(TOP + 1), OutOfRange, "is above 4294967295"),
        ("9" * 5000, OutOfRange, "is above 4294967295"),
        ("1..11", OutOfRange, "at most 10 token ids"),
        ("1 2 3 4 5 6 7 8 9 10 11", OutOfRange, "at most 10 token ids"),
        ("1..4294967295", OutOfRange, "at most 10 token ids"),
    ],
)
def test_what_is_refused(text: str, error: type[DomainError], words: str) -> None:
    """A mistake names its fragment and place; a range is bounded before it is written out."""
    with pytest.raises(error) as caught:
        parse_token_ids(text, "a", most=10)
    assert words in str(caught.value)
    assert str(caught.value).startswith("a")
    assert caught.value.field == ("a",)


def test_a_long_text_is_refused_unread() -> None:
    """Two million characters are the most that is looked at."""
    with pytest.raises(OutOfRange, match="2000000 characters"):
        parse_token_ids(" " * (MAX_TEXT_CHARACTERS + 1))
    with pytest.raises(OutOfRange, match="2000000 characters"):
        parse_sequences(" " * (MAX_TEXT_CHARACTERS + 1), most_sequences=1, most_tokens=1)


@given(st.lists(st.integers(0, 30) | st.integers(0, TOP), max_size=60))
def test_text_and_back(ids: list[int]) -> None:
    """What is written reads back to the same ids, and no run of three is written out."""
    text = token_ids_text(ids)
    assert parse_token_ids(text) == tuple(ids)
    assert token_ids_text([5, 6, 9, 10, 11]) == "5 6 9..11"


def test_sequences_are_lines() -> None:
    """Each line that is not empty is a sequence; a mistake names which."""
    text = "1 2\n\n  \n3..5\r\n6"
    assert parse_sequences(text, most_sequences=3, most_tokens=6) == [(1, 2), (3, 4, 5), (6,)]
    with pytest.raises(Malformed) as caught:
        parse_sequences("1\n2 y", most_sequences=9, most_tokens=9)
    assert caught.value.field == ("sequences", 2)
    with pytest.raises(OutOfRange, match="at most 2 lines"):
        parse_sequences("1\n2\n3", most_sequences=2, most_tokens=9)
    with pytest.raises(OutOfRange, match="at most 2 token ids"):
        parse_sequences("1 2\n3..5", most_sequences=2, most_tokens=4)


def test_bytes_of_a_text() -> None:
    """Each byte in UTF-8 is one id: an accent takes two, and the text is not trimmed."""
    assert byte_ids("é a\n") == (195, 169, 32, 97, 10)
    with pytest.raises(Malformed, match="surrogate pair at character 1"):
        byte_ids("a\ud800")
    with pytest.raises(OutOfRange, match="at most 262144 bytes"):
        byte_ids("é" * 131_073)
    assert len(byte_ids("é" * 131_072)) == 262_144
