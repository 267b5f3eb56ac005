"""QuantizedCache: what quanto, HQQ and FP8 leave of keys and values.

Transformers 5.24 cache_utils.py (QuantizedLayer and its kinds), measured with optimum-quanto and
hqq: tests/data/transformers_caches.json.gz. The prefill is quantised whole; later tokens collect in
full precision until there are `residual_length` of them, and then everything is quantised anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict, Unsupported
from app.domain.notes import Note
from app.engines.transformers.cache import (
    ELEMENT_BYTES,
    CacheLayer,
    HeldTensor,
    KeyValue,
    Run,
    held,
)

BACKENDS = ("quanto", "hqq", "fp8")
BITS = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
_NAMES = {
    "quanto": "QuantoQuantizedLayer",
    "hqq": "HQQQuantizedLayer",
    "fp8": "Fp8QuantizedLayer",
}
# HQQ packs ten 3-bit values into an int32, and whole bytes otherwise (hqq/core/bitpack.py).
_THREE_BITS, _PER_INT32, _BYTE_BITS = 3, 10, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The settings of a QuantizedCache, with its own defaults."""

    backend: str
    nbits: int = 4
    axis_key: int = 0
    axis_value: int = 0
    q_group_size: int = 64
    residual_length: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedKeyValue:
    """Quantised keys and values of a full-attention layer, and those not quantised yet."""

    rows: KeyValue
    how: Quantization

    def positions(self, run: Run) -> tuple[int, int]:
        """Return how many positions are quantised, and how many wait in full precision.

        The first token after a flush is only kept; from the second on, the flush comes as soon as
        `residual_length` are there. FP8 keeps none back.
        """
        if self.how.backend == "fp8":
            return run.tokens, 0
        cycle = max(self.how.residual_length, 2)
        flushed, waiting = divmod(run.decode_steps, cycle)
        return run.prompt_tokens + flushed * cycle, waiting

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the waiting keys and values, then the quantised ones with their scales."""
        quantised, waiting = self.positions(run)
        rows = self.rows
        pairs = (("keys", "key", rows.k_dim, self.how.axis_key),
                 ("values", "value", rows.v_dim, self.how.axis_value))  # fmt: skip
        found = []
        for name, role, width, _ in pairs:
            shape = (run.batch, rows.kv_heads, waiting, width) if waiting else (0,)
            found.append(held(name, role, shape, run.dtype))
        for name, role, width, axis in pairs:
            shape = (run.batch, rows.kv_heads, quantised, width)
            found += self._quantised(f"_quantized_{name}", f"{role}_quantized", shape, axis, run)
        return tuple(found)

    def _quantised(
        self, name: str, role: str, shape: tuple[int, ...], axis: int, run: Run
    ) -> list[HeldTensor]:
        how = self.how
        if how.backend == "fp8":
            return [
                held(f"{name}[0]", role, shape, "float8_e4m3fn"),
                held(f"{name}[1]", role, (), "float32"),
            ]
        elements = shape[0] * shape[1] * shape[2] * shape[3]
        groups, rest = divmod(elements, how.q_group_size)
        if rest:
            raise Conflict(
                "{field} {group} does not divide the {elements} elements of a layer's {name}",
                field="q_group_size",
                group=how.q_group_size,
                elements=elements,
                name=Note("", "keys") if name.endswith("keys") else Note("", "values"),
            )
        if how.backend == "quanto":
            packed = -(-groups * how.nbits // _BYTE_BITS)
            return [
                held(f"{name}._data._data", role, (packed, how.q_group_size), "uint8"),
                held(f"{name}._scale", role, (groups, 1), run.dtype),
                held(f"{name}._shift", role, (groups, 1), run.dtype),
            ]
        first, second = (groups, how.q_group_size) if axis else (how.q_group_size, groups)
        if how.nbits == _THREE_BITS:
            packed, dtype = -(-first // _PER_INT32), "int32"
        else:
            packed, dtype = -(-first * how.nbits // _BYTE_BITS), "uint8"
        scale = (groups, 1) if axis else (1, groups)
        return [
            held(f"{name}[0]", role, (packed, second), dtype),
            held(f"{name}[1][scale]", role, scale, run.dtype),
            held(f"{name}[1][zero]", role, scale, run.dtype),
        ]

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the whole layer in full precision, which every step makes again."""
        rows = self.rows
        row = run.batch * rows.kv_heads * ELEMENT_BYTES[run.dtype]
        return row * (run.tokens + 1) * (rows.k_dim + rows.v_dim)


def quantized(layers: list[CacheLayer], how: Quantization) -> list[CacheLayer]:
    """Return the same layers quantised.

    Raises:
        Unsupported: for a layer that is not plain full attention; QuantizedCache takes no other.

    """
    found = []
    for layer in layers:
        own = layer.parts[0] if len(layer.parts) == 1 else None
        if not isinstance(own, KeyValue) or own.window is not None:
            raise Unsupported(
                "{field} quantized takes full attention alone, and layer {layer} is {kind}",
                field="cache",
                layer=layer.index,
                kind=layer.kind,
            )
        part = QuantizedKeyValue(rows=own, how=how)
        found.append(CacheLayer(index=layer.index, kind=_NAMES[how.backend], parts=(part,)))
    return found
