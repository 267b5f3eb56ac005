"""Answers at the edge: the shape of each JSON answer, and the one way from a domain value to it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from app.domain.formats import KvFormats, placed_layers
from app.domain.ledgers import Ledgers, RequestRow
from app.domain.notes import Note
from app.domain.per_token import Shape, grows, omissions, window_positions
from app.domain.state import (
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    ModelState,
    Recurrent,
    Shared,
    State,
)
from app.domain.units import bytes_text
from app.domain.working import Working
from app.readers.reading import ModelReading


class Answer(BaseModel):
    """An answer: read-only, and nothing in it that the schema does not name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoteAnswer(Answer):
    """A short code with a sentence."""

    code: str
    text: str


class Explained(Answer):
    """What every answer that states bytes carries."""

    formula: str = Field(description="The expression with this request's numbers in it.")
    workings: dict[str, Working]
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


class LayerAnswer(Answer):
    """One state of one layer; a layer that keeps two has two rows with the same index."""

    index: int
    kind: str
    kv_heads: int | None = None
    k_dim: int | None = None
    v_dim: int | None = None
    index_dim: int | None = None
    window: int | None = None
    encoder_tokens: int | None = None
    with_layer: int | None = None
    tokens_per_entry: int | None = None
    bytes_per_token: int = Field(description="What one more token adds, once windows are not full.")
    fixed_bytes: int
    window_bytes: int


class TensorShape(Answer):
    """The tensor of keys (or of values) of the first growing layer, and both tensors' bytes."""

    shape: list[int] = Field(description="[batch, kv_heads, seq_len, head_dim]")
    layer_elements: int = Field(description="Elements of K and V of that layer.")
    layer_bytes: int
    layer_bytes_text: str
    total_bytes: int = Field(description="Effective bytes of all layers for this batch.")
    total_bytes_text: str


class PerTokenAnswer(Explained):
    """Slope, windows and fixed part of one sequence."""

    bytes_per_token: int
    bytes_per_token_text: str
    growth_bytes: int
    growth_tokens: int = Field(description="growth_bytes are added by every so many tokens.")
    fixed_bytes_per_sequence: int
    fixed_bytes_per_sequence_text: str
    window_bytes_per_sequence: int
    window_bytes_per_sequence_text: str
    layers: list[LayerAnswer]
    tensor_shape: TensorShape | None = None


class LedgersAnswer(Explained):
    """The three ledgers side by side."""

    bytes_per_token: int
    fixed_bytes_per_sequence: int
    window_bytes_per_sequence: int
    block_size: int
    request_count: int
    longest_tokens: int
    total_tokens: int
    effective_tokens: int
    padded_tokens: int
    paged_tokens: int
    effective_bytes: int
    effective_bytes_text: str
    padded_bytes: int
    padded_bytes_text: str
    paged_bytes: int
    paged_bytes_text: str
    padding_waste_bytes: int
    blocks: int
    tail_waste_tokens: int
    tail_waste_bytes: int
    waste_bound_tokens: int = Field(description="(b − 1) for every request that is not empty.")
    offset: int
    requests: list[RequestRow]


def notes_answer(notes: tuple[Note, ...]) -> list[NoteAnswer]:
    """Return notes as JSON shows them."""
    return [NoteAnswer(code=note.code, text=note.text) for note in notes]


def layer_answers(model: ModelState, formats: KvFormats) -> list[LayerAnswer]:
    """Return every layer's states, in layer order."""
    rows: list[LayerAnswer] = []
    for first, layer, layer_format, count in placed_layers(model, formats):
        cells = [_layer_cell(state, layer_format) for state in layer.states]
        for index in range(first, first + count):
            rows += [cell.model_copy(update={"index": index}) for cell in cells]
    return rows


def _layer_cell(state: State, layer_format: KvFormat) -> LayerAnswer:
    size = state.bytes_per_position(layer_format)
    held = window_positions(state)
    window = None
    if held is not None:
        window = held + 1
    latent = isinstance(state, LatentAttention)
    plain = not isinstance(state, LatentAttention | Recurrent | Shared)
    cross = state.kept_tokens(1) * size if isinstance(state, CrossAttention) else 0
    return LayerAnswer(
        index=0,
        kind=state.kind,
        kv_heads=state.kv_heads if plain else (1 if latent else None),  # type: ignore[union-attr]
        k_dim=_dim(state, "k_dim", "latent_dim"),
        v_dim=_dim(state, "v_dim", "rope_dim"),
        index_dim=(state.index_dim or None)
        if isinstance(state, FullAttention | LatentAttention)
        else None,
        window=window,
        encoder_tokens=state.encoder_tokens if isinstance(state, CrossAttention) else None,
        with_layer=state.with_layer if isinstance(state, Shared) else None,
        tokens_per_entry=state.tokens_per_entry if isinstance(state, LatentAttention) else None,
        bytes_per_token=size if grows(state) or window is not None else 0,
        fixed_bytes=state.fixed_bytes() + cross,
        window_bytes=(held or 0) * size,
    )


def _dim(state: State, name: str, latent_name: str) -> int | None:
    value = getattr(state, name, getattr(state, latent_name, None))
    return value if isinstance(value, int) else None


def per_token_answer(
    reading: ModelReading,
    formats: KvFormats,
    shape: Shape,
    tensor_shape: TensorShape | None,
    assumed: tuple[Note, ...],
) -> PerTokenAnswer:
    """Return the answer of `/per-token`."""
    return PerTokenAnswer(
        bytes_per_token=shape.bytes_per_token,
        bytes_per_token_text=bytes_text(shape.bytes_per_token),
        growth_bytes=shape.growth_bytes,
        growth_tokens=shape.growth_tokens,
        fixed_bytes_per_sequence=shape.fixed_bytes,
        fixed_bytes_per_sequence_text=bytes_text(shape.fixed_bytes),
        window_bytes_per_sequence=shape.window_bytes,
        window_bytes_per_sequence_text=bytes_text(shape.window_bytes),
        layers=layer_answers(reading.state, formats),
        tensor_shape=tensor_shape,
        formula=shape.workings["bytes_per_token"].numbers,
        workings=shape.workings,
        assumptions=notes_answer((*reading.assumptions, *assumed)),
        not_counted=notes_answer(omissions(formats)),
    )


def ledgers_answer(
    reading: ModelReading, answer: Ledgers, offset: int, limit: int, assumed: tuple[Note, ...]
) -> LedgersAnswer:
    """Return the answer of `/ledgers`, with one page of its requests."""
    shape = answer.shape
    return LedgersAnswer(
        bytes_per_token=shape.bytes_per_token,
        fixed_bytes_per_sequence=shape.fixed_bytes,
        window_bytes_per_sequence=shape.window_bytes,
        block_size=answer.block_size,
        request_count=answer.lengths.requests,
        longest_tokens=answer.lengths.longest,
        total_tokens=answer.lengths.tokens,
        effective_tokens=answer.effective_tokens,
        padded_tokens=answer.padded_tokens,
        paged_tokens=answer.paged_tokens,
        effective_bytes=answer.effective_bytes,
        effective_bytes_text=bytes_text(answer.effective_bytes),
        padded_bytes=answer.padded_bytes,
        padded_bytes_text=bytes_text(answer.padded_bytes),
        paged_bytes=answer.paged_bytes,
        paged_bytes_text=bytes_text(answer.paged_bytes),
        padding_waste_bytes=answer.padding_waste_bytes,
        blocks=answer.blocks,
        tail_waste_tokens=answer.tail_waste_tokens,
        tail_waste_bytes=answer.tail_waste_bytes,
        waste_bound_tokens=answer.waste_bound_tokens,
        offset=offset,
        requests=list(answer.rows(offset, limit)),
        formula=shape.workings["bytes_per_token"].numbers,
        workings={**shape.workings, **answer.workings},
        assumptions=notes_answer((*reading.assumptions, *assumed, *answer.assumptions)),
        not_counted=notes_answer(answer.not_counted),
    )
