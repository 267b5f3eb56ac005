"""`/engines/side-by-side`: from a checked request to all engines' rows, and to JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.engine_answers import SpentAnswer
from app.api.engines_schemas import SideBySideRequest
from app.api.model_input import kv_format
from app.api.schemas import PairFormat
from app.domain.notes import Note
from app.domain.units import bytes_text

if TYPE_CHECKING:
    from app.engines.side_by_side import EngineRow, SideBySide

# What a model without a length of its own is compared at.
DEFAULT_CONTEXT_TOKENS = 32_768
RANK_FIELDS = (
    "tensor_parallel", "pipeline_parallel", "data_parallel", "decode_context_parallel",
)  # fmt: skip
NOT_COUNTED = (
    Note("weights", "the model's weights"),
    Note("activations", "activations, workspaces and captured graphs"),
    Note("communication", "communication buffers"),
)


class LengthBytesAnswer(Answer):
    """One request of a length; `bytes` is null beyond the longest request."""

    length_tokens: int
    bytes: int | None
    bytes_text: str


class EngineRowAnswer(Answer):
    """One engine's answer; null figures where it refuses, with the reason."""

    engine: str
    title: str
    version: str
    refusal: NoteAnswer | None
    stopped: NoteAnswer | None = Field(
        description="Set where one request of the longest length does not fit: no start."
    )
    tokens: int | None = Field(
        description="What the whole memory holds of sequences of the longest length: concurrency"
        " times that length."
    )
    concurrency: float | None = Field(
        description="Requests of the longest length at once; engines without a pool hold whole"
        " ones only."
    )
    concurrency_exact: str | None
    still_bytes: int | None = Field(
        description="The fixed part of a request of at least holds_from_tokens."
    )
    slope_bytes: int | None
    slope_tokens: int | None = Field(description="slope_bytes are added by every so many tokens.")
    holds_from_tokens: int | None = Field(
        description="From this length to the longest a request takes the fixed part and the slope,"
        " begun blocks whole."
    )
    request_bytes: int | None = Field(description="One request of the longest length.")
    need_bytes: int | None = Field(description="What of it the model needs, in this format.")
    lengths: list[LengthBytesAnswer]
    spent: list[SpentAnswer]
    formulas: list[str]
    printed: list[str]
    remarks: list[NoteAnswer] = Field(
        description="What the engine counts in its own words, and what it does not take."
    )
    assumptions: list[NoteAnswer]


class SideBySideAnswer(Answer):
    """Every engine's row, and the model's own need at the same lengths."""

    context_tokens: int
    available_bytes: int
    available_bytes_text: str
    need_bytes: int
    need_format: str
    need: list[LengthBytesAnswer]
    engines: list[EngineRowAnswer]
    formula: str
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


def compute_side_by_side(request: SideBySideRequest) -> SideBySide:
    """Return the rows of a request; raises a DomainError that names the field."""
    from app.api.engine_models import engine_model
    from app.engines.side_by_side import Question, default_lengths, side_by_side

    model = engine_model(request.model)
    context = request.context_tokens or model.max_context_tokens or DEFAULT_CONTEXT_TOKENS
    dtype = request.kv_dtype
    pair = None if dtype is None else kv_format(dtype, ("kv_dtype",))
    lengths = request.lengths or default_lengths(context)
    question = Question(
        model=model,
        available_bytes=request.available_bytes,
        context_tokens=context,
        lengths=tuple(lengths),
        key=None if pair is None else pair.key,
        # One format for both is no request to keep values in a format of their own.
        value=pair.value if pair is not None and isinstance(dtype, PairFormat) else None,
        ranks={name: count for name in RANK_FIELDS if (count := getattr(request, name)) > 1},
    )
    return side_by_side(question, {str(name): given for name, given in request.settings.items()})


def answer_side_by_side(request: SideBySideRequest) -> SideBySideAnswer:
    """Return the answer of `/engines/side-by-side`."""
    return side_by_side_answer(compute_side_by_side(request))


def side_by_side_answer(found: SideBySide) -> SideBySideAnswer:
    """Return the rows as JSON shows them."""
    return SideBySideAnswer(
        context_tokens=found.context_tokens,
        available_bytes=found.available_bytes,
        available_bytes_text=bytes_text(found.available_bytes),
        need_bytes=found.need_bytes,
        need_format=found.need_format,
        need=[_length(length, size) for length, size in found.need],
        engines=[_row(row) for row in found.rows],
        formula=next((row.formulas[-1] for row in found.rows if row.formulas), ""),
        assumptions=notes_answer(found.notes),
        not_counted=notes_answer(NOT_COUNTED),
    )


def _length(length: int, size: int | None) -> LengthBytesAnswer:
    return LengthBytesAnswer(
        length_tokens=length, bytes=size, bytes_text="" if size is None else bytes_text(size)
    )


def _row(row: EngineRow) -> EngineRowAnswer:
    refusal, stopped = row.refusal, row.stopped
    return EngineRowAnswer(
        engine=row.engine,
        title=row.title,
        version=row.version,
        refusal=None if refusal is None else NoteAnswer(code=refusal.code, text=refusal.text),
        stopped=None if stopped is None else NoteAnswer(code=stopped.code, text=stopped.text),
        tokens=row.tokens,
        concurrency=None if row.concurrency is None else float(row.concurrency),
        concurrency_exact=None if row.concurrency is None else str(row.concurrency),
        still_bytes=row.still_bytes,
        slope_bytes=None if row.slope is None else row.slope.numerator,
        slope_tokens=None if row.slope is None else row.slope.denominator,
        holds_from_tokens=row.holds_from_tokens,
        request_bytes=row.request_bytes,
        need_bytes=row.need_bytes,
        lengths=[_length(length, size) for length, size in row.lengths],
        spent=[
            SpentAnswer(
                code=part.code, bytes=part.bytes, bytes_text=bytes_text(part.bytes), text=part.text
            )
            for part in row.excess
        ],
        formulas=list(row.formulas),
        printed=list(row.printed),
        remarks=notes_answer(row.remarks),
        assumptions=notes_answer(row.notes),
    )
