"""What a run of Transformers is asked to do, and the bounds of each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.dtypes import dtype_named
from app.domain.errors import Conflict, Unknown, Unsupported, WrongType, shown
from app.domain.state import MAX_TOKENS
from app.engines.transformers.cache import Run
from app.engines.transformers.quantized import BACKENDS, BITS, Quantization

VERSION = "5.24.0"
CACHES = ("dynamic", "static", "quantized")
MAX_BATCH = 2**20

# The formats a model's activations, and so its cache, can have; by this project's names.
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
KNOWN = (
    "cache", "batch", "prompt_tokens", "decode_steps", "encoder_tokens", "max_cache_len", "dtype",
    "version", "generate", "backend", "nbits", "axis_key", "axis_value", "q_group_size",
    "residual_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`decode_steps` are forward passes after the prefill: generate(max_new_tokens=n) makes n − 1.

    Beams and returned sequences multiply the batch; padding is cached as tokens are. `dtype` is
    torch's name for the model's dtype, None to take the config's. `generate` asks for the cache
    that generate() returns, where it differs from what forward passes leave.
    """

    cache: str = "dynamic"
    batch: int = 1
    prompt_tokens: int
    decode_steps: int = 0
    encoder_tokens: int | None = None
    max_cache_len: int | None = None
    dtype: str | None = None
    generate: bool = False
    quantization: Quantization | None = None

    def run(self, *, dtype: str, encoder_tokens: int | None) -> Run:
        """Return the run that these settings describe."""
        static = None
        if self.cache == "static":
            static = self.max_cache_len or self.prompt_tokens + self.decode_steps
        return Run(
            batch=self.batch,
            prompt_tokens=self.prompt_tokens,
            decode_steps=self.decode_steps,
            dtype=dtype,
            static_tokens=static,
            encoder_tokens=encoder_tokens,
        )


def torch_dtype(name: object, *, field: str = "dtype") -> str:
    """Return torch's name of a dtype that a model can run in.

    Raises:
        Unknown: for a name that is no format.
        Unsupported: for a format that activations never have (fp8, block formats).

    """
    known = dtype_named(name, field=field)
    if known.name not in TORCH_DTYPES:
        raise Unsupported(
            "{field} {value} is no dtype that a model computes in; its cache is float32, bfloat16 "
            "or float16",
            field=field,
            value=known.name,
        )
    return TORCH_DTYPES[known.name]


def read_settings(given: Mapping[str, object]) -> Settings:
    """Return the settings, each checked.

    Raises:
        Unknown: for a setting or value that is not known.
        WrongType, OutOfRange: for a number that is none or out of its bounds.
        Conflict: for a static length on a cache that grows.

    """
    for name in given:
        if name not in KNOWN:
            raise Unknown("{field} is no setting of this engine; known are {known}",
                          field=str(name)[:60], known=", ".join(KNOWN))  # fmt: skip
    cache = given.get("cache", "dynamic")
    if cache not in CACHES:
        raise Unknown("{field} must be dynamic, static or quantized, got {value}",
                      field="cache", value=shown(cache))  # fmt: skip
    version = given.get("version", VERSION)
    if version not in (VERSION, "5.24"):
        raise Unsupported("{field} {value} is not modelled; {known} is",
                          field="version", value=shown(version), known=VERSION)  # fmt: skip
    length = _optional(given, "max_cache_len", low=1)
    if length is not None and cache != "static":
        raise Conflict("{field} is a static cache's; others grow", field="max_cache_len")
    generate = given.get("generate", False)
    if not isinstance(generate, bool):
        raise WrongType("{field} must be true or false, got {value}",
                        field="generate", value=shown(generate))  # fmt: skip
    dtype = given.get("dtype")
    return Settings(
        cache=str(cache),
        batch=checked_int(given.get("batch", 1), "batch", low=1, high=MAX_BATCH),
        prompt_tokens=checked_int(
            given.get("prompt_tokens", 1), "prompt_tokens", low=1, high=MAX_TOKENS
        ),
        decode_steps=checked_int(
            given.get("decode_steps", 0), "decode_steps", low=0, high=MAX_TOKENS
        ),
        encoder_tokens=_optional(given, "encoder_tokens", low=0),
        max_cache_len=length,
        dtype=None if dtype is None else torch_dtype(dtype),
        generate=generate,
        quantization=_quantization(given, quantized=cache == "quantized"),
    )


def _quantization(given: Mapping[str, object], *, quantized: bool) -> Quantization | None:
    names = ("backend", "nbits", "axis_key", "axis_value", "q_group_size", "residual_length")
    if not quantized:
        for name in names:
            if given.get(name) is not None:
                raise Conflict("{field} is a quantized cache's", field=name)
        return None
    backend = given.get("backend", "quanto")
    if backend not in BACKENDS:
        raise Unknown("{field} must be quanto, hqq or fp8, got {value}",
                      field="backend", value=shown(backend))  # fmt: skip
    how = Quantization(
        backend=str(backend),
        nbits=checked_int(given.get("nbits", 8 if backend == "fp8" else 4), "nbits", low=1, high=8),
        axis_key=checked_int(given.get("axis_key", 0), "axis_key", low=0, high=1),
        axis_value=checked_int(given.get("axis_value", 0), "axis_value", low=0, high=1),
        q_group_size=checked_int(given.get("q_group_size", 64), "q_group_size", low=1, high=2**20),
        residual_length=checked_int(
            given.get("residual_length", 128), "residual_length", low=0, high=MAX_TOKENS
        ),
    )
    if how.nbits not in BITS[how.backend]:
        raise Unsupported("{field} {value} is no width of {backend}; it has {known}",
                          field="nbits", value=how.nbits, backend=how.backend,
                          known=", ".join(map(str, BITS[how.backend])))  # fmt: skip
    if how.backend == "quanto" and (how.axis_key or how.axis_value):
        raise Unsupported("{field}: quanto quantises along axis 0 here", field="axis_key")
    return how


def _optional(given: Mapping[str, object], name: str, *, low: int) -> int | None:
    value = given.get(name)
    return None if value is None else checked_int(value, name, low=low, high=MAX_TOKENS)
