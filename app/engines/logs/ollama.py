"""An Ollama log explained: its estimate before the load, and what its engine really keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import llama_cpp
from app.engines.llama_cpp import LlamaCppPlan
from app.engines.llama_cpp.ollama import REAL_OVER_ESTIMATED, human_bytes
from app.engines.logs.agreement import alternatives_note
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import ANY, LLAMA_CPP, OLLAMA, Found, Reads, read_kinds
from app.engines.logs.llama_cpp.model import GENERAL_NAME, model_of_log
from app.engines.logs.numbers import UNITS, decimal
from app.engines.logs.ollama_lengths import KINDS, lengths_notes
from app.engines.logs.result import Explained, LogFigure, figure
from app.engines.logs.search import Axis, by_weight, most_plans
from app.engines.logs.sentences import NO_MODEL, inferred_note, settings_text
from app.engines.logs.text import LogText
from app.engines.model import EngineModel

MOST_PLANS = 120
# Types whose windowed layers Ollama counts short, by their names in a config and in a header.
_SHORT = {"gemma3": "gemma3", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"}
# The groups of a line that names a device: its name, the size and the unit.
_OF_DEVICES = 3
_DEFAULT_CONTEXTS = (2048, 4096, 8192, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A plan: whether the lines print it, what else prints them, and the contexts that would."""

    plan: LlamaCppPlan
    settings: Mapping[str, object]
    inferred: Mapping[str, object]
    agrees: bool = False
    others: tuple[Mapping[str, object], ...] = ()
    lengths: tuple[Note, ...] = ()

    @property
    def knows_context(self) -> bool:
        """Whether the context is said: without it no size can be shown to be wrong."""
        return "num_ctx" not in self.inferred

    @property
    def settles(self) -> bool:
        """Whether the plan is of the log, and not of a context that was only tried."""
        return self.agrees or self.knows_context


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
        figures += _figures(code, lines, fitted, why, known)
        fits += [fitted] if fitted is not None else []
    told = [fitted for fitted in fits if fitted.settles]
    plan = told[0].plan if told else None
    return Explained(
        engine="ollama",
        version_guess=_version(reads),
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name,
        figures=tuple(sorted(figures, key=lambda item: item.line_number)),
        remarks=tuple(_remarks(reads, known)),
        settings=dict(known if not told else told[0].settings),
        inferred={} if not told or not told[0].agrees else dict(told[0].inferred),
        missing=() if fits else (why or NO_MODEL,),
        assumptions=() if plan is None else plan.assumptions,
        formulas=() if plan is None else plan.formula,
        lines_passed_over=passed_over,
    )


def _version(reads: Reads) -> str | None:
    for found in reads.get("version", ()):
        return found.groups[0]
    return "up to 0.29" if reads.get("required") else "0.6 – 0.29"


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


def _headers(model: EngineModel, runner: object) -> list[Mapping[str, object] | None]:
    """Return the model as Ollama counts it: windows short, and at full length as it first did.

    Only its estimate ever counted windows at full length.
    """
    short = _header(model)
    if short is None:
        return [None]
    arch = str(short.get("general.architecture"))
    two_ways = runner == "ollama-estimate" and arch in _SHORT.values() and model.state is not None
    return [short, None] if two_ways else [short]


def _different(lines: list[Found]) -> list[Found]:
    return list({found.groups: found for found in lines}.values())


def _target(lines: list[Found]) -> tuple[int, int] | None:
    """Return the bytes of the whole as the lines leave them; None where they are no one whole.

    Lines of several devices are its shares; a device that is named twice was loaded twice, and
    what is printed twice alike is one thing.
    """
    lines = _different(lines)
    if len(lines) > 1 and len({found.groups[:-2] for found in lines}) < len(lines):
        return None
    spans = []
    for found in lines:
        printed = decimal(found.groups[-2] or "")
        if printed is None or (len(lines) > 1 and len(found.groups) < _OF_DEVICES):
            return None
        spans.append(printed.bytes(found.groups[-1] or "B"))
    return sum(low for low, _ in spans), sum(high for _, high in spans)


def _fit(
    lines: list[Found], model: EngineModel, known: Mapping[str, object], given: Mapping[str, object]
) -> tuple[_Fit | None, Note | None]:
    """Return the plan that prints the lines, or, where none does, the first one that can be made.

    Other settings that print the same are kept beside it.
    """
    target = _target(lines)
    first: _Fit | None = None
    agreeing: list[tuple[int, _Fit]] = []
    refusal: DomainError | None = None
    headers = _headers(model, known.get("runner"))
    most = most_plans(model, MOST_PLANS)
    for tried, (_, inferred) in enumerate(by_weight(_axes(known, len(headers)))):
        if tried == most:
            break
        variant = inferred.pop("variant", 0)
        index = variant if isinstance(variant, int) else 0
        settings = {**known, **inferred}
        try:
            plan = llama_cpp.plan(headers[index], model.state, None, settings)
        except DomainError as error:
            refusal = refusal or error
            continue
        found = _Fit(plan=plan, settings=settings, inferred=inferred)
        first = first or found
        if target is not None and target[0] <= plan.total_bytes <= target[1]:
            agreeing.append((index, replace(found, agrees=True)))
    if agreeing:
        used, best = agreeing[0]
        others = tuple(other.inferred for index, other in agreeing[1:] if index == used)
        return replace(best, others=others), None
    if first is None:
        if refusal is not None and refusal.field and refusal.field[0] in given:
            raise refusal
        return None, None if refusal is None else Note(
            refusal.code, refusal.template, refusal.params
        )
    if target is not None and not first.knows_context:
        rest = {k: v for k, v in first.settings.items() if k in known or k == "num_parallel"}
        notes = tuple(lengths_notes(model, headers, rest, target))
        return replace(first, lengths=notes), None
    return first, None


def _axes(known: Mapping[str, object], variants: int) -> list[Axis]:
    axes: list[Axis] = [[({"variant": index}, 0.4 * index) for index in range(variants)]]
    if "num_ctx" not in known:
        axes.append([({"num_ctx": size}, 0.2 * i) for i, size in enumerate(_DEFAULT_CONTEXTS)])
    if "num_parallel" not in known:
        axes.append(
            [({"num_parallel": slots}, weight) for slots, weight in ((1, 0.0), (4, 0.3), (2, 0.5))]
        )
    if "kv_cache_type" not in known:
        axes.append([({"kv_cache_type": kind}, 0.35 * i) for i, kind in enumerate(KINDS)])
    return axes


def _figures(
    code: str,
    lines: list[Found],
    fitted: _Fit | None,
    why: Note | None,
    known: Mapping[str, object],
) -> Iterator[LogFigure]:
    note = _estimate_note(fitted, known) if code == "required" else _ENGINE
    name = "estimated_cache" if code == "required" else "device_cache"
    for found in lines[:64]:
        printed = decimal(found.groups[-2] or "")
        unit = found.groups[-1] or "B"
        if printed is None:
            continue
        span, shown = printed.bytes(unit), f"{printed.text} {unit}"
        if fitted is None or not fitted.settles:
            more = (why or NO_MODEL,) if fitted is None else fitted.lengths or (_SEVERAL,)
            yield figure(name, found, shown, reasons=(note, *more), unit="bytes", interval=span)
            continue
        alone, own = len(_different(lines)) == 1, fitted.plan.total_bytes
        differs = alone and not fitted.agrees
        yield figure(
            name,
            found,
            shown,
            computed=f"{human_bytes(own)} = {own:,} B" + ("" if alone else " on all devices"),
            agrees=fitted.agrees or (False if alone else None),
            difference=_difference(printed.value * UNITS[unit] - own) if differs else "",
            reasons=(note, *_of_several(code, fitted, alone=alone), *_because(fitted, alone=alone)),
            unit="bytes",
            interval=span,
        )


def _of_several(code: str, fitted: _Fit, *, alone: bool) -> tuple[Note, ...]:
    if alone:
        return ()
    return (_SHARE,) if code == "cache" and fitted.agrees else (_SEVERAL,)


def _difference(size_bytes: Fraction) -> str:
    return f"{float(size_bytes) / 2**20:+,.1f} MiB"


def _because(fitted: _Fit, *, alone: bool) -> tuple[Note, ...]:
    """Return what had to be inferred for the lines to agree, or with what they do not."""
    if fitted.agrees:
        found = inferred_note(fitted.inferred, {"num_parallel": 1, "kv_cache_type": "f16"})
        return (*found, *alternatives_note(fitted.others))
    if not alone:
        return ()
    shown = {name: value for name, value in fitted.settings.items() if name != "runner"}
    return (
        Note(
            "ollama_differs",
            "with {settings} it would be the computed figure; a setting that the log does not show"
            " differs, or the model does",
            {"settings": settings_text(shown)},
        ),
    )


_ENGINE = Note(
    "ollama_engine",
    "what Ollama's own engine keeps on this device; windows take"
    " their length for every sequence and the batch, in whole 256 or 32 cells",
)
_SHARE = Note("device_share", "one device's share; the shares of all devices make the whole cache")
_SEVERAL = Note(
    "several_loads",
    "the lines are no single whole: of several loads, or not of all devices; ask about those of one"
    " load",
)


def _estimate_note(fitted: _Fit | None, known: Mapping[str, object]) -> Note:
    """Return what the estimate leaves out, for the format that is known or was found."""
    # Where several formats print the same, none of them is known.
    settles = fitted is not None and fitted.settles and not fitted.others
    settings = fitted.settings if fitted is not None and settles else known
    kind = settings.get("kv_cache_type")
    if kind is None:
        return Note(
            "ollama_estimate",
            "Ollama's own estimate before the load: it counts q8_0 as one byte and q4_0 as half a"
            " byte an element, where blocks take 34/32 and 18/32, so that such a cache is really"
            " 6.25 or 12.5 % larger; f16 is counted as it is kept",
        )
    if kind not in REAL_OVER_ESTIMATED:
        return Note(
            "ollama_estimate_exact",
            "Ollama's own estimate before the load: it counts {type} as it is kept",
            {"type": kind},
        )
    ratio = REAL_OVER_ESTIMATED[str(kind)]
    facts: dict[str, object] = {"type": kind, "percent": f"{float(ratio - 1) * 100:g}"}
    if fitted is None or not settles:
        return Note(
            "ollama_estimate_low",
            "Ollama's own estimate before the load: it counts {type} without the scales of its"
            " blocks, so the real cache is {percent} % larger",
            facts,
        )
    caches = fitted.plan.caches
    real = sum(c.bytes if c.name == "states" else c.bytes * ratio for c in caches)
    return Note(
        "ollama_estimate_real",
        "Ollama's own estimate before the load: it counts {type} without the scales of its"
        " blocks; keys and values really take {percent} % more, the cache {size}",
        {**facts, "size": human_bytes(int(real))},
    )


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
