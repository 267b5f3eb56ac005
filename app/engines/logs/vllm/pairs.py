"""Which tokens line and which concurrency line are of one pool: those that follow each other.

Every worker, every engine of data parallelism and every start prints both, the tokens first.
"""

from __future__ import annotations

from fractions import Fraction

from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import Printed, count
from app.engines.logs.vllm.evidence import Evidence, concurrency_rows

Row = tuple[Found, int, Printed]


def concurrency_of(reads: Reads, evidence: Evidence, tokens: Found) -> Row | None:
    """Return the concurrency line of a tokens line; None where none follows before the next."""
    after = [found.line.number for found in reads.get(tokens.code, ())
             if found.line.number > tokens.line.number]  # fmt: skip
    end = min(after, default=None)
    for row in concurrency_rows(reads):
        number = row[0].line.number
        if number >= tokens.line.number and (end is None or number < end):
            return row
    if len(evidence.tokens) == 1 == len(evidence.concurrencies):
        return evidence.concurrencies[0]
    return None


def tokens_of(reads: Reads, evidence: Evidence, concurrency: Found) -> int | None:
    """Return the tokens of the line to which a concurrency line belongs."""
    before = [found for found in reads.get("tokens", ())
              if found.line.number <= concurrency.line.number]  # fmt: skip
    if before:
        return count(max(before, key=lambda found: found.line.number).groups[1] or "")
    return evidence.tokens[0][1] if len(evidence.tokens) == 1 else None


def go_together(tokens: int, length: int, printed: Printed) -> bool:
    """Say whether the tokens are the concurrency times its length, within its decimals."""
    return printed.holds(Fraction(tokens, length)) or printed.holds(Fraction(tokens + 1, length))
