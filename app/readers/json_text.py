"""JSON as people write and paste it, with nothing passed over in silence.

Of a key named twice the standard library keeps the last, and readers of a config would never know;
it takes NaN, and nesting so deep that what writes it out again gives up. All of that is refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import NoReturn

from app.domain.errors import DomainError, Malformed, OutOfRange, shown
from app.domain.notes import Note

MAX_CONFIG_BYTES = 8 * 2**20
# Ten times what any config has; encoders of an answer give up between 200 and 1000.
MAX_DEPTH = 128
# What Python's decoder complains of, word for word; the place follows.
_PROBLEMS = {
    note.template: note
    for note in (
        Note("", "Expecting value"),
        Note("", "Expecting property name enclosed in double quotes"),
        Note("", "Expecting ':' delimiter"),
        Note("", "Expecting ',' delimiter"),
        Note("", "Illegal trailing comma before end of object"),
        Note("", "Illegal trailing comma before end of array"),
        Note("", "Extra data"),
        Note("", "Unterminated string starting at"),
        Note("", "Invalid control character at"),
        Note("", "Invalid \\escape"),
        Note("", "Invalid \\uXXXX escape"),
    )
}


class RepeatedKeyError(ValueError):
    """A key twice in one object."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


def unique_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object's entries, for a decoder's `object_pairs_hook`.

    Raises:
        RepeatedKeyError: for a key that comes twice.

    """
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise RepeatedKeyError(next(key for key, count in counts.items() if count > 1))
    return found


def parse_json(data: bytes | str, *, field: str) -> object:
    """Return the JSON value that a text holds, nested up to MAX_DEPTH.

    Raises:
        Malformed: for a key named twice, NaN, Infinity and floats beyond them, lone surrogates,
            deeper nesting, and all that is no JSON.
        OutOfRange: for more than MAX_CONFIG_BYTES.

    """
    if len(data) > MAX_CONFIG_BYTES:
        raise OutOfRange("{field} is {value} bytes long; at most {high} are read as JSON",
                         field=field, value=len(data), high=MAX_CONFIG_BYTES)  # fmt: skip

    try:
        value = _decoded(data, field)
    except DomainError:
        raise
    except (ValueError, RecursionError) as error:
        raise _refusal(error, field) from None
    if _depth_passes(value, MAX_DEPTH):
        raise Malformed("{field} is nested too deeply", field=field)
    return value


def parse_json_object(data: bytes | str, *, field: str) -> dict[str, object]:
    """Return the JSON object that a text holds, as `parse_json` reads it.

    Raises:
        Malformed: for any other value too.
        OutOfRange: for more than MAX_CONFIG_BYTES.

    """
    value = parse_json(data, field=field)
    if not isinstance(value, dict):
        raise Malformed("{field} must be a JSON object", field=field)
    return value


def _decoded(data: bytes | str, field: str) -> object:
    def refuse(word: str) -> NoReturn:
        raise Malformed("{field} holds {value}, which is no JSON", field=field, value=shown(word))

    def finite(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits)

    text = (data if isinstance(data, str) else data.decode()).removeprefix("\ufeff")
    value: object = json.loads(
        text, object_pairs_hook=unique_object, parse_constant=refuse, parse_float=finite
    )
    # A lone surrogate is legal in JSON's grammar, and no text that could be answered with.
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refusal(error: ValueError | RecursionError, field: str) -> Malformed:
    if isinstance(error, RepeatedKeyError):
        return Malformed("{field} names {key} twice", field=field, key=shown(error.key))
    if isinstance(error, RecursionError):
        return Malformed("{field} is nested too deeply", field=field)
    if isinstance(error, UnicodeError):
        return Malformed("{field} is not UTF-8 text", field=field)
    return Malformed("{field} is not JSON: {why}", field=field, why=_why(error))


def _why(error: ValueError) -> Note:
    """Return the decoder's complaint and its place, so that a page can translate it."""
    if not isinstance(error, json.JSONDecodeError):
        return Note("", "an integer has more digits than are read")
    return Note(
        "",
        "{problem}: line {line} column {column} (char {char})",
        {"problem": _PROBLEMS.get(error.msg, error.msg), "line": error.lineno,
         "column": error.colno, "char": error.pos},
    )  # fmt: skip


def _depth_passes(value: object, bound: int) -> bool:
    """Return whether lists and objects are nested more than `bound` deep."""
    level = [value]
    for _ in range(bound + 1):
        level = [
            item
            for node in level
            if isinstance(node, (dict, list))
            for item in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True
