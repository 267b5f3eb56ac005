"""Configs through vLLM 0.33.0: public checkpoints, and each architecture under many flags."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.accuracy.case import (
    AccuracyCase,
    Evidence,
    Figure,
    Question,
    Suite,
    outcome_of,
    settings_text,
)
from app.accuracy.data import load
from app.accuracy.vllm_rows import KIND_OF_TYPE
from app.domain.errors import DomainError
from app.engines.vllm import VllmPlan, plan
from app.readers.hf_config import read_config
from app.web.marks import mark

Case = Mapping[str, Any]
VERSION = "0.33.0"
# These stopped while the engine built parts of the model that a plan of its cache knows nothing of.
_ELSEWHERE = frozenset({"dots1 base", "gpt-oss-120b tp16"})
_OTHER_PARTS = "the engine stopped while it built other parts of the model: {words}"
# Of runs that stopped, the file keeps the name of the variant in place of its settings.
_STOPPED_AT = 40 * 2**30
_LONGEST_WORDS = 200


def settings_of(case: Case) -> dict[str, object]:
    """Return the flags of a case; those of a run that stopped are in its variant's name."""
    if "settings" in case:
        return dict(case["settings"])
    settings: dict[str, object] = {}
    variant = str(case["variant"])
    if variant.startswith("a100_"):
        settings["device_capability"] = "8.0"
        variant = variant.removeprefix("a100_")
    if variant.startswith("kv_"):
        settings["kv_cache_dtype"] = variant.removeprefix("kv_")
    elif variant.startswith("tp"):
        settings["tensor_parallel_size"] = int(variant.removeprefix("tp"))
    return settings


def ask(case: Case, config: Mapping[str, Any] | None, suite: Suite) -> AccuracyCase:
    """Return one config under one set of flags."""
    name = case.get("hf_id") or f"{case['name']} {case['variant']}"
    settings, memory = settings_of(case), case.get("available_bytes", _STOPPED_AT)
    answer: VllmPlan | None = None
    figures: list[Figure] = []
    why = ""
    if config is not None:
        try:
            state = read_config(config).state
            answer = plan(config, state, {**settings, "version": VERSION}, memory)
        except DomainError as error:
            why = str(error)
        figures = _figures(case, answer)
    reason = ""
    if name in _ELSEWHERE:
        reason = _OTHER_PARTS.format(words=case["fatal"][:_LONGEST_WORDS])
    outcome = outcome_of(figures, reason=reason)
    return AccuracyCase(
        suite=suite.name,
        id=name,
        engine="vllm",
        version=VERSION,
        family=str((config or {}).get("model_type", "")),
        model=case.get("hf_id") or case["name"],
        settings=settings_text({**settings, "available": memory}),
        figures=tuple(figures),
        outcome=outcome,
        reason=reason or why,
    )


def _figures(case: Case, answer: VllmPlan | None) -> list[Figure]:
    if "fatal" in case:
        return [_start("refused", answer)]
    wanted = case["expected"]
    if "error" in wanted:
        fits = None if answer is None else answer.estimated_max_model_len
        said = fits is not None and str(fits) in wanted["error"]
        return [
            _start("refused", answer),
            Figure(name="length that fits, named in its error", measured="yes",
                   computed="yes" if said else f"no: {fits}"),
        ]  # fmt: skip
    if answer is None:
        return [_start("starts", answer)]
    figures = [
        Figure(name="blocks", measured=wanted["num_blocks"], computed=answer.num_gpu_blocks),
        Figure(name="longest request", unit="tokens", measured=wanted["max_model_len_after"],
               computed=answer.max_model_len),
        Figure(name="groups", measured=_wanted_groups(wanted), computed=_groups(answer)),
        Figure(name="bytes a block",
               measured=" ".join(str(size or 0) for size in wanted["bytes_per_block"]),
               computed=" ".join(str(rank.bytes_per_block) for rank in answer.ranks)),
    ]  # fmt: skip
    if "kv_cache_size_tokens" in wanted:
        figures += [
            Figure(name="cache", unit="tokens", measured=wanted["kv_cache_size_tokens"],
                   computed=answer.kv_cache_tokens),
            Figure(name="concurrency", measured=wanted["max_concurrency_2dp"],
                   computed=answer.max_concurrency_text),
        ]  # fmt: skip
    if len(case["workers"]) == 1:  # with several stages the measured runs kept no log
        figures.append(
            Figure(name="lines", measured=" | ".join(wanted["log_lines"]),
                   computed=" | ".join(answer.printed))
        )  # fmt: skip
    return figures


def _start(measured: str, answer: VllmPlan | None) -> Figure:
    computed = "refused" if answer is None or answer.refused else "starts"
    return Figure(name="start", measured=measured, computed=computed)


def _wanted_groups(wanted: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{g['num_layers']} × {KIND_OF_TYPE[g['type']]} of {g['block_size']} in "
        f"{g['page_size_bytes']} B, {g['blocks']} a request"
        for g in wanted["groups"]
    )


def _groups(answer: VllmPlan) -> str:
    return ", ".join(
        f"{g.layers} × {g.kind} of {g.block_size} in {g.page_size_bytes} B, "
        f"{g.blocks_per_request} a request"
        for g in answer.groups
    )


def _checkpoints() -> list[Question]:
    configs = load("vllm_model_plan_configs")
    return [
        partial(ask, case, configs[case["hf_id"]], CHECKPOINTS) for case in load(CHECKPOINTS.file)
    ]


def _architectures() -> list[Question]:
    configs = load("vllm_architecture_configs")
    return [
        partial(ask, case, configs.get(case["name"]), ARCHITECTURES)
        for case in load(ARCHITECTURES.file)
    ]


CHECKPOINTS = Suite(
    name="vllm_model_plans",
    engine="vllm",
    title=mark("vLLM plans of public checkpoints"),
    what=mark("The checkpoint's own config through vLLM 0.33.0, 64 GiB for each worker's cache."),
    evidence=Evidence.RUN,
    file="vllm_model_plans",
    questions=_checkpoints,
)
ARCHITECTURES = Suite(
    name="vllm_architectures",
    engine="vllm",
    title=mark("vLLM plans of every architecture"),
    what=mark("A config of each, through ranks, stages, formats, devices and flags."),
    evidence=Evidence.RUN,
    file="vllm_architecture_cases",
    questions=_architectures,
)
