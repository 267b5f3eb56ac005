"""Settings of one engine that say otherwise what the comparison sets for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.dtypes import DType
from app.domain.errors import Conflict, DomainError, shown
from app.engines.side_by_side.costs import format_settings
from app.engines.side_by_side.values import Question, Settings
from app.engines.transformers.settings import TORCH_DTYPES

# Settings that name the longest request, of one or of all requests together.
_CONTEXT: Mapping[str, tuple[str, ...]] = {
    "vllm": ("max_model_len",),
    "llama_cpp": ("n_ctx", "num_ctx"),
    "sglang": ("context_length",),
    "tensorrt_llm": ("max_seq_len",),
    "transformers": ("max_cache_len",),
}
# Settings that name the memory for the cache.
_MEMORY: Mapping[str, tuple[str, ...]] = {
    "vllm": ("kv_cache_memory_bytes",),
    "sglang": ("free_before_load_gib", "free_after_load_gib"),
    "tensorrt_llm": ("total_gpu_memory", "peak_memory"),
}
# Settings by which a row's requests are made: one, and then as many as fit.
_REQUESTS: Mapping[str, tuple[str, ...]] = {
    "llama_cpp": ("n_seq_max", "num_parallel"),
    "transformers": ("prompt_tokens", "decode_steps", "batch"),
}


# A null for one of these, for a rank or for the version leaves it as the question has it.
_FORMAT_NAMES = ("kv_cache_dtype", "cache_type_k", "cache_type_v", "kv_cache_type", "dtype")


def agreeing(
    engine: str, given: Settings, question: Question, ranks: Mapping[str, str]
) -> dict[str, object]:
    """Return the settings without those that only repeat the question.

    `given` are under the engine's own names, `ranks` what it calls the question's ranks. All that
    contradict the question are refused, so that every row answers the same one.

    Raises:
        Conflict: naming the setting and the question's own field.

    """
    asked: dict[str, tuple[str, object]] = {
        **dict.fromkeys(_CONTEXT[engine], ("context_tokens", question.context_tokens)),
        **dict.fromkeys(_MEMORY.get(engine, ()), ("available_bytes", question.available_bytes)),
        **{ranks[kind]: (kind, count) for kind, count in question.ranks.items() if kind in ranks},
    }
    for name, (other, value) in asked.items():
        _same(name, given, other, value)
    for name in _REQUESTS.get(engine, ()):
        if given.get(name) is not None:
            raise Conflict("{field} is chosen here: one request of context_tokens, then as many as"
                           " fit", field=name)  # fmt: skip
    _check_formats(engine, given, question)
    unset = {*ranks.values(), *_FORMAT_NAMES, "version"}
    return {
        name: value
        for name, value in given.items()
        if name not in asked and not (value is None and name in unset)
    }


def _same(name: str, given: Settings, other: str, asked: object) -> None:
    value = given.get(name)
    if value is None or value == asked:
        return
    raise Conflict(
        "{field} {value} contradicts {other} {asked}, which holds for every engine",
        field=name,
        value=shown(value),
        other=other,
        asked=asked,
    )


def _check_formats(engine: str, given: Settings, question: Question) -> None:
    """Refuse a format of the cache beside the question's own."""
    key, value = question.key, question.value
    if key is None:
        return
    asked = key.name if value is None or value == key else f"{key.name}/{value.name}"
    for name, same in _formats_of(engine, key, value or key).items():
        if given.get(name) not in same:
            _same(name, given, "kv_dtype", asked)


def _formats_of(engine: str, key: DType, value: DType) -> Mapping[str, tuple[str, ...]]:
    """Return the settings that name a format of the cache, with the names of the one asked for."""
    if engine == "transformers":
        return {"dtype": (key.name, TORCH_DTYPES.get(key.name, key.name))}
    try:
        own = format_settings(engine, key, value)
    except DomainError:
        own = {}  # the row will be refused for the format, whatever else is set
    if engine == "llama_cpp":
        both = (key.name, str(own.get("cache_type_k"))) if key == value else ()
        return {
            "cache_type_k": (key.name, str(own.get("cache_type_k"))),
            "cache_type_v": (value.name, str(own.get("cache_type_v"))),
            "kv_cache_type": both,
        }
    return {"kv_cache_dtype": (key.name, str(own.get("kv_cache_dtype")))}
