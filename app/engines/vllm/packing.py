"""Groups of mixed pages packed side by side in each block, for block-outermost layouts.

vLLM 0.33.0 v1/core/kv_cache_planning.py `_get_packed_kv_cache_groups`: layers that need the same
slots form a bucket; a bucket with as many layers of each page size repeats a pattern and is split
by a common number of repeats; buckets of states are split until they fit the widest other group.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.engines.vllm.specs import (
    LayerSpec,
    MambaSpec,
    RingSpec,
    SlidingSpec,
    UniformSpec,
    ceil_div,
)
from app.engines.vllm.types import Group, Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """Layers with the same slots, and their names by page size in order of appearance."""

    layers: Layers
    names_by_page: dict[int, list[str]]

    @property
    def is_balanced(self) -> bool:
        return len({len(names) for names in self.names_by_page.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(len(names) for names in self.names_by_page.values())

    @property
    def first(self) -> LayerSpec:
        return next(iter(self.layers.values()))

    def widest_group_bytes(self, groups: int) -> int:
        """Page bytes of the largest of the groups that the bucket splits into."""
        return sum(
            ceil_div(len(names), groups) * page for page, names in self.names_by_page.items()
        )


def packed_groups(layers: Layers) -> tuple[Group, ...] | None:
    """Return the packed groups, or None where all pages are one size already."""
    if len({spec.page_bytes for spec in layers.values()}) <= 1:
        return None
    buckets = _buckets(layers)
    floor = max(
        (b.repeats for b in buckets if b.is_balanced and len(b.names_by_page) > 1), default=0
    )
    repeats = None
    if floor:
        repeats = _least_padding_size([b.repeats for b in buckets if b.is_balanced], floor)
    counts = [
        ceil_div(bucket.repeats, repeats) if repeats is not None and bucket.is_balanced else 1
        for bucket in buckets
    ]
    anchor = max(
        bucket.widest_group_bytes(len(bucket.layers) if _is_state(bucket, repeats) else count)
        for bucket, count in zip(buckets, counts, strict=True)
    )
    groups: list[Group] = []
    for bucket, fixed in zip(buckets, counts, strict=True):
        count = fixed
        if _is_state(bucket, repeats):
            states_in_a_block = max(anchor // bucket.first.page_bytes, 1)
            count = max(count, ceil_div(len(bucket.layers), states_in_a_block))
        groups += _split(bucket, count)
    return tuple(groups)


def _buckets(layers: Layers) -> list[_Bucket]:
    found: list[dict[str, LayerSpec]] = []
    for name, spec in layers.items():
        for members in found:
            first = next(iter(members.values()))
            if (
                spec.block_size == first.block_size
                and spec.dcp_sharded == first.dcp_sharded
                and first.has_slots_of(spec)
            ):
                members[name] = spec
                break
        else:
            found.append({name: spec})
    buckets = []
    for members in found:
        by_page: dict[int, list[str]] = {}
        for name, spec in members.items():
            by_page.setdefault(spec.page_bytes, []).append(name)
        buckets.append(_Bucket(layers=members, names_by_page=by_page))
    return buckets


def _is_state(bucket: _Bucket, repeats: int | None) -> bool:
    """States, rings and unsplit windows may go down to one a group."""
    if isinstance(bucket.first, MambaSpec | RingSpec):
        return True
    return repeats is None and isinstance(bucket.first, SlidingSpec)


def _split(bucket: _Bucket, count: int) -> list[Group]:
    if count == 1:
        return [Group(layers=tuple(bucket.layers), spec=UniformSpec.of(bucket.layers))]
    pattern = list(zip(*bucket.names_by_page.values(), strict=False))
    groups = []
    for index in range(count):
        members = {name: bucket.layers[name] for repeat in pattern[index::count] for name in repeat}
        groups.append(Group(layers=tuple(members), spec=UniformSpec.of(members)))
    return groups


def _least_padding_size(counts: list[int], low: int) -> int:
    """Return the size d from `low` up for which rounding every count up to d pads least.

    Of equals the larger is taken.
    """
    best = low
    best_padding: int | None = None
    for size in range(low, max(counts) + 1):
        padding = sum(-count % size for count in counts)
        if best_padding is None or padding <= best_padding:
            best, best_padding = size, padding
    return best
