"""The reference attention: worked values, the laws of softmax, and every refusal by name."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.attention import (
    MAX_POSITIONS,
    MAX_QUERIES,
    MAX_WIDTH,
    AttentionInputs,
    attend,
    attention_inputs,
    cached_attention,
    visible_from,
)
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, WrongType

NUMBERS = st.floats(min_value=-100, max_value=100, allow_nan=False)


@st.composite
def questions(draw: st.DrawFn, *, most_queries: int = 4) -> AttentionInputs:
    """Draw a question of small shapes."""
    width, value_width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    past, new = draw(st.integers(0, 8)), draw(st.integers(1, most_queries))

    def rows(count: int, size: int) -> list[list[float]]:
        row = st.lists(NUMBERS, min_size=size, max_size=size)
        return draw(st.lists(row, min_size=count, max_size=count))

    return attention_inputs(
        queries=rows(new, width),
        past_keys=rows(past, width),
        past_values=rows(past, value_width),
        new_keys=rows(new, width),
        new_values=rows(new, value_width),
        window=draw(st.none() | st.integers(1, 12)),
    )


def test_zero_query_weighs_all_positions_alike() -> None:
    """A query of zero gives history 2 and new 4 a half each: 3; without the history it is 4."""
    step = cached_attention([0], [[0]], [[2]], [0], [4])
    assert step.weights == (0.5, 0.5)
    assert step.output == (3.0,)
    assert step.keys == ((0.0,), (0.0,))
    assert step.values == ((2.0,), (4.0,))
    assert cached_attention([0], [], [], [0], [4]).output == (4.0,)


def test_weights_follow_the_scaled_dot_product() -> None:
    """Keys with scores ln 3 apart are weighed 3 : 1; the scale is the root of the key width."""
    step = cached_attention([0, 2, 0, 0], [[0, math.log(3), 0, 0]], [[8, 0]], [0] * 4, [0, 4])
    assert step.weights == pytest.approx((0.75, 0.25), rel=1e-15)
    assert step.output == pytest.approx((6.0, 1.0), rel=1e-15)


@pytest.mark.parametrize("size", [10_000.0, -10_000.0, 1e15])
def test_large_scores_do_not_overflow(size: float) -> None:
    """The largest score is subtracted first, so equal huge scores still weigh a half each."""
    assert cached_attention([size], [[1]], [[2]], [1], [4]).output == (3.0,)


def test_a_far_larger_score_takes_all_the_weight() -> None:
    """Scores 10^30 apart leave the smaller one a weight of exactly zero."""
    assert cached_attention([1e15], [[1e15]], [[2]], [-1e15], [4]).weights == (1.0, 0.0)


def test_caller_lists_are_left_alone() -> None:
    """Appending happens in the answer, not in the lists of the caller."""
    keys, values = [[1.0]], [[2.0]]
    cached_attention([1], keys, values, [1], [1])
    assert keys == [[1.0]]
    assert values == [[2.0]]


@given(questions())
def test_weights_of_every_query_sum_to_one(inputs: AttentionInputs) -> None:
    """Weights are between 0 and 1 and sum to 1 within one rounding a weight."""
    for row in attend(inputs).weights:
        assert all(0 <= weight <= 1 for weight in row)
        assert abs(math.fsum(row) - 1) <= len(row) * 2**-53


@given(questions())
def test_output_lies_between_the_values_it_mixes(inputs: AttentionInputs) -> None:
    """An output element is a mean of values, so it stays between the least and the greatest."""
    values = inputs.values
    for row in attend(inputs).outputs:
        for column, element in enumerate(row):
            low = min(value[column] for value in values)
            high = max(value[column] for value in values)
            slack = 1e-13 * max(abs(low), abs(high), 1)
            assert low - slack <= element <= high + slack


@given(questions(most_queries=1), st.randoms(use_true_random=False))
def test_keys_and_values_permuted_together_change_nothing(
    inputs: AttentionInputs, rng: random.Random
) -> None:
    """Which slot holds which position does not matter while a key keeps its value: bit for bit."""
    pairs = list(zip(inputs.past_keys, inputs.past_values, strict=True))
    rng.shuffle(pairs)
    one = cached_attention(
        inputs.queries[0],
        inputs.past_keys,
        inputs.past_values,
        inputs.new_keys[0],
        inputs.new_values[0],
    )
    other = cached_attention(
        inputs.queries[0],
        [key for key, _ in pairs],
        [value for _, value in pairs],
        inputs.new_keys[0],
        inputs.new_values[0],
    )
    assert one.output == other.output


def test_keys_permuted_alone_change_the_output() -> None:
    """Keys that swap their values describe another history."""
    kept = cached_attention([1], [[0], [2]], [[1], [5]], [0], [0])
    swapped = cached_attention([1], [[2], [0]], [[1], [5]], [0], [0])
    assert abs(kept.output[0] - swapped.output[0]) > 1


@given(questions())
def test_several_queries_equal_one_step_after_another(inputs: AttentionInputs) -> None:
    """The triangular mask is what step by step does by itself: equal to the last bit."""
    together = attend(inputs).outputs
    for index, query in enumerate(inputs.queries):
        step = cached_attention(
            query,
            inputs.past_keys + inputs.new_keys[:index],
            inputs.past_values + inputs.new_values[:index],
            inputs.new_keys[index],
            inputs.new_values[index],
            window=inputs.window,
        )
        assert step.output == together[index]


def test_masked_positions_have_no_score_and_no_weight() -> None:
    """Of two new positions the first does not see the second, and a window of 2 hides the cache."""
    attended = attend(
        attention_inputs(
            queries=[[0], [0]],
            past_keys=[[0]],
            past_values=[[6]],
            new_keys=[[0], [0]],
            new_values=[[2], [4]],
            window=2,
        )
    )
    assert attended.weights == ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5))
    assert attended.scores == ((0.0, 0.0, None), (None, 0.0, 0.0))
    assert attended.outputs == ((4.0,), (3.0,))


def test_window_of_one_sees_only_itself() -> None:
    """With a window of 1 every earlier position weighs 0 and the output is the new value."""
    step = cached_attention([0], [[0], [0]], [[2], [2]], [0], [4], window=1)
    assert step.weights == (0.0, 0.0, 1.0)
    assert step.output == (4.0,)


@pytest.mark.parametrize(
    ("position", "window", "first"), [(5, None, 0), (5, 1, 5), (5, 3, 3), (5, 6, 0), (5, 99, 0)]
)
def test_first_visible_position(position: int, window: int | None, first: int) -> None:
    """A window of w shows the query's own position and the w - 1 before it."""
    assert visible_from(position, window) == first


def test_dropping_the_history_keeps_the_new_positions() -> None:
    """The question without its cache still has its queries, keys, values and window."""
    inputs = attention_inputs(
        query=[0], past_keys=[[0]], past_values=[[2]], new_key=[0], new_value=[4], window=7
    )
    dropped = inputs.without_history()
    assert (dropped.past_tokens, dropped.window, dropped.is_single) == (0, 7, True)
    assert attend(dropped).outputs == ((4.0,),)


def asked(**changes: object) -> dict[str, Any]:
    """Return the worked question with some fields changed."""
    question: dict[str, Any] = {
        "query": [0],
        "past_keys": [[0]],
        "past_values": [[2]],
        "new_key": [0],
        "new_value": [4],
    }
    return {**question, **changes}


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"query": []}, Missing, ("query",)),
        ({"query": None}, Missing, ("query",)),
        ({"queries": [[0]]}, Conflict, ("queries",)),
        ({"query": None, "queries": []}, Missing, ("queries",)),
        ({"query": None, "queries": [[0], [1]]}, Conflict, ("new_key",)),
        ({"query": [0, 1]}, Conflict, ("new_key",)),
        ({"query": "0"}, WrongType, ("query",)),
        ({"query": [True]}, WrongType, ("query", 0)),
        ({"query": ["1"]}, WrongType, ("query", 0)),
        ({"query": [[0]]}, WrongType, ("query", 0)),
        ({"query": [math.nan]}, OutOfRange, ("query", 0)),
        ({"query": [10**400]}, OutOfRange, ("query", 0)),
        ({"query": [-1.1e15]}, OutOfRange, ("query", 0)),
        ({"query": [0] * (MAX_WIDTH + 1)}, OutOfRange, ("query",)),
        ({"new_key": None}, Missing, ("new_key",)),
        ({"new_key": []}, Missing, ("new_key",)),
        ({"new_key": [0, 0]}, Conflict, ("new_key",)),
        ({"new_value": []}, Missing, ("new_value",)),
        ({"new_value": [1, 2]}, Conflict, ("new_value",)),
        ({"new_value": [math.inf]}, OutOfRange, ("new_value", 0)),
        ({"past_keys": []}, Conflict, ("past_values",)),
        ({"past_values": []}, Conflict, ("past_values",)),
        ({"past_keys": [[]]}, Missing, ("past_keys", 0)),
        ({"past_keys": [[0], [0, 1]], "past_values": [[2], [2]]}, Conflict, ("past_keys", 1)),
        ({"past_keys": [0]}, WrongType, ("past_keys", 0)),
        ({"past_keys": 3}, WrongType, ("past_keys",)),
        ({"past_keys": [[math.inf]]}, OutOfRange, ("past_keys", 0, 0)),
        ({"past_values": [[-math.inf]]}, OutOfRange, ("past_values", 0, 0)),
        ({"past_keys": [[0]] * (MAX_POSITIONS + 1)}, OutOfRange, ("past_keys",)),
        ({"query": None, "queries": [[0]] * (MAX_QUERIES + 1)}, OutOfRange, ("queries",)),
        ({"window": 0}, OutOfRange, ("window",)),
        ({"window": 2.0}, WrongType, ("window",)),
    ],
)
def test_refusals_name_the_field(
    changes: dict[str, object], error: type[DomainError], field: tuple[str | int, ...]
) -> None:
    """What cannot be attended over is refused, and the error carries the path to it."""
    with pytest.raises(error) as caught:
        attention_inputs(**asked(**changes))
    assert caught.value.field == field


def test_rows_of_the_plural_form_are_named_by_index() -> None:
    """A wrong row among several is pointed at, and the message says what it should match."""
    with pytest.raises(
        Conflict, match=r"new_keys\.1 must have 1 elements as queries\.0 has, got 2"
    ):
        attention_inputs(
            queries=[[0], [0]], new_keys=[[0], [0, 0]], new_values=[[1], [1]], past_keys=[]
        )


def test_work_is_bounded() -> None:
    """Shapes that pass one by one are still refused when their product would hold a worker."""
    count, width = 128, 256
    with pytest.raises(OutOfRange, match="at most 2097152") as caught:
        attention_inputs(
            queries=[[0] * width] * count,
            new_keys=[[0] * width] * count,
            new_values=[[0] * width] * count,
        )
    assert caught.value.field == ("queries",)
