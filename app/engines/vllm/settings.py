"""The engine's settings, named as its own flags, checked once and bounded.

A name that is not listed here is refused; what is left out takes the value that the release itself
takes, and is named in the plan's assumptions where the figures depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.errors import Conflict, OutOfRange, Unknown, WrongType, shown
from app.engines.setting_values import own_names
from app.engines.vllm.versions import NEWEST, Release, release

MAX_RANKS = 4096
# Each stage is a row of the answer, and a server of its own in the engine.
MAX_STAGES = 1024
MAX_LENGTH = 2**31 - 1
MAX_BLOCK_SIZE = 2**20
MAX_BLOCKS = 2**40
MAX_BYTES = 2**53

# Formats of --kv-cache-dtype and the first release that has each.
KV_CACHE_DTYPES: Mapping[str, tuple[int, ...]] = {
    "auto": (0,), "float16": (0, 14), "bfloat16": (0, 11), "fp8": (0,), "fp8_e4m3": (0,),
    "fp8_e5m2": (0,), "fp8_inc": (0, 9), "fp8_ds_mla": (0, 11), "nvfp4_ds_mla": (0, 30),
    "nvfp4": (0, 20), "int8_per_token_head": (0, 20), "fp8_per_token_head": (0, 20),
    "int4_per_token_head": (0, 25), "turboquant_k8v4": (0, 20), "turboquant_4bit_nc": (0, 20),
    "turboquant_k3v4_nc": (0, 20), "turboquant_3bit_nc": (0, 20),
}  # fmt: skip
MODEL_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")
MAMBA_MODES = ("none", "align", "all")
SPECULATIVE_METHODS = ("mtp", "ngram")
# Compute capabilities, by which attention backends are chosen, and the majors that differ.
AMPERE, HOPPER, BLACKWELL, BLACKWELL_RTX = 8, 9, 10, 12
ASSUMED_CAPABILITY = 90
CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")

NAMES = frozenset({
    "async_scheduling", "block_size", "data_parallel_size", "decode_context_parallel_size",
    "device_capability", "disable_hybrid_kv_cache_manager", "dtype", "enable_prefix_caching",
    "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes", "layers_per_stage",
    "mamba_cache_dtype", "mamba_cache_mode", "mamba_ssm_cache_dtype", "max_model_len",
    "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override", "num_speculative_tokens",
    "pipeline_parallel_size", "speculative_method", "swap_space", "tensor_parallel_size",
    "version",
})  # fmt: skip
# Its short flags -tp, -pp, -dp and -dcp (vLLM 0.33.0 engine/arg_utils.py).
ALIASES: Mapping[str, str] = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """All settings; None stands for what the release takes when the flag is left out.

    `max_model_len` is None for the model's own, -1 for what fits. `capability` is the device's
    compute capability times ten. `layers_per_stage` is VLLM_PP_LAYER_PARTITION.
    """

    release: Release
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    data_parallel: int = 1
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: Fraction | None = None
    kv_cache_memory_bytes: int | None = None
    blocks_override: int | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    speculative_method: str | None = None
    mamba_cache_mode: str | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    layers_per_stage: tuple[int, ...] | None = None
    capability: int | None = None
    swap_space_gib: int = 4

    @property
    def device_major(self) -> int:
        """The major compute capability; Hopper's where none is named."""
        return (self.capability or ASSUMED_CAPABILITY) // 10


def read_settings(settings: Mapping[str, object]) -> VllmSettings:
    """Return the checked settings.

    Raises:
        Unknown: for a setting, version, format or method that is not known.
        WrongType, OutOfRange: for a value of another type or outside its bounds.
        Conflict: for settings that contradict each other or the version.

    """
    settings = own_names(settings, ALIASES)
    for name in settings:
        if name not in NAMES:
            raise Unknown(
                "{field} is not a setting of this engine; known are {known}",
                field=shown(name) if not isinstance(name, str) else name[:60],
                known=", ".join(sorted(NAMES)),
            )
    read = _Reader(settings)
    found = VllmSettings(
        release=release(settings.get("version", NEWEST)),
        tensor_parallel=read.integer("tensor_parallel_size", 1, MAX_RANKS) or 1,
        pipeline_parallel=read.integer("pipeline_parallel_size", 1, MAX_STAGES) or 1,
        context_parallel=read.integer("decode_context_parallel_size", 1, MAX_RANKS) or 1,
        data_parallel=read.integer("data_parallel_size", 1, MAX_RANKS) or 1,
        kv_cache_dtype=read.word("kv_cache_dtype", tuple(KV_CACHE_DTYPES)) or "auto",
        dtype=read.word("dtype", MODEL_DTYPES) or "auto",
        block_size=read.integer("block_size", 1, MAX_BLOCK_SIZE),
        max_model_len=read.length(),
        max_num_batched_tokens=read.integer("max_num_batched_tokens", 1, MAX_LENGTH),
        max_num_seqs=read.integer("max_num_seqs", 1, 2**20),
        gpu_memory_utilization=read.share("gpu_memory_utilization"),
        kv_cache_memory_bytes=read.integer("kv_cache_memory_bytes", 0, MAX_BYTES),
        blocks_override=read.integer("num_gpu_blocks_override", 1, MAX_BLOCKS),
        prefix_caching=read.flag("enable_prefix_caching"),
        async_scheduling=read.flag("async_scheduling"),
        hybrid_manager=not read.flag("disable_hybrid_kv_cache_manager"),
        speculative_tokens=read.integer("num_speculative_tokens", 0, 1024) or 0,
        speculative_method=read.word("speculative_method", SPECULATIVE_METHODS),
        mamba_cache_mode=read.word("mamba_cache_mode", MAMBA_MODES),
        mamba_cache_dtype=read.word("mamba_cache_dtype", STATE_DTYPES) or "auto",
        mamba_ssm_cache_dtype=read.word("mamba_ssm_cache_dtype", STATE_DTYPES) or "auto",
        layers_per_stage=read.partition(),
        capability=read.capability(),
        swap_space_gib=read.integer("swap_space", 0, 2**20, otherwise=4) or 0,
    )
    _check_together(found)
    if found.speculative_method is not None and settings.get("num_speculative_tokens") == 0:
        raise Conflict(
            "{field}: {method} speculates by 1 token at least, got 0",
            field="num_speculative_tokens",
            method=found.speculative_method,
        )
    return found


def _check_together(settings: VllmSettings) -> None:
    first = KV_CACHE_DTYPES[settings.kv_cache_dtype]
    if not settings.release.since(*first):
        raise Conflict(
            "{field}: {value} is not a format of vLLM {release}",
            field="kv_cache_dtype",
            value=settings.kv_cache_dtype,
            release=settings.release.name,
        )
    if settings.tensor_parallel % settings.context_parallel:
        raise Conflict(
            "{field} must divide tensor_parallel_size ({ranks}), got {value}",
            field="decode_context_parallel_size",
            ranks=settings.tensor_parallel,
            value=settings.context_parallel,
        )
    if settings.context_parallel > 1 and not settings.release.shards_context:
        raise Conflict(
            "{field}: vLLM {release} has no decode context parallelism",
            field="decode_context_parallel_size",
            release=settings.release.name,
        )
    if settings.mamba_cache_mode == "all" and settings.release.since(0, 32):
        raise Conflict("{field}: the mode all was removed in vLLM 0.32.0", field="mamba_cache_mode")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to the settings as given."""

    raw: Mapping[str, object]

    def integer(self, name: str, low: int, high: int, otherwise: int | None = None) -> int | None:
        value = self.raw.get(name)
        return otherwise if value is None else checked_int(value, name, low=low, high=high)

    def flag(self, name: str) -> bool | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise WrongType(
                "{field} must be true or false, got {value}", field=name, value=shown(value)
            )
        return value

    def word(self, name: str, known: tuple[str, ...]) -> str | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise WrongType("{field} must be a string, got {value}", field=name, value=shown(value))
        if value not in known:
            raise Unknown(
                "{field} {value} is not known; known are {known}",
                field=name,
                value=shown(value),
                known=", ".join(known),
            )
        return value

    def share(self, name: str) -> Fraction | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
            raise WrongType("{field} must be a number, got {value}", field=name, value=shown(value))
        # A NaN is in no interval.
        if not 0 < value <= 1:
            raise OutOfRange(
                "{field} must be above 0 and at most 1, got {value}", field=name, value=shown(value)
            )
        return Fraction(str(value)) if isinstance(value, float) else Fraction(value)

    def length(self) -> int | None:
        value = self.raw.get("max_model_len")
        if value in ("auto", -1) and not isinstance(value, bool):
            return -1
        if value is None:
            return None
        return checked_int(value, "max_model_len", low=1, high=MAX_LENGTH)

    def partition(self) -> tuple[int, ...] | None:
        value = self.raw.get("layers_per_stage")
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_STAGES:
            raise WrongType(
                "{field} must be a list of at most {high} numbers",
                field="layers_per_stage",
                high=MAX_STAGES,
            )
        return tuple(
            checked_int(count, ("layers_per_stage", index), low=0, high=10_000)
            for index, count in enumerate(value)
        )

    def capability(self) -> int | None:
        word = self.word("device_capability", CAPABILITIES)
        return None if word is None else int(word.replace(".", ""))
