"""The rows of the engines that hand out blocks or slots: vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from app.domain.notes import Note
from app.engines import llama_cpp, vllm
from app.engines.llama_cpp.settings import MAX_SEQUENCES
from app.engines.side_by_side.costs import (
    beyond_need,
    costs_of,
    format_settings,
    held_tokens,
    needed_bytes,
    stopped_at,
)
from app.engines.side_by_side.values import EngineRow, Excess, Question, Settings


def vllm_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row of an engine that hands out blocks of one size."""
    settings = {
        **format_settings("vllm", question.key, question.value),
        "max_model_len": question.context_tokens,
        **more,
    }
    model = question.model
    plan = vllm.plan(model.config, model.state, settings, question.available_bytes)
    need, kept = _own_need(question, plan)
    tokens, printed = held_tokens(plan.max_concurrency, plan.max_model_len), plan.kv_cache_tokens
    remarks = (
        Note("prints_tokens", "it prints {tokens} tokens as the size of its cache, counted in"
             " whole blocks of all groups", {"tokens": printed}),
    ) if printed is not None and printed != tokens else ()  # fmt: skip
    return replace(
        blank,
        version=plan.version,
        stopped=stopped_at(question, plan.needed_bytes, plan.estimated_max_model_len)
        if plan.refused
        else None,
        tokens=tokens,
        concurrency=plan.max_concurrency,
        still_bytes=plan.request.fixed_bytes,
        slope=plan.request.slope_bytes_per_token,
        holds_from_tokens=plan.request.holds_from_tokens,
        request_bytes=plan.request.total_bytes,
        remarks=(*blank.remarks, *remarks),
        need_bytes=need,
        lengths=tuple(
            (length, plan.request_bytes(length).total_bytes)
            if length <= plan.max_model_len
            else (length, None)
            for length in question.lengths
        ),
        excess=(
            *kept,
            *(
                Excess(code=part.code, bytes=part.size_bytes, text=part.reason)
                for part in plan.spent
            ),
        ),
        formulas=plan.formulas,
        printed=plan.printed,
        notes=plan.assumptions,
    )


def _own_need(question: Question, plan: vllm.VllmPlan) -> tuple[int, tuple[Excess, ...]]:
    """Return the model's need, and what of it is kept in another format; of a share, its own."""
    state = question.model.state
    own = plan.request.need_bytes
    alone = len(plan.ranks) == 1 and plan.ranks[0].tensor_ranks == 1
    if state is None or not alone:
        return own, ()
    need = needed_bytes(question, state)
    return need, beyond_need(own, need, windows_full=False)


def llama_cpp_row(question: Question, more: Settings, blank: EngineRow) -> EngineRow:
    """Return the row of an engine that allocates whole contexts, one a slot."""
    settings = format_settings("llama_cpp", question.key, question.value)
    context = question.context_tokens
    settings = {**settings, "n_ctx": context, "flash_attn": True, **more}
    model = question.model

    def plan(slots: int) -> llama_cpp.LlamaCppPlan:
        tried = {**settings, "n_ctx": context * slots, "n_seq_max": slots}
        # The largest context is looked for once: of one slot.
        memory = question.available_bytes if slots == 1 else None
        return llama_cpp.plan(model.gguf, model.state, model.config, tried, memory)

    one = plan(1)
    slots = most_slots(
        lambda count: (one if count == 1 else plan(count)).total_bytes, question.available_bytes
    )
    best = plan(slots) if slots else one
    figures = costs_of(question, one.request) | {"request_bytes": one.total_bytes}
    return replace(
        blank,
        version=one.version,
        stopped=None if slots else stopped_at(question, one.total_bytes, one.largest_n_ctx),
        tokens=slots * context if slots else None,
        concurrency=Fraction(slots) if slots else None,
        remarks=(*blank.remarks, *(_whole_contexts(slots, one.largest_n_ctx) if slots else ())),
        need_bytes=one.needed_bytes,
        excess=tuple(
            Excess(code=part.code, bytes=part.bytes, text=part.text) for part in one.overheads
        ),
        formulas=best.formula,
        printed=best.printed,
        notes=(
            *one.assumptions,
            Note("allocated_whole", "the whole context is allocated at the start, as many slots of"
                 " the longest length as fit"),
        ),
        **figures,  # type: ignore[arg-type]
    )  # fmt: skip


def _whole_contexts(slots: int, largest: int | None) -> tuple[Note, ...]:
    """Return what llama.cpp itself counts: slots, and the largest context that it could have."""
    most = (
        Note("most_slots", "{slots} slots are the most that it has, whatever the memory",
             {"slots": slots}),
    ) if slots == MAX_SEQUENCES else ()  # fmt: skip
    if largest is None:
        return (*most, Note("any_context", "memory does not bound a single context here: every"
                            " layer keeps a bounded number of cells"))  # fmt: skip
    return (*most, Note("one_context", "it holds whole contexts only; made as a single context,"
                        " n_ctx could be up to {tokens}", {"tokens": largest}))  # fmt: skip


def most_slots(total_bytes: Callable[[int], int], available: int) -> int:
    """Return the most slots whose context fits; more slots of one length never take less.

    Each slot mostly takes as much as the second, which leads to the number at once; where it does
    not, the number is searched for.
    """
    one = total_bytes(1)
    if one > available:
        return 0
    step = total_bytes(2) - one
    low, high = 1, MAX_SEQUENCES
    if step > 0:
        guess = min(MAX_SEQUENCES, 1 + (available - one) // step)
        if total_bytes(guess) > available:
            high = guess - 1
        elif guess == MAX_SEQUENCES or total_bytes(guess + 1) > available:
            return guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high + 1) // 2
        if total_bytes(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low
