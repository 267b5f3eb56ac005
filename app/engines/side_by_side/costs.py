"""What rows are made of: formats by engine, the need, what a request takes beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from app.domain.dtypes import DTYPES, DType
from app.domain.errors import Unsupported
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.per_token import shape_of
from app.domain.request_bytes import effective_bytes
from app.domain.state import ModelState
from app.domain.units import bytes_text
from app.engines.head_split import language_model_of
from app.engines.llama_cpp.settings import GGML_CACHE_TYPES
from app.engines.request_cost import Growth, RequestCost
from app.engines.side_by_side.values import Excess, Question

# How each engine names a format of the cache; left out where it has no such format.
_FORMATS: Mapping[str, Mapping[str, str]] = {
    "vllm": {"fp8": "fp8", "fp16": "float16", "bf16": "bfloat16", "nvfp4": "nvfp4"},
    "sglang": {
        "fp8": "fp8_e4m3", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
        "mxfp8": "mxfp8", "nvfp4": "fp4_e2m1",
    },
    "tensorrt_llm": {
        "fp8": "fp8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "int8": "int8",
        "nvfp4": "nvfp4",
    },
    "llama_cpp": {ours: printed for printed, ours in GGML_CACHE_TYPES.items()},
}  # fmt: skip


def slope_of(cost: RequestCost) -> Fraction:
    """Return the exact bytes of one more token in the parts that never stop growing."""
    growing = (part for part in cost.parts if part.most_entries is None)
    return sum(
        (Fraction(part.bytes_per_entry, part.tokens_per_entry) for part in growing), Fraction(0)
    )


def need_formats(question: Question) -> KvFormats:
    """Return the format of the model's own need: as asked, the config's, or 16 bits."""
    if question.key is not None:
        return KvFormats.same(question.key, question.value)
    config = question.model.config
    for part in (config, language_model_of(config)):
        name = part.get("dtype") or part.get("torch_dtype")
        if name in ("float16", "bfloat16"):
            return KvFormats.same(DTYPES["fp16" if name == "float16" else "bf16"])
    return KvFormats.same(DTYPES["bf16"])


def format_settings(name: str, key: DType | None, value: DType | None) -> dict[str, object]:
    """Return the settings that give an engine's cache a format; `value` follows `key` where None.

    Raises:
        Unsupported: where the engine has no cache in it.

    """
    if key is None:
        return {}
    known = _FORMATS[name]
    for kind in (key, value or key):
        if kind.name not in known:
            raise Unsupported("{field}: this engine has no cache in {format}; it has {known}",
                              field="kv_dtype", format=kind.name,
                              known=", ".join(known))  # fmt: skip
    if name == "llama_cpp":
        pair = {"cache_type_k": key, "cache_type_v": value or key}
        return {setting: known[kind.name] for setting, kind in pair.items()}
    if value not in (None, key):
        raise Unsupported("{field}: this engine keeps keys and values in one format",
                          field="kv_dtype")  # fmt: skip
    return {"kv_cache_dtype": known[key.name]}


def stopped_at(question: Question, request_bytes: int, longest: int | None) -> Note:
    """Return why an engine does not start, and the longest request with which it would."""
    params: dict[str, object] = {
        "tokens": question.context_tokens,
        "needed": bytes_text(request_bytes),
        "available": bytes_text(question.available_bytes),
    }
    if not longest:
        return Note("does_not_start", "does not start: one request of {tokens} tokens takes"
                    " {needed}, and {available} are there", params)  # fmt: skip
    return Note("does_not_start", "does not start: one request of {tokens} tokens takes {needed},"
                " and {available} are there; the longest that fits is {longest} tokens",
                {**params, "longest": longest})  # fmt: skip


def growth_of(found: Growth) -> dict[str, object]:
    """Return a row's fixed part and slope, and the length from which they hold."""
    return {
        "still_bytes": found.fixed_bytes,
        "slope": found.slope,
        "holds_from_tokens": found.from_tokens,
    }


def costs_of(question: Question, cost: RequestCost) -> dict[str, object]:
    """Return the figures of a request whose parts are known."""
    return {
        **growth_of(cost.growth(question.context_tokens)),
        "request_bytes": cost.bytes_at(question.context_tokens),
        "lengths": tuple(
            (length, cost.bytes_at(length) if length <= question.context_tokens else None)
            for length in question.lengths
        ),
    }


def held_tokens(concurrency: Fraction | None, context_tokens: int) -> int | None:
    """Return what the whole memory holds of sequences of a length, in whole tokens."""
    return None if concurrency is None else int(concurrency * context_tokens)


def needed_bytes(question: Question, state: ModelState) -> int:
    """Return what the model itself needs for the longest request."""
    groups = shape_of(state, need_formats(question)).groups
    return effective_bytes(groups, question.context_tokens)


def beyond_need(request: int, need: int, *, windows_full: bool) -> tuple[Excess, ...]:
    """Return what a request takes beyond the need as one part, by its main cause."""
    beyond = request - need
    if not beyond:
        return ()
    if beyond < 0:
        text = "states or keys kept in a smaller format than the model's, or not at all"
        return (Excess(code="kept_smaller", bytes=beyond, text=text),)
    if windows_full:
        text = "windowed layers kept at full length, and the unused end of the last block"
        return (Excess(code="full_windows", bytes=beyond, text=text),)
    text = "whole pages or blocks, and states in the engine's own format"
    return (Excess(code="pages_and_states", bytes=beyond, text=text),)


def has_windows(state: ModelState) -> bool:
    """Return whether some layers see a bounded span only."""
    return bool({"sliding_window", "chunked_attention"} & state.kinds)
