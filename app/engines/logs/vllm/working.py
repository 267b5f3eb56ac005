"""How the figures of a vLLM log come about, with its own numbers: pages, a request, and the blocks.

A plan is made with more memory than any device has where a log names none; what it would divide
then is no figure of the log, and stands nowhere.
"""

from __future__ import annotations

from app.engines import vllm
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.evidence import Span, blocks_of_memory

_BY_HAND = ("num_gpu_blocks_override", "kv_cache_memory_bytes")


def working_of(case: Case) -> tuple[str, ...]:
    """Return the formulas of a log's plan; blocks only where the log gives them or their memory."""
    fit, model = case.fit, case.model
    if fit is None or model is None:
        return ()
    lines = vllm.plan(model.config, model.state, fit.settings, None).formulas
    if any(name in fit.settings for name in _BY_HAND) or not case.unit_bytes:
        return lines
    more = []
    memory = _memory(case)
    if memory is not None:
        span = blocks_of_memory(fit.plan, *memory)
        more.append(f"blocks = ⌊{_text(memory)} B / {case.unit_bytes} B⌋ = {_text(span)}")
    if case.evidence.sized and case.blocks is not None:
        more.append(f"blocks = {case.blocks}, by the printed figures")
    return (*lines, *more)


def _memory(case: Case) -> Span | None:
    """Return the least and the largest bytes that the log gives for the cache of one rank."""
    evidence = case.evidence
    if evidence.smallest is not None:
        low, high = evidence.smallest.bytes
        return (low, high) if high > 0 else None
    for refused in evidence.refused:
        if refused.available is not None:
            return refused.available.bytes("GiB")
    return None


def _text(span: Span) -> str:
    return f"{span[0]}" if span[0] == span[1] else f"{span[0]} to {span[1]}"
