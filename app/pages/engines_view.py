"""What `/engines` shows of a comparison: figures beside what they are spent on, and two charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.engines.side_by_side import EngineRow, SideBySide
from app.pages import figures, page_parts
from app.web.language import translations
from app.web.marks import mark

# One colour an engine, in the order of the rows.
ROLES = ("effective", "padding", "paging", "fixed", "window")
SPENT: Mapping[str, str] = {
    "padding_layers": mark("empty places of groups that have fewer layers than the widest"),
    "page_padding": mark("pages padded to one size"),
    "block_rounding": mark("the unused end of the last block"),
    "window_reserve": mark("tokens in flight, and the block in which a window may begin"),
    "state_copies": mark("states kept at block boundaries and for speculation"),
    "encoder_reserve": mark("encoder positions reserved at the scheduler's bound"),
    "padding_cells": mark("cells beyond the tokens asked for"),
    "window_cells": mark("cells of windowed layers for the batch being written, and padding"),
    "rollback_states": mark("copies of the recurrent states, to take back drafted tokens"),
    "left_out": mark("index keys that are not kept"),
    "wider_rows": mark("rows wider than the model's own, or windowed layers at full length"),
    "kept_smaller": mark("states or keys kept in a smaller format, or not at all"),
    "full_windows": mark("windowed layers kept at full length, and the end of the last block"),
    "pages_and_states": mark("whole pages or blocks, and states in the engine's own format"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentPart:
    """Bytes beyond the need, and what they go on, as the page says it."""

    size: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """One engine, as the page shows it."""

    row: EngineRow
    concurrency: str
    lengths: tuple[int | None, ...]
    beyond: int | None
    spent: tuple[SpentPart, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesView:
    """An answer, as the page shows it."""

    found: SideBySide
    lengths: tuple[int, ...]
    need: tuple[int, ...]
    rows: tuple[RowView, ...]
    most: RowView | None
    least: RowView | None
    bars: figures.Figure
    curves: figures.Figure
    curl: str
    command: str


def concurrency_text(value: Fraction | None) -> str:
    """Return how many requests at once, to two decimals as engines print it; empty for none."""
    return "" if value is None else f"{float(value):.2f}"


def engines_view(
    found: SideBySide, asked: Sequence[int], language: str, curl: str, commands: Mapping[str, str]
) -> EnginesView:
    """Return a comparison as the page shows it; `found` has the lengths asked for, and more."""
    needs = dict(found.need)
    rows = tuple(_row(row, asked, commands[row.engine]) for row in found.rows)
    serving = [item for item in rows if item.row.concurrency]
    return EnginesView(
        found=found,
        lengths=tuple(asked),
        need=tuple(needs[length] for length in asked),
        rows=rows,
        most=max(serving, key=_served, default=None),
        least=min(serving, key=_served, default=None),
        bars=figures.with_legend_below(_bars(found, language)),
        curves=figures.with_legend_below(_curves(found, language)),
        curl=curl,
        command=commands["all"],
    )


def _served(item: RowView) -> Fraction:
    return item.row.concurrency or Fraction(0)


def _row(row: EngineRow, asked: Sequence[int], command: str) -> RowView:
    sizes = dict(row.lengths)
    known = row.request_bytes is not None and row.need_bytes is not None
    return RowView(
        row=row,
        concurrency=concurrency_text(row.concurrency),
        lengths=tuple(sizes.get(length) for length in asked),
        beyond=(row.request_bytes or 0) - (row.need_bytes or 0) if known else None,
        spent=tuple(SpentPart(size=part.bytes, text=SPENT[part.code]) for part in row.excess),
        command=command,
    )


def _bars(found: SideBySide, language: str) -> figures.Figure:
    """Return one bar an engine: the need of the longest request, and what is taken beyond."""
    say = translations(language).gettext
    rows = [row for row in found.rows if row.request_bytes is not None]
    unit, size = figures.unit_of(max((row.request_bytes or 0 for row in rows), default=0))
    need, beyond, whole = [], [], []
    for row in rows:
        taken = row.request_bytes or 0
        known = row.need_bytes is not None
        least = min(row.need_bytes or 0, taken)
        need.append(least / size)
        beyond.append((taken - least) / size if known else 0.0)
        whole.append(0.0 if known else taken / size)
    series = [
        (say("The model's need"), "effective", need, False),
        (say("Taken beyond it"), "padding", beyond, True),
    ]
    if any(whole):  # a rank's share: what of it the model needs is not told apart
        series.append((say("Both together"), "fixed", whole, False))
    return figures.bars([row.title for row in rows], series, y_title=unit)


def _curves(found: SideBySide, language: str) -> figures.Figure:
    """Return one line an engine: the bytes of one request against its length."""
    say = translations(language).gettext
    rows = [row for row in found.rows if row.request_bytes is not None]
    unit, size = figures.unit_of(max((row.request_bytes or 0 for row in rows), default=0))
    roles = dict(zip((row.engine for row in found.rows), ROLES, strict=True))
    series = []
    for row in rows:
        points = [(length, taken) for length, taken in row.lengths if taken is not None]
        series.append(
            (
                row.title,
                roles[row.engine],
                [length for length, _ in points],
                [taken / size for _, taken in points],
            )
        )
    return figures.lines(
        series, x_title=say("Length of the request, tokens"), y_title=unit, log_x=True
    )


def command_of(engine: str, options: Mapping[str, object]) -> str:
    """Return the command that says the same of one engine, or of `all`."""
    return page_parts.command("plan", engine, **options)
