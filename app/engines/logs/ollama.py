"""An Ollama log explained: its estimate before the load, and what its engine really keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import llama_cpp
from app.engines.llama_cpp import LlamaCppPlan
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import ANY, LLAMA_CPP, OLLAMA, Found, Reads, read_kinds
from app.engines.logs.llama_cpp.model import GENERAL_NAME, model_of_log
from app.engines.logs.numbers import decimal
from app.engines.logs.result import Explained, LogFigure, figure
from app.engines.logs.search import Axis, by_weight, most_plans
from app.engines.logs.sentences import NO_MODEL, inferred_note
from app.engines.logs.text import LogText
from app.engines.model import EngineModel

MOST_PLANS = 120
# Types whose windowed layers Ollama counts short, by their names in a config and in a header.
_SHORT = {"gemma3": "gemma3", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"}
_DEFAULT_CONTEXTS = (2048, 4096, 8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    plan: LlamaCppPlan
    settings: Mapping[str, object]
    inferred: Mapping[str, object]


def explain_ollama(
    log: LogText, arguments: Arguments, model: EngineModel | None, given: Mapping[str, object]
) -> Explained:
    """Return an Ollama log explained.

    Raises:
        DomainError: for a setting in `given` that is wrong.

    """
    reads, passed_over = read_kinds(log, (*OLLAMA, *LLAMA_CPP, *ANY, GENERAL_NAME))
    model = model if model is not None else model_of_log(reads)
    known = _known(reads, arguments, given)
    figures: list[LogFigure] = []
    fits: list[_Fit] = []
    why: Note | None = NO_MODEL if model is None else None
    for code, runner in (("required", "ollama-estimate"), ("cache", "ollama-engine")):
        lines = reads.get(code, [])
        if not lines:
            continue
        fitted = None
        if model is not None:
            fitted, why = _fit(lines, model, {**known, "runner": runner}, given)
        figures += _figures(code, lines, fitted, why)
        fits += [fitted] if fitted is not None else []
    plan = fits[0].plan if fits else None
    return Explained(
        engine="ollama",
        version_guess=_version(reads),
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name,
        figures=tuple(sorted(figures, key=lambda item: item.line_number)),
        remarks=tuple(_remarks(reads, known)),
        settings=dict(known if not fits else fits[0].settings),
        inferred={} if not fits else dict(fits[0].inferred),
        missing=() if fits else (why or NO_MODEL,),
        assumptions=() if plan is None else plan.assumptions,
        formulas=() if plan is None else plan.formula,
        lines_passed_over=passed_over,
    )


def _version(reads: Reads) -> str | None:
    for found in reads.get("version", ()):
        return found.groups[0]
    return "to 0.29" if reads.get("required") else "0.6 – 0.29"


def _known(reads: Reads, arguments: Arguments, given: Mapping[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    slots = next((int(found.groups[0] or 0) for found in reads.get("parallel", ())), None)
    if slots:
        settings["num_parallel"] = slots
    total = next((int(found.groups[0] or 0) for found in reads.get("command", ())), None)
    if total:
        settings["num_ctx"] = max(total // (slots or 1), 1)
    kind = next((found.groups[0] for found in reads.get("cache_type", ())), None)
    if kind in ("f16", "q8_0", "q4_0", "f32"):
        settings["kv_cache_type"] = kind
    context = arguments.integer("num_ctx", high=2**22)
    if context:
        settings.setdefault("num_ctx", context)
    settings.update({key: value for key, value in given.items() if value is not None})
    return settings


def _header(model: EngineModel) -> Mapping[str, object] | None:
    """Return a header for types whose windows Ollama counts short; their layers are alike."""
    text = model.config.get("text_config")
    part = text if isinstance(text, Mapping) else model.config
    arch = _SHORT.get(str(part.get("model_type", model.config.get("model_type"))))
    if model.gguf is not None or arch is None or model.state is None:
        return model.gguf
    states = [state for layer in model.state.layers for state in layer.states]
    heads = {getattr(state, "kv_heads", None) for state in states}
    widths = {(getattr(state, "k_dim", None), getattr(state, "v_dim", None)) for state in states}
    windows = {getattr(state, "window", None) for state in states} - {None}
    if len(heads) != 1 or len(widths) != 1 or len(windows) != 1:
        return None
    (head,), ((key, value),), (window,) = heads, widths, windows
    return {
        "general.architecture": arch,
        f"{arch}.block_count": model.state.num_layers,
        f"{arch}.context_length": 131_072,
        f"{arch}.attention.head_count": head,
        f"{arch}.attention.head_count_kv": head,
        f"{arch}.attention.key_length": key,
        f"{arch}.attention.value_length": value,
        f"{arch}.attention.sliding_window": window,
    }


def _fit(
    lines: list[Found], model: EngineModel, known: Mapping[str, object], given: Mapping[str, object]
) -> tuple[_Fit | None, Note | None]:
    best: tuple[int, _Fit] | None = None
    refusal: DomainError | None = None
    headers = [header for header in (_header(model),) if header is not None]
    variants = [*headers, model.gguf] if headers else [model.gguf]
    most = most_plans(model, MOST_PLANS)
    for tried, (_, inferred) in enumerate(by_weight(_axes(known, len(variants)))):
        if tried == most or (best is not None and best[0] == 0):
            break
        variant = inferred.pop("variant", 0)
        settings = {**known, **inferred}
        header = variants[variant if isinstance(variant, int) else 0]
        try:
            plan = llama_cpp.plan(header, model.state, None, settings)
        except DomainError as error:
            refusal = refusal or error
            continue
        found = _Fit(plan=plan, settings=settings, inferred=inferred)
        misses = sum(not _prints(line, plan, total=len(lines) == 1) for line in lines)
        if best is None or misses < best[0]:
            best = misses, found
    if best is None:
        if refusal is not None and refusal.field and refusal.field[0] in given:
            raise refusal
        return None, None if refusal is None else Note(
            refusal.code, refusal.template, refusal.params
        )
    return best[1], None


def _axes(known: Mapping[str, object], variants: int) -> list[Axis]:
    axes: list[Axis] = [[({"variant": index}, 0.4 * index) for index in range(variants)]]
    if "num_ctx" not in known:
        axes.append([({"num_ctx": size}, 0.2 * i) for i, size in enumerate(_DEFAULT_CONTEXTS)])
    if "num_parallel" not in known:
        axes.append(
            [({"num_parallel": slots}, weight) for slots, weight in ((1, 0.0), (4, 0.3), (2, 0.5))]
        )
    if "kv_cache_type" not in known:
        axes.append(
            [({"kv_cache_type": kind}, 0.35 * i) for i, kind in enumerate(("f16", "q8_0", "q4_0"))]
        )
    return axes


def _bytes(plan: LlamaCppPlan) -> int:
    return plan.total_bytes


def _prints(found: Found, plan: LlamaCppPlan, *, total: bool) -> bool:
    text, unit = found.groups[-2], found.groups[-1]
    printed = decimal(text or "")
    if printed is None or not total:
        return True
    return printed.holds_bytes(_bytes(plan), unit or "B")


def _figures(
    code: str, lines: list[Found], fitted: _Fit | None, why: Note | None
) -> Iterator[LogFigure]:
    estimate = Note(
        "ollama_estimate",
        "Ollama's own estimate before the load: it counts q8_0 as one"
        " byte and q4_0 as half a byte an element, which blocks are not (34/32 and"
        " 18/32), so the real cache is 6 to 11 % larger",
    )
    engine = Note(
        "ollama_engine",
        "what Ollama's own engine keeps on this device; windows take"
        " their length for every sequence and the batch, in whole 256 or 32 cells",
    )
    note = estimate if code == "required" else engine
    for found in lines[:64]:
        text, unit = found.groups[-2], found.groups[-1]
        printed = decimal(text or "")
        if printed is None:
            continue
        rest = {"unit": "bytes", "interval": printed.bytes(unit or "B")}
        shown = f"{printed.text} {unit}"
        name = "estimated_cache" if code == "required" else "device_cache"
        if fitted is None:
            yield figure(name, found, shown, reasons=(note, why or NO_MODEL), **rest)
            continue
        own = _bytes(fitted.plan)
        line = fitted.plan.printed[0].split('"')[-2] if fitted.plan.printed else f"{own:,} B"
        whole, guessed = len(lines) == 1, "num_ctx" in fitted.inferred
        yield figure(
            name,
            found,
            shown,
            computed=f"{line} = {own:,} B",
            agrees=(printed.holds_bytes(own, unit or "B") or (None if guessed else False))
            if whole
            else None,
            reasons=(note, *_inferred(fitted)),
            **rest,
        )


def _inferred(fitted: _Fit) -> tuple[Note, ...]:
    return inferred_note(fitted.inferred, {"num_parallel": 1, "kv_cache_type": "f16"})


def _remarks(reads: Reads, known: Mapping[str, object]) -> Iterator[Note]:
    slots = known.get("num_parallel")
    if isinstance(slots, int) and slots > 1:
        yield Note(
            "context_times_parallel",
            "the context is num_ctx × {slots} parallel requests",
            {"slots": slots},
        )
    if reads.get("size") or reads.get("self_size") or reads.get("buffer"):
        yield Note(
            "llama_lines_too",
            "this log also holds llama.cpp's own lines, which say what was"
            " really allocated: ask again with engine llama_cpp for those",
        )
