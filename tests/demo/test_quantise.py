"""The lab's formats: values worked out by hand, and rounding against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.quantise import (
    FP8_VALUES,
    LAB_DTYPES,
    Floats,
    bf16_codes,
    decode,
    encode,
    fp8_codes,
    lab_dtype,
    pack_nibbles,
    scaled_integers,
    unpack_nibbles,
)
from app.domain.errors import Unknown

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)


def rounded(value: float, dtype: str) -> float:
    """Return a value after a round trip through a format."""
    return float(decode(encode(np.array([value], dtype=np.float32), dtype))[0])


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        ("fp32", 0.1, 0.10000000149011612),
        ("fp16", 0.1, 0.0999755859375),
        ("fp16", 65504.0, 65504.0),
        ("fp16", 2.0**-25, 0.0),
        ("bf16", 0.1, 0.10009765625),
        ("bf16", 1.00390625, 1.0),  # halfway between 1 and 1.0078125: the even one
        ("bf16", 1.01171875, 1.015625),  # halfway again, and now the upper one is even
        ("bf16", 0.001, 0.00099945068359375),
        ("fp8", 0.1, 0.1015625),
        ("fp8", 448.0, 448.0),
        ("fp8", 463.9, 448.0),
        ("fp8", 1e9, 448.0),
        ("fp8", -1e9, -448.0),
        ("fp8", 0.001953125, 0.001953125),  # the smallest step, 2^-9
        ("fp8", 0.0009765625, 0.0),  # halfway to it: zero is even
        ("fp8", 0.00293, 0.00390625),  # beyond 1.5 steps: two
        ("fp8", 17.0, 16.0),  # halfway between 16 and 18
        ("fp8", 19.0, 20.0),  # halfway between 18 and 20
        ("int8", 5.0, 5.0),
        ("int4", 5.0, 5.0),
    ],
)
def test_values_round_as_the_format_says(dtype: str, value: float, kept: float) -> None:
    """A value becomes the nearest that the format has, and of two as near the even one."""
    assert rounded(value, dtype) == kept


@given(st.lists(SINGLES, min_size=1, max_size=8))
def test_fp8_takes_the_nearest_of_its_values(values: list[float]) -> None:
    """No other E4M3 value lies nearer; of two as near, the code kept is even."""
    codes = fp8_codes(np.array(values, dtype=np.float32))
    finite = FP8_VALUES[np.isfinite(FP8_VALUES)].astype(np.float64)
    for value, code in zip(np.clip(values, -448, 448), codes, strict=True):
        distance = np.abs(finite - value)
        assert abs(float(FP8_VALUES[code]) - value) == distance.min()
        nearest = np.unique(finite[distance == distance.min()])
        assert len(nearest) == 1 or int(code) % 2 == 0


def test_fp8_values_are_those_of_the_definition() -> None:
    """Codes 1, 8, 0x38 and 0x7E are 2^-9, 2^-6, 1 and 448; the top code is not a number."""
    named = [float(FP8_VALUES[code]) for code in (0x00, 0x01, 0x08, 0x38, 0x7E, 0xB8)]
    assert named == [0.0, 0.001953125, 0.015625, 1.0, 448.0, -1.0]
    assert np.isnan(FP8_VALUES[[0x7F, 0xFF]]).all()
    assert int(np.isfinite(FP8_VALUES).sum()) == 254


def test_every_fp8_code_survives_a_round_trip() -> None:
    """What the format can hold it gives back: 253 values, zero of either sign among them."""
    finite = FP8_VALUES[np.isfinite(FP8_VALUES)]
    assert np.array_equal(FP8_VALUES[fp8_codes(finite)], finite)
    assert np.array_equal(np.signbit(FP8_VALUES[fp8_codes(finite)]), np.signbit(finite))


@given(SINGLES)
def test_bf16_is_the_nearest_upper_half(value: float) -> None:
    """Neither neighbour of the kept upper half lies nearer to the value."""
    exact = np.float32(value)
    code = int(bf16_codes(np.array([exact]))[0])

    def of(upper: int) -> float:
        return float(np.array([upper << 16], dtype=np.uint32).view(np.float32)[0])

    kept = of(code)
    if np.isfinite(kept):
        low = code - 1 if code & 0x7FFF else code
        neighbours = [near for near in (of(low), of(code + 1)) if np.isfinite(near)]
        assert all(abs(kept - float(exact)) <= abs(near - float(exact)) for near in neighbours)
    else:
        assert abs(float(exact)) > 3.3895e38


@given(st.lists(st.integers(-7, 7), min_size=1, max_size=9))
def test_nibbles_unpack_to_what_was_packed(integers: list[int]) -> None:
    """Two integers share a byte, an odd end has a byte of its own, and all come back."""
    row = np.array([integers], dtype=np.int8)
    packed = pack_nibbles(row)
    assert packed.nbytes == (len(integers) + 1) // 2
    assert unpack_nibbles(packed, len(integers)).tolist() == [integers]


@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127), ("int4", 7)])
@given(st.integers(0, 2**32 - 1))
def test_scaled_integers_lie_within_half_a_step(dtype: str, largest: int, seed: int) -> None:
    """The largest magnitude of a vector takes the largest integer, and no value moves further."""
    rows = np.random.default_rng(seed).standard_normal((3, 5), dtype=np.float32)
    integers, scales = scaled_integers(rows, largest)
    assert np.abs(integers).max(axis=-1).tolist() == [largest] * 3
    error = np.abs(decode(encode(rows, dtype)) - rows)
    assert (error <= scales * (0.5 + 1e-5)).all()


def test_a_vector_of_zeros_stays_zero() -> None:
    """Zeros have no magnitude to scale by; they are kept with scale 1."""
    integers, scales = scaled_integers(np.zeros((1, 4), dtype=np.float32), 7)
    assert integers.tolist() == [[0, 0, 0, 0]]
    assert scales.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("fp32", 80), ("fp16", 40), ("bf16", 40), ("fp8", 20), ("int8", 36), ("int4", 28)],
)
def test_bytes_are_those_of_codes_and_scales(dtype: str, size: int) -> None:
    """Four vectors of five: four bytes a scale, and an odd row of int4 rounds up to a byte."""
    assert encode(np.ones((4, 5), dtype=np.float32), dtype).size_bytes == size


@pytest.mark.parametrize("dtype", LAB_DTYPES)
def test_rows_are_kept_one_by_one(dtype: str) -> None:
    """A row is kept alike alone and among others, so parts of a cache can be overwritten."""
    rng = np.random.default_rng(1)
    rows: Floats = rng.standard_normal((4, 6), dtype=np.float32)
    whole = encode(rows, dtype)
    for index in range(4):
        alone = decode(encode(rows[index], dtype))
        assert np.array_equal(decode(whole.at(index)), alone)
    whole.put(2, encode(rows[0], dtype))
    assert np.array_equal(decode(whole)[2], decode(whole)[0])


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("fp32", "fp32"),
        ("torch.float32", "fp32"),
        (" Half ", "fp16"),
        ("bfloat16", "bf16"),
        ("fp8_e4m3", "fp8"),
        ("int4", "int4"),
    ],
)
def test_formats_have_several_spellings(spelling: str, name: str) -> None:
    """The spellings of configs and of torch mean the lab's own format."""
    assert lab_dtype(spelling) == name


@pytest.mark.parametrize("name", ["fp3", "q8_0", "fp8_e5m2", "", None, 16, ["fp16"]])
def test_other_formats_are_refused(name: Any) -> None:
    """A format that the lab lacks is an error that lists those it has."""
    with pytest.raises(Unknown, match="fp32, fp16, bf16, fp8, int8, int4") as caught:
        lab_dtype(name)
    assert caught.value.field == ("dtype",)
