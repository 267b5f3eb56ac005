"""Deterministic CBOR for the few types that a block hash covers (RFC 8949, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from app.domain.errors import OutOfRange, WrongType, shown

CborValue: TypeAlias = "int | bytes | str | Sequence[CborValue] | None"

_UNSIGNED = 0
_NEGATIVE = 1
_BYTES = 2
_TEXT = 3
_ARRAY = 4
# From here on an argument no longer fits in the initial byte (RFC 8949, section 3).
_FIRST_LONG = 24
_NULL = b"\xf6"


def _head(major: int, argument: int) -> bytes:
    """Return a major type with its argument in the fewest bytes that hold it."""
    first = major << 5
    if argument < _FIRST_LONG:
        return bytes((first | argument,))
    for code, width_bytes in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * width_bytes):
            return bytes((first | code,)) + argument.to_bytes(width_bytes, "big")
    raise OutOfRange(
        "{field} must fit in 64 bits, got {value}", field="value", value=shown(argument)
    )


def _write(value: CborValue, out: list[bytes]) -> None:
    if value is None:
        out.append(_NULL)
    elif type(value) is int:
        out.append(_head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value))
    elif isinstance(value, bytes):
        out.extend((_head(_BYTES, len(value)), value))
    elif isinstance(value, str):
        text = value.encode("utf-8")
        out.extend((_head(_TEXT, len(text)), text))
    elif isinstance(value, list | tuple):
        out.append(_head(_ARRAY, len(value)))
        for item in value:
            _write(item, out)
    else:
        raise WrongType(
            "{field} must be null, an integer, bytes, text or a list, got {value}",
            field="value",
            value=shown(value),
        )


def deterministic_cbor(value: CborValue) -> bytes:
    """Return the one deterministic encoding of `value`: shortest heads, definite lengths.

    A tuple and a list are both an array. Deterministic means that equal values give equal bytes
    whatever program wrote them, which is what a hash needs.

    >>> deterministic_cbor((b"", (1, 500), None)).hex()
    '834082011901f4f6'

    Raises:
        WrongType: for a bool, a float, a mapping or anything else that is not listed.
        OutOfRange: for an integer beyond 64 bits.

    """
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)
