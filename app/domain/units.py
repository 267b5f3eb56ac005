"""Exact byte counts in words, with binary prefixes: MiB is 2^20 bytes, GiB 2^30."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
PIB = 2**50

_DECIMAL = (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3))
_BINARY = (("PiB", PIB), ("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


def _scaled(amount: int, unit: int, digits: int) -> str:
    """Return amount / unit rounded half up to `digits` decimals, without trailing zeros."""
    scale = 10**digits
    hundredths = (2 * amount * scale + unit) // (2 * unit)
    whole, rest = divmod(hundredths, scale)
    fraction = f"{rest:0{digits}d}".rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


def bytes_text(amount: int, digits: int = 2) -> str:
    """Return an exact count of bytes in the largest binary unit that it reaches.

    >>> bytes_text(536_870_912)
    '512 MiB'
    >>> bytes_text(1023)
    '1023 B'

    The text is rounded half up; a value that would round up to 1024 of its unit moves to the next.
    """
    if amount < 0:
        return "−" + bytes_text(-amount, digits)
    for index, (name, unit) in enumerate(_BINARY):
        if amount >= unit:
            text = _scaled(amount, unit, digits)
            if text == "1024" and index:
                bigger, bigger_unit = _BINARY[index - 1]
                return f"{_scaled(amount, bigger_unit, digits)} {bigger}"
            return f"{text} {name}"
    return f"{amount} B"


def percent_text(part: int, whole: int) -> str:
    """Return part / whole as a percentage with one decimal, rounded half up; '0 %' of nothing."""
    if whole == 0:
        return "0 %"
    return f"{_scaled(100 * part, whole, 1)} %"


def si_text(amount: int, unit: str, digits: int = 2) -> str:
    """Return an exact count in the largest decimal prefix that it reaches: G is 10^9, never 2^30.

    >>> si_text(7_504_658_432, "MAC")
    '7.5 GMAC'
    """
    for prefix, power in _DECIMAL:
        if amount >= 10**power:
            return f"{_scaled(amount, 10**power, digits)} {prefix}{unit}"
    return f"{amount} {unit}"
