"""The lines of a llama.cpp log against a plan, or, without one, against each other."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines.llama_cpp import CachePlan, LlamaCppPlan
from app.engines.llama_cpp.lines import printed_mib
from app.engines.llama_cpp.settings import FORK_CACHE_TYPES
from app.engines.logs.kinds import Found
from app.engines.logs.llama_cpp.buffers import buffer_figures
from app.engines.logs.llama_cpp.case import LlamaCase, Part, inferred, mib, unchecked, verdict
from app.engines.logs.llama_cpp.failures import failed_figures
from app.engines.logs.numbers import Printed
from app.engines.logs.result import LogFigure, figure


def llama_figures(case: LlamaCase) -> tuple[LogFigure, ...]:
    """Return the figures in the order of the log."""
    made = [
        *_size_figures(case),
        *_self_sizes(case),
        *_alone(case),
        *_announced(case),
        *_creating(case),
        *buffer_figures(case),
        *failed_figures(case),
    ]
    return tuple(sorted(made, key=lambda item: item.line_number))


# Lines since mid-2025: one for each cache, and one for the states.


def _size_figures(case: LlamaCase) -> Iterator[LogFigure]:
    lines = case.reads.get("size", ())
    order = 0
    for found in lines:
        size = mib(found.groups[0])
        if size is None:
            continue
        if found.groups[6] == "R" or "recurrent" in found.line.text:
            yield _states(case, found, size)
            continue
        cache = _cache_of(case.plan, order, int(found.groups[2] or 0), int(found.groups[1] or 0))
        order += 1
        yield _one_size(case, found, size, cache)


def _cache_of(plan: LlamaCppPlan | None, order: int, layers: int, cells: int) -> CachePlan | None:
    """Return the cache that a line speaks of: by its layers and cells, else by its place."""
    if plan is None:
        return None
    alike = [cache for cache in plan.caches if cache.layers == layers and cache.cells == cells]
    if alike:
        return alike[0]
    by_layers = [cache for cache in plan.caches if cache.layers == layers]
    if len(by_layers) == 1:
        return by_layers[0]
    kept = [cache for cache in plan.caches if cache.bytes]
    return kept[order] if order < len(kept) else None


def _one_size(case: LlamaCase, found: Found, size: Printed, cache: CachePlan | None) -> LogFigure:
    _, cells, layers, sequences, streams, *_ = found.groups
    key, value = mib(found.groups[8]), mib(found.groups[11])
    text = f"{size.text} MiB ({cells} cells, {layers} layers)"
    if case.plan is None:
        return _size_alone(case, found, size, key, value)
    if cache is None:
        note = Note("no_such_cache", "the plan has no cache of this kind")
        return figure(
            "kv_cache",
            found,
            text,
            agrees=False,
            unit="bytes",
            interval=size.bytes("MiB"),
            reasons=(note,),
        )
    parts = [Part(printed=size, bytes=cache.bytes)]
    parts += [
        Part(printed=own, bytes=own_bytes)
        for own, own_bytes in ((key, cache.k_bytes), (value, cache.v_bytes))
        if own is not None
    ]
    counts = (int(cells or 0), int(layers or 0)) == (cache.cells, cache.layers)
    if streams is not None and sequences is not None:
        counts = counts and int(streams) == cache.streams
    reasons: tuple[Note, ...] = ()
    if cache.window is not None:
        reasons = (
            Note(
                "window_cells",
                "windowed layers keep {cells} cells: the window of {window}, the"
                " micro-batch and padding",
                {"cells": cache.cells, "window": cache.window},
            ),
        )
    computed = (
        f"{printed_mib(cache.bytes)} MiB ({cache.cells} cells, {cache.layers} layers,"
        f" {cache.streams} streams)"
    )
    return verdict(
        case,
        "kv_cache",
        found,
        text,
        parts=parts,
        computed=computed,
        counts=counts,
        reasons=reasons,
    )


def _size_alone(
    case: LlamaCase, found: Found, size: Printed, key: Printed | None, value: Printed | None
) -> LogFigure:
    """Without a model: the parts add up, and are whole rows of so many cells and layers."""
    _, cells, layers, _, streams, *_ = found.groups
    text = f"{size.text} MiB ({cells} cells, {layers} layers)"
    rest = {"unit": "bytes", "interval": size.bytes("MiB")}
    if key is None or value is None:
        return figure("kv_cache", found, text, reasons=unchecked(case), **rest)
    adds = abs(key.value + value.value - size.value) <= key.half + value.half + size.half
    rows = int(cells or 0) * int(layers or 0) * int(streams or 1)
    widths = [
        _row_width(part, rows, kind)
        for part, kind in ((key, found.groups[7]), (value, found.groups[10]))
    ]
    note = Note(
        "parts_add_up",
        "K and V add up to the size; a row of K holds {key} values and one of V {value}",
        {"key": widths[0] or "?", "value": widths[1] or "?"},
    )
    if not adds:
        note = Note("parts_do_not_add_up", "K and V do not add up to the size")
    return figure(
        "kv_cache",
        found,
        text,
        agrees=(all(widths) or None) if adds else False,
        computed=f"{float(key.value + value.value):.2f} MiB",
        reasons=(note, *unchecked(case)),
        **rest,
    )


def _row_width(printed: Printed, rows: int, kind: str | None) -> int | None:
    """Return the values of a row that gives this size, where exactly one whole number does."""
    if not rows or kind not in FORK_CACHE_TYPES:
        return None
    try:
        dtype = dtype_named(FORK_CACHE_TYPES[kind])
    except DomainError:
        return None
    low, high = printed.bytes("MiB")
    block, block_bytes = dtype.block_elements, dtype.block_bytes
    first, last = -(-low * block // (rows * block_bytes)), high * block // (rows * block_bytes)
    wanted = [width for width in range(first, min(last, first + 64) + 1) if width % block == 0]
    return wanted[0] if len(wanted) == 1 else None


def _states(case: LlamaCase, found: Found, size: Printed) -> LogFigure:
    first, second = mib(found.groups[8]), mib(found.groups[11])
    text = f"{size.text} MiB ({found.groups[1]} cells)"
    rest = {"unit": "bytes", "interval": size.bytes("MiB")}
    note = Note(
        "states_constant",
        "recurrent states: one set a sequence (and one more for each"
        " roll-back), always f32, whatever the context",
    )
    if case.plan is None:
        return figure("recurrent_states", found, text, reasons=(note, *unchecked(case)), **rest)
    memory = case.plan.recurrent
    if memory is None:
        return figure("recurrent_states", found, text, agrees=False, reasons=(note,), **rest)
    parts = [Part(printed=size, bytes=memory.bytes)]
    parts += [
        Part(printed=own, bytes=memory.parts.get(name, 0))
        for own, name in ((first, "R"), (second, "S"))
        if own is not None
    ]
    computed = f"{printed_mib(memory.bytes)} MiB ({memory.rows} rows)"
    return verdict(
        case, "recurrent_states", found, text, parts=parts, computed=computed, reasons=(note,)
    )


# Lines up to early 2025: one for the whole cache.


def _self_sizes(case: LlamaCase) -> Iterator[LogFigure]:
    for found in case.reads.get("self_size", ()):
        size = mib(found.groups[0])
        if size is None:
            continue
        key, value = mib(found.groups[4]), mib(found.groups[7])
        text = f"{size.text} {found.groups[1]}"
        if case.plan is None:
            yield _self_alone(case, found, size, key, value, text)
            continue
        keys = sum(cache.k_bytes for cache in case.plan.caches)
        values = sum(cache.v_bytes for cache in case.plan.caches)
        if case.plan.recurrent is not None:
            keys += case.plan.recurrent.parts.get("R", 0)
            values += case.plan.recurrent.parts.get("S", 0)
        parts = [Part(printed=size, bytes=case.plan.total_bytes)]
        parts += [
            Part(printed=own, bytes=own_bytes)
            for own, own_bytes in ((key, keys), (value, values))
            if own is not None
        ]
        yield verdict(
            case,
            "kv_self_size",
            found,
            text,
            parts=parts,
            computed=f"{printed_mib(case.plan.total_bytes)} MiB",
        )


def _self_alone(
    case: LlamaCase,
    found: Found,
    size: Printed,
    key: Printed | None,
    value: Printed | None,
    text: str,
) -> LogFigure:
    rest = {"unit": "bytes", "interval": size.bytes("MiB")}
    if key is None:
        return figure("kv_self_size", found, text, reasons=unchecked(case), **rest)
    total = key.value + (value.value if value is not None else 0)
    slack = size.half + key.half + (value.half if value is not None else 0)
    note = Note("parts_sum", "its parts add up to it")
    return figure(
        "kv_self_size",
        found,
        text,
        agrees=abs(total - size.value) <= slack,
        computed=f"{float(total):.2f} MiB",
        reasons=(note, *unchecked(case)),
        **rest,
    )


def _alone(case: LlamaCase) -> Iterator[LogFigure]:
    """Size lines without their cells, as people shorten them."""
    for found in case.reads.get("size_alone", ()):
        size = mib(found.groups[0])
        if size is None:
            continue
        text = f"{size.text} MiB"
        if case.plan is None or len(case.plan.caches) != 1:
            yield figure(
                "kv_cache",
                found,
                text,
                unit="bytes",
                interval=size.bytes("MiB"),
                reasons=unchecked(case),
            )
            continue
        cache = case.plan.caches[0]
        yield verdict(
            case,
            "kv_cache",
            found,
            text,
            parts=[Part(printed=size, bytes=cache.bytes)],
            computed=f"{printed_mib(cache.bytes)} MiB",
        )
    for found in case.reads.get("states_alone", ()):
        size = mib(found.groups[0])
        if size is not None and case.plan is not None and case.plan.recurrent is not None:
            memory = case.plan.recurrent
            parts = [Part(printed=size, bytes=memory.bytes)]
            parts += [
                Part(printed=own, bytes=memory.parts.get(name, 0))
                for own, name in ((mib(found.groups[1]), "R"), (mib(found.groups[2]), "S"))
                if own is not None
            ]
            yield verdict(
                case,
                "recurrent_states",
                found,
                f"{size.text} MiB",
                parts=parts,
                computed=f"{printed_mib(memory.bytes)} MiB",
            )


def _announced(case: LlamaCase) -> Iterator[LogFigure]:
    for found in case.reads.get("announced", ())[:8]:
        cells = int(found.groups[0] or 0)
        if case.plan is None or not case.plan.caches:
            yield figure("cells", found, f"{cells:,} cells", unit="cells", reasons=unchecked(case))
            continue
        own = case.plan.caches[0].cells
        note = Note("padded_context", "the context asked for, padded as that version pads it")
        yield figure(
            "cells",
            found,
            f"{cells:,} cells",
            computed=f"{own:,} cells",
            unit="cells",
            agrees=own == cells,
            reasons=(note,),
        )


def _creating(case: LlamaCase) -> Iterator[LogFigure]:
    for found in case.reads.get("creating", ())[:16]:
        name, cells = (found.groups[0] or "").strip(), int(found.groups[1] or 0)
        text = f"{cells:,} cells ({name})"
        caches = (
            {}
            if case.plan is None
            else {cache.name.removeprefix("raw "): cache for cache in case.plan.caches}
        )
        cache = caches.get(name)
        if cache is None:
            yield figure("cells", found, text, unit="cells", reasons=unchecked(case))
            continue
        note = Note(
            "swa_cells",
            "a windowed cache holds the window, the micro-batch and padding; a"
            " larger --ubatch-size makes it longer",
        )
        reasons = (note,) if cache.window is not None else ()
        yield figure(
            "cells",
            found,
            text,
            computed=f"{cache.cells:,} cells",
            unit="cells",
            agrees=cells == cache.cells,
            reasons=(*reasons, *inferred(case)),
        )
