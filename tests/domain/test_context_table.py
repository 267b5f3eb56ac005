"""The table over context lengths: a slope, windows that stop, a fixed part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.context_table import CONTEXT_TOKENS, context_table
from app.domain.dtypes import dtype_named
from app.domain.errors import OutOfRange, WrongType
from app.domain.formats import KvFormats
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from tests.domain.strategies import formats, models

BF16 = KvFormats.same(dtype_named("bf16"))
FULL = FullAttention(kv_heads=16, k_dim=128, v_dim=128)
WINDOW = SlidingWindow(kv_heads=16, k_dim=128, v_dim=128, window=1024)
STATE = Recurrent(tensors=(StateTensor(name="s", shape=(64, 32), dtype=dtype_named("fp32")),))
CROSS = CrossAttention(kv_heads=2, k_dim=8, v_dim=8, encoder_tokens=1500)


def model(*states: State) -> ModelState:
    """Return a model with a layer for each state."""
    return ModelState.of_layers([Layer(states=(state,)) for state in states])


def test_the_lengths_are_1k_to_1m() -> None:
    """Eleven doublings, from 1,024 to 1,048,576."""
    assert CONTEXT_TOKENS[0] == 1024
    assert CONTEXT_TOKENS[-1] == 1_048_576
    assert len(CONTEXT_TOKENS) == 11


def test_full_attention_is_a_straight_line() -> None:
    """32 layers of 8 heads × 128 in 2 bytes: 131,072 bytes a position at every length."""
    rows = context_table(ModelState.uniform(layers=32, kv_heads=8, head_dim=128), BF16)
    assert rows[0].total_bytes == 134_217_728
    assert rows[-1].total_bytes == 137_438_953_472
    assert {row.average_bytes for row in rows} == {131_072}
    assert all(row.total_bytes == row.as_if_full_bytes for row in rows)


def test_gemma_3_27b_is_not() -> None:
    """10 full layers and 52 windows of 1,024: 11,173,199,872 bytes at 131,072 positions."""
    gemma = model(*[FULL if index % 6 == 5 else WINDOW for index in range(62)])
    rows = {row.tokens: row for row in context_table(gemma, BF16)}
    assert rows[131_072].growing_bytes == 10_737_418_240
    assert rows[131_072].window_bytes == 435_781_632
    assert rows[131_072].total_bytes == 11_173_199_872
    assert rows[131_072].as_if_full_bytes == 66_571_993_088
    assert rows[1024].window_bytes == 435_781_632
    assert rows[131_072].average_bytes == 85_245


@pytest.mark.parametrize(
    ("state", "tokens", "growing", "window", "fixed", "as_if_full"),
    [
        (STATE, 1, 0, 0, 8192, 0),
        (STATE, 0, 0, 0, 0, 0),
        (CROSS, 7, 0, 0, 1500 * 64, 0),
        (CROSS, 0, 0, 0, 0, 0),
        (ChunkedAttention(kv_heads=1, k_dim=8, v_dim=8, chunk=10), 25, 0, 9 * 32, 0, 25 * 32),
        (ChunkedAttention(kv_heads=1, k_dim=8, v_dim=8, chunk=10), 7, 0, 7 * 32, 0, 7 * 32),
        (LatentAttention(latent_dim=512, rope_dim=64), 3, 3 * 1152, 0, 0, 3 * 1152),
        (LatentAttention(latent_dim=4, rope_dim=4, window=3), 9, 0, 2 * 16, 0, 9 * 16),
        (
            LatentAttention(latent_dim=4, rope_dim=4, tokens_per_entry=4),
            11,
            2 * 16,
            0,
            0,
            11 * 16,
        ),
    ],
)
def test_each_kind_has_its_part(
    state: State, tokens: int, growing: int, window: int, fixed: int, as_if_full: int
) -> None:
    """Each kind of state adds to one of the three parts, and to no other."""
    (row,) = context_table(model(state), BF16, [tokens])
    assert (row.growing_bytes, row.window_bytes, row.fixed_bytes) == (growing, window, fixed)
    assert row.as_if_full_bytes == as_if_full
    assert row.total_bytes == growing + window + fixed


def test_a_shared_layer_adds_nothing() -> None:
    """A layer that reads another's keeps no bytes."""
    (row,) = context_table(model(FULL, Shared(with_layer=0)), BF16, [2])
    assert row.total_bytes == 2 * 8192


def test_the_average_of_nothing_is_nothing() -> None:
    """No positions, no average."""
    (row,) = context_table(model(FULL), BF16, [0])
    assert (row.total_bytes, row.average_bytes) == (0, 0)


@pytest.mark.parametrize(("bad", "error"), [(-1, OutOfRange), (True, WrongType), (1.0, WrongType)])
def test_a_length_is_a_number_of_positions(bad: object, error: type[Exception]) -> None:
    """Anything else is refused by name."""
    with pytest.raises(error, match="lengths"):
        context_table(model(FULL), BF16, [bad])  # type: ignore[list-item]


@given(
    drawn=models(),
    kept=formats(),
    lengths=st.lists(st.integers(0, 10**9) | st.integers(0, 100), min_size=2, max_size=8),
)
def test_more_never_takes_less_and_a_window_never_more_than_full(
    drawn: ModelState, kept: KvFormats, lengths: list[int]
) -> None:
    """No part falls with the length; the total stays under the formula plus the fixed part."""
    rows = context_table(drawn, kept, sorted(lengths))
    for part in ("growing_bytes", "window_bytes", "fixed_bytes", "total_bytes"):
        values = [getattr(row, part) for row in rows]
        assert values == sorted(values)
    assert all(row.total_bytes <= row.as_if_full_bytes + row.fixed_bytes for row in rows)


def test_a_row_is_the_most_held_on_the_way() -> None:
    """The windows of a row are the largest of what every shorter length keeps."""
    chunk = ChunkedAttention(kv_heads=1, k_dim=8, v_dim=8, chunk=6)
    most = 0
    for row in context_table(model(chunk), BF16, range(20)):
        most = max(most, chunk.kept_tokens(row.tokens))
        assert row.window_bytes == most * 32
