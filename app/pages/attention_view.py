"""The lab's answers as the page shows them: figures in words, rows of tables, charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.api.attention import NOT_COUNTED, formula_of
from app.domain.notes import Note
from app.pages import figures
from app.pages.render import sentence
from app.web.language import translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.demo.lab import AttentionAnswer
    from app.demo.results import ExperimentResult, Series

ELEMENTS_SHOWN = 16
POSITIONS_SHOWN = 100
QUERIES_SHOWN = 5
# Lines are told apart by colour, and the second of a pair by its dashes.
_ROLES = ("effective", "padding", "paging", "fixed", "window")
_SECOND_OF_PAIR = "_ends_fp32"
# From this ratio on, equal steps on a line are powers.
_WIDE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRow:
    """One position as the last query sees it."""

    index: int
    is_new: bool
    key: str
    value: str
    score: str | None
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView:
    """An answer, as the page shows it."""

    answer: AttentionAnswer
    output: str
    without_history: str
    formula: str
    rows: tuple[PositionRow, ...]
    hidden_rows: int
    matrix: tuple[tuple[str, ...], ...]
    matrix_columns: int
    weights_chart: figures.Figure
    output_chart: figures.Figure
    not_counted: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TitledChart:
    """One chart of an experiment, and what its lines have in common."""

    title: Note | None
    figure: figures.Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentView:
    """An experiment's table, charts and words."""

    result: ExperimentResult
    has_groups: bool
    charts: tuple[TitledChart, ...]


def number_words(value: float) -> str:
    """Return a number to five figures, without an exponent where it can be read without."""
    return f"{value:.5g}"


def vector_words(row: Sequence[float]) -> str:
    """Return a vector, cut where it is too wide to read."""
    cells = [number_words(value) for value in row[:ELEMENTS_SHOWN]]
    if len(row) > ELEMENTS_SHOWN:
        cells.append("…")
    return ", ".join(cells)


def attention_view(answer: AttentionAnswer, language: str) -> AttentionView:
    """Return an answer as a page shows it; positions are those of the last query."""
    past = len(answer.keys) - len(answer.output)
    shown = min(len(answer.keys), POSITIONS_SHOWN)
    last_scores, last_weights = answer.scores[-1], answer.weights[-1]
    rows = tuple(
        PositionRow(
            index=index,
            is_new=index >= past,
            key=vector_words(answer.keys[index]),
            value=vector_words(answer.values[index]),
            score=None if (score := last_scores[index]) is None else number_words(score),
            weight=number_words(last_weights[index]),
        )
        for index in range(shown)
    )
    columns = min(shown, ELEMENTS_SHOWN)
    matrix = tuple(
        tuple(number_words(weight) for weight in row[:columns])
        for row in answer.weights[:POSITIONS_SHOWN]
    )
    return AttentionView(
        answer=answer,
        output=" | ".join(vector_words(row) for row in answer.output[:QUERIES_SHOWN]),
        without_history=" | ".join(
            vector_words(row) for row in answer.without_history.output[:QUERIES_SHOWN]
        ),
        formula=formula_of(answer),
        rows=rows,
        hidden_rows=len(answer.keys) - shown,
        matrix=matrix if len(answer.output) > 1 else (),
        matrix_columns=columns,
        weights_chart=_weights_chart(answer, shown, language),
        output_chart=_output_chart(answer, language),
        not_counted=NOT_COUNTED,
    )


def _weights_chart(answer: AttentionAnswer, shown: int, language: str) -> figures.Figure:
    say = translations(language).gettext
    series = [
        (
            say(mark("query {number}")).format(number=index + 1),
            _ROLES[index],
            list(answer.weights[index][:shown]),
            False,
        )
        for index in range(min(len(answer.weights), QUERIES_SHOWN))
    ]
    chart = figures.bars(
        [index + 1 for index in range(shown)],
        series,
        kind="grouped",
        x_title=say(mark("position")),
        y_title=say(mark("weight")),
    )
    return figures.with_plain_exponents(chart)


def _output_chart(answer: AttentionAnswer, language: str) -> figures.Figure:
    """Return the last query's output, beside two other ways to it and what dropping leaves."""
    say = translations(language).gettext
    ways = (
        (mark("cached"), "effective", answer.output),
        (mark("recomputed"), "paging", answer.recomputed.output),
        (mark("reference"), "fixed", answer.reference.output),
        (mark("without history"), "padding", answer.without_history.output),
    )
    chart = figures.bars(
        [index + 1 for index in range(len(answer.output[-1]))],
        [(say(name), role, list(rows[-1]), False) for name, role, rows in ways],
        kind="grouped",
        x_title=say(mark("element of the output")),
    )
    return figures.with_plain_exponents(chart)


def experiment_view(result: ExperimentResult, language: str) -> ExperimentView:
    """Return an experiment with a chart for each group of its lines, or bars of its figures."""
    groups: dict[str, list[Series]] = {}
    for line in result.series:
        groups.setdefault("" if line.group is None else line.group.code, []).append(line)
    charts = [
        TitledChart(title=lines[0].group, figure=_lines_chart(result, lines, language))
        for lines in groups.values()
    ]
    if not charts:
        charts = [TitledChart(title=None, figure=_bars_chart(result, language))]
    return ExperimentView(
        result=result,
        has_groups=any(row.group is not None for row in result.rows),
        charts=tuple(charts),
    )


def _words(note: Note | None, language: str) -> str:
    if note is None:
        return ""
    return sentence(note, language)


def _lines_chart(result: ExperimentResult, lines: list[Series], language: str) -> figures.Figure:
    bases = list(dict.fromkeys(line.code.removesuffix(_SECOND_OF_PAIR) for line in lines))
    roles = {base: _ROLES[index % len(_ROLES)] for index, base in enumerate(bases)}
    # Zero has no place on an axis of powers.
    all_y = [value for line in lines for value in line.y]
    x = lines[0].x
    figure = figures.lines(
        [
            (
                _words(line.label, language),
                roles[line.code.removesuffix(_SECOND_OF_PAIR)],
                line.x,
                line.y,
            )
            for line in lines
        ],
        x_title=_words(result.x_label, language),
        y_title=_words(result.y_label, language),
        log_x=min(x) > 0 and max(x) >= _WIDE * min(x) and len(x) <= _WIDE,
        log_y=min(all_y) > 0 and max(all_y) >= _WIDE * min(all_y),
    )
    for trace, line in zip(figure["data"], lines, strict=True):
        if line.code.endswith(_SECOND_OF_PAIR):
            trace["line"] = {"dash": "dot"}
    return figures.with_plain_exponents(figure)


def _bars_chart(result: ExperimentResult, language: str) -> figures.Figure:
    """Return the figures that are measures, a bar for each case; counts and answers are not."""
    measures = [
        index
        for index in range(len(result.columns))
        if all(type(row.figures[index]) is float for row in result.rows)
    ]
    chart = figures.bars(
        [_words(row.label, language) for row in result.rows],
        [
            (
                _words(result.columns[column], language),
                _ROLES[at],
                [float(row.figures[column]) for row in result.rows],
                False,
            )
            for at, column in enumerate(measures)
        ],
        kind="grouped",
    )
    return figures.with_plain_exponents(chart)
