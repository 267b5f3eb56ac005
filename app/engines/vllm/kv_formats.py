"""How vLLM stores keys and values for each --kv-cache-dtype, and which one a checkpoint asks for.

vLLM 0.33.0 utils/torch_utils.py (storage types, resolution from quantization_config) and the
backends' `customize_spec` (packed rows with their scales).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from app.domain.errors import Unsupported
from app.engines.vllm.specs import AttentionSpec, MlaSpec, SlidingMlaSpec

_STORAGE: Mapping[str, str] = {
    "float16": "float16", "bfloat16": "bfloat16", "fp8": "uint8", "fp8_e4m3": "uint8",
    "fp8_e5m2": "uint8", "fp8_inc": "float8_e4m3fn", "fp8_ds_mla": "uint8",
    "nvfp4_ds_mla": "uint8", "nvfp4": "uint8", "int8_per_token_head": "int8",
    "fp8_per_token_head": "uint8", "int4_per_token_head": "uint8", "turboquant_k8v4": "uint8",
    "turboquant_4bit_nc": "uint8", "turboquant_k3v4_nc": "uint8", "turboquant_3bit_nc": "uint8",
}  # fmt: skip

# Bytes of one stored latent with its scales: 512 fp8 values, 16 bytes of scales and 64 rotary
# values in bf16; 256 bytes of fp4 values, 32 of scales and 64 of rotary values in fp8.
PACKED_LATENT_BYTES: Mapping[str, int] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}

# Bits of a key and of a value; None stands for 8-bit keys kept without a norm.
_TURBOQUANT: Mapping[str, tuple[int | None, int]] = {
    "turboquant_k8v4": (None, 4), "turboquant_4bit_nc": (4, 4), "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}  # fmt: skip
_KEY_NORM_BYTES = 2
_VALUE_SCALE_BYTES = 4
_SCALES_BYTES = 8  # two fp32 scales for each token and head
_NVFP4_GROUP = 16
_FP8_BITS, _FP4_BITS = 8, 4

SpecT = TypeVar("SpecT", bound=AttentionSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormatChoice:
    """The format of the cache: its name in vLLM and the element it is stored as."""

    name: str
    element: str

    @property
    def is_turboquant(self) -> bool:
        """Whether keys and values are packed into one slot a head."""
        return self.name in _TURBOQUANT

    @property
    def is_fp8(self) -> bool:
        """Whether values are plain fp8 with a scale for the whole tensor."""
        return self.name.startswith("fp8") and not self.name.endswith(("per_token_head", "ds_mla"))

    def pack(self, spec: SpecT) -> SpecT:
        """Return the spec with this format's element, and its packed row where it has one."""
        spec = replace(spec, dtype=self.element, quant_mode=_mode(self.name), cache_dtype=self.name)
        if isinstance(spec, MlaSpec | SlidingMlaSpec):
            packed = PACKED_LATENT_BYTES.get(self.name)
            if (
                packed is None
                and self.name not in ("auto", "float16", "bfloat16")
                and not (self.is_fp8)
            ):
                raise Unsupported(
                    "{field}: vLLM has no latent cache in {value}",
                    field="kv_cache_dtype",
                    value=self.name,
                )
            return replace(spec, state_bytes=packed)
        if self.name in PACKED_LATENT_BYTES:
            raise Unsupported(
                "{field}: {value} is a format of latent caches alone",
                field="kv_cache_dtype",
                value=self.name,
            )
        if self.name.endswith("per_token_head"):
            divisor = 2 if self.name.startswith("int4") else 1
            size = spec.k_dim // divisor + spec.v_dim // divisor + _SCALES_BYTES
            return replace(spec, state_bytes=size)
        if self.name == "nvfp4":
            return _nvfp4(spec)
        if self.is_turboquant:
            return replace(spec, state_bytes=turboquant_slot_bytes(self.name, spec.k_dim))
        return spec


def _nvfp4(spec: SpecT) -> SpecT:
    if spec.k_dim != spec.v_dim:
        raise Unsupported(
            "{field}: vLLM has no nvfp4 cache for keys and values of different widths",
            field="kv_cache_dtype",
        )
    side = spec.k_dim // 2 + spec.k_dim // _NVFP4_GROUP
    return replace(spec, head_slots=2 * spec.kv_heads, state_bytes=side)


def turboquant_slot_bytes(name: str, dim: int) -> int:
    """Return the bytes of one head's packed key and value, rounded up to even.

    At a width of 128: 196, 134, 118 and 102 for the four presets.
    """
    key_bits, value_bits = _TURBOQUANT[name]
    key = dim if key_bits is None else -(-key_bits * dim // 8) + _KEY_NORM_BYTES
    size = key + -(-value_bits * dim // 8) + _VALUE_SCALE_BYTES
    return size + size % 2


def _mode(name: str) -> str:
    if name in ("auto", "float16", "bfloat16"):
        return "NONE"
    if name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"):
        return "FP8_PER_TENSOR"
    return name.upper()


def format_named(name: str, model_dtype: str) -> KvFormatChoice:
    """Return the format of that name; `auto` keeps the model's own type."""
    return KvFormatChoice(name=name, element=_STORAGE.get(name, model_dtype))


def format_of_checkpoint(config: Mapping[str, object]) -> str:
    """Return the format that a checkpoint's quantization_config switches on, or `auto`.

    ModelOpt checkpoints name it as kv_cache_quant_algo or as a kv_cache_scheme of 8 or 4 float
    bits; compressed-tensors ones by any kv_cache_scheme. Others say nothing of the cache.
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return "auto"
    method = _method(quantization)
    if method.startswith("modelopt"):
        return _modelopt(quantization)
    if method == "compressed-tensors" and quantization.get("kv_cache_scheme") is not None:
        return "fp8"
    return "auto"


def _method(quantization: Mapping[str, object]) -> str:
    inner = quantization.get("quantization")
    producer = quantization.get("producer")
    is_modelopt = isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    if is_modelopt and isinstance(inner, Mapping) and inner.get("quant_algo") is not None:
        return "modelopt"
    method = quantization.get("quant_method")
    return method.lower().replace("compressed_tensors", "compressed-tensors") if isinstance(
        method, str
    ) else ""  # fmt: skip


def _modelopt(quantization: Mapping[str, object]) -> str:
    nested = quantization.get("quantization")
    inner: Mapping[str, object] = nested if isinstance(nested, Mapping) else quantization
    found = (
        inner.get("kv_cache_scheme")
        or quantization.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or quantization.get("kv_cache_quant_algo")
    )
    if isinstance(found, Mapping):
        if found.get("type") != "float":
            return "auto"
        if found.get("num_bits") == _FP8_BITS and found.get("dynamic") is False:
            return "fp8_e4m3"
        return "nvfp4" if found.get("num_bits") == _FP4_BITS else "auto"
    if isinstance(found, str):
        return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(found.lower(), "auto")
    return "auto"
