"""Checks that every value of the domain makes once, on construction."""

from __future__ import annotations

from app.domain.errors import FieldPath, OutOfRange, WrongType, shown


def checked_int(value: object, field: str | FieldPath, *, low: int, high: int) -> int:
    """Return `value` if it is an int (not a bool) in low..high.

    Raises:
        WrongType: for a bool, a float, a string or anything else.
        OutOfRange: outside the bounds.

    """
    if type(value) is not int:
        raise WrongType("{field} must be an integer, got {value}", field=field, value=shown(value))
    if not low <= value <= high:
        raise OutOfRange(
            "{field} must be between {low} and {high}, got {value}",
            field=field,
            low=low,
            high=high,
            value=shown(value),
        )
    return value
