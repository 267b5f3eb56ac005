"""What an SGLang server is asked to do: its flags by name, typed, bounded, with their defaults.

Releases read: 0.3.6, 0.4.1, 0.4.3.post2, 0.4.6.post5, 0.4.9.post6, 0.5.3, 0.5.6, 0.5.10, 0.5.15,
0.5.23 (https://github.com/sgl-project/sglang, python/sglang/srt).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.errors import Conflict, OutOfRange, Unknown, shown
from app.engines.setting_values import SettingValues, named_settings

OLDEST = (0, 3, 6)
NEWEST = (0, 5, 23)
# The last release of each series that had one after it.
_LAST_OF_SERIES = {(0, 3): 6, (0, 4): 10}
MAX_RANKS = 1024
MAX_TOKENS = 10**10
MAX_PAGE_TOKENS = 4096
MAX_GIB = 2.0**20
MIN_RATIO = 1e-4

KNOWN = (
    "version", "tp_size", "pp_size", "dp_size", "enable_dp_attention", "page_size",
    "mem_fraction_static", "max_total_tokens", "kv_cache_dtype", "dtype", "context_length",
    "free_before_load_gib", "free_after_load_gib", "swa_full_tokens_ratio",
    "disable_hybrid_swa_memory", "hybrid_kvcache_ratio", "mamba_full_memory_ratio",
    "max_mamba_cache_size", "mamba_ssm_dtype", "draft_layers", "nsa_raw_layout",
)  # fmt: skip
ALIASES = {
    "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size", "data_parallel_size": "dp_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementFormat:
    """A format of the pools: an element's bytes, and scale bytes for so many elements beside it."""

    printed: str
    element_bytes: Fraction
    scale_elements: int = 0

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of a row's payload."""
        return int(elements * self.element_bytes)

    def scale_bytes(self, elements: int) -> int:
        """Return the bytes of a row's scales, kept in a buffer of their own."""
        return elements // self.scale_elements if self.scale_elements else 0


FORMATS = {
    "bfloat16": ElementFormat(printed="torch.bfloat16", element_bytes=Fraction(2)),
    "float16": ElementFormat(printed="torch.float16", element_bytes=Fraction(2)),
    "float32": ElementFormat(printed="torch.float32", element_bytes=Fraction(4)),
    "fp8_e4m3": ElementFormat(printed="torch.float8_e4m3fn", element_bytes=Fraction(1)),
    "fp8_e5m2": ElementFormat(printed="torch.float8_e5m2", element_bytes=Fraction(1)),
    "mxfp8": ElementFormat(
        printed="torch.float8_e4m3fn", element_bytes=Fraction(1), scale_elements=32
    ),
    "fp4_e2m1": ElementFormat(
        printed="torch.float4_e2m1fn_x2", element_bytes=Fraction(1, 2), scale_elements=16
    ),
}
_FORMAT_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp8": "fp8_e4m3",
    "fp4": "fp4_e2m1", "torch.bfloat16": "bfloat16", "torch.float16": "float16",
    "torch.float32": "float32",
}  # fmt: skip

_STATE_FORMATS = ("float32", "bfloat16", "float16")

# The share of the memory that was free before the load, by tensor ranks, up to 0.4.6
# (server_args.py). Later releases derive it from batch sizes and the card.
_OLD_FRACTIONS = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked settings; None where a rule decides later."""

    version: tuple[int, ...]
    tensor_ranks: int
    pipeline_ranks: int
    attention_ranks: int
    page_tokens: int | None
    static_fraction: float | None
    most_tokens: int | None
    kv_format: str | None
    model_format: str | None
    context_tokens: int | None
    free_before_gib: float | None
    free_after_gib: float | None
    window_ratio: float
    one_pool: bool
    chunk_ratio: float | None
    state_ratio: float
    state_slots: int | None
    state_format: str
    draft_layers: int
    raw_latent: bool

    @property
    def version_text(self) -> str:
        """Return the release as it is written."""
        text = ".".join(map(str, self.version[:3]))
        post = self.version[3:]
        return f"{text}.post{post[0]}" if post else text


def format_named(name: object, field: str) -> str:
    """Return the key of a format in FORMATS.

    Raises:
        Unknown: for any other name.

    """
    if isinstance(name, str):
        text = name.strip().lower()
        text = _FORMAT_NAMES.get(text, text)
        if text in FORMATS:
            return text
    raise Unknown("{field} must be one of {known}, got {value}", field=field,
                  known=", ".join(FORMATS), value=shown(name))  # fmt: skip


def version_named(name: object) -> tuple[int, ...]:
    """Return a release as numbers, the newest known for None.

    Raises:
        Unknown: for what is no release, or one that was never made.
        OutOfRange: for a release older or newer than those that were read.

    """
    if name is None:
        return NEWEST
    match = re.fullmatch(
        r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:\.post(\d{1,4}))?",
        name if isinstance(name, str) else "",
    )
    if match is None:
        raise Unknown("{field} must be a release such as 0.5.23, got {value}", field="version",
                      value=shown(name))  # fmt: skip
    version = tuple(int(part) for part in match.groups() if part is not None)
    if not OLDEST <= version[:3] <= NEWEST:
        raise OutOfRange(
            "{field} must be between {low} and {high}, got {value}",
            field="version",
            low=".".join(map(str, OLDEST)),
            high=".".join(map(str, NEWEST)),
            value=shown(name),
        )
    last = _LAST_OF_SERIES.get((version[0], version[1]))
    if last is not None and version[2] > last:
        raise Unknown("{field} {value} is no release: the last of its series is {last}",
                      field="version", value=shown(name),
                      last=".".join(map(str, (*version[:2], last))))  # fmt: skip
    return version


def read_settings(given: Mapping[str, object]) -> Settings:
    """Return the settings, each checked.

    Raises:
        Unknown: for a setting, release or format that is not known.
        WrongType, OutOfRange: for a value of the wrong type or out of its bounds.
        Conflict: for settings that contradict each other.

    """
    values = named_settings(given, KNOWN, ALIASES)
    version = version_named(values.values.get("version"))
    tensor = _count(values, "tp_size", 1)
    fraction = None
    if values.has("mem_fraction_static"):
        fraction = values.number("mem_fraction_static", low=0.0, high=1.0, default=0.0)
    elif version[:3] <= (0, 4, 6):
        fraction = next(share for ranks, share in _OLD_FRACTIONS if tensor >= ranks)
    kv_name = values.values.get("kv_cache_dtype", "auto")
    dtype = values.values.get("dtype", "auto")
    return Settings(
        version=version,
        tensor_ranks=tensor,
        pipeline_ranks=_count(values, "pp_size", 1),
        attention_ranks=_attention_ranks(values, tensor),
        page_tokens=values.integer("page_size", low=1, high=MAX_PAGE_TOKENS),
        static_fraction=fraction,
        most_tokens=values.integer("max_total_tokens", low=1, high=MAX_TOKENS),
        kv_format=None if kv_name == "auto" else format_named(kv_name, "kv_cache_dtype"),
        model_format=None if dtype == "auto" else format_named(dtype, "dtype"),
        context_tokens=values.integer("context_length", low=1, high=MAX_TOKENS),
        free_before_gib=_gib(values, "free_before_load_gib"),
        free_after_gib=_gib(values, "free_after_load_gib"),
        window_ratio=values.number("swa_full_tokens_ratio", low=MIN_RATIO, high=1.0, default=0.8),
        one_pool=values.boolean("disable_hybrid_swa_memory", default=False),
        chunk_ratio=None if not values.has("hybrid_kvcache_ratio")
        else values.number("hybrid_kvcache_ratio", low=0.0, high=1.0, default=0.0),
        state_ratio=values.number("mamba_full_memory_ratio", low=0.0, high=1e6, default=0.9),
        state_slots=values.integer("max_mamba_cache_size", low=1, high=MAX_TOKENS),
        state_format=values.choice("mamba_ssm_dtype", _STATE_FORMATS, "float32"),
        draft_layers=_count(values, "draft_layers", 0),
        raw_latent=values.boolean("nsa_raw_layout", default=False),
    )  # fmt: skip


def _count(values: SettingValues, name: str, default: int) -> int:
    value = values.integer(name, low=min(default, 1), high=MAX_RANKS)
    return default if value is None else value


def _gib(values: SettingValues, name: str) -> float | None:
    if not values.has(name):
        return None
    return values.number(name, low=0.0, high=MAX_GIB, default=0.0)


def _attention_ranks(values: SettingValues, tensor: int) -> int:
    """Return the ranks that divide the heads: with attention data parallel, tp / dp of them."""
    data = _count(values, "dp_size", 1)
    if not values.boolean("enable_dp_attention", default=False):
        return tensor
    if tensor % data:
        raise Conflict("{field} {dp} does not divide tp_size {tp}", field="dp_size", dp=data,
                       tp=tensor)  # fmt: skip
    return tensor // data
