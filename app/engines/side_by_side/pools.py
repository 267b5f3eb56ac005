"""The rows of the engines that keep pools of tokens, or caches that grow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from app.domain.errors import Missing, Unsupported
from app.domain.notes import Note
from app.engines import sglang, tensorrt_llm, transformers
from app.engines.request_cost import RequestCost
from app.engines.side_by_side.costs import (
    beyond_need,
    costs_of,
    format_settings,
    has_windows,
    need_formats,
    needed_bytes,
)
from app.engines.side_by_side.values import EngineRow, Question, Settings
from app.engines.transformers.settings import TORCH_DTYPES


def sglang_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row of an engine whose pools count tokens."""
    model = question.model
    settings = {
        **format_settings("sglang", question.key, question.value),
        "context_length": question.context_tokens,
        **more,
    }
    plan = sglang.plan(None, model.state, model.config, settings, question.available_bytes)
    figures = costs_of(question, plan.request)
    return _pooled(question, blank, plan, Fraction(plan.tokens, question.context_tokens), figures)


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
    figures = costs_of(question, plan.request)
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
    need = needed_bytes(question, state)
    request = plan.request.bytes_at(question.context_tokens)
    full = has_windows(state) and not _saturates(plan.request)
    return replace(
        blank,
        version=plan.version,
        tokens=plan.tokens,
        concurrency=concurrency,
        need_bytes=need,
        excess=beyond_need(request, need, windows_full=full),
        formulas=plan.formula,
        printed=plan.printed,
        notes=plan.assumptions,
        **figures,  # type: ignore[arg-type]
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

    def held(tokens: int) -> transformers.TransformersPlan:
        # The last token comes by a step of its own, after which windows hold no more than they see.
        run = {"prompt_tokens": max(tokens - 1, 1), "decode_steps": int(tokens > 1)}
        return transformers.plan(question.model.config, {**settings, **run, **more})

    longest = held(context)
    request = longest.cache_bytes
    slope = Fraction(request - held(context - 1).cache_bytes) if context > 1 else Fraction(0)
    fitting = question.available_bytes // request if request else 0
    need = longest.overhead.needed_bytes
    windows = bool(question.model.state and has_windows(question.model.state))
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
        excess=() if need is None else beyond_need(request, need, windows_full=windows),
        formulas=(longest.formula,),
        notes=(
            *longest.assumptions,
            Note("grows", "the cache grows with the run: while one more token is written, up to"
                 " {peak} B more are taken for a moment", {"peak": longest.growth_peak_bytes}),
        ),
    )  # fmt: skip
