"""A TensorRT-LLM log explained: blocks, the tokens in them, and the memory that they take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import tensorrt_llm
from app.engines.logs.agreement import alternatives_note, borne_out, same_elsewhere, settled
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import ANY, TENSORRT_LLM, Found, Reads, read_kinds
from app.engines.logs.numbers import decimal, gib_text
from app.engines.logs.result import Explained, LogFigure, figure
from app.engines.logs.search import Axis, by_weight, most_plans
from app.engines.logs.sentences import NO_MODEL, implied_token, inferred_note
from app.engines.logs.text import LogText
from app.engines.model import EngineModel
from app.engines.tensorrt_llm import TensorrtLlmPlan

MOST_PLANS = 80
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    plan: TensorrtLlmPlan
    settings: Mapping[str, object]
    inferred: Mapping[str, object]
    others: tuple[Mapping[str, object], ...] = ()


def explain_tensorrt_llm(
    log: LogText, arguments: Arguments, model: EngineModel | None, given: Mapping[str, object]
) -> Explained:
    """Return a TensorRT-LLM log explained.

    Raises:
        DomainError: for a setting in `given` that is wrong.

    """
    reads, passed_over = read_kinds(log, (*TENSORRT_LLM, *ANY))
    known = _known(reads, arguments, given)
    fitted, why = (None, NO_MODEL) if model is None else _fit(reads, model, known, given)
    plan = None if fitted is None else fitted.plan
    made = sorted(_figures(reads, fitted, why), key=lambda item: item.line_number)
    figures = settled(made)
    return Explained(
        engine="tensorrt_llm",
        version_guess=str(known["version"])
        if "version" in known
        else ("0.5 – 0.8" if reads.get("bytes") else "0.9 or later"),
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name,
        figures=figures,
        remarks=(
            Note(
                "fraction_after_load",
                "the fraction is of the memory that is free after the"
                " engine is loaded; blocks are rounded up",
            ),
        ),
        settings=dict(known if fitted is None else fitted.settings),
        inferred={} if fitted is None else borne_out(figures, fitted.inferred),
        missing=() if fitted is not None else (why or NO_MODEL,),
        assumptions=()
        if plan is None or model is None
        else (*model.assumptions, *plan.assumptions),
        formulas=() if plan is None else plan.formula,
        lines_passed_over=passed_over,
    )


def _known(reads: Reads, arguments: Arguments, given: Mapping[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    ranks = arguments.integer("tp_size", "tensor_parallel_size")
    if ranks:
        settings["tp_size"] = ranks
    for code, group in (("block_tokens", 0), ("sequence", 2)):
        for found in reads.get(code, ()):
            if found.groups[group]:
                settings.setdefault("tokens_per_block", int(found.groups[group] or 0))
    for found in reads.get("pool_loose", ()):
        settings.setdefault("tokens_per_block", int(found.groups[1] or 0))
    for found in reads.get("version", ()):
        match = re.match(r"(\d+)\.(\d+)", found.groups[0] or "")
        if match:
            settings["version"] = match[0]
    if reads.get("bytes"):
        settings.setdefault("version", "0.8")
        settings.setdefault("backend", "cpp")
    settings.update({key: value for key, value in given.items() if value is not None})
    return settings


def _tokens(reads: Reads, block: int | None) -> int | None:
    for code, group in (("allocated", 1), ("using", 0)):
        for found in reads.get(code, ()):
            return int(found.groups[group] or 0)
    for code, group in (("blocks", 0), ("sequence", 3), ("pool_loose", 0)):
        for found in reads.get(code, ()):
            if found.groups[group] and block:
                return int(found.groups[group] or 0) * block
    return None


def _fit(
    reads: Reads, model: EngineModel, known: Mapping[str, object], given: Mapping[str, object]
) -> tuple[_Fit | None, Note | None]:
    best: tuple[int, _Fit] | None = None
    refusal: DomainError | None = None
    most = most_plans(model, MOST_PLANS)
    for tried, (_, inferred) in enumerate(by_weight(_axes(reads, known))):
        if tried == most or (best is not None and best[0] == 0):
            break
        settings = _with_tokens(reads, {**known, **inferred})
        try:
            plan = tensorrt_llm.plan(None, model.state, model.config, settings)
        except DomainError as error:
            refusal = refusal or error
            continue
        found = _Fit(plan=plan, settings=settings, inferred=inferred)
        misses = _misses(reads, found)
        if best is None or misses < best[0]:
            best = misses, found
    if best is None:
        if refusal is not None and refusal.field and refusal.field[0] in given:
            raise refusal
        return None, None if refusal is None else Note(
            refusal.code, refusal.template, refusal.params
        )
    misses, fitted = best
    if misses == 0:
        fitted = replace(fitted, others=_others(reads, model, known, fitted))
    return fitted, None


def _with_tokens(reads: Reads, settings: dict[str, object]) -> dict[str, object]:
    """Return the settings with the tokens of the pool, where the lines and the block give them."""
    block = settings.get("tokens_per_block")
    tokens = _tokens(reads, block if isinstance(block, int) else None)
    return {"max_tokens": tokens, **settings} if tokens else settings


def _misses(reads: Reads, fitted: _Fit) -> int:
    return sum(item.agrees is False for item in _figures(reads, fitted, None))


def _others(
    reads: Reads, model: EngineModel, known: Mapping[str, object], best: _Fit
) -> tuple[dict[str, object], ...]:
    """Return other ranks and formats that give the same: half the heads in twice the bytes."""

    def agrees(chosen: dict[str, object]) -> bool:
        settings = _with_tokens(reads, {**known, **chosen})
        try:
            plan = tensorrt_llm.plan(None, model.state, model.config, settings)
        except DomainError:
            return False
        return _misses(reads, _Fit(plan=plan, settings=settings, inferred=chosen)) == 0

    axes = {name: axis for name, axis in (("tp_size", _RANKS), ("kv_cache_dtype", _FORMATS[:2]))
            if name not in known}  # fmt: skip
    defaults: dict[str, object] = {"tp_size": 1, "kv_cache_dtype": "auto"}
    return same_elsewhere(
        axes.values(), best.inferred, {name: defaults[name] for name in axes}, agrees
    )


# Ranks go before formats: most caches are kept in 16 bits.
_RANKS: Axis = [
    ({"tp_size": ranks}, weight) for ranks, weight in ((1, 0.0), (2, 0.5), (4, 0.55), (8, 0.6))
]
_FORMATS: Axis = [({}, 0.0), ({"kv_cache_dtype": "fp8"}, 0.65), ({"dtype": "float32"}, 1.5)]


def _axes(reads: Reads, known: Mapping[str, object]) -> list[Axis]:
    axes: list[Axis] = []
    if "tokens_per_block" not in known:
        axes.append([({"tokens_per_block": size}, 0.1 * i) for i, size in enumerate((64, 32, 128))])
    if "tp_size" not in known:
        axes.append(_RANKS)
    if "kv_cache_dtype" not in known:
        axes.append(_FORMATS)
    if reads.get("memory") or reads.get("available_loose"):
        axes.append([({}, 0.0)])
    return axes


def _figures(reads: Reads, fitted: _Fit | None, why: Note | None) -> Iterator[LogFigure]:
    for found in reads.get("allocated", ()):
        yield _allocated(found, fitted, why)
    for found in reads.get("bytes", ()):
        size = int(found.groups[0] or 0)
        own = None if fitted is None else fitted.plan.pool_bytes
        yield figure(
            "kv_bytes",
            found,
            f"{size:,} B",
            unit="bytes",
            computed=None if own is None else f"{own:,} B",
            agrees=None if own is None else own == size,
            reasons=_why(why, fitted),
        )
    for found in reads.get("pool_loose", ()):
        yield _size(found, "kv_pool", found.groups[2], fitted, why, f"{found.groups[0]} blocks, ")
    yield from _block_figures(reads, fitted, why)


def _why(why: Note | None, fitted: _Fit | None) -> tuple[Note, ...]:
    if fitted is None:
        return (why or NO_MODEL,)
    note = Note(
        "blocks_of_tokens",
        "{blocks} blocks of {size} tokens at {token} B a token",
        {
            "blocks": f"{fitted.plan.blocks:,}",
            "size": fitted.plan.tokens_per_block,
            "token": f"{fitted.plan.bytes_per_token:,}",
        },
    )
    shown = {k: v for k, v in fitted.inferred.items() if k != "tokens_per_block"}
    found = inferred_note(shown, {"tp_size": 1})
    return (note, *found, *alternatives_note(fitted.others))


def _size(
    found: Found,
    name: str,
    text: str | None,
    fitted: _Fit | None,
    why: Note | None,
    before: str = "",
) -> LogFigure:
    printed = decimal(text or "")
    if printed is None or fitted is None:
        return figure(name, found, f"{before}{text} GiB", unit="bytes", reasons=_why(why, fitted))
    own = fitted.plan.pool_bytes
    agrees = printed.holds_bytes(own, "GiB")
    return figure(
        name,
        found,
        f"{before}{printed.text} GiB",
        computed=f"{gib_text(own)} = {own:,} B",
        interval=printed.bytes("GiB"),
        unit="bytes",
        agrees=agrees,
        difference="" if agrees else gib_text(printed.value * _GIB - own),
        reasons=_why(why, fitted),
    )


def _allocated(found: Found, fitted: _Fit | None, why: Note | None) -> LogFigure:
    text, tokens = found.groups
    printed = decimal(text or "")
    if fitted is None and printed is not None and int(tokens or 0):
        low, high = (size // int(tokens or 1) for size in printed.bytes("GiB"))
        note = implied_token(low, high)
        return figure(
            "kv_pool",
            found,
            f"{printed.text} GiB for {int(tokens or 0):,} tokens",
            unit="bytes",
            interval=printed.bytes("GiB"),
            reasons=(note, *_why(why, fitted)),
        )
    return _size(found, "kv_pool", text, fitted, why, f"{int(tokens or 0):,} tokens, ")


def _block_figures(reads: Reads, fitted: _Fit | None, why: Note | None) -> Iterator[LogFigure]:
    tokens = next((int(found.groups[1] or 0) for found in reads.get("allocated", ())), None)
    size = next((int(found.groups[0] or 0) for found in reads.get("block_tokens", ())), None)
    if size is None and fitted is not None:
        size = fitted.plan.tokens_per_block
    available = next(
        (
            decimal(found.groups[group] or "")
            for code, group in (("memory", 1), ("available_loose", 0))
            for found in reads.get(code, ())
        ),
        None,
    )
    # Of several windows each has a pool, and tokens of its own.
    is_only = (
        "block_tokens" in reads and len({item.groups for item in reads.get("blocks", ())}) == 1
    )
    for found in reads.get("blocks", ()):
        blocks = int(found.groups[0] or 0)
        text = f"{blocks:,} blocks"
        if available is not None and fitted is not None and fitted.plan.bytes_per_token:
            token = fitted.plan.bytes_per_token
            given = fitted.settings.get("free_gpu_memory_fraction", 0.9)
            share = Fraction(str(given)) if isinstance(given, int | float) else Fraction(9, 10)
            ends = [
                -(-(int(end * _GIB * share) // token) // fitted.plan.tokens_per_block)
                for end in (available.low, available.high)
            ]
            note = Note(
                "fraction_over_block",
                "{share} of the free memory over {token} B a token, in whole blocks rounded up",
                {"share": f"{float(share):g}", "token": f"{token:,}"},
            )
            yield figure(
                "blocks",
                found,
                text,
                computed=f"{ends[0]:,} to {ends[1]:,} blocks",
                interval=(ends[0], ends[1]),
                unit="blocks",
                agrees=ends[0] <= blocks <= ends[1] or None,
                reasons=(note,),
            )
        elif tokens is not None and size:
            own = -(-tokens // size)
            note = Note(
                "tokens_over_block",
                "{tokens} tokens in blocks of {size}",
                {"tokens": f"{tokens:,}", "size": size},
            )
            yield figure(
                "blocks",
                found,
                text,
                computed=f"{own:,} blocks",
                unit="blocks",
                agrees=own == blocks or (False if is_only else None),
                reasons=(note,),
            )
        else:
            yield figure("blocks", found, text, unit="blocks", reasons=_why(why, fitted))
    yield from _sequence_figures(reads, size)


def _sequence_figures(reads: Reads, size: int | None) -> Iterator[LogFigure]:
    """Check the blocks of a sequence against its window, where the line names it."""
    for found in reads.get("sequence", ()):
        blocks, window, own_size, _, _ = found.groups
        unit = int(own_size) if own_size else size
        text = f"{int(blocks or 0):,} blocks a sequence"
        if window is None or not unit:
            yield figure("blocks_per_sequence", found, text, unit="blocks")
            continue
        own = -(-int(window) // unit)
        note = Note(
            "window_over_block",
            "a window of {window} tokens in blocks of {size}; releases"
            " since 1.1 keep one more, since a window may begin inside a block",
            {"window": f"{int(window):,}", "size": unit},
        )
        yield figure(
            "blocks_per_sequence",
            found,
            text,
            unit="blocks",
            computed=f"{own:,} blocks",
            interval=(own, own + 1),
            agrees=own <= int(blocks or 0) <= own + 1 or None,
            reasons=(note,),
        )
