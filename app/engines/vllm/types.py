"""The values that pass between grouping, capacity and printing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.engines.vllm.specs import LayerSpec, UniformSpec

Layers = Mapping[str, LayerSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one block table; `spec` is the one they agree on, or their sum."""

    layers: tuple[str, ...]
    spec: LayerSpec

    def on_worker(self, names: Mapping[str, object]) -> Group:
        """Return the part of this group whose layers that worker holds (it may be empty)."""
        kept = tuple(name for name in self.layers if name in names)
        if len(kept) == len(self.layers):
            return self
        spec = self.spec
        if kept and isinstance(spec, UniformSpec):
            members = tuple(member for member in spec.members if member[0] in names)
            spec = UniformSpec(
                block_size=spec.block_size, dcp_sharded=spec.dcp_sharded, members=members
            )
        return Group(layers=kept, spec=spec)


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
