"""`/traces`: a request log becomes lengths, live state over time, and hits against capacity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from app.api.answers import Answer, Explained, notes_answer
from app.api.problems import REFUSED
from app.api.traces_compute import UPLOAD_BOUNDS, ComputedTraces, compute_traces
from app.api.traces_schemas import (
    MAX_CURVE_POINTS,
    MAX_DURATION_MS,
    MAX_TRACE_BINS,
    TimeUnit,
    TracesRequest,
    traces_body,
)
from app.api.watched_runs import GONE_STATUS, WatchedRun, result_for
from app.domain.dtypes import MAX_ELEMENT_BYTES
from app.domain.hit_curve import HitCurve, HitPoint
from app.domain.ledgers import MAX_BLOCK_SIZE, MAX_TOTAL_BYTES
from app.domain.length_summary import LengthSummary
from app.domain.timeline import MAX_RATE_TOKENS_PER_S, Timeline
from app.domain.traces import MAX_BLOCK_TOKENS
from app.domain.units import bytes_text
from app.readers.traces import Progress, TraceCancelled

router = APIRouter(tags=["traces"], responses=REFUSED)


class PercentileAnswer(Answer):
    """The smallest length that so many per cent of all requests do not exceed."""

    percentile: str
    tokens: int


class LengthsAnswer(Answer):
    """Lengths of all requests; 0 is the shortest and 100 the longest."""

    total_tokens: int
    mean_tokens: int
    percentiles: list[PercentileAnswer]


class CapacityAnswer(Answer):
    """What one pool hits. Bytes need a model, engine blocks the log's block size too."""

    capacity_blocks: int
    capacity_bytes: int | None
    capacity_text: str | None
    engine_blocks: int | None
    hit_blocks: int
    hit_rate: float


class LevelAnswer(CapacityAnswer):
    """The smallest pool with so many per cent of the log's own reuse."""

    percent_of_reuse: int


class BlocksAnswer(Answer):
    """What the log's blocks come to; the curve is exact at each of its points."""

    block_tokens: int | None
    engine_block_tokens: int
    block_bytes: int | None
    logical_blocks: int = Field(description="References to a block.")
    unique_blocks: int = Field(description="Different blocks.")
    repeated_blocks: int = Field(description="References to a block that was named before.")
    unique_bytes: int | None
    unique_text: str | None
    hit_blocks: int = Field(description="Hits of a pool without bound: the log's own reuse.")
    hit_rate: float
    enough_blocks: int = Field(description="From this capacity on there are no more hits.")
    levels: list[LevelAnswer]
    curve: list[CapacityAnswer]
    pool: CapacityAnswer | None = Field(description="The pool of `pool_bytes`.")


class BinAnswer(Answer):
    """One stretch of time, counted from the first arrival."""

    from_ns: int
    peak_bytes: int
    mean_bytes: int
    peak_requests: int


class LiveAnswer(Answer):
    """State that is live over time, from the first arrival to the last release."""

    start_ns: int
    duration_ns: int
    bin_ns: int
    peak_bytes: int
    peak_text: str
    peak_from_ns: int = Field(description="When, counted from the first arrival.")
    peak_requests: int
    mean_bytes: int
    mean_text: str
    bins: list[BinAnswer]


class TracesAnswer(Explained):
    """A whole log. What it does not tell is null: no blocks, no times, no model."""

    form: str = Field(description="How the log is written.")
    requests: int
    first_arrival_ns: int | None
    last_arrival_ns: int | None
    inputs: LengthsAnswer
    outputs: LengthsAnswer
    lengths: LengthsAnswer = Field(description="Input and output together.")
    blocks: BlocksAnswer | None
    live: LiveAnswer | None


def traces_answer(computed: ComputedTraces) -> TracesAnswer:
    """Return a report as JSON shows it."""
    report = computed.report
    workings = dict(computed.shape.workings) if computed.shape is not None else {}
    if computed.block is not None:
        workings["block_bytes"] = computed.block.working
    return TracesAnswer(
        form=computed.form,
        requests=report.requests,
        first_arrival_ns=report.first_arrival_ns,
        last_arrival_ns=report.last_arrival_ns,
        inputs=_lengths(report.inputs),
        outputs=_lengths(report.outputs),
        lengths=_lengths(report.lengths),
        blocks=None if report.curve is None else _blocks(computed, report.curve),
        live=None if report.timeline is None else _live(report.timeline),
        formula=computed.formula,
        workings=workings,
        assumptions=notes_answer(computed.assumptions),
        not_counted=notes_answer(computed.not_counted),
    )


def _lengths(summary: LengthSummary) -> LengthsAnswer:
    return LengthsAnswer(
        total_tokens=summary.total_tokens,
        mean_tokens=summary.mean_tokens,
        percentiles=[PercentileAnswer(percentile=p, tokens=t) for p, t in summary.rows()],
    )


def _blocks(computed: ComputedTraces, curve: HitCurve) -> BlocksAnswer:
    block = computed.block
    block_bytes = block.bytes if block is not None and block.bytes else None
    unique = None if block_bytes is None else curve.unique_blocks * block_bytes
    whole = curve.at(curve.enough_blocks)
    return BlocksAnswer(
        block_tokens=computed.report.block_tokens,
        engine_block_tokens=computed.request.block_size,
        block_bytes=block_bytes,
        logical_blocks=curve.logical_blocks,
        unique_blocks=curve.unique_blocks,
        repeated_blocks=curve.repeated_blocks,
        unique_bytes=unique,
        unique_text=None if unique is None else bytes_text(unique),
        hit_blocks=whole.hit_blocks,
        hit_rate=whole.hit_rate,
        enough_blocks=curve.enough_blocks,
        levels=[
            LevelAnswer(percent_of_reuse=level.percent, **_capacity(computed, level.point))
            for level in computed.levels
        ],
        curve=[CapacityAnswer(**_capacity(computed, point)) for point in computed.points],
        pool=None
        if computed.pool is None
        else CapacityAnswer(**_capacity(computed, computed.pool)),
    )


def _capacity(computed: ComputedTraces, point: HitPoint) -> dict[str, Any]:
    held = computed.bytes_of(point)
    return {
        "capacity_blocks": point.capacity_blocks,
        "capacity_bytes": held,
        "capacity_text": None if held is None else bytes_text(held),
        "engine_blocks": computed.engine_blocks_of(point),
        "hit_blocks": point.hit_blocks,
        "hit_rate": point.hit_rate,
    }


def _live(line: Timeline) -> LiveAnswer:
    return LiveAnswer(
        start_ns=line.start_ns,
        duration_ns=line.end_ns - line.start_ns,
        bin_ns=line.bin_ns,
        peak_bytes=line.peak_bytes,
        peak_text=bytes_text(line.peak_bytes),
        peak_from_ns=line.peak_at_ns - line.start_ns,
        peak_requests=line.peak_requests,
        mean_bytes=line.mean_bytes,
        mean_text=bytes_text(line.mean_bytes),
        bins=[
            BinAnswer(
                from_ns=each.start_ns - line.start_ns,
                peak_bytes=each.peak_bytes,
                mean_bytes=each.mean_bytes,
                peak_requests=each.peak_requests,
            )
            for each in line.bins
        ],
    )


def traces_request(fields: Mapping[str, Any]) -> TracesRequest:
    """Return form fields as a checked request.

    Raises:
        RequestValidationError: naming the fields, as the framework does.
        DomainError: for a field that is not the JSON it should be.

    """
    try:
        return TracesRequest.model_validate(traces_body(fields))
    except ValidationError as error:
        raise RequestValidationError(
            [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
        ) from None


@router.post(
    "/traces",
    summary="Lengths, live state and hits against capacity of a request log",
    response_model=TracesAnswer,
)
async def post_traces(  # noqa: PLR0913 - one parameter a form field
    *,
    request: Request,
    file: Annotated[
        UploadFile,
        File(
            description="JSON lines, CSV or Parquet: arrival time, input and output tokens, and "
            "block ids or token ids where there are any."
        ),
    ],
    model: Annotated[str, Form(description="As elsewhere, as JSON text.")] = "",
    kv_dtype: Annotated[str, Form(description="A format, or JSON as elsewhere.")] = "",
    element_bytes: Annotated[int | None, Form(ge=1, le=MAX_ELEMENT_BYTES)] = None,
    block_size: Annotated[int, Form(ge=1, le=MAX_BLOCK_SIZE, description="The engine's.")] = 16,
    block_tokens: Annotated[
        int | None, Form(ge=1, le=MAX_BLOCK_TOKENS, description="Of the log's blocks.")
    ] = None,
    time_unit: Annotated[TimeUnit | None, Form(description="Of times that are numbers.")] = None,
    prefill_tokens_per_s: Annotated[int | None, Form(ge=1, le=MAX_RATE_TOKENS_PER_S)] = None,
    decode_tokens_per_s: Annotated[int | None, Form(ge=1, le=MAX_RATE_TOKENS_PER_S)] = None,
    duration_ms: Annotated[
        int | None, Form(ge=1, le=MAX_DURATION_MS, description="Instead of the rates.")
    ] = None,
    pool_bytes: Annotated[int | None, Form(ge=0, le=MAX_TOTAL_BYTES)] = None,
    bins: Annotated[int, Form(ge=2, le=MAX_TRACE_BINS)] = 200,
    curve_points: Annotated[int, Form(ge=4, le=MAX_CURVE_POINTS)] = 200,
) -> Response:
    """Return what a log comes to; a line that cannot be read is named, and nothing half-counted."""
    asked = traces_request(
        {
            "model": model, "kv_dtype": kv_dtype, "element_bytes": element_bytes,
            "block_size": block_size, "block_tokens": block_tokens, "time_unit": time_unit,
            "prefill_tokens_per_s": prefill_tokens_per_s,
            "decode_tokens_per_s": decode_tokens_per_s, "duration_ms": duration_ms,
            "pool_bytes": pool_bytes, "bins": bins, "curve_points": curve_points,
        }
    )  # fmt: skip

    def compute(progress: Progress) -> str:
        computed = compute_traces(asked, file.file, progress=progress, bounds=UPLOAD_BOUNDS)
        return traces_answer(computed).model_dump_json()

    try:
        text = await result_for(request, WatchedRun(compute))
    except TraceCancelled:
        return Response(status_code=GONE_STATUS)
    return Response(text, media_type="application/json")
