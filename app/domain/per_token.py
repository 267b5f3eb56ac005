"""What a sequence costs: a slope, windows that saturate, and a fixed part.

`bytes_per_token` alone is a lie for most models; the three parts together are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from app.domain.formats import KvFormats, StateGroup, state_groups
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    ModelState,
    Recurrent,
    SlidingWindow,
    State,
)
from app.domain.working import Working, fixed_term, position_factor, position_term

MAX_REMEMBERED_RUNS = 256
TEXTBOOK = "2·L·H_kv·d·s: keys and values of every layer and KV head, d wide, s bytes an element"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the bytes of one sequence grow: slope, windows, fixed part; each an exact integer.

    `growth_bytes` are added by every `growth_tokens` tokens; that is one token unless a layer keeps
    one compressed entry for several.
    """

    growth_bytes: int
    growth_tokens: int
    window_bytes: int
    fixed_bytes: int
    groups: tuple[StateGroup, ...]
    workings: dict[str, Working]

    @property
    def bytes_per_token(self) -> int:
        """Return what one more token adds in every growing layer, rounded up if it is a part."""
        return -(-self.growth_bytes // self.growth_tokens)


def window_positions(state: State) -> int | None:
    """Return how many positions a saturating state holds at most; None for any other."""
    if isinstance(state, SlidingWindow):
        return state.window - 1
    if isinstance(state, ChunkedAttention):
        return state.chunk - 1
    if isinstance(state, LatentAttention) and state.window is not None:
        return state.window - 1
    return None


def peak_tokens(state: State, tokens: int) -> int:
    """Return the most positions a state holds on the way to `tokens`; it never falls with them.

    A chunk is dropped at its boundary, so its peak lies just before one; every other state holds
    its most at the end.
    """
    if isinstance(state, ChunkedAttention):
        return min(tokens, state.chunk - 1)
    return state.kept_tokens(tokens)


def grows(state: State) -> bool:
    """Return whether every further token adds to this state."""
    if isinstance(state, FullAttention):
        return True
    return isinstance(state, LatentAttention) and state.window is None


def shape_of(model: ModelState, formats: KvFormats) -> Shape:
    """Return the slope, the windows and the fixed part of one sequence of a model.

    The last few are remembered: people ask about one model many times over. Large mixtures are
    not, so that nobody can fill the memory with them.

    Raises:
        Unsupported: when a row does not divide into the format's blocks.

    """
    if len(model.runs) + len(formats.ranges) > MAX_REMEMBERED_RUNS:
        return _shape_of(model, formats)
    return _remembered_shape_of(model, formats)


@lru_cache(maxsize=128)
def _remembered_shape_of(model: ModelState, formats: KvFormats) -> Shape:
    return _shape_of(model, formats)


def _shape_of(model: ModelState, formats: KvFormats) -> Shape:
    groups = state_groups(model, formats)
    growing = [group for group in groups if grows(group.state)]
    windows = [group for group in groups if window_positions(group.state) is not None]
    crossing = [group for group in groups if isinstance(group.state, CrossAttention)]
    constant = [group for group in groups if isinstance(group.state, Recurrent)]
    period = lcm(*(_entry_tokens(group) for group in growing))
    growth = sum(group.position_bytes * (period // _entry_tokens(group)) for group in growing)
    window = sum(group.position_bytes * (window_positions(group.state) or 0) for group in windows)
    cross = sum(group.position_bytes * group.state.kept_tokens(1) for group in crossing)
    fixed = cross + sum(group.fixed_bytes for group in constant)
    return Shape(
        growth_bytes=growth,
        growth_tokens=period,
        window_bytes=window,
        fixed_bytes=fixed,
        groups=groups,
        workings={
            "bytes_per_token": _slope_working(growing, growth, period),
            "window_bytes_per_sequence": _window_working(windows, window),
            "fixed_bytes_per_sequence": _fixed_working(crossing, constant, fixed),
        },
    )


def _entry_tokens(group: StateGroup) -> int:
    return group.state.tokens_per_entry if isinstance(group.state, LatentAttention) else 1


def _sum_of(terms: list[str]) -> str:
    return " + ".join(terms) if terms else "0"


def _slope_working(growing: list[StateGroup], growth: int, period: int) -> Working:
    terms = []
    for group in growing:
        ratio = _entry_tokens(group)
        term = position_term(group)
        terms.append(term if ratio == period else f"({term}) × {period // ratio}")
    unit = "B/token" if period == 1 else f"B per {period} tokens"
    return Working(
        symbols="Σ over growing layers of heads × (k + v) × bytes of an element",
        numbers=f"{_sum_of(terms)} = {growth} {unit}",
        result=growth,
        unit=unit,
        source=TEXTBOOK,
    )


def _window_working(windows: list[StateGroup], total: int) -> Working:
    terms = [
        f"{position_factor(group)} × {window_positions(group.state)} positions" for group in windows
    ]
    return Working(
        symbols="Σ over windowed layers of bytes of a position × (window − 1)",
        numbers=f"{_sum_of(terms)} = {total} B",
        result=total,
        unit="B",
        source="a query in a window of w sees itself and w − 1 earlier positions",
    )


def _fixed_working(crossing: list[StateGroup], constant: list[StateGroup], total: int) -> Working:
    terms = [
        f"{position_term(group)} × {group.state.kept_tokens(1)} encoder positions"
        for group in crossing
    ]
    terms += [fixed_term(group) for group in constant]
    return Working(
        symbols="Σ over recurrent layers of their tensors + cross-attention of the encoder",
        numbers=f"{_sum_of(terms)} = {total} B",
        result=total,
        unit="B",
        source="recurrent states do not grow; cross-attention is written once",
    )


NEVER_COUNTED = (
    Note("weights", "The model's weights are not counted."),
    Note("activations", "Activations of the tokens being computed are not counted."),
    Note("attention_workspace", "Workspace of the attention kernels is not counted."),
    Note("communication", "Communication buffers between devices are not counted."),
    Note("cuda_graphs", "Captured CUDA graphs are not counted."),
    Note("block_tables", "Block tables and the scheduler's own records are not counted."),
)


def omissions(formats: KvFormats) -> tuple[Note, ...]:
    """Return what a figure of inference state leaves out, whatever the model."""
    notes = list(NEVER_COUNTED)
    unscaled = sorted(
        {
            dtype.name
            for layer_format in formats.distinct
            for dtype in (layer_format.key, layer_format.value)
            if not dtype.scales_counted
        }
    )
    if unscaled:
        notes.append(
            Note(
                "quantisation_scales",
                "Scales of {formats} are not counted: how many there are depends on the engine.",
                {"formats": ", ".join(unscaled)},
            )
        )
    return tuple(notes)
