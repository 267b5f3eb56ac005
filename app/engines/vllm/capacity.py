"""How many blocks the pool gets, and what a request of the maximum length takes of them.

vLLM 0.33.0 v1/core/kv_cache_planning.py `get_kv_cache_configs`, v1/core/kv_cache_utils.py
`get_max_concurrency_for_kv_cache_config`; earlier releases by the flags of `versions.Release`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import lcm

from app.domain.errors import Conflict, OutOfRange
from app.engines.vllm.grouping import form_groups
from app.engines.vllm.specs import (
    AttentionSpec,
    LayerSpec,
    MambaSpec,
    RequestBounds,
    UniformSpec,
    ceil_div,
    round_up,
)
from app.engines.vllm.types import Group, Grouping, Layers, on_workers
from app.engines.vllm.versions import Release

# Stages times groups: every stage has a part of every group.
MAX_PARTS = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """What decides the pool beside the layers.

    `blocks_override` is --num-gpu-blocks-override; `auto_fit` stands for --max-model-len auto.
    """

    release: Release
    bounds: RequestBounds
    hybrid_manager: bool = True
    block_outermost: bool = False
    blocks_override: int | None = None
    auto_fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """One worker's part: its layers of each group, what a block costs it, what its bytes hold.

    `refusal` is that of its own check, None where it passes.
    """

    groups: tuple[Group, ...]
    bytes_per_block: int
    available_bytes: int
    own_blocks: int
    needed_bytes: int
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the engine would not start: `needed_bytes` over `available_bytes`, and what would fit."""

    needed_bytes: int
    available_bytes: int
    estimated_max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pool of all workers: the smallest worker's number of blocks, or the one set by hand.

    `num_blocks` counts the null block, which is never handed out. `blocks_per_request` is what one
    request of `max_model_len` tokens takes, `group_blocks` the same by group, and `concurrency` how
    many such requests the pool holds at once (None in a model without a cache).
    """

    grouping: Grouping
    workers: tuple[WorkerPool, ...]
    num_blocks: int
    max_model_len: int
    group_blocks: tuple[int, ...]
    blocks_per_request: int | None
    concurrency: Fraction | None
    refusal: Refusal | None
    asked_max_model_len: int
    limiting_bytes: int


def fill_pool(
    workers: Sequence[Layers], available_bytes: Sequence[int], settings: PoolSettings
) -> Pool:
    """Return the pool that these workers' layers get from so many bytes each.

    Raises:
        Unsupported: where that release cannot group these layers.
        Conflict: where one worker keeps nothing and another does.

    """
    release = settings.release
    merged: dict[str, LayerSpec] = {}
    for layers in workers:
        merged |= layers
    grouping = form_groups(
        merged,
        release=release,
        hybrid_manager=settings.hybrid_manager and release.has_groups,
        block_outermost=settings.block_outermost,
    )
    if len(workers) * len(grouping.groups) > MAX_PARTS:
        raise OutOfRange(
            "{field} must be at most {high} where the layers form {groups} groups, got {value}",
            field="pipeline_parallel_size",
            high=MAX_PARTS // len(grouping.groups),
            groups=len(grouping.groups),
            value=len(workers),
        )
    parts = on_workers(grouping.groups, workers)
    outermost = settings.block_outermost
    per_block = [bytes_per_block(groups, block_outermost=outermost) for groups in parts]
    if any(per_block) and not all(per_block):
        raise Conflict(
            "{field}: stage {stage} keeps no cache while others do, and vLLM cannot size its pool",
            field="pipeline_parallel_size",
            stage=per_block.index(0),
        )
    memory = _memory_to_plan(available_bytes, per_block, settings)
    checked = [
        _check_of(layers, part, unit, size, grouping.groups, smallest=min(memory), release=release)
        for layers, part, unit, size in zip(workers, parts, per_block, memory, strict=True)
    ]
    bounds = settings.bounds
    checks = [check for check in checked if check is not None]
    limiting = checks[0].available_bytes if checks else 0
    if settings.auto_fit and release.auto_fits:
        bounds, limiting = _fitted(bounds, checks, limiting)
    refusals = [None if check is None else check.refusal(bounds) for check in checked]
    own = [
        size // unit if unit else 1 for size, unit in zip(available_bytes, per_block, strict=True)
    ]
    num_blocks = min(own)
    if settings.blocks_override is not None and any(per_block):
        num_blocks = settings.blocks_override
    group_blocks = tuple(group.spec.blocks_per_request(bounds) for group in parts[0])
    blocks = _request_blocks(parts[0], bounds, release) if group_blocks else None
    return Pool(
        grouping=grouping,
        workers=tuple(
            WorkerPool(
                groups=groups,
                bytes_per_block=unit,
                available_bytes=size,
                own_blocks=blocks,
                needed_bytes=0 if check is None else check.needed(bounds),
                refusal=refused,
            )
            for groups, unit, size, blocks, check, refused in zip(
                parts, per_block, available_bytes, own, checked, refusals, strict=True
            )
        ),
        num_blocks=num_blocks,
        max_model_len=bounds.max_model_len,
        group_blocks=group_blocks,
        blocks_per_request=blocks,
        concurrency=_concurrency(num_blocks, blocks, parts[0], bounds, release),
        refusal=next((refusal for refusal in refusals if refusal is not None), None),
        asked_max_model_len=settings.bounds.max_model_len,
        limiting_bytes=limiting,
    )


def bytes_per_block(groups: Sequence[Group], *, block_outermost: bool) -> int:
    """Return what one block costs a worker: the most bytes that any group puts into it."""
    if not groups:
        return 0
    if not block_outermost:
        return max(
            sum(spec.block_stride_bytes * count for spec, count in group.counted_specs)
            for group in groups
        )
    widest = max(
        sum(spec.page_bytes * count for spec, count in group.counted_specs) for group in groups
    )
    strides = {
        spec.block_stride_bytes
        for group in groups
        for spec, _ in group.counted_specs
        if isinstance(spec, AttentionSpec) and spec.block_stride_bytes != spec.page_bytes
    }
    return round_up(widest, lcm(*strides)) if strides else widest


def _request_blocks(groups: Sequence[Group], bounds: RequestBounds, release: Release) -> int:
    """Return the blocks of one request: each group's own, or their bytes' sum before 0.27."""
    if release.sums_group_blocks:
        return sum(group.spec.blocks_per_request(bounds) for group in groups)
    page = groups[0].spec.page_bytes
    needed = sum(group.spec.blocks_per_request(bounds) * group.spec.page_bytes for group in groups)
    return ceil_div(needed, page) if page else 0


def _concurrency(
    num_blocks: int,
    blocks: int | None,
    groups: Sequence[Group],
    bounds: RequestBounds,
    release: Release,
) -> Fraction | None:
    """Return requests of the maximum length; before groups existed, tokens over that length."""
    if not blocks:
        return None
    if release.has_groups:
        return Fraction(num_blocks, blocks)
    return Fraction(num_blocks * groups[0].spec.block_size, bounds.max_model_len)


def _memory_to_plan(
    available: Sequence[int], per_block: Sequence[int], settings: PoolSettings
) -> list[int]:
    """Return the bytes that the check sees: those of blocks set by hand, where it knows them."""
    override = settings.blocks_override
    if override is None or not settings.release.check_counts_override:
        return list(available)
    return [
        override * unit if unit else size for size, unit in zip(available, per_block, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """One worker's admission check: what a request needs at a length, against what there is."""

    need_at: Callable[[RequestBounds], int]
    available_bytes: int

    def needed(self, bounds: RequestBounds) -> int:
        return self.need_at(bounds)

    def estimate(self, bounds: RequestBounds) -> int:
        """Return the largest length up to the maximum that fits; 0 if no token does.

        Windows and tokens in flight are counted anew at each length; the need never falls with it.
        """
        if self.need_at(bounds.at(1)) > self.available_bytes:
            return 0
        low, high = 1, bounds.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.need_at(bounds.at(middle)) <= self.available_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def refusal(self, bounds: RequestBounds) -> Refusal | None:
        needed = self.need_at(bounds)
        if self.available_bytes > 0 and needed <= self.available_bytes:
            return None
        estimated = self.estimate(bounds) if self.available_bytes > 0 else 0
        return Refusal(
            needed_bytes=needed,
            available_bytes=self.available_bytes,
            estimated_max_model_len=estimated,
        )


def _fitted(
    bounds: RequestBounds, checks: Sequence[_Check], first_bytes: int
) -> tuple[RequestBounds, int]:
    """Return the bounds at the longest length that fits every worker, and the memory that set it.

    Where not even one token fits, the length stays, and the check will refuse it.
    """
    longest, limiting = bounds.max_model_len, first_bytes
    for check in checks:
        fits = check.estimate(bounds)
        if fits < longest:
            longest, limiting = fits, check.available_bytes
    return bounds.at(longest or bounds.max_model_len), limiting


def _check_of(
    layers: Layers,
    own_groups: tuple[Group, ...],
    unit: int,
    available: int,
    all_groups: tuple[Group, ...],
    *,
    smallest: int,
    release: Release,
) -> _Check | None:
    """Return the check that this release makes for one worker; None without layers.

    `unit` is a block's bytes on that worker, `smallest` the least memory of any worker.
    """
    if not layers:
        return None
    if not release.check_sees_groups:
        specs = tuple(layers.values())
        return _Check(need_at=partial(_need_of_layers, specs), available_bytes=available)
    if not release.check_projects_stages:
        need = partial(_need_of_first_group, all_groups)
        return _Check(need_at=need, available_bytes=smallest)
    if not release.check_sees_all_groups:
        need = partial(_need_of_first_group, own_groups)
        return _Check(need_at=need, available_bytes=available)
    if release.keeps_null_block:
        available -= unit
    need = partial(_need_of_groups, own_groups, unit)
    return _Check(need_at=need, available_bytes=available)


def _need_of_layers(specs: Sequence[LayerSpec], bounds: RequestBounds) -> int:
    """Return the layers' bytes, one by one (until 0.13)."""
    blocks: dict[int, int] = {}
    total = 0
    for spec in specs:
        if id(spec) not in blocks:
            blocks[id(spec)] = spec.blocks_per_request(bounds) * spec.page_bytes
        total += blocks[id(spec)]
    return total


def _need_of_first_group(groups: Sequence[Group], bounds: RequestBounds) -> int:
    """Return the bytes of the first group alone, as if it were all of them (0.14 to 0.18)."""
    first = groups[0].spec
    if len(groups) == 1 and isinstance(first, UniformSpec):
        return _need_of_layers([spec for _, spec in first.members], bounds)
    size = max(len(group.layers) for group in groups)
    return size * first.page_bytes * first.blocks_per_request(bounds)


def _need_of_groups(groups: Sequence[Group], unit: int, bounds: RequestBounds) -> int:
    """Return the blocks of all groups, each as large as the widest group's."""
    return unit * sum(group.spec.blocks_per_request(bounds) for group in groups)


def has_state_layers(groups: Sequence[Group]) -> bool:
    """Say whether any layer is recurrent: each running sequence then needs a block for it."""
    return any(isinstance(spec, MambaSpec) for group in groups for spec, _ in group.counted_specs)
