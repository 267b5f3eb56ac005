"""Who holds what: stages, heads, copies, interleaved positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, DomainError, OutOfRange, Unsupported
from app.domain.formats import KvFormats, LayerRangeFormat
from app.domain.ledgers import ledgers
from app.domain.lengths import RequestLengths
from app.domain.parallel import Parallel, parallel
from app.domain.rank_shares import Degrees, heads_of_rank, share_of, stage_layers
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    StateTensor,
)
from tests.domain.strategies import block_sizes, formats, models, small_lengths

BF16 = KvFormats.same(DTYPES["bf16"])
MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "vllm_parallel.json").read_text()
)
GIB = 2**30


def split(
    model: ModelState, degrees: Degrees, lengths: list[int], block_size: int = 16
) -> Parallel:
    """Return the ranks of a model in bf16."""
    return parallel(model, BF16, RequestLengths.of_list(lengths), block_size, degrees)


def test_there_are_measured_cases() -> None:
    """The measured partitions and heads are not empty."""
    assert len(MEASURED["pp_partition"]) >= 165
    assert len(MEASURED["kv_heads_per_rank"]) >= 153


@pytest.mark.parametrize(
    "row", MEASURED["pp_partition"], ids=lambda row: f"{row['L']} over {row['pp']}"
)
def test_stages_as_measured(row: dict[str, Any]) -> None:
    """Layers fall on stages as the engine's own partition has them."""
    assert list(stage_layers(row["L"], row["pp"])) == row["partition"]


@pytest.mark.parametrize(
    "row", MEASURED["kv_heads_per_rank"], ids=lambda row: f"{row['total_kv_heads']} on {row['tp']}"
)
def test_heads_as_measured(row: dict[str, Any]) -> None:
    """Heads split or are copied where one number divides the other, and are refused elsewhere."""
    heads, ranks = row["total_kv_heads"], row["tp"]
    if not row["exact_split"] and not row["exact_replication"]:
        with pytest.raises(Unsupported):
            heads_of_rank(heads, ranks, 0)
        return
    held = [heads_of_rank(heads, ranks, rank) for rank in range(ranks)]
    assert {len(own) for own, _ in held} == {row["model_config_kv_heads_per_rank"]}
    assert sorted(head for own, _ in held for head in own) == sorted(
        head for head in range(heads) for _ in range(held[0][1])
    )


@pytest.mark.parametrize(
    ("layers", "stages", "given_stages", "expected"),
    [
        (32, 4, None, (8, 8, 8, 8)),
        (32, 3, None, (11, 11, 10)),
        (61, 4, None, (15, 15, 16, 15)),
        (48, 2, (16, 32), (16, 32)),
        (1, 1, None, (1,)),
    ],
)
def test_stages(
    layers: int, stages: int, given_stages: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    """The remainder goes to the stages before the last; given stages are taken as given."""
    assert stage_layers(layers, stages, given_stages) == expected


@pytest.mark.parametrize("given_stages", [(16, 15), (32,), (32, 0), (33, -1)])
def test_given_stages_must_add_up(given_stages: tuple[int, ...]) -> None:
    """Stages that do not add up, or hold nothing, are refused."""
    with pytest.raises(DomainError, match="layers_per_stage"):
        stage_layers(32, 2, given_stages)


def test_eight_heads_over_four_ranks() -> None:
    """Four ranks hold two of eight heads each."""
    answer = split(
        ModelState.uniform(layers=32, kv_heads=8, head_dim=128), Degrees(tensor=4), [1024]
    )
    assert [rank.kv_heads for rank in answer.ranks] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {rank.copies for rank in answer.ranks} == {1}
    assert answer.replicated_bytes == 0
    assert answer.why == ()


def test_eight_heads_over_sixteen_ranks() -> None:
    """Sixteen ranks hold each of eight heads twice over, so that the total doubles."""
    answer = split(
        ModelState.uniform(layers=32, kv_heads=8, head_dim=128), Degrees(tensor=16), [1024]
    )
    assert [rank.kv_heads for rank in answer.ranks[:4]] == [(0,), (0,), (1,), (1,)]
    assert {rank.copies for rank in answer.ranks} == {2}
    assert answer.total_bytes == 2 * answer.single.effective_bytes == 2 * 131_072 * 1024
    assert answer.replicated_bytes == 131_072 * 1024
    assert answer.naive_bytes == 131_072 * 1024 // 16
    assert [note.code for note in answer.why] == ["copied_heads"]


DEEPSEEK = ModelState.of_layers(
    [Layer(states=(LatentAttention(latent_dim=512, rope_dim=64),))] * 61
)


def test_a_latent_is_whole_on_every_tensor_rank() -> None:
    """61 layers of 512 + 64 hold 70,272 B a token on each of eight tensor ranks."""
    answer = split(DEEPSEEK, Degrees(tensor=8), [131_072])
    assert {rank.bytes_per_token for rank in answer.ranks} == {70_272}
    assert {rank.copies for rank in answer.ranks} == {8}
    assert answer.total_bytes == 8 * 70_272 * 131_072


def test_decode_context_gives_a_position_to_one_rank() -> None:
    """With eight decode-context ranks every position of a latent lies on one of them."""
    answer = split(DEEPSEEK, Degrees(tensor=8, decode_context=8), [8 * 100 + 3])
    assert [rank.effective_bytes // 70_272 for rank in answer.ranks] == [101] * 3 + [100] * 5
    assert {rank.copies for rank in answer.ranks} == {1}
    assert answer.total_bytes == 803 * 70_272
    assert answer.ranks[0].growth_bytes == 70_272
    assert answer.ranks[0].growth_tokens == 8


def test_a_window_is_not_interleaved() -> None:
    """Decode-context ranks share out full attention; windows beside it are copied on each."""
    model = ModelState.of_layers(
        [
            Layer(states=(FullAttention(kv_heads=1, k_dim=64, v_dim=64),)),
            Layer(states=(SlidingWindow(kv_heads=1, k_dim=64, v_dim=64, window=101),)),
        ]
    )
    answer = split(model, Degrees(tensor=2, decode_context=2), [1000])
    assert [rank.effective_bytes for rank in answer.ranks] == [(500 + 100) * 256] * 2


def test_the_largest_llama() -> None:
    """126 layers of 8 heads keep 63.0 GiB at 131,072 tokens: 7.875 GiB on each of eight ranks."""
    answer = split(
        ModelState.uniform(layers=126, kv_heads=8, head_dim=128), Degrees(tensor=8), [131_072]
    )
    assert answer.total_bytes == 63 * GIB
    assert {rank.effective_bytes for rank in answer.ranks} == {63 * GIB // 8}


def test_data_parallelism_divides_nothing() -> None:
    """62 layers of 8 heads × 128 cost 253,952 B a token on a rank whatever the replicas."""
    answer = split(
        ModelState.uniform(layers=62, kv_heads=8, head_dim=128), Degrees(data=8), [262_144]
    )
    assert [rank.bytes_per_token for rank in answer.ranks] == [253_952]
    assert answer.total_bytes == 62 * GIB
    assert [note.code for note in answer.why] == ["data_parallel"]


def test_uneven_stages_in_a_log() -> None:
    """48 layers as 16 and 32: 24 GiB in all are 8 GiB on the first stage, not 24."""
    answer = split(
        ModelState.uniform(layers=48, kv_heads=4, head_dim=128),
        Degrees(pipeline=2, layers_per_stage=(16, 32)),
        [262_144],
    )
    assert [(rank.first_layer, rank.last_layer) for rank in answer.ranks] == [(0, 15), (16, 47)]
    assert [rank.effective_bytes for rank in answer.ranks] == [8 * GIB, 16 * GIB]
    assert answer.largest.pipeline_rank == 1
    assert [note.code for note in answer.why] == ["uneven_stages"]


def test_formats_go_with_their_layers() -> None:
    """A layer that keeps another format keeps it on its stage."""
    fp32 = KvFormat(key=DTYPES["fp32"], value=DTYPES["fp32"])
    mixed = KvFormats(base=BF16.base, ranges=(LayerRangeFormat(first=1, last=2, format=fp32),))
    answer = parallel(
        ModelState.uniform(layers=4, kv_heads=1, head_dim=1),
        mixed,
        RequestLengths.of_list([10]),
        1,
        Degrees(pipeline=4),
    )
    assert [rank.effective_bytes for rank in answer.ranks] == [40, 80, 80, 40]


def state_tensor(shape: tuple[int, ...], axis: int | None) -> Recurrent:
    """Return a recurrent state of one fp32 tensor."""
    return Recurrent(
        tensors=(StateTensor(name="ssm", shape=shape, dtype=DTYPES["fp32"], split_axis=axis),)
    )


@pytest.mark.parametrize(
    ("state", "tensor", "held", "copies"),
    [
        (state_tensor((32, 128), 0), 8, 4 * 128 * 4, 1),
        (state_tensor((32, 128), None), 8, 32 * 128 * 4, 8),
        (state_tensor((2, 128), 0), 8, 128 * 4, 4),
        (state_tensor((0,), None), 2, 0, 1),
    ],
)
def test_a_recurrent_state_is_split_by_its_own_heads(
    state: Recurrent, tensor: int, held: int, copies: int
) -> None:
    """A recurrent state is divided along its own axis, or copied where it has none to divide."""
    share = share_of(state, Degrees(tensor=tensor), 0)
    assert (share.state.fixed_bytes(), share.copies) == (held, copies)


def test_every_kind_has_a_share() -> None:
    """Chunks and the encoder's keys split by heads; a sharing layer holds nothing anywhere."""
    model = ModelState.of_layers(
        [
            Layer(states=(ChunkedAttention(kv_heads=4, k_dim=8, v_dim=8, chunk=100),)),
            Layer(states=(CrossAttention(kv_heads=4, k_dim=8, v_dim=8, encoder_tokens=10),)),
            Layer(states=(state_tensor((4, 2), 0),)),
            Layer(states=(Shared(with_layer=0),)),
            Layer(states=()),
        ]
    )
    answer = split(model, Degrees(tensor=2), [150])
    assert {rank.effective_bytes for rank in answer.ranks} == {(50 + 10) * 2 * 16 * 2 + 16}
    assert answer.ranks[0].kv_heads == (0, 1)
    assert "recurrent_split" in [note.code for note in answer.why]


def test_sharing_across_stages_is_said() -> None:
    """Where a layer may read another stage's cache, the assumption is stated."""
    full = FullAttention(kv_heads=1, k_dim=1, v_dim=1)
    model = ModelState.of_layers([Layer(states=(full,)), Layer(states=(Shared(with_layer=0),))])
    assert "shared_across_stages" in [
        note.code for note in split(model, Degrees(pipeline=2), [1]).why
    ]
    assert split(model, Degrees(), [1]).why == ()


def test_a_stage_that_keeps_nothing() -> None:
    """A stage of layers that keep nothing has no heads and no bytes."""
    model = ModelState.of_layers(
        [Layer(states=(FullAttention(kv_heads=1, k_dim=1, v_dim=1),)), Layer(states=())]
    )
    last = split(model, Degrees(pipeline=2), [10]).ranks[1]
    assert (last.kv_heads, last.copies, last.effective_bytes) == ((), 1, 0)


@pytest.mark.parametrize(
    ("degrees", "field"),
    [
        ({"tensor": 0}, "tensor_parallel"),
        ({"pipeline": 0}, "pipeline_parallel"),
        ({"data": 0}, "data_parallel"),
        ({"tensor": 4, "decode_context": 3}, "decode_context_parallel"),
    ],
)
def test_degrees_are_checked(degrees: dict[str, int], field: str) -> None:
    """No ranks, or decode-context ranks that do not divide the tensor ranks, are refused."""
    with pytest.raises(DomainError) as raised:
        Degrees(**degrees)  # type: ignore[arg-type] # each is a degree
    assert raised.value.field == (field,)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (Degrees(tensor=7), "neither divides the other"),
        (Degrees(pipeline=64), "a stage would be empty"),
        (Degrees(tensor=8, decode_context=2), "copies of a KV head"),
        (Degrees(tensor=4096, pipeline=2), "between 1 and 4096"),
    ],
)
def test_what_cannot_be_split_is_refused(degrees: Degrees, message: str) -> None:
    """Heads, layers and copies that do not divide are refused in a sentence."""
    with pytest.raises(DomainError, match=message):
        split(ModelState.uniform(layers=32, kv_heads=8, head_dim=128), degrees, [1])


def test_a_recurrent_state_that_does_not_divide() -> None:
    """A state of three heads over two ranks is refused."""
    model = ModelState.of_layers([Layer(states=(state_tensor((3, 2), 0),))])
    with pytest.raises(Unsupported, match="recurrent state's ssm"):
        split(model, Degrees(tensor=2), [1])


def test_the_work_is_bounded() -> None:
    """More sums over lengths than a request may ask for are refused."""
    with pytest.raises(OutOfRange, match="sums"):
        split(
            ModelState.uniform(layers=1024, kv_heads=1, head_dim=1),
            Degrees(pipeline=1024),
            list(range(1000)),
        )


def test_the_heads_named_are_bounded() -> None:
    """An answer does not list tens of millions of heads."""
    with pytest.raises(OutOfRange, match="heads") as raised:
        split(
            ModelState.uniform(layers=1024, kv_heads=65_536, head_dim=1),
            Degrees(pipeline=1024),
            [1],
        )
    assert raised.value.field == ("pipeline_parallel",)


def test_stages_that_do_not_add_up_are_a_conflict() -> None:
    """A list of stages of another length is a conflict."""
    with pytest.raises(Conflict):
        stage_layers(32, 3, (16, 16))


@given(models(), formats(), small_lengths, block_sizes, st.integers(1, 6))
def test_stages_sum_to_the_whole(
    model: ModelState, kept: KvFormats, lengths: list[int], block_size: int, stages: int
) -> None:
    """Stages divide layers, so effective and paged bytes of all stages are those of the whole."""
    asked = RequestLengths.of_list(lengths)
    degrees = Degrees(pipeline=min(stages, model.num_layers))
    answer = parallel(model, kept, asked, block_size, degrees)
    whole = ledgers(model, kept, asked, block_size)
    assert sum(rank.effective_bytes for rank in answer.ranks) == whole.effective_bytes
    assert sum(rank.paged_bytes for rank in answer.ranks) == whole.paged_bytes
    assert answer.replicated_bytes == 0


@given(
    models(st.builds(FullAttention, kv_heads=st.sampled_from([4, 8]), k_dim=st.integers(1, 64),
                     v_dim=st.integers(1, 64))),
    formats(), small_lengths, block_sizes, st.sampled_from([1, 2, 4, 8, 16, 32]),
)  # fmt: skip
def test_shards_sum_to_the_whole_times_the_copies(
    model: ModelState, kept: KvFormats, lengths: list[int], block_size: int, tensor: int
) -> None:
    """Tensor ranks hold every head, each as often as it is copied, in all three ledgers."""
    asked = RequestLengths.of_list(lengths)
    answer = parallel(model, kept, asked, block_size, Degrees(tensor=tensor))
    whole = ledgers(model, kept, asked, block_size)
    least = sum(rank.effective_bytes for rank in answer.ranks)
    assert least >= whole.effective_bytes
    if tensor <= 4:
        assert least == whole.effective_bytes
        assert sum(rank.paged_bytes for rank in answer.ranks) == whole.paged_bytes
        assert sum(rank.padded_bytes for rank in answer.ranks) == whole.padded_bytes


@given(small_lengths, block_sizes, st.sampled_from([1, 2, 4, 8]))
def test_interleaved_positions_sum_to_the_whole(
    lengths: list[int], block_size: int, context: int
) -> None:
    """Decode-context ranks hold each position once: together one copy of the state."""
    asked = RequestLengths.of_list(lengths)
    degrees = Degrees(tensor=8, decode_context=context)
    answer = parallel(DEEPSEEK, BF16, asked, block_size, degrees)
    whole = ledgers(DEEPSEEK, BF16, asked, block_size)
    assert answer.total_bytes == whole.effective_bytes * 8 // context
