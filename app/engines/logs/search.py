"""Combinations of options, those of least weight first, and how many may be planned."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from app.engines.model import EngineModel

# A plan takes time in proportion to its layers; a search plans no more than so many in all.
_LAYERS_PLANNED = 24_000

# Options of one kind: settings, and how far they are from what most people run; in order.
Axis = Sequence[tuple[dict[str, object], float]]


def by_weight(
    axes: Sequence[Axis],
) -> Iterator[tuple[float, dict[str, object]]]:
    """Yield one option of every axis, in order of the weights' sum; each axis is in order."""
    first = (0,) * len(axes)
    queue = [(sum(axis[0][1] for axis in axes), first)]
    seen = {first}
    while queue:
        weight, at = heapq.heappop(queue)
        chosen: dict[str, object] = {}
        for axis, index in zip(axes, at, strict=True):
            chosen |= axis[index][0]
        yield weight, chosen
        for position, axis in enumerate(axes):
            index = at[position] + 1
            if index == len(axis):
                continue
            after = (*at[:position], index, *at[position + 1 :])
            if after not in seen:
                seen.add(after)
                step = axis[index][1] - axis[index - 1][1]
                heapq.heappush(queue, (weight + step, after))


def most_plans(model: EngineModel, most: int) -> int:
    """Return how many plans of a model may be tried: fewer where it has hundreds of layers."""
    layers = 1 if model.state is None else model.state.num_layers
    if model.gguf:
        count = model.gguf.get(f"{model.gguf.get('general.architecture')}.block_count")
        layers = count if isinstance(count, int) else layers
    return max(1, min(most, _LAYERS_PLANNED // max(layers, 1)))
