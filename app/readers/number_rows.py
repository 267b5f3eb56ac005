"""Reads vectors as a person types them: one row a line, numbers apart by spaces or commas."""

from __future__ import annotations

import re

from app.domain.errors import OutOfRange, WrongType, shown

MAX_ROWS_CHARACTERS = 20_000

# A decimal, with an exponent if at all and short enough to be one float; `inf` and `nan` are not.
_NUMBER = re.compile(r"[-+−]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?")


def read_rows(text: str, field: str) -> list[list[float]]:
    r"""Return the rows of a text; empty lines are none, and a `;` ends a row as a line does.

    >>> read_rows("1 2\n3, 4.5", "past_keys")
    [[1.0, 2.0], [3.0, 4.5]]

    Raises:
        OutOfRange: for a text beyond the bound.
        WrongType: for what is no number; the field's path has its row and place.

    """
    if len(text) > MAX_ROWS_CHARACTERS:
        raise OutOfRange("{field} must be at most {high} characters", field=field,
                         high=MAX_ROWS_CHARACTERS)  # fmt: skip
    lines = [line for line in re.split(r"[\n;]", text.replace(",", " ")) if line.strip()]
    return [
        [_number(word, (field, row, place)) for place, word in enumerate(line.split())]
        for row, line in enumerate(lines)
    ]


def rows_text(rows: list[list[float]] | tuple[tuple[float, ...], ...]) -> str:
    """Return rows as they would be typed, to be read again to the same numbers."""
    return "\n".join(" ".join(f"{value:g}" for value in row) for row in rows)


def _number(word: str, field: tuple[str | int, ...]) -> float:
    if _NUMBER.fullmatch(word) is None:
        raise WrongType("{field} must be a number, got {value}", field=field, value=shown(word))
    return float(word.replace("−", "-"))
