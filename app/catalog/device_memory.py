"""A device's memory as a line: what its driver reports where known, else what is sold.

For a device whose driver's figure nobody has published, the range is what devices of the same
vendor report of the memory that they are sold with, least to most.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from app.catalog.devices import devices
from app.domain.capacity import Basis, Line
from app.domain.notes import Note
from app.domain.units import GIB


def memory_line(row: Mapping[str, Any]) -> Line:
    """Return the memory of one device as its driver counts devices."""
    reported = row["memory_bytes_reported_by_driver"]
    if reported is not None:
        low, high = row["memory_reported_range_bytes"] or (reported, reported)
        note = Note(
            "memory_reported",
            "{name}: as reported, {kind} ({confidence}).",
            {"name": row["name"], "kind": row["memory_reported_kind"],
             "confidence": row["memory_reported_confidence"]},
        )  # fmt: skip
        return Line(name="memory", low_bytes=min(low, reported), high_bytes=max(high, reported),
                    basis=Basis.MEASURED, note=note)  # fmt: skip
    sold = row["memory_gib_marketed"]
    least, most = _shares(row["vendor"])
    each = Fraction(sold * GIB, row["driver_devices_per_unit"])
    note = Note(
        "memory_sold",
        "{name}: sold with {sold} {unit}; no driver's figure is known. Others of {vendor} report "
        "{least} to {most} % of what is sold.",
        {"name": row["name"], "sold": sold, "unit": row["memory_marketed_unit"],
         "vendor": row["vendor"], "least": f"{float(100 * least):.1f}",
         "most": f"{float(100 * most):.1f}"},
    )  # fmt: skip
    return Line(name="memory", low_bytes=int(each * least), high_bytes=int(each * most),
                basis=Basis.ASSUMED, note=note)  # fmt: skip


@lru_cache(maxsize=32)
def _shares(vendor: str) -> tuple[Fraction, Fraction]:
    """Return the least and the most that a vendor's devices report of a sold GiB."""
    known = [row for row in devices().values() if row["memory_bytes_reported_by_driver"]]
    own = [row for row in known if row["vendor"] == vendor]
    shares = [
        Fraction(
            row["memory_bytes_reported_by_driver"] * row["driver_devices_per_unit"],
            row["memory_gib_marketed"] * GIB,
        )
        for row in own or known
    ]
    return min(shares), min(max(shares), Fraction(1))
