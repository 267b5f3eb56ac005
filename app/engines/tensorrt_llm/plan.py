"""What TensorRT-LLM's paged KV cache holds on its smallest rank, and prints.

Source: `calculateMaxNumBlocks` in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and
`KvCacheCreator` in tensorrt_llm/_torch/pyexecutor/_util.py of
https://github.com/NVIDIA/TensorRT-LLM (2026, log reports back to 0.5); measured:
tests/data/engine_logs.json. The fraction is of the memory free after the engine is loaded, and the
blocks are rounded up, so the pool may exceed the budget by less than one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing
from app.domain.notes import Note
from app.domain.state import ModelState
from app.engines.request_cost import GrowingPart, Overhead, RequestCost
from app.engines.setting_values import SettingValues, named_settings
from app.engines.tensorrt_llm.ranks import Rank, blocks_of, budget_of, ranks_of
from app.engines.tensorrt_llm.settings import (
    ALIASES,
    KNOWN,
    MAX_AVAILABLE_BYTES,
    MAX_BLOCK_TOKENS,
    MAX_TOKENS,
    context_of,
    default_block,
    element_bytes,
    positive,
    version_named,
    windows_of,
)

_GIB = 2**30
_NOT_COUNTED = (
    Note("weights", "the engine's weights"),
    Note("activations", "activations, workspaces and communication buffers"),
    Note("index_keys", "index keys of sparse attention, which lie in pools of their own"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """The blocks of the layers that share one window; `window_tokens` None means full length."""

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
    `free_gpu_memory_fraction` of it. Of `config` the context length and the dtype are taken; `kv`
    is not looked at.

    Raises:
        Missing, WrongType, OutOfRange, Unknown, Conflict, Unsupported: naming the setting.

    """
    del kv
    values = named_settings(settings, KNOWN, ALIASES)
    if state is None:
        raise Missing("{field} is needed: the layers of the model", field="model")
    if available_bytes is not None:
        checked_int(available_bytes, "available_bytes", low=0, high=MAX_AVAILABLE_BYTES)
    version = version_named(values.values.get("version"))
    notes: list[Note] = []
    element = element_bytes(values, config, notes)
    fraction = values.number("free_gpu_memory_fraction", low=0.0, high=1.0, default=0.9)
    backend = values.choice("backend", ("pytorch", "cpp"), "pytorch")
    block = positive(values, "tokens_per_block", default_block(version, backend), MAX_BLOCK_TOKENS)
    context = values.integer("max_seq_len", low=1, high=MAX_TOKENS) or context_of(config)
    windows = windows_of(values, state.num_layers, context)
    budget = budget_of(values, fraction, available_bytes)
    most = values.integer("max_tokens", low=1, high=MAX_TOKENS)
    slots = positive(values, "max_batch_size", 1, 2**20)
    found = []
    for rank in ranks_of(values, state, element, windows):
        left = None if budget is None else max(budget - rank.state_bytes * slots, 0)
        found.append((blocks_of(values, rank, left, block, most), rank))
    blocks, rank = min(found, key=lambda pair: min(pair[0], default=0))
    notes += _assumptions(values, state, rank, most, budget)
    pools = _pools(rank, blocks, block, context, values)
    least = min(blocks, default=0)
    size = sum(pool.bytes for pool in pools)
    secondary = values.integer("host_cache_size", low=0, high=MAX_AVAILABLE_BYTES) or 0
    per_block = rank.bytes_per_token * block
    return TensorrtLlmPlan(
        version=".".join(map(str, version)),
        tokens=least * block,
        blocks=least,
        tokens_per_block=block,
        bytes_per_token=rank.bytes_per_token,
        pools=pools,
        pool_bytes=size,
        state_bytes=rank.state_bytes * slots,
        secondary_blocks=secondary // per_block if per_block else 0,
        context_tokens=context,
        printed=_lines(version, pools, block, size, least),
        overheads=_overheads(rank, size, budget),
        request=_request(pools, rank, block),
        formula=_formula(pools, block),
        assumptions=tuple(notes),
    )


def _pools(
    rank: Rank, blocks: list[int], block: int, context: int | None, values: SettingValues
) -> tuple[WindowPool, ...]:
    sink = values.integer("sink_token_length", low=0, high=MAX_TOKENS) or 0
    pools = []
    for group, count in zip(rank.groups, blocks, strict=True):
        longest = context
        if group.window is not None:
            longest = min(group.window + sink, context or group.window + sink)
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


def _lines(
    version: tuple[int, int], pools: tuple[WindowPool, ...], block: int, size: int, least: int
) -> tuple[str, ...]:
    """Return the lines as this release prints them."""
    if version <= (0, 8):
        return (
            f"Allocate {size} bytes for k/v cache.",
            f"Using {least * block} tokens in paged KV cache.",
        )
    lines = [f"Number of tokens per block: {block}."]
    for pool in pools:
        lines.append(f"Number of blocks in KV cache primary pool: {pool.blocks}")
        if pool.blocks_per_sequence is not None:
            window = pool.window_tokens or pool.blocks_per_sequence * block
            lines.append(
                f"Max KV cache pages/blocks per sequence: {pool.blocks_per_sequence}"
                f" [window size={window}]"
            )
    lines.append(
        f"[MemUsageChange] Allocated {size / _GIB:.2f} GiB for max tokens in paged KV cache"
        f" ({least * block})."
    )
    return tuple(lines)


def _overheads(rank: Rank, size: int, budget: int | None) -> tuple[Overhead, ...]:
    parts = [
        Overhead(code="copied_heads", bytes=int(size * rank.copied),
                 text="heads that other tensor ranks hold too: fewer heads than ranks, or one"
                      " latent that every rank keeps whole"),
    ]  # fmt: skip
    if budget is not None and size > budget:
        parts.append(
            Overhead(code="last_block", bytes=size - budget,
                     text="the last block, rounded up beyond the budget")
        )  # fmt: skip
    return tuple(part for part in parts if part.bytes)


def _request(pools: tuple[WindowPool, ...], rank: Rank, block: int) -> RequestCost:
    parts = tuple(
        GrowingPart(
            name=pool.name,
            bytes_per_entry=pool.bytes_per_token,
            unit_entries=block,
            most_entries=None if pool.window_tokens is None or pool.blocks_per_sequence is None
            else pool.blocks_per_sequence * block,
        )
        for pool in pools
    )  # fmt: skip
    return RequestCost(fixed_bytes=rank.state_bytes, parts=parts)


def _assumptions(
    values: SettingValues, state: ModelState, rank: Rank, most: int | None, budget: int | None
) -> list[Note]:
    notes = []
    if budget is None and most is not None:
        notes.append(Note("tokens_given", "max_tokens is taken as what fits: no memory is given"))
    short = {"sliding_window", "chunked_attention"} & state.kinds
    if short and not values.has("max_attention_window"):
        notes.append(Note("full_length", "windowed layers keep the full length, as"
                          " max_attention_window is not set"))  # fmt: skip
    if len(rank.groups) > 1:
        notes.append(Note("windows_share", "the memory is divided evenly over the windows unless"
                          " window_size_shares is given, and rounded down to blocks"))  # fmt: skip
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
