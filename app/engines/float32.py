"""Arithmetic in 32-bit floats, for figures that an engine computes or prints from such."""

from __future__ import annotations

import struct


def float32(value: float) -> float:
    """Return the 32-bit float nearest to a value, even on a tie."""
    result: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return result
