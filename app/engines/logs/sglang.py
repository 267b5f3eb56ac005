"""An SGLang log explained: pools of so many tokens, and the tokens that the memory gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import sglang
from app.engines.logs.agreement import borne_out, same_elsewhere, settled
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import ANY, SGLANG, Reads, read_kinds
from app.engines.logs.numbers import gib_text
from app.engines.logs.out_of_memory import out_of_memory_advice, out_of_memory_figures
from app.engines.logs.result import Advice, Explained
from app.engines.logs.search import Axis, by_weight, most_plans
from app.engines.logs.sentences import NO_MODEL
from app.engines.logs.sglang_figures import SglangFit, pool_figures, sglang_figures
from app.engines.logs.text import LogText
from app.engines.logs.vllm.advice import Wish
from app.engines.model import EngineModel
from app.engines.sglang.settings import NEWEST, OLDEST

MOST_PLANS = 200
_INTEGERS: Mapping[str, tuple[str, ...]] = {
    "tp_size": ("tp_size", "tp", "tensor_parallel_size"),
    "pp_size": ("pp_size", "pp"),
    "dp_size": ("dp_size", "dp"),
    "page_size": ("page_size",),
    "max_mamba_cache_size": ("max_mamba_cache_size",),
}


def explain_sglang(
    log: LogText,
    arguments: Arguments,
    model: EngineModel | None,
    given: Mapping[str, object],
    wish: Wish,
) -> Explained:
    """Return an SGLang log explained.

    Raises:
        DomainError: for a setting in `given` that is wrong.

    """
    reads, passed_over = read_kinds(log, (*SGLANG, *ANY))
    known = _known(reads, arguments, given)
    fitted, why = (None, NO_MODEL) if model is None else _fit(reads, model, known, given)
    plan = None if fitted is None else fitted.plan
    made = (*sglang_figures(reads, fitted, why), *out_of_memory_figures(reads))
    figures = settled(sorted(made, key=lambda item: item.line_number))
    return Explained(
        engine="sglang",
        version_guess=str(known["version"]) if "version" in known else _guess(reads),
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name,
        figures=figures,
        advice=(
            *out_of_memory_advice(reads, "--mem-fraction-static"),
            *(() if fitted is None or model is None else _advice(model, fitted, wish)),
        ),
        remarks=tuple(_remarks(fitted)),
        settings=dict(known if fitted is None else fitted.settings),
        inferred={} if fitted is None else borne_out(figures, fitted.inferred),
        missing=() if fitted is not None else (why or NO_MODEL,),
        assumptions=()
        if plan is None or model is None
        else (*model.assumptions, *plan.assumptions),
        formulas=() if plan is None else plan.formula,
        lines_passed_over=passed_over,
    )


def _guess(reads: Reads) -> str:
    """Return the releases that print these forms."""
    lines = reads.get("allocated", ())
    if any(found.groups[0] is not None for found in lines):
        return "0.5.15 or later"
    if any(found.groups[1] is not None for found in lines):
        return "0.4.4 – 0.5.14"
    return f"{'.'.join(map(str, OLDEST))} – {'.'.join(map(str, NEWEST))}"


def _known(reads: Reads, arguments: Arguments, given: Mapping[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, spellings in _INTEGERS.items():
        value = arguments.integer(*spellings)
        if value:
            settings[name] = value
    fraction = arguments.number("mem_fraction_static")
    if fraction is not None and 0 < fraction < 1:
        settings["mem_fraction_static"] = fraction
    kind = arguments.text("kv_cache_dtype")
    if kind in ("fp8_e4m3", "fp8_e5m2", "bfloat16", "fp4_e2m1"):
        settings["kv_cache_dtype"] = kind
    _from_lines(reads, settings)
    # A log's 0 stands for what is not used; one that is given is for the plan to check.
    settings = {key: value for key, value in settings.items() if value != 0}
    settings.update({key: value for key, value in given.items() if value is not None})
    return settings


def _from_lines(reads: Reads, settings: dict[str, object]) -> None:
    for found in reads.get("version", ()):
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", found.groups[0] or "")
        if match and OLDEST <= tuple(map(int, match.groups())) <= NEWEST:
            settings["version"] = match[0]
    for code in ("mamba", "mamba_loose"):
        for found in reads.get(code, ()):
            settings.setdefault("max_mamba_cache_size", int(found.groups[0] or 0))
    for found in reads.get("totals", ()):
        if found.groups[1]:
            settings.setdefault("context_length", int(found.groups[1]))
    if reads.get("draft_loose") or _drafts(reads):
        settings.setdefault("draft_layers", 1)


def _drafts(reads: Reads) -> bool:
    """Say whether a second pool of the same tokens, and smaller, follows: a draft worker's."""
    sizes: dict[str, set[str | None]] = {}
    for found in reads.get("allocated", ()):
        tokens, key = found.groups[1], found.groups[3] or found.groups[2]
        if tokens is not None:
            sizes.setdefault(tokens, set()).add(key)
    return any(len(keys) > 1 for keys in sizes.values())


def _tokens(reads: Reads) -> int | None:
    for code, group in (("windows", 0), ("totals", 0), ("allocated", 1), ("allocated_loose", 0)):
        for found in reads.get(code, ()):
            if found.groups[group]:
                return int(found.groups[group] or 0)
    return None


def _fit(
    reads: Reads, model: EngineModel, known: Mapping[str, object], given: Mapping[str, object]
) -> tuple[SglangFit | None, Note | None]:
    tokens = _tokens(reads)
    base = {**known}
    if tokens:
        base.setdefault("max_total_tokens", tokens)
    best: SglangFit | None = None
    refusal: DomainError | None = None
    most = most_plans(model, MOST_PLANS)
    for tried, (_, inferred) in enumerate(by_weight(_axes(reads, known, model))):
        if tried == most or (best is not None and best.misses == 0):
            break
        settings = {**base, **inferred}
        try:
            plan = sglang.plan(None, model.state, model.config, settings)
        except DomainError as error:
            refusal = refusal or error
            continue
        found = SglangFit(plan=plan, settings=settings, inferred=inferred, misses=0)
        misses = _misses(reads, found)
        if best is None or misses < best.misses:
            best = replace(found, misses=misses)
    if best is None and refusal is not None:
        if refusal.field and refusal.field[0] in given:
            raise refusal
        return None, Note(refusal.code, refusal.template, refusal.params)
    if best is not None and best.misses == 0:
        best = replace(best, others=_others(reads, model, known, base, best))
    return best, None


def _misses(reads: Reads, fitted: SglangFit) -> int:
    return sum(item.agrees is False for item in pool_figures(reads, fitted))


def _others(
    reads: Reads,
    model: EngineModel,
    known: Mapping[str, object],
    base: Mapping[str, object],
    best: SglangFit,
) -> tuple[dict[str, object], ...]:
    """Return other ranks and formats that give the same: half the heads in twice the bytes."""

    def agrees(chosen: dict[str, object]) -> bool:
        settings = {**base, **chosen}
        try:
            plan = sglang.plan(None, model.state, model.config, settings)
        except DomainError:
            return False
        tried = SglangFit(plan=plan, settings=settings, inferred=chosen, misses=0)
        return _misses(reads, tried) == 0

    axes = {name: axis for name, axis in (("tp_size", _RANKS), ("kv_cache_dtype", _FORMATS))
            if name not in known}  # fmt: skip
    defaults: dict[str, object] = {"tp_size": 1, "kv_cache_dtype": "auto"}
    return same_elsewhere(
        axes.values(), best.inferred, {name: defaults[name] for name in axes}, agrees
    )


# Ranks go before formats: most caches are kept in 16 bits.
_RANKS: Axis = [
    ({"tp_size": ranks}, weight)
    for ranks, weight in ((1, 0.0), (2, 0.5), (4, 0.55), (8, 0.6), (16, 1.2))
]
_FORMATS: Axis = [({}, 0.0), ({"kv_cache_dtype": "fp8_e4m3"}, 0.65)]


def _axes(reads: Reads, known: Mapping[str, object], model: EngineModel) -> list[Axis]:
    axes: list[Axis] = []
    if "version" not in known:
        versions = ["0.5.23", "0.5.10", "0.5.3", "0.4.6", "0.4.3"]
        if any(found.groups[0] is None for found in reads.get("allocated", ())):
            versions = versions[1:]
        axes.append([({"version": name}, 0.3 * i) for i, name in enumerate(versions)])
    if "tp_size" not in known:
        axes.append(_RANKS)
    if "kv_cache_dtype" not in known:
        axes.append(_FORMATS)
    if "page_size" not in known:
        axes.append([({}, 0.0), ({"page_size": 64}, 0.8), ({"page_size": 128}, 0.9)])
    if model.state is not None and "recurrent" in model.state.kinds:
        axes.append([({}, 0.0), ({"mamba_ssm_dtype": "bfloat16"}, 0.4)])
    return axes or [[({}, 0.0)]]


def _remarks(fitted: SglangFit | None) -> Iterator[Note]:
    yield Note(
        "per_rank_pools",
        "every size is one rank's; the tokens are those of the rank with the least memory",
    )
    if fitted is not None:
        yield Note(
            "token_costs",
            "a token costs {cell} B on each rank",
            {"cell": f"{fitted.plan.cell_bytes:,}"},
        )


def _advice(model: EngineModel, fitted: SglangFit, wish: Wish) -> Iterator[Advice]:
    tokens = fitted.plan.tokens
    if not tokens or not fitted.plan.cell_bytes:
        return
    if fitted.settings.get("kv_cache_dtype") is None:
        try:
            half = sglang.plan(
                None, model.state, model.config, {**fitted.settings, "kv_cache_dtype": "fp8_e4m3"}
            )
        except DomainError:
            half = None
        if half is not None and half.cell_bytes < fitted.plan.cell_bytes:
            times = tokens * fitted.plan.cell_bytes // half.cell_bytes
            yield Advice(
                change=Note("sglang_dtype", "--kv-cache-dtype fp8_e4m3"),
                effect=Note(
                    "tokens_become",
                    "about {tokens} tokens from the same memory instead of {before}",
                    {"tokens": f"{times:,}", "before": f"{tokens:,}"},
                ),
            )
    if wish.context_tokens is not None or wish.concurrency is not None:
        length = wish.context_tokens or fitted.plan.context_tokens or tokens
        times = wish.concurrency or 1
        yield Advice(
            change=Note(
                "max_total_tokens", "--max-total-tokens {tokens}", {"tokens": length * times}
            ),
            effect=Note(
                "wish_takes",
                "{times} × {length} tokens take {gib} on each rank",
                {
                    "times": times,
                    "length": f"{length:,}",
                    "gib": gib_text(length * times * fitted.plan.cell_bytes),
                },
            ),
        )
