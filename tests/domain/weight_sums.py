"""Sums over the lines of weights that tests compare with figures worked by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.domain.weight_lines import Part, Place
from app.domain.weights import ModelWeights


def by_component(weights: ModelWeights, parts: Iterable[Part] | None = None) -> dict[str, int]:
    """Return parameters by component, of all but the multi-token parts unless told."""
    sums: Counter[str] = Counter()
    for block in weights.chosen(parts):
        for line in block.lines:
            sums[line.component.value] += block.repeats * line.parameters
    return dict(sums)


def by_part(weights: ModelWeights) -> dict[str, int]:
    """Return parameters by part, the multi-token part included."""
    sums: Counter[str] = Counter()
    for block in weights.blocks:
        sums[block.part.value] += block.parameters
    return dict(sums)


def layer_parameters(weights: ModelWeights, layer: int) -> int:
    """Return the parameters of one decoder layer."""
    return sum(line.parameters for block in weights.blocks if block.part is Part.TEXT
               if block.place is Place.LAYERS and layer in block.layers
               for line in block.lines)  # fmt: skip


def layer_bytes(weights: ModelWeights, layer: int) -> int:
    """Return the bytes of one decoder layer."""
    return sum(line.size_bytes for block in weights.blocks if block.part is Part.TEXT
               if block.place is Place.LAYERS and layer in block.layers
               for line in block.lines)  # fmt: skip
