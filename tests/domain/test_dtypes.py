"""Element formats as exact pairs."""

from __future__ import annotations

import pytest

from app.domain.dtypes import DTYPES, dtype_named, dtype_of_element_bytes
from app.domain.errors import OutOfRange, Unknown, Unsupported, WrongType


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [
        ("fp32", 1, 4), ("tf32", 1, 4), ("fp16", 1, 2), ("bf16", 1, 2), ("fp8", 1, 1),
        ("int8", 1, 1), ("fp4", 2, 1), ("nvfp4", 16, 9), ("mxfp4", 32, 17), ("q8_0", 32, 34),
        ("q5_1", 32, 24), ("q5_0", 32, 22), ("q4_1", 32, 20), ("q4_0", 32, 18), ("iq4_nl", 32, 18),
    ],
)  # fmt: skip
def test_pairs(name: str, elements: int, size: int) -> None:
    """Each format is an exact pair of elements and bytes."""
    assert (DTYPES[name].block_elements, DTYPES[name].block_bytes) == (elements, size)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bfloat16", "bf16"), ("torch.float16", "fp16"), ("F32", "fp32"), (" half ", "fp16"),
        ("fp8_e4m3", "fp8"), ("float8_e5m2", "fp8"), ("Q8_0", "q8_0"),
    ],
)  # fmt: skip
def test_other_spellings(spelling: str, name: str) -> None:
    """Spellings of config files and engines mean the same format."""
    assert dtype_named(spelling).name == name


@pytest.mark.parametrize("name", ["fp17", "", 16, None, ["fp16"], "x" * 500])
def test_unknown_names(name: object) -> None:
    """Any other name is refused, the field and the known names said."""
    with pytest.raises(Unknown, match=r"kv_dtype .* is not a known format; known are fp32"):
        dtype_named(name)


def test_a_row_that_does_not_divide_is_refused() -> None:
    """A row of 40 does not divide into blocks of 32: nothing is rounded."""
    assert DTYPES["q8_0"].bytes_for(64) == 68
    with pytest.raises(Unsupported, match="blocks of 32 elements, and a row of 40"):
        DTYPES["q8_0"].bytes_for(40)


def test_element_bytes() -> None:
    """A plain width in bytes is a format of its own, within bounds."""
    assert dtype_of_element_bytes(3).bytes_for(7) == 21
    with pytest.raises(OutOfRange, match="between 1 and 64"):
        dtype_of_element_bytes(0)
    with pytest.raises(WrongType):
        dtype_of_element_bytes("2")  # type: ignore[arg-type]
