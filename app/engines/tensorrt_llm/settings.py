"""TensorRT-LLM's settings by name, their bounds and defaults, and the formats of its cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.errors import Conflict, OutOfRange, Unknown, shown
from app.domain.notes import Note
from app.engines.head_split import language_model_of
from app.engines.setting_values import SettingValues, named_settings

OLDEST, NEWEST = (0, 5), (1, 3)
# The last release of the series that had another after it.
_LAST_OF_SERIES = {0: 21}
MAX_RANKS = 1024
MAX_TOKENS = 10**10
MAX_BLOCK_TOKENS = 1024
MAX_AVAILABLE_BYTES = 2**53
MAX_REQUESTS = 2**20
_MOST_WINDOWS = 10_000
_LEAST_SHARES = 1e-6
_BIG_BLOCKS_UNTIL = (0, 8)

KNOWN = (
    "version", "backend", "tokens_per_block", "free_gpu_memory_fraction", "max_tokens",
    "max_seq_len", "max_batch_size", "tp_size", "pp_size", "enable_attention_dp",
    "kv_cache_dtype", "indexer_k_dtype", "dtype", "max_attention_window", "window_size_shares",
    "sink_token_length", "host_cache_size", "cross_kv_cache_fraction", "draft_layers",
    "total_gpu_memory", "peak_memory", "temporary_kv_bytes", "max_gpu_total_bytes",
)  # fmt: skip
ALIASES = {
    "tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size",
    "kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction",
    "kv_cache_free_gpu_mem_fraction": "free_gpu_memory_fraction",
    "max_tokens_in_paged_kv_cache": "max_tokens",
}  # fmt: skip

_ELEMENT_BYTES = {
    "bfloat16": Fraction(2), "float16": Fraction(2), "float32": Fraction(4), "fp8": Fraction(1),
    "int8": Fraction(1),
    # Half a byte, and one fp8 scale for 16 elements.
    "nvfp4": Fraction(9, 16),
}  # fmt: skip
_DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
                "fp4": "nvfp4", "fp8_e4m3": "fp8"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings; None where nothing was given."""

    version: tuple[int, int]
    pytorch: bool
    block_tokens: int
    fraction: float
    most_tokens: int | None
    context_tokens: int | None
    requests: int
    tensor_ranks: int
    pipeline_ranks: int
    element: Fraction
    index_packed: bool
    windows: tuple[int, ...]
    window_shares: tuple[float, ...]
    sink_tokens: int
    host_bytes: int
    cross_fraction: float
    draft_layers: int
    card_bytes: int | None
    peak_bytes: int | None
    trial_bytes: int
    most_bytes: int | None

    @property
    def version_text(self) -> str:
        """Return the release as it is written."""
        return ".".join(map(str, self.version))


def version_named(name: object) -> tuple[int, int]:
    """Return a release as major and minor number, the newest known for None.

    Raises:
        Unknown: for what is no release, or one that was never made.
        OutOfRange: for a release older or newer than those that were read.

    """
    if name is None:
        return NEWEST
    text = name if isinstance(name, str) else ""
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(?:\.?(?:rc|post)\d{1,4})*", text)
    if match is None:
        raise Unknown("{field} must be a release such as 1.2.0, got {value}", field="version",
                      value=shown(name))  # fmt: skip
    version = (int(match[1]), int(match[2]))
    if not OLDEST <= version <= NEWEST:
        raise OutOfRange("{field} must be between {low} and {high}, got {value}", field="version",
                         low="0.5", high="1.3", value=shown(name))  # fmt: skip
    last = _LAST_OF_SERIES.get(version[0])
    if last is not None and version[1] > last:
        raise Unknown("{field} {value} is no release: the last of its series is {last}",
                      field="version", value=shown(name), last=f"{version[0]}.{last}")  # fmt: skip
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


def read_settings(
    given: Mapping[str, object], config: Mapping[str, object] | None, notes: list[Note]
) -> Settings:
    """Return the settings, each checked; what is taken for granted is noted.

    Raises:
        Unknown: for a setting, release or format that is not known.
        WrongType, OutOfRange: for a value of the wrong type or out of its bounds.
        Conflict: for settings that contradict each other.

    """
    values = named_settings(given, KNOWN, ALIASES)
    version = version_named(values.values.get("version"))
    pytorch = values.choice("backend", ("pytorch", "cpp"), "pytorch") == "pytorch"
    ranks = _positive(values, "tp_size", 1, MAX_RANKS)
    if values.boolean("enable_attention_dp", default=False):
        ranks = 1
    shares = values.numbers("window_size_shares", low=0.0, high=1.0, most=64)
    if shares and sum(shares) < _LEAST_SHARES:
        raise OutOfRange("{field} must not all be 0", field="window_size_shares")
    settings = Settings(
        version=version,
        pytorch=pytorch,
        block_tokens=_positive(
            values, "tokens_per_block", _default_block(version, pytorch=pytorch), MAX_BLOCK_TOKENS
        ),
        fraction=values.number("free_gpu_memory_fraction", low=0.0, high=1.0, default=0.9),
        most_tokens=values.integer("max_tokens", low=1, high=MAX_TOKENS),
        context_tokens=values.integer("max_seq_len", low=1, high=MAX_TOKENS) or _context(config),
        requests=_positive(values, "max_batch_size", 1, MAX_REQUESTS),
        tensor_ranks=ranks,
        pipeline_ranks=_positive(values, "pp_size", 1, MAX_RANKS),
        element=_element_bytes(values, config, notes),
        index_packed=values.choice("indexer_k_dtype", ("fp8", "fp4"), "fp8") == "fp4",
        windows=values.integers("max_attention_window", low=1, high=MAX_TOKENS, most=_MOST_WINDOWS),
        window_shares=shares,
        sink_tokens=values.integer("sink_token_length", low=0, high=MAX_TOKENS) or 0,
        host_bytes=_bytes(values, "host_cache_size") or 0,
        cross_fraction=values.number("cross_kv_cache_fraction", low=0.0, high=1.0, default=0.5),
        draft_layers=values.integer("draft_layers", low=0, high=MAX_RANKS) or 0,
        card_bytes=_bytes(values, "total_gpu_memory"),
        peak_bytes=_bytes(values, "peak_memory"),
        trial_bytes=_bytes(values, "temporary_kv_bytes") or 0,
        most_bytes=_bytes(values, "max_gpu_total_bytes"),
    )
    if (settings.card_bytes is None) != (settings.peak_bytes is None):
        raise Conflict("{field} and total_gpu_memory go together", field="peak_memory")
    return settings


def _positive(values: SettingValues, name: str, default: int, high: int) -> int:
    value = values.integer(name, low=1, high=high)
    return default if value is None else value


def _bytes(values: SettingValues, name: str) -> int | None:
    return values.integer(name, low=0, high=MAX_AVAILABLE_BYTES)


def _default_block(version: tuple[int, int], *, pytorch: bool) -> int:
    """Return the tokens of a block: 32 with PyTorch, 64 in built engines, 128 up to 0.8."""
    if version <= _BIG_BLOCKS_UNTIL:
        return 128
    return 32 if pytorch else 64


def _element_bytes(
    values: SettingValues, config: Mapping[str, object] | None, notes: list[Note]
) -> Fraction:
    """Return the bytes of an element of the cache: as set, or of the model's own format."""
    for field in ("kv_cache_dtype", "dtype"):
        name = values.values.get(field, "auto")
        if name != "auto":
            return _ELEMENT_BYTES[format_named(name, field)]
    for part in _parts(config):
        name = part.get("dtype") or part.get("torch_dtype")
        if isinstance(name, str):
            return _ELEMENT_BYTES[format_named(name, "dtype")]
    notes.append(Note("dtype_default", "16-bit elements, as the config names no dtype"))
    return _ELEMENT_BYTES["bfloat16"]


def _parts(config: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    """Return the config and the config of its language model, where there are such."""
    return [] if config is None else [config, language_model_of(config)]


def _context(config: Mapping[str, object] | None) -> int | None:
    """Return the context length that a config names, or None."""
    for part in _parts(config):
        value = part.get("max_position_embeddings")
        if type(value) is int and 0 < value <= MAX_TOKENS:
            return value
    return None
