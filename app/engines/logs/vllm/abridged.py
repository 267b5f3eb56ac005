"""A concurrency that stands alone in its line, as people shorten logs: of which length it is.

Only beside a tokens line, whose quotient by it is the length: where one multiple of 1,024 lies
within its decimals, or the length is known, it is read as the line that it was.
"""

from __future__ import annotations

from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import count, decimal
from app.engines.logs.text import LogText

_SHAPES = (b".x", b"x")
_STEP = 1024
_NAMES_CONCURRENCY = ("concurrency", "concurrency_at", "concurrency_loose")


def with_bare_concurrency(log: LogText, reads: Reads, length: int | None) -> Reads:
    """Return the lines with such a one among them; `length` is the longest request if known."""
    if any(code in reads for code in _NAMES_CONCURRENCY):
        return reads
    sizes = [(found, found.groups[1]) for found in reads.get("tokens", ())]
    sizes += [(found, found.groups[0]) for found in reads.get("pool_loose", ())]
    lines = log.shaped(_SHAPES)
    tokens = count(sizes[0][1] or "") if len(sizes) == 1 else None
    if not tokens or len(lines) != 1:
        return reads
    text = lines[0].text.rstrip("xX ")
    printed = decimal(text)
    if printed is None or printed.low <= 0:
        return reads
    if length is None:
        least = -(-tokens // (printed.high * _STEP))
        most = (tokens + 1) // (printed.low * _STEP)
        if least != most or not least:
            return reads
        length = int(least) * _STEP
    found = Found(code="concurrency", line=lines[0], groups=(f"{length:,}", text))
    return {**reads, "concurrency": [found]}
