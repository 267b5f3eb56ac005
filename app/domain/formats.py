"""Which format each layer keeps its keys and values in, and the model as groups of equal states."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from app.domain.checks import checked_int
from app.domain.dtypes import DType
from app.domain.errors import Conflict, Missing, OutOfRange
from app.domain.state import KvFormat, Layer, ModelState, State


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRangeFormat:
    """Layers `first`..`last`, both included and counted from 0, keep this format."""

    first: int
    last: int
    format: KvFormat

    def __post_init__(self) -> None:
        checked_int(self.first, ("kv_dtype", "layers", 0), low=0, high=2**31)
        checked_int(self.last, ("kv_dtype", "layers", 1), low=0, high=2**31)
        if self.last < self.first:
            raise Conflict("{field}: the range {first}..{last} is empty",
                           field=("kv_dtype", "layers"), first=self.first,
                           last=self.last)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormats:
    """One format for every layer (`base`), with ranges of layers that keep another."""

    base: KvFormat | None
    ranges: tuple[LayerRangeFormat, ...] = ()

    @classmethod
    def same(cls, key: DType, value: DType | None = None) -> KvFormats:
        """Return the formats of a model whose layers all keep the same."""
        return cls(base=KvFormat(key=key, value=value or key))

    @property
    def distinct(self) -> tuple[KvFormat, ...]:
        """Return the formats that occur, each once."""
        own = () if self.base is None else (self.base,)
        return tuple(dict.fromkeys((*own, *(item.format for item in self.ranges))))

    def of_layer(self, index: int) -> KvFormat:
        """Return the format of layer `index`; a later range wins over an earlier one.

        Raises:
            Missing: when no range covers the layer and there is no base.

        """
        for item in reversed(self.ranges):
            if item.first <= index <= item.last:
                return item.format
        if self.base is None:
            raise Missing("{field} names no format for layer {layer}", field="kv_dtype",
                          layer=index)  # fmt: skip
        return self.base

    def check_within(self, num_layers: int) -> None:
        """Refuse a range that names layers which the model lacks."""
        for position, item in enumerate(self.ranges):
            if item.last >= num_layers:
                raise OutOfRange(
                    "{field}: layer {value} of a model of {layers} layers, which count from 0",
                    field=("kv_dtype", position, "layers"),
                    value=item.last,
                    layers=num_layers,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGroup:
    """`count` layers that keep the same state in the same format.

    `position_bytes` are those of one position in all of the group's layers, `fixed_bytes` those
    that do not go with positions; both are worked out once, when the group is made.
    """

    state: State
    format: KvFormat
    count: int
    position_bytes: int
    fixed_bytes: int

    @classmethod
    def of(cls, state: State, layer_format: KvFormat, count: int) -> StateGroup:
        """Return the group of `count` equal layers; raises as the state's own questions do."""
        return cls(
            state=state,
            format=layer_format,
            count=count,
            position_bytes=count * state.bytes_per_position(layer_format),
            fixed_bytes=count * state.fixed_bytes(),
        )


def placed_layers(model: ModelState, formats: KvFormats) -> list[tuple[int, Layer, KvFormat, int]]:
    """Return (first index, layer, format, count) runs in order, cut where a format changes."""
    formats.check_within(model.num_layers)
    cuts = sorted({item.first for item in formats.ranges} | {i.last + 1 for i in formats.ranges})
    placed: list[tuple[int, Layer, KvFormat, int]] = []
    start = 0
    for run in model.runs:
        end = start + run.count
        edges = [start, *(cut for cut in cuts if start < cut < end), end]
        for first, after in pairwise(edges):
            placed.append((first, run.layer, formats.of_layer(first), after - first))
        start = end
    return placed


def state_groups(model: ModelState, formats: KvFormats) -> tuple[StateGroup, ...]:
    """Return the model as groups of equal states in order of first appearance."""
    counts: dict[tuple[State, KvFormat], int] = {}
    for _, layer, layer_format, count in placed_layers(model, formats):
        for state in layer.states:
            key = (state, layer_format)
            counts[key] = counts.get(key, 0) + count
    return tuple(StateGroup.of(state, form, count) for (state, form), count in counts.items())
