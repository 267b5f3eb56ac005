"""Amounts of bytes and shares as people type them: `46.8 GiB`, `28GB`, `1073741824`, `92 %`."""

from __future__ import annotations

import re
from fractions import Fraction

from app.domain.errors import Malformed, OutOfRange, shown
from app.domain.units import GIB, KIB, MIB, PIB, TIB

MAX_BYTES = 8 * PIB
_AMOUNT = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,9}))?\s*([A-Za-z]*)")
_UNITS = {
    "": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_MINUS = ("-", "\N{MINUS SIGN}")
_SHARE = re.compile(r"([0-9]{1,6})?(?:\.([0-9]{1,9}))?\s*(%?)")


def parse_bytes(text: str, *, field: str) -> int:
    """Return the exact bytes of an amount; a part of a byte is dropped.

    GiB is 2^30, GB 10^9; a bare number is bytes.

    >>> parse_bytes("1.5 GiB", field="memory")
    1610612736

    Raises:
        Malformed: for anything but a number and a unit.
        OutOfRange: beyond 8 PiB.

    """
    found = _AMOUNT.fullmatch(text.strip())
    unit = _UNITS.get(found[3].casefold()) if found else None
    if found is None or unit is None:
        raise Malformed(
            "{field} must be an amount such as 46.8 GiB, 28 GB or 1073741824, got {value}",
            field=field,
            value=shown(text),
        )
    digits = found[2] or ""
    amount: int = int(found[1] + digits) * unit // 10 ** len(digits)
    if amount > MAX_BYTES:
        raise OutOfRange("{field} must be at most 8 PiB, got {value}", field=field,
                         value=shown(text))  # fmt: skip
    return amount


def parse_signed_bytes(text: str, *, field: str) -> int:
    """Return the exact bytes of an amount that may be below 0, as an engine prints what it lacks.

    >>> parse_signed_bytes("-1.5 GiB", field="state")
    -1610612736

    Raises:
        Malformed: for anything but a number and a unit, with a minus sign or without.
        OutOfRange: beyond 8 PiB either way.

    """
    plain = text.strip()
    if plain.startswith(_MINUS):
        return -parse_bytes(plain[1:], field=field)
    return parse_bytes(plain, field=field)


def parse_share(text: str, *, field: str) -> Fraction:
    """Return the exact share of `0.92` or `92 %`.

    Raises:
        Malformed: for anything but a number, with a percent sign or without.

    """
    found = _SHARE.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        raise Malformed("{field} must be a share such as 0.92 or 92 %, got {value}", field=field,
                        value=shown(text))  # fmt: skip
    digits = found[2] or ""
    value = Fraction(int((found[1] or "0") + digits), 10 ** len(digits))
    return value / 100 if found[3] else value
