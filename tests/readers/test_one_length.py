"""One number of tokens, as it is typed in a field that takes no more than one."""

from __future__ import annotations

import pytest

from app.domain.errors import Malformed, OutOfRange
from app.readers.one_length import parse_length


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1), ("131072", 131_072), (" 128k ", 131_072), ("128K", 131_072), ("1.5M", 1_572_864),
        ("1Mi", 1_048_576), ("4M", 4_194_304), ("\uff18\uff4b", 8_192),
    ],
)  # fmt: skip
def test_one_number(text: str, tokens: int) -> None:
    """Digits with or without a binary unit; full-width ones too."""
    assert parse_length(text, field="context", high=2**22) == tokens


@pytest.mark.parametrize("text", ["0", "4194305", "4097k", "99999999999", "9" * 60, "1" * 50 + "M"])
def test_a_number_out_of_bounds_is_refused_with_its_field_and_the_bound(text: str) -> None:
    """However long the number is, the sentence has the field and both bounds."""
    with pytest.raises(OutOfRange, match="context must be between 1 and 4194304, got") as caught:
        parse_length(text, field="context", high=2**22)
    assert caught.value.field == ("context",)
    assert len(str(caught.value)) < 140


@pytest.mark.parametrize(
    "text", ["", "long", "1k, 2k", "2 x 5", "1..3", "-1", "1.5", "1e5", "9" * 61, "x" * 1_100_000]
)
def test_what_is_not_one_number_is_refused_with_an_example(text: str) -> None:
    """Words, several numbers, and parts of a token; a long text is cut short."""
    with pytest.raises(Malformed, match="context must be one number, such as 131072") as caught:
        parse_length(text, field="context", high=2**22)
    assert len(str(caught.value)) < 200
