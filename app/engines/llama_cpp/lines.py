"""The start-up lines about the caches, as each era of llama.cpp prints them.

Sizes in the "size" lines go through a 32-bit float, those of the buffers through a 64-bit one
(src/llama-kv-cache.cpp); both have two decimals.
"""

from __future__ import annotations

from datetime import date

from app.engines.float32 import float32
from app.engines.llama_cpp.caches import Cache
from app.engines.llama_cpp.cells import Context
from app.engines.llama_cpp.placement import DeviceBytes
from app.engines.llama_cpp.recurrent import RecurrentMemory
from app.engines.llama_cpp.settings import Settings
from app.engines.llama_cpp.versions import Era, Lines
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CSA_RATIO, HCA_RATIO, CacheGeometry

_MIB = 2**20


def printed_mib(size_bytes: int) -> str:
    """Return MiB with two decimals as the size lines print it: from a 32-bit float."""
    return f"{float32(size_bytes) / _MIB:.2f}"


def _size(size_bytes: int) -> str:
    return printed_mib(size_bytes).rjust(7)


def _buffer_lines(
    prefix: str, cache: str, devices: tuple[DeviceBytes, ...], what: str = "KV"
) -> list[str]:
    return [
        f"{prefix}: {share.device:>10} {what} buffer size = {share.buffer_bytes / _MIB:8.2f} MiB"
        for share in devices
        if share.cache == cache
    ]


def _pair(cache: Cache) -> str:
    return (
        f"K ({cache.key_type.printed}): {_size(cache.key_bytes)} MiB,"
        f" V ({cache.value_type.printed}): {_size(cache.value_bytes)} MiB"
    )


def _self_size(cache: Cache, era: Era, settings: Settings, *, shifts: bool) -> list[str]:
    """Return the lines of the years in which there was one cache."""
    if era.lines is Lines.SELF_SIZE_MB:
        return [f"llama_init_from_file: kv self size  = {_size(cache.size_bytes)} MB"]
    lines = []
    announced = (
        f"kv_size = {cache.cells}, offload = {int(settings.offload)},"
        f" type_k = '{cache.key_type.printed}', type_v = '{cache.value_type.printed}',"
        f" n_layer = {len(cache.layers)}, can_shift = {int(shifts)}"
    )
    if era.lines is Lines.SELF_SIZE:
        if era.day >= date(2024, 12, 18):
            lines.append(f"llama_kv_cache_init: {announced}")
        renamed = era.day >= date(2025, 1, 12)
        prefix = "llama_init_from_model" if renamed else "llama_new_context_with_model"
    elif era.lines is Lines.CONTEXT_SELF_SIZE:
        lines.append(f"init: {announced}")
        prefix = "llama_context"
    else:
        lines.append(f"llama_kv_cache_unified: {announced}")
        prefix = "llama_kv_cache_unified"
    size = _size(cache.size_bytes)
    return [*lines, f"{prefix}: KV self size  = {size} MiB, {_pair(cache)}"]


def fork_lines(cache: Cache, devices: tuple[DeviceBytes, ...]) -> tuple[str, ...]:
    """Return the lines of ik_llama.cpp."""
    lines = _buffer_lines("llama_kv_cache_init", cache.name, devices)
    head = f"llama_new_context_with_model: KV self size  = {_size(cache.size_bytes)} MiB"
    if cache.name == "c^KV":
        second = "kv^T: not used"
        if cache.value_rows:
            second = f"kv^T ({cache.value_type.printed}): {_size(cache.value_bytes)} MiB"
        own = f"c^KV ({cache.key_type.printed}): {_size(cache.key_bytes)} MiB"
        return (*lines, f"{head}, {own}, {second}")
    return (*lines, f"{head}, {_pair(cache)}")


def _cache_lines(
    cache: Cache, era: Era, context: Context, devices: tuple[DeviceBytes, ...]
) -> list[str]:
    own = "llama_kv_cache" if era.lines is Lines.SIZE else "llama_kv_cache_unified"
    sequences = f"{context.sequences:2d}"
    if era.has_streams:
        sequences += f"/{cache.streams}"
    counts = f"{cache.cells:6d} cells, {len(cache.layers):3d} layers, {sequences} seqs"
    return [
        *_buffer_lines(own, cache.name, devices),
        f"{own}: size = {_size(cache.size_bytes)} MiB ({counts}), {_pair(cache)}",
    ]


_DSV4_NAMES = {
    "CSA": "CSA compressed",
    "HCA": "HCA compressed",
    "indexer": "lightning-indexer",
}


def _announcement(
    cache: Cache, geometry: CacheGeometry, era: Era, context: Context, *, indexed: bool
) -> list[str]:
    """Return the line that comes before a cache is created, where there is one."""
    own = "llama_kv_cache" if era.lines is Lines.SIZE else "llama_kv_cache_unified"
    name = cache.name.removeprefix("raw ")
    lines = []
    if cache.name == "raw non-SWA":
        lines.append("llama_kv_cache_dsv4: creating DSV4 raw KV cache")
    if name in {"non-SWA", "SWA"}:
        lines.append(f"{own}_iswa: creating {name:>7} KV cache, size = {cache.cells} cells")
    elif geometry.memory is Memory.DSV4:
        groups = max(1, -(-context.cells // cache.tokens_per_cell))
        lines.append(
            f"llama_kv_cache_dsv4: creating DSV4 {_DSV4_NAMES[cache.name]} KV cache,"
            f" size = {groups} cells"
        )
    elif indexed:
        part = "indexer" if cache.name == "indexer" else "main"
        lines.append(
            f"llama_kv_cache_{geometry.memory.value}: creating {part} KV cache,"
            f" size = {cache.cells} cells"
        )
    return lines


def _recurrent_lines(
    memory: RecurrentMemory, era: Era, devices: tuple[DeviceBytes, ...]
) -> list[str]:
    first, second = memory.parts
    counts = f"{memory.sequences:6d} cells, {memory.printed_layers:3d} layers"
    sequences = f"{memory.sequences:2d} seqs"
    if era.day >= date(2026, 6, 1):
        sequences += f" {memory.rollback_states:2d} rs_seq"
    own = "llama_memory_recurrent"
    rows = f"R (f32): {_size(first.size_bytes)} MiB, S (f32): {_size(second.size_bytes)} MiB"
    return [
        *_buffer_lines(own, "recurrent", devices, "RS"),
        f"{own}: size = {_size(memory.size_bytes)} MiB ({counts}, {sequences}), {rows}",
    ]


def _compressor_lines(memory: RecurrentMemory, geometry: CacheGeometry) -> list[str]:
    width, index = geometry.k_dims[0], geometry.index_dim
    shapes = {
        "CSA": ("csa", CSA_RATIO, 2 * CSA_RATIO, 2 * width),
        "HCA": ("hca", HCA_RATIO, HCA_RATIO, width),
        "indexer": ("lid", CSA_RATIO, 2 * CSA_RATIO, 2 * index),
    }
    lines = []
    for part in memory.parts:
        name, ratio, rows, columns = shapes[part.name]
        lines.append(
            f"llama_dsv4_comp_state: {name} ratio = {ratio}, state = {rows} x {columns},"
            f" streams = {memory.sequences}, rs_seq = {memory.rollback_states},"
            f" layers = {len(part.layers)}, size = {part.size_bytes / _MIB:7.2f} MiB"
        )
    return lines


def printed_lines(
    geometry: CacheGeometry,
    settings: Settings,
    era: Era,
    context: Context,
    *,
    caches: tuple[Cache, ...],
    memory: RecurrentMemory | None,
    devices: tuple[DeviceBytes, ...],
) -> tuple[str, ...]:
    """Return the lines about caches and states, in the order in which they appear."""
    lines: list[str] = []
    indexed = any(cache.name == "indexer" for cache in caches)
    for cache in caches:
        if era.lines < Lines.UNIFIED_SIZE:
            if era.lines > Lines.SELF_SIZE_MB:
                prefix = "init" if era.lines is Lines.CONTEXT_SELF_SIZE else "llama_kv_cache_init"
                lines += _buffer_lines(prefix, cache.name, devices)
            lines += _self_size(cache, era, settings, shifts=geometry.latent_dim == 0)
            continue
        lines += _announcement(cache, geometry, era, context, indexed=indexed)
        lines += _cache_lines(cache, era, context, devices)
    if memory is None:
        return tuple(lines)
    if memory.is_compressor:
        return (*lines, *_compressor_lines(memory, geometry))
    return (*lines, *_recurrent_lines(memory, era, devices))
