"""A model, settings and bytes in; what vLLM would allocate and print out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.errors import DomainError, Missing, OutOfRange
from app.domain.notes import Note
from app.domain.state import CrossAttention, FullAttention, LatentAttention, ModelState
from app.engines.vllm.capacity import Pool, PoolSettings, fill_pool, has_state_layers
from app.engines.vllm.model_specs import ModelSpecs, specs_of_model
from app.engines.vllm.model_view import ModelView, view_of
from app.engines.vllm.printed import (
    printed_concurrency,
    printed_lines,
    printed_tokens,
)
from app.engines.vllm.settings import MAX_BYTES, VllmSettings, read_settings
from app.engines.vllm.specs import RequestBounds
from app.engines.vllm.spending import RequestBytes, Spent, member_specs, request_bytes
from app.engines.vllm.types import Group

_GIB = 2**30
DEFAULT_BATCHED_TOKENS = 8192
DEFAULT_SEQUENCES = 1024
# Without a length of its own a model is planned at this one, and the plan says so.
DEFAULT_LENGTH = 8192

NOT_COUNTED = (
    Note("weights", "the model's weights, which are loaded before the cache is sized"),
    Note("activations", "activations and workspaces that the profile run measures"),
    Note("cuda_graphs", "captured CUDA graphs"),
    Note("communication", "communication buffers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One cache group: `layers` share a block table of blocks of `block_size` tokens.

    `page_size_bytes` is one block in one layer (in all layers, for a group of mixed pages).
    """

    kind: str
    layers: int
    block_size: int
    page_size_bytes: int
    blocks_per_request: int
    kv_heads: int | None
    k_dim: int | None
    v_dim: int | None
    window: int | None
    layer_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank:
    """One pipeline stage; each of its tensor ranks holds the same bytes.

    `own_blocks` is what its memory would give; the pool is the smallest stage's. None where the
    plan was made without bytes.
    """

    pipeline_rank: int
    tensor_ranks: int
    first_layer: int
    last_layer: int
    caches: int
    bytes_per_block: int
    available_bytes: int | None
    own_blocks: int | None
    allocated_bytes: int | None
    unused_bytes: int | None
    needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """The engine's view of one model: pool, printed figures, and where the bytes of a request go.

    Figures of the pool are None where no bytes were given, or where the engine would refuse to
    start (`refused`; its error is the last printed line). `max_concurrency` is exact.
    """

    version: str
    kv_cache_dtype: str
    block_size: int
    max_model_len: int
    groups: tuple[PlannedGroup, ...]
    ranks: tuple[PlannedRank, ...]
    blocks_per_request: int | None
    num_gpu_blocks: int | None
    max_concurrency: Fraction | None
    max_concurrency_text: str | None
    kv_cache_tokens: int | None
    needed_bytes: int | None
    estimated_max_model_len: int | None
    refused: bool
    printed: tuple[str, ...]
    request: RequestBytes
    replicated_bytes: int
    max_sequences: int | None
    formula: str
    formulas: tuple[str, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]
    worker_groups: tuple[Group, ...]
    bounds: RequestBounds
    encoder_need: int | None

    @property
    def spent(self) -> tuple[Spent, ...]:
        """What a request of the maximum length takes beyond the model's need, by reason."""
        return self.request.spent

    def request_bytes(self, length: int) -> RequestBytes:
        """Return what one request of `length` tokens takes on the first stage.

        Raises:
            OutOfRange: for a length outside 1..max_model_len.

        """
        checked_int(length, "length", low=1, high=self.max_model_len)
        unit = self.ranks[0].bytes_per_block
        return request_bytes(self.worker_groups, unit, self.bounds.at(length), self.encoder_need)


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
    length = _length(view, chosen, notes)
    bounds = _bounds(chosen, length, notes)
    specs = specs_of_model(view, chosen, length)
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
    return _assembled(view, chosen, specs, pool, bounds.at(pool.max_model_len), memory, notes)


def _length(view: ModelView, settings: VllmSettings, notes: list[Note]) -> int:
    asked = settings.max_model_len
    if asked is not None and asked != -1:
        return asked
    own = view.own_length
    if own is not None:
        if asked is None:
            notes.append(
                Note("max_model_len", "the longest request is the config's, {tokens} tokens",
                     {"tokens": own})
            )  # fmt: skip
        return own
    notes.append(
        Note(
            "max_model_len",
            "nothing names the longest request; {tokens} tokens are taken",
            {"tokens": DEFAULT_LENGTH},
        )
    )
    return DEFAULT_LENGTH


def _bounds(settings: VllmSettings, length: int, notes: list[Note]) -> RequestBounds:
    """Return what bounds a request: batched tokens in every batch that may be in flight."""
    release = settings.release
    sequences = settings.max_num_seqs or DEFAULT_SEQUENCES
    batched = settings.max_num_batched_tokens
    if batched is None:
        batched = min(DEFAULT_BATCHED_TOKENS, sequences * length)
        notes.append(
            Note(
                "max_num_batched_tokens",
                "{tokens} batched tokens are taken, as a server on a device of 70 GiB or more does;"
                " windows and encoders reserve by it",
                {"tokens": batched},
            )
        )
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


def _assembled(
    view: ModelView,
    settings: VllmSettings,
    specs: ModelSpecs,
    pool: Pool,
    bounds: RequestBounds,
    memory: int | None,
    notes: list[Note],
) -> VllmPlan:
    release = settings.release
    known = memory is not None or settings.blocks_override is not None
    refusal = pool.refusal if known else None
    starts = known and refusal is None
    encoder_need = _encoder_need(view.state)
    unit = pool.workers[0].bytes_per_block
    request = request_bytes(pool.workers[0].groups, unit, bounds, encoder_need)
    lines = printed_lines(
        pool,
        release,
        context_parallel=settings.context_parallel,
        blocks_override=settings.blocks_override,
        auto_fit=settings.max_model_len == -1,
        cpu_blocks=settings.swap_space_gib * _GIB // unit if unit else 0,
    ) if known else ()  # fmt: skip
    printed = tuple(line.text for line in lines)
    sequences = pool.num_blocks if starts and has_state_layers(pool.workers[0].groups) else None
    return VllmPlan(
        version=release.name,
        kv_cache_dtype=specs.format.name,
        block_size=specs.blocks.block_size,
        max_model_len=pool.max_model_len,
        groups=tuple(
            _planned_group(group, blocks)
            for group, blocks in zip(pool.grouping.groups, pool.group_blocks, strict=True)
        ),
        ranks=tuple(
            _planned_rank(index, specs, pool, settings, known, starts)
            for index in range(len(pool.workers))
        ),
        blocks_per_request=pool.blocks_per_request,
        num_gpu_blocks=pool.num_blocks if starts else None,
        max_concurrency=pool.concurrency if starts else None,
        max_concurrency_text=printed_concurrency(pool) if starts else None,
        kv_cache_tokens=printed_tokens(pool, release, settings.context_parallel) if starts else None,
        needed_bytes=max((worker.needed_bytes for worker in pool.workers), default=None),
        estimated_max_model_len=None if refusal is None else refusal.estimated_max_model_len,
        refused=refusal is not None,
        printed=printed,
        request=request,
        replicated_bytes=_replicated_bytes(view.state, settings, pool, request),
        max_sequences=sequences,
        formula=_formula(pool, memory),
        formulas=_formulas(pool, bounds, memory),
        assumptions=(*notes, *specs.assumptions, *_more_assumptions(view, settings, pool, starts)),
        not_counted=NOT_COUNTED,
        worker_groups=pool.workers[0].groups,
        bounds=bounds,
        encoder_need=encoder_need,
    )


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


def _planned_rank(
    index: int,
    specs: ModelSpecs,
    pool: Pool,
    settings: VllmSettings,
    known: bool,
    starts: bool,
) -> PlannedRank:
    worker = pool.workers[index]
    first, last = specs.stages[index]
    allocated = pool.num_blocks * worker.bytes_per_block
    given = known and settings.blocks_override is None
    return PlannedRank(
        pipeline_rank=index,
        tensor_ranks=settings.tensor_parallel,
        first_layer=first,
        last_layer=last,
        caches=len(specs.workers[index]),
        bytes_per_block=worker.bytes_per_block,
        available_bytes=worker.available_bytes if given else None,
        own_blocks=worker.own_blocks if known else None,
        allocated_bytes=allocated if starts else None,
        unused_bytes=worker.available_bytes - allocated if starts and given else None,
        needed_bytes=worker.needed_bytes,
    )


def _encoder_need(state: ModelState) -> int | None:
    for layer in state.layers:
        for part in layer.states:
            if isinstance(part, CrossAttention):
                return part.encoder_tokens
    return None


def _replicated_bytes(
    state: ModelState, settings: VllmSettings, pool: Pool, request: RequestBytes
) -> int:
    """Return what copies of the same heads or latents on several tensor ranks cost a request."""
    ranks = settings.tensor_parallel
    if ranks == 1:
        return 0
    copies = 0
    for group in pool.workers[0].groups:
        blocks = group.spec.blocks_per_request(
            RequestBounds(
                max_model_len=pool.max_model_len,
                in_flight_tokens=0,
                decode_context_parallel=settings.context_parallel,
            )
        )
        for spec in member_specs(group):
            shards = getattr(spec, "max_tp_shards", None)
            if shards is not None and settings.context_parallel == 1:
                copies += blocks * spec.page_bytes * (ranks - shards)
    return copies


def _formula(pool: Pool, memory: int | None) -> str:
    worker = pool.workers[0]
    if not worker.bytes_per_block:
        return "no layer keeps a cache: 1 block, the null block"
    if memory is None:
        return f"{worker.bytes_per_block} B/block × {pool.blocks_per_request} blocks a request"
    return f"⌊{memory} B / {worker.bytes_per_block} B⌋ = {worker.own_blocks} blocks"


def _formulas(pool: Pool, bounds: RequestBounds, memory: int | None) -> tuple[str, ...]:
    lines = []
    for group, blocks in zip(pool.grouping.groups, pool.group_blocks, strict=True):
        spec = group.spec
        page = spec.page_bytes if spec.kind != "uniform_type" else spec.page_bytes
        lines.append(
            f"{len(group.layers)} × {spec.kind}: {page} B a page of {spec.block_size} tokens,"
            f" {blocks} blocks at {bounds.max_model_len} tokens"
        )
    for index, worker in enumerate(pool.workers):
        lines.append(f"stage {index}: {worker.bytes_per_block} B/block, the widest group's pages")
    if memory is not None:
        owned = ", ".join(str(worker.own_blocks) for worker in pool.workers)
        lines.append(f"blocks = min({owned}) = {pool.num_blocks}")
    if pool.concurrency is not None and memory is not None:
        lines.append(f"concurrency = {pool.num_blocks} / {pool.blocks_per_request}")
    return tuple(lines)


def _more_assumptions(
    view: ModelView, settings: VllmSettings, pool: Pool, starts: bool
) -> tuple[Note, ...]:
    notes = [
        Note("workers", "every worker has the same bytes for its cache"),
        Note("null_block", "one block of the pool is the null block and never handed out"),
    ]
    if not view.config:
        notes.append(
            Note("no_config", "without a config, elements are 16 bits and no family's ways apply")
        )
    sequences = settings.max_num_seqs
    if starts and sequences and has_state_layers(pool.workers[0].groups) and (
        sequences > pool.num_blocks
    ):  # fmt: skip
        notes.append(
            Note(
                "max_num_seqs",
                "max_num_seqs {asked} exceeds the {blocks} blocks: each running sequence needs one"
                " for its state, and vLLM refuses that while it captures CUDA graphs",
                {"asked": sequences, "blocks": pool.num_blocks},
            )
        )
    return tuple(notes)


__all__ = ["DomainError", "OutOfRange", "VllmPlan", "plan"]
