"""The question that every engine is asked, and the rows of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.domain.dtypes import DType
from app.domain.notes import Note
from app.engines.model import EngineModel

Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every engine. `key` and `value` are None for each engine's own default.

    `ranks` are counts above 1 by RANKS' names; each rank has the available bytes.
    """

    model: EngineModel
    available_bytes: int
    context_tokens: int
    lengths: tuple[int, ...]
    key: DType | None = None
    value: DType | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Bytes that one request of the longest length takes beyond the need, and on what."""

    code: str
    bytes: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine's answer; with a `refusal` every figure is None or empty.

    `concurrency` is how many requests of the longest length the whole memory holds at once, a part
    of one included where the engine keeps a pool; `tokens` is that times the length, in whole
    tokens. Where an engine counts something else itself, `remarks` say so in its words, and which
    of the question's settings it does not take. From `holds_from_tokens` up to the longest length
    a request takes `still_bytes` and `slope` bytes a token, begun blocks whole. `lengths` pairs
    each length asked for with the bytes of one request (None beyond the longest). `excess` adds up
    to what the longest request takes beyond `need_bytes`. `stopped` is set where the engine would
    not start with this budget: one request of the longest length does not fit.
    """

    engine: str
    title: str
    version: str
    refusal: Note | None = None
    stopped: Note | None = None
    tokens: int | None = None
    concurrency: Fraction | None = None
    still_bytes: int | None = None
    slope: Fraction | None = None
    holds_from_tokens: int | None = None
    request_bytes: int | None = None
    need_bytes: int | None = None
    lengths: tuple[tuple[int, int | None], ...] = ()
    excess: tuple[Excess, ...] = ()
    remarks: tuple[Note, ...] = ()
    formulas: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The rows, and the model's own need at the same lengths in the same format."""

    rows: tuple[EngineRow, ...]
    context_tokens: int
    available_bytes: int
    need: tuple[tuple[int, int], ...]
    need_bytes: int
    need_format: str
    notes: tuple[Note, ...]
