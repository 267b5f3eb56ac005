"""How many cells a context gets: padding, streams, and the short cache of windowed layers.

A cell holds one position of one layer. Source: the constructor of `llama_context`
(src/llama-context.cpp), `create_memory` (src/llama-model.cpp) and src/llama-kv-cache-iswa.cpp, era
by era; measured: tests/data/engine_runs.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Missing
from app.engines.llama_cpp.settings import Flash, Settings
from app.engines.llama_cpp.versions import Era, WindowCells


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context as laid out: `cells` of each of `streams` growing caches.

    `requested_tokens` is the whole context asked for; `tokens` what it was padded to. `unified` is
    true where all sequences share one stream.
    """

    requested_tokens: int
    tokens: int
    cells: int
    streams: int
    sequences: int
    unified: bool
    batch_tokens: int
    ubatch_tokens: int
    padding_cells: int


def padded(value: int, unit: int) -> int:
    """Return `value` rounded up to a multiple of `unit`."""
    return -(-value // unit) * unit


def flash_is_off(settings: Settings, era: Era) -> bool:
    """Return whether flash attention was switched off (auto counts as on until it is resolved)."""
    if settings.flash is None:
        return not era.flash_by_default
    return settings.flash is Flash.OFF


def requested_tokens(settings: Settings, trained_tokens: int | None) -> int:
    """Return the context asked for, or the model's trained one.

    Raises:
        Missing: when neither is known.

    """
    if settings.context_tokens is not None:
        return settings.context_tokens
    if trained_tokens is None:
        raise Missing(
            "{field} is needed: the model names no trained context to take instead",
            field="n_ctx",
        )
    return trained_tokens


def context_of(settings: Settings, era: Era, requested: int, *, hybrid: bool) -> Context:
    """Return the cells and streams of the growing caches."""
    unit = era.padding_cells if flash_is_off(settings, era) else era.padding_cells_flash
    sequences = settings.sequences
    batch = max(min(requested, settings.batch_tokens), era.least_batch_tokens)
    ubatch = min(batch, settings.ubatch_tokens or batch)
    alone = settings.unified or not era.has_streams
    if alone:
        cells, streams = padded(requested, unit), 1
    elif era.pads_each_stream:
        cells, streams = padded(padded(requested, unit) // sequences, unit), sequences
    elif hybrid and era.hybrids_repeat_full_length:
        cells, streams = padded(requested, unit), sequences
    else:
        cells, streams = padded(-(-requested // sequences), unit), sequences
    return Context(
        requested_tokens=requested,
        tokens=cells * streams,
        cells=cells,
        streams=streams,
        sequences=sequences,
        unified=alone,
        batch_tokens=batch,
        ubatch_tokens=ubatch,
        padding_cells=unit,
    )


def window_cells(settings: Settings, era: Era, context: Context, window: int, *,
                 shared_stream: bool) -> int:  # fmt: skip
    """Return the cells of the windowed layers' cache, at most those of the growing one.

    A window must hold what every sequence of its stream can still see and the batch being written.
    """
    if settings.full_windows:
        return context.cells
    seen = window * (context.sequences if shared_stream else 1)
    if era.window_cells is WindowCells.WINDOW_AND_BATCH:
        return min(context.cells, padded(seen + context.batch_tokens, context.padding_cells))
    needed = seen + context.ubatch_tokens
    if era.window_cells is WindowCells.WINDOW_AND_UBATCH:
        return min(context.cells, padded(needed, context.padding_cells))
    return padded(min(context.cells, needed), 256)
