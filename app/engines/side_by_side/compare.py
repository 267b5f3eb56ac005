"""Every engine asked the same question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.domain.errors import DomainError, Missing
from app.domain.notes import Note
from app.domain.per_token import shape_of
from app.domain.request_bytes import effective_bytes
from app.engines.known import ENGINES
from app.engines.side_by_side.costs import need_formats
from app.engines.side_by_side.pools import sglang_row, tensorrt_llm_row, transformers_row
from app.engines.side_by_side.slots import llama_cpp_row, vllm_row
from app.engines.side_by_side.values import EngineRow, Question, Settings, SideBySide


def side_by_side(question: Question, more: Mapping[str, Settings]) -> SideBySide:
    """Return every engine's row; an engine that refuses the model says so in its row.

    `more` are settings by engine, which go before what is set here.

    Raises:
        Missing: where nothing says what the layers keep.
        DomainError: for a setting in `more` that is wrong, under the engine's name.

    """
    model = question.model
    if model.state is None:
        raise Missing("{field} is missing: nothing says what the layers keep", field="model")
    formats = need_formats(question)
    groups = shape_of(model.state, formats).groups
    context = question.context_tokens
    rows = tuple(_row(name, question, more.get(name, {})) for name in _ROWS)
    return SideBySide(
        rows=rows,
        context_tokens=context,
        available_bytes=question.available_bytes,
        need=tuple((length, effective_bytes(groups, length)) for length in question.lengths),
        need_bytes=effective_bytes(groups, context),
        need_format=formats.base.key.name if formats.base else "",
        notes=_notes(question),
    )


def _notes(question: Question) -> tuple[Note, ...]:
    return (
        Note("one_device", "one device, no parallelism; each engine in its newest known version"),
        Note("whole_budget", "the whole budget goes to the cache: weights and activations are taken"
             " off before"),
        Note("longest_request", "the longest request is {tokens} tokens in every engine",
             {"tokens": question.context_tokens}),
    )  # fmt: skip


def _row(name: str, question: Question, more: Settings) -> EngineRow:
    known = next(engine for engine in ENGINES if engine.name == name)
    blank = EngineRow(engine=name, title=known.title, version=known.newest)
    try:
        return _ROWS[name](question, more, blank)
    except DomainError as error:
        # A setting that somebody typed is a mistake of the request; all else is the engine's word.
        if error.field and error.field[0] in more:
            raise error.under("settings", name) from None
        return replace(blank, refusal=Note(error.code, error.template, error.params))


_ROWS: Mapping[str, Callable[[Question, Settings, EngineRow], EngineRow]] = {
    "vllm": vllm_row,
    "llama_cpp": llama_cpp_row,
    "sglang": sglang_row,
    "tensorrt_llm": tensorrt_llm_row,
    "transformers": transformers_row,
}


def default_lengths(context_tokens: int) -> Sequence[int]:
    """Return three lengths to compare at: a short one, a sixteenth, and the longest."""
    return sorted({min(1024, context_tokens), max(context_tokens // 16, 1), context_tokens})
