"""The rows of the engines that keep pools of tokens, or caches that grow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

from app.domain.errors import Missing, Unsupported
from app.domain.notes import Note
from app.domain.state import ChunkedAttention, SlidingWindow
from app.engines import sglang, tensorrt_llm, transformers
from app.engines.request_cost import Growth, RequestCost
from app.engines.side_by_side.costs import (
    beyond_need,
    costs_of,
    format_settings,
    growth_of,
    has_windows,
    need_formats,
    needed_bytes,
)
from app.engines.side_by_side.values import EngineRow, Question, Settings
from app.engines.transformers.settings import TORCH_DTYPES

# Settings by which a rank holds a share of the model.
_DIVIDING = ("tp_size", "pp_size", "tp", "pp", "tensor_parallel_size", "pipeline_parallel_size")


def sglang_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row of an engine whose pools count tokens."""
    model = question.model
    settings = {
        **format_settings("sglang", question.key, question.value),
        "context_length": question.context_tokens,
        **more,
    }
    plan = sglang.plan(None, model.state, model.config, settings, question.available_bytes)
    remarks = [*blank.remarks]
    if plan.window_tokens is not None:
        remarks.append(_own_windows(plan.window_tokens))
    if settings.get("dp_size", 1) != 1 and not settings.get("enable_dp_attention"):
        remarks.append(Note("copies_of_server", "dp_size makes copies of the whole server: the"
                            " figures are those of one"))  # fmt: skip
    return _pooled(
        question, replace(blank, remarks=tuple(remarks)), plan, divided=_divides(settings)
    )


def _own_windows(tokens: int) -> Note:
    return Note("own_window_pool", "it counts the tokens of its full layers; its windowed layers"
                " have a pool of {tokens} tokens of their own", {"tokens": tokens})  # fmt: skip


def tensorrt_llm_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row with the whole of what is free given to the pools."""
    model = question.model
    settings = {
        **format_settings("tensorrt_llm", question.key, question.value),
        "max_seq_len": question.context_tokens,
        "free_gpu_memory_fraction": 1.0,
        **more,
    }
    plan = tensorrt_llm.plan(None, model.state, model.config, settings, question.available_bytes)
    if len(plan.pools) > 1:
        blank = replace(blank, remarks=(*blank.remarks, _several_pools(plan)))
    return _pooled(question, blank, plan, divided=_divides(settings))


def _divides(settings: Settings) -> bool:
    """Return whether a rank holds but a share of the model, of which no need is known here."""
    return any(settings.get(name, 1) != 1 for name in _DIVIDING)


def _several_pools(plan: tensorrt_llm.TensorrtLlmPlan) -> Note:
    held = sorted(pool.blocks * plan.tokens_per_block for pool in plan.pools)
    return Note("several_pools", "it has a pool for each window, of {pools} tokens; the smallest"
                " is counted here", {"pools": ", ".join(map(str, held))})  # fmt: skip


def _pooled(
    question: Question,
    blank: EngineRow,
    plan: sglang.SglangPlan | tensorrt_llm.TensorrtLlmPlan,
    *,
    divided: bool,
) -> EngineRow:
    """Return the row of an engine with pools of tokens."""
    state = question.model.state
    assert state is not None  # noqa: S101 - checked before any row is made
    need = None if divided else needed_bytes(question, state)
    request = plan.request.bytes_at(question.context_tokens)
    full = has_windows(state) and not _saturates(plan.request)
    return replace(
        blank,
        version=plan.version,
        tokens=plan.tokens,
        concurrency=Fraction(plan.tokens, question.context_tokens),
        need_bytes=need,
        excess=() if need is None else beyond_need(request, need, windows_full=full),
        formulas=plan.formula,
        printed=plan.printed,
        notes=plan.assumptions,
        **costs_of(question, plan.request),  # type: ignore[arg-type]
    )


def _saturates(cost: RequestCost) -> bool:
    return any(part.most_entries is not None for part in cost.parts)


def transformers_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row of caches that grow with each run: as many runs as the budget holds."""
    if not question.model.config:
        raise Missing("{field} is needed: a config.json names the class whose cache is kept",
                      field="model")  # fmt: skip
    kind = question.key or (base.key if (base := need_formats(question).base) else None)
    settings: dict[str, object] = {}
    if kind is not None:
        if kind.name not in TORCH_DTYPES:
            raise Unsupported("{field}: this engine has no cache in {format}; it has {known}",
                              field="kv_dtype", format=kind.name,
                              known=", ".join(TORCH_DTYPES))  # fmt: skip
        settings["dtype"] = kind.name
    context = question.context_tokens

    @cache
    def held(tokens: int) -> transformers.TransformersPlan:
        # The last token comes by a step of its own, after which windows hold no more than they see.
        run = {"prompt_tokens": max(tokens - 1, 1), "decode_steps": int(tokens > 1)}
        return transformers.plan(question.model.config, {**settings, **run, **more})

    longest = held(context)
    request = longest.cache_bytes
    growth = _growth_of_runs(question, lambda tokens: held(tokens).cache_bytes)
    fitting = question.available_bytes // request if request else 0
    need = longest.overhead.needed_bytes
    windows = bool(question.model.state and has_windows(question.model.state))
    return replace(
        blank,
        version=longest.version,
        tokens=fitting * context,
        concurrency=Fraction(fitting),
        **growth_of(growth),  # type: ignore[arg-type]
        remarks=(*blank.remarks, _whole_runs(question, fitting, growth)),
        request_bytes=request,
        need_bytes=need,
        lengths=tuple(
            (length, held(length).cache_bytes if length <= context else None)
            for length in question.lengths
        ),
        excess=() if need is None else beyond_need(request, need, windows_full=windows),
        formulas=(longest.formula,),
        notes=(
            *longest.assumptions,
            Note("grows", "the cache grows with the run: while one more token is written, up to"
                 " {peak} B more are taken for a moment", {"peak": longest.growth_peak_bytes}),
        ),
    )  # fmt: skip


def _growth_of_runs(question: Question, size: Callable[[int], int]) -> Growth:
    """Return the fixed part and the slope of the longest run, and the length from which they hold.

    A cache changes its slope where a window or chunk is full: those lengths are tried, else the
    length is searched for.
    """
    context = question.context_tokens
    request = size(context)
    slope = request - size(context - 1) if context > 1 else 0
    fixed = request - slope * context

    def holds(tokens: int) -> bool:
        return size(tokens) == fixed + slope * tokens

    state = question.model.state
    states = () if state is None else (part for run in state.runs for part in run.layer.states)
    spans = {
        part.window if isinstance(part, SlidingWindow) else part.chunk
        for part in states
        if isinstance(part, SlidingWindow | ChunkedAttention)
    }
    near = sorted({1, *(span + more for span in spans for more in (-1, 0, 1))})
    since = next((tokens for tokens in near if 1 <= tokens <= context and holds(tokens)), None)
    if since is None:
        since = bisect_left(range(context + 1), True, lo=1, hi=context, key=holds)  # noqa: FBT003
    return Growth(fixed_bytes=fixed, slope=Fraction(slope), from_tokens=since)


def _whole_runs(question: Question, fitting: int, growth: Growth) -> Note:
    """Return that nothing but whole runs is held, and the longest one where none fits."""
    left = question.available_bytes - growth.fixed_bytes
    longest = int(left / growth.slope) if growth.slope else 0
    if fitting or longest < growth.from_tokens:
        return Note("whole_runs", "it has no pool: it holds whole runs only")
    return Note("whole_runs_to", "it has no pool: it holds whole runs only, and the longest that"
                " fits has {tokens} tokens", {"tokens": longest})  # fmt: skip
