"""Caches that real forward passes of Transformers left, tensor by tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.accuracy.case import (
    AccuracyCase,
    Evidence,
    Figure,
    Outcome,
    Question,
    Suite,
    outcome_of,
    settings_text,
)
from app.accuracy.data import load
from app.domain.errors import DomainError
from app.engines.transformers import TransformersPlan, plan
from app.engines.transformers.settings import VERSION
from app.engines.transformers.unreproduced import UNREPRODUCED
from app.web.marks import mark

Case = Mapping[str, Any]
# The run in which the random configs were measured.
CLASS_RUN: dict[str, object] = {
    "batch": 2, "prompt_tokens": 13, "decode_steps": 2, "dtype": "float32",
}  # fmt: skip
_SETTINGS = ("batch", "prompt_tokens", "decode_steps", "dtype", "max_cache_len", "encoder_tokens")


def settings_of(case: Case) -> dict[str, object]:
    """Return the settings under which a case was measured."""
    scenario = case.get("scenario", "dynamic")
    settings = {name: case[name] for name in _SETTINGS if name in case}
    settings["batch"] = case.get("effective_batch", case["batch"])
    settings["cache"] = "static" if "static" in scenario else "dynamic"
    if "quant" in case:
        settings |= {"cache": "quantized", **case["quant"]}
    if scenario == "generate-fp32":
        settings["generate"] = True
    return settings


def _text_type(config: Mapping[str, Any]) -> str:
    return str(config.get("model_type", ""))


def ask_small(case: Case, config: Mapping[str, Any], suite: str) -> AccuracyCase:
    """Return a small model's run: every tensor's name, role, shape and dtype, and all bytes."""
    settings = settings_of(case)
    measured = [
        (kind, *tensor[:4])
        for count, kind, tensors in case["layers"]
        for _ in range(count)
        for tensor in tensors
    ]
    theirs: Counter[object] = Counter(
        (kind, name, role, tuple(shape), dtype) for kind, name, role, shape, dtype in measured
    )
    answer, why = _planned(config, settings)
    figures = [Figure(name="cache", unit="B", measured=case["total_bytes"],
                      computed=_of(answer, "cache_bytes")),
               Figure(name="allocated", unit="B", measured=case["storage_bytes"],
                      computed=_of(answer, "storage_bytes")),
               _tensors(theirs, answer)]  # fmt: skip
    if not str(case["scenario"]).startswith("generate"):
        figures.insert(1, Figure(name="after the prompt", unit="B",
                                 measured=case["trace_bytes"][0],
                                 computed=_of(answer, "prefill_bytes")))  # fmt: skip
    return _result(case, suite, _text_type(config), settings, figures, why)


def ask_released(case: Case, suite: str) -> AccuracyCase:
    """Return a released checkpoint at its full size."""
    settings = settings_of(case)
    theirs: Counter[object] = Counter()
    for kind, count, _, tensors in case["groups"]:
        for name, role, shape, dtype in tensors:
            theirs[(kind, name, role, tuple(shape), dtype)] += count
    answer, why = _planned(case["config"], settings)
    figures = [Figure(name="cache", unit="B", measured=case["total_bytes"],
                      computed=_of(answer, "cache_bytes")),
               _tensors(theirs, answer)]  # fmt: skip
    return _result(case, suite, case["text_model_type"], settings, figures, why)


def _of(answer: TransformersPlan | None, name: str) -> int | None:
    """Return one of a plan's figures in bytes."""
    value = getattr(answer, name, None)
    return value if isinstance(value, int) else None


def ask_class(number: int, config: Mapping[str, Any], layers: Sequence[Any]) -> AccuracyCase:
    """Return a random small config of one class: the decoder's own layers, tensor by tensor."""
    theirs: Counter[object] = Counter()
    for count, kind, tensors in layers:
        for name, shape, dtype in tensors:
            theirs[(kind, name, tuple(shape), dtype)] += count
    answer, why = _planned(config, CLASS_RUN)
    ours: Counter[object] = Counter()
    for layer in () if answer is None else answer.layers:
        if layer.kind == "cross_attention":  # the file lists the decoder's own
            continue
        for tensor in layer.tensors:
            ours[(layer.kind, tensor.name, tensor.shape, tensor.dtype)] += 1
    figure = _alike(theirs, ours)
    return AccuracyCase(
        suite=CLASSES.name,
        id=f"{_text_type(config)} {number}",
        engine="transformers",
        version=VERSION,
        family=_text_type(config),
        model=_text_type(config),
        settings=settings_text(CLASS_RUN),
        figures=(figure,),
        outcome=outcome_of([figure]),
        reason=why,
    )


def _planned(
    config: Mapping[str, Any], settings: Mapping[str, object]
) -> tuple[TransformersPlan | None, str]:
    try:
        return plan(config, settings), ""
    except DomainError as error:
        return None, str(error)


def _tensors(theirs: Counter[object], answer: TransformersPlan | None) -> Figure:
    """Return how many tensors there are, and how many of ours are the same."""
    ours: Counter[object] = Counter()
    for layer in () if answer is None else answer.layers:
        for tensor in layer.tensors:
            ours[(layer.kind, tensor.name, tensor.role, tensor.shape, tensor.dtype)] += 1
    return _alike(theirs, ours)


def _alike(theirs: Counter[object], ours: Counter[object]) -> Figure:
    alike = (theirs & ours).total()
    extra = ours.total() - alike
    return Figure(
        name="tensors alike", measured=theirs.total(),
        computed=alike if not extra else f"{alike} and {extra} others",
    )  # fmt: skip


def _result(
    case: Case,
    suite: str,
    family: str,
    settings: Mapping[str, object],
    figures: Sequence[Figure],
    why: str,
) -> AccuracyCase:
    reason = UNREPRODUCED.get(case["id"], "")
    outcome = outcome_of(figures)
    if outcome is not Outcome.EXACT:
        reason = reason or why
    return AccuracyCase(
        suite=suite,
        id=case["id"],
        engine="transformers",
        version=VERSION,
        family=family,
        model=case.get("architecture") or case["id"],
        settings=settings_text(dict(settings)),
        figures=tuple(figures),
        outcome=outcome,
        reason=reason if outcome is not Outcome.EXACT else "",
    )


def _small() -> list[Question]:
    loaded = load(CACHES.file)
    configs = loaded["configs"]
    return [
        partial(ask_small, case, configs[case["config"]], CACHES.name) for case in loaded["cases"]
    ]


def _released() -> list[Question]:
    return [partial(ask_released, case, RELEASED.name) for case in load(RELEASED.file)["cases"]]


def _classes() -> list[Question]:
    cases = load(CLASSES.file)["cases"]
    return [
        partial(ask_class, number, case["config"], case["layers"])
        for number, case in enumerate(cases)
    ]


CACHES = Suite(
    name="transformers_caches",
    engine="transformers",
    title=mark("Transformers, small models of every architecture"),
    what=mark("Forward passes run; each cache tensor's name, shape, format and bytes compared."),
    evidence=Evidence.RUN,
    file="transformers_caches",
    questions=_small,
)
RELEASED = Suite(
    name="transformers_released",
    engine="transformers",
    title=mark("Transformers, released checkpoints at full size"),
    what=mark("The checkpoint's own config, 9,001 positions in bf16, weights not loaded."),
    evidence=Evidence.RUN,
    file="transformers_released",
    questions=_released,
)
CLASSES = Suite(
    name="transformers_classes",
    engine="transformers",
    title=mark("Transformers, random configs of each class"),
    what=mark("Small configs with fields left out or set at random; shapes and formats compared."),
    evidence=Evidence.RUN,
    file="transformers_classes",
    questions=_classes,
)
