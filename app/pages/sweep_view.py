"""What `/compare` shows of a sweep: a chart, and a table of all points or of an even sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.api.fit_schemas import FitRequest
from app.api.sweep import (
    MAX_CONTEXTS,
    MAX_STREAMED,
    SweepPoint,
    SweepRequest,
    count_points,
    points_of,
    takes_long,
)
from app.domain.errors import DomainError, OutOfRange
from app.pages import figures
from app.pages.model_form import integer
from app.readers.lengths import parse_lengths
from app.web.language import translations
from app.web.marks import mark

# Fields of the form; a refusal of the API names its own.
SWEPT = ("contexts", "devices", "kv_dtypes", "tensor_ranks")
FIELD_OF: Mapping[str, str] = {
    "context_tokens": "contexts",
    "tensor_parallel": "tensor_ranks",
}
ROWS_SHOWN = 200
# A sample of many combinations keeps at least so many contexts of each.
LEAST_CONTEXTS = 8
# So many marks of a line in even steps, and so many in equal ratios, as the axis is logarithmic;
# more would cover each other.
EVEN_MARKS = 100
RATIO_MARKS = 100
MOST_BARS = 24
ROLES = ("effective", "padding", "paging", "fixed", "window")
OVER_CONTEXTS = mark("Requests that fit for certain, against the context length")
OVER_COMBINATIONS = mark("Requests that fit, by device, KV type and tensor ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A sweep; one of too many points for a page has no rows and no chart until it is asked for.

    `drawn` of `drawable` combinations are in the chart.
    """

    points_in_all: int
    is_computed: bool
    points: tuple[SweepPoint, ...] = ()
    chart: figures.Figure | None = None
    chart_title: str = OVER_CONTEXTS
    drawn: int = 0
    drawable: int = 0


@dataclass(slots=True, kw_only=True)
class _Combination:
    """One device, format and split, as far as it is drawn."""

    name: str
    contexts: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    most: list[int] = field(default_factory=list)


def sweep_request(typed: Mapping[str, str], base: FitRequest) -> SweepRequest:
    """Return the sweep of a calculation that the form asks for.

    Raises:
        DomainError: for a field whose text cannot be read, or more points than can be streamed.
        ValidationError: for a value out of bounds.

    """
    contexts: list[int] = []
    if typed["contexts"]:
        try:
            parsed = parse_lengths(typed["contexts"])
        except DomainError as error:
            raise error.under("contexts") from None
        if parsed.requests > MAX_CONTEXTS:
            raise OutOfRange("{field} must name at most {high} lengths", field="contexts",
                             high=MAX_CONTEXTS)  # fmt: skip
        contexts = [length for length, count in parsed.runs for _ in range(count)]
    request = SweepRequest(
        base=base,
        context_tokens=contexts,
        devices=_words(typed["devices"]),
        kv_dtypes=_words(typed["kv_dtypes"]),
        tensor_parallel=[
            integer("tensor_ranks", word) for word in _words(typed["tensor_ranks"])
        ],
    )  # fmt: skip
    count_points(request, MAX_STREAMED)
    return request


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def sweep_view(request: SweepRequest, language: str) -> SweepView:
    """Return the sweep of a page: computed unless it takes long, which is for the stream."""
    total = count_points(request, MAX_STREAMED)
    if takes_long(request):
        return SweepView(points_in_all=total, is_computed=False)
    sample = Sample(request)
    for _ in sample.taken(points_of(request)):
        pass
    return sample.view(language)


def spread(of: int, wanted: int) -> frozenset[int]:
    """Return so many of the numbers below `of`, the first and the last among them."""
    if wanted >= of:
        return frozenset(range(of))
    if wanted == 1:
        return frozenset({0})
    return frozenset(index * (of - 1) // (wanted - 1) for index in range(wanted))


def ratios(of: int, wanted: int) -> frozenset[int]:
    """Return at most so many of the numbers below `of`, dense at first and ever further apart."""
    return frozenset(round(of ** (index / wanted)) - 1 for index in range(wanted))


class Sample:
    """What a page keeps of a sweep while its points go by: some hundreds, however many come."""

    def __init__(self, request: SweepRequest) -> None:
        self._contexts = max(len(request.context_tokens), 1)
        self.total = count_points(request, MAX_STREAMED)
        combinations = self.total // self._contexts
        wanted = min(self._contexts, max(ROWS_SHOWN // combinations, LEAST_CONTEXTS))
        self._rows_at = spread(self._contexts, wanted)
        self._rows_of = spread(combinations, max(ROWS_SHOWN // wanted, 1))
        self._marks_at = spread(self._contexts, EVEN_MARKS) | ratios(self._contexts, RATIO_MARKS)
        several = [len(values) > 1 for values in (request.devices, request.kv_dtypes,
                                                  request.tensor_parallel)]  # fmt: skip
        # A name says what differs between the lines.
        self._named = several if any(several) else [True] * len(several)
        self._most_drawn = len(ROLES) if self._contexts > 1 else MOST_BARS
        self._drawable = 0
        self._points: list[SweepPoint] = []
        self._drawn: list[_Combination] = []
        self._seen = -1

    def taken(self, points: Iterator[SweepPoint]) -> Iterator[int]:
        """Yield how many points have gone by, after each of them."""
        for index, point in enumerate(points):
            combination, at = divmod(index, self._contexts)
            if at in self._rows_at and combination in self._rows_of:
                self._points.append(point)
            if at in self._marks_at and point.error is None:
                self._mark(combination, point)
            yield index + 1

    def _mark(self, combination: int, point: SweepPoint) -> None:
        if combination != self._seen:
            self._seen = combination
            self._drawable += 1
            if len(self._drawn) < self._most_drawn:
                parts = (point.device, point.kv_dtype, f"TP{point.tensor_parallel}")
                told = zip(parts, self._named, strict=True)
                name = " · ".join(part for part, is_named in told if part and is_named)
                self._drawn.append(_Combination(name=name))
        if self._drawable > len(self._drawn):
            return
        line = self._drawn[-1]
        line.contexts.append(point.context_tokens or 0)
        line.least.append(point.max_concurrency or 0)
        line.most.append(point.max_concurrency_high or 0)

    def view(self, language: str) -> SweepView:
        """Return what has gone by as the page shows it."""
        is_over_contexts = self._contexts > 1
        return SweepView(
            points_in_all=self.total,
            is_computed=True,
            points=tuple(self._points),
            chart=self._lines(language) if is_over_contexts else self._bars(language),
            chart_title=OVER_CONTEXTS if is_over_contexts else OVER_COMBINATIONS,
            drawn=len(self._drawn),
            drawable=self._drawable,
        )

    def _lines(self, language: str) -> figures.Figure:
        """Return requests that fit against the context, a line for each combination."""
        say = translations(language).gettext
        return figures.lines(
            [(line.name, role, line.contexts, line.least)
             for role, line in zip(ROLES, self._drawn, strict=False)],
            x_title=say("Context length, tokens"),
            y_title=say("Requests that fit"),
            log_x=True,
        )  # fmt: skip

    def _bars(self, language: str) -> figures.Figure:
        """Return requests that fit at one context, bars for each combination."""
        say = translations(language).gettext
        return figures.bars(
            [line.name for line in self._drawn],
            [(say("Fit for certain"), "effective", [line.least[0] for line in self._drawn], False),
             (say("At most"), "padding", [line.most[0] for line in self._drawn], True)],
            kind="grouped",
            y_title=say("Requests that fit"),
        )  # fmt: skip
