"""What the model needs for the sequences asked for, and where the rest of an allocation goes."""

from __future__ import annotations

from app.domain.errors import DomainError
from app.domain.formats import KvFormats, state_groups
from app.domain.state import ModelState
from app.engines.llama_cpp.caches import Cache
from app.engines.llama_cpp.cells import Context
from app.engines.llama_cpp.recurrent import RecurrentMemory
from app.engines.llama_cpp.settings import Settings
from app.engines.request_cost import Overhead
from app.readers.gguf_geometry import CacheGeometry


def needed_bytes(state: ModelState, settings: Settings, requested: int) -> int | None:
    """Return the need of all sequences, each at an even share of the context.

    None where a row of the model does not fit the blocks of the cache types.
    """
    tokens = requested // settings.sequences
    formats = KvFormats.same(settings.key_type.dtype, settings.value_type.dtype)
    try:
        one = sum(
            group.position_bytes * group.state.kept_tokens(tokens) + group.fixed_bytes
            for group in state_groups(state, formats)
        )
    except DomainError:
        return None
    return one * settings.sequences


def _kept_cells(cache: Cache, geometry: CacheGeometry, tokens: int) -> int:
    """Return the cells of a cache that hold what one sequence of so many tokens still needs."""
    if cache.window is None:
        return tokens // cache.tokens_per_cell
    if geometry.chunked:
        return tokens % cache.window
    return min(tokens, cache.window - 1)


def overheads_of(
    geometry: CacheGeometry,
    context: Context,
    caches: tuple[Cache, ...],
    memory: RecurrentMemory | None,
    needed: int | None,
) -> tuple[Overhead, ...]:
    """Return what is spent beyond the need; the parts add up to the difference exactly."""
    if needed is None:
        return ()
    tokens = context.requested_tokens // context.sequences
    total = sum(cache.size_bytes for cache in caches)
    padding = windows = 0
    for cache in caches:
        kept = _kept_cells(cache, geometry, tokens) * context.sequences
        unused = cache.cells * cache.streams - kept
        size = unused * (cache.key_bytes_per_cell + cache.value_bytes_per_cell)
        if cache.window is None:
            padding += size
        else:
            windows += size
    rollback = 0
    if memory is not None:
        total += memory.size_bytes
        rollback = memory.rollback_bytes
    rest = total - needed - padding - windows - rollback
    parts = (
        Overhead(
            code="padding_cells",
            bytes=padding,
            text="cells beyond the tokens asked for: the padding of each stream",
        ),
        Overhead(
            code="window_cells",
            bytes=windows,
            text="cells of windowed layers beyond what the next query sees: room for the batch"
            " being written, and padding",
        ),
        Overhead(
            code="rollback_states",
            bytes=rollback,
            text="copies of the recurrent states, to take back drafted tokens",
        ),
        Overhead(
            code="left_out",
            bytes=min(rest, 0),
            text="index keys that this version or context does not keep",
        ),
        Overhead(
            code="wider_rows",
            bytes=max(rest, 0),
            text="rows beyond the model's own: heads or values of latent layers, values of index"
            " keys or padded to the widest layer, windows kept in f16, or windowed layers at full"
            " length",
        ),
    )
    return tuple(part for part in parts if part.bytes)
