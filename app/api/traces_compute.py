"""From a log and a checked request to its report, for the API, the page and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

from app.api.compute import ModelAndFormats
from app.api.model_input import formats_of, read_model
from app.api.traces_schemas import (
    DEFAULT_DECODE_TOKENS_PER_S,
    DEFAULT_PREFILL_TOKENS_PER_S,
    NS_PER_MS,
    TracesRequest,
)
from app.domain.cached_blocks import CachedBlock, cached_block
from app.domain.errors import Conflict, DomainError, FieldPath, OutOfRange, Unsupported
from app.domain.hit_curve import MAX_CAPACITY_BLOCKS, HitPoint
from app.domain.notes import Note
from app.domain.per_token import Shape, omissions, shape_of
from app.domain.request_bytes import paged_bytes
from app.domain.timeline import FixedDuration, ServiceModel, TokenRates
from app.domain.traces import TraceMeter, TraceReport, TraceRequest
from app.readers.traces import (
    Progress,
    TraceMistake,
    TraceOptions,
    TraceReader,
    TraceSource,
    chunks_of,
    no_progress,
    read_report,
)

_PARQUET = b"PAR1"
# Errors of the log itself name one of these; all others name a field of the request.
_OF_THE_LOG = frozenset(
    {"trace", "blocks", "arrival_ns", "input_tokens", "output_tokens", "tokens", "requests"}
)
# Parts of the log's own reuse for which the smallest pool is told, in per cent.
LEVELS = (50, 75, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBounds:
    """What a log may hold. A few bytes of Parquet can stand for any number of rows."""

    requests: int
    references: int
    unique_blocks: int


# 64 MiB of text hold less than the first two; the third is some 300 MB of memory.
UPLOAD_BOUNDS = TraceBounds(requests=15_000_000, references=50_000_000, unique_blocks=2_500_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The smallest pool that has so many per cent of the log's own reuse."""

    percent: int
    point: HitPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedTraces:
    """A log's report with the request's model, as domain values.

    `given` and `shape` are None without a model; `block` is None without one too, and where nobody
    says how many tokens the log's blocks have.
    """

    request: TracesRequest
    form: str
    report: TraceReport
    given: ModelAndFormats | None
    shape: Shape | None
    block: CachedBlock | None
    points: tuple[HitPoint, ...]
    levels: tuple[Level, ...]
    pool: HitPoint | None
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    def bytes_of(self, point: HitPoint) -> int | None:
        """Return the bytes of a pool's capacity, where they are known."""
        if self.block is None or not self.block.bytes:
            return None
        return point.capacity_blocks * self.block.bytes

    @property
    def unique_bytes(self) -> int | None:
        """Return what all blocks of the log take, each once, where it is known."""
        if self.report.curve is None:
            return None
        return self.bytes_of(self.report.curve.at(self.report.curve.unique_blocks))

    def engine_blocks_of(self, point: HitPoint) -> int | None:
        """Return the engine's blocks of a pool's capacity, where the log's block size is known."""
        tokens = self.report.block_tokens
        if tokens is None:
            return None
        return -(-point.capacity_blocks * tokens // self.request.block_size)

    @property
    def formula(self) -> str:
        """Return how a block's or a token's bytes come about; empty without a model."""
        if self.block is not None:
            return self.block.working.numbers
        return self.shape.workings["bytes_per_token"].numbers if self.shape is not None else ""


def service_of(request: TracesRequest) -> ServiceModel:
    """Return how long requests live.

    Raises:
        Conflict: for a duration beside a rate, or a rate for prompts alone.

    """
    prefill, decode = request.prefill_tokens_per_s, request.decode_tokens_per_s
    if request.duration_ms is not None:
        if prefill is not None or decode is not None:
            raise Conflict("{field} and rates both say how long requests live: give one",
                           field="duration_ms")  # fmt: skip
        return FixedDuration(duration_ns=request.duration_ms * NS_PER_MS)
    if decode is not None:
        return TokenRates(decode_tokens_per_s=decode, prefill_tokens_per_s=prefill)
    if prefill is not None:
        raise Conflict("{field} needs decode_tokens_per_s beside it", field="prefill_tokens_per_s")
    return TokenRates(
        decode_tokens_per_s=DEFAULT_DECODE_TOKENS_PER_S,
        prefill_tokens_per_s=DEFAULT_PREFILL_TOKENS_PER_S,
    )


def compute_traces(
    request: TracesRequest,
    file: IO[bytes],
    *,
    progress: Progress = no_progress,
    bounds: TraceBounds | None = None,
) -> ComputedTraces:
    """Return what a log comes to; it is read once, from where it stands.

    Raises:
        DomainError: naming the request's field, or `file` and the line that cannot be read.
        TraceCancelled: from `progress`.

    """
    given, shape = _model(request)
    groups = shape.groups if shape is not None else ()
    measured: dict[str, Any] = {"service": service_of(request), "bins": request.bins}
    if shape is not None:
        measured["bytes_of_tokens"] = lambda tokens: paged_bytes(groups, tokens, request.block_size)
    meter = TraceMeter(**measured) if bounds is None else _BoundedMeter(bounds, **measured)
    options = TraceOptions(time_unit=request.time_unit, token_block_tokens=request.block_size)
    try:
        source = _source(file, options, progress)
        report = read_report(source, meter, block_tokens=request.block_tokens)
    except DomainError as error:
        raise _of_file(error) from None
    return _computed(request, source.form, report, given, shape)


def _model(request: TracesRequest) -> tuple[ModelAndFormats | None, Shape | None]:
    if request.model is None:
        return None, None
    reading = read_model(request.model)
    formats, assumed = formats_of(request.kv_dtype, request.element_bytes, reading)
    given = ModelAndFormats(reading=reading, formats=formats, assumed=assumed)
    return given, shape_of(reading.state, formats)


def _source(file: IO[bytes], options: TraceOptions, progress: Progress) -> TraceSource:
    """Return the reader for a log's first bytes."""
    head = file.read(len(_PARQUET))
    if file.seekable():
        file.seek(-len(head), 1)
        chunks = chunks_of(file)
    else:
        chunks = chain([head], chunks_of(file))
    if head != _PARQUET:
        return TraceReader(chunks, options, progress=progress)
    if not file.seekable():
        raise Unsupported("{field}: Parquet is read from a file, not from a pipe", field="trace")
    from app.readers.parquet_traces import ParquetReader

    return ParquetReader(file, options, progress=progress)


class _BoundedMeter(TraceMeter):
    """A meter that takes so many requests and references and no more."""

    def __init__(self, bounds: TraceBounds, **options: Any) -> None:
        super().__init__(**options, max_unique_blocks=bounds.unique_blocks)
        self._bounds = bounds
        self._requests = 0
        self._references = 0

    def add(self, request: TraceRequest) -> None:
        """Take the next request.

        Raises:
            OutOfRange: for one too many.

        """
        self._requests += 1
        self._references += len(request.blocks or ())
        if self._requests > self._bounds.requests or self._references > self._bounds.references:
            raise OutOfRange(
                "{field}: more than {requests} requests or {references} block ids; the command"
                " line takes larger logs",
                field="trace",
                requests=self._bounds.requests,
                references=self._bounds.references,
            )
        super().add(request)


def _of_file(error: DomainError) -> DomainError:
    """Return an error of the log as one of the request's file, with the line where it has one."""
    if error.field[:1] and error.field[0] in _OF_THE_LOG:
        line: FieldPath = (error.line,) if isinstance(error, TraceMistake) else ()
        error.field = ("file", *line)
        error.params["field"] = "file"
        error.args = (error.template.format_map(error.params),)
    return error


def _computed(
    request: TracesRequest,
    form: str,
    report: TraceReport,
    given: ModelAndFormats | None,
    shape: Shape | None,
) -> ComputedTraces:
    curve = report.curve
    block = None
    if shape is not None and curve is not None and report.block_tokens is not None:
        block = cached_block(shape.groups, report.block_tokens, request.block_size)
    pool = None
    if curve is not None and block is not None and block.bytes and request.pool_bytes is not None:
        pool = curve.at(min(MAX_CAPACITY_BLOCKS, request.pool_bytes // block.bytes))
    return ComputedTraces(
        request=request,
        form=form,
        report=report,
        given=given,
        shape=shape,
        block=block,
        points=() if curve is None else curve.sample(request.curve_points),
        levels=()
        if curve is None
        else tuple(
            Level(percent=percent, point=curve.smallest_with(-(-curve.most_hits * percent // 100)))
            for percent in LEVELS
        ),
        pool=pool,
        assumptions=tuple(_assumptions(request, report, given, block)),
        not_counted=() if given is None else omissions(given.formats),
    )


def _assumptions(
    request: TracesRequest,
    report: TraceReport,
    given: ModelAndFormats | None,
    block: CachedBlock | None,
) -> Iterator[Note]:
    if given is not None:
        yield from given.reading.assumptions
        yield from given.assumed
    yield from report.assumptions
    if report.timeline is not None:
        yield Note(
            "live_in_blocks",
            "What a request holds is counted in whole blocks of {block_size} tokens.",
            {"block_size": request.block_size},
        )
    if block is not None:
        yield from block.assumptions
