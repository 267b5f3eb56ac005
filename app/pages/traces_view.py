"""What `/traces` shows of a log: figures, tables, charts, and downloads that hold themselves."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.api.traces import traces_answer
from app.api.traces_compute import ComputedTraces, Level
from app.domain.hit_curve import HitPoint
from app.domain.timeline import NS_PER_S, Timeline, TimelineBin
from app.domain.traces import TraceReport
from app.domain.units import GIB
from app.pages import figures
from app.pages import page_parts as parts
from app.web.language import translations

_TIME_UNITS = (
    ("d", 86_400 * NS_PER_S),
    ("h", 3600 * NS_PER_S),
    ("min", 60 * NS_PER_S),
    ("s", NS_PER_S),
    ("ms", 10**6),
)


def time_unit(ns: int) -> tuple[str, int]:
    """Return the largest unit of which a time has two, and its nanoseconds."""
    return next(((name, unit) for name, unit in _TIME_UNITS if ns >= 2 * unit), _TIME_UNITS[-1])


def time_text(ns: int, like: int | None = None) -> str:
    """Return a time with one decimal, in its own unit or in that of another time."""
    name, unit = time_unit(ns if like is None else like)
    tenths = (20 * ns + unit) // (2 * unit)
    return f"{tenths // 10}.{tenths % 10} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool and what it hits; `percent` of the log's reuse where that is what was asked."""

    point: HitPoint
    capacity_bytes: int | None
    engine_blocks: int | None
    percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """One stretch of time, in words."""

    time: str
    at: TimelineBin


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A file that the page carries as an address."""

    name: str
    label: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesView:
    """A log's report, as the page shows it."""

    computed: ComputedTraces
    file_name: str
    span: str
    peak_time: str
    percentiles: list[tuple[str, int, int, int]]
    levels: list[PoolRow]
    pool: PoolRow | None
    curve: list[PoolRow]
    live: list[LiveRow]
    curve_chart: figures.Figure | None
    live_chart: figures.Figure | None
    model_line: str
    downloads: list[Download]
    curl: str
    command: str


def traces_view(
    computed: ComputedTraces, file_name: str, language: str, *, curl: str, command: str
) -> TracesView:
    """Return everything that the page says of a log."""
    report = computed.report
    line = report.timeline
    return TracesView(
        computed=computed,
        file_name=file_name,
        span=time_text((report.last_arrival_ns or 0) - (report.first_arrival_ns or 0)),
        peak_time="" if line is None else time_text(line.peak_at_ns - line.start_ns),
        percentiles=_percentiles(report),
        levels=[_pool_row(computed, level) for level in computed.levels],
        pool=None if computed.pool is None else _pool_row(computed, computed.pool),
        curve=[_pool_row(computed, point) for point in computed.points],
        live=[] if line is None else _live_rows(line),
        curve_chart=_curve_chart(computed, language),
        live_chart=None if line is None else _live_chart(line, language),
        model_line="" if computed.given is None else parts.model_line(computed.given, language),
        downloads=list(_downloads(computed)),
        curl=curl,
        command=command,
    )


def _percentiles(report: TraceReport) -> list[tuple[str, int, int, int]]:
    columns = zip(
        report.inputs.rows(), report.outputs.rows(), report.lengths.rows(), strict=True
    )  # fmt: skip
    return [(name, given, made, both) for (name, given), (_, made), (_, both) in columns]


def _pool_row(computed: ComputedTraces, asked: HitPoint | Level) -> PoolRow:
    point = asked.point if isinstance(asked, Level) else asked
    return PoolRow(
        point=point,
        capacity_bytes=computed.bytes_of(point),
        engine_blocks=computed.engine_blocks_of(point),
        percent=asked.percent if isinstance(asked, Level) else None,
    )


def _live_rows(line: Timeline) -> list[LiveRow]:
    whole = line.end_ns - line.start_ns
    return [LiveRow(time=time_text(each.start_ns - line.start_ns, whole), at=each)
            for each in line.bins]  # fmt: skip


def _live_chart(line: Timeline, language: str) -> figures.Figure:
    say = translations(language).gettext
    name, unit = time_unit(line.end_ns - line.start_ns)
    x = [(each.start_ns - line.start_ns) / unit for each in line.bins]
    return figures.lines(
        [
            (say("Most at once"), "paging", x, [each.peak_bytes / GIB for each in line.bins]),
            (say("Mean"), "effective", x, [each.mean_bytes / GIB for each in line.bins]),
        ],
        x_title=f"{say('Time since the first arrival')}, {name}",
        y_title="GiB",
    )


def _curve_chart(computed: ComputedTraces, language: str) -> figures.Figure | None:
    """Return hits against capacity, in GiB where they are known; 0 has no place on its axis."""
    say = translations(language).gettext
    points = [point for point in computed.points if point.capacity_blocks]
    if not points:
        return None
    in_bytes = [computed.bytes_of(point) for point in points]
    x: Sequence[float] = [size / GIB for size in in_bytes if size is not None]
    title = f"{say('Capacity of the pool')}, GiB"
    if not x:
        x, title = [point.capacity_blocks for point in points], say("Capacity of the pool, blocks")
    y = [100 * point.hit_rate for point in points]
    return figures.lines(
        [(say("Hit rate"), "paging", x, y)],
        x_title=title,
        y_title=f"{say('Hit rate')}, %",
        log_x=True,
    )


def _downloads(computed: ComputedTraces) -> Iterable[Download]:
    if computed.report.curve is not None:
        rows = (
            (point.capacity_blocks, computed.bytes_of(point), computed.engine_blocks_of(point),
             point.hit_blocks, point.logical_blocks)
            for point in computed.points
        )  # fmt: skip
        header = ("capacity_blocks", "capacity_bytes", "engine_blocks", "hit_blocks",
                  "logical_blocks")  # fmt: skip
        yield _csv("hit-rate.csv", header, rows)
    if computed.report.timeline is not None:
        line = computed.report.timeline
        yield _csv("live-state.csv", line.HEADER, line.rows())
    text = traces_answer(computed).model_dump_json()
    yield Download(name="trace.json", label="JSON", address=_address("application/json", text))


def _csv(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Download:
    """Return rows of numbers as a download."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(rows)
    address = _address("text/csv;charset=utf-8", out.getvalue())
    return Download(name=name, label=name, address=address)


def _address(media_type: str, text: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(text.encode()).decode()}"
