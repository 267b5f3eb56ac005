"""What one rank's layers keep for a token and for a sequence, layers of one window together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby

from app.domain.errors import Conflict, Unsupported
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    SlidingWindow,
    State,
)
from app.engines.tensorrt_llm.settings import Settings

# One fp32 scale for each 128 elements of an index key.
_INDEX_BLOCK = 128
_INDEX_SCALE_BYTES = 4
# Stages may differ by one layer since; before, layers had to divide among them.
_UNEVEN_STAGES_SINCE = (0, 20)
# The list of windows runs over the model's layers since; before, over those of a stage.
_MODEL_WIDE_WINDOWS_SINCE = (1, 3)
# Before, the budget multiplied the index key's part by the latent and by its format.
INDEX_BUDGET_SINCE = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share a pool: those of one window, or those of cross-attention.

    `window` is None where neither a window nor the context is known: full length. The budget counts
    `budget_bytes` for a token, where early releases counted something else than they allocated.
    """

    name: str
    window: int | None
    layers: int
    bytes_per_token: int
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Bytes of one token in each group of layers of a stage, and of one sequence's states."""

    groups: tuple[LayerGroup, ...]
    state_bytes: int
    index_bytes: int
    copied: Fraction

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in all groups."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def windows(self) -> tuple[LayerGroup, ...]:
        """Return the groups that are divided by window, cross-attention left out."""
        return tuple(group for group in self.groups if group.name == "self")


def _refused(template: str) -> Unsupported:
    return Unsupported(
        "{field}: pools of {what} are not known here", field="model", what=Note("", template)
    )


def _row(state: State, ranks: int) -> tuple[int, Fraction]:
    """Return the elements of one token in a layer of a rank, and which part of them is copied.

    Heads are divided and rounded up; a latent is one head, so every rank has all of it.

    Raises:
        Unsupported: for layers that this engine keeps in pools of another kind.

    """
    if isinstance(state, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention):
        if isinstance(state, FullAttention) and state.index_dim:
            raise _refused("index keys beside plain attention")
        heads = -(-state.kv_heads // ranks)
        copied = 1 - Fraction(state.kv_heads, ranks * heads)
        return heads * (state.k_dim + state.v_dim), copied
    if isinstance(state, LatentAttention):
        if state.tokens_per_entry > 1 or state.window is not None:
            raise _refused("compressed or windowed latent entries")
        return state.latent_dim + state.rope_dim, 1 - Fraction(1, ranks)
    return 0, Fraction(0)


def _state_bytes(state: State, ranks: int) -> int:
    if not isinstance(state, Recurrent):
        return 0
    total = 0
    for tensor in state.tensors:
        parts = ranks if tensor.split_axis is not None else 1
        if tensor.split_axis is not None and tensor.shape[tensor.split_axis] % ranks:
            raise Conflict("{field} {ranks} does not divide the state axis of {size}",
                           field="tp_size", ranks=ranks,
                           size=tensor.shape[tensor.split_axis])  # fmt: skip
        total += tensor.size_bytes // parts
    return total


def _index_key(model: ModelState, settings: Settings) -> tuple[int, int]:
    """Return the elements and bytes of a token's index key in each latent layer, with its scales.

    It is kept in fp8 or fp4 whatever the format of the cache, by every latent layer or by none.
    """
    widths = {
        state.index_dim
        for run in model.runs
        for state in run.layer.states
        if isinstance(state, LatentAttention)
    } - {0}
    if len(widths) > 1:
        raise _refused("index keys of different widths")
    width = max(widths, default=0)
    scales = width // _INDEX_BLOCK * _INDEX_SCALE_BYTES
    return width, (width // 2 if settings.index_packed else width) + scales


@dataclass(slots=True)
class _Sums:
    """What is added up over the layers of a stage."""

    layers: dict[tuple[str, int | None], int]
    elements: dict[tuple[str, int | None], int]
    latents: dict[tuple[str, int | None], int]
    states: int = 0
    copied: Fraction = Fraction(0)


def _window(index: int, first: int, settings: Settings) -> int | None:
    """Return a layer's window: of the list given, over and over, no longer than the context."""
    if not settings.windows:
        return settings.context_tokens
    place = index if settings.version >= _MODEL_WIDE_WINDOWS_SINCE else index - first
    window = settings.windows[place % len(settings.windows)]
    return window if settings.context_tokens is None else min(window, settings.context_tokens)


def _add(sums: _Sums, state: State, window: int | None, count: int, ranks: int) -> None:
    """Add the state of so many layers of one window."""
    sums.states += count * _state_bytes(state, ranks)
    elements, part = _row(state, ranks)
    if not elements:
        return
    cross = isinstance(state, CrossAttention)
    key = ("cross", None) if cross else ("self", window)
    sums.layers[key] = sums.layers.get(key, 0) + count
    sums.elements[key] = sums.elements.get(key, 0) + count * elements
    latents = count * isinstance(state, LatentAttention)
    sums.latents[key] = sums.latents.get(key, 0) + latents
    sums.copied += part * count * elements


def _rank(
    layers: Sequence[Layer], first: int, index_key: tuple[int, int], settings: Settings
) -> Rank:
    """Return what these layers, of which the model's number `first` is one, keep on one rank."""
    sums = _Sums({}, {}, {})
    windows = (_window(index, first, settings) for index in range(first, first + len(layers)))
    # Equal layers in a row are mostly one object.
    for (_, window), equal in groupby(
        zip(layers, windows, strict=True), key=lambda pair: (id(pair[0]), pair[1])
    ):
        (layer, _), *others = equal
        for state in layer.states:
            _add(sums, state, window, 1 + len(others), settings.tensor_ranks)
    groups = [_group(key, sums, index_key, settings) for key in sums.layers]
    total = sum(sums.elements.values())
    return Rank(
        groups=tuple(sorted(groups, key=lambda group: (group.name == "cross", group.window or 0))),
        state_bytes=sums.states,
        index_bytes=index_key[1] * sum(sums.latents.values()),
        copied=sums.copied / total if total else Fraction(0),
    )


def _group(
    key: tuple[str, int | None], sums: _Sums, index_key: tuple[int, int], settings: Settings
) -> LayerGroup:
    elements, latents = sums.elements[key], sums.latents[key]
    index_elements, index_row = index_key
    size = _ceiled(elements * settings.element)
    budget = size + latents * index_row
    if latents and index_row and settings.version < INDEX_BUDGET_SINCE:
        counted = _ceiled(elements * (1 + Fraction(index_row, index_elements)))
        budget = _ceiled(counted * settings.element)
    return LayerGroup(
        name=key[0],
        window=key[1],
        layers=sums.layers[key],
        bytes_per_token=size + latents * index_row,
        budget_bytes=budget,
    )


def _ceiled(value: Fraction) -> int:
    return -(-value // 1)


def ranks_of(state: ModelState, settings: Settings) -> list[Rank]:
    """Return each pipeline stage's share of one tensor rank; the first stages may have one more.

    Raises:
        Conflict: when a release that divides layers evenly cannot, or a stage is left empty.
        Unsupported: for layers that no pool of this engine is known to hold.

    """
    stages, layers = settings.pipeline_ranks, state.num_layers
    size, rest = divmod(layers, stages)
    if not size or (rest and settings.version < _UNEVEN_STAGES_SINCE):
        raise Conflict("{field} {stages} does not divide the {layers} layers", field="pp_size",
                       stages=stages, layers=layers)  # fmt: skip
    found, first = [], 0
    every, index_key = list(state.layers), _index_key(state, settings)
    for stage in range(stages):
        last = first + size + (stage < rest)
        found.append(_rank(every[first:last], first, index_key, settings))
        first = last
    found[-1] = _with_drafts(found[-1], settings.draft_layers)
    return found


def _with_drafts(rank: Rank, drafts: int) -> Rank:
    """Return the last stage with the drafting layers in its widest group, as wide as its own."""
    if not drafts or not rank.windows:
        return rank
    *others, last = rank.windows
    grown = replace(
        last,
        layers=last.layers + drafts,
        bytes_per_token=last.bytes_per_token + last.bytes_per_token // last.layers * drafts,
        budget_bytes=last.budget_bytes + last.budget_bytes // last.layers * drafts,
    )
    cross = [group for group in rank.groups if group.name == "cross"]
    return replace(rank, groups=(*others, grown, *cross))
