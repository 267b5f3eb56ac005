"""What a llama.cpp context is asked to do: its flags by name, typed, bounded, with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.domain.dtypes import DType, dtype_named
from app.domain.errors import Conflict, Unknown, shown
from app.engines.llama_cpp.versions import Version, version_named
from app.engines.setting_values import SettingValues, named_settings

MAX_CONTEXT_TOKENS = 2**30
# LLAMA_MAX_SEQ in src/llama-cparams.h.
MAX_SEQUENCES = 256
MAX_ROLLBACK_STATES = 256
# GGML_CUDA_MAX_DEVICES is 16; RPC adds more.
MAX_DEVICES = 64
MAX_GPU_LAYERS = 2**20

DEFAULT_BATCH_TOKENS = 2048
DEFAULT_UBATCH_TOKENS = 512

# What --cache-type-k and --cache-type-v accept (common/arg.cpp), by this project's names.
GGML_CACHE_TYPES = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0",
    "q4_1": "q4_1", "iq4_nl": "iq4_nl", "q5_0": "q5_0", "q5_1": "q5_1",
}  # fmt: skip
FORK_CACHE_TYPES = GGML_CACHE_TYPES | {"q6_0": "q6_0"}


class Runner(StrEnum):
    """Which program lays out the cache."""

    LLAMA_CPP = "llama.cpp"
    SERVER = "llama-server"
    FORK = "ik_llama.cpp"
    OLLAMA = "ollama"
    OLLAMA_ENGINE = "ollama-engine"
    OLLAMA_ESTIMATE = "ollama-estimate"


class Flash(StrEnum):
    """Flash attention: decided by the engine, on or off."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


KNOWN = (
    "runner", "version", "n_ctx", "n_seq_max", "kv_unified", "flash_attn", "swa_full", "n_batch",
    "n_ubatch", "cache_type_k", "cache_type_v", "n_rs_seq", "context_type", "n_gpu_layers",
    "tensor_split", "devices", "split_mode", "main_gpu", "kv_offload", "mla", "num_ctx",
    "num_parallel", "num_batch", "kv_cache_type",
)  # fmt: skip
ALIASES = {
    "n_seq": "n_seq_max", "n_parallel": "n_seq_max", "parallel": "n_seq_max",
    "ctx_size": "n_ctx", "unified": "kv_unified", "fa": "flash_attn", "batch_size": "n_batch",
    "ubatch_size": "n_ubatch", "type_k": "cache_type_k", "type_v": "cache_type_v",
    "rs": "n_rs_seq", "ctx_type": "context_type", "mtp": "context_type",
    "ngl": "n_gpu_layers", "gpu_layers": "n_gpu_layers", "offload_kqv": "kv_offload",
}  # fmt: skip
_OLLAMA_ONLY = ("num_ctx", "num_parallel", "num_batch", "kv_cache_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """A cache's element type, with the name that llama.cpp prints for it."""

    printed: str
    dtype: DType


F16 = CacheType(printed="f16", dtype=dtype_named("fp16"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings; None where the engine's own rule decides later."""

    runner: Runner
    version: Version
    context_tokens: int | None
    sequences: int
    unified: bool
    flash: Flash | None
    full_windows: bool
    batch_tokens: int
    ubatch_tokens: int
    key_type: CacheType
    value_type: CacheType
    rollback_states: int
    drafts: bool
    gpu_layers: int | None
    split: tuple[float, ...]
    devices: tuple[str, ...]
    split_mode: str
    main_gpu: int
    offload: bool
    mla: int | None
    assumed_sequences: bool = False


def cache_type(name: object, field: str, known: Mapping[str, str]) -> CacheType:
    """Return the element type of that name.

    Raises:
        Unknown: for a type that the engine does not take, naming those it does.

    """
    own = {ours: printed for printed, ours in known.items()}
    text = name.strip().lower() if isinstance(name, str) else ""
    printed = text if text in known else own.get(text)
    if printed is None:
        raise Unknown("{field} must be one of {known}, got {value}", field=field,
                      known=", ".join(known), value=shown(name))  # fmt: skip
    return CacheType(printed=printed, dtype=dtype_named(known[printed]))


def read_settings(given: Mapping[str, object]) -> Settings:
    """Return the settings, each checked.

    Raises:
        Unknown: for a setting, version or word that is not known.
        WrongType, OutOfRange: for a value of the wrong type or out of its bounds.
        Conflict: for settings that contradict each other.

    """
    values = named_settings(given, KNOWN, ALIASES)
    runner = Runner(values.choice("runner", [item.value for item in Runner], Runner.LLAMA_CPP))
    ollama = runner in {Runner.OLLAMA, Runner.OLLAMA_ENGINE, Runner.OLLAMA_ESTIMATE}
    for name in _OLLAMA_ONLY:
        if values.has(name) and not ollama:
            raise Conflict("{field} is a setting of Ollama; this runner is {runner}",
                           field=name, runner=runner.value)  # fmt: skip
    version = version_named(values.values.get("version"))
    sequences, unified, assumed = _slots(values, runner, ollama=ollama)
    types = FORK_CACHE_TYPES if runner is Runner.FORK else GGML_CACHE_TYPES
    both = values.values.get("kv_cache_type", "f16")
    kind = values.values.get
    return Settings(
        runner=runner,
        version=version,
        context_tokens=_context(values, sequences, ollama=ollama),
        sequences=sequences,
        unified=unified,
        flash=_flash(values),
        full_windows=values.boolean("swa_full", default=False),
        batch_tokens=_batch(values, ollama=ollama),
        ubatch_tokens=_or(values.integer("n_ubatch", low=0, high=MAX_CONTEXT_TOKENS),
                          DEFAULT_UBATCH_TOKENS),
        key_type=cache_type(kind("cache_type_k", both), "cache_type_k", types),
        value_type=cache_type(kind("cache_type_v", both), "cache_type_v", types),
        rollback_states=_or(values.integer("n_rs_seq", low=0, high=MAX_ROLLBACK_STATES), 0),
        drafts=_drafts(values),
        gpu_layers=values.integer("n_gpu_layers", low=0, high=MAX_GPU_LAYERS),
        split=values.numbers("tensor_split", low=0.0, high=2.0**40, most=MAX_DEVICES),
        devices=values.texts("devices", most=MAX_DEVICES),
        split_mode=values.choice("split_mode", ("layer", "row", "none", "tensor"), "layer"),
        main_gpu=_or(values.integer("main_gpu", low=0, high=MAX_DEVICES - 1), 0),
        offload=values.boolean("kv_offload", default=True),
        mla=values.integer("mla", low=0, high=3),
        assumed_sequences=assumed,
    )  # fmt: skip


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _slots(values: SettingValues, runner: Runner, *, ollama: bool) -> tuple[int, bool, bool]:
    """Return how many sequences, whether they share one stream, and whether that was assumed.

    llama-server without -np takes four slots in one shared cache (since December 2025,
    tools/server/server.cpp); with an explicit -np each slot gets its own.
    """
    given = values.integer("n_seq_max", low=1, high=MAX_SEQUENCES)
    parallel = values.integer("num_parallel", low=1, high=MAX_SEQUENCES)
    if ollama:
        if given is not None and parallel is not None:
            raise Conflict("{field} and num_parallel name the same number", field="n_seq_max")
        return (
            _or(parallel, _or(given, 1)),
            values.boolean("kv_unified", default=False),
            False,
        )
    if runner is Runner.SERVER and given is None:
        return 4, values.boolean("kv_unified", default=True), True
    return _or(given, 1), values.boolean("kv_unified", default=False), False


def _context(values: SettingValues, sequences: int, *, ollama: bool) -> int | None:
    """Return the tokens of the whole context; 0 and nothing mean the model's trained length."""
    total = values.integer("n_ctx", low=0, high=MAX_CONTEXT_TOKENS)
    each = values.integer("num_ctx", low=1, high=MAX_CONTEXT_TOKENS // MAX_SEQUENCES)
    if ollama and each is not None:
        if total is not None:
            raise Conflict("{field} and num_ctx both name the context", field="n_ctx")
        return each * sequences
    return total or None


def _flash(values: SettingValues) -> Flash | None:
    if not values.has("flash_attn"):
        return None
    value = values.values["flash_attn"]
    if isinstance(value, bool) or type(value) is int:
        return Flash.ON if values.boolean("flash_attn", default=False) else Flash.OFF
    return Flash(values.choice("flash_attn", [item.value for item in Flash], Flash.AUTO))


def _batch(values: SettingValues, *, ollama: bool) -> int:
    given = values.integer("n_batch", low=1, high=MAX_CONTEXT_TOKENS)
    if given is None and ollama:
        return _or(values.integer("num_batch", low=1, high=MAX_CONTEXT_TOKENS), 512)
    return _or(given, DEFAULT_BATCH_TOKENS)


def _drafts(values: SettingValues) -> bool:
    """Return whether this is the context of the drafting (nextn) layers alone."""
    value = values.values.get("context_type", "default")
    if isinstance(value, bool) or type(value) is int:
        return values.boolean("context_type", default=False)
    return values.choice("context_type", ("default", "main", "mtp"), "default") == "mtp"
