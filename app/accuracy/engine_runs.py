"""llama.cpp and SGLang code run on synthetic models, and public logs of these and other engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.accuracy.case import (
    AccuracyCase,
    Evidence,
    Figure,
    Outcome,
    Question,
    Suite,
    settings_text,
)
from app.accuracy.data import load
from app.domain.errors import DomainError
from app.engines import measured as engines
from app.engines.measured_logs import log_result
from app.web.marks import mark

Case = Mapping[str, Any]
_OUTCOMES = {
    engines.EXACT: Outcome.EXACT,
    engines.PRINTED: Outcome.PRINTED,
    engines.EXPLAINED: Outcome.EXPLAINED,
    engines.DIFFERS: Outcome.NOT_REPRODUCED,
}
_ENGINES = {
    "llama.cpp": "llama.cpp",
    "llama.cpp (ik_llama.cpp fork)": "ik_llama.cpp",
    "llama.cpp (through Ollama 0.5)": "ollama",
    "ollama": "ollama",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
}


def _figure(figure: engines.Figure) -> Figure:
    """Return a figure; whole numbers become numbers, so that their difference can be shown."""
    values = (figure.measured, figure.computed)
    if all(text.isdigit() for text in values):
        return Figure(name=figure.name, measured=int(values[0]), computed=int(values[1]))
    return Figure(name=figure.name, measured=values[0], computed=values[1])


def _answered(
    case: Case, compare: Callable[[], engines.CaseResult], suite: Suite, number: int, family: str
) -> AccuracyCase:
    engine = _ENGINES.get(case["engine"], case["engine"])
    version = case.get("commit") or case.get("version") or case.get("engine_version_if_known") or ""
    name = str(case.get("id") or f"{suite.name} {number}")
    about: dict[str, Any] = {
        "suite": suite.name,
        "id": name,
        "engine": engine,
        "version": str(version),
        "family": family,
        "settings": settings_text(case.get("settings", "")),
    }
    try:
        found = compare()
    except DomainError as error:
        return AccuracyCase(**about, model=str(case.get("model") or case.get("model_name") or ""),
                            figures=(), outcome=Outcome.NOT_REPRODUCED,
                            reason=str(error))  # fmt: skip
    return AccuracyCase(
        **about,
        model=found.model,
        figures=tuple(_figure(figure) for figure in found.figures),
        outcome=_OUTCOMES[found.verdict],
        reason=found.reason,
        source_url=found.source_url,
    )


def ask_run(
    case: Case, number: int, headers: Mapping[str, Any], compare: Callable[..., Any], suite: Suite
) -> AccuracyCase:
    """Return a measured context or pool."""
    if case["engine"] == "sglang":
        return _answered(case, partial(compare, case, number), suite, number, "")
    family = str(headers[case["model"]].get("general.architecture", ""))
    return _answered(case, partial(compare, case, headers, number), suite, number, family)


def ask_log(case: Case, number: int) -> AccuracyCase:
    """Return a published log."""
    family = str(case["geometry"].get("arch") or "")
    return _answered(case, partial(log_result, case), LOGS, number, family)


def _runs(engine: str, compare: Callable[..., Any]) -> list[Question]:
    headers = load("engine_gguf_metadata")
    suite = LLAMA_CPP if engine == "llama.cpp" else SGLANG
    return [
        partial(ask_run, case, number, headers, compare, suite)
        for number, case in enumerate(load(suite.file))
        if case["engine"] == engine
    ]


def _logs() -> list[Question]:
    return [partial(ask_log, case, number) for number, case in enumerate(load(LOGS.file))]


LLAMA_CPP = Suite(
    name="llama_cpp_runs",
    engine="llama.cpp",
    title=mark("llama.cpp contexts on synthetic models"),
    what=mark("Real llama.cpp code of many months; bytes of a context, or the lines it prints."),
    evidence=Evidence.RUN,
    file="engine_runs",
    questions=lambda: _runs("llama.cpp", engines.llama_cpp_run),
)
SGLANG = Suite(
    name="sglang_runs",
    engine="sglang",
    title=mark("SGLang pools on synthetic models"),
    what=mark("Real SGLang code; bytes of each pool's tensors."),
    evidence=Evidence.RUN,
    file="engine_runs",
    questions=lambda: _runs("sglang", engines.sglang_run),
)
LOGS = Suite(
    name="engine_logs",
    engine="llama.cpp",
    title=mark("Public logs of llama.cpp, Ollama, SGLang and TensorRT-LLM"),
    what=mark("Figures that users posted, to the digits that were printed."),
    evidence=Evidence.LOG,
    file="engine_logs",
    questions=_logs,
)
