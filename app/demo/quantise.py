"""Cache formats of the lab on NumPy, each rounding exactly as its definition says.

Every format rounds to nearest, ties to even:

- fp16 is IEEE 754 binary16, bf16 the upper half of binary32;
- fp8 is OCP E4M3 (4 exponent bits of bias 7, 3 of mantissa, largest value 448, no infinity),
  stored without a scale; what lies beyond 448 becomes 448;
- int8 and int4 are symmetric integers of −127..127 and −7..7, times one binary32 scale for each
  vector: its largest magnitude over 127 or 7. Two int4 values share a byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import Unknown, shown

Floats = NDArray[np.float32]

LAB_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")
_SPELLINGS = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
}

FP8_LARGEST = 448.0
FP8_SMALLEST_NORMAL = 2.0**-6
FP8_SUBNORMAL_STEP = 2.0**-9
# The largest magnitude that a format holds as it is; the others scale or reach beyond any input.
LARGEST = {"fp16": 65504.0, "fp8": FP8_LARGEST}
INTEGER_LARGEST = {"int8": 127, "int4": 7}
_EXPONENT_BIAS_GAP = 127 - 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Vectors as a cache keeps them: codes along the last axis, and a scale each where needed.

    The arrays belong to one backend. All axes but the last can be indexed alike in both.
    """

    codes: Any
    scales: Any
    dtype: str
    width: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of codes and scales."""
        return int(self.codes.nbytes) + (0 if self.scales is None else int(self.scales.nbytes))

    def at(self, index: object) -> Encoded:
        """Return the part at `index` of the leading axes."""
        scales = None if self.scales is None else self.scales[index]
        return Encoded(codes=self.codes[index], scales=scales, dtype=self.dtype, width=self.width)

    def put(self, index: object, part: Encoded) -> None:
        """Overwrite the part at `index` of the leading axes."""
        self.codes[index] = part.codes
        if self.scales is not None:
            self.scales[index] = part.scales


def lab_dtype(name: object) -> str:
    """Return the lab's own name of a format.

    Raises:
        Unknown: for a format that the lab does not have; the error lists those it has.

    """
    if isinstance(name, str):
        key = name.strip().lower().removeprefix("torch.")
        key = _SPELLINGS.get(key, key)
        if key in LAB_DTYPES:
            return key
    raise Unknown(
        "{field} {value} is not a format of the lab; it has {known}",
        field="dtype",
        value=shown(name),
        known=", ".join(LAB_DTYPES),
    )


def encode(vectors: Floats, dtype: str) -> Encoded:
    """Return finite binary32 vectors as `dtype` keeps them."""
    scales = None
    codes: Any
    if dtype == "fp32":
        codes = vectors.copy()
    elif dtype == "fp16":
        codes = vectors.astype(np.float16)
    elif dtype == "bf16":
        codes = bf16_codes(vectors)
    elif dtype == "fp8":
        codes = fp8_codes(vectors)
    else:
        integers, scales = scaled_integers(vectors, INTEGER_LARGEST[dtype])
        codes = pack_nibbles(integers) if dtype == "int4" else integers
    return Encoded(codes=codes, scales=scales, dtype=dtype, width=vectors.shape[-1])


def decode(encoded: Encoded) -> Floats:
    """Return the binary32 values that the codes stand for, without further rounding.

    Scaled integers round once more, in the product with their scale.
    """
    codes = encoded.codes
    if encoded.dtype == "fp32":
        return np.asarray(codes, dtype=np.float32)
    if encoded.dtype == "fp16":
        return np.asarray(codes.astype(np.float32))
    if encoded.dtype == "bf16":
        return np.asarray((codes.astype(np.uint32) << 16).view(np.float32))
    if encoded.dtype == "fp8":
        return np.asarray(FP8_VALUES[codes])
    integers = unpack_nibbles(codes, encoded.width) if encoded.dtype == "int4" else codes
    return np.asarray(integers.astype(np.float32) * encoded.scales)


def bf16_codes(values: Floats) -> NDArray[np.uint16]:
    """Return the upper 16 bits after rounding: half a step is added, one less below an even bit."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    return (rounded >> 16).astype(np.uint16)


def fp8_codes(values: Floats) -> NDArray[np.uint8]:
    """Return E4M3 codes: sign, 4 exponent bits, 3 mantissa bits.

    Normal numbers round in the bits of binary32, whose exponent then loses the difference of the
    biases; smaller ones are whole steps of 2^−9, and 8 of those are the first normal code.
    """
    magnitude = np.minimum(np.abs(values), np.float32(FP8_LARGEST))
    bits = np.ascontiguousarray(magnitude).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFFF) + ((bits >> 20) & np.uint32(1))) >> 20
    normal = rounded.astype(np.int32) - (_EXPONENT_BIAS_GAP << 3)
    subnormal = np.rint(magnitude / np.float32(FP8_SUBNORMAL_STEP)).astype(np.int32)
    codes = np.where(magnitude < FP8_SMALLEST_NORMAL, subnormal, normal)
    return (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def scaled_integers(values: Floats, largest: int) -> tuple[NDArray[np.int8], Floats]:
    """Return integers of −largest..largest and the scale of each vector; zeros have scale 1."""
    scales = np.abs(values).max(axis=-1, keepdims=True) / np.float32(largest)
    scales = np.where(scales > 0, scales, np.float32(1))
    integers = np.clip(np.rint(values / scales), -largest, largest)
    return integers.astype(np.int8), scales.astype(np.float32)


def pack_nibbles(integers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Return two integers of −8..7 a byte, the first in the low half; an odd end gets a zero."""
    if integers.shape[-1] % 2:
        integers = np.concatenate([integers, np.zeros_like(integers[..., :1])], axis=-1)
    nibbles = (integers & 0x0F).astype(np.uint8)
    return np.asarray(nibbles[..., 0::2] | (nibbles[..., 1::2] << 4))


def unpack_nibbles(packed: NDArray[np.uint8], width: int) -> NDArray[np.int8]:
    """Return the `width` integers of each packed vector."""
    pairs = np.stack([packed & 0x0F, packed >> 4], axis=-1).astype(np.int8)
    flat = pairs.reshape(*packed.shape[:-1], -1)[..., :width]
    return np.asarray(np.where(flat > INTEGER_LARGEST["int4"], flat - 16, flat), dtype=np.int8)


def _fp8_values() -> Floats:
    """Return the value of each of the 256 codes; 0x7F and 0xFF are not numbers."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 0xF, codes & 0x7
    magnitude = np.where(
        exponent == 0,
        mantissa * FP8_SUBNORMAL_STEP,
        (1 + mantissa / 8) * 2.0 ** (exponent - 7),
    )
    values = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    return values


FP8_VALUES = _fp8_values()
