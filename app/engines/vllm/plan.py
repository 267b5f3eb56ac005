"""A model, settings and bytes in; what vLLM would allocate and print out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing
from app.domain.notes import Note
from app.domain.state import CrossAttention, ModelState
from app.engines.vllm.blocks import BlockGrowth
from app.engines.vllm.capacity import Pool, PoolSettings, fill_pool, has_state_layers
from app.engines.vllm.explain import NOT_COUNTED, formulas_of, pool_notes
from app.engines.vllm.model_specs import ModelSpecs, specs_of_model, with_speculation
from app.engines.vllm.model_view import ModelView, view_of
from app.engines.vllm.planned import PlannedGroup, PlannedRank, VllmPlan
from app.engines.vllm.printed import printed_concurrency, printed_lines, printed_tokens
from app.engines.vllm.settings import (
    BLACKWELL,
    HOPPER,
    MAX_BYTES,
    VllmSettings,
    read_settings,
)
from app.engines.vllm.specs import ChunkedSpec, CrossSpec, RequestBounds, SlidingSpec
from app.engines.vllm.spending import request_bytes
from app.engines.vllm.types import Group

_GIB = 2**30
# What a server takes unless told: tokens in a batch by the device's major capability, for the
# data-centre device of each, and sequences (vLLM 0.33.0 engine/arg_utils.py).
_BATCHED_TOKENS = {HOPPER: 8192, BLACKWELL: 16384}
_SEQUENCES = {HOPPER: 1024, BLACKWELL: 1024}
_SMALL_BATCHED_TOKENS = 2048
_SMALL_SEQUENCES = 256
# The length that vLLM takes where a config names none.
DEFAULT_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planning:
    """Everything that the answer is put together from.

    `known` says that the blocks are decided, by bytes or by hand; `starts` that the engine runs.
    """

    view: ModelView
    settings: VllmSettings
    specs: ModelSpecs
    pool: Pool
    bounds: RequestBounds
    memory: int | None

    @property
    def known(self) -> bool:
        return self.memory is not None or self.settings.blocks_override is not None

    @property
    def starts(self) -> bool:
        return self.known and self.pool.refusal is None


def plan(
    model_config: Mapping[str, object],
    state: ModelState | None,
    settings: Mapping[str, object],
    available_bytes: int | None,
) -> VllmPlan:
    """Return what vLLM would make of a model with those settings.

    `model_config` is the config.json, or empty where the model was given by numbers; `state` what
    its layers keep. `available_bytes` is the memory for the cache on each worker ("Available KV
    cache memory"); kv_cache_memory_bytes in the settings takes its place.

    Raises:
        DomainError: for a setting that is unknown or out of bounds, a model that vLLM lacks or that
            no rule here describes, and ranks that its heads or layers do not divide over.

    """
    if state is None:
        raise Missing("{field} is missing: nothing says what the layers keep", field="model")
    chosen = read_settings(settings)
    if available_bytes is not None:
        checked_int(available_bytes, "available_bytes", low=0, high=MAX_BYTES)
    view = view_of(model_config, state)
    notes: list[Note] = []
    chosen = with_speculation(view, chosen, notes)
    length = _length(view, chosen, notes)
    bounds = _bounds(chosen, length)
    specs = specs_of_model(view, chosen, length)
    if chosen.max_num_batched_tokens is None and _reserves_batches(specs):
        notes.append(_batched_note(chosen, bounds))
    memory = chosen.kv_cache_memory_bytes
    memory = available_bytes if memory is None else memory
    pool = fill_pool(
        specs.workers,
        [MAX_BYTES if memory is None else memory] * len(specs.workers),
        PoolSettings(
            release=chosen.release,
            bounds=bounds,
            hybrid_manager=chosen.hybrid_manager,
            block_outermost=specs.block_outermost,
            blocks_override=chosen.blocks_override,
            auto_fit=chosen.max_model_len == -1 and memory is not None,
        ),
    )
    found = _Planning(
        view=view,
        settings=chosen,
        specs=specs,
        pool=pool,
        bounds=bounds.at(pool.max_model_len),
        memory=memory,
    )
    return _assembled(found, notes)


def _length(view: ModelView, settings: VllmSettings, notes: list[Note]) -> int:
    asked = settings.max_model_len
    if asked is not None and asked != -1:
        return asked
    own = view.own_length
    if own is None:
        notes.append(
            Note(
                "max_model_len",
                "nothing names the longest request; {tokens} tokens are taken, as vLLM does",
                {"tokens": DEFAULT_LENGTH},
            )
        )
        return DEFAULT_LENGTH
    if asked is None:
        notes.append(
            Note(
                "max_model_len",
                "the longest request is the config's, {tokens} tokens",
                {"tokens": own},
            )
        )
    return own


def _reserves_batches(specs: ModelSpecs) -> bool:
    """Say whether any cache's size depends on the batched tokens: windows, chunks and encoders."""
    return any(
        isinstance(spec, SlidingSpec | ChunkedSpec | CrossSpec)
        for layers in specs.workers
        for spec in layers.values()
    )


def _batched_note(settings: VllmSettings, bounds: RequestBounds) -> Note:
    return Note(
        "max_num_batched_tokens",
        "{tokens} batched tokens are taken, as a server does on a data-centre device of"
        " compute capability {major}; windows and encoders reserve by it",
        {"tokens": bounds.encoder_tokens, "major": settings.device_major},
    )


def _bounds(settings: VllmSettings, length: int) -> RequestBounds:
    """Return what bounds a request: batched tokens in every batch that may be in flight."""
    release, major = settings.release, settings.device_major
    sequences = settings.max_num_seqs or _SEQUENCES.get(major, _SMALL_SEQUENCES)
    batched = settings.max_num_batched_tokens
    if batched is None:
        batched = min(_BATCHED_TOKENS.get(major, _SMALL_BATCHED_TOKENS), sequences * length)
    batches = 1
    if release.reserves_concurrent_batches:
        stages = settings.pipeline_parallel
        asynchronous = settings.async_scheduling
        if asynchronous is None:
            asynchronous = release.async_scheduling_default
        batches = stages
        if asynchronous and (release.since(0, 33) or stages == 1):
            batches = stages + 1
    return RequestBounds(
        max_model_len=length,
        in_flight_tokens=batches * batched,
        encoder_tokens=batched,
        decode_context_parallel=settings.context_parallel,
    )


def _assembled(found: _Planning, notes: list[Note]) -> VllmPlan:
    pool, settings, specs = found.pool, found.settings, found.specs
    release, starts = settings.release, found.starts
    refusal = pool.refusal if found.known else None
    encoder_need = _encoder_need(found.view.state)
    unit = pool.workers[0].bytes_per_block
    groups = pool.workers[0].groups
    tokens = printed_tokens(pool, release, settings.context_parallel) if starts else None
    more = pool_notes(found.view, settings, pool, starts=starts, memory=found.memory)
    growth = specs.blocks.growth
    return VllmPlan(
        version=release.name,
        kv_cache_dtype=specs.format.name,
        block_size=specs.blocks.block_size,
        max_model_len=pool.max_model_len,
        groups=tuple(
            _planned_group(group, blocks)
            for group, blocks in zip(pool.grouping.groups, pool.group_blocks, strict=True)
        ),
        ranks=tuple(_planned_rank(found, index) for index in range(len(pool.workers))),
        blocks_per_request=pool.blocks_per_request,
        num_gpu_blocks=pool.num_blocks if starts else None,
        max_concurrency=pool.concurrency if starts else None,
        max_concurrency_text=printed_concurrency(pool) if starts else None,
        kv_cache_tokens=tokens,
        needed_bytes=max(worker.needed_bytes for worker in pool.workers),
        estimated_max_model_len=None if refusal is None else refusal.estimated_max_model_len,
        refused=refusal is not None,
        printed=_printed(found),
        request=request_bytes(groups, unit, found.bounds, encoder_need),
        replicated_bytes=_replicated_bytes(found),
        max_sequences=pool.num_blocks if starts and has_state_layers(groups) else None,
        formulas=(
            *_block_formulas(growth),
            *formulas_of(pool, pool.max_model_len, found.memory, settings.blocks_override),
        ),
        block_growth=growth,
        assumptions=(*notes, *specs.assumptions, *more),
        not_counted=NOT_COUNTED,
        layer_specs=specs.workers,
        worker_groups=groups,
        bounds=found.bounds,
        encoder_need=encoder_need,
    )


def _block_formulas(growth: BlockGrowth | None) -> tuple[str, ...]:
    return () if growth is None else (f"a block that holds a state: {growth.formula}",)


def _printed(found: _Planning) -> tuple[str, ...]:
    if not found.known:
        return ()
    settings, unit = found.settings, found.pool.workers[0].bytes_per_block
    lines = printed_lines(
        found.pool,
        settings.release,
        context_parallel=settings.context_parallel,
        blocks_override=settings.blocks_override if found.memory is not None else None,
        auto_fit=settings.max_model_len == -1,
        cpu_blocks=settings.swap_space_gib * _GIB // unit if unit else 0,
    )
    return tuple(line.text for line in lines)


def _planned_group(group: Group, blocks: int) -> PlannedGroup:
    spec = group.spec
    return PlannedGroup(
        kind=spec.kind,
        layers=len(group.layers),
        block_size=spec.block_size,
        page_size_bytes=spec.page_bytes,
        blocks_per_request=blocks,
        kv_heads=getattr(spec, "kv_heads", None),
        k_dim=getattr(spec, "k_dim", None),
        v_dim=getattr(spec, "v_dim", None),
        window=getattr(spec, "window", None),
        layer_names=group.layers,
    )


def _planned_rank(found: _Planning, index: int) -> PlannedRank:
    pool, memory = found.pool, found.memory
    worker = pool.workers[index]
    first, last = found.specs.stages[index]
    allocated = pool.num_blocks * worker.bytes_per_block if found.starts else None
    unused = None if allocated is None or memory is None else max(memory - allocated, 0)
    return PlannedRank(
        pipeline_rank=index,
        tensor_ranks=found.settings.tensor_parallel,
        first_layer=first,
        last_layer=last,
        caches=len(found.specs.workers[index]),
        bytes_per_block=worker.bytes_per_block,
        available_bytes=memory,
        own_blocks=None if memory is None else worker.own_blocks,
        allocated_bytes=allocated,
        unused_bytes=unused,
        needed_bytes=worker.needed_bytes,
        estimated_max_model_len=None
        if worker.refusal is None or not found.known
        else worker.refusal.estimated_max_model_len,
    )


def _encoder_need(state: ModelState) -> int | None:
    return next(
        (
            part.encoder_tokens
            for run in state.runs
            for part in run.layer.states
            if isinstance(part, CrossAttention)
        ),
        None,
    )


def _replicated_bytes(found: _Planning) -> int:
    """Return what copies of the same heads or latents on the tensor ranks cost a request.

    Of R ranks, heads and positions divide over d × c; the other R - d × c hold copies.
    """
    settings, pool = found.settings, found.pool
    total = 0
    for group, blocks in zip(pool.workers[0].groups, pool.group_blocks, strict=True):
        for spec, count in group.counted_specs:
            distinct = getattr(spec, "distinct_ranks", None)
            if distinct is not None:
                divided = distinct * (settings.context_parallel if spec.dcp_sharded else 1)
                copies = max(settings.tensor_parallel - divided, 0)
                total += count * blocks * spec.page_bytes * copies
    return total
