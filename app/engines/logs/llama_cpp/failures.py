"""Allocations that failed: what was asked for, what it was of, and how it would take less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines.llama_cpp.settings import GGML_CACHE_TYPES
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.llama_cpp.case import MIB, LlamaCase, mib, unchecked
from app.engines.logs.result import Advice, LogFigure, figure

_SMALLER = "q8_0"


def failed_bytes(reads: Reads) -> tuple[int, int | None] | None:
    """Return the bytes whose allocation failed, and those that were free where a line says so.

    Of several the last counts; 0 where a line tells of a failure without its size. None without
    such a line.
    """
    asked = None
    for _, low, high in _failed(reads):
        asked = (low + high) // 2
    if asked is None and "failed_cache" not in reads:
        return None
    free = [int(found.groups[1] or 0) * MIB for found in reads.get("device_free", ())]
    return asked or 0, max(free) if free else None


def _failed(reads: Reads) -> Iterator[tuple[Found, int, int]]:
    """Yield each line with a size, and the bytes that its digits leave open."""
    lines: list[tuple[Found, int, int]] = []
    for found in reads.get("failed_buffer", ()):
        size = mib(found.groups[0])
        if size is not None:
            lines.append((found, *size.bytes("MiB")))
    for found in reads.get("failed_size", ()):
        size_bytes = int(found.groups[1] or 0)
        lines.append((found, size_bytes, size_bytes))
    return iter(sorted(lines, key=lambda item: item[0].line.number))


def failed_figures(case: LlamaCase) -> Iterator[LogFigure]:
    """Yield what could not be had: against the plan's caches where one is known, else unchecked."""
    for found, low, high in _failed(case.reads):
        text, device = found.groups[:2] if found.code == "failed_buffer" else found.groups[1::-1]
        shown = f"{text} MiB on device {device}" if low < high else f"{low:,} B on {device}"
        whole = 0 if case.plan is None else sum(cache.bytes for cache in case.plan.caches)
        sizes = {whole, *(cache.bytes for cache in case.plan.caches)} if case.plan else set()
        agreeing = sorted(size for size in sizes - {0} if low <= size <= high)
        rest = {"unit": "bytes", "interval": (low, high)}
        if agreeing:
            note = Note("failed_cache", "what could not be had is the cache of this context")
            yield figure("failed_allocation", found, shown, agrees=True, reasons=(note,),
                         computed=f"{agreeing[-1] / MIB:.2f} MiB", **rest)  # fmt: skip
            continue
        note = Note(
            "failed_buffer",
            "what could not be had in one piece: a part of the weights, of the cache or of the"
            " compute buffers on one device",
        )
        more = unchecked(case)
        if whole:
            more = (
                Note("failed_beside", "the whole cache takes {whole}",
                     {"whole": f"{whole / MIB:,.2f} MiB"}),
            )  # fmt: skip
        yield figure("failed_allocation", found, shown, reasons=(note, *more), **rest)


def room_advice(asked: int) -> Advice:
    """Return the advice to make room for a buffer of so many bytes."""
    size = f"{asked / MIB:,.2f} MiB"
    return Advice(
        change=Note(
            "free_memory",
            "{asked} more on that device: fewer layers on it"
            " (--gpu-layers, --tensor-split), or another's memory freed",
            {"asked": size},
        ),
        effect=Note("allocation_passes", "what failed was one buffer of {asked}", {"asked": size}),
    )


def advice_alone(reads: Reads, known: Mapping[str, object]) -> Iterator[Advice]:
    """Yield what helps without a model: room, and where a cache failed, what makes it smaller."""
    failed = failed_bytes(reads)
    if failed is None or not failed[0]:
        return
    asked, _ = failed
    yield room_advice(asked)
    if not any("cache" in found.line.text.lower() for found in reads.get("failed_cache", ())):
        return
    share = _share_of_smaller(known)
    if share is not None:
        yield Advice(
            change=Note("cache_types", "--cache-type-k q8_0 --cache-type-v q8_0"
                        " (with flash attention)"),
            effect=_buffer_takes(asked, share),
        )  # fmt: skip
    context = known.get("n_ctx")
    if isinstance(context, int) and context > 1:
        yield Advice(
            change=Note("ctx_size", "--ctx-size {tokens}", {"tokens": context // 2}),
            effect=Note(
                "buffer_halves",
                "about half of it, {size}, where every layer keeps the whole context",
                {"size": f"{asked / 2 / MIB:,.2f} MiB"},
            ),
        )


def _share_of_smaller(known: Mapping[str, object]) -> Fraction | None:
    """Return what a cache of q8_0 takes of one of the types that are set; None if no less."""
    widths = []
    for name in ("cache_type_k", "cache_type_v", None):
        kind = _SMALLER if name is None else str(known.get(name, "f16"))
        try:
            dtype = dtype_named(GGML_CACHE_TYPES.get(kind, kind))
        except DomainError:
            return None
        widths.append(Fraction(dtype.block_bytes, dtype.block_elements))
    # Keys and values may be of unlike width: only where both are of one type the share is known.
    if widths[0] != widths[1] or widths[2] >= widths[0]:
        return None
    return widths[2] / widths[0]


def _buffer_takes(asked: int, share: Fraction) -> Note:
    return Note(
        "buffer_takes",
        "the buffer then takes {size} instead of {before}",
        {"size": f"{float(asked * share) / MIB:,.2f} MiB", "before": f"{asked / MIB:,.2f} MiB"},
    )
