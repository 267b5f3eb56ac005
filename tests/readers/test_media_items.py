"""Images of a prompt as text."""

from __future__ import annotations

import pytest

from app.domain.errors import DomainError, Malformed, OutOfRange
from app.domain.vllm_prompt import MAX_MULTIMODAL_ITEMS, MultimodalItem
from app.readers.media_items import MAX_MEDIA_CHARACTERS, parse_media

CAT = MultimodalItem(identifier="cat.png", offset=4, length=8)
DOG = MultimodalItem(identifier="my dog@home", offset=20, length=1)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("cat.png @ 4 + 8", [CAT]),
        ("cat.png@4+8; my dog@home @ 20+1;", [CAT, DOG]),
        ("cat.png @ 4 + 8\n my dog@home @20 + 1\n", [CAT, DOG]),
    ],
)
def test_what_is_read(text: str, items: list[MultimodalItem]) -> None:
    """An item is its identifier, where it begins and how many positions it takes."""
    assert parse_media(text, "media") == items


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("cat.png", Malformed, "'cat.png' is no item"),
        ("@ 4 + 8", Malformed, "is no item"),
        ("cat @ 4", Malformed, "is no item"),
        ("cat @ 4 + 9999999999", Malformed, "is no item"),
        ("c@1+1;" * (MAX_MULTIMODAL_ITEMS + 1), OutOfRange, "at most 4096 items"),
        (" " * (MAX_MEDIA_CHARACTERS + 1), OutOfRange, "100000 characters"),
    ],
)
def test_what_is_refused(text: str, error: type[DomainError], words: str) -> None:
    """A mistake is repeated in short; items and text are bounded."""
    with pytest.raises(error) as caught:
        parse_media(text, "media")
    assert words in str(caught.value)
    assert caught.value.field == ("media",)
