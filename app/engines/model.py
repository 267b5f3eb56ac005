"""A model as the engines' plans take it: a config, a GGUF header, and what its layers keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.notes import Note
from app.domain.state import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """`config` is empty where none was given, `gguf` None without a header.

    `state` is None for a header that only llama.cpp's own rules describe.
    """

    name: str = ""
    config: Mapping[str, object] = field(default_factory=dict)
    gguf: Mapping[str, object] | None = None
    state: ModelState | None = None
    max_context_tokens: int | None = None
    assumptions: tuple[Note, ...] = ()
