"""Ollama's own two ways: the estimate that it prints before loading, and the cache of its engine.

Estimate: `GraphSize` in fs/ggml/ggml.go and llm/memory.go (to 0.29); it takes a quantised element
for a whole or half byte, which blocks are not. Engine: kvcache/causal.go (March 2025 to May 2026).
Both of https://github.com/ollama/ollama; measured: tests/data/engine_logs.json.
"""

from __future__ import annotations

from fractions import Fraction

from app.domain.errors import Unsupported
from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.llama_cpp.cells import padded
from app.engines.llama_cpp.need import needed_bytes
from app.engines.llama_cpp.result import CachePlan, LlamaCppPlan
from app.engines.llama_cpp.settings import CacheType, Flash, Settings
from app.engines.request_cost import GrowingPart, Overhead, RequestCost
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CacheGeometry

# kvCacheBytesPerElement in fs/ggml/ggml.go.
_ESTIMATED_BYTES = {"f16": Fraction(2), "bf16": Fraction(2), "q8_0": Fraction(1),
                    "q4_0": Fraction(1, 2), "f32": Fraction(4)}  # fmt: skip
_REAL_BYTES = {"q8_0": "34/32", "q4_0": "18/32"}
# What blocks with their scales take over what the estimate counts: 34/32 B over 1, 18/32 over 1/2.
REAL_OVER_ESTIMATED = {"q8_0": Fraction(17, 16), "q4_0": Fraction(9, 8)}
_GPT_OSS_CELLS = 4096
_GEMMA3_FULL_EVERY = 6
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


def human_bytes(size_bytes: int) -> str:
    """Return a size as Ollama prints it (`HumanBytes2`): one decimal, GiB from 1 GiB on."""
    for name, unit in (("GiB", _GIB), ("MiB", _MIB), ("KiB", _KIB)):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def _element_bytes(kind: CacheType) -> Fraction:
    size = _ESTIMATED_BYTES.get(kind.printed)
    if size is None:
        raise Unsupported("{field} {value} is not among the types of Ollama's estimate: {known}",
                          field="kv_cache_type", value=kind.printed,
                          known=", ".join(_ESTIMATED_BYTES))  # fmt: skip
    return size


def _check(geometry: CacheGeometry) -> None:
    if geometry.memory not in {Memory.ATTENTION, Memory.HYBRID, Memory.RECURRENT}:
        raise Unsupported("{field}: Ollama's way with {architecture} was not read",
                          field="runner", architecture=geometry.architecture)  # fmt: skip


def _short_layers(geometry: CacheGeometry) -> tuple[bool, ...]:
    """Return the layers that Ollama counts at window length: Gemma 3's and gpt-oss's alone."""
    layers = range(geometry.layers)
    if geometry.architecture == "gemma3":
        return tuple((layer + 1) % _GEMMA3_FULL_EVERY != 0 for layer in layers)
    if geometry.architecture == "gpt-oss":
        return tuple(layer % 2 == 0 for layer in layers)
    return (False,) * geometry.layers


def _plan(
    settings: Settings,
    requested: int,
    needed: int | None,
    *,
    caches: list[CachePlan],
    printed: str,
    unit: int,
    notes: tuple[Note, ...],
) -> LlamaCppPlan:
    """Return the answer around these caches; what goes beyond the need is one figure here."""
    total = sum(cache.bytes for cache in caches)
    overheads: tuple[Overhead, ...] = ()
    if needed is not None and total != needed:
        overheads = (
            Overhead(
                code="beyond_need",
                bytes=total - needed,
                text="cells for the batch and padding, windows counted at full length, and how"
                " Ollama counts an element",
            ),
        )
    parts = tuple(
        GrowingPart(name=cache.name, bytes_per_entry=cache.bytes_per_cell, unit_entries=unit)
        for cache in caches
        if cache.name == "full"
    )
    fixed = sum(cache.bytes for cache in caches if cache.name != "full")
    return LlamaCppPlan(
        runner=settings.runner.value,
        version=settings.version.asked,
        n_ctx=requested,
        n_ctx_seq=requested // settings.sequences,
        n_seq_max=settings.sequences,
        kv_unified=True,
        n_batch=settings.batch_tokens,
        n_ubatch=settings.batch_tokens,
        caches=tuple(caches),
        recurrent=None,
        total_bytes=total,
        printed=(printed,),
        needed_bytes=needed,
        overheads=overheads,
        request=RequestCost(fixed_bytes=fixed, parts=parts),
        formula=_formula(caches),
        assumptions=notes,
        not_counted=(
            Note("weights", "the model's weights"),
            Note("graph", "the graph's memory"),
        ),
    )


def plan_estimate(
    geometry: CacheGeometry, state: ModelState, settings: Settings, requested: int
) -> LlamaCppPlan:
    """Return Ollama's estimate of the cache, before anything is loaded.

    Raises:
        Unsupported: for a cache type or model that the estimate does not know.

    """
    _check(geometry)
    key, value = _element_bytes(settings.key_type), _element_bytes(settings.value_type)
    short = _short_layers(geometry)
    window = _GPT_OSS_CELLS if geometry.architecture == "gpt-oss" else geometry.window
    short_cells = settings.sequences * window + settings.batch_tokens
    caches = []
    for name, cells, wanted in (
        ("full", requested, False),
        ("window", short_cells, True),
    ):
        layers = [i for i in range(geometry.layers) if short[i] is wanted and geometry.attention[i]]
        keys = int(sum(geometry.key_row(i) for i in layers) * key * cells)
        values = int(sum(geometry.value_row(i) for i in layers) * value * cells)
        if layers:
            caches.append(_cache(name, len(layers), cells, settings, keys, values))
    states = sum(geometry.recurrent) * (geometry.state_row_r + geometry.state_row_s) * 4
    if states:
        caches.append(_cache("states", sum(geometry.recurrent), 1, settings, states, 0))
    notes = [Note("estimate", "an estimate: Ollama prints it before the cache exists")]
    if (real := _REAL_BYTES.get(settings.key_type.printed)) is not None:
        notes.append(
            Note(
                "estimate_bytes",
                "the estimate counts {taken} B for an element of {printed}; the cache needs {real}",
                {"printed": settings.key_type.printed, "taken": str(key), "real": real},
            )
        )
    total = sum(cache.bytes for cache in caches)
    printed = f'memory.required.kv="{human_bytes(total)}"'
    needed = needed_bytes(state, settings, requested)
    return _plan(
        settings, requested, needed, caches=caches, printed=printed, unit=1, notes=tuple(notes)
    )


def plan_engine(
    geometry: CacheGeometry, state: ModelState, settings: Settings, requested: int
) -> LlamaCppPlan:
    """Return what Ollama's own engine allocates.

    A windowed layer keeps, for each sequence, the window (one more when there are several
    sequences), and the batch once; gpt-oss asks for 4,096 cells although its window is 128.

    Raises:
        Unsupported: for a model that the engine's rules were not read for.

    """
    _check(geometry)
    if geometry.memory is not Memory.ATTENTION or geometry.latent:
        raise Unsupported("{field}: the engine's cache for {architecture} was not read",
                          field="runner", architecture=geometry.architecture)  # fmt: skip
    unit = 32 if settings.flash is Flash.OFF or settings.flash is None else 256
    sequences = settings.sequences
    capacity = requested // sequences
    seen = geometry.window + (1 if sequences > 1 else 0)
    if geometry.architecture == "gpt-oss":
        seen = max(seen, _GPT_OSS_CELLS)
    seen = min(seen, capacity)
    cells = {
        False: padded(sequences * capacity, unit),
        True: padded(sequences * seen + settings.batch_tokens, unit),
    }
    caches = []
    for name, windowed in (("full", False), ("window", True)):
        layers = [
            i for i in range(geometry.layers)
            if geometry.owned[i] and (bool(geometry.window) and geometry.windowed[i]) is windowed
        ]  # fmt: skip
        if not layers:
            continue
        key = sum(settings.key_type.dtype.bytes_for(geometry.key_row(i)) for i in layers)
        value = sum(settings.value_type.dtype.bytes_for(geometry.value_row(i)) for i in layers)
        size = cells[windowed]
        caches.append(_cache(name, len(layers), size, settings, key * size, value * size))
    total = sum(cache.bytes for cache in caches)
    printed = f'msg="kv cache" device=… size="{human_bytes(total)}"'
    needed = needed_bytes(state, settings, requested)
    note = Note("one_device", "printed by device; the sum over all devices is shown here")
    return _plan(
        settings, requested, needed, caches=caches, printed=printed, unit=unit, notes=(note,)
    )


def _cache(
    name: str, layers: int, cells: int, settings: Settings, keys: int, values: int
) -> CachePlan:
    return CachePlan(
        name=name,
        layers=layers,
        cells=cells,
        streams=1,
        k_type=settings.key_type.printed,
        v_type=settings.value_type.printed,
        k_bytes=keys,
        v_bytes=values,
        bytes=keys + values,
        bytes_per_cell=(keys + values) // cells,
    )


def _formula(caches: list[CachePlan]) -> tuple[str, ...]:
    lines = [
        f"{cache.name}: {cache.layers} layers, {cache.bytes_per_cell} B a cell"
        f" × {cache.cells} cells = {cache.bytes} B"
        for cache in caches
    ]
    return (*lines, f"total = {sum(cache.bytes for cache in caches)} B")
