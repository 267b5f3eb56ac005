"""Formulas with their numbers in, and what a plan assumes or leaves out."""

from __future__ import annotations

from itertools import groupby

from app.domain.notes import Note
from app.domain.units import bytes_text
from app.engines.vllm.capacity import Pool, has_state_layers
from app.engines.vllm.model_view import ModelView
from app.engines.vllm.settings import VllmSettings

NOT_COUNTED = (
    Note("weights", "the model's weights, which are loaded before the cache is sized"),
    Note("activations", "activations and workspaces that the profile run measures"),
    Note("cuda_graphs", "captured CUDA graphs"),
    Note("communication", "communication buffers"),
)


def formulas_of(
    pool: Pool, max_model_len: int, memory: int | None, blocks_override: int | None
) -> tuple[str, ...]:
    """Return how each figure comes about, the one that everything ends in last."""
    if not pool.workers[0].bytes_per_block:
        return ("no layer keeps a cache: 1 block, the null block",)
    lines = [
        f"{len(group.layers)} × {group.spec.kind}: {group.spec.page_bytes} B a page of"
        f" {group.spec.block_size} tokens, {blocks} blocks at {max_model_len} tokens"
        for group, blocks in zip(pool.grouping.groups, pool.group_blocks, strict=True)
    ]
    units = [worker.bytes_per_block for worker in pool.workers]
    lines += _stage_lines(units)
    total = " + ".join(str(blocks) for blocks in pool.group_blocks)
    unit = units[0]
    needed = pool.blocks_per_request
    lines.append(f"a request: {total} blocks, {needed} × {unit} B = {(needed or 0) * unit} B")
    if blocks_override is not None:
        lines.append(f"blocks = {blocks_override}, set by hand")
    elif memory is not None:
        parts = [f"⌊{memory} B / {size} B⌋" for size in dict.fromkeys(units)]
        quotient = parts[0] if len(parts) == 1 else f"min({', '.join(parts)})"
        lines.append(f"blocks = {quotient} = {pool.num_blocks}")
    return tuple(lines)


def _stage_lines(units: list[int]) -> list[str]:
    """Return what a block costs each stage, neighbours that pay the same in one line."""
    lines, first = [], 0
    for size, equal in groupby(units):
        last = first + len(list(equal)) - 1
        stages = f"stage {first}" if first == last else f"stages {first} to {last}"
        lines.append(f"{stages}: {size} B/block, the pages of the widest group")
        first = last + 1
    return lines


def pool_notes(
    view: ModelView, settings: VllmSettings, pool: Pool, *, starts: bool, memory: int | None
) -> tuple[Note, ...]:
    """Return what the pool's figures assume; `starts` says whether the engine passes its check."""
    notes = [Note("workers", "every worker has the same bytes for its cache")]
    if not settings.release.is_v0_engine:
        notes.append(
            Note("null_block", "one block of the pool is the null block and never handed out")
        )
    if not view.config:
        notes.append(
            Note(
                "no_config",
                "without a config, elements are 16 bits and no family has ways of its own",
            )
        )
    notes += _check_notes(settings, pool)
    if settings.gpu_memory_utilization is not None:
        notes.append(
            Note(
                "gpu_memory_utilization",
                "gpu_memory_utilization decides the bytes that are available; these are given, and"
                " the share changes nothing here",
            )
        )
    if settings.kv_cache_memory_bytes is not None and not settings.release.has_memory_bytes:
        notes.append(
            Note(
                "no_kv_cache_memory_bytes",
                "vLLM {version} has no --kv-cache-memory-bytes (0.10.2 has): the bytes are taken as"
                " what its profile run leaves; --num-gpu-blocks-override sets a pool there",
                {"version": settings.release.name},
            )
        )
    if settings.data_parallel > 1:
        notes.append(
            Note(
                "data_parallel",
                "each of the {ranks} data-parallel replicas has a pool of its own, as planned here",
                {"ranks": settings.data_parallel},
            )
        )
    if settings.blocks_override is not None and starts and memory is not None:
        notes += _override_notes(pool, memory)
    sequences = settings.max_num_seqs
    has_states = has_state_layers(pool.workers[0].groups)
    if starts and has_states and sequences is not None and sequences > pool.num_blocks:
        notes.append(
            Note(
                "max_num_seqs",
                "max_num_seqs {asked} exceeds the {blocks} blocks: each running sequence needs one"
                " for its state, and vLLM refuses that while it captures CUDA graphs",
                {"asked": sequences, "blocks": pool.num_blocks},
            )
        )
    return tuple(notes)


def _check_notes(settings: VllmSettings, pool: Pool) -> list[Note]:
    """Return that the start-up check asks for less than a request takes: it saw the first group.

    vLLM 0.14.0 to 0.18.1 v1/core/kv_cache_utils.py.
    """
    release, blocks = settings.release, pool.blocks_per_request or 0
    if release.check_sees_all_groups or not release.check_sees_groups:
        return []
    short = [item for item in pool.workers if item.needed_bytes < blocks * item.bytes_per_block]
    if not short:
        return []
    return [
        Note(
            "check_sees_first_group",
            "the check of 0.14 to 0.18 asks the first group of layers alone, {needed}, where a"
            " request of the full length takes {request}: a start may pass that serves none",
            {
                "needed": bytes_text(short[0].needed_bytes),
                "request": bytes_text(blocks * short[0].bytes_per_block),
            },
        )
    ]


def _override_notes(pool: Pool, memory: int) -> list[Note]:
    """Return that blocks set by hand take more than there is: the engine does not compare them.

    vLLM 0.33.0 v1/core/kv_cache_utils.py `may_override_num_blocks` takes the number as it is.
    """
    most = max(worker.bytes_per_block for worker in pool.workers) * pool.num_blocks
    if most <= memory:
        return []
    return [
        Note(
            "override_exceeds_memory",
            "{blocks} blocks were set by hand and take {needed}, of {available} that are there:"
            " vLLM takes the number as it is and fails when it allocates them",
            {
                "blocks": pool.num_blocks,
                "needed": bytes_text(most),
                "available": bytes_text(memory),
            },
        )
    ]
