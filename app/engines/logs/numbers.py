"""Numbers as they were printed, and the interval of values that print so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

UNITS = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    # These engines divide by powers of two whatever they call the unit.
    "KB": 2**10, "MB": 2**20, "GB": 2**30,
}  # fmt: skip
_COUNT = re.compile(r"\d{1,3}(?:[,._ ]\d{3})+(?!\d)|\d{1,15}")
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A decimal as printed: its value, and half a unit of its last digit either side."""

    text: str
    value: Fraction
    half: Fraction

    @property
    def low(self) -> Fraction:
        """The least value that rounds to what was printed."""
        return self.value - self.half

    @property
    def high(self) -> Fraction:
        """The largest."""
        return self.value + self.half

    def holds(self, value: Fraction | int) -> bool:
        """Say whether a value would have been printed so (a tie counts: floats break it)."""
        return self.low <= value <= self.high

    def holds_bytes(self, size_bytes: int, unit: str) -> bool:
        """Say whether so many bytes would have been printed so in a unit."""
        return self.holds(Fraction(size_bytes, UNITS[unit]))

    def bytes(self, unit: str) -> tuple[int, int]:
        """Return the whole bytes that print so in a unit, the least and the largest."""
        scale = UNITS[unit]
        low, high = self.low * scale, self.high * scale
        return -((-low.numerator) // low.denominator), high.numerator // high.denominator


def decimal(text: str, *, least_decimals: int = 0) -> Printed | None:
    """Return a printed decimal; a comma may stand for the point (a locale's own).

    `least_decimals` is how many the engine rounds to where it drops zeros at the end: 22.5 printed
    by round(x, 2) means 22.495 to 22.505.
    """
    plain = text.strip().rstrip(".,")
    if plain.count(",") == 1 and "." not in plain:
        plain = plain.replace(",", ".")
    plain = plain.replace(",", "")
    sign = plain.startswith("-")
    whole, _, fraction = plain.lstrip("-").partition(".")
    if not (whole + fraction).isdigit() or len(whole + fraction) > _MAX_DIGITS:
        return None
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction))
    digits = max(len(fraction), least_decimals)
    return Printed(
        text=text.strip(), value=-value if sign else value, half=Fraction(1, 2 * 10**digits)
    )


def count(text: str) -> int | None:
    """Return a printed count, with or without separators between groups of three digits."""
    found = _COUNT.match(text.strip())
    if found is None:
        return None
    digits = "".join(character for character in found[0] if character.isdigit())
    return int(digits) if len(digits) <= _MAX_DIGITS else None


def gib_text(size_bytes: int | Fraction, digits: int = 2) -> str:
    """Return bytes in GiB with so many decimals."""
    return f"{float(Fraction(size_bytes) / 2**30):.{digits}f} GiB"
