"""What a model keeps over context lengths, and what its weights take, as answers show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from app.api.answers import Answer
from app.domain.errors import DomainError
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.state import ModelState
from app.domain.units import bytes_text

if TYPE_CHECKING:
    from app.domain.context_table import ContextRow
    from app.readers.model_files import FileWeights


class ContextAnswer(Answer):
    """One sequence of so many positions."""

    tokens: int
    growing_bytes: int = Field(description="What goes with every position.")
    window_bytes: int = Field(description="What goes with the positions still in sight.")
    fixed_bytes: int
    total_bytes: int
    total_bytes_text: str
    average_bytes_per_token: int = Field(description="total_bytes / tokens, rounded half up.")
    as_if_full_bytes: int = Field(
        description="What the formula says that keeps every position in every layer."
    )


class WeightsOfType(Answer):
    """What is stored in one type; `tensors` is known only where a file lists them."""

    type: str
    tensors: int | None
    parameters: int
    bytes: int


class WeightsAnswer(Answer):
    """What the weights take, and how that is known."""

    basis: str = Field(
        description="header: tensors added up; index: as the index declares; config: by the "
        "shapes that the config gives"
    )
    bytes: int | None
    bytes_text: str | None
    parameters: int | None
    tensors: int | None
    files: int | None
    file_bytes: int | None = Field(description="How long the files must be, headers included.")
    by_type: list[WeightsOfType]


def contexts_answer(state: ModelState, formats: KvFormats) -> list[ContextAnswer]:
    """Return one sequence at 1k … 1M positions."""
    from app.domain.context_table import CONTEXT_TOKENS, context_table

    return [context_answer(row) for row in context_table(state, formats, CONTEXT_TOKENS)]


def context_answer(row: ContextRow) -> ContextAnswer:
    """Return a row of the table as answers show it."""
    return ContextAnswer(
        tokens=row.tokens,
        growing_bytes=row.growing_bytes,
        window_bytes=row.window_bytes,
        fixed_bytes=row.fixed_bytes,
        total_bytes=row.total_bytes,
        total_bytes_text=bytes_text(row.total_bytes),
        average_bytes_per_token=row.average_bytes,
        as_if_full_bytes=row.as_if_full_bytes,
    )


def kv_dtype_name(formats: KvFormats | None) -> str | None:
    """Return the one format of all layers by its name."""
    if formats is None or formats.base is None:
        return None
    key, value = formats.base.key.name, formats.base.value.name
    return key if key == value else f"{key}/{value}"


def weights_of_files(weights: FileWeights) -> WeightsAnswer:
    """Return weights that files hold."""
    size = weights.size_bytes
    return WeightsAnswer(
        basis=weights.basis,
        bytes=size,
        bytes_text=None if size is None else bytes_text(size),
        parameters=weights.parameters,
        tensors=weights.tensors,
        files=weights.files,
        file_bytes=weights.file_bytes,
        by_type=[
            WeightsOfType(
                type=total.type,
                tensors=total.tensors,
                parameters=total.parameters,
                bytes=total.size_bytes,
            )
            for total in weights.by_type
        ],
    )


def weights_of_config(config: Mapping[str, object]) -> tuple[WeightsAnswer | None, list[Note]]:
    """Return the weights that a config's own shapes amount to, or a note that says why not."""
    from app.readers.weights.reader import read_weights

    try:
        weights = read_weights(config)
        stored, size = weights.stored(), weights.size_bytes()
    except DomainError as error:
        why = Note("weights_unknown", "What the weights take is not known from the config: {why}",
                   {"why": error.note})  # fmt: skip
        return None, [why]
    answer = WeightsAnswer(
        basis="config",
        bytes=size,
        bytes_text=bytes_text(size),
        parameters=weights.parameters(),
        tensors=None,
        files=None,
        file_bytes=None,
        by_type=[
            WeightsOfType(
                type=total.dtype, tensors=None, parameters=total.elements, bytes=total.size_bytes
            )
            for total in stored
        ],
    )
    return answer, list(weights.notes)
