"""PyTorch's error that a device has no room: which engine asked for it is in no word of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import ANY, Found, Reads, read_kinds
from app.engines.logs.numbers import UNITS, decimal, gib_text
from app.engines.logs.result import Advice, Explained, LogFigure, figure
from app.engines.logs.text import LogText


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What was asked for, as printed and in bytes, of a device with so many bytes and so many free.

    The last two are None where the error does not say.
    """

    found: Found
    printed: str
    asked_bytes: int
    device_bytes: int | None
    free_bytes: int | None

    @property
    def short_bytes(self) -> int | None:
        """What was missing; None where the error does not say what was free."""
        return None if self.free_bytes is None else max(self.asked_bytes - self.free_bytes, 0)

    @property
    def share(self) -> str | None:
        """What was missing as a share of the device, rounded up to three decimals."""
        if self.short_bytes is None or not self.device_bytes:
            return None
        thousandths = -(-self.short_bytes * 1000 // self.device_bytes)
        return f"{float(Fraction(thousandths, 1000)):.3f}"


def failures(reads: Reads) -> Iterator[Failure]:
    """Yield the first such error; a process stops at it."""
    for found in reads.get("out_of_memory", ())[:1]:
        size, unit, *rest = found.groups
        # Since PyTorch 2.1 "a total capacity of … of which … is free"; before, in brackets.
        total, free, free_unit = next(
            (part for part in (rest[0:3], rest[3:6]) if part and part[0]), (None, None, None)
        )
        asked = _bytes(size, unit)
        if asked:
            yield Failure(
                found=found,
                printed=f"{size} {unit} asked for" + (f", {free} {free_unit} free" if free else ""),
                asked_bytes=asked,
                device_bytes=_bytes(total, "GiB"),
                free_bytes=_bytes(free, free_unit),
            )


def _bytes(text: str | None, unit: str | None) -> int | None:
    printed = decimal(text or "")
    return None if printed is None else int(printed.value * UNITS.get(unit or "", 1))


def out_of_memory_figures(reads: Reads) -> Iterator[LogFigure]:
    """Yield what was asked for against what was free."""
    for failure in failures(reads):
        note = Note(
            "out_of_memory",
            "the device has no room for what was asked for; the error does not say whether for"
            " weights, activations or the cache",
        )
        short = failure.short_bytes
        yield figure(
            "failed_allocation",
            failure.found,
            failure.printed,
            difference="" if short is None else gib_text(short),
            unit="bytes",
            reasons=(note,),
        )


def out_of_memory_advice(reads: Reads, flag: str) -> Iterator[Advice]:
    """Yield what would have left room for the allocation that failed; `flag` is the share's."""
    for failure in failures(reads):
        if failure.short_bytes is None or failure.free_bytes is None or failure.share is None:
            continue
        yield Advice(
            change=Note(
                "lower_utilization",
                "{flag} lower by at least {share}",
                {"flag": flag, "share": failure.share},
            ),
            effect=Note(
                "leaves_room",
                "{short} more stay free on the device for what failed:"
                " {asked} were asked for, {there} were free",
                {
                    "short": gib_text(failure.short_bytes),
                    "asked": gib_text(failure.asked_bytes),
                    "there": gib_text(failure.free_bytes),
                },
            ),
        )


def explain_out_of_memory(text: LogText) -> Explained | None:
    """Return the error explained where nothing else in a log shows its engine."""
    reads, passed_over = read_kinds(text, ANY)
    figures = tuple(out_of_memory_figures(reads))
    if not figures:
        return None
    return Explained(
        engine=None,
        figures=figures,
        advice=tuple(_advice(reads)),
        missing=(
            Note(
                "engine_of_error",
                "the error is PyTorch's, on which several engines run: choose the engine, and paste"
                " its start-up lines with the error",
            ),
        ),
        lines_passed_over=passed_over,
    )


def _advice(reads: Reads) -> Iterator[Advice]:
    for failure in failures(reads):
        if failure.short_bytes is None or failure.share is None:
            continue
        yield Advice(
            change=Note(
                "leave_room",
                "{short} more of the device left free",
                {"short": gib_text(failure.short_bytes)},
            ),
            effect=Note(
                "leave_room_by_share",
                "room for what failed: vLLM's --gpu-memory-utilization or SGLang's"
                " --mem-fraction-static lower by at least {share}",
                {"share": failure.share},
            ),
        )
