"""JSON as people write it: read whole, or refused by what is wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Malformed, OutOfRange
from app.domain.notes import Note
from app.readers.json_text import (
    MAX_CONFIG_BYTES,
    MAX_DEPTH,
    parse_json,
    parse_json_object,
    unique_object,
)

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


@given(values)
def test_what_is_written_is_read(value: object) -> None:
    """Any value comes back as it went, from bytes as from text."""
    text = json.dumps(value)
    assert parse_json(text, field="x") == value
    assert parse_json(text.encode(), field="x") == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1, "a": 1}', "config names 'a' twice"),
        ('{"b": 1, "a": {"c": 2, "d": 0, "c": 3}}', "config names 'c' twice"),
        ('[{"a": 1}, {"z": 1, "y": 2, "y": 3, "z": 4}]', "config names 'z' twice"),
        ('{"\\u0061": 1, "a": 2}', "config names 'a' twice"),
        ('{"": 1, "": 2}', "config names '' twice"),
        ('{"a" 1}', "config is not JSON: Expecting ':' delimiter: line 1 column 6 (char 5)"),
        ('{"a":\n 1 2}', "config is not JSON: Expecting ',' delimiter: line 2 column 4 (char 9)"),
        ("", "config is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("9" * 5000, "config is not JSON: an integer has more digits than are read"),
        ('{"a": NaN}', "config holds 'NaN', which is no JSON"),
        ('{"a": -Infinity}', "config holds '-Infinity', which is no JSON"),
        ('{"a": 1e999}', "config holds '1e999', which is no JSON"),
        ('"\\ud800"', "config is not UTF-8 text"),
        ("[" * 100_000, "config is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, sentence: str) -> None:
    """Each mistake is named, with the key or the place."""
    with pytest.raises(Malformed) as refused:
        parse_json(text, field="config")
    assert str(refused.value).startswith(sentence)
    assert refused.value.field == ("config",)


def test_bytes_that_are_no_text() -> None:
    """Only UTF-8 is read."""
    with pytest.raises(Malformed, match="is not UTF-8 text"):
        parse_json(b'{"a": "\xff"}', field="config")


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(start: str, end: str) -> None:
    """128 levels are read; one more is refused."""
    assert MAX_DEPTH == 128
    parse_json(f"{start * 128}1{end * 128}", field="config")
    with pytest.raises(Malformed, match="nested too deeply"):
        parse_json(f"{start * 129}1{end * 129}", field="config")


def test_a_long_text_is_not_parsed() -> None:
    """Over the bound nothing is decoded."""
    with pytest.raises(OutOfRange, match=str(MAX_CONFIG_BYTES)):
        parse_json_object(b" " * (MAX_CONFIG_BYTES + 1), field="config")


def test_escapes_of_whole_characters_are_fine() -> None:
    """A pair of surrogates is a character."""
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}', field="x") == {"a": "\U0001f600"}


@pytest.mark.parametrize("lead", ["\ufeff", " \n", "\ufeff\r\n"])
def test_a_mark_or_space_may_lead(lead: str) -> None:
    """Editors put a byte order mark or blank lines before the brace."""
    assert parse_json_object(f"{lead}{{}}", field="x") == {}
    assert parse_json_object(f"{lead}{{}}".encode(), field="x") == {}


@pytest.mark.parametrize("text", ["[]", "1", "null", '"a"'])
def test_an_object_is_asked_for(text: str) -> None:
    """Any other value is refused where an object is meant."""
    with pytest.raises(Malformed, match="config must be a JSON object"):
        parse_json_object(text, field="config")


def test_the_decoders_complaint_can_be_translated() -> None:
    """It is a note of its own, apart from the place."""
    with pytest.raises(DomainError) as refused:
        parse_json("{", field="config")
    why = refused.value.params["why"]
    assert isinstance(why, Note)
    assert isinstance(why.params["problem"], Note)


def test_unique_entries_stay() -> None:
    """An object keeps its entries in order."""
    assert list(unique_object([("b", 1), ("a", 2)]).items()) == [("b", 1), ("a", 2)]
