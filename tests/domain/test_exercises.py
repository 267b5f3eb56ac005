"""Practice tasks: the textbook's own figures, drawn ones against the product's ledgers, judging."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.attention import cached_attention
from app.domain.dtypes import dtype_of_element_bytes
from app.domain.errors import DomainError, OutOfRange, Unknown, WrongType
from app.domain.exercises import EXERCISE_KINDS, make_exercise
from app.domain.formats import KvFormats
from app.domain.hashing import IDENTITY_FIELDS, textbook_chain
from app.domain.ledgers import ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.practice import (
    Asked,
    Draws,
    Exercise,
    FigureVerdict,
    Verdict,
    judge,
    read_figure,
)
from app.domain.state import ModelState

KINDS = list(EXERCISE_KINDS)
SEEDS = st.integers(0, 2**32 - 1)


def expected(exercise: Exercise) -> dict[str, Fraction]:
    """Return the figures that an exercise looks for."""
    return {asked.code: asked.expected for asked in exercise.figures}


def data(exercise: Exercise) -> dict[str, str]:
    """Return the lines of a question's data by code."""
    return {line.code: line.value for line in exercise.givens}


def numbers(line: str) -> list[int]:
    """Return the numbers of a line of data."""
    return [int(word) for word in line.replace(",", " ").split()]


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        (
            "capacity_whole",
            {
                "bytes_per_token": 131_072,
                "effective_bytes": 536_870_912,
                "padded_bytes": 805_306_368,
                "paged_bytes": 536_870_912,
                "tail_waste_tokens": 0,
            },
        ),
        (
            "capacity_ragged",
            {
                "bytes_per_token": 131_072,
                "effective_bytes": 10_485_760,
                "padded_bytes": 12_582_912,
                "paged_bytes": 12_582_912,
                "tail_waste_tokens": 16,
            },
        ),
        (
            "hand_attention",
            {"weight": Fraction(1, 2), "output": 3, "output_without_history": 4},
        ),
        ("adapter_changed", {"full_blocks": 2, "reusable_unchanged": 2, "reusable_changed": 0}),
        ("parent_changed", {"equal_blocks": 1, "reusable_blocks": 0, "recomputed_tokens": 4}),
        (
            "unique_blocks",
            {
                "table_entries": 6,
                "unique_blocks": 4,
                "paged_bytes": 8_388_608,
                "effective_tokens": 34,
            },
        ),
    ],
)
def test_seed_zero_is_the_textbook(kind: str, figures: dict[str, int | Fraction]) -> None:
    """Seed 0 asks for 1024 and 3072, 17, 31 and 32, q = 0, and four unique blocks."""
    assert expected(make_exercise(kind, 0)) == figures


def model_of(lines: dict[str, str]) -> tuple[ModelState, KvFormats]:
    """Return the model that a question's data describe."""
    state = ModelState.uniform(
        layers=int(lines["layers"]),
        kv_heads=int(lines["kv_heads"]),
        head_dim=int(lines["head_dim"]),
    )
    return state, KvFormats.same(dtype_of_element_bytes(int(lines["element_bytes"])))


@pytest.mark.parametrize("kind", ["capacity_whole", "capacity_ragged"])
@given(seed=SEEDS)
def test_capacity_figures_are_the_ledgers(kind: str, seed: int) -> None:
    """What a capacity task expects is what the product's ledgers say of its data."""
    exercise = make_exercise(kind, seed)
    lines = data(exercise)
    lengths = numbers(lines["lengths"])
    answer = ledgers(*model_of(lines), RequestLengths.of_list(lengths), int(lines["block_size"]))
    assert expected(exercise) == {
        "bytes_per_token": answer.shape.bytes_per_token,
        "effective_bytes": answer.effective_bytes,
        "padded_bytes": answer.padded_bytes,
        "paged_bytes": answer.paged_bytes,
        "tail_waste_tokens": answer.paged_tokens - answer.effective_tokens,
    }
    if kind == "capacity_whole":
        assert answer.paged_bytes == answer.effective_bytes < answer.padded_bytes
    else:
        assert answer.effective_bytes < answer.paged_bytes


@given(SEEDS)
def test_unique_blocks_are_those_of_a_set(seed: int) -> None:
    """Counting block tables as sets of names gives the unique blocks and the bytes."""
    exercise = make_exercise("unique_blocks", seed)
    lines = data(exercise)
    block, prefix = int(lines["block_size"]), int(lines["prefix"])
    tables = []
    for request, own in enumerate(numbers(lines["branches"])):
        names = [
            ("shared",) if at < prefix else ("own", request) for at in range(0, prefix + own, block)
        ]
        tables.append([(at, *name) for at, name in enumerate(names)])
    unique = {name for table in tables for name in table}
    assert prefix % block == 0
    state, formats = model_of(lines)
    per_token = ledgers(state, formats, RequestLengths.of_list([1]), 1).effective_bytes
    assert expected(exercise) == {
        "table_entries": sum(map(len, tables)),
        "unique_blocks": len(unique),
        "paged_bytes": len(unique) * block * per_token,
        "effective_tokens": prefix + sum(numbers(lines["branches"])),
    }


@given(SEEDS)
def test_attention_by_hand_is_the_reference(seed: int) -> None:
    """Expected outputs are those of the reference, whatever the keys; dropping history shows."""
    exercise = make_exercise("hand_attention", seed)
    lines = data(exercise)
    past, new = numbers(lines["past_values"]), int(lines["new_value"])
    keys = [[index] for index in range(len(past))]
    step = cached_attention([0], keys, [[value] for value in past], [7], [new])
    found = expected(exercise)
    assert float(found["output"]) == pytest.approx(step.output[0], abs=1e-12)
    assert float(found["weight"]) == pytest.approx(step.weights[0], abs=1e-12)
    assert found["output_without_history"] == new != found["output"]


def matching(first: list[int], second: list[int], block: int, adapters: tuple[str, str]) -> int:
    """Return how many leading blocks of two prompts have equal hashes."""
    chains = [
        textbook_chain(
            tokens, block, {**dict.fromkeys(IDENTITY_FIELDS, "x"), "adapter": adapter}
        ).hashes
        for tokens, adapter in zip((first, second), adapters, strict=True)
    ]
    same = 0
    for one, other in zip(*chains, strict=True):
        if one != other:
            break
        same += 1
    return same


@given(SEEDS)
def test_an_adapter_changes_every_hash(seed: int) -> None:
    """Hash chains agree with the task: all blocks but for the last position, and none."""
    exercise = make_exercise("adapter_changed", seed)
    lines = data(exercise)
    tokens, block = numbers(lines["tokens"]), int(lines["block_size"])
    found = expected(exercise)
    assert found["full_blocks"] == matching(tokens, tokens, block, ("none", "none"))
    assert found["reusable_unchanged"] == (len(tokens) - 1) // block
    assert found["reusable_changed"] == matching(tokens, tokens, block, ("none", "A")) == 0


@given(SEEDS)
def test_a_changed_token_changes_all_hashes_after_it(seed: int) -> None:
    """Hash chains agree with the task, and the last block's tokens are equal."""
    exercise = make_exercise("parent_changed", seed)
    lines = data(exercise)
    first, second = numbers(lines["prompt_a"]), numbers(lines["prompt_b"])
    block = int(lines["block_size"])
    same = matching(first, second, block, ("none", "none"))
    starts = range(0, len(first), block)
    assert first[-block:] == second[-block:]
    assert expected(exercise) == {
        "equal_blocks": sum(first[at : at + block] == second[at : at + block] for at in starts),
        "reusable_blocks": same,
        "recomputed_tokens": len(second) - same * block,
    }


def right_answer(exercise: Exercise) -> dict[str, Any]:
    """Return the arguments of `judge` for a perfect answer."""
    return {
        "figures": {asked.code: str(asked.expected) for asked in exercise.figures},
        "omissions": {choice.code for choice in exercise.omissions if choice.is_right},
        "conditions": {choice.code for choice in exercise.conditions if choice.is_right},
    }


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_every_exercise_is_whole(kind: str, seed: int) -> None:
    """Data, figures, both sorts of statements and a working with all its numbers are there."""
    exercise = make_exercise(kind, seed)
    assert exercise == make_exercise(kind, seed)
    assert (exercise.kind, exercise.seed) == (kind, seed)
    for choices in (exercise.omissions, exercise.conditions):
        codes = [choice.code for choice in choices]
        assert len(set(codes)) == len(codes)
        assert {choice.is_right for choice in choices} == {True, False}
    assert exercise.givens
    assert all("{" not in line.text for line in exercise.working)
    for asked in exercise.figures:
        assert all(slip.value != asked.expected for slip in asked.slips)
    verdict = judge(exercise, **right_answer(exercise))
    assert verdict.is_all_right
    assert verdict.parts == verdict.right_parts > len(exercise.figures)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_draw_different_numbers(kind: str) -> None:
    """Twenty seeds give at least ten different sets of data."""
    drawn = {str(data(make_exercise(kind, seed))) for seed in range(20)}
    assert len(drawn) >= 10


def test_drawn_numbers_are_the_same_everywhere() -> None:
    """A seed's numbers do not depend on the process: another one, hashing otherwise, agrees."""
    code = "from app.domain.exercises import *; print(make_exercise('parent_changed', 5).givens)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        env={"PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == repr(make_exercise("parent_changed", 5).givens)
    draws = Draws("check", 1)
    assert [draws.between(0, 999) for _ in range(4)] == [733, 503, 180, 639]


def figure(exercise: Exercise, code: str, answer: object) -> FigureVerdict:
    """Return the verdict on one figure of an otherwise empty answer."""
    verdict = judge(exercise, figures={code: answer})
    return next(item for item in verdict.figures if item.code == code)


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("8 MiB", "B", 8_388_608),
        ("8MiB", "B", 8_388_608),
        ("0.5 GiB", "B", 536_870_912),
        ("536,870,912", "B", 536_870_912),
        ("536870912 b", "B", 536_870_912),
        ("1 MB", "B", 1_000_000),
        ("128 KiB", "B", 131_072),
        ("34", "", 34),
        ("-3", "", -3),
        ("−3", "", -3),
        ("7/2", "", Fraction(7, 2)),
        ("3.5", "", Fraction(7, 2)),
        ("-1/4", "", Fraction(-1, 4)),
    ],
)
def test_figures_are_read_as_they_are_written(text: str, unit: str, number: int | Fraction) -> None:
    """Digits, fractions, decimals, grouping commas and byte units mean exact numbers."""
    assert read_figure(text, unit) == number


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""),
        ("many", ""),
        ("34 MiB", ""),
        ("8 parsecs", "B"),
        ("1/0", ""),
        ("1.5/2", ""),
        ("1e9", ""),
        ("9" * 22, ""),
        ("0x10", ""),
        ("nan", ""),
    ],
)
def test_what_is_no_number_is_not_read(text: str, unit: str) -> None:
    """Words, units where none belong, exponents and endless digits are no figures."""
    assert read_figure(text, unit) is None


@pytest.mark.parametrize(
    ("kind", "code", "answer", "remark"),
    [
        ("capacity_ragged", "bytes_per_token", 65_536, "keys_alone"),
        ("capacity_ragged", "effective_bytes", "12 MiB", "that_is_padded"),
        ("capacity_ragged", "padded_bytes", "10 MiB", "that_is_effective"),
        ("capacity_ragged", "paged_bytes", "10 MiB", "no_rounding"),
        ("capacity_ragged", "paged_bytes", "12 MB", "decimal_units"),
        ("capacity_ragged", "paged_bytes", "12,582,900", "rounded"),
        ("capacity_ragged", "paged_bytes", "3", "wrong"),
        ("capacity_ragged", "paged_bytes", "twelve", "unreadable"),
        ("capacity_ragged", "paged_bytes", "  ", "empty"),
        ("capacity_ragged", "paged_bytes", None, "empty"),
        ("hand_attention", "output", "4", "newest_alone"),
        ("hand_attention", "output", "6", "not_normalised"),
        ("hand_attention", "output", "2", "not_appended"),
        ("adapter_changed", "reusable_changed", 2, "adapter_in_identity"),
        ("parent_changed", "reusable_blocks", 1, "parent_counts"),
        ("unique_blocks", "unique_blocks", 6, "shared_once"),
        ("unique_blocks", "paged_bytes", "12 MiB", "shared_once"),
        ("unique_blocks", "effective_tokens", 66, "shared_once"),
    ],
)
def test_a_known_slip_gets_its_remark(kind: str, code: str, answer: object, remark: str) -> None:
    """A wrong figure that people arrive at is told what went wrong on the way."""
    verdict = figure(make_exercise(kind, 0), code, answer)
    assert not verdict.is_right
    assert verdict.remark is not None
    assert verdict.remark.code == remark


def test_a_full_hit_is_told_about_the_last_position() -> None:
    """Where the prompt fills its blocks, one block fewer is reusable, and the slip is named."""
    filled = next(
        exercise
        for exercise in (make_exercise("adapter_changed", seed) for seed in range(200))
        if expected(exercise)["full_blocks"] != expected(exercise)["reusable_unchanged"]
    )
    verdict = figure(filled, "reusable_unchanged", str(expected(filled)["full_blocks"]))
    assert verdict.remark is not None
    assert verdict.remark.code == "last_position"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("8 MiB", "8 MiB"), (8_388_608, "8388608"), (" 8388608 B ", "8388608 B")],
)
def test_a_right_figure_needs_no_remark(answer: object, shown: str) -> None:
    """A right figure is right in any unit, and what was written is repeated."""
    verdict = figure(make_exercise("unique_blocks", 0), "paged_bytes", answer)
    assert verdict == FigureVerdict(
        code="paged_bytes",
        given=shown,
        is_right=True,
        expected_text="8 MiB (8388608 B)",
        remark=None,
    )


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("hand_attention", "weight", "1/2"),
        ("unique_blocks", "effective_tokens", "34"),
        ("capacity_whole", "tail_waste_tokens", "0"),
    ],
)
def test_expected_figures_in_words(kind: str, code: str, text: str) -> None:
    """A figure without bytes is written as a number or a fraction."""
    assert figure(make_exercise(kind, 0), code, None).expected_text == text


def test_few_bytes_are_written_once() -> None:
    """A figure below 1 KiB has no second form."""
    tiny = Asked(code="x", label=Note("x", "x"), expected=Fraction(512), unit="B")
    assert tiny.expected_text == "512 B"


def test_ticks_are_right_when_they_say_what_holds() -> None:
    """Ticking a wrong statement and leaving a right one are both wrong; the rest counts."""
    exercise = make_exercise("unique_blocks", 0)
    nothing: Verdict = judge(exercise, figures={})
    wrong = {choice.code for choice in exercise.omissions if not choice.is_right}
    verdict = judge(exercise, figures={}, omissions=wrong)
    assert not any(item.is_right for item in verdict.omissions)
    assert [item.is_right for item in nothing.omissions] == [
        not choice.is_right for choice in exercise.omissions
    ]
    assert not nothing.is_all_right
    assert nothing.right_parts == 2 + 2
    assert {item.is_ticked for item in nothing.conditions} == {False}


@pytest.mark.parametrize(
    ("answer", "error", "field"),
    [
        ({"figures": {"weight": "1"}}, Unknown, ("figures",)),
        ({"figures": {}, "omissions": ["luck"]}, Unknown, ("omissions",)),
        ({"figures": {}, "conditions": ["luck"]}, Unknown, ("conditions",)),
        ({"figures": {}, "conditions": ["luck"] * 33}, OutOfRange, ("conditions",)),
        ({"figures": {"paged_bytes": True}}, WrongType, ("figures", "paged_bytes")),
        ({"figures": {"paged_bytes": 8.0}}, WrongType, ("figures", "paged_bytes")),
        ({"figures": {"paged_bytes": "9" * 81}}, OutOfRange, ("figures", "paged_bytes")),
        ({"figures": {"paged_bytes": 10**400}}, OutOfRange, ("figures", "paged_bytes")),
    ],
)
def test_answers_are_checked(
    answer: dict[str, Any], error: type[DomainError], field: tuple[str, ...]
) -> None:
    """An answer about something else, of another type or without end is refused by name."""
    with pytest.raises(error) as caught:
        judge(make_exercise("unique_blocks", 0), **answer)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "seed", "error", "field"),
    [
        ("alchemy", 0, Unknown, "kind"),
        (None, 0, Unknown, "kind"),
        (["unique_blocks"], 0, Unknown, "kind"),
        ("unique_blocks", -1, OutOfRange, "seed"),
        ("unique_blocks", 2**32, OutOfRange, "seed"),
        ("unique_blocks", "1", WrongType, "seed"),
    ],
)
def test_kinds_and_seeds_are_checked(
    kind: object, seed: object, error: type[DomainError], field: str
) -> None:
    """An unknown kind or a seed that is none is refused by name."""
    with pytest.raises(error) as caught:
        make_exercise(kind, seed)
    assert caught.value.field == (field,)
