"""Token ids as a person types or pastes them, and the shortest text that gives the same.

1 2 3, 4        ids between commas, semicolons, white space or brackets
1..16           every id from 1 to 16
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.domain.errors import FieldPath, Malformed, OutOfRange, shown
from app.domain.hashing import MAX_PROMPT_TOKENS, MAX_TOKEN_ID

MAX_TEXT_CHARACTERS = 2_000_000
# From this many consecutive ids on, a range is shorter than the list.
_SHORTEST_RANGE = 3

_SEPARATORS = re.compile(r"[\s,;，；、\[\]]+")
_ITEM = re.compile(r"([0-9]+)(?:\.\.([0-9]+))?")
# Nothing allowed has more digits, and int() of a long text is slow.
_MOST_DIGITS = len(str(MAX_TOKEN_ID))


def checked_length(text: str, field: str | FieldPath, most: int) -> str:
    """Return a text of bounded length.

    Raises:
        OutOfRange: when it is longer than `most` characters.

    """
    if len(text) > most:
        raise OutOfRange(
            "{field} must be at most {high} characters, got {value}",
            field=field,
            high=most,
            value=len(text),
        )
    return text


def _fragments(text: str) -> Iterator[tuple[int, str]]:
    """Return what stands between separators, with its place counted in characters from 1."""
    at = 0
    for separator in _SEPARATORS.finditer(text):
        if separator.start() > at:
            yield at + 1, text[at : separator.start()]
        at = separator.end()
    if at < len(text):
        yield at + 1, text[at:]


def parse_token_ids(
    text: str, field: str | FieldPath = "tokens", *, most: int = MAX_PROMPT_TOKENS
) -> tuple[int, ...]:
    """Return the ids of a text.

    Raises:
        Malformed: for what is neither an id nor a range, or a range that runs backwards.
        OutOfRange: for an id above MAX_TOKEN_ID, too many ids or too long a text.

    """
    checked_length(text, field, MAX_TEXT_CHARACTERS)
    ids: list[int] = []
    for position, fragment in _fragments(text):
        match = _ITEM.fullmatch(fragment)
        if match is None:
            raise Malformed(
                "{field}: {value} at character {position} is no token id; ids are whole numbers, "
                "or a range such as 1..16",
                field=field,
                value=shown(fragment),
                position=position,
            )
        first = _token_id(match[1], field, position)
        last = first if match[2] is None else _token_id(match[2], field, position)
        if last < first:
            raise Malformed(
                "{field}: the range {value} at character {position} runs backwards",
                field=field,
                value=shown(fragment),
                position=position,
            )
        if len(ids) + last - first >= most:
            raise OutOfRange("{field} must hold at most {high} token ids", field=field, high=most)
        ids.extend(range(first, last + 1))
    return tuple(ids)


def _token_id(digits: str, field: str | FieldPath, position: int) -> int:
    plain = digits.lstrip("0") or "0"
    if len(plain) > _MOST_DIGITS or int(plain) > MAX_TOKEN_ID:
        raise OutOfRange(
            "{field}: the token id {value} at character {position} is above {high}",
            field=field,
            value=shown(digits),
            position=position,
            high=MAX_TOKEN_ID,
        )
    return int(plain)


def parse_sequences(text: str, *, most_sequences: int, most_tokens: int) -> list[tuple[int, ...]]:
    """Return one sequence of ids a line; empty lines are passed over.

    Raises:
        Malformed, OutOfRange: as `parse_token_ids`, the line named; and for too many of either.

    """
    checked_length(text, "sequences", MAX_TEXT_CHARACTERS)
    sequences: list[tuple[int, ...]] = []
    left = most_tokens
    for line in text.splitlines():
        if not line.strip():
            continue
        if len(sequences) == most_sequences:
            raise OutOfRange(
                "{field} must be at most {high} lines", field="sequences", high=most_sequences
            )
        ids = parse_token_ids(line, ("sequences", len(sequences) + 1), most=left)
        left -= len(ids)
        sequences.append(ids)
    return sequences


def byte_ids(text: str, field: str | FieldPath = "text") -> tuple[int, ...]:
    """Return the bytes of a text in UTF-8 as ids: a stand-in for a tokenizer, and none.

    Raises:
        Malformed: for half of a surrogate pair.
        OutOfRange: for more bytes than a prompt may have tokens.

    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(
            "{field} holds half of a surrogate pair at character {at}", field=field, at=error.start
        ) from None
    if len(data) > MAX_PROMPT_TOKENS:
        raise OutOfRange(
            "{field} must take at most {high} bytes in UTF-8, got {value}",
            field=field,
            high=MAX_PROMPT_TOKENS,
            value=len(data),
        )
    return tuple(data)


def token_ids_text(tokens: Sequence[int]) -> str:
    """Return ids as text that `parse_token_ids` reads back; runs of consecutive ids as ranges."""
    parts: list[str] = []
    start = 0
    while start < len(tokens):
        end = start + 1
        while end < len(tokens) and tokens[end] == tokens[end - 1] + 1:
            end += 1
        if end - start >= _SHORTEST_RANGE:
            parts.append(f"{tokens[start]}..{tokens[end - 1]}")
        else:
            parts.extend(map(str, tokens[start:end]))
        start = end
    return " ".join(parts)
