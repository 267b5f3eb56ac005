"""A cost as the page shows it: tables of both ways, growth, the decode step, the measured panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.api.cost import CostParts, Decode
from app.domain.cost import Work
from app.domain.cost_curve import CurvePoint
from app.domain.notes import Note
from app.domain.units import GIB, si_text
from app.pages import figures
from app.pages.render import number_text
from app.web.language import translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.demo.measure import FittedOrder, MeasuredPoint

# From here on a rate has no decimals.
WHOLE_FROM = 1000
WITH = mark("with the cache")
WITHOUT = mark("without it")
WAYS = {"cached": WITH, "uncached": WITHOUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    """Some passes, one way."""

    label: Note
    way: str
    work: Work
    macs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRow:
    """Costs at one length, in words; `exact` has the same as integers."""

    length_tokens: int
    cells: tuple[str, ...]
    exact: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """A decode step of one batch, in words."""

    decode: Decode
    intensity: str
    milliseconds: str
    tokens_per_s: str
    each_tokens_per_s: str
    state_share: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """An answer, as the page shows it."""

    parts: CostParts
    with_macs: str
    without_macs: str
    saved_macs: str
    rows: tuple[WorkRow, ...]
    growth: tuple[GrowthRow, ...]
    factors: tuple[str, ...]
    step_chart: figures.Figure
    run_chart: figures.Figure
    decode: DecodeRow | None
    batches: tuple[DecodeRow, ...]
    batch_chart: figures.Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured point, in words."""

    way: str
    length_tokens: int
    macs: int
    milliseconds: str
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRow:
    """How one way grows, measured and counted."""

    way: str
    measured: str
    counted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredView:
    """The measured panel: as many points as there are yet."""

    rows: tuple[MeasuredRow, ...]
    orders: tuple[OrderRow, ...]
    backend: str
    device: str
    asked_device: str
    note: Note | None
    notes: tuple[Note, ...]
    length_chart: figures.Figure
    work_chart: figures.Figure


def cost_view(parts: CostParts, language: str) -> CostView:
    """Return a cost as a page shows it."""
    cost = parts.cost
    first, last = cost.first_step, cost.last_step
    steps = (
        (Note("first", "first decode step, at {length}", {"length": first.length_tokens}),
         first.with_cache, first.without_cache),
        (Note("last", "last decode step, at {length}", {"length": last.length_tokens}),
         last.with_cache, last.without_cache),
        (Note("whole", "the whole generation, {passes} passes", {"passes": cost.passes}),
         cost.with_cache, cost.without_cache),
    )  # fmt: skip
    return CostView(
        parts=parts,
        with_macs=si_text(cost.with_cache.macs, "MAC"),
        without_macs=si_text(cost.without_cache.macs, "MAC"),
        saved_macs=si_text(cost.saved_macs, "MAC"),
        rows=tuple(
            WorkRow(label=label, way=way, work=work, macs=si_text(work.macs, ""))
            for label, kept, anew in steps
            for way, work in ((WITH, kept), (WITHOUT, anew))
        ),
        growth=tuple(_growth_row(point) for point in parts.curve),
        factors=_factors(parts),
        step_chart=_growth_chart(parts.curve, _step_amounts, language),
        run_chart=_growth_chart(parts.curve, _run_amounts, language),
        decode=None if parts.decode is None else _decode_row(parts.decode),
        batches=tuple(_decode_row(item) for item in parts.decode_by_batch),
        batch_chart=_batch_chart(parts.decode_by_batch, language),
    )


def _step_amounts(point: CurvePoint) -> tuple[int, int, int, int]:
    """Return a step's attention with and without, then its projections with and without."""
    kept, anew = point.step.with_cache, point.step.without_cache
    return (kept.attention_macs, anew.attention_macs, kept.projection_macs, anew.projection_macs)


def _run_amounts(point: CurvePoint) -> tuple[int, int, int, int]:
    """Return the same of a run from one token to that length."""
    kept, anew = point.run_with_cache, point.run_without_cache
    return (kept.attention_macs, anew.attention_macs, kept.projection_macs, anew.projection_macs)


def _growth_row(point: CurvePoint) -> GrowthRow:
    exact = (*_step_amounts(point), *_run_amounts(point))
    return GrowthRow(
        length_tokens=point.length_tokens,
        cells=tuple(si_text(amount, "") for amount in exact),
        exact=exact,
    )


def _factors(parts: CostParts) -> tuple[str, ...]:
    """Return what the last doubling multiplies each column of the growth table by."""
    found = parts.growth
    return tuple(
        f"× {value:.3g}" if value else "–"
        for value in (
            found.step_attention_with,
            found.step_attention_without,
            found.step_projections_with,
            found.step_projections_without,
            found.run_attention_with,
            found.run_attention_without,
            found.run_projections_with,
            found.run_projections_without,
        )
    )


def _growth_chart(
    curve: Sequence[CurvePoint],
    amounts: Callable[[CurvePoint], tuple[int, int, int, int]],
    language: str,
) -> figures.Figure:
    """Return four lines over the length; on axes of powers a line's slope is its order."""
    say = translations(language).gettext
    names = (
        (mark("attention, with the cache"), "effective"),
        (mark("attention, without it"), "padding"),
        (mark("projections, with the cache"), "paging"),
        (mark("projections, without it"), "fixed"),
    )
    lengths = [point.length_tokens for point in curve]
    columns = list(zip(*(amounts(point) for point in curve), strict=True))
    series = [
        (say(name), role, lengths, [float(amount) for amount in column])
        for (name, role), column in zip(names, columns, strict=True)
        # What is not counted has no place on an axis of powers.
        if all(column)
    ]
    chart = figures.lines(
        series, x_title=say(mark("length, tokens")), y_title="MAC", log_x=True, log_y=True
    )
    return figures.with_plain_exponents(chart)


def _rate_text(rate: float) -> str:
    """Return a rate with four digits or all of its whole ones, grouped as numbers are."""
    if rate >= WHOLE_FROM:
        return number_text(round(rate))
    return f"{rate:.4g}"


def _decode_row(decode: Decode) -> DecodeRow:
    step, bound = decode.step, decode.bound
    return DecodeRow(
        decode=decode,
        intensity=f"{step.flops_per_byte:.3g}",
        milliseconds="" if bound is None else f"{bound.seconds_per_step * 1000:.3g}",
        tokens_per_s="" if bound is None else _rate_text(bound.tokens_per_s_bound),
        each_tokens_per_s="" if bound is None else _rate_text(1 / bound.seconds_per_step),
        state_share=(step.state_read_bytes, step.read_bytes),
    )


def _batch_chart(rows: Sequence[Decode], language: str) -> figures.Figure:
    say = translations(language).gettext
    return figures.bars(
        [item.step.batch for item in rows],
        [
            (say(mark("weights, read once")), "fixed",
             [item.step.weights_read_bytes / GIB for item in rows], False),
            (say(mark("state, of every sequence")), "effective",
             [item.step.state_read_bytes / GIB for item in rows], False),
        ],
        x_title=say(mark("sequences in the batch")),
        y_title="GiB",
    )  # fmt: skip


def measured_view(
    points: Sequence[MeasuredPoint],
    orders: Sequence[FittedOrder],
    language: str,
    *,
    note: Note | None = None,
    device: str = "auto",
) -> MeasuredView:
    """Return the measured panel with as many points as there are."""
    notes: tuple[Note, ...] = ()
    if points:
        from app.demo.measure import MEASURED_NOTES

        notes = MEASURED_NOTES
    return MeasuredView(
        rows=tuple(
            MeasuredRow(
                way=WAYS[point.way],
                length_tokens=point.length_tokens,
                macs=point.macs,
                milliseconds=f"{point.seconds * 1000:.3g}",
                rate=si_text(int(point.macs / point.seconds), ""),
            )
            for point in sorted(points, key=lambda item: (item.way, item.length_tokens))
        ),
        orders=tuple(
            OrderRow(
                way=WAYS[order.way],
                measured=f"{order.measured:.2f}",
                counted=f"{order.counted:.2f}",
            )
            for order in orders
        ),
        backend=points[0].backend if points else "",
        device=points[0].device if points else "",
        asked_device=device,
        note=note,
        notes=notes,
        length_chart=_measured_chart(points, language, by_work=False),
        work_chart=_measured_chart(points, language, by_work=True),
    )


def _measured_chart(
    points: Sequence[MeasuredPoint], language: str, *, by_work: bool
) -> figures.Figure:
    """Return time over length, or over counted work; both axes in powers."""
    say = translations(language).gettext
    series = []
    for way, role in (("cached", "effective"), ("uncached", "padding")):
        own = [point for point in points if point.way == way]
        if own:
            x = [point.macs if by_work else point.length_tokens for point in own]
            series.append((say(WAYS[way]), role, x, [point.seconds * 1000 for point in own]))
    chart = figures.lines(
        series,
        x_title=say(mark("counted work, MAC")) if by_work else say(mark("length, tokens")),
        y_title=say(mark("milliseconds a step")),
        log_x=True,
        log_y=True,
    )
    return figures.with_plain_exponents(chart)
