"""Any engine's log explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.notes import Note
from app.engines.logs.arguments import Arguments, model_names, read_arguments
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
from app.engines.logs.vllm.explain import explain_vllm
from app.engines.model import EngineModel

_GGUF_ENGINES = ("llama_cpp", "ollama")
_MODEL_FIELDS = ("model", "model_path", "model_tag", "served_model_name")


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
    names = model_names(opened.arguments, _MODEL_FIELDS)
    if opened.engine not in _GGUF_ENGINES:
        return names
    return [] if describes_model(opened.text) else [*names, *names_in(opened.text)]


def explain(
    opened: OpenedLog,
    model: EngineModel | None,
    settings: Mapping[str, object],
    wish: Wish | None = None,
) -> Explained:
    """Return a log explained; without a model only what its lines show of each other.

    Raises:
        DomainError: for one of `settings` that is wrong, naming it.

    """
    wish = wish or Wish()
    if opened.engine == "vllm":
        return explain_vllm(opened.text, opened.arguments, model, settings, wish)
    if opened.engine == "llama_cpp":
        return explain_llama_cpp(opened.text, opened.arguments, model, settings, wish)
    if opened.engine == "sglang":
        return explain_sglang(opened.text, opened.arguments, model, settings, wish)
    if opened.engine == "tensorrt_llm":
        return explain_tensorrt_llm(opened.text, opened.arguments, model, settings)
    if opened.engine == "ollama":
        return explain_ollama(opened.text, opened.arguments, model, settings)
    return explain_out_of_memory(opened.text) or Explained(
        engine=None,
        missing=(
            Note(
                "unknown_engine",
                "no line has the form of an engine that is known here: vLLM,"
                " llama.cpp, Ollama, SGLang, TensorRT-LLM",
            ),
        ),
    )
