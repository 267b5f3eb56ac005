"""Plotly figures as plain JSON values.

Plotly's own classes check a figure's frame once and lend it out; each request fills in its data.
Building a figure anew costs milliseconds, filling one in costs microseconds. Colours are roles
(`meta.role`): the page paints them in its theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

Figure = dict[str, Any]
HATCH = {"shape": "/", "size": 6, "solidity": 0.35, "fillmode": "overlay"}


_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def unit_of(largest_bytes: int) -> tuple[str, int]:
    """Return the binary unit that a chart's largest value reaches."""
    return next(((name, size) for name, size in _UNITS if largest_bytes >= size), ("B", 1))


@lru_cache(maxsize=64)
def _checked_layout(kind: str, x_title: str, y_title: str) -> Figure:
    """Return the layout of a kind of chart, checked by plotly's own schema."""
    import plotly.graph_objects as go

    layouts: dict[str, Figure] = {
        "stacked": {"barmode": "stack", "bargap": 0.35},
        "grouped": {"barmode": "group", "bargap": 0.25},
        "lines": {"hovermode": "x unified"},
    }
    layout = go.Layout(
        template="none",
        margin={"l": 64, "r": 12, "t": 12, "b": 56},
        legend={"orientation": "h", "y": 1.12, "x": 0},
        xaxis={"title": {"text": x_title}},
        yaxis={"title": {"text": y_title}, "rangemode": "tozero"},
        **layouts[kind],
    )
    plain: Figure = layout.to_plotly_json()
    plain.pop("template", None)
    return plain


def _layout(kind: str, x_title: str, y_title: str, x_axis: Figure | None) -> Figure:
    checked = _checked_layout(kind, x_title, y_title)
    return {
        **checked,
        "xaxis": {**checked["xaxis"], **(x_axis or {})},
        "yaxis": dict(checked["yaxis"]),
    }


def bars(
    x: Sequence[object],
    series: Sequence[tuple[str, str, Sequence[float], bool]],
    *,
    kind: str = "stacked",
    x_title: str = "",
    y_title: str = "",
    category: bool = True,
) -> Figure:
    """Return bars over `x`; a series is (name, colour role, values, whether it is hatched)."""
    data: list[Figure] = []
    for name, role, values, hatched in series:
        marker: Figure = {"pattern": HATCH} if hatched else {}
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": list(x),
                "y": list(values),
                "marker": marker,
                "meta": {"role": role},
                "hovertemplate": "%{x}: %{y:.4~g}<extra>" + name + "</extra>",
            }
        )
    axis = {"type": "category"} if category else None
    return {"data": data, "layout": _layout(kind, x_title, y_title, axis)}


def lines(
    series: Sequence[tuple[str, str, Sequence[object], Sequence[float]]],
    *,
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    category: bool = False,
    log_y: bool = False,
) -> Figure:
    """Return lines; a series is (name, colour role, x values, y values)."""
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(x),
            "y": list(y),
            "marker": {"size": 5},
            "meta": {"role": role},
        }
        for name, role, x, y in series
    ]
    axis = {"type": "log"} if log_x else {"type": "category"} if category else None
    layout = _layout("lines", x_title, y_title, axis)
    if log_y:
        layout["yaxis"] = {**layout["yaxis"], "type": "log"}
    return {"data": data, "layout": layout}


def with_plain_exponents(figure: Figure) -> Figure:
    """Return the figure with ticks that read 1e+15 where they are very large or small.

    Plotly writes powers of ten with superscripts, whose inline styles the page's policy refuses.
    """
    for name in ("xaxis", "yaxis"):
        figure["layout"][name] = {**figure["layout"][name], "exponentformat": "e"}
    return figure


def with_legend_below(figure: Figure) -> Figure:
    """Return the figure with its legend at the foot, where many names take several lines.

    Above the plot they would lie on it wherever the screen is narrow.
    """
    below = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0}
    figure["layout"]["legend"] = below
    return figure
