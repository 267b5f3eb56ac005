"""A llama.cpp log explained: caches, states and buffers as that day's version lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import llama_cpp
from app.engines.llama_cpp import LlamaCppPlan
from app.engines.llama_cpp.settings import KNOWN as KNOWN_SETTINGS
from app.engines.logs.agreement import borne_out, settled
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import ANY, LLAMA_CPP, Found, Reads, read_kinds
from app.engines.logs.llama_cpp.advice import llama_advice
from app.engines.logs.llama_cpp.case import LlamaCase
from app.engines.logs.llama_cpp.failures import advice_alone
from app.engines.logs.llama_cpp.figures import llama_figures
from app.engines.logs.llama_cpp.model import GENERAL_NAME, model_of_log
from app.engines.logs.llama_cpp.settings import known_settings, said_version
from app.engines.logs.numbers import decimal
from app.engines.logs.result import Explained, LogFigure
from app.engines.logs.search import Axis, by_weight, most_plans
from app.engines.logs.sentences import NO_MODEL
from app.engines.logs.text import LogText
from app.engines.logs.vllm.advice import Wish
from app.engines.model import EngineModel
from app.readers.latent_heads import latent_heads

MOST_PLANS = 240
# A day of every set of rules under which lines have a form, the newest first.
_SIZE_DAYS = (
    "2026-10-01",
    "2026-08-01",
    "2026-06-15",
    "2026-04-20",
    "2026-04-02",
    "2026-02-10",
    "2025-12-01",
    "2025-09-15",
)
_UNIFIED_DAYS = ("2025-08-20", "2025-07-12", "2025-06-15", "2025-05-25")
_OLD_DAYS: Mapping[str, tuple[str, ...]] = {
    "llama_kv_cache_unified": ("2025-05-08",),
    "llama_context": ("2025-04-20", "2025-04-01"),
    "llama_init_from_model": ("2025-02-10", "2025-01-20"),
    "llama_new_context_with_model": (
        "2024-12-30",
        "2024-08-01",
        "2024-05-02",
        "2024-04-01",
        "2024-02-01",
    ),
}
_SAID_NOTHING = ("2025-02-10", "2025-04-20", "2024-12-30", "2024-05-02", "2024-04-01", "2024-02-01")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaFit:
    """The plan under which most lines agree, and what of its settings was inferred."""

    plan: LlamaCppPlan
    settings: Mapping[str, object]
    inferred: Mapping[str, object]
    misses: int


def explain_llama_cpp(
    log: LogText,
    arguments: Arguments,
    model: EngineModel | None,
    given: Mapping[str, object],
    wish: Wish,
) -> Explained:
    """Return a llama.cpp log explained.

    Raises:
        DomainError: for a setting in `given` that is wrong.

    """
    reads, passed_over = read_kinds(log, (*LLAMA_CPP, *ANY, GENERAL_NAME))
    from_log = model_of_log(reads)
    model = model if model is not None else from_log
    known = known_settings(reads, arguments, given)
    fitted, why = (None, NO_MODEL) if model is None else _fit(reads, model, known, given)
    case = LlamaCase(
        reads=reads,
        plan=None if fitted is None else fitted.plan,
        why_no_plan=why,
        inferred={} if fitted is None else fitted.inferred,
        knows_context="n_ctx" in known,
    )
    plan = case.plan
    figures = settled(llama_figures(case))
    return Explained(
        engine="llama_cpp",
        version_guess=_version_text(reads, known),
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name or "the log's own header",
        figures=figures,
        advice=tuple(advice_alone(reads, known))
        if fitted is None or model is None
        else llama_advice(case, model, fitted.settings, wish),
        remarks=tuple(_remarks(case)),
        settings=dict(known if fitted is None else fitted.settings),
        inferred=borne_out(figures, case.inferred),
        missing=() if fitted is not None else (why or NO_MODEL,),
        assumptions=() if plan is None else plan.assumptions,
        formulas=() if plan is None else plan.formula,
        lines_passed_over=passed_over,
    )


def is_fork(reads: Reads) -> bool:
    """Say whether the lines are those of the fork ik_llama.cpp, which prints its latents so."""
    return any("c^KV" in found.line.text for found in reads.get("self_size", ()))


def days_of(reads: Reads) -> tuple[str, ...]:
    """Return a day of each set of rules under which the lines have this form, the newest first.

    Numbers of cells leave out the days that pad to more than they divide by.
    """
    days = _days_by_form(reads)
    cells = [
        int(found.groups[1] or 0)
        for code in ("size", "creating")
        for found in reads.get(code, ())
        if "R (" not in found.line.text
    ]
    if any(number % 256 for number in cells):
        days = tuple(day for day in days if day < "2025-11-08") or days
    return days


def _days_by_form(reads: Reads) -> tuple[str, ...]:  # noqa: PLR0911 - one answer for each form
    texts = [
        found.line.text
        for code in ("size", "size_alone", "creating", "buffer")
        for found in reads.get(code, ())
    ]
    if reads.get("size") or reads.get("size_alone") or reads.get("creating"):
        if any("llama_kv_cache_unified" in text for text in texts):
            return _UNIFIED_DAYS
        if any("llama_kv_cache:" in text or "llama_kv_cache_iswa:" in text for text in texts):
            return _SIZE_DAYS
        return (*_SIZE_DAYS, *_UNIFIED_DAYS)
    for found in reads.get("self_size", ()):
        if found.groups[1] == "MB":
            return ("2023-06-01",)
        for prefix, days in _OLD_DAYS.items():
            if prefix in found.line.text:
                return days
    if reads.get("self_size"):
        return _SAID_NOTHING
    return _SIZE_DAYS


def _version_text(reads: Reads, known: Mapping[str, object]) -> str:
    if is_fork(reads):
        return "ik_llama.cpp"
    version = known.get("version") or said_version(reads)
    if isinstance(version, str):
        return version
    days = days_of(reads)
    return days[0] if len(days) == 1 else f"{min(days)} – {max(days)}"


def _fit(
    reads: Reads, model: EngineModel, known: Mapping[str, object], given: Mapping[str, object]
) -> tuple[LlamaFit | None, Note | None]:
    """Return the plan under which the fewest lines disagree, trying what the log leaves unsaid."""
    best: LlamaFit | None = None
    refusal: DomainError | None = None
    most = most_plans(model, MOST_PLANS)
    for tried, (_, inferred) in enumerate(by_weight(_axes(reads, model, known))):
        if tried == most or (best is not None and best.misses == 0):
            break
        try:
            if "n_ctx" not in known:
                inferred = {**inferred, **_context_of_size(reads, model, {**known, **inferred})}  # noqa: PLW2901
            settings = {**known, **inferred}
            plan = llama_cpp.plan(model.gguf, model.state, model.config, settings)
        except DomainError as error:
            refusal = refusal or error
            continue
        case = LlamaCase(reads=reads, plan=plan, why_no_plan=None, inferred=inferred)
        misses = sum(map(_miss, llama_figures(case)))
        if best is None or misses < best.misses:
            best = LlamaFit(plan=plan, settings=settings, inferred=inferred, misses=misses)
    if best is None and refusal is not None:
        if refusal.field and refusal.field[0] in given and refusal.field[0] in KNOWN_SETTINGS:
            raise refusal
        return None, Note(refusal.code, refusal.template, refusal.params)
    return best, None


_SIZES = ("kv_cache", "kv_self_size", "recurrent_states")


def _miss(figure: LogFigure) -> int:
    """Return how far a figure is from agreeing: a size that the context leaves open is nearer."""
    if figure.agrees is None:
        return int(figure.computed is not None and figure.name in _SIZES)
    return 0 if figure.agrees else 2


_TRIED_CELLS = 8192
_BATCH = 2048


def _context_of_size(
    reads: Reads, model: EngineModel, settings: Mapping[str, object]
) -> dict[str, object]:
    """Return the context for which the whole cache takes what is printed, where that is one.

    Lines shortened by hand often lack it; two plans show how the bytes grow with it.
    """
    printed = _whole_size(reads)
    if printed is None:
        # Recurrent states do not ask for it; a file's own header has it besides.
        longest = None if model.gguf else model.max_context_tokens
        return {} if longest is None else {"n_ctx": longest}
    target, with_states = printed
    short, long = (
        _cache_bytes(
            llama_cpp.plan(model.gguf, model.state, model.config, {**settings, "n_ctx": cells}),
            with_states=with_states,
        )
        for cells in (_TRIED_CELLS, 2 * _TRIED_CELLS)
    )
    slope = Fraction(long - short, _TRIED_CELLS)
    if slope <= 0:
        return {}
    low, high = ((size - short) / slope + _TRIED_CELLS for size in target)
    first, last = -(-low.numerator // low.denominator), high.numerator // high.denominator
    padded = -(-first // 32) * 32
    cells = padded if padded <= last else first
    return {"n_ctx": cells} if 0 < cells <= last else {}


def _cache_bytes(plan: LlamaCppPlan, *, with_states: bool) -> int:
    return plan.total_bytes if with_states else sum(cache.bytes for cache in plan.caches)


def _whole_size(reads: Reads) -> tuple[tuple[int, int], bool] | None:
    """Return the bytes of the whole cache as printed, and whether recurrent states are in them.

    The one line of the years up to mid-2025 speaks of both; since then each has a line of its own.
    """
    for code in ("self_size", "size_alone"):
        for found in reads.get(code, ()):
            size = decimal(found.groups[0] or "")
            if size is not None:
                return size.bytes("MiB"), code == "self_size"
    sizes = [
        decimal(found.groups[2] or "")
        for found in reads.get("buffer", ())
        if found.groups[1] == "KV"
    ]
    spans = [size.bytes("MiB") for size in sizes if size is not None]
    if not spans:
        return None
    return (sum(low for low, _ in spans), sum(high for _, high in spans)), False


def _axes(reads: Reads, model: EngineModel, known: Mapping[str, object]) -> list[Axis]:
    axes: list[Axis] = []
    if is_fork(reads):
        axes.append([({"runner": "ik_llama.cpp"}, 0.0)])
        if "mla" not in known:
            latent = [found for found in reads["self_size"] if "c^KV" in found.line.text]
            keeps_both = any("kv^T (" in found.line.text for found in latent)
            axes.append([({"mla": 1 if keeps_both else 3}, 0.0)])
        axes.append([({"flash_attn": True}, 0.0), ({"flash_attn": False}, 0.2)])
        axes += _type_axes(reads, known)
        return axes
    if "version" not in known:
        said = said_version(reads)
        # A build may lie between days whose rules differ, or beyond those that are known.
        own = [] if said is None else [said]
        days = [*own, *days_of(reads)]
        axes.append([({"version": day}, 0.15 * i) for i, day in enumerate(days)])
    if "flash_attn" not in known:
        axes.append([({}, 0.0), ({"flash_attn": True}, 0.25), ({"flash_attn": False}, 0.35)])
    windowed = bool(reads.get("creating")) or _windows(model)
    if windowed and "n_ubatch" not in known:
        axes.append(
            [
                (_ubatch(size), 0.2 * i)
                for i, size in enumerate((512, 2048, 1024, 4096, 256, 128, 64))
            ]
        )
        axes.append([({}, 0.0), ({"swa_full": True}, 0.5)])
    axes += _type_axes(reads, known)
    if "mla" not in known and _may_list_heads(model):
        axes.append([({}, 0.0), ({"mla": 0}, 0.5)])
    if "n_seq_max" not in known and _memory_of_states(reads):
        axes.append(
            [
                ({}, 0.0),
                ({"n_rs_seq": 4}, 0.6),
                ({"n_rs_seq": 3}, 0.65),
                ({"n_rs_seq": 2}, 0.7),
                ({"n_rs_seq": 1}, 0.75),
            ]
        )
    return axes or [[({}, 0.0)]]


def _ubatch(tokens: int) -> dict[str, object]:
    """Return a micro-batch, with the batch that must be no shorter."""
    chosen: dict[str, object] = {"n_ubatch": tokens}
    if tokens > _BATCH:
        chosen["n_batch"] = tokens
    return chosen


_TYPES = (
    ("f16", "f16"),
    ("q8_0", "q8_0"),
    ("q4_0", "q4_0"),
    ("q8_0", "q4_0"),
    ("q8_0", "f16"),
    ("bf16", "bf16"),
    ("f32", "f32"),
)


def _type_axes(reads: Reads, known: Mapping[str, object]) -> list[Axis]:
    """Return types to try where no line shows them."""
    if "cache_type_k" in known or not any(
        reads.get(code) for code in ("size", "size_alone", "self_size", "buffer")
    ):
        return []
    return [
        [
            (
                {"cache_type_k": key, "cache_type_v": value}
                | ({"flash_attn": True} if value.startswith("q") else {}),
                0.4 * i,
            )
            for i, (key, value) in enumerate(_TYPES)
        ]
    ]


def _memory_of_states(reads: Reads) -> bool:
    return bool(reads.get("states_alone"))


def _may_list_heads(model: EngineModel) -> bool:
    """Say whether a file of the model made before April 2025 would be cached head by head."""
    return model.gguf is None and latent_heads(model.config) is not None


def _windows(model: EngineModel) -> bool:
    if model.state is not None:
        return bool({"sliding_window", "chunked_attention"} & model.state.kinds)
    return any(key.endswith("attention.sliding_window") for key in model.gguf or {})


def _remarks(case: LlamaCase) -> Iterator[Note]:
    plan = case.plan
    found: list[Found] = [*case.reads.get("size", ()), *case.reads.get("self_size", ())]
    if any("/" in found_one.line.text.partition("cells")[2][:30] for found_one in found):
        yield Note(
            "cells_per_stream",
            "the cells of a size line are those of one stream, its MiB those of all streams",
        )
    if plan is None:
        return
    yield Note(
        "allocated_whole",
        "the cache of all {sequences} sequences is allocated when the"
        " context is made, and never grows: --ctx-size is the total unless slots have"
        " streams of their own",
        {"sequences": plan.n_seq_max},
    )
    if plan.n_ctx_seq * plan.n_seq_max > plan.n_ctx and not plan.kv_unified:
        yield Note(
            "padded_streams",
            "each of {sequences} streams is padded to {cells} cells",
            {"sequences": plan.n_seq_max, "cells": plan.n_ctx_seq},
        )
    for part in plan.overheads:
        if part.bytes * 20 >= plan.total_bytes:
            yield Note(
                "overhead_" + part.code,
                "{size} go to {what}",
                {"size": f"{part.bytes / 2**20:,.2f} MiB", "what": Note("", part.text)},
            )
