"""What a llama.cpp log's figures are made from, and what the lines of all years share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.notes import Note
from app.engines.llama_cpp import LlamaCppPlan
from app.engines.llama_cpp.lines import printed_mib
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import Printed, decimal
from app.engines.logs.result import LogFigure, figure
from app.engines.logs.sentences import inferred_note

MIB = 2**20
_DEFAULTS = {"n_ubatch": 512, "cache_type_k": "f16", "cache_type_v": "f16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCase:
    """What the figures are made from; `plan` is None where no model is known."""

    reads: Reads
    plan: LlamaCppPlan | None
    why_no_plan: Note | None
    inferred: Mapping[str, object]
    knows_context: bool = True

    @property
    def open(self) -> bool:
        """Whether the log leaves even the context open: no size can be shown to be wrong then."""
        return not self.knows_context


def unchecked(case: LlamaCase) -> tuple[Note, ...]:
    """Return why nothing was computed."""
    return (case.why_no_plan,) if case.why_no_plan is not None else ()


def inferred(case: LlamaCase) -> tuple[Note, ...]:
    """Return the sentence that names what had to be inferred for the lines to agree."""
    return inferred_note(case.inferred, _DEFAULTS)


def prints_so(printed: Printed, size_bytes: int) -> bool:
    """Say whether bytes print as this many MiB: through a 32-bit float or a 64-bit one."""
    if printed.half == Fraction(1, 200):
        own = decimal(printed_mib(size_bytes))
        return (own is not None and own.value == printed.value) or printed.holds(
            Fraction(size_bytes, MIB)
        )
    return printed.holds(Fraction(size_bytes, MIB))


def mib(text: str | None) -> Printed | None:
    """Return a printed size."""
    return decimal(text or "")


_ROUNDED = Note("float32", "MiB with two decimals, rounded from a 32-bit float as the engine does")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A printed size and the bytes that it should be."""

    printed: Printed
    bytes: int

    @property
    def agrees(self) -> bool:
        """Return whether the bytes print so."""
        return prints_so(self.printed, self.bytes)


def verdict(
    case: LlamaCase,
    name: str,
    found: Found,
    printed: str,
    *,
    parts: list[Part],
    computed: str,
    counts: bool = True,
    reasons: tuple[Note, ...] = (),
) -> LogFigure:
    """Return the figure of a line with several sizes: it agrees where all of them do."""
    agrees = counts and all(part.agrees for part in parts)
    whole = parts[0]
    difference = (
        "" if whole.agrees else f"{float(whole.printed.value) - whole.bytes / MIB:+.2f} MiB"
    )
    return figure(
        name,
        found,
        printed,
        computed=computed,
        interval=whole.printed.bytes("MiB"),
        unit="bytes",
        agrees=agrees or (None if case.open else False),
        difference=difference,
        reasons=(_ROUNDED, *reasons, *inferred(case)) if agrees else (_differs(case), *reasons),
    )


def _differs(case: LlamaCase) -> Note:
    plan = case.plan
    return Note(
        "not_reproduced",
        "with n_ctx {n_ctx}, {sequences} sequences and the rules of"
        " {version} it would be the computed figure; a setting that the log does not show"
        " differs, or the model does",
        {
            "n_ctx": plan.n_ctx if plan else "?",
            "sequences": plan.n_seq_max if plan else "?",
            "version": plan.version if plan else "?",
        },
    )
