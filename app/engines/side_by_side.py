"""One model and one budget through every engine: what fits, what a request takes beyond its need.

Each engine is planned in its newest known version, on one device, with its own defaults; what had
to be set alike (the longest request, the whole budget for the cache) is said in the notes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from app.domain.dtypes import DTYPES, DType
from app.domain.errors import DomainError, Missing, Unsupported
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.per_token import shape_of
from app.domain.request_bytes import effective_bytes
from app.domain.state import ModelState
from app.engines import llama_cpp, sglang, tensorrt_llm, transformers, vllm
from app.engines.known import ENGINES
from app.engines.llama_cpp.settings import GGML_CACHE_TYPES, MAX_SEQUENCES
from app.engines.model import EngineModel
from app.engines.request_cost import RequestCost
from app.engines.transformers.settings import TORCH_DTYPES

Settings = Mapping[str, object]

# How each engine names a format of the cache; left out where it has no such format.
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"fp8": "fp8", "fp16": "float16", "bf16": "bfloat16", "nvfp4": "nvfp4"},
    "sglang": {
        "fp8": "fp8_e4m3", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
        "mxfp8": "mxfp8", "nvfp4": "fp4_e2m1",
    },
    "tensorrt_llm": {
        "fp8": "fp8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8",
        "nvfp4": "nvfp4",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every engine. `key` and `value` are None for each engine's own default."""

    model: EngineModel
    available_bytes: int
    context_tokens: int
    lengths: tuple[int, ...]
    key: DType | None = None
    value: DType | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Bytes that one request of the longest length takes beyond the need, and on what."""

    code: str
    bytes: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine's answer; with a `refusal` every figure is None or empty.

    `tokens` is the engine's own count of what the budget holds, `concurrency` how many requests of
    the longest length it serves at once. `still_bytes` is the part of a request that does not grow
    any more at that length, `slope` the bytes of one more token. `lengths` pairs each length asked
    for with the bytes of one request (None beyond the longest). `excess` adds up to what the
    longest request takes beyond `need_bytes`.
    """

    engine: str
    title: str
    version: str
    refusal: Note | None = None
    tokens: int | None = None
    concurrency: Fraction | None = None
    still_bytes: int | None = None
    slope: Fraction | None = None
    request_bytes: int | None = None
    need_bytes: int | None = None
    lengths: tuple[tuple[int, int | None], ...] = ()
    excess: tuple[Excess, ...] = ()
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


def slope_of(cost: RequestCost) -> Fraction:
    """Return the exact bytes of one more token in the parts that never stop growing."""
    growing = (part for part in cost.parts if part.most_entries is None)
    return sum(
        (Fraction(part.bytes_per_entry, part.tokens_per_entry) for part in growing), Fraction(0)
    )


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
    formats = _need_formats(question)
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


def _need_formats(question: Question) -> KvFormats:
    """Return the format of the model's own need: as asked, the config's, or 16 bits."""
    if question.key is not None:
        return KvFormats.same(question.key, question.value)
    for part in (question.model.config, question.model.config.get("text_config")):
        if isinstance(part, Mapping):
            name = part.get("dtype") or part.get("torch_dtype")
            if name in ("float16", "bfloat16"):
                return KvFormats.same(DTYPES["fp16" if name == "float16" else "bf16"])
    return KvFormats.same(DTYPES["bf16"])


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


def _format_settings(name: str, question: Question) -> dict[str, object]:
    if question.key is None:
        return {}
    if question.value not in (None, question.key):
        raise Unsupported("{field}: this engine keeps keys and values in one format",
                          field="kv_dtype")  # fmt: skip
    known = _FORMATS[name]
    if question.key.name not in known:
        raise Unsupported("{field}: this engine has no cache in {format}; it has {known}",
                          field="kv_dtype", format=question.key.name,
                          known=", ".join(known))  # fmt: skip
    return {"kv_cache_dtype": known[question.key.name]}


def _vllm(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    settings = {
        **_format_settings("vllm", question), "max_model_len": question.context_tokens, **more,
    }  # fmt: skip
    model = question.model
    plan = vllm.plan(model.config, model.state, settings, question.available_bytes)
    request = plan.request
    growing = request.slope_bytes_per_token
    return replace(
        blank,
        version=plan.version,
        tokens=plan.kv_cache_tokens,
        concurrency=plan.max_concurrency,
        still_bytes=request.fixed_bytes,
        slope=growing,
        request_bytes=request.total_bytes,
        need_bytes=request.need_bytes,
        lengths=tuple(
            (length, plan.request_bytes(length).total_bytes)
            if length <= plan.max_model_len
            else (length, None)
            for length in question.lengths
        ),
        excess=tuple(
            Excess(code=part.code, bytes=part.size_bytes, text=part.reason) for part in plan.spent
        ),
        formulas=plan.formulas,
        printed=plan.printed,
        notes=plan.assumptions,
    )


def _costs(question: Question, cost: RequestCost) -> dict[str, object]:
    """Return the figures of a request whose parts are known."""
    return {
        "still_bytes": cost.fixed_bytes + cost.saturating_bytes,
        "slope": slope_of(cost),
        "request_bytes": cost.bytes_at(question.context_tokens),
        "lengths": tuple(
            (length, cost.bytes_at(length) if length <= question.context_tokens else None)
            for length in question.lengths
        ),
    }


def _llama_cpp(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    settings: dict[str, object] = {}
    own = {ours: printed for printed, ours in GGML_CACHE_TYPES.items()}
    for field, kind in (("cache_type_k", question.key), ("cache_type_v", question.value)):
        kind = kind or question.key  # noqa: PLW2901 - V follows K where it is not given
        if kind is None:
            continue
        if kind.name not in own:
            raise Unsupported("{field}: this engine has no cache in {format}; it has {known}",
                              field="kv_dtype", format=kind.name,
                              known=", ".join(own))  # fmt: skip
        settings[field] = own[kind.name]
    context = question.context_tokens
    settings = {**settings, "n_ctx": context, "flash_attn": True, **more}
    model = question.model

    def plan(slots: int) -> llama_cpp.LlamaCppPlan:
        tried = {**settings, "n_ctx": context * slots, "n_seq_max": slots, **more}
        return llama_cpp.plan(model.gguf, model.state, None, tried, question.available_bytes)

    one = plan(1)
    slots = _most_slots(plan, question.available_bytes)
    best = plan(slots) if slots else one
    need = one.needed_bytes
    figures = _costs(question, one.request) | {"request_bytes": one.total_bytes}
    return replace(
        blank,
        version=one.version,
        tokens=one.largest_n_ctx,
        concurrency=Fraction(slots),
        need_bytes=need,
        excess=tuple(
            Excess(code=part.code, bytes=part.bytes, text=part.text) for part in one.overheads
        ),
        formulas=best.formula,
        printed=best.printed,
        notes=(
            *one.assumptions,
            Note("allocated_whole", "the whole context is allocated at the start; concurrency is"
                 " the number of slots of the longest length that fit, tokens the largest single"
                 " context"),
        ),
        **figures,  # type: ignore[arg-type]
    )  # fmt: skip


def _most_slots(plan: Callable[[int], llama_cpp.LlamaCppPlan], available: int) -> int:
    """Return the most slots whose context fits; more slots of one length never take less."""
    low, high = 0, MAX_SEQUENCES
    while low < high:
        middle = (low + high + 1) // 2
        if plan(middle).total_bytes <= available:
            low = middle
        else:
            high = middle - 1
    return low


def _needed(question: Question, state: ModelState) -> int:
    groups = shape_of(state, _need_formats(question)).groups
    return effective_bytes(groups, question.context_tokens)


def _difference(request: int, need: int, *, windows_full: bool) -> tuple[Excess, ...]:
    """Return what a request takes beyond the need as one part, by its main cause."""
    beyond = request - need
    if not beyond:
        return ()
    if beyond < 0:
        text = "states or keys kept in a smaller format than the model's, or not at all"
        return (Excess(code="kept_smaller", bytes=beyond, text=text),)
    if windows_full:
        text = "windowed layers kept at full length, and the unused end of the last block"
        return (Excess(code="full_windows", bytes=beyond, text=text),)
    text = "whole pages or blocks, and states in the engine's own format"
    return (Excess(code="block_rounding", bytes=beyond, text=text),)


def _has_windows(state: ModelState) -> bool:
    return bool({"sliding_window", "chunked_attention"} & state.kinds)


def _saturates(cost: RequestCost) -> bool:
    return any(part.most_entries is not None for part in cost.parts)


def _sglang(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    model = question.model
    settings = {
        **_format_settings("sglang", question), "context_length": question.context_tokens, **more,
    }  # fmt: skip
    plan = sglang.plan(None, model.state, model.config, settings, question.available_bytes)
    figures = _costs(question, plan.request)
    return _pooled(question, blank, plan, Fraction(plan.tokens, question.context_tokens), figures)


def _tensorrt_llm(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    model = question.model
    settings = {
        **_format_settings("tensorrt_llm", question),
        "max_seq_len": question.context_tokens,
        "free_gpu_memory_fraction": 1.0,
        **more,
    }
    plan = tensorrt_llm.plan(None, model.state, model.config, settings, question.available_bytes)
    figures = _costs(question, plan.request)
    return _pooled(question, blank, plan, Fraction(plan.tokens, question.context_tokens), figures)


def _pooled(
    question: Question,
    blank: EngineRow,
    plan: sglang.SglangPlan | tensorrt_llm.TensorrtLlmPlan,
    concurrency: Fraction,
    figures: dict[str, object],
) -> EngineRow:
    """Return the row of an engine with pools of tokens."""
    state = question.model.state
    assert state is not None  # noqa: S101 - checked before any row is made
    need = _needed(question, state)
    request = plan.request.bytes_at(question.context_tokens)
    full = _has_windows(state) and not _saturates(plan.request)
    return replace(
        blank,
        version=plan.version,
        tokens=plan.tokens,
        concurrency=concurrency,
        need_bytes=need,
        excess=_difference(request, need, windows_full=full),
        formulas=plan.formula,
        printed=plan.printed,
        notes=plan.assumptions,
        **figures,  # type: ignore[arg-type]
    )


def _transformers(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    if not question.model.config:
        raise Missing("{field} is needed: a config.json names the class whose cache is kept",
                      field="model")  # fmt: skip
    kind = question.key or (base.key if (base := _need_formats(question).base) else None)
    settings: dict[str, object] = {}
    if kind is not None:
        if kind.name not in TORCH_DTYPES:
            raise Unsupported("{field}: this engine has no cache in {format}; it has {known}",
                              field="kv_dtype", format=kind.name,
                              known=", ".join(TORCH_DTYPES))  # fmt: skip
        settings["dtype"] = kind.name
    context = question.context_tokens

    def held(tokens: int) -> transformers.TransformersPlan:
        # The last token comes by a step of its own, after which windows hold no more than they see.
        run = {"prompt_tokens": max(tokens - 1, 1), "decode_steps": int(tokens > 1)}
        return transformers.plan(question.model.config, {**settings, **run, **more})

    longest = held(context)
    request = longest.cache_bytes
    slope = Fraction(request - held(context - 1).cache_bytes) if context > 1 else Fraction(0)
    fitting = question.available_bytes // request if request else 0
    need = longest.overhead.needed_bytes
    windows = bool(question.model.state and _has_windows(question.model.state))
    return replace(
        blank,
        version=longest.version,
        tokens=fitting * context,
        concurrency=Fraction(fitting),
        still_bytes=request - int(slope * context),
        slope=slope,
        request_bytes=request,
        need_bytes=need,
        lengths=tuple(
            (length, held(length).cache_bytes if length <= context else None)
            for length in question.lengths
        ),
        excess=() if need is None else _difference(request, need, windows_full=windows),
        formulas=(longest.formula,),
        notes=(
            *longest.assumptions,
            Note("grows", "the cache grows with the run: while one more token is written, up to"
                 " {peak} B more are taken for a moment", {"peak": longest.growth_peak_bytes}),
        ),
    )  # fmt: skip


_ROWS: Mapping[str, Callable[[Question, Settings, EngineRow], EngineRow]] = {
    "vllm": _vllm,
    "llama_cpp": _llama_cpp,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
    "transformers": _transformers,
}


def default_lengths(context_tokens: int) -> Sequence[int]:
    """Return three lengths to compare at: a short one, a sixteenth, and the longest."""
    return sorted({min(1024, context_tokens), max(context_tokens // 16, 1), context_tokens})
