"""TensorRT-LLM's settings by name, their bounds and defaults, and the formats of its cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from app.domain.errors import OutOfRange, Unknown, shown
from app.domain.notes import Note
from app.engines.setting_values import SettingValues

OLDEST, NEWEST = (0, 5), (1, 3)
MAX_RANKS = 1024
MAX_TOKENS = 10**10
MAX_BLOCK_TOKENS = 1024
MAX_AVAILABLE_BYTES = 2**53

KNOWN = (
    "version", "backend", "tokens_per_block", "free_gpu_memory_fraction", "max_tokens",
    "max_seq_len", "max_batch_size", "tp_size", "pp_size", "kv_cache_dtype", "dtype",
    "max_attention_window", "window_size_shares", "sink_token_length", "host_cache_size",
    "cross_kv_cache_fraction", "draft_layers", "total_gpu_memory", "peak_memory",
    "temporary_kv_bytes",
)  # fmt: skip
ALIASES = {
    "tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
}  # fmt: skip

_ELEMENT_BYTES = {
    "bfloat16": Fraction(2), "float16": Fraction(2), "float32": Fraction(4), "fp8": Fraction(1),
    "int8": Fraction(1),
    # Half a byte, and one fp8 scale for 16 elements.
    "nvfp4": Fraction(9, 16),
}  # fmt: skip
_DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
                "fp4": "nvfp4", "fp8_e4m3": "fp8"}  # fmt: skip


def version_named(name: object) -> tuple[int, int]:
    """Return a release as major and minor number, the newest known for None.

    Raises:
        Unknown: for what is no release.
        OutOfRange: for a release older or newer than those that were read.

    """
    if name is None:
        return NEWEST
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+)?(?:rc\d+)?", name) if isinstance(
        name, str) else None  # fmt: skip
    if match is None:
        raise Unknown("{field} must be a release such as 1.2.0, got {value}", field="version",
                      value=shown(name))  # fmt: skip
    version = (int(match[1]), int(match[2]))
    if not OLDEST <= version <= NEWEST:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}", field="version",
                         low="0.5", high="1.3", value=shown(name))  # fmt: skip
    return version


def format_named(name: object, field: str) -> str:
    """Return the name of a cache format.

    Raises:
        Unknown: for any other name, listing those that are known.

    """
    text = name.strip().lower().removeprefix("torch.") if isinstance(name, str) else ""
    text = _DTYPE_NAMES.get(text, text)
    if text in _ELEMENT_BYTES:
        return text
    raise Unknown("{field} must be one of {known}, got {value}", field=field,
                  known=", ".join(_ELEMENT_BYTES), value=shown(name))  # fmt: skip


def element_bytes(
    values: SettingValues, config: Mapping[str, object] | None, notes: list[Note]
) -> Fraction:
    """Return the bytes of an element of the cache: as set, or of the model's own format."""
    for field in ("kv_cache_dtype", "dtype"):
        name = values.values.get(field, "auto")
        if name != "auto":
            return _ELEMENT_BYTES[format_named(name, field)]
    for part in (config, (config or {}).get("text_config")):
        if isinstance(part, Mapping):
            name = part.get("dtype") or part.get("torch_dtype")
            if isinstance(name, str):
                return _ELEMENT_BYTES[format_named(name, "dtype")]
    notes.append(Note("dtype_default", "16-bit elements, as the config names no dtype"))
    return _ELEMENT_BYTES["bfloat16"]


def windows_of(values: SettingValues, layers: int, context: int | None) -> list[int | None]:
    """Return each layer's window: the list given, repeated over the layers; none means full.

    A window as long as the context is no window.
    """
    given = values.integers("max_attention_window", low=1, high=MAX_TOKENS, most=10_000)
    if not given:
        return [None] * layers
    windows = [given[layer % len(given)] for layer in range(layers)]
    return [None if context is not None and size >= context else size for size in windows]


def positive(values: SettingValues, name: str, default: int, high: int) -> int:
    """Return a setting that is at least 1, or its default."""
    value = values.integer(name, low=1, high=high)
    return default if value is None else value


def default_block(version: tuple[int, int], backend: str) -> int:
    """Return the tokens of a block: 32 with PyTorch, 64 in built engines, 128 up to 0.8."""
    if version <= (0, 8):
        return 128
    return 32 if backend == "pytorch" else 64


def context_of(config: Mapping[str, object] | None) -> int | None:
    """Return the context length that a config names, or None."""
    for part in (config, (config or {}).get("text_config")):
        if isinstance(part, Mapping):
            value = part.get("max_position_embeddings")
            if type(value) is int and value > 0:
                return value
    return None
