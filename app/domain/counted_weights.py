"""From a model's list of weights to what a pass multiplies and reads, and how many heads ask."""

from __future__ import annotations

from app.domain.projections import ProjectionShape
from app.domain.weight_lines import Component, Cut, Kind, Part, Place, WeightBlock, WeightLine
from app.domain.weights import ModelWeights
from app.domain.work_plan import CountedMatrices


def counted_matrices(weights: ModelWeights) -> CountedMatrices:
    """Return the matrices of the text decoder that one token uses, and their bytes as stored.

    Convolutions count as matrices (a weight is one multiply–accumulate a token); tables are looked
    up and vectors are elementwise. A tied output is the token table, read whole for the logits.
    """
    token_weights = logits_weights = read_bytes = 0
    for block in weights.chosen([Part.TEXT]):
        for line in block.lines:
            used = block.repeats * line.active_parameters
            if _is_output(line) or (weights.tied and _is_token_table(block, line)):
                logits_weights += used
            elif line.kind in {Kind.MATRIX, Kind.GATE, Kind.CONVOLUTION}:
                token_weights += used
            else:
                continue
            read_bytes += block.repeats * line.size_bytes * line.active // line.copies
    return CountedMatrices(
        token_weights=token_weights, logits_weights=logits_weights, read_bytes=read_bytes
    )


def asking_heads(weights: ModelWeights) -> ProjectionShape:
    """Return the query heads of the layers, as the cuts of their attention matrices say them.

    The output matrix is cut into query heads and grouped keys into no more than those, so the
    most units are the query heads. One number stands for all layers where those with attention
    agree, since a layer may borrow its attention from another; else a layer without has 0.
    Experts are passed on as the most copies of which a token uses a part.
    """
    heads = [0] * weights.num_layers
    for block in weights.chosen([Part.TEXT]):
        if block.place is not Place.LAYERS:
            continue
        units = [
            line.units
            for line in block.lines
            if line.component is Component.ATTENTION and line.cut is Cut.EVEN
        ]
        for layer in block.layers:
            heads[layer] = max([heads[layer], *units])
    experts = [
        line.copies
        for block in weights.chosen([Part.TEXT])
        for line in block.lines
        if line.active < line.copies
    ]
    distinct = set(heads) - {0}
    alike = distinct.pop() if len(distinct) == 1 else None
    differing = tuple(heads) if distinct else None
    return ProjectionShape(query_heads=alike or differing, experts=max(experts, default=0))


def _is_output(line: WeightLine) -> bool:
    return line.component is Component.OUTPUT and line.kind is Kind.MATRIX


def _is_token_table(block: WeightBlock, line: WeightLine) -> bool:
    return (
        block.place is Place.FIRST
        and line.component is Component.EMBEDDING
        and line.cut is Cut.VOCABULARY
    )
