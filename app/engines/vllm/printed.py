"""What vLLM prints about its cache, release by release.

The sentences are the engine's own log formats (tests/data/vllm_versions.json holds real lines of 26
releases), so that a reader can compare a log with them word for word. The engine computes its
printed figures in binary floating point, and so does this module, and no other: the tokens line is
int(concurrency * length) of a rounded quotient, GiB are rounded quotients too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from app.engines.vllm.capacity import Pool, Refusal
from app.engines.vllm.types import Padding
from app.engines.vllm.versions import Release

_GIB = 2**30
_SEE = " See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLine:
    """One line of the log; `level` is info, warning or error."""

    level: str
    text: str


def printed_tokens(pool: Pool, release: Release, context_parallel: int = 1) -> int | None:
    """Return the figure of the tokens line, or None where the release prints none.

    Until 0.9.0 blocks times their tokens; until 0.20.0 the blocks of one group times the smallest
    block; since then concurrency times the maximum length, rounded down.
    """
    groups = pool.workers[0].groups
    if not groups or release.is_v0_engine:
        return None
    smallest = min(group.spec.block_size for group in groups)
    if not release.has_groups:
        return pool.num_blocks * smallest
    if release.prints_concurrency_tokens:
        return int(pool.num_blocks / (pool.blocks_per_request or 1) * pool.max_model_len)
    tokens = pool.num_blocks // len(groups) * smallest
    return tokens * context_parallel if release.shards_context else tokens


def printed_concurrency(pool: Pool) -> str | None:
    """Return the concurrency as printed, two decimals and an x."""
    if pool.concurrency is None:
        return None
    return f"{pool.concurrency.numerator / pool.concurrency.denominator:.2f}x"


def printed_gib(size_bytes: int, release: Release) -> str:
    """Return the bytes in GiB as this release prints them: round(x, 2), or two decimals."""
    quotient = size_bytes / _GIB
    return f"{round(quotient, 2)}" if release.rounds_gib else f"{quotient:.2f}"


def printed_lines(
    pool: Pool, release: Release, *, context_parallel: int = 1, blocks_override: int | None = None,
    auto_fit: bool = False, cpu_blocks: int = 0,
) -> tuple[PrintedLine, ...]:  # fmt: skip
    """Return the lines about the pool in the order in which they come."""
    lines = [*_warnings(pool)]
    if blocks_override is not None and pool.workers[0].bytes_per_block:
        worker = pool.workers[0]
        profiled = worker.available_bytes // worker.bytes_per_block
        lines.append(
            _info(
                f"Overriding num_gpu_blocks={profiled} with"
                f" num_gpu_blocks_override={blocks_override}"
            )
        )
    if pool.refusal is not None:
        return (*lines, _error(refusal_text(pool, pool.refusal, release)))
    if auto_fit and release.auto_fits:
        lines.append(_auto_fit_line(pool, release))
    if not pool.workers[0].groups:
        return tuple(lines)
    if release.is_v0_engine:
        return (*lines, *_v0_lines(pool, release, cpu_blocks))
    lines += _size_lines(pool, release, context_parallel)
    if release.since(0, 30) and len(pool.workers[0].groups) > 1:
        sizes = _sharded_sizes(pool, context_parallel)
        lines.append(_info(f"kv cache group sizes {sizes}"))
        lines.append(_info(f"kv lcm block sizes {lcm(*sizes)}"))
    return tuple(lines)


def _warnings(pool: Pool) -> list[PrintedLine]:
    grouping = pool.grouping
    lines = []
    if grouping.hybrid_off_warning:
        lines.append(
            _warning(
                "Hybrid KV cache manager is disabled for this hybrid model, This means we do not"
                " enable any optimizations for saving KV cache memory (e.g., dropping the KV cache"
                " outside the sliding window). The compute of layers like sliding window is still"
                " saved."
            )
        )
    if grouping.full_allocation_warning:
        lines.append(
            _warning(
                "KV cache page sizes cannot be unified; treating sliding-window layers as full"
                " attention for cache allocation. Sliding-window attention compute is unchanged."
            )
        )
    return lines + [_warning(padding_text(padding)) for padding in grouping.paddings]


def padding_text(padding: Padding) -> str:
    """Return the warning about the empty places of one kind."""
    share = padding.layers / padding.bucket_layers * 100
    return f"Add {padding.layers} padding layers, may waste at most {share:.2f}% KV cache memory"


def _size_lines(pool: Pool, release: Release, context_parallel: int) -> list[PrintedLine]:
    tokens = f"GPU KV cache size: {printed_tokens(pool, release, context_parallel):,} tokens"
    concurrency = (
        f"Maximum concurrency for {pool.max_model_len:,} tokens per request:"
        f" {printed_concurrency(pool)}"
    )
    if release.prints_one_line:
        return [_info(f"{tokens}, {concurrency}")]
    lines = []
    if context_parallel > 1 and release.shards_context and not release.prints_concurrency_tokens:
        if release.since(0, 12):
            world = (
                f"cp_world_size {context_parallel}"
                f" (pcp_world_size 1 * dcp_world_size {context_parallel})"
            )
        else:
            world = f"dcp_world_size {context_parallel}"
        lines.append(_info(f"Multiplying the GPU KV cache size by the {world}."))
    return [*lines, _info(tokens), _info(concurrency)]


def _v0_lines(pool: Pool, release: Release, cpu_blocks: int) -> list[PrintedLine]:
    device = "CUDA" if release.since(0, 7) else "GPU"
    lines = [_info(f"# {device} blocks: {pool.num_blocks}, # CPU blocks: {cpu_blocks}")]
    if release.since(0, 6, 3):
        lines.append(
            _info(
                f"Maximum concurrency for {pool.max_model_len} tokens per request:"
                f" {printed_concurrency(pool)}"
            )
        )
    return lines


def _sharded_sizes(pool: Pool, context_parallel: int) -> tuple[int, ...]:
    return tuple(
        group.spec.block_size * (context_parallel if group.spec.dcp_sharded else 1)
        for group in pool.workers[0].groups
    )


def _auto_fit_line(pool: Pool, release: Release) -> PrintedLine:
    asked = pool.asked_max_model_len
    if not pool.workers[0].groups:
        return _info(
            f"Auto-fit max_model_len: attention-free model, using derived max_model_len={asked}"
        )
    limiting = pool.limiting_bytes
    memory = printed_gib(limiting, release)
    new = release.since(0, 32)
    if pool.max_model_len >= asked:
        where = f"KV cache memory ({memory} GiB GPU)" if new else "GPU memory"
        return _info(
            f"Auto-fit max_model_len: full model context length {asked} fits in available {where}"
        )
    where = (
        f"KV cache memory ({memory} GiB GPU)"
        if new
        else f"GPU memory ({memory} GiB available for KV cache)"
    )
    return _info(
        f"Auto-fit max_model_len: reduced from {asked} to {pool.max_model_len} to fit in"
        f" available {where}"
    )


def refusal_text(pool: Pool, refusal: Refusal, release: Release) -> str:
    """Return the error with which this release stops."""
    if release.is_v0_engine:
        held = pool.num_blocks * pool.workers[0].groups[0].spec.block_size
        return (
            f"The model's max seq len ({pool.max_model_len}) is larger than the maximum number of"
            f" tokens that can be stored in KV cache ({held}). Try increasing"
            " `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    if refusal.available_bytes <= 0:
        return _nothing_available(release)
    unit = "GiB" if release.since(0, 8, 5) else "GB"
    whose = "model's" if release.since(0, 22) else "models's"
    estimate = ""
    if refusal.estimated_max_model_len > 0 and release.since(0, 8, 5):
        estimate = (
            "Based on the available memory, the estimated maximum model length is"
            f" {refusal.estimated_max_model_len}. "
        )
    elif release.since(0, 9, 1) and not release.rounds_gib:
        estimate = " "
    also = " (which also controls CPU memory on the CPU backend)" if release.since(0, 22) else ""
    return (
        f"To serve at least one request with the {whose} max seq len ({pool.max_model_len}),"
        f" ({printed_gib(refusal.needed_bytes, release)} {unit} KV cache is needed, which is larger"
        f" than the available KV cache memory ({printed_gib(refusal.available_bytes, release)}"
        f" {unit}). {estimate}Try increasing `gpu_memory_utilization`{also} or decreasing"
        " `max_model_len` when initializing the engine." + (_SEE if release.since(0, 13) else "")
    )


def _nothing_available(release: Release) -> str:
    flag = (
        " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
        if release.since(0, 22)
        else ""
    )
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
        f" initializing the engine{flag}." + (_SEE if release.since(0, 13) else "")
    )


def _info(text: str) -> PrintedLine:
    return PrintedLine(level="info", text=text)


def _warning(text: str) -> PrintedLine:
    return PrintedLine(level="warning", text=text)


def _error(text: str) -> PrintedLine:
    return PrintedLine(level="error", text=text)
