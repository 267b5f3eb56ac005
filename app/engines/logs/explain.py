"""Any engine's log explained."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from app.domain.errors import Conflict
from app.domain.notes import Note
from app.engines.known import ENGINES
from app.engines.llama_cpp.settings import read_settings as llama_cpp_settings
from app.engines.logs.arguments import MODEL_FIELDS, Arguments, model_names, read_arguments
from app.engines.logs.kinds import engine_of
from app.engines.logs.llama_cpp.explain import explain_llama_cpp
from app.engines.logs.llama_cpp.model import describes_model, names_in
from app.engines.logs.ollama import explain_ollama
from app.engines.logs.out_of_memory import explain_out_of_memory
from app.engines.logs.result import Explained
from app.engines.logs.sglang import explain_sglang
from app.engines.logs.tensorrt_llm import explain_tensorrt_llm
from app.engines.logs.text import LogText
from app.engines.logs.vllm.advice import Wish
from app.engines.logs.vllm.explain import ModelOf, explain_vllm
from app.engines.model import EngineModel
from app.engines.sglang.settings import read_settings as sglang_settings
from app.engines.tensorrt_llm.settings import read_settings as tensorrt_llm_settings
from app.engines.vllm.settings import read_settings as vllm_settings

_NO_ENGINE = Note(
    "unknown_engine",
    "no line has the form of an engine that is known here: vLLM, llama.cpp, Ollama, SGLang,"
    " TensorRT-LLM",
)
_UNCHECKED = Note(
    "settings_unchecked",
    "the settings are not checked: whose they are shows in no line, so choose the engine",
)
# Ollama starts llama.cpp, whose lines then stand in its log.
_KIN = {
    "ollama": ("ollama", "llama_cpp"), "llama_cpp": ("ollama", "llama_cpp"), "vllm": ("vllm",),
    "sglang": ("sglang",), "tensorrt_llm": ("tensorrt_llm",),
}  # fmt: skip
_GGUF_ENGINES = ("llama_cpp", "ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A log made ready once: who wrote it, and the arguments that it shows."""

    text: LogText
    engine: str | None
    counts: Mapping[str, int]
    arguments: Arguments


def open_log(log: str, engine: str | None = None) -> OpenedLog:
    """Return a log made ready; `engine` goes before what its lines show."""
    text = LogText(log)
    found, counts = engine_of(text)
    return OpenedLog(
        text=text,
        engine=engine or found,
        counts=counts,
        arguments=read_arguments(text),
    )


def named_models(opened: OpenedLog) -> list[str]:
    """Return what the log names as its model, best first.

    Arguments and lines go before what a file calls itself. Where a log describes the layers of its
    file, no name is looked for: they are better known than any namesake's.
    """
    names = model_names(opened.arguments, MODEL_FIELDS)
    if opened.engine not in _GGUF_ENGINES:
        return names
    return [] if describes_model(opened.text) else [*names, *names_in(opened.text)]


def explain(
    opened: OpenedLog,
    model: EngineModel | None,
    settings: Mapping[str, object],
    wish: Wish | None = None,
    known_model: ModelOf | None = None,
) -> Explained:
    """Return a log explained; without a model only what its lines show of each other.

    `known_model` finds the model of a start that names another than the first; without it, every
    start is taken to be of `model`.

    Raises:
        DomainError: for one of `settings` that is wrong, naming it.

    """
    if opened.engine is not None:
        check_given(opened.engine, settings)
    found = _explained(opened, model, settings, wish or Wish(), known_model)
    others = [name for name in opened.counts if name not in _KIN.get(opened.engine or "", ())]
    if opened.engine is None or not others:
        return found
    return replace(found, remarks=(*found.remarks, _others_note(opened, others)))


def check_given(engine: str, given: Mapping[str, object]) -> None:
    """Check settings by themselves, whether or not anything is planned with them.

    What contradicts another setting is for the plan to say where the log may name that.

    Raises:
        DomainError: for a name, a type or a value that the engine does not take.

    """
    own = {name: value for name, value in given.items() if value is not None}
    if engine == "llama_cpp":
        llama_cpp_settings(own)
    with suppress(Conflict):
        if engine == "vllm":
            vllm_settings(own)
        elif engine == "sglang":
            sglang_settings(own)
        elif engine == "tensorrt_llm":
            tensorrt_llm_settings(own, None, [])
        elif engine == "ollama":
            llama_cpp_settings({"runner": "ollama-engine", **own})


def _others_note(opened: OpenedLog, others: list[str]) -> Note:
    titles = {known.name: known.title for known in ENGINES}
    return Note(
        "other_engines",
        "the log also has lines of {others}: only those of {engine} are explained; paste the others"
        " by themselves, or choose their engine",
        {
            "others": ", ".join(
                f"{titles.get(name, name.capitalize())} ({opened.counts[name]})" for name in others
            ),
            "engine": titles.get(opened.engine or "", (opened.engine or "").capitalize()),
        },
    )


_WISHED = {"llama_cpp": explain_llama_cpp, "sglang": explain_sglang}
_ALONE = {"tensorrt_llm": explain_tensorrt_llm, "ollama": explain_ollama}


def _explained(
    opened: OpenedLog,
    model: EngineModel | None,
    settings: Mapping[str, object],
    wish: Wish,
    known_model: ModelOf | None,
) -> Explained:
    """Return the answer of the engine that wrote the log."""
    text, arguments = opened.text, opened.arguments
    if opened.engine == "vllm":
        return explain_vllm(text, arguments, model, settings, wish, known_model)
    if opened.engine in _WISHED:
        return _WISHED[opened.engine](text, arguments, model, settings, wish)
    if opened.engine in _ALONE:
        return _ALONE[opened.engine](text, arguments, model, settings)
    found = explain_out_of_memory(opened.text) or Explained(engine=None, missing=(_NO_ENGINE,))
    if not settings:
        return found
    return replace(found, missing=(*found.missing, _UNCHECKED))
