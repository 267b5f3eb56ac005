"""Element formats as exact (elements, bytes) pairs: so many elements take so many bytes."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import FieldPath, Unknown, Unsupported, shown

MAX_ELEMENT_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """A storage format; `block_elements` consecutive elements of one row take `block_bytes`."""

    name: str
    block_elements: int
    block_bytes: int
    source: str = ""
    scales_counted: bool = True

    def bytes_for(self, row_elements: int, *, field: str | FieldPath = "kv_dtype") -> int:
        """Return the bytes of one row of `row_elements` elements.

        Raises:
            Unsupported: when the row does not divide into whole blocks; nothing is rounded.

        """
        blocks, rest = divmod(row_elements, self.block_elements)
        if rest:
            raise Unsupported(
                "{dtype} stores blocks of {block} elements, and a row of {row} does not divide",
                field=field,
                dtype=self.name,
                block=self.block_elements,
                row=row_elements,
            )
        return blocks * self.block_bytes

    @property
    def bytes_text(self) -> str:
        """Return the cost of an element for a formula: `2 B`, or `34/32 B` for a block format."""
        if self.block_elements == 1:
            return f"{self.block_bytes} B"
        return f"{self.block_bytes}/{self.block_elements} B"


_GGML = "ggml block layouts, ggml-common.h"
_OCP = "OCP Microscaling Formats (MX) v1.0"

_ROWS = (
    ("fp32", 1, 4, "IEEE 754 binary32", True),
    ("tf32", 1, 4, "a compute format: stored as binary32", True),
    ("fp16", 1, 2, "IEEE 754 binary16", True),
    ("bf16", 1, 2, "bfloat16", True),
    ("fp8", 1, 1, "OCP FP8 (E4M3 or E5M2), a scale per tensor", False),
    ("int8", 1, 1, "one byte a value; scales depend on the engine", False),
    ("fp4", 2, 1, "E2M1, two values a byte; scales depend on the engine", False),
    ("int4", 2, 1, "two values a byte; scales depend on the engine", False),
    ("mxfp8", 32, 33, _OCP + ": 32 values and one E8M0 scale", True),
    ("mxfp4", 32, 17, _OCP + ": 32 values and one E8M0 scale", True),
    ("nvfp4", 16, 9, "NVFP4: 16 E2M1 values and one E4M3 scale", True),
    ("q8_0", 32, 34, _GGML, True),
    ("q6_0", 32, 26, "ik_llama.cpp block layout", True),
    ("q5_1", 32, 24, _GGML, True),
    ("q5_0", 32, 22, _GGML, True),
    ("q4_1", 32, 20, _GGML, True),
    ("q4_0", 32, 18, _GGML, True),
    ("iq4_nl", 32, 18, _GGML, True),
)

DTYPES: dict[str, DType] = {
    name: DType(
        name=name,
        block_elements=elements,
        block_bytes=size,
        source=source,
        scales_counted=scales,
    )
    for name, elements, size, source, scales in _ROWS
}

# Spellings found in config files, engines' flags and logs; each means exactly one row above.
ALIASES: dict[str, str] = {
    "float32": "fp32", "f32": "fp32", "float": "fp32",
    "float16": "fp16", "f16": "fp16", "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "e4m3": "fp8", "e5m2": "fp8",
}  # fmt: skip


def dtype_named(name: object, *, field: str | FieldPath = "kv_dtype") -> DType:
    """Return the format of that name or one of its other spellings.

    Raises:
        Unknown: for any other name; the error lists what is known.

    """
    if isinstance(name, str):
        key = name.strip().lower().removeprefix("torch.")
        found = DTYPES.get(ALIASES.get(key, key))
        if found is not None:
            return found
    raise Unknown(
        "{field} {value} is not a known format; known are {known}",
        field=field,
        value=shown(name),
        known=", ".join(DTYPES),
    )


def dtype_of_element_bytes(element_bytes: int) -> DType:
    """Return a plain format of so many bytes an element, as the textbook formula takes it."""
    size = checked_int(element_bytes, "element_bytes", low=1, high=MAX_ELEMENT_BYTES)
    return DType(
        name=f"{size}-byte elements",
        block_elements=1,
        block_bytes=size,
        source="element_bytes of the request",
    )
