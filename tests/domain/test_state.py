"""What a layer keeps: checks on construction, and runs of equal layers."""

from __future__ import annotations

import pytest

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, WrongType
from app.domain.formats import KvFormats, LayerRangeFormat, placed_layers, state_groups
from app.domain.per_token import omissions, shape_of
from app.domain.state import (
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    LayerRun,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    StateTensor,
)

FP16 = DTYPES["fp16"]
FULL = FullAttention(kv_heads=2, k_dim=8, v_dim=8)


@pytest.mark.parametrize(
    ("make", "error", "field"),
    [
        (lambda: FullAttention(kv_heads=0, k_dim=8, v_dim=8), OutOfRange, "kv_heads"),
        (lambda: FullAttention(kv_heads=True, k_dim=8, v_dim=8), WrongType, "kv_heads"),
        (lambda: FullAttention(kv_heads=1, k_dim=0, v_dim=0), OutOfRange, "k_dim"),
        (lambda: FullAttention(kv_heads=1, k_dim=8, v_dim=8, index_dim=-1), OutOfRange,
         "index_dim"),
        (lambda: SlidingWindow(kv_heads=1, k_dim=8, v_dim=8, window=0), OutOfRange, "window"),
        (lambda: LatentAttention(latent_dim=0, rope_dim=0), OutOfRange, "latent_dim"),
        (lambda: LatentAttention(latent_dim=1, rope_dim=0, window=0), OutOfRange, "window"),
        (lambda: LatentAttention(latent_dim=1, rope_dim=0, tokens_per_entry=0), OutOfRange,
         "tokens_per_entry"),
        (lambda: Recurrent(tensors=()), OutOfRange, "tensors"),
        (lambda: StateTensor(name="s", shape=(2, -1), dtype=FP16), OutOfRange, "s.1"),
        (lambda: StateTensor(name="s", shape=(2,), dtype=FP16, split_axis=1), OutOfRange,
         "split_axis"),
        (lambda: StateTensor(name="s", shape=(2**40, 2**40), dtype=FP16), OutOfRange, "s"),
        (lambda: CrossAttention(kv_heads=1, k_dim=1, v_dim=1, encoder_tokens=-1), OutOfRange,
         "encoder_tokens"),
        (lambda: Shared(with_layer=-1), OutOfRange, "with_layer"),
        (lambda: ModelState(runs=()), OutOfRange, "layers"),
        (lambda: ModelState.uniform(layers=10_001, kv_heads=1, head_dim=1), OutOfRange, "layers"),
        (lambda: ModelState.of_layers([Layer(states=(FULL,))] * 10_001), OutOfRange, "count"),
        (lambda: ModelState(runs=(LayerRun(layer=Layer(states=(FULL,)), count=6000),) * 2),
         OutOfRange, "layers"),
        (lambda: ModelState.of_layers([Layer(states=(Shared(with_layer=5),))]), OutOfRange,
         "with_layer"),
        (lambda: ModelState.of_layers([Layer(states=(Shared(with_layer=0),))]), Conflict,
         "with_layer"),
    ],
)  # fmt: skip
def test_bad_states_are_named(make: object, error: type[DomainError], field: str) -> None:
    """A state outside its bounds is refused on construction, by the field's name."""
    with pytest.raises(error) as caught:
        make()  # type: ignore[operator]
    assert ".".join(map(str, caught.value.field)) == field


def test_equal_neighbours_are_one_run() -> None:
    """Layers keep their order; equal neighbours are joined."""
    other = Layer(states=(SlidingWindow(kv_heads=1, k_dim=1, v_dim=1, window=2),))
    model = ModelState.of_layers([Layer(states=(FULL,)), Layer(states=(FULL,)), other])
    assert [run.count for run in model.runs] == [2, 1]
    assert model.num_layers == 3
    assert len(list(model.layers)) == 3
    assert model.kinds == {"full_attention", "sliding_window"}


def test_index_keys_are_counted_beside_keys_and_values() -> None:
    """An index key of 14 elements stands beside 3 heads of 16 and 16."""
    formats = KvFormat(key=FP16, value=FP16)
    state = FullAttention(kv_heads=3, k_dim=16, v_dim=16, index_dim=14)
    assert state.bytes_per_position(formats) == (3 * 32 + 14) * 2
    latent = LatentAttention(latent_dim=24, rope_dim=8, index_dim=14, index_format=DTYPES["fp32"])
    assert latent.bytes_per_position(formats) == 32 * 2 + 14 * 4


def test_a_windowed_latent_keeps_window_minus_one() -> None:
    """A latent layer with a window of 8 keeps 7 entries."""
    state = LatentAttention(latent_dim=24, rope_dim=8, window=8)
    assert [state.kept_tokens(n) for n in (0, 3, 100)] == [0, 3, 7]


def test_shared_layers_keep_nothing() -> None:
    """A shared layer adds no bytes."""
    model = ModelState.of_layers([Layer(states=(FULL,)), Layer(states=(Shared(with_layer=0),))])
    assert shape_of(model, KvFormats.same(FP16)).bytes_per_token == 2 * 16 * 2


def test_first_and_last_layers_in_more_precision() -> None:
    """Layers 0..1 and 30..31 in fp32, the rest in fp8: 4 × 8192 B and 28 × 2048 B a token."""
    model = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)
    wide = KvFormat(key=DTYPES["fp32"], value=DTYPES["fp32"])
    formats = KvFormats(
        base=KvFormat(key=DTYPES["fp8"], value=DTYPES["fp8"]),
        ranges=(
            LayerRangeFormat(first=0, last=1, format=wide),
            LayerRangeFormat(first=30, last=31, format=wide),
        ),
    )
    assert [(first, count) for first, _, _, count in placed_layers(model, formats)] == [
        (0, 2), (2, 28), (30, 2),
    ]  # fmt: skip
    assert [group.count for group in state_groups(model, formats)] == [4, 28]
    assert shape_of(model, formats).bytes_per_token == 4 * 8192 + 28 * 2048


def test_a_later_range_wins() -> None:
    """Where ranges overlap, the later one decides."""
    wide, narrow = (KvFormat(key=DTYPES[n], value=DTYPES[n]) for n in ("fp32", "fp8"))
    formats = KvFormats(
        base=None,
        ranges=(
            LayerRangeFormat(first=0, last=9, format=wide),
            LayerRangeFormat(first=5, last=5, format=narrow),
        ),
    )
    assert formats.of_layer(4) is wide
    assert formats.of_layer(5) is narrow
    with pytest.raises(Missing, match="no format for layer 10"):
        formats.of_layer(10)


def test_ranges_must_lie_within_the_model() -> None:
    """A range that names layers which the model lacks is refused; so is an empty one."""
    wide = KvFormat(key=FP16, value=FP16)
    formats = KvFormats(base=wide, ranges=(LayerRangeFormat(first=0, last=32, format=wide),))
    with pytest.raises(OutOfRange, match="layer 32 of a model of 32 layers"):
        shape_of(ModelState.uniform(layers=32, kv_heads=1, head_dim=1), formats)
    with pytest.raises(Conflict, match=r"3\.\.2 is empty"):
        LayerRangeFormat(first=3, last=2, format=wide)


def test_compressed_growth_is_exact_over_its_period() -> None:
    """One entry of 512 for 4 tokens and one for 128 add 33,792 B every 128 tokens."""
    model = ModelState.of_layers(
        [
            Layer(states=(LatentAttention(latent_dim=512, rope_dim=0, tokens_per_entry=ratio),))
            for ratio in (4, 128)
        ]
    )
    shape = shape_of(model, KvFormats.same(FP16))
    assert (shape.growth_bytes, shape.growth_tokens) == (33 * 1024, 128)
    assert shape.bytes_per_token == 264
    assert shape.workings["bytes_per_token"].numbers == (
        "(1 layer × (512 latent + 0 rope) × 2 B) × 32 + "
        "1 layer × (512 latent + 0 rope) × 2 B = 33792 B per 128 tokens"
    )


@pytest.mark.parametrize(
    ("state", "pair", "numbers"),
    [
        (FullAttention(kv_heads=8, k_dim=128, v_dim=128), ("fp16", "fp16"),
         "2 × 1 layer × 8 KV heads × 128 × 2 B = 4096 B/token"),
        (FullAttention(kv_heads=1, k_dim=192, v_dim=128), ("fp16", "fp16"),
         "1 layer × 1 KV head × (192 + 128) × 2 B = 640 B/token"),
        (FullAttention(kv_heads=8, k_dim=128, v_dim=128), ("q8_0", "q4_0"),
         "1 layer × 8 KV heads × (128 × 34/32 B + 128 × 18/32 B) = 1664 B/token"),
        (FullAttention(kv_heads=3, k_dim=16, v_dim=16, index_dim=14), ("bf16", "bf16"),
         "2 × 1 layer × 3 KV heads × 16 × 2 B + 1 layer × 14 index × 2 B = 220 B/token"),
        (LatentAttention(latent_dim=512, rope_dim=64, index_dim=128), ("bf16", "bf16"),
         "1 layer × (512 latent + 64 rope + 128 index) × 2 B = 1408 B/token"),
        (LatentAttention(latent_dim=24, rope_dim=8, index_dim=14, index_format=DTYPES["fp32"]),
         ("bf16", "bf16"),
         "1 layer × (24 latent + 8 rope) × 2 B + 1 layer × 14 index × 4 B = 120 B/token"),
    ],
)  # fmt: skip
def test_formulas_carry_the_numbers(
    state: FullAttention | LatentAttention, pair: tuple[str, str], numbers: str
) -> None:
    """A formula shows the request's own numbers and ends in its result."""
    model = ModelState.of_layers([Layer(states=(state,))])
    shape = shape_of(model, KvFormats.same(DTYPES[pair[0]], DTYPES[pair[1]]))
    assert shape.workings["bytes_per_token"].numbers == numbers


def test_scales_are_named_where_they_are_not_counted() -> None:
    """int8 keeps scales that depend on the engine; q8_0 counts its own."""
    codes = {note.code for note in omissions(KvFormats.same(DTYPES["int8"]))}
    assert "quantisation_scales" in codes
    assert "quantisation_scales" not in {n.code for n in omissions(KvFormats.same(DTYPES["q8_0"]))}
