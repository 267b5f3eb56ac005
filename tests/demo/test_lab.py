"""The lab's answers: the worked question at every format, refusals, and drawn questions."""

from __future__ import annotations

from typing import Any

import pytest

from app.demo.backends import is_torch_installed
from app.demo.lab import AttentionAnswer, answer_attention, draw_question
from app.demo.quantise import LAB_DTYPES
from app.domain.attention import AttentionInputs, attention_inputs
from app.domain.errors import OutOfRange, Unknown

DEVICES = [
    "numpy",
    pytest.param(
        "cpu",
        marks=[
            pytest.mark.torch,
            pytest.mark.skipif(not is_torch_installed(), reason="torch is not installed"),
        ],
    ),
]


def worked(**changes: object) -> AttentionInputs:
    """Return the worked question, zero query, history 2, new value 4, with fields changed."""
    question: dict[str, Any] = {
        "query": [0],
        "past_keys": [[0]],
        "past_values": [[2]],
        "new_key": [0],
        "new_value": [4],
    }
    return attention_inputs(**{**question, **changes})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LAB_DTYPES)
def test_the_worked_question_is_exact_at_every_format(device: str, dtype: str) -> None:
    """Weights of a half each, output 3, without the history 4, whatever the cache's format."""
    answer = answer_attention(worked(), dtype=dtype, device=device)
    assert answer.output == ((3.0,),)
    assert answer.weights == ((0.5, 0.5),)
    assert answer.scores == ((0.0, 0.0),)
    assert answer.keys == ((0.0,), (0.0,))
    assert answer.values == ((2.0,), (4.0,))
    assert answer.without_history.output == ((4.0,),)
    assert answer.without_history.max_abs_difference == 1
    assert answer.reference.output == ((3.0,),)
    assert answer.recomputed.is_bit_equal
    assert answer.is_single
    assert answer.dtype == dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LAB_DTYPES)
def test_scores_of_ten_thousand_do_not_overflow(device: str, dtype: str) -> None:
    """A query of 10,000 over equal keys still weighs them alike."""
    question = worked(query=[10_000], past_keys=[[1]], new_key=[1])
    answer = answer_attention(question, dtype=dtype, device=device)
    assert answer.output == ((3.0,),)
    assert answer.scores == ((10_000.0, 10_000.0),)


def test_the_answer_says_where_it_was_computed() -> None:
    """Backend, device, format and the bytes kept stand in the answer."""
    answer = answer_attention(worked(), dtype="bfloat16", device="numpy")
    assert (answer.backend, answer.device, answer.dtype) == ("numpy", "cpu", "bf16")
    assert answer.cache_bytes == 2 * 2 * 2
    assert [note.code for note in answer.assumptions] == ["one_head", "cache_format"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", LAB_DTYPES)
@pytest.mark.parametrize(("past", "new"), [(0, 1), (5, 1), (0, 4), (7, 5)])
def test_cached_steps_lie_within_the_bound_of_the_recompute(
    device: str, dtype: str, past: int, new: int
) -> None:
    """Step by step and all at once differ by rounding: at most twice the bound of the answer."""
    question = draw_question(seed=3, past_tokens=past, new_tokens=new, width=4)
    answer = answer_attention(question, dtype=dtype, device=device)
    assert answer.recomputed.max_abs_difference <= 2 * answer.rounding_bound < 1e-4
    assert [sum(row) for row in answer.weights] == pytest.approx([1] * new, abs=1e-6)
    assert len(answer.output) == new
    if dtype == "fp32":
        # Rounding what was given to binary32 is not in the bound, which is about what is kept.
        assert answer.reference.max_abs_difference < 1e-6


def test_lower_precision_shows_against_the_reference() -> None:
    """The coarser the format, the further from the exact answer to the numbers as given."""
    question = draw_question(seed=0, past_tokens=12, new_tokens=1, width=8)

    def distance(dtype: str) -> float:
        answer = answer_attention(question, dtype=dtype, device="numpy")
        return answer.reference.max_abs_difference

    assert distance("fp32") < distance("fp16") < distance("bf16") < distance("fp8")
    assert distance("int8") < distance("int4")


def test_positions_out_of_sight_have_no_score() -> None:
    """A window of 2 hides the cache from the second query; the mask, what comes after the first."""
    answer = answer_attention(
        attention_inputs(
            queries=[[0], [0]],
            past_keys=[[0]],
            past_values=[[6]],
            new_keys=[[0], [0]],
            new_values=[[2], [4]],
            window=2,
        ),
        device="numpy",
    )
    assert answer.scores == ((0.0, 0.0, None), (None, 0.0, 0.0))
    assert answer.weights == ((0.5, 0.5, 0.0), (0.0, 0.5, 0.5))
    assert answer.output == ((4.0,), (3.0,))
    assert answer.assumptions[-1].code == "windowed"
    assert not answer.is_single


def refused(inputs: AttentionInputs, **settings: object) -> tuple[type[Exception], object]:
    """Return the class and the field of the error that a question meets."""
    with pytest.raises((OutOfRange, Unknown)) as caught:
        answer_attention(inputs, **settings)
    return type(caught.value), caught.value.field


@pytest.mark.parametrize(
    ("changes", "settings", "field"),
    [
        ({"new_key": [65_505]}, {"dtype": "fp16"}, ("new_key", 0)),
        ({"past_values": [[-449]]}, {"dtype": "fp8"}, ("past_values", 0, 0)),
        ({"past_keys": [[449]]}, {"dtype": "e4m3"}, ("past_keys", 0, 0)),
    ],
)
def test_numbers_that_a_format_cannot_hold_are_refused(
    changes: dict[str, object], settings: dict[str, object], field: tuple[str | int, ...]
) -> None:
    """A number beyond the format's largest is an error at its place, not a clipped number."""
    assert refused(worked(**changes), **settings) == (OutOfRange, field)


def test_several_new_rows_are_named_by_index() -> None:
    """In the plural form the refused number is pointed at by row and column."""
    inputs = attention_inputs(queries=[[0]], new_keys=[[0]], new_values=[[500]])
    assert refused(inputs, dtype="fp8") == (OutOfRange, ("new_values", 0, 0))


def test_the_largest_numbers_of_a_format_are_kept() -> None:
    """65504 fits fp16, and 448 fits fp8."""
    assert answer_attention(worked(new_value=[65_504]), dtype="fp16", device="numpy").values == (
        (2.0,),
        (65_504.0,),
    )
    assert answer_attention(worked(new_value=[448]), dtype="fp8", device="numpy").values == (
        (2.0,),
        (448.0,),
    )


@pytest.mark.parametrize(
    ("settings", "field"), [({"dtype": "fp3"}, ("dtype",)), ({"device": "abacus"}, ("device",))]
)
def test_unknown_formats_and_devices_are_refused(
    settings: dict[str, object], field: tuple[str, ...]
) -> None:
    """A name that means no format or no device is an error of that field."""
    assert refused(worked(), **settings) == (Unknown, field)


def test_drawn_questions_repeat_by_seed() -> None:
    """A seed and a shape give the same numbers again, with two decimals; another seed others."""
    first = draw_question(seed=5, past_tokens=3, new_tokens=2, width=2)
    assert first == draw_question(seed=5, past_tokens=3, new_tokens=2, width=2)
    assert first != draw_question(seed=6, past_tokens=3, new_tokens=2, width=2)
    assert all(round(x, 2) == x for row in first.keys + first.values for x in row)
    assert (first.past_tokens, len(first.queries), first.is_single) == (3, 2, False)
    checked = attention_inputs(
        queries=first.queries,
        past_keys=first.past_keys,
        past_values=first.past_values,
        new_keys=first.new_keys,
        new_values=first.new_values,
    )
    assert checked == first


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"past_tokens": 65}, "past_tokens"),
        ({"new_tokens": 0}, "new_tokens"),
        ({"width": 17}, "width"),
    ],
)
def test_drawn_questions_are_bounded(changes: dict[str, int], field: str) -> None:
    """A drawn question is small enough to show."""
    sizes = {"seed": 0, "past_tokens": 1, "new_tokens": 1, "width": 1, **changes}
    with pytest.raises(OutOfRange) as caught:
        draw_question(**sizes)
    assert caught.value.field == (field,)


def test_an_answer_is_made_of_plain_numbers() -> None:
    """Nothing of NumPy or torch is left in an answer, so that it can be sent as it is."""
    answer: AttentionAnswer = answer_attention(worked(), device="numpy")
    for rows in (answer.output, answer.weights, answer.keys, answer.recomputed.output):
        assert {type(element) for row in rows for element in row} == {float}
    assert type(answer.recomputed.is_bit_equal) is bool
    assert type(answer.rounding_bound) is float
