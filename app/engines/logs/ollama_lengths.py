"""Contexts with which Ollama would have printed a size, where its log does not say the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import llama_cpp
from app.engines.logs.search import most_plans
from app.engines.model import EngineModel

KINDS = ("f16", "q8_0", "q4_0")
_LONGEST = 2**22
# Two bisections of 22 steps for each format under each rule.
_PLANS = 2 * 22 * len(KINDS)

Header = Mapping[str, object] | None


def lengths_notes(
    model: EngineModel,
    headers: Sequence[Header],
    settings: Mapping[str, object],
    target: tuple[int, int],
) -> Iterator[Note]:
    """Yield the contexts that print so in each format, under each way to count windows.

    `headers` are the model as Ollama counts it, windows short first. The bytes grow with the
    context, so each end is found by halving.
    """
    yield Note(
        "context_unsaid",
        "the log does not say num_ctx, and none of the usual ones prints this: add it to have the"
        " figure checked",
    )
    if most_plans(model, len(headers) * _PLANS) < len(headers) * _PLANS:
        return
    told: list[str] = []
    for header in headers:
        choices = _choices(model, header, settings, target)
        if choices and choices not in told:
            told.append(choices)
            yield _note(choices, is_first=header is headers[0], several=len(headers) > 1)


def _note(choices: str, *, is_first: bool, several: bool) -> Note:
    params: dict[str, object] = {"choices": choices}
    if not several:
        return Note("contexts_print_so", "contexts that print so: {choices} tokens", params)
    if is_first:
        return Note(
            "contexts_windows_short",
            "contexts that print so with windows counted at their length: {choices} tokens",
            params,
        )
    return Note(
        "contexts_windows_full",
        "contexts that print so with every layer counted at full length, as the first releases"
        " did: {choices} tokens",
        params,
    )


def _choices(
    model: EngineModel, header: Header, settings: Mapping[str, object], target: tuple[int, int]
) -> str:
    kind = settings.get("kv_cache_type")
    kinds = (str(kind),) if kind is not None else KINDS
    spans = [(name, _span(model, header, {**settings, "kv_cache_type": name}, target))
             for name in kinds]  # fmt: skip
    return ", ".join(f"{name} {span[0]:,}–{span[1]:,}" for name, span in spans if span is not None)


def _span(
    model: EngineModel, header: Header, settings: Mapping[str, object], target: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the shortest and the longest context that take between so many bytes."""

    def takes(tokens: int) -> int:
        plan = llama_cpp.plan(header, model.state, None, {**settings, "num_ctx": tokens})
        return plan.total_bytes

    try:
        first = _shortest(lambda tokens: takes(tokens) >= target[0])
        beyond = _shortest(lambda tokens: takes(tokens) > target[1])
    except DomainError:
        return None
    return (first, beyond - 1) if first < beyond else None


def _shortest(reaches: Callable[[int], bool]) -> int:
    """Return the least context for which this holds, or one beyond the longest."""
    low, high = 1, _LONGEST + 1
    while low < high:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle + 1
    return low
