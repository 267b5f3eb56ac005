"""What TensorRT-LLM's paged KV cache holds on its smallest rank, and prints.

Source: `calculateMaxNumBlocks` in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp,
`KVCacheManager` in tensorrt_llm/_torch/pyexecutor/resource_manager.py and `KvCacheCreator` in
_util.py of https://github.com/NVIDIA/TensorRT-LLM (states of 2023 to 2026); measured:
tests/data/engine_logs.json. The fraction is of the memory free after the engine is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing
from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.head_split import check_heads
from app.engines.request_cost import GrowingPart, Overhead, RequestCost
from app.engines.tensorrt_llm.blocks import blocks_of, budget_of
from app.engines.tensorrt_llm.ranks import INDEX_BUDGET_SINCE, Rank, ranks_of
from app.engines.tensorrt_llm.settings import MAX_AVAILABLE_BYTES, Settings, read_settings

_GIB = 2**30
# A window keeps one block more since, to hold whole windows while the oldest block is half used.
_SPARE_WINDOW_BLOCK_SINCE = (1, 1)
_PLAIN_LINES_UNTIL = (0, 8)
_NOT_COUNTED = (
    Note("weights", "the engine's weights"),
    Note("activations", "activations, workspaces and communication buffers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """The blocks of the layers that share one window.

    `window_tokens` is the context's length for layers without a window, None when it is not known.
    """

    name: str
    layers: int
    window_tokens: int | None
    bytes_per_token: int
    blocks: int
    blocks_per_sequence: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorrtLlmPlan:
    """What the smallest rank holds; `tokens` are those of the pool with the fewest blocks."""

    version: str
    tokens: int
    blocks: int
    tokens_per_block: int
    bytes_per_token: int
    budget_bytes: int | None
    pools: tuple[WindowPool, ...]
    pool_bytes: int
    state_bytes: int
    secondary_blocks: int
    context_tokens: int | None
    printed: tuple[str, ...]
    overheads: tuple[Overhead, ...]
    request: RequestCost
    formula: tuple[str, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...] = _NOT_COUNTED

    @property
    def max_concurrency(self) -> str | None:
        """Return how many requests of the full context fit, to two decimals."""
        if not self.context_tokens:
            return None
        return f"{self.tokens / self.context_tokens:.2f}"


def plan(
    kv: Mapping[str, object] | None,
    state: ModelState | None,
    config: Mapping[str, object] | None,
    settings: Mapping[str, object],
    available_bytes: int | None = None,
) -> TensorrtLlmPlan:
    """Return what TensorRT-LLM allocates on its smallest rank.

    `available_bytes` is the memory free after the engine is loaded; the pools take
    `free_gpu_memory_fraction` of it. Of `config` the context length, the dtype and the query
    heads are taken; `kv` is not looked at.

    Raises:
        Missing, WrongType, OutOfRange, Unknown, Conflict, Unsupported: naming the setting.

    """
    del kv
    notes: list[Note] = []
    checked = read_settings(settings, config, notes)
    if available_bytes is not None:
        checked_int(available_bytes, "available_bytes", low=0, high=MAX_AVAILABLE_BYTES)
    if state is None:
        raise Missing("{field} is needed: the layers of the model", field="model")
    check_heads(config, state, checked.tensor_ranks, field="tp_size")
    budget = budget_of(checked, available_bytes)
    # Pipeline stages work on so many batches at once.
    slots = checked.requests * checked.pipeline_ranks
    found = []
    for stage in ranks_of(state, checked):
        left = None if budget is None else max(budget - stage.state_bytes * slots, 0)
        fitting, counts = blocks_of(stage, checked, left)
        found.append((counts, fitting))
    blocks, rank = min(found, key=lambda pair: min(pair[0], default=0))
    pools = _pools(rank, blocks, checked)
    least = min(blocks, default=0)
    per_block = rank.bytes_per_token * checked.block_tokens
    return TensorrtLlmPlan(
        version=checked.version_text,
        tokens=least * checked.block_tokens,
        blocks=least,
        tokens_per_block=checked.block_tokens,
        bytes_per_token=rank.bytes_per_token,
        budget_bytes=budget,
        pools=pools,
        pool_bytes=sum(pool.bytes for pool in pools),
        state_bytes=rank.state_bytes * slots,
        secondary_blocks=checked.host_bytes // per_block if per_block else 0,
        context_tokens=checked.context_tokens,
        printed=_lines(checked, pools),
        overheads=_overheads(checked, rank, pools, budget),
        request=_request(checked, rank, pools),
        formula=_formula(pools, checked.block_tokens),
        assumptions=(*notes, *_assumptions(checked, state, rank, budget)),
    )


def _pools(rank: Rank, blocks: list[int], settings: Settings) -> tuple[WindowPool, ...]:
    """Return the pools, those of short windows first."""
    block = settings.block_tokens
    pools = []
    for group, count in zip(rank.groups, blocks, strict=True):
        longest = settings.context_tokens
        if group.window is not None and not _is_long(group.window, settings):
            longest = group.window + settings.sink_tokens
        pools.append(
            WindowPool(
                name=group.name,
                layers=group.layers,
                window_tokens=group.window,
                bytes_per_token=group.bytes_per_token,
                blocks=count,
                blocks_per_sequence=None if longest is None else -(-longest // block),
                bytes=count * block * group.bytes_per_token,
            )
        )
    return tuple(pools)


def _is_long(window: int, settings: Settings) -> bool:
    return settings.context_tokens is not None and window >= settings.context_tokens


def _lines(settings: Settings, pools: tuple[WindowPool, ...]) -> tuple[str, ...]:
    """Return the lines as this release prints them; the last counts the blocks of all pools."""
    size = sum(pool.bytes for pool in pools)
    tokens = sum(pool.blocks for pool in pools) * settings.block_tokens
    if settings.version <= _PLAIN_LINES_UNTIL:
        return (
            f"Allocate {size} bytes for k/v cache.",
            f"Using {tokens} tokens in paged KV cache.",
        )
    lines = [f"Number of tokens per block: {settings.block_tokens}."]
    for pool in pools:
        lines.append(f"Number of blocks in KV cache primary pool: {pool.blocks}")
        if pool.blocks_per_sequence is not None and pool.window_tokens is not None:
            lines.append(
                f"Max KV cache pages/blocks per sequence: {pool.blocks_per_sequence}"
                f" [window size={pool.window_tokens}]"
            )
    lines.append(
        f"[MemUsageChange] Allocated {size / _GIB:.2f} GiB for max tokens in paged KV cache"
        f" ({tokens})."
    )
    return tuple(lines)


def _overheads(
    settings: Settings, rank: Rank, pools: tuple[WindowPool, ...], budget: int | None
) -> tuple[Overhead, ...]:
    size = sum(pool.bytes for pool in pools)
    latent = next((pool for pool in pools if rank.index_bytes and pool.name == "self"), None)
    index = 0
    if latent is not None:
        index = latent.blocks * settings.block_tokens * rank.index_bytes
    parts = [
        Overhead(code="copied_heads", bytes=int((size - index) * rank.copied),
                 text="heads that other tensor ranks hold too: fewer heads than ranks, or one"
                      " latent that every rank keeps whole"),
        Overhead(code="index_keys", bytes=index,
                 text="index keys of the sparse attention, with their scales"),
    ]  # fmt: skip
    if budget is not None and size > budget:
        parts.append(
            Overhead(code="last_block", bytes=size - budget,
                     text="the last block, rounded up beyond the budget")
        )  # fmt: skip
    return tuple(part for part in parts if part.bytes)


def _request(settings: Settings, rank: Rank, pools: tuple[WindowPool, ...]) -> RequestCost:
    """Return what one request takes: whole blocks, its states, and a window at most."""
    spare = int(settings.version >= _SPARE_WINDOW_BLOCK_SINCE)
    parts = []
    for pool in pools:
        most = None
        if (
            pool.window_tokens is not None
            and pool.blocks_per_sequence is not None
            and not _is_long(pool.window_tokens, settings)
        ):
            most = (pool.blocks_per_sequence + spare) * settings.block_tokens
        parts.append(
            GrowingPart(
                name=pool.name,
                bytes_per_entry=pool.bytes_per_token,
                unit_entries=settings.block_tokens,
                most_entries=most,
            )
        )
    return RequestCost(fixed_bytes=rank.state_bytes, parts=tuple(parts))


def _assumptions(
    settings: Settings, state: ModelState, rank: Rank, budget: int | None
) -> list[Note]:
    notes = []
    if budget is None:
        notes.append(Note("tokens_given", "max_tokens is taken as what fits: no memory is given"))
    short = {"sliding_window", "chunked_attention"} & state.kinds
    if short and not settings.windows:
        notes.append(Note("full_length", "windowed layers keep the full length, as"
                          " max_attention_window is not set"))  # fmt: skip
    if len(rank.windows) > 1:
        notes.append(Note("windows_share", "each window has a pool with its own part of the"
                          " memory, whatever a request needs of it"))  # fmt: skip
    if rank.index_bytes and settings.version < INDEX_BUDGET_SINCE:
        notes.append(Note("index_budget", "the budget counts more for index keys than they take,"
                          " as this release did"))  # fmt: skip
    if rank.state_bytes:
        notes.append(Note("states_live", "recurrent states are counted once for each request of"
                          " the largest batch, without snapshots for reuse"))  # fmt: skip
    if settings.draft_layers:
        notes.append(Note("draft_shape", "the draft's layers are taken to be as wide as the"
                          " model's attention layers"))  # fmt: skip
    return notes


def _formula(pools: tuple[WindowPool, ...], block: int) -> tuple[str, ...]:
    lines = [
        f"{pool.name}: {pool.blocks} blocks × {block} tokens × {pool.bytes_per_token} B"
        f" ({pool.layers} layers) = {pool.bytes} B"
        for pool in pools
    ]
    if len(pools) != 1:
        lines.append(f"total = {sum(pool.bytes for pool in pools)} B")
    return tuple(lines)
