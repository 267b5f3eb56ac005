"""Every engine asked the same question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from app.domain.errors import DomainError, Missing
from app.domain.notes import Note
from app.domain.per_token import shape_of
from app.domain.request_bytes import effective_bytes
from app.domain.units import bytes_text
from app.engines.known import ENGINES
from app.engines.setting_values import own_names
from app.engines.side_by_side.conflicts import agreeing
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
        notes=_notes(question, more),
    )


def _notes(question: Question, more: Mapping[str, Settings]) -> tuple[Note, ...]:
    first = Note("one_device", "one device, no parallelism")
    if question.ranks:
        first = Note("each_rank", "each rank has {available} for the cache; the bytes of a request"
                     " are those on one rank",
                     {"available": bytes_text(question.available_bytes)})  # fmt: skip
    chosen = any(settings.get("version") is not None for settings in more.values())
    return (
        *question.model.assumptions,
        first,
        Note("versions_chosen", "each engine in its newest known version where none is given")
        if chosen
        else Note("versions_newest", "each engine in its newest known version"),
        Note("whole_budget", "the whole budget goes to the cache: weights and activations are taken"
             " off before"),
        Note("longest_request", "the longest request is {tokens} tokens in every engine",
             {"tokens": question.context_tokens}),
    )  # fmt: skip


def _row(name: str, question: Question, more: Settings) -> EngineRow:
    known = next(engine for engine in ENGINES if engine.name == name)
    own, remarks = _ranks_of(name, known.title, question.ranks)
    blank = EngineRow(engine=name, title=known.title, version=known.newest, remarks=remarks)
    try:
        more = own_names(more, dict(known.aliases))
        more = agreeing(name, more, question, RANKS[name])
    except DomainError as error:
        raise error.under("settings", name) from None
    try:
        return _ROWS[name](question, {**own, **more}, blank)
    except DomainError as error:
        # A setting that somebody typed is a mistake of the request; all else is the engine's word.
        if error.field and error.field[0] in more:
            raise error.under("settings", name) from None
        return replace(blank, refusal=Note(error.code, error.template, error.params))


def _ranks_of(
    name: str, title: str, ranks: Mapping[str, int]
) -> tuple[dict[str, object], tuple[Note, ...]]:
    """Return the ranks by an engine's own names, and those that it has no setting for."""
    taken = RANKS[name]
    own: dict[str, object] = {taken[kind]: count for kind, count in ranks.items() if kind in taken}
    left = [kind for kind in ranks if kind not in taken]
    if not left:
        return own, ()
    note = Note("ranks_not_taken", "{engine} has no setting for {settings}: its row is computed"
                " without",
                {"engine": title, "settings": ", ".join(left)})  # fmt: skip
    return own, (note,)


# What each engine calls its ranks. SGLang's dp_size copies the whole server, but for the attention
# of --enable-dp-attention; llama.cpp and a run of Transformers divide layers, which leaves the
# whole of a cache as it is.
RANKS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "tensor_parallel": "tensor_parallel_size",
        "pipeline_parallel": "pipeline_parallel_size",
        "data_parallel": "data_parallel_size",
        "decode_context_parallel": "decode_context_parallel_size",
    },
    "llama_cpp": {},
    "sglang": {
        "tensor_parallel": "tp_size",
        "pipeline_parallel": "pp_size",
        "data_parallel": "dp_size",
    },
    "tensorrt_llm": {"tensor_parallel": "tp_size", "pipeline_parallel": "pp_size"},
    "transformers": {},
}


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
