"""The plan of a llama.cpp context: what is allocated, printed, and spent beyond the need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Missing, Unsupported
from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.llama_cpp.caches import Cache, caches_of
from app.engines.llama_cpp.cells import (
    Context,
    context_of,
    flash_is_off,
    requested_tokens,
    window_cells,
)
from app.engines.llama_cpp.fork import FORK_ERA, fork_caches
from app.engines.llama_cpp.lines import fork_lines, printed_lines
from app.engines.llama_cpp.need import needed_bytes, overheads_of
from app.engines.llama_cpp.ollama import plan_engine, plan_estimate
from app.engines.llama_cpp.placement import (
    DeviceBytes,
    cache_by_device,
    layer_devices,
    states_by_device,
)
from app.engines.llama_cpp.recurrent import RecurrentMemory, recurrent_of
from app.engines.llama_cpp.result import (
    CachePlan,
    LlamaCppPlan,
    RecurrentPlan,
    cache_formula,
)
from app.engines.llama_cpp.settings import (
    MAX_CONTEXT_TOKENS,
    Flash,
    Runner,
    Settings,
    read_settings,
)
from app.engines.llama_cpp.versions import Era, LatentRows
from app.engines.llama_cpp.view import NAME as HAND_MADE
from app.engines.llama_cpp.view import geometry_of, heads_of, with_trained_context
from app.engines.request_cost import GrowingPart, RequestCost
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CacheGeometry, read_geometry
from app.readers.gguf_model import read_gguf_model

MAX_AVAILABLE_BYTES = 2**53

_NOT_COUNTED = (
    Note("weights", "the model's weights"),
    Note(
        "compute_buffers",
        "compute buffers: they depend on the graph, not on a closed formula",
    ),
    Note("output_buffer", "the output buffer: outputs × vocabulary × 4 B"),
    Note("device_pools", "the devices' own pools, contexts and alignment beyond the rows"),
    Note("projector", "a multimodal projector"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """`by_head` is the model as files list it that know no compressed attention."""

    geometry: CacheGeometry
    state: ModelState
    by_head: CacheGeometry | None = None

    def geometry_in(self, settings: Settings, era: Era) -> CacheGeometry:
        """Return the geometry that this version finds in its file.

        Raises:
            Unsupported: where every head is to be kept and nothing says how many there are.

        """
        if not self.geometry.latent or self.geometry.memory is Memory.DSV4:
            return self.geometry
        fork = settings.runner is Runner.FORK
        early = not fork and era.latent_rows is LatentRows.REFUSED
        if not early and settings.mla != 0:
            return self.geometry
        if self.by_head is not None:
            return self.by_head
        if self.geometry.architecture == HAND_MADE and not fork:
            raise Unsupported(
                "{field}: keys and values of every head are cached here (llama.cpp before"
                " 2025-04-15, and files made then), and the layers alone do not say how many there"
                " are: give the config.json or the GGUF header",
                field="version" if early else "mla",
            )
        return self.geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What one version lays out."""

    era: Era
    geometry: CacheGeometry
    context: Context
    caches: tuple[Cache, ...]
    memory: RecurrentMemory | None

    @property
    def total_bytes(self) -> int:
        memory = self.memory.size_bytes if self.memory else 0
        return sum(cache.size_bytes for cache in self.caches) + memory


def plan(
    kv: Mapping[str, object] | None,
    state: ModelState | None,
    config: Mapping[str, object] | None,
    settings: Mapping[str, object],
    available_bytes: int | None = None,
) -> LlamaCppPlan:
    """Return what llama.cpp (or Ollama, or the fork) allocates for a model.

    `kv` are the key–values of a GGUF header; without them the layers of `state` are cached as
    llama.cpp caches such layers; of `config` the heads behind compressed attention are read, and
    the longest context where the settings name none.

    Raises:
        Missing, WrongType, OutOfRange, Unknown, Conflict, Unsupported: naming the setting or key.

    """
    checked = read_settings(settings)
    if available_bytes is not None:
        checked_int(available_bytes, "available_bytes", low=0, high=MAX_AVAILABLE_BYTES)
    if kv is not None:
        model = _Model(geometry=read_geometry(kv), state=read_gguf_model(kv).state)
    elif state is not None:
        geometry = geometry_of(state)
        if checked.context_tokens is None:
            geometry = with_trained_context(geometry, config or {})
        model = _Model(geometry=geometry, state=state, by_head=heads_of(geometry, config or {}))
    else:
        raise Missing("{field} is needed: a GGUF header or layers", field="model")
    requested = requested_tokens(checked, model.geometry.context_tokens)
    requested = min(requested, MAX_CONTEXT_TOKENS)
    if checked.runner is Runner.OLLAMA_ESTIMATE:
        return plan_estimate(model.geometry, model.state, checked, requested)
    if checked.runner is Runner.OLLAMA_ENGINE:
        return plan_engine(model.geometry, model.state, checked, requested)
    return _plan(model, checked, requested, available_bytes)


def _layout(model: _Model, settings: Settings, era: Era, requested: int) -> _Layout:
    """Return what this version would lay out.

    Raises:
        Conflict: for quantised values without flash attention, which the engine refuses.

    """
    geometry = model.geometry_in(settings, era)
    hybrid = geometry.memory is Memory.HYBRID and not settings.drafts
    context = context_of(settings, era, requested, hybrid=hybrid)
    if settings.value_type.dtype.block_elements > 1 and flash_is_off(settings, era):
        raise Conflict(
            "{field} {value} needs flash attention: without it values are stored transposed, and"
            " a block of elements cannot be",
            field="cache_type_v",
            value=settings.value_type.printed,
        )
    if settings.runner is Runner.FORK:
        return _Layout(era=era, geometry=geometry, context=context, memory=None,
                       caches=fork_caches(geometry, settings, context))  # fmt: skip
    return _Layout(
        era=era,
        geometry=geometry,
        context=context,
        caches=caches_of(geometry, settings, era, context),
        memory=recurrent_of(geometry, settings, era),
    )


def _layout_of_version(
    model: _Model, settings: Settings, requested: int
) -> tuple[_Layout, list[Note]]:
    """Return the layout of the version asked for; all days that a build may be of must agree.

    Raises:
        Unsupported: when the answer depends on the side of a change on which the build lies.

    """
    eras = (FORK_ERA,) if settings.runner is Runner.FORK else settings.version.eras
    layouts = [_layout(model, settings, era, requested) for era in eras]
    chosen = layouts[-1]
    if any((item.caches, item.memory) != (chosen.caches, chosen.memory) for item in layouts):
        raise Unsupported(
            "{field} {value} lies between {first} and {last}, and a change in between matters"
            " here: give a date",
            field="version",
            value=settings.version.asked,
            first=eras[0].day.isoformat(),
            last=eras[-1].day.isoformat(),
        )
    if len(layouts) == 1:
        return chosen, []
    return chosen, [
        Note(
            "build_between",
            "build {build} is of some day between {first} and {last}; no change in between"
            " matters here",
            {
                "build": settings.version.asked,
                "first": eras[0].day.isoformat(),
                "last": eras[-1].day.isoformat(),
            },
        )
    ]


def _plan(
    model: _Model, settings: Settings, requested: int, available_bytes: int | None
) -> LlamaCppPlan:
    layout, notes = _layout_of_version(model, settings, requested)
    geometry, context, era = layout.geometry, layout.context, layout.era
    devices, device_notes = layer_devices(geometry.layers, geometry.trunk_layers, settings, era)
    shares = _shares(layout, devices)
    if settings.runner is Runner.FORK:
        printed = fork_lines(layout.caches[0], shares)
    else:
        printed = printed_lines(
            geometry,
            settings,
            era,
            context,
            caches=layout.caches,
            memory=layout.memory,
            devices=shares,
        )
    needed = None if settings.drafts else needed_bytes(model.state, settings, requested)
    assumptions = (
        *geometry.assumptions,
        *notes,
        *_assumed(settings, era),
        *device_notes,
    )
    return LlamaCppPlan(
        runner=settings.runner.value,
        version=settings.version.asked,
        n_ctx=context.tokens if not context.unified else context.cells,
        n_ctx_seq=context.cells,
        n_seq_max=context.sequences,
        kv_unified=context.unified,
        n_batch=context.batch_tokens,
        n_ubatch=context.ubatch_tokens,
        caches=tuple(_cache_plan(cache) for cache in layout.caches),
        recurrent=_recurrent_plan(layout.memory),
        total_bytes=layout.total_bytes,
        devices=shares,
        printed=printed,
        needed_bytes=needed,
        overheads=overheads_of(geometry, context, layout.caches, layout.memory, needed),
        request=_request_cost(settings, layout),
        formula=cache_formula(layout.caches, layout.memory, layout.total_bytes),
        assumptions=assumptions,
        not_counted=_NOT_COUNTED,
        available_bytes=available_bytes,
        largest_n_ctx=_largest_context(model, settings, era, available_bytes),
    )


def _shares(layout: _Layout, devices: tuple[str, ...] | None) -> tuple[DeviceBytes, ...]:
    if devices is None:
        return ()
    shares = [share for cache in layout.caches for share in cache_by_device(cache, devices)]
    if layout.memory is not None:
        shares += states_by_device(layout.memory, devices)
    return tuple(shares)


def _cache_plan(cache: Cache) -> CachePlan:
    return CachePlan(
        name=cache.name,
        layers=len(cache.layers),
        cells=cache.cells,
        streams=cache.streams,
        k_type=cache.key_type.printed,
        v_type=cache.value_type.printed if cache.value_rows else None,
        k_bytes=cache.key_bytes,
        v_bytes=cache.value_bytes,
        bytes=cache.size_bytes,
        bytes_per_cell=cache.key_bytes_per_cell + cache.value_bytes_per_cell,
        tokens_per_cell=cache.tokens_per_cell,
        window=cache.window,
    )


def _recurrent_plan(memory: RecurrentMemory | None) -> RecurrentPlan | None:
    if memory is None:
        return None
    return RecurrentPlan(
        layers=len({layer for part in memory.parts for layer in part.layers}),
        printed_layers=memory.printed_layers,
        rows=memory.rows,
        parts={part.name: part.size_bytes for part in memory.parts},
        bytes=memory.size_bytes,
    )


def _assumed(settings: Settings, era: Era) -> list[Note]:
    notes = []
    if settings.assumed_sequences:
        notes.append(Note("server_slots", "llama-server without -np: four slots in one cache"))
    if settings.flash is None or settings.flash is Flash.AUTO:
        off = flash_is_off(settings, era)
        state = Note("", "off") if off else Note("", "decided by the engine, laid out as on")
        notes.append(Note("flash_attention_default", "flash attention: {state}", {"state": state}))
    return notes


def _request_cost(settings: Settings, layout: _Layout) -> RequestCost:
    """Return what a context made for one request of a length would take, cell by cell."""
    single = replace(settings, sequences=1)
    era = layout.era
    unit = layout.context.padding_cells
    parts = []
    for cache in layout.caches:
        size = cache.key_bytes_per_cell + cache.value_bytes_per_cell
        if not size:
            continue
        most = None
        if cache.window is not None and not settings.full_windows:
            endless = context_of(single, era, MAX_CONTEXT_TOKENS, hybrid=False)
            most = window_cells(single, era, endless, cache.window, shared_stream=True)
        parts.append(
            GrowingPart(
                name=cache.name,
                bytes_per_entry=size,
                unit_entries=256 if cache.tokens_per_cell > 1 else unit,
                tokens_per_entry=cache.tokens_per_cell,
                most_entries=most,
            )
        )
    fixed = layout.memory.sequence_bytes if layout.memory else 0
    return RequestCost(fixed_bytes=fixed, parts=tuple(parts))


def _largest_context(
    model: _Model, settings: Settings, era: Era, available_bytes: int | None
) -> int | None:
    """Return the largest n_ctx that the memory holds, 0 for none; more context never costs less.

    None without a memory, and where it holds a context of any length.
    """
    if available_bytes is None:
        return None
    low, high = 0, MAX_CONTEXT_TOKENS
    if _layout(model, settings, era, high).total_bytes <= available_bytes:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if _layout(model, settings, era, middle).total_bytes <= available_bytes:
            low = middle
        else:
            high = middle - 1
    return low
