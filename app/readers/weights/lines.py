"""Builders of weight lines: a linear layer, a norm, a table, a convolution."""

from __future__ import annotations

from app.domain.weight_formats import Plain
from app.domain.weight_lines import Component, Cut, Kind, WeightLine

Lines = tuple[WeightLine, ...]
FP32 = Plain(dtype="F32")


def linear(  # noqa: PLR0913  # each is a fact of one kind of layer
    name: str,
    component: Component,
    outputs: int,
    inputs: int,
    *,
    bias: bool = False,
    cut: Cut = Cut.WHOLE,
    units: int = 1,
    axis: int = 0,
    copies: int = 1,
    active: int = 1,
    by_expert: bool = False,
    kind: Kind = Kind.MATRIX,
) -> Lines:
    """Return a linear layer: a matrix of (outputs, inputs), and a bias of its outputs.

    Cut along the inputs (`axis` 1), every tensor rank keeps the whole bias.
    """
    matrix = WeightLine(
        name=f"{name}.weight",
        component=component,
        shape=(outputs, inputs),
        kind=kind,
        copies=copies,
        active=active,
        cut=cut,
        units=units,
        axis=axis,
        by_expert=by_expert,
    )
    if not bias:
        return (matrix,)
    whole = cut is Cut.WHOLE or axis == 1
    return matrix, WeightLine(
        name=f"{name}.bias",
        component=component,
        shape=(outputs,),
        kind=Kind.VECTOR,
        copies=copies,
        active=active,
        cut=Cut.WHOLE if whole else cut,
        units=1 if whole else units,
        by_expert=by_expert,
    )


def vector(
    name: str,
    component: Component,
    *shape: int,
    cut: Cut = Cut.WHOLE,
    units: int = 1,
    is_buffer: bool = False,
    fp32: bool = False,
) -> Lines:
    """Return a small tensor that no quantiser touches: a norm, a scale, a bias of its own."""
    return (
        WeightLine(
            name=name,
            component=component,
            shape=shape,
            kind=Kind.VECTOR,
            cut=cut,
            units=units,
            is_buffer=is_buffer,
            format=FP32 if fp32 else Plain(),
        ),
    )


def norm(
    name: str, width: int, *, bias: bool = False, component: Component = Component.NORM
) -> Lines:
    """Return a norm's weight, and its bias for a LayerNorm."""
    weight = vector(f"{name}.weight", component, width)
    return (*weight, *vector(f"{name}.bias", component, width)) if bias else weight


def table(
    name: str,
    rows: int,
    columns: int,
    *,
    component: Component = Component.EMBEDDING,
    cut: Cut = Cut.WHOLE,
) -> Lines:
    """Return a lookup table: token or position embeddings."""
    return (
        WeightLine(
            name=name,
            component=component,
            shape=(rows, columns),
            kind=Kind.TABLE,
            cut=cut,
        ),
    )


def convolution(
    name: str,
    component: Component,
    *shape: int,
    bias: bool = False,
    cut: Cut = Cut.WHOLE,
    units: int = 1,
) -> Lines:
    """Return a convolution's kernel (outputs, inputs of a group, widths …) and its bias."""
    kernel = WeightLine(
        name=f"{name}.weight",
        component=component,
        shape=shape,
        kind=Kind.CONVOLUTION,
        cut=cut,
        units=units,
    )
    if not bias:
        return (kernel,)
    return kernel, *vector(f"{name}.bias", component, shape[0], cut=cut, units=units)
