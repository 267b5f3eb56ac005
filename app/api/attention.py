"""`/attention` and its experiments: one head over a cache, computed in the lab's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import Field

from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.attention_schemas import AttentionRequest, ExperimentRequest
from app.api.lab_runs import ANSWER_SECONDS, ANSWERS, LAB_REFUSED, RUN_SECONDS, RUNS, collected
from app.api.routing import JsonRoute
from app.domain.attention import AttentionInputs, attention_inputs
from app.domain.errors import OutOfRange
from app.domain.notes import Note
from app.domain.units import bytes_text

if TYPE_CHECKING:
    from app.demo.lab import AttentionAnswer, Comparison
    from app.demo.process import LabRun
    from app.demo.results import ExperimentResult

router = APIRouter(tags=["attention"], responses=LAB_REFUSED, route_class=JsonRoute)

Row = list[float]
# One row for one query, a row for each of several.
Rows = Row | list[Row]
FORMULA_TERMS = 8
# Decoding a body, and handing numbers to another process and back, each hold the interpreter for
# as long as they take: at these bounds some hundredths of a second.
MAX_NUMBERS = 2**16
MAX_BODY_BYTES = 3 * 2**20

NOT_COUNTED = (
    Note("other_heads", "The bytes are those of one head: no other head or layer."),
    Note("lab_arrays", "Block tables and the arrays of the computation itself."),
)


class ComparisonAnswer(Answer):
    """The output another way, and how far it lies from the cached one."""

    output: Rows
    is_bit_equal: bool
    max_abs_difference: float


class AttentionStepAnswer(Answer):
    """What the query saw and made of it, beside three other ways to compute it."""

    output: Rows
    weights: Rows
    scores: list[float | None] | list[list[float | None]] = Field(
        description="q · k / √d; null where the query may not see."
    )
    keys: list[Row] = Field(description="All keys after the append, as the cache keeps them.")
    values: list[Row]
    dtype: str
    backend: str
    device: str
    cache_bytes: int
    cache_bytes_text: str
    rounding_bound: float = Field(description="Of an output element, against exact sums.")
    recomputed: ComparisonAnswer = Field(description="All positions at once, without a cache.")
    reference: ComparisonAnswer = Field(description="Plain Python on the numbers as given.")
    without_history: ComparisonAnswer = Field(description="As if the cache had been dropped.")
    formula: str
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


class ExperimentColumn(Answer):
    """The head of a column."""

    code: str
    text: str


class ExperimentRow(Answer):
    """One case; its figures stand under the columns."""

    code: str
    text: str
    group: str | None
    figures: list[bool | int | float]


class ExperimentSeries(Answer):
    """One line to draw."""

    code: str
    text: str
    group: str | None
    x: list[float]
    y: list[float]


class ExperimentAnswer(Answer):
    """A finished experiment: its table, its lines, and a sentence with its own numbers."""

    experiment: str
    title: str
    backend: str
    device: str
    seed: int
    length_tokens: int
    columns: list[ExperimentColumn]
    rows: list[ExperimentRow]
    series: list[ExperimentSeries]
    x_label: str | None
    y_label: str | None
    statement: str
    notes: list[NoteAnswer]


def read_inputs(request: AttentionRequest) -> AttentionInputs:
    """Return the question of a request; raises a DomainError that names the field."""
    for field in ("past_keys", "past_values", "new_keys", "new_values", "queries"):
        numbers = sum(map(len, getattr(request, field) or ()))
        if numbers > MAX_NUMBERS:
            raise OutOfRange("{field} must have at most {high} numbers in all, got {value}",
                             field=field, high=MAX_NUMBERS, value=numbers)  # fmt: skip
    return attention_inputs(
        query=request.query,
        queries=request.queries,
        past_keys=request.past_keys,
        past_values=request.past_values,
        new_key=request.new_key,
        new_keys=request.new_keys,
        new_value=request.new_value,
        new_values=request.new_values,
        window=request.window,
    )


def start_attention(inputs: AttentionInputs, dtype: str, device: str | None) -> LabRun:
    """Start to answer one question; raises LabBusy when too many stand before it."""
    return ANSWERS.start(
        "attention", seconds=ANSWER_SECONDS, inputs=inputs, dtype=dtype, device=device
    )


def start_experiment(request: ExperimentRequest) -> LabRun:
    """Start one experiment; raises LabBusy while another run has the lab."""
    return RUNS.start(
        "experiment",
        seconds=RUN_SECONDS,
        code=request.experiment,
        device=request.device,
        seed=request.seed,
        length_tokens=request.length_tokens,
    )


def compute_attention(request: AttentionRequest) -> AttentionAnswer:
    """Return the answer as the lab gives it; blocks for some milliseconds."""
    with start_attention(read_inputs(request), request.dtype, request.device) as run:
        answers: list[AttentionAnswer] = list(run)
    return answers[0]


def answer_attention(request: AttentionRequest) -> AttentionStepAnswer:
    """Return the answer of `/attention`."""
    return attention_answer(compute_attention(request))


def attention_answer(answer: AttentionAnswer) -> AttentionStepAnswer:
    """Return the lab's answer as JSON shows it, without the outer list for one query."""

    def unwrapped(rows: tuple[tuple[float, ...], ...]) -> Rows:
        return list(rows[0]) if answer.is_single else [list(row) for row in rows]

    def compared(other: Comparison) -> ComparisonAnswer:
        return ComparisonAnswer(
            output=unwrapped(other.output),
            is_bit_equal=other.is_bit_equal,
            max_abs_difference=other.max_abs_difference,
        )

    scores = [list(row) for row in answer.scores]
    return AttentionStepAnswer(
        output=unwrapped(answer.output),
        weights=unwrapped(answer.weights),
        scores=scores[0] if answer.is_single else scores,
        keys=[list(row) for row in answer.keys],
        values=[list(row) for row in answer.values],
        dtype=answer.dtype,
        backend=answer.backend,
        device=answer.device,
        cache_bytes=answer.cache_bytes,
        cache_bytes_text=bytes_text(answer.cache_bytes),
        rounding_bound=answer.rounding_bound,
        recomputed=compared(answer.recomputed),
        reference=compared(answer.reference),
        without_history=compared(answer.without_history),
        formula=formula_of(answer),
        assumptions=notes_answer(answer.assumptions),
        not_counted=notes_answer(NOT_COUNTED),
    )


def formula_of(answer: AttentionAnswer) -> str:
    """Return the weighted sum that makes the first output element: `0.5 × 2 + 0.5 × 4 = 3`."""
    seen = [
        (weight, row[0])
        for weight, row in zip(answer.weights[0], answer.values, strict=True)
        if weight
    ]
    terms = [f"{weight:.4g} × {value:.4g}" for weight, value in seen[:FORMULA_TERMS]]
    if len(seen) > FORMULA_TERMS:
        terms.append("…")
    return f"Σ a·v = {' + '.join(terms)} = {answer.output[0][0]:.4g}"


def experiment_answer(result: ExperimentResult) -> ExperimentAnswer:
    """Return an experiment as JSON shows it."""
    return ExperimentAnswer(
        experiment=result.code,
        title=result.title.text,
        backend=result.ran.backend,
        device=result.ran.device,
        seed=result.ran.seed,
        length_tokens=result.ran.length_tokens,
        columns=[ExperimentColumn(code=note.code, text=note.text) for note in result.columns],
        rows=[
            ExperimentRow(
                code=row.code,
                text=row.label.text,
                group=None if row.group is None else row.group.text,
                figures=list(row.figures),
            )
            for row in result.rows
        ],
        series=[
            ExperimentSeries(
                code=line.code,
                text=line.label.text,
                group=None if line.group is None else line.group.text,
                x=list(line.x),
                y=list(line.y),
            )
            for line in result.series
        ],
        x_label=None if result.x_label is None else result.x_label.text,
        y_label=None if result.y_label is None else result.y_label.text,
        statement=result.statement.text,
        notes=notes_answer(result.notes),
    )


@router.post("/attention", summary="One head over a cache, step by step")
def attention(request: AttentionRequest) -> AttentionStepAnswer:
    """Append the new positions and attend with their queries, on the device asked for."""
    return answer_attention(request)


@router.post("/attention/experiments", summary="One experiment of the lab")
async def experiment(asked: ExperimentRequest, request: Request) -> ExperimentAnswer:
    """Run one experiment; ends when the caller goes away."""
    (result,) = await collected(request, start_experiment(asked))
    return experiment_answer(result)
