"""Errors name their field, and their sentences can be translated part by part."""

from __future__ import annotations

from app.domain.errors import Malformed
from app.domain.notes import Note


def test_words_in_a_sentence_are_a_note_of_their_own() -> None:
    """The English sentence is whole, and a page can still translate its parts."""
    part = Note("", "the length of {part}", {"part": Note("", "a key")})
    error = Malformed("{field} ends inside {part}", field="file", part=part)
    assert str(error) == "file ends inside the length of a key"
    assert str(error.under("body")) == "body.file ends inside the length of a key"


def test_a_refusal_stands_in_another_sentence() -> None:
    """As a note with its own template, which later changes of the error do not touch."""
    error = Malformed("{field} is {value}", field="a", value=3)
    note = Note("", "Not read: {why}", {"why": error.note})
    error.under("b")
    assert note.text == "Not read: a is 3"
    assert error.note.text == "b.a is 3"
    assert error.note.code == "malformed"
