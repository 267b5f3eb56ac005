"""Buffer lines: what each device holds of the caches and states."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import Found
from app.engines.logs.llama_cpp.case import MIB, LlamaCase, mib, unchecked
from app.engines.logs.numbers import Printed
from app.engines.logs.result import LogFigure, figure


def buffer_figures(case: LlamaCase) -> Iterator[LogFigure]:
    """Yield every buffer line against the whole that its lines add up to."""
    for kind in ("KV", "RS"):
        lines = [found for found in case.reads.get("buffer", ()) if found.groups[1] == kind]
        sizes = [(found, size) for found in lines if (size := mib(found.groups[2])) is not None]
        if not sizes:
            continue
        total = sum((size.value for _, size in sizes), Fraction(0))
        yield from _buffer_lines(case, kind, sizes, total)


def _buffer_lines(
    case: LlamaCase, kind: str, sizes: list[tuple[Found, Printed]], total: Fraction
) -> Iterator[LogFigure]:
    own = _buffer_bytes(case, kind)
    why, agrees = _against(case, own, sizes, total) if own else (None, None)
    for found, size in sizes:
        text = f"{size.text} MiB on {found.groups[0]}"
        rest = {"unit": "bytes", "interval": size.bytes("MiB")}
        if own is None or why is None:
            yield figure("buffer", found, text, reasons=unchecked(case), **rest)
            continue
        yield figure(
            "buffer",
            found,
            text,
            computed=f"{float(Fraction(own, MIB)):.2f} MiB on all devices",
            agrees=agrees,
            reasons=(why,),
            **rest,
        )


def _against(
    case: LlamaCase, own: int, sizes: list[tuple[Found, Printed]], total: Fraction
) -> tuple[Note, bool | None]:
    """Hold what the lines add up to against the whole: why, and whether they agree."""
    whole = Fraction(own, MIB)
    slack = sum((item.half for _, item in sizes), Fraction(0))
    shown: dict[str, object] = {"total": f"{float(total):.2f}", "whole": f"{float(whole):.2f}"}
    if total < whole - slack:
        part = Note(
            "one_share",
            "the buffers here add up to {total} MiB of {whole}; others are not"
            " in the log, or show one device's share",
            shown,
        )
        return part, None
    # CUDA pads quantised rows and aligns tensors, so buffers may hold a little more.
    agrees = total <= whole * Fraction(1001, 1000) + slack
    if _is_latent(case) and not agrees:
        more = Note(
            "more_in_buffer",
            "the buffers hold {total} MiB, more than the {whole} of the"
            " cache's own lines: builds of the fork from early 2025 allocate the latent"
            " cache beside keys and values, and print it nowhere",
            shown,
        )
        return more, None
    note = Note(
        "buffers_sum",
        "the {count} buffers add up to the cache's {whole} MiB: a layer's"
        " cache lies with the layer, and padded rows take a little more on CUDA",
        {"count": len(sizes), "whole": f"{float(whole):.2f}"},
    )
    return note, agrees


def _is_latent(case: LlamaCase) -> bool:
    """Say whether keys and values are of unlike width: a latent that is kept expanded."""
    if case.plan is None:
        return False
    return any(
        cache.name == "c^KV" or cache.k_bytes * 2 == cache.v_bytes * 3 for cache in case.plan.caches
    )


def _buffer_bytes(case: LlamaCase, kind: str) -> int | None:
    if case.plan is None:
        return None
    if kind == "RS":
        return case.plan.recurrent.bytes if case.plan.recurrent is not None else None
    return sum(cache.bytes for cache in case.plan.caches)
