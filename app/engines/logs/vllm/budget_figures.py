"""The budget of the device, where a log gives its terms: each sum against the terms beside it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import Printed, decimal, gib_text
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.evidence import GIB_DECIMALS, Memory

_GIB = 2**30


def budget_figures(case: Case) -> Iterator[LogFigure]:
    """Yield the sum of the terms that a release prints beside the memory for the cache."""
    reads = case.reads
    yield from _share_of_device(reads)
    yield from _budget_of_v0(reads)
    yield from _budget_of_results(reads)
    yield from _budget_of_usage(case)


def _first(reads: Reads, code: str, group: int = 0) -> tuple[Found, Printed] | None:
    for found in reads.get(code, ()):
        printed = decimal(found.groups[group] or "", least_decimals=GIB_DECIMALS)
        if printed is not None:
            return found, printed
    return None


def _sum(
    name: str, found: Found, printed: Printed, terms: list[tuple[int, Printed]], formula: Note
) -> LogFigure:
    """Return the check that a printed memory is the sum of the other printed terms."""
    value = sum((sign * term.value for sign, term in terms), Fraction(0))
    slack = sum((term.half for _, term in terms), printed.half)
    agrees = abs(value - printed.value) <= slack
    difference = "" if agrees else gib_text((printed.value - value) * _GIB)
    off = Note(
        "budget_differs",
        "the printed terms leave {sum}; the other {difference} are in none of them, so a term is"
        " missing here, or the line is no engine's",
        {"sum": gib_text(value * _GIB), "difference": difference},
    )
    note = Note(
        "budget",
        "{formula}: each term is rounded, so the sum may be off by {slack} GiB",
        {"formula": formula, "slack": f"{float(slack):.2f}"},
    )
    return figure(
        name,
        found,
        f"{printed.text} GiB",
        computed=f"{float(value):.2f} GiB",
        agrees=agrees,
        unit="bytes",
        interval=printed.bytes("GiB"),
        difference=difference,
        reasons=(note,) if agrees else (off, note),
    )


def _share_of_device(reads: Reads) -> Iterator[LogFigure]:
    for found in reads.get("budget", ())[:1]:
        total, share, size = (decimal(text or "") for text in found.groups)
        if total is None or share is None or size is None:
            return
        # Both factors are rounded, and so is what they make.
        half = total.half * share.high + total.high * share.half
        product = Printed(text="", value=total.value * share.value, half=half)
        formula = Note("", "total × utilisation")
        yield _sum("device_share", found, size, [(1, product)], formula)


def _budget_of_v0(reads: Reads) -> Iterator[LogFigure]:
    rest, total = _first(reads, "rest"), _first(reads, "budget", 2)
    terms = [
        (code, _first(reads, code)) for code in ("rest_weights", "rest_non_torch", "rest_peak")
    ]
    if rest is None or total is None or any(term is None for _, term in terms):
        return
    parts = [(1, total[1]), *((-1, term[1]) for _, term in terms if term is not None)]
    yield _sum(
        "budget",
        rest[0],
        rest[1],
        parts,
        Note("", "the share of the device − weights − non-torch − activation peak"),
    )


def _budget_of_results(reads: Reads) -> Iterator[LogFigure]:
    for found in reads.get("profile_results", ())[:1]:
        total, size, share = (decimal(text or "") for text in found.groups)
        peak, other = _first(reads, "profile_peak"), _first(reads, "profile_non_torch")
        if total is None or size is None or share is None or peak is None or other is None:
            return
        used = Printed(text="", value=total.value * share.value, half=total.half * share.value)
        parts = [(1, used), (-1, peak[1]), (-1, other[1])]
        yield _sum(
            "budget",
            found,
            size,
            parts,
            Note("", "total × utilisation − torch peak (weights and activations) − non-torch"),
        )


def _budget_of_usage(case: Case) -> Iterator[LogFigure]:
    """Hold the memory for the cache against what the share leaves: it may not be more.

    vLLM 0.33.0 v1/worker/gpu_worker.py: requested − weights − activation peak − non-torch, and
    since 0.21 − an estimate of the graphs. Less than that is left where a term is not printed.
    """
    for found in case.reads.get("usage", ())[:1]:
        memory = _memory_beside(case, found)
        _, desired, weights, _, peak, non_torch, _ = (
            decimal(text or "", least_decimals=GIB_DECIMALS) for text in found.groups
        )
        if memory is None or desired is None or weights is None or peak is None:
            return
        parts = [(1, desired), (-1, weights), (-1, peak)]
        parts += [(-1, non_torch)] if non_torch is not None else []
        left = sum((sign * term.value for sign, term in parts), Fraction(0))
        slack = sum((term.half for _, term in parts), memory.printed.half)
        if memory.printed.value < left - slack:
            return
        formula = Note("", "the share of the device − weights − activation peak − non-torch")
        yield _sum("budget", memory.found, memory.printed, parts, formula)


def _memory_beside(case: Case, usage: Found) -> Memory | None:
    """Return the memory line of the rank that printed what it used; None where that is not one."""
    if case.evidence.memory_bytes is not None:
        return None
    own = [item for item in case.evidence.memories if item.found.line.rank == usage.line.rank]
    return own[0] if len(own) == 1 else None
