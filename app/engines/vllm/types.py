"""The values that pass between grouping, capacity and printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.engines.vllm.specs import LayerSpec, UniformSpec

Layers = Mapping[str, LayerSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one block table; `spec` is the one they agree on, or their sum."""

    layers: tuple[str, ...]
    spec: LayerSpec

    def part(self, places: Sequence[int]) -> Group:
        """Return the part of this group that is those of its layers, in the group's order."""
        if len(places) == len(self.layers):
            return self
        kept = tuple(self.layers[place] for place in sorted(places))
        spec = self.spec
        if kept and isinstance(spec, UniformSpec):
            # Members stand in the order of the group's layers.
            members = tuple(spec.members[place] for place in sorted(places))
            spec = UniformSpec(
                block_size=spec.block_size, dcp_sharded=spec.dcp_sharded, members=members
            )
        return Group(layers=kept, spec=spec)

    @property
    def counted_specs(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Each spec of the group's layers, with how many layers have it."""
        if not self.layers:
            return ()
        if not isinstance(self.spec, UniformSpec):
            return ((self.spec, len(self.layers)),)
        # Equal layers mostly share one object, which is cheaper to tell than equality.
        counts = Counter(id(spec) for _, spec in self.spec.members)
        specs = {id(spec): spec for _, spec in self.spec.members}
        return tuple((spec, counts[key]) for key, spec in specs.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Empty places that fill up one kind's groups: at most that share of its memory is lost."""

    layers: int
    bucket_layers: int
    kind: str

    @property
    def share(self) -> Fraction:
        """Empty places for each real layer of the kind."""
        return Fraction(self.layers, self.bucket_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """All groups of a model, and what the engine warns of while it forms them."""

    groups: tuple[Group, ...]
    paddings: tuple[Padding, ...] = ()
    hybrid_off_warning: bool = False
    full_allocation_warning: bool = False


def on_workers(
    groups: Sequence[Group], workers: Sequence[Mapping[str, object]]
) -> list[tuple[Group, ...]]:
    """Return each worker's part of every group: the layers that it holds, which may be none."""
    place = {
        name: (index, position)
        for index, group in enumerate(groups)
        for position, name in enumerate(group.layers)
    }
    none = tuple(group.part(()) for group in groups)
    parts = []
    for layers in workers:
        held: dict[int, list[int]] = {}
        for name in layers:
            index, position = place[name]
            held.setdefault(index, []).append(position)
        parts.append(
            tuple(
                group.part(held[index]) if index in held else none[index]
                for index, group in enumerate(groups)
            )
        )
    return parts
