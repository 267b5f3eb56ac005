"""What one rank's layers keep for a token and for a sequence, and the blocks that memory holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from app.domain.errors import Conflict, Missing, OutOfRange, Unsupported
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
from app.engines.setting_values import SettingValues
from app.engines.tensorrt_llm.settings import MAX_AVAILABLE_BYTES, MAX_RANKS, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share a pool: those of one window (None: full length), or cross-attention."""

    name: str
    window: int | None
    layers: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Bytes of one token in each group of layers of a stage, and of one sequence's states."""

    groups: tuple[LayerGroup, ...]
    state_bytes: int
    copied: Fraction

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token in all groups."""
        return sum(group.bytes_per_token for group in self.groups)


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
) -> Rank:  # fmt: skip
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
    return Rank(
        groups=tuple(
            LayerGroup(
                name=name,
                window=window,
                layers=count,
                bytes_per_token=int(elements * element),
            )
            for (name, window), (count, elements) in groups.items()
        ),
        state_bytes=states,
        copied=copied / elements_all if elements_all else Fraction(0),
    )


def budget_of(values: SettingValues, fraction: float, available_bytes: int | None) -> int | None:
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


def _shares(values: SettingValues, rank: Rank, budget: int) -> list[int]:
    """Return each group's bytes: a part for cross-attention, the rest evenly over the windows."""
    names = [group.name for group in rank.groups]
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


def blocks_of(
    values: SettingValues, rank: Rank, budget: int | None, block: int, most: int | None
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
    for group, share in zip(rank.groups, _shares(values, rank, budget), strict=True):
        tokens = share // group.bytes_per_token
        tokens = tokens if most is None else min(tokens, most)
        blocks.append(-(-tokens // block) if len(rank.groups) == 1 else tokens // block)
    return blocks


def ranks_of(
    values: SettingValues, state: ModelState, element: Fraction, windows: list[int | None]
) -> list[Rank]:
    """Return each pipeline stage's share of one tensor rank; the layers divide evenly."""
    stages = positive(values, "pp_size", 1, MAX_RANKS)
    ranks = positive(values, "tp_size", 1, MAX_RANKS)
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


def _with_drafts(rank: Rank, drafts: int) -> Rank:
    """Return a rank whose first group holds the drafting layers too, as wide as its own."""
    if not drafts or not rank.groups:
        return rank
    first, *rest = rank.groups
    size = first.bytes_per_token
    grown = replace(
        first,
        layers=first.layers + drafts,
        bytes_per_token=size + size // first.layers * drafts,
    )
    return Rank(groups=(grown, *rest), state_bytes=rank.state_bytes, copied=rank.copied)
