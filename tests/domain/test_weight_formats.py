"""How a matrix is stored, format by format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Unknown, Unsupported
from app.domain.weight_formats import (
    WEIGHT_FORMATS,
    BitsAndBytes4,
    BlockScaled,
    GroupInteger,
    MicroScaled,
    Plain,
    TensorScaled,
    WeightFormat,
    tensor_of,
    weight_format_named,
)


def stored(chosen: WeightFormat, *shape: int) -> list[tuple[str, int, int]]:
    """Return (dtype, elements, bytes) of each tensor stored for a matrix."""
    return [(t.dtype, t.elements, t.size_bytes) for t in chosen.stored(shape)]


@pytest.mark.parametrize(
    ("chosen", "shape", "expected"),
    [
        (Plain(), (3, 5), [("BF16", 15, 30)]),
        (Plain(dtype="F32"), (), [("F32", 1, 4)]),
        (Plain(dtype="F4"), (3, 5), [("F4", 15, 8)]),
        (TensorScaled(), (4, 8), [("F8_E4M3", 32, 32), ("F32", 1, 4)]),
        (TensorScaled(input_scales=1), (4, 8),
         [("F8_E4M3", 32, 32), ("F32", 1, 4), ("F32", 1, 4)]),
        # LLM.int8: one F32 for each row (`SCB`).
        (TensorScaled(weight="I8", per_row=True), (4, 8), [("I8", 32, 32), ("F32", 4, 16)]),
        # DeepSeek-V3's down projection and its latent's: 56 x 144 and 5 x 56 tiles.
        (BlockScaled(), (7168, 18_432), [("F8_E4M3", 132_120_576, 132_120_576),
                                         ("F32", 56 * 144, 56 * 144 * 4)]),
        (BlockScaled(), (576, 7168), [("F8_E4M3", 4_128_768, 4_128_768), ("F32", 280, 1120)]),
        (BlockScaled(), (100,), [("F8_E4M3", 100, 100), ("F32", 1, 4)]),
        (BlockScaled(scale="BF16"), (2, 129, 128), [("F8_E4M3", 33_024, 33_024), ("BF16", 4, 8)]),
        # GPTQ: qweight, scales, qzeros and g_idx of a 4096 x 4096 layer in groups of 128.
        (GroupInteger(column_index=True), (4096, 4096),
         [("I32", 2_097_152, 8_388_608), ("F16", 131_072, 262_144), ("I32", 16_384, 65_536),
          ("I32", 4096, 16_384)]),
        # The same with one group a row.
        (GroupInteger(group=0), (4096, 4096),
         [("I32", 2_097_152, 8_388_608), ("F16", 4096, 8192), ("I32", 512, 2048)]),
        # Three bits: eleven and a half to a word, so the whole matrix is one run.
        (GroupInteger(bits=3, zero_points=False), (4, 128), [("I32", 48, 192), ("F16", 4, 8)]),
        (GroupInteger(scale="BF16", zero_points=False, shape_note=True, group=32), (2048, 7168),
         [("I32", 1_835_008, 7_340_032), ("BF16", 458_752, 917_504), ("I64", 2, 16)]),
        # gpt-oss: 2880 columns are 90 groups of 32.
        (MicroScaled(), (5760, 2880), [("U8", 8_294_400, 8_294_400), ("U8", 518_400, 518_400)]),
        (MicroScaled(group=16, scale="F8_E4M3", scalars=2), (2, 32),
         [("U8", 32, 32), ("F8_E4M3", 4, 4), ("F32", 2, 8)]),
        (BitsAndBytes4(), (4096, 4096),
         [("U8", 8_388_608, 8_388_608), ("F32", 262_160, 1_048_640)]),
        (BitsAndBytes4(double_quantised=True), (4096, 4096),
         [("U8", 8_388_608, 8_388_608), ("U8", 262_144, 262_144), ("F32", 1296, 5184)]),
    ],
)  # fmt: skip
def test_what_is_stored(
    chosen: WeightFormat, shape: tuple[int, ...], expected: list[tuple[str, int, int]]
) -> None:
    """Each format stores its packed matrix, scales, zero points and tables as loaders expect."""
    assert stored(chosen, *shape) == expected


@pytest.mark.parametrize("chosen", [GroupInteger(), MicroScaled()])
def test_broken_groups_are_refused(chosen: WeightFormat) -> None:
    """A row that is no whole number of groups is refused: engines differ in what they do."""
    with pytest.raises(Unsupported, match="whole groups"):
        chosen.stored((4, 100))


def test_names() -> None:
    """Names say the dtype, bits and grain."""
    assert [chosen.name for chosen in WEIGHT_FORMATS.values()] == [
        "f32", "bf16", "f16", "f8_e4m3 per tensor", "f8_e4m3 per row", "f8_e4m3 128x128",
        "i8 per row", "int4 g128", "int8 g128", "int4 g128", "int4 g128", "nf4", "nf4 double",
        "mxfp4", "nvfp4",
    ]  # fmt: skip
    assert weight_format_named("nvfp4").name == "nvfp4"
    with pytest.raises(Unknown, match="known are fp32, bf16"):
        weight_format_named("fp3")


def test_tensors_add_up_and_repeat() -> None:
    """Sums and multiples of a tensor keep elements and bytes in step."""
    tensor = tensor_of("F4", 3)
    assert (tensor.elements, tensor.size_bytes) == (3, 2)
    assert tensor.times(3).plus(tensor) == tensor.times(4)


@given(st.sampled_from(sorted(WEIGHT_FORMATS)), st.integers(1, 40), st.integers(1, 12))
def test_a_quantised_matrix_is_smaller_than_fp32(name: str, rows: int, groups: int) -> None:
    """No format takes more than FP32 does for a matrix of some size, and all take something."""
    shape = (128 * rows, 128 * groups)
    size = sum(tensor.size_bytes for tensor in WEIGHT_FORMATS[name].stored(shape))
    assert 0 < size <= 4 * shape[0] * shape[1]
