"""How a weight matrix is stored: plain, or quantised with its scales, zero points and indices.

A shape is (rows, columns) = (outputs, inputs), as PyTorch keeps a linear layer. Every format says
what it stores for one matrix as tensors of a dtype, so that sums by dtype can be held against a
checkpoint's header.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from app.domain.errors import Unknown, Unsupported, shown

# Bits of one stored element, by the name that a safetensors header gives the dtype.
ELEMENT_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """So many elements of one dtype, in so many bytes."""

    dtype: str
    elements: int
    size_bytes: int

    def times(self, count: int) -> StoredTensor:
        """Return `count` of them."""
        return StoredTensor(
            dtype=self.dtype, elements=count * self.elements, size_bytes=count * self.size_bytes
        )

    def plus(self, other: StoredTensor) -> StoredTensor:
        """Return the sum with another tensor of the same dtype."""
        return StoredTensor(
            dtype=self.dtype,
            elements=self.elements + other.elements,
            size_bytes=self.size_bytes + other.size_bytes,
        )


def tensor_of(dtype: str, elements: int) -> StoredTensor:
    """Return a tensor of so many elements; sub-byte elements fill whole bytes."""
    return StoredTensor(
        dtype=dtype, elements=elements, size_bytes=-(-elements * ELEMENT_BITS[dtype] // 8)
    )


class WeightFormat(Protocol):
    """What a matrix of a shape is stored as."""

    @property
    def name(self) -> str:
        """Return what people call the format."""

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return the tensors stored for one matrix."""


def _rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a tensor as a matrix: its last dimension is the input, all before it are rows."""
    return math.prod(shape[:-1]), shape[-1]


def _whole(columns: int, group: int, name: str) -> int:
    """Return how many groups a row has; a broken group would need rules that differ by engine."""
    groups, rest = divmod(columns, group)
    if rest:
        raise Unsupported(
            "{field} {name} needs rows of whole groups of {group}, and a row has {columns}",
            field="weight_format",
            name=name,
            group=group,
            columns=columns,
        )
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Every element in one dtype, no scales."""

    dtype: str = "BF16"

    @property
    def name(self) -> str:
        """Return the dtype in lower case."""
        return self.dtype.lower()

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return the one tensor."""
        return (tensor_of(self.dtype, math.prod(shape)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorScaled:
    """One byte an element and one scale for the whole matrix, or one for each row.

    `scales` beside the weight's own: static activation scales, one number each (input_scale).
    FP8 per tensor (ModelOpt, AutoFP8), FP8 and INT8 per channel (compressed-tensors, FBGEMM,
    LLM.int8 with its `SCB` row).
    """

    weight: str = "F8_E4M3"
    scale: str = "F32"
    per_row: bool = False
    input_scales: int = 0

    @property
    def name(self) -> str:
        """Return dtype and grain."""
        return f"{self.weight.lower()} per {'row' if self.per_row else 'tensor'}"

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return the weight, its scales and the activation's."""
        rows, columns = _rows_and_columns(shape)
        scales = tensor_of(self.scale, rows if self.per_row else 1)
        inputs = (tensor_of("F32", self.input_scales),) if self.input_scales else ()
        return (tensor_of(self.weight, rows * columns), scales, *inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScaled:
    """FP8 with one scale for each tile of the matrix (`weight_block_size`, 128 x 128 in DeepSeek).

    Tiles at the edges are cut: a 7168 x 18432 matrix has 56 x 144 scales, a 576 x 7168 one 5 x 56.
    """

    weight: str = "F8_E4M3"
    scale: str = "F32"
    block_rows: int = 128
    block_columns: int = 128

    @property
    def name(self) -> str:
        """Return dtype and tile."""
        return f"{self.weight.lower()} {self.block_rows}x{self.block_columns}"

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return the weight and its tile scales."""
        *outer, rows, columns = (1, *shape) if len(shape) == 1 else shape
        tiles = -(-rows // self.block_rows) * -(-columns // self.block_columns)
        return (
            tensor_of(self.weight, math.prod(shape)),
            tensor_of(self.scale, math.prod(outer) * tiles),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInteger:
    """Packed integers with a scale (and zero point) for each group of a row.

    GPTQ (`qweight`, `qzeros`, `scales`, and `g_idx`, one I32 a column), AWQ (the same without
    `g_idx`) and compressed-tensors `pack-quantized` (`weight_packed`, `weight_scale`, two I64 of
    `weight_shape`, zero points only when asymmetric). Packs are I32. `group` 0: one group a row.

    A 4096 x 4096 matrix in 4-bit groups of 128 is 2,097,152 packs of I32, 131,072 scales and, with
    zero points, 16,384 packs of them.
    """

    bits: int = 4
    group: int = 128
    scale: str = "F16"
    zero_points: bool = True
    column_index: bool = False
    shape_note: bool = False

    @property
    def name(self) -> str:
        """Return bits and group."""
        return f"int{self.bits} g{self.group or 'row'}"

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return packed weights, scales, packed zero points, column index and shape note."""
        rows, columns = _rows_and_columns(shape)
        groups = _whole(columns, self.group, self.name) if self.group else 1
        tensors = [tensor_of("I32", _packs(rows * columns, self.bits)),
                   tensor_of(self.scale, rows * groups)]  # fmt: skip
        if self.zero_points:
            tensors.append(tensor_of("I32", _packs(rows * groups, self.bits)))
        if self.column_index:
            tensors.append(tensor_of("I32", columns))
        if self.shape_note:
            tensors.append(tensor_of("I64", 2))
        return tuple(tensors)


def _packs(elements: int, bits: int) -> int:
    """Return the 32-bit words that hold so many values of `bits` bits."""
    return -(-elements * bits // 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroScaled:
    """Four-bit floats with a small scale for each group of a row, two values a byte.

    MXFP4 (OCP Microscaling v1.0): groups of 32 with an E8M0 byte, as gpt-oss ships its experts.
    NVFP4: groups of 16 with an E4M3 byte, a scale for the whole matrix and often one for its input
    (`weight_scale_2`, `input_scale`; `scalars` counts them).
    """

    group: int = 32
    packed: str = "U8"
    scale: str = "U8"
    scalars: int = 0

    @property
    def name(self) -> str:
        """Return the usual name."""
        return "nvfp4" if self.group == 16 else "mxfp4"  # noqa: PLR2004  # NVFP4's group

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return packed values, group scales and scalars."""
        rows, columns = _rows_and_columns(shape)
        groups = rows * _whole(columns, self.group, self.name)
        scalars = (tensor_of("F32", self.scalars),) if self.scalars else ()
        return (tensor_of(self.packed, rows * columns // 2), tensor_of(self.scale, groups),
                *scalars)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsAndBytes4:
    """bitsandbytes NF4 or FP4: the matrix as one run of 4-bit codes in blocks of 64.

    Each block has an F32 `absmax`; with double quantisation a U8 one, with an F32 for each 256 of
    them, and one code table more. The tables: `quant_map` (16 F32), `nested_quant_map` (256 F32).
    The JSON `quant_state` (about a hundred bytes a matrix) is not counted.
    """

    double_quantised: bool = False
    block: int = 64

    @property
    def name(self) -> str:
        """Return the usual name."""
        return "nf4 double" if self.double_quantised else "nf4"

    def stored(self, shape: tuple[int, ...]) -> tuple[StoredTensor, ...]:
        """Return codes, block scales and tables."""
        elements = math.prod(shape)
        blocks = -(-elements // self.block)
        codes = tensor_of("U8", -(-elements // 2))
        if not self.double_quantised:
            return codes, tensor_of("F32", blocks + 16)
        return codes, tensor_of("U8", blocks), tensor_of("F32", -(-blocks // 256) + 256 + 16)


# What-if formats by the names that people use, each with the grain it is usually shipped in.
WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "fp32": Plain(dtype="F32"),
    "bf16": Plain(dtype="BF16"),
    "fp16": Plain(dtype="F16"),
    "fp8": TensorScaled(),
    "fp8_channel": TensorScaled(per_row=True),
    "fp8_block": BlockScaled(),
    "int8": TensorScaled(weight="I8", per_row=True),
    "gptq_int4": GroupInteger(column_index=True),
    "gptq_int8": GroupInteger(bits=8, column_index=True),
    "awq_int4": GroupInteger(),
    "int4_group": GroupInteger(scale="BF16", zero_points=False, shape_note=True),
    "nf4": BitsAndBytes4(),
    "nf4_double": BitsAndBytes4(double_quantised=True),
    "mxfp4": MicroScaled(),
    "nvfp4": MicroScaled(group=16, scale="F8_E4M3", scalars=2),
}


def weight_format_named(name: str) -> WeightFormat:
    """Return the what-if format of that name.

    Raises:
        Unknown: for any other name; the error lists what is known.

    """
    found = WEIGHT_FORMATS.get(name)
    if found is None:
        raise Unknown(
            "{field} {value} is not a known weight format; known are {known}",
            field="weight_format",
            value=shown(name),
            known=", ".join(WEIGHT_FORMATS),
        )
    return found
