"""What a reader makes of an input: the state of a model, and all that was taken for granted."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.notes import Note
from app.domain.state import Layer, ModelState


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A model read from a config, a GGUF header, a catalogue entry or plain numbers.

    `draft_layers` are those of multi-token prediction, counted apart and off by default.
    `dtype` is the format the file names for the weights (its KV cache's default), or None.
    """

    state: ModelState
    family: str
    name: str = ""
    dtype: str | None = None
    max_context_tokens: int | None = None
    draft_layers: tuple[Layer, ...] = ()
    assumptions: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
