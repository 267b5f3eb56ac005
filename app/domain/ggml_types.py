"""Every ggml tensor type as (elements of a block, bytes of a block).

Numbers are the ids that a GGUF file stores (ggml.h, `enum ggml_type`); sizes follow from the block
structs in ggml-common.h. Types 31 to 33 and 36 to 38 are row-interleaved copies of Q4_0 and IQ4_NL
that files of late 2024 hold; 4 and 5 were dropped in May 2023 and are named only to be refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import FieldPath, Malformed, Unknown, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class GgmlType:
    """One storage type: `block_elements` consecutive elements of a row take `block_bytes`."""

    number: int
    name: str
    block_elements: int
    block_bytes: int

    def bytes_for(self, shape: tuple[int, ...], *, field: str | FieldPath) -> int:
        """Return the bytes of a tensor; `shape` has the row length first, as GGUF stores it.

        A Q4_K row of 4096 elements is 16 blocks of 144 bytes: 2304 bytes.

        Raises:
            Malformed: when rows do not divide into blocks; ggml stores no broken block.

        """
        row_elements = shape[0] if shape else 1
        blocks, rest = divmod(row_elements, self.block_elements)
        if rest:
            raise Malformed(
                "{field} has rows of {row} elements, and {type} stores blocks of {block}",
                field=field,
                row=row_elements,
                type=self.name,
                block=self.block_elements,
            )
        total = blocks * self.block_bytes
        for dimension in shape[1:]:
            total *= dimension
        return total


_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (31, "Q4_0_4_4", 32, 18),
    (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (36, "IQ4_NL_4_4", 32, 18),
    (37, "IQ4_NL_4_8", 32, 18),
    (38, "IQ4_NL_8_8", 32, 18),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)
_REMOVED = {4: "Q4_2", 5: "Q4_3"}

GGML_TYPES: dict[int, GgmlType] = {
    number: GgmlType(number=number, name=name, block_elements=elements, block_bytes=size)
    for number, name, elements, size in _ROWS
}


def ggml_type(number: int, *, field: str | FieldPath) -> GgmlType:
    """Return the type with this id.

    Raises:
        Unsupported: for a type that ggml itself no longer reads.
        Unknown: for an id that is in no table.

    """
    found = GGML_TYPES.get(number)
    if found is not None:
        return found
    if number in _REMOVED:
        raise Unsupported(
            "{field} is stored as {type}, which ggml dropped in 2023",
            field=field,
            type=_REMOVED[number],
        )
    raise Unknown(
        "{field} has type {number}; known types go up to {last}",
        field=field,
        number=number,
        last=max(GGML_TYPES),
    )
