"""Which layers share a block table: vLLM's cache groups.

The rules are those of vLLM 0.33.0 v1/core/kv_cache_planning.py and, for earlier releases, of
v1/core/kv_cache_utils.py: one group if all layers agree; one group of mixed pages if all need the
same slots; packed groups in a block-outermost layout; else pages made equal, and as many groups of
equal size as the counts of the kinds give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd
from typing import Any

from app.domain.errors import Unsupported
from app.engines.vllm.packing import packed_groups
from app.engines.vllm.specs import (
    ELEMENT_BYTES,
    AttentionSpec,
    ChunkedSpec,
    FullSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MlaSpec,
    SlidingMlaSpec,
    SlidingSpec,
    UniformSpec,
    ceil_div,
)
from app.engines.vllm.types import Group, Grouping, Layers, Padding
from app.engines.vllm.versions import Release


def form_groups(
    layers: Layers,
    *,
    release: Release,
    hybrid_manager: bool = True,
    block_outermost: bool = False,
) -> Grouping:
    """Return the groups of the whole model, its layers given in order.

    Raises:
        Unsupported: where that release cannot start with such layers.

    """
    promoted = False
    if not hybrid_manager:
        layers, promoted = _promoted_everywhere(layers)
    if not layers:
        return Grouping(groups=(), hybrid_off_warning=promoted)
    single = _single_group(layers, release)
    if single is not None:
        return Grouping(groups=(single,), hybrid_off_warning=promoted)
    hidden = {name: spec for name, spec in layers.items() if isinstance(spec, HiddenStateSpec)}
    others = {name: spec for name, spec in layers.items() if name not in hidden}
    if block_outermost:
        packed = packed_groups(others)
        if packed is not None:
            alone = tuple(Group(layers=(name,), spec=spec) for name, spec in hidden.items())
            return Grouping(groups=packed + alone, hybrid_off_warning=promoted)
    return replace(_equal_page_groups(layers, others, hidden, release), hybrid_off_warning=promoted)


def _single_group(layers: Layers, release: Release) -> Group | None:
    """Return the one group of all layers, if they agree or at least need the same slots."""
    merged = _merged(layers)
    if merged is not None:
        return Group(layers=tuple(layers), spec=merged)
    if release.merges_uniform_types and is_uniform_type(layers):
        return Group(layers=tuple(layers), spec=UniformSpec.of(layers))
    return None


def is_uniform_type(layers: Layers) -> bool:
    """Say whether all layers always need the same slots: one block size, sharding and kind."""
    first, *others = _distinct(layers)
    return all(
        spec.block_size == first.block_size
        and spec.dcp_sharded == first.dcp_sharded
        and first.has_slots_of(spec)
        for spec in others
    )


def _distinct(layers: Layers) -> list[LayerSpec]:
    """Return the specs of the layers, one that several layers share once."""
    return list({id(spec): spec for spec in layers.values()}.values())


def _merged(layers: Layers) -> LayerSpec | None:
    """Return the one spec that stands for all layers, or None."""
    first, *others = _distinct(layers)
    merged: LayerSpec | None = first
    for spec in others:
        merged = merged.merged_with(spec) if merged is not None else None
    return merged


def _each(layers: Layers, make: Callable[[str, LayerSpec], LayerSpec]) -> dict[str, LayerSpec]:
    """Return the layers with what is made of each spec; layers that shared one still do."""
    made: dict[int, LayerSpec] = {}
    for name, spec in layers.items():
        if id(spec) not in made:
            made[id(spec)] = make(name, spec)
    return {name: made[id(spec)] for name, spec in layers.items()}


def _equal_page_groups(
    layers: Layers, others: Layers, hidden: Layers, release: Release
) -> Grouping:
    try:
        unified = unify_pages(others, release)
    except Unsupported:
        fallback = _full_allocation_group(layers) if release.falls_back_to_full else None
        if fallback is None:
            raise
        return Grouping(groups=(fallback,), full_allocation_warning=True)
    groups, paddings = _groups_of_equal_size(unified, release)
    if hidden:
        groups = _with_hidden_states(groups, hidden)
    return Grouping(groups=groups, paddings=paddings)


def unify_pages(layers: Layers, release: Release) -> Layers:
    """Return the layers with one page size, the largest.

    A page that divides it holds more tokens; a state is padded; another attention page is padded
    too, but no latent's, whose rows are addressed one after the other.

    Raises:
        Unsupported: for a page that can neither be scaled nor padded in that release.

    """
    pages = {spec.page_bytes for spec in _distinct(layers)}
    largest = max(pages)
    if len(pages) == 1:
        return layers
    if not release.unifies_pages:
        raise Unsupported(
            "{field}: vLLM {release} cannot start with layers of different pages beside each other",
            field="model",
            release=release.name,
        )
    return _each(layers, lambda name, spec: _unified(name, spec, largest, release))


def _unified(name: str, spec: LayerSpec, page: int, release: Release) -> LayerSpec:
    if spec.page_bytes == page:
        return spec
    if isinstance(spec, MambaSpec) and release.pads_state_pages:
        return replace(spec, page_bytes_padded=page)
    if not isinstance(spec, MambaSpec) and page % spec.page_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
    if (
        release.pads_attention_pages
        and isinstance(spec, AttentionSpec)
        and not isinstance(spec, MlaSpec)
    ):
        return replace(spec, page_bytes_padded=page)
    raise Unsupported(
        "{field}: the page of layer {layer} ({bytes} bytes) neither divides the largest page"
        " ({largest} bytes) nor can be padded to it in vLLM {release}",
        field="model",
        layer=name,
        bytes=spec.page_bytes,
        largest=page,
        release=release.name,
    )


def _groups_of_equal_size(
    layers: Layers, release: Release
) -> tuple[tuple[Group, ...], tuple[Padding, ...]]:
    """Split each kind's layers into groups of one size, filled up with empty places.

    The size is the count of the smallest kind, or of the largest while that is little more.
    """
    buckets = _buckets(layers, release)
    smallest = min(len(names) for names, _ in buckets)
    largest = max(len(names) for names, _ in buckets)
    ratio = release.larger_group_ratio
    size = largest if ratio is not None and largest < smallest * ratio else smallest
    groups: list[Group] = []
    paddings: list[Padding] = []
    for names, spec in buckets:
        missing = -len(names) % size
        if missing:
            paddings.append(Padding(layers=missing, bucket_layers=len(names), kind=spec.kind))
        count = ceil_div(len(names), size)
        for index in range(count):
            if release.strides_groups:
                members = names[index::count]
            else:
                members = names[index * size : (index + 1) * size]
            groups.append(Group(layers=tuple(members), spec=spec))
    return tuple(groups), tuple(paddings)


def _buckets(layers: Layers, release: Release) -> list[tuple[list[str], LayerSpec]]:
    """Return layers of equal specs together, in order of appearance."""
    by_spec: dict[LayerSpec, list[str]] = {}
    for name, spec in layers.items():
        by_spec.setdefault(spec, []).append(name)
    buckets: list[tuple[list[str], LayerSpec]] = []
    # Only full layers join others that are not equal, and only those that record another window.
    alike: dict[LayerSpec, list[int]] = {}
    for spec, names in by_spec.items():
        bare = replace(spec, window=None, chunk=None) if type(spec) is FullSpec else spec
        places = alike.setdefault(bare, [])
        for index in places if release.merges_buckets else ():
            joined, merged = buckets[index]
            both = merged.merged_with(spec)
            if both is not None:
                buckets[index] = (joined + names, both)
                break
        else:
            places.append(len(buckets))
            buckets.append((names, spec))
    return buckets


def _promoted_everywhere(layers: Layers) -> tuple[Layers, bool]:
    """Return the layers with windows and chunks allocated in full, where any layer is full."""
    result = dict(layers)
    for replicated in (True, False):
        part = {
            name: spec
            for name, spec in layers.items()
            if (isinstance(spec, AttentionSpec) and not spec.dcp_sharded) == replicated
        }
        if part:
            result.update(_promoted(part))
    return result, result != dict(layers)


def _promoted(layers: Layers) -> Mapping[str, LayerSpec]:
    """Return the layers as one kind of full attention, or raise Unsupported."""
    if _agree(layers):
        return layers
    full_sizes = {spec.block_size for spec in _distinct(layers) if isinstance(spec, FullSpec)}
    one_size = next(iter(full_sizes)) if len(full_sizes) == 1 else None
    result = dict(layers)
    if full_sizes:
        result = _each(layers, lambda _, spec: _as_full(spec, one_size or spec.block_size))
    if not _agree(result):
        raise Unsupported(
            "{field}: with the hybrid manager off, these layers cannot be allocated as one kind",
            field="disable_hybrid_kv_cache_manager",
        )
    return result


def _agree(layers: Layers) -> bool:
    return _merged(layers) is not None or is_uniform_type(layers)


def _as_full(spec: LayerSpec, block_size: int) -> LayerSpec:
    """Return a windowed or chunked spec as the full one that keeps every position."""
    if isinstance(spec, SlidingMlaSpec):
        return MlaSpec(**_shared_fields(spec, block_size), alignment=spec.alignment,
                       window=spec.window)  # fmt: skip
    if isinstance(spec, SlidingSpec):
        return FullSpec(**_shared_fields(spec, block_size), window=spec.window)
    if isinstance(spec, ChunkedSpec):
        return FullSpec(**_shared_fields(spec, block_size), chunk=spec.chunk)
    return spec


def _shared_fields(spec: AttentionSpec, block_size: int) -> dict[str, Any]:
    names = (
        "dcp_sharded", "is_draft", "kv_heads", "k_dim", "v_dim", "dtype", "quant_mode",
        "head_slots", "state_bytes", "tokens_per_state", "max_tp_shards", "cache_dtype",
        "distinct_ranks", "stride_multiple_bytes", "kernel_block_limit",
    )  # fmt: skip
    padded = spec.page_bytes_padded
    if padded is not None:
        padded = max(padded, spec.unpadded_page_bytes * block_size // spec.block_size)
    fields: dict[str, Any] = {name: getattr(spec, name) for name in names}
    return fields | {"block_size": block_size, "page_bytes_padded": padded}


def _full_allocation_group(layers: Layers) -> Group | None:
    """Return all layers as one group of mixed full pages: a latent beside plain windows."""
    specs = layers.values()
    if any(isinstance(spec, HiddenStateSpec | SlidingMlaSpec | ChunkedSpec) for spec in specs):
        return None
    if not any(isinstance(spec, MlaSpec) for spec in specs):
        return None
    if not any(isinstance(spec, SlidingSpec) for spec in specs):
        return None
    try:
        promoted = _promoted(layers)
    except Unsupported:
        return None
    if not is_uniform_type(promoted):
        return None
    return Group(layers=tuple(promoted), spec=UniformSpec.of(promoted))


def _with_hidden_states(groups: tuple[Group, ...], hidden: Layers) -> tuple[Group, ...]:
    """Return the groups with one more for each hidden-state layer, on the common page.

    Where one token's hidden state exceeds the page, every group's block grows until it fits.
    """
    page = groups[0].spec.page_bytes
    per_token = {name: _token_bytes(spec) for name, spec in hidden.items()}
    most = max(per_token.values())
    if most > page:
        scale = ceil_div(most, page)
        page *= scale
        groups = tuple(replace(group, spec=_scaled(group.spec, scale)) for group in groups)
    block_size = gcd(*(group.spec.block_size for group in groups))
    extra = tuple(
        Group(
            layers=(name,),
            spec=replace(
                spec,
                block_size=_largest_divisor(block_size, max(page // per_token[name], 1)),
                page_bytes_padded=page,
            ),
        )
        for name, spec in hidden.items()
        if isinstance(spec, HiddenStateSpec)
    )
    return groups + extra


def _token_bytes(spec: LayerSpec) -> int:
    if not isinstance(spec, HiddenStateSpec):
        return 0
    return spec.kv_heads * spec.k_dim * ELEMENT_BYTES[spec.dtype]


def _scaled(spec: LayerSpec, scale: int) -> LayerSpec:
    grown = replace(spec, block_size=spec.block_size * scale)
    if isinstance(grown, AttentionSpec | MambaSpec) and grown.page_bytes_padded is not None:
        return replace(grown, page_bytes_padded=grown.page_bytes_padded * scale)
    return grown


def _largest_divisor(value: int, limit: int) -> int:
    """Return the largest divisor of `value` that is not above `limit`."""
    best = 1
    candidate = 1
    while candidate * candidate <= value:
        if value % candidate == 0:
            for divisor in (candidate, value // candidate):
                if best < divisor <= limit:
                    best = divisor
        candidate += 1
    return best
