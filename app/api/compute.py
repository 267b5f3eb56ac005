"""From a checked request to its answer: read, ask the domain, hand over. No arithmetic here.

The API's routers, the pages and the command line all call these functions, so that the three show
one computation.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.api import schemas as s
from app.api.answers import (
    LedgersAnswer,
    PerTokenAnswer,
    TensorShape,
    ledgers_answer,
    per_token_answer,
)
from app.api.model_input import read_formats, read_lengths, read_model
from app.domain.formats import KvFormats
from app.domain.ledgers import Ledgers, ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.per_token import Shape, grows, shape_of
from app.domain.state import FullAttention
from app.domain.units import bytes_text
from app.readers.reading import ModelReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAndFormats:
    """A request's model and formats as domain values, and what was assumed to get them."""

    reading: ModelReading
    formats: KvFormats
    assumed: tuple[Note, ...]


def model_and_formats(request: s.WithModel) -> ModelAndFormats:
    """Return the model and formats of a request; raises a DomainError that names the field."""
    reading = read_model(request.model)
    formats, assumed = read_formats(request, reading)
    return ModelAndFormats(reading=reading, formats=formats, assumed=assumed)


# From here on an answer may take tens of milliseconds: it is worked out beside the event loop.
HEAVY_LENGTHS = 5_000
HEAVY_ROWS = 500


def is_heavy(request: s.LedgersRequest) -> bool:
    """Return whether a request's answer would hold up other requests."""
    many_rows = isinstance(request.model, s.LayerStatesModel) and (
        len(request.model.layer_states) * len(request.lengths) > HEAVY_LENGTHS
        or len(request.model.layer_states) > HEAVY_ROWS
    )
    return len(request.lengths) > HEAVY_LENGTHS or many_rows


def compute_ledgers(request: s.LedgersRequest) -> tuple[ModelAndFormats, Ledgers]:
    """Return the three ledgers of a request as a domain value."""
    given = model_and_formats(request)
    lengths = read_lengths(request.lengths)
    return given, ledgers(given.reading.state, given.formats, lengths, request.block_size)


def answer_ledgers(request: s.LedgersRequest) -> LedgersAnswer:
    """Return the answer of `/ledgers`."""
    given, answer = compute_ledgers(request)
    return ledgers_answer(given.reading, answer, request.offset, request.limit, given.assumed)


def answer_per_token(request: s.PerTokenRequest) -> PerTokenAnswer:
    """Return the answer of `/per-token`."""
    given = model_and_formats(request)
    shape = shape_of(given.reading.state, given.formats)
    tensor = _tensor_shape(request, given, shape)
    return per_token_answer(given.reading, given.formats, shape, tensor, given.assumed)


def _tensor_shape(
    request: s.PerTokenRequest, given: ModelAndFormats, shape: Shape
) -> TensorShape | None:
    if request.batch is None and request.seq_len is None:
        return None
    group = next((g for g in shape.groups if isinstance(g.state, FullAttention)), None)
    if group is None or not isinstance(group.state, FullAttention) or not grows(group.state):
        return None
    batch, seq_len = request.batch or 1, request.seq_len or 0
    runs = RequestLengths.of_runs([(seq_len, batch)])
    total = ledgers(given.reading.state, given.formats, runs, 1)
    heads, key, value = group.state.kv_heads, group.state.k_dim, group.state.v_dim
    layer_bytes = batch * seq_len * group.state.bytes_per_position(group.format)
    return TensorShape(
        shape=[batch, heads, seq_len, key],
        layer_elements=batch * seq_len * heads * (key + value),
        layer_bytes=layer_bytes,
        layer_bytes_text=bytes_text(layer_bytes),
        total_bytes=total.effective_bytes,
        total_bytes_text=bytes_text(total.effective_bytes),
    )
