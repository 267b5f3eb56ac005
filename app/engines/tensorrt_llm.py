"""What TensorRT-LLM's paged KV cache holds on its smallest rank, and prints.

Source: `calculateMaxNumBlocks` in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and
`KvCacheCreator` in tensorrt_llm/_torch/pyexecutor/_util.py of
https://github.com/NVIDIA/TensorRT-LLM (2026, log reports back to 0.5); measured:
tests/data/engine_logs.json. The fraction is of the memory free after the engine is loaded, and the
blocks are rounded up, so the pool may exceed the budget by less than one block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Missing, OutOfRange, Unknown, Unsupported, shown
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
)
from app.engines.request_cost import GrowingPart, Overhead, RequestCost
from app.engines.setting_values import SettingValues, named_settings

OLDEST, NEWEST = (0, 5), (1, 3)
MAX_RANKS = 1024
MAX_TOKENS = 10**10
MAX_BLOCK_TOKENS = 1024
MAX_AVAILABLE_BYTES = 2**53
_GIB = 2**30

KNOWN = (
    "version", "backend", "tokens_per_block", "free_gpu_memory_fraction", "max_tokens",
    "max_seq_len", "max_batch_size", "tp_size", "pp_size", "kv_cache_dtype", "dtype",
    "max_attention_window", "window_size_shares", "sink_token_length", "host_cache_size",
    "cross_kv_cache_fraction", "draft_layers", "total_gpu_memory", "peak_memory",
    "temporary_kv_bytes",
)  # fmt: skip
ALIASES = {
    "tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
}  # fmt: skip

_ELEMENT_BYTES = {
    "bfloat16": Fraction(2), "float16": Fraction(2), "float32": Fraction(4), "fp8": Fraction(1),
    "int8": Fraction(1),
    # Half a byte, and one fp8 scale for 16 elements.
    "nvfp4": Fraction(9, 16),
}  # fmt: skip
_DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
                "fp4": "nvfp4", "fp8_e4m3": "fp8"}  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """Bytes of one token in each group of layers of a stage, and of one sequence's states."""

    groups: tuple[tuple[str, int | None, int, int], ...]
    state_bytes: int
    copied: Fraction

    @property
    def bytes_per_token(self) -> int:
        return sum(size for _, _, _, size in self.groups)


def _version(name: object) -> tuple[int, int]:
    if name is None:
        return NEWEST
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:rc\d+)?", name) if isinstance(
        name, str) else None  # fmt: skip
    if match is None:
        raise Unknown("{field} must be a release such as 1.2.0, got {value}", field="version",
                      value=shown(name))  # fmt: skip
    version = (int(match[1]), int(match[2]))
    if not OLDEST <= version <= NEWEST:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}", field="version",
                         low="0.5", high="1.3", value=shown(name))  # fmt: skip
    return version


def _format(name: object, field: str) -> str:
    text = name.strip().lower().removeprefix("torch.") if isinstance(name, str) else ""
    text = _DTYPE_NAMES.get(text, text)
    if text in _ELEMENT_BYTES:
        return text
    raise Unknown("{field} must be one of {known}, got {value}", field=field,
                  known=", ".join(_ELEMENT_BYTES), value=shown(name))  # fmt: skip


def _kind(
    values: SettingValues, config: Mapping[str, object] | None, notes: list[Note]
) -> Fraction:
    """Return the bytes of an element of the cache: as set, or of the model's own format."""
    for field in ("kv_cache_dtype", "dtype"):
        name = values.values.get(field, "auto")
        if name != "auto":
            return _ELEMENT_BYTES[_format(name, field)]
    for part in (config, (config or {}).get("text_config")):
        if isinstance(part, Mapping):
            name = part.get("dtype") or part.get("torch_dtype")
            if isinstance(name, str):
                return _ELEMENT_BYTES[_format(name, "dtype")]
    notes.append(Note("dtype_default", "16-bit elements, as the config names no dtype"))
    return _ELEMENT_BYTES["bfloat16"]


def _windows(values: SettingValues, layers: int, context: int | None) -> list[int | None]:
    """Return each layer's window: the list given, repeated over the layers; none means full.

    A window as long as the context is no window.
    """
    given = values.integers("max_attention_window", low=1, high=MAX_TOKENS, most=10_000)
    if not given:
        return [None] * layers
    windows = [given[layer % len(given)] for layer in range(layers)]
    return [None if context is not None and size >= context else size for size in windows]


def _row_elements(state: State, ranks: int) -> tuple[int, Fraction]:
    """Return the elements of one token in a layer of a rank, and which part of them is copied."""
    if isinstance(state, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention):
        heads = max(1, state.kv_heads // ranks)
        copied = max(Fraction(0), 1 - Fraction(state.kv_heads, ranks * heads))
        return heads * (state.k_dim + state.v_dim), copied
    if isinstance(state, LatentAttention):
        if state.tokens_per_entry > 1:
            raise Unsupported("{field}: pools of compressed entries are not known here",
                              field="model")  # fmt: skip
        return state.latent_dim + state.rope_dim, 1 - Fraction(1, ranks)
    return 0, Fraction(0)


def _state_bytes(state: State, ranks: int) -> int:
    if not isinstance(state, Recurrent):
        return 0
    total = 0
    for tensor in state.tensors:
        parts = ranks if tensor.split_axis is not None else 1
        total += tensor.size_bytes // parts
    return total


def _rank(
    model: ModelState, first: int, last: int, *, ranks: int, element: Fraction,
    windows: list[int | None],
) -> _Rank:  # fmt: skip
    """Return what the layers first..last−1 keep on one of `ranks` tensor ranks."""
    groups: dict[tuple[str, int | None], list[int]] = {}
    states = elements_all = 0
    copied = Fraction(0)
    for index, layer in enumerate(model.layers):
        if not first <= index < last:
            continue
        for state in layer.states:
            states += _state_bytes(state, ranks)
            elements, part = _row_elements(state, ranks)
            if not elements or isinstance(state, Shared):
                continue
            name = "cross" if isinstance(state, CrossAttention) else "self"
            own = groups.setdefault((name, None if name == "cross" else windows[index]), [0, 0])
            own[0] += 1
            own[1] += elements
            elements_all += elements
            copied += part * elements
    return _Rank(
        groups=tuple(
            (name, window, count, int(elements * element))
            for (name, window), (count, elements) in groups.items()
        ),
        state_bytes=states,
        copied=copied / elements_all if elements_all else Fraction(0),
    )


def _budget(values: SettingValues, fraction: float, available_bytes: int | None) -> int | None:
    """Return the bytes that the pools may take.

    With the PyTorch backend's own figures, the peak of a trial run is taken off the card's memory
    and the trial's cache added back; otherwise the fraction is of the memory that is free.
    """
    total = values.integer("total_gpu_memory", low=1, high=MAX_AVAILABLE_BYTES)
    peak = values.integer("peak_memory", low=0, high=MAX_AVAILABLE_BYTES)
    if total is not None and peak is not None:
        trial = values.integer("temporary_kv_bytes", low=0, high=MAX_AVAILABLE_BYTES) or 0
        if peak > total + trial:
            raise Conflict("{field} is more than the card has", field="peak_memory")
        return int((total - peak + trial) * fraction)
    return None if available_bytes is None else int(available_bytes * fraction)


def _shares(values: SettingValues, rank: _Rank, budget: int) -> list[int]:
    """Return each group's bytes: a part for cross-attention, the rest evenly over the windows."""
    names = [name for name, _, _, _ in rank.groups]
    cross = names.count("cross")
    part = values.number("cross_kv_cache_fraction", low=0.0, high=1.0, default=0.5)
    own = budget - int(budget * part) if cross else budget
    weights = values.numbers("window_size_shares", low=0.0, high=1.0, most=64)
    windows = len(names) - cross
    if weights and len(weights) != windows:
        raise Conflict("{field} must have one share for each of the {count} windows",
                       field="window_size_shares", count=windows)  # fmt: skip
    weights = weights or (1.0,) * windows
    total = sum(weights)
    if windows and not total:
        raise OutOfRange("{field} must not all be 0", field="window_size_shares")
    position, shares = 0, []
    for name in names:
        if name == "cross":
            shares.append(int(budget * part))
            continue
        shares.append(own if windows == 1 else int(own * weights[position] / total))
        position += 1
    return shares


def _blocks(
    values: SettingValues, rank: _Rank, budget: int | None, block: int, most: int | None
) -> list[int]:
    """Return the blocks of each group of layers.

    Raises:
        Missing: when neither memory nor tokens are given.

    """
    if budget is None:
        if most is None:
            raise Missing("{field} is needed: no memory is given to derive it from",
                          field="max_tokens")  # fmt: skip
        return [-(-most // block)] * len(rank.groups)
    blocks = []
    for (_, _, _, size), share in zip(rank.groups, _shares(values, rank, budget), strict=True):
        tokens = share // size
        tokens = tokens if most is None else min(tokens, most)
        blocks.append(-(-tokens // block) if len(rank.groups) == 1 else tokens // block)
    return blocks


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
    version = _version(values.values.get("version"))
    notes: list[Note] = []
    element = _kind(values, config, notes)
    fraction = values.number("free_gpu_memory_fraction", low=0.0, high=1.0, default=0.9)
    backend = values.choice("backend", ("pytorch", "cpp"), "pytorch")
    block = _count(values, "tokens_per_block", _default_block(version, backend), MAX_BLOCK_TOKENS)
    context = values.integer("max_seq_len", low=1, high=MAX_TOKENS) or _context(config)
    windows = _windows(values, state.num_layers, context)
    budget = _budget(values, fraction, available_bytes)
    most = values.integer("max_tokens", low=1, high=MAX_TOKENS)
    slots = _count(values, "max_batch_size", 1, 2**20)
    found = []
    for rank in _ranks(values, state, element, windows):
        left = None if budget is None else max(budget - rank.state_bytes * slots, 0)
        found.append((_blocks(values, rank, left, block, most), rank))
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


def _count(values: SettingValues, name: str, default: int, high: int) -> int:
    value = values.integer(name, low=1, high=high)
    return default if value is None else value


def _default_block(version: tuple[int, int], backend: str) -> int:
    """Return the tokens of a block: 32 with PyTorch, 64 in built engines, 128 up to 0.8."""
    if version <= (0, 8):
        return 128
    return 32 if backend == "pytorch" else 64


def _context(config: Mapping[str, object] | None) -> int | None:
    for part in (config, (config or {}).get("text_config")):
        if isinstance(part, Mapping):
            value = part.get("max_position_embeddings")
            if type(value) is int and value > 0:
                return value
    return None


def _ranks(
    values: SettingValues, state: ModelState, element: Fraction, windows: list[int | None]
) -> list[_Rank]:
    """Return each pipeline stage's share of one tensor rank; the layers divide evenly."""
    stages = _count(values, "pp_size", 1, MAX_RANKS)
    ranks = _count(values, "tp_size", 1, MAX_RANKS)
    drafts = values.integer("draft_layers", low=0, high=MAX_RANKS) or 0
    if state.num_layers % stages:
        raise Conflict("{field} {stages} does not divide the {layers} layers", field="pp_size",
                       stages=stages, layers=state.num_layers)  # fmt: skip
    size = state.num_layers // stages
    found = []
    for first in range(0, state.num_layers, size):
        rank = _rank(state, first, first + size, ranks=ranks, element=element, windows=windows)
        found.append(_with_drafts(rank, drafts))
    return found


def _with_drafts(rank: _Rank, drafts: int) -> _Rank:
    """Return a rank whose first group holds the drafting layers too, as wide as its own."""
    if not drafts or not rank.groups:
        return rank
    (name, window, layers, size), *rest = rank.groups
    grown = (name, window, layers + drafts, size + size // layers * drafts)
    return _Rank(groups=(grown, *rest), state_bytes=rank.state_bytes, copied=rank.copied)


def _pools(
    rank: _Rank, blocks: list[int], block: int, context: int | None, values: SettingValues
) -> tuple[WindowPool, ...]:
    sink = values.integer("sink_token_length", low=0, high=MAX_TOKENS) or 0
    pools = []
    for (name, window, layers, size), count in zip(rank.groups, blocks, strict=True):
        longest = context if window is None else min(window + sink, context or window + sink)
        pools.append(
            WindowPool(
                name=name,
                layers=layers,
                window_tokens=window,
                bytes_per_token=size,
                blocks=count,
                blocks_per_sequence=None if longest is None else -(-longest // block),
                bytes=count * block * size,
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


def _overheads(rank: _Rank, size: int, budget: int | None) -> tuple[Overhead, ...]:
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


def _request(pools: tuple[WindowPool, ...], rank: _Rank, block: int) -> RequestCost:
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
    values: SettingValues, state: ModelState, rank: _Rank, most: int | None, budget: int | None
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
