"""Arrival times as exact nanoseconds: numbers in a unit, or dates with up to nine decimals."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite

from app.domain.timeline import MAX_TIME_NS

UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_NUMBER = re.compile(r"[0-9]{1,24}(?:\.[0-9]{0,24})?(?:[eE][+-]?[0-9]{1,2})?")
# Azure writes seven decimals, more than a datetime keeps, and a zone or none.
_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_date(value: object) -> bool:
    """Tell whether a value is written as a date, which needs no unit."""
    return isinstance(value, str) and _DATE.fullmatch(value.strip()) is not None


def time_ns(value: object, unit: str) -> int | None:
    """Return a time in nanoseconds, decimals beyond them dropped; None for what is no time.

    A number is in `unit` and not negative. A date without a zone is taken as UTC.
    """
    if isinstance(value, str):
        text = value.strip()
        if (date := _DATE.fullmatch(text)) is not None:
            return _date_ns(date)
        value = Decimal(text) if _NUMBER.fullmatch(text) else None
    elif isinstance(value, float):
        value = Decimal(repr(value)) if isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    # Compared before it is scaled: a Decimal may have an exponent of any size.
    if not 0 <= value <= MAX_TIME_NS // UNITS_NS[unit]:
        return None
    return int(value * UNITS_NS[unit])


def _date_ns(date: re.Match[str]) -> int | None:
    day, clock, decimals, zone = date.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone or '+00:00'}")
    except ValueError:
        return None
    seconds = (moment - _EPOCH).days * 86_400 + (moment - _EPOCH).seconds
    return seconds * 10**9 + int((decimals or "0").ljust(9, "0"))
