"""One number of tokens as a person types it: `131072`, `128k`, `1.5M`."""

from __future__ import annotations

import re
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.errors import Malformed, OutOfRange, shown
from app.readers.length_runs import LengthsMistake
from app.readers.lengths import parse_lengths

_NUMBER = re.compile(r"([0-9]{1,60}(?:\.[0-9]{1,20})?)([kKmM]?)[iI]?")
_FACTORS = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_length(text: str, *, field: str, high: int) -> int:
    """Return a number of tokens from 1 to `high`; k is 1024, M is 1024 x 1024.

    >>> parse_length("128k", field="context", high=2**22)
    131072

    Raises:
        Malformed: for anything but one whole number.
        OutOfRange: for a number outside the bounds, naming them.

    """
    number = _NUMBER.fullmatch(text.strip())
    if number and Fraction(number[1]) * _FACTORS[number[2].lower()] > high:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}", field=field,
                         low=1, high=high, value=shown(text.strip()))  # fmt: skip
    try:
        found = parse_lengths(text, field=field)
    except (LengthsMistake, OutOfRange):
        raise _no_number(text, field) from None
    if len(found.runs) != 1 or found.requests != 1:
        raise _no_number(text, field)
    return checked_int(found.runs[0][0], field, low=1, high=high)


def _no_number(text: str, field: str) -> Malformed:
    return Malformed("{field} must be one number, such as 131072 or 128k, got {value}",
                     field=field, value=shown(text.strip()))  # fmt: skip
