"""The three ledgers: worked values, and the properties that hold for every kind of state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.dtypes import DTYPES
from app.domain.errors import OutOfRange, Unsupported, WrongType
from app.domain.formats import KvFormats
from app.domain.ledgers import Ledgers, ledgers
from app.domain.lengths import MAX_REQUESTS, RequestLengths
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    SlidingWindow,
    State,
)
from tests.domain.strategies import (
    block_sizes,
    formats,
    full,
    growing_states,
    models,
    small_lengths,
)

FP16 = KvFormats.same(DTYPES["fp16"])
UNIFORM = ModelState.uniform(layers=32, kv_heads=8, head_dim=128)


def of(model: ModelState, lengths: list[int], block_size: int = 16) -> Ledgers:
    """Return the ledgers of a list of lengths at fp16."""
    return ledgers(model, FP16, RequestLengths.of_list(lengths), block_size)


def one_layer(state: State) -> ModelState:
    """Return a model of one layer that keeps one state."""
    return ModelState.of_layers([Layer(states=(state,))])


def test_a_full_window_does_not_grow_with_the_longest_request() -> None:
    """A window of 1024 keeps 1023 positions of each request, padded or not."""
    model = one_layer(SlidingWindow(kv_heads=16, k_dim=128, v_dim=128, window=1024))
    answer = of(model, [2000, 131072])
    assert answer.effective_bytes == 2 * 1023 * 16 * 256 * 2
    assert answer.padded_bytes == answer.effective_bytes
    assert answer.paged_bytes == 2 * 1024 * 16 * 256 * 2


def test_a_chunk_starts_anew_at_its_boundary() -> None:
    """At a multiple of the chunk nothing earlier is visible; one token later, one position is."""
    model = one_layer(ChunkedAttention(kv_heads=1, k_dim=1, v_dim=1, chunk=8192))
    assert [of(model, [n]).effective_bytes for n in (8191, 8192, 8193)] == [8191 * 4, 0, 4]


def test_compressed_entries_count_complete_groups() -> None:
    """With one entry for 4 tokens, 11 tokens have 2 entries."""
    model = one_layer(LatentAttention(latent_dim=10, rope_dim=0, tokens_per_entry=4))
    assert of(model, [11]).effective_bytes == 2 * 10 * 2


def test_cross_attention_is_written_once() -> None:
    """1500 encoder positions, whatever the decoder's length; none for a request not begun."""
    model = one_layer(CrossAttention(kv_heads=20, k_dim=64, v_dim=64, encoder_tokens=1500))
    answer = of(model, [1, 400, 0])
    assert answer.effective_bytes == 2 * 1500 * 20 * 128 * 2
    assert answer.padded_bytes == 3 * 1500 * 20 * 128 * 2
    assert answer.paged_bytes == 2 * 1504 * 20 * 128 * 2
    assert answer.blocks == 0


def test_ten_million_requests_as_counts() -> None:
    """Ten million requests given as counts are exact: 10^7 × 1000 × 131072 B."""
    runs = RequestLengths.of_runs([(1000, MAX_REQUESTS)])
    answer = ledgers(UNIFORM, FP16, runs, 16)
    assert answer.effective_bytes == 1_310_720_000_000_000
    assert answer.blocks == 630_000_000


def test_a_length_of_a_billion() -> None:
    """A length of 10^9 is exact."""
    assert of(UNIFORM, [10**9]).effective_bytes == 131_072_000_000_000


@pytest.mark.parametrize("lengths", [[10**9] * 100, [10**9, *([0] * 99)]])
def test_a_total_over_8_pib_is_refused(lengths: list[int]) -> None:
    """A total, padded ones included, that a double cannot hold exactly is refused by its bound."""
    with pytest.raises(OutOfRange, match="over the bound of 8 PiB"):
        of(UNIFORM, lengths)


@pytest.mark.parametrize(
    ("lengths", "error"),
    [([True], WrongType), ([1.0], WrongType), (["7"], WrongType), ([-1], OutOfRange),
     ([10**9 + 1], OutOfRange), ([3, None], WrongType), ([10**30], OutOfRange)],
)  # fmt: skip
def test_bad_lengths_are_named(lengths: list[int], error: type[Exception]) -> None:
    """A bool, a float, a string, a negative or a huge length is refused at its place."""
    with pytest.raises(error, match=r"lengths\.\d"):
        RequestLengths.of_list(lengths)


def test_too_many_requests() -> None:
    """More than ten million requests are refused."""
    with pytest.raises(OutOfRange, match="at most 10000000 requests, got 10000001"):
        RequestLengths.of_runs([(1, MAX_REQUESTS), (1, 1)])


@pytest.mark.parametrize("size", [0, -1, 2**20 + 1])
def test_block_size_bounds(size: int) -> None:
    """A block has between one and 2^20 positions."""
    with pytest.raises(OutOfRange, match="block_size must be between 1 and 1048576"):
        of(UNIFORM, [1], size)


def test_a_row_that_does_not_divide() -> None:
    """Five heads of 8 are a row of 40, which q8_0 cannot store."""
    model = ModelState.uniform(layers=1, kv_heads=5, head_dim=8)
    with pytest.raises(Unsupported, match="row of 40"):
        ledgers(model, KvFormats.same(DTYPES["q8_0"]), RequestLengths.of_list([1]), 16)


def test_rows_are_a_page_in_the_given_order() -> None:
    """Rows follow the given order across runs."""
    runs = RequestLengths.of_runs([(5, 2), (9, 3), (1, 1)])
    answer = ledgers(UNIFORM, FP16, runs, 4)
    assert [(row.index, row.length) for row in answer.rows(1, 4)] == [
        (1, 5), (2, 9), (3, 9), (4, 9),
    ]  # fmt: skip
    assert [row.blocks for row in answer.rows(0, 100)] == [2, 2, 3, 3, 3, 1]
    assert list(answer.rows(6, 5)) == []


@given(st.integers(1, 100), st.integers(1, 64), st.integers(1, 256), small_lengths, block_sizes)
def test_textbook(layers: int, kv_heads: int, dim: int, lengths: list[int], block: int) -> None:
    """Equal layers of full attention reduce to c·ΣT, c·B·max T and c·b·Σ⌈T/b⌉."""
    model = ModelState.uniform(layers=layers, kv_heads=kv_heads, head_dim=dim)
    answer = of(model, lengths, block)
    c = 2 * layers * kv_heads * dim * 2
    assert answer.effective_bytes == c * sum(lengths)
    assert answer.padded_bytes == c * len(lengths) * max(lengths, default=0)
    assert answer.paged_bytes == c * block * sum(-(-n // block) for n in lengths)


@given(models(), formats(), small_lengths, block_sizes)
def test_paged_is_within_a_block_of_effective(
    model: ModelState, form: KvFormats, lengths: list[int], block: int
) -> None:
    """Effective ≤ paged < effective + c·b for every non-empty request, c over all paged layers."""
    answer = ledgers(model, form, RequestLengths.of_list(lengths), block)
    c = sum(group.position_bytes for group in answer.shape.groups)
    for row in answer.rows(0, len(lengths)):
        assert row.effective_bytes <= row.paged_bytes
        assert row.paged_bytes < row.effective_bytes + c * block or row.paged_bytes == (
            row.effective_bytes
        )
        assert row.length or row.paged_bytes == 0


@given(models(), formats(), small_lengths)
def test_effective_is_at_most_padded(
    model: ModelState, form: KvFormats, lengths: list[int]
) -> None:
    """Padding never takes less than what holds state, and as much when all lengths are equal."""
    answer = ledgers(model, form, RequestLengths.of_list(lengths), 16)
    assert answer.effective_bytes <= answer.padded_bytes
    if lengths and len(set(lengths)) == 1:
        assert answer.effective_bytes == answer.padded_bytes


@given(models(), formats(), small_lengths, block_sizes, st.randoms(use_true_random=False))
def test_order_does_not_matter(
    model: ModelState, form: KvFormats, lengths: list[int], block: int, random: object
) -> None:
    """The totals do not depend on the order of the requests."""
    mixed = list(lengths)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    totals = [
        (a.effective_bytes, a.padded_bytes, a.paged_bytes, a.blocks)
        for a in (ledgers(model, form, RequestLengths.of_list(x), block) for x in (lengths, mixed))
    ]
    assert totals[0] == totals[1]


@given(models(), models(), formats(), small_lengths, block_sizes)
def test_layers_add_up(
    first: ModelState, second: ModelState, form: KvFormats, lengths: list[int], block: int
) -> None:
    """The bytes of two stacks of layers add up to those of both in one model."""
    both = ModelState.of_layers([*first.layers, *second.layers])
    runs = RequestLengths.of_list(lengths)
    one, two, sum_ = (ledgers(m, form, runs, block) for m in (first, second, both))
    assert sum_.effective_bytes == one.effective_bytes + two.effective_bytes
    assert sum_.padded_bytes == one.padded_bytes + two.padded_bytes
    assert sum_.paged_bytes == one.paged_bytes + two.paged_bytes


@given(models(), formats(), small_lengths, small_lengths, block_sizes)
def test_requests_add_up(
    model: ModelState, form: KvFormats, first: list[int], second: list[int], block: int
) -> None:
    """Effective and paged bytes of two sets of requests add up."""
    one, two, both = (
        ledgers(model, form, RequestLengths.of_list(x), block)
        for x in (first, second, first + second)
    )
    assert both.effective_bytes == one.effective_bytes + two.effective_bytes
    assert both.paged_bytes == one.paged_bytes + two.paged_bytes


@given(models(growing_states()), formats(), st.integers(0, 5000), block_sizes)
def test_one_more_token_never_costs_less(
    model: ModelState, form: KvFormats, length: int, block: int
) -> None:
    """Every ledger is monotone in a request's length (but for a chunk, which starts anew)."""
    short, longer = (
        ledgers(model, form, RequestLengths.of_list([n]), block) for n in (length, length + 1)
    )
    assert short.effective_bytes <= longer.effective_bytes
    assert short.padded_bytes <= longer.padded_bytes
    assert short.paged_bytes <= longer.paged_bytes


@given(full(), st.integers(1, 4000), st.integers(0, 6000))
def test_a_window_never_costs_more_than_full_attention(
    state: FullAttention, window: int, length: int
) -> None:
    """A window keeps at most what full attention of the same heads keeps."""
    sliding = SlidingWindow(
        kv_heads=state.kv_heads, k_dim=state.k_dim, v_dim=state.v_dim, window=window
    )
    narrow, wide = of(one_layer(sliding), [length]), of(one_layer(state), [length])
    assert narrow.effective_bytes <= wide.effective_bytes
    assert wide.as_if_full_bytes == narrow.as_if_full_bytes == wide.effective_bytes


@given(full(), st.integers(0, 6000))
def test_fewer_kv_heads_never_cost_more(state: FullAttention, length: int) -> None:
    """Grouped heads cost at most what one KV head for every query head costs."""
    more = FullAttention(kv_heads=state.kv_heads * 4, k_dim=state.k_dim, v_dim=state.v_dim)
    grouped, all_heads = of(one_layer(state), [length]), of(one_layer(more), [length])
    assert 4 * grouped.effective_bytes == all_heads.effective_bytes
