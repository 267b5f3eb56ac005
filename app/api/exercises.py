"""`/exercises`: practice tasks with numbers drawn by seed, and what is right in an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field, StrictInt, StrictStr

from app.api.answers import Answer
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.api.schemas import Strict
from app.domain.exercises import EXERCISE_KINDS, make_exercise
from app.domain.practice import (
    MAX_ANSWER_CHARACTERS,
    MAX_ANSWERS,
    MAX_SEED,
    Choice,
    ChoiceVerdict,
    Exercise,
    Verdict,
    judge,
)

router = APIRouter(tags=["practice"], responses=REFUSED, route_class=JsonRoute)

MAX_NAME_CHARACTERS = 80

Kind = Literal[
    "capacity_whole",
    "capacity_ragged",
    "hand_attention",
    "adapter_changed",
    "parent_changed",
    "unique_blocks",
]
Seed = Annotated[int, Query(ge=0, le=MAX_SEED)]
Name = Annotated[StrictStr, Field(max_length=MAX_NAME_CHARACTERS)]
# An exact integer, or text such as `7/2`, `512 MiB`; anything else is refused with its bound.
Figure = StrictInt | Annotated[StrictStr, Field(max_length=MAX_ANSWER_CHARACTERS)]


class CheckRequest(Strict):
    """An answer: the figures, what they leave out, and when the state may be reused."""

    seed: Annotated[StrictInt, Field(ge=0, le=MAX_SEED)] = 0
    figures: Annotated[dict[Name, Figure], Field(max_length=MAX_ANSWERS)] = Field(
        default_factory=dict
    )
    omissions: Annotated[list[Name], Field(max_length=MAX_ANSWERS)] = Field(default_factory=list)
    conditions: Annotated[list[Name], Field(max_length=MAX_ANSWERS)] = Field(default_factory=list)

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"seed": 0, "figures": {"effective_bytes": "512 MiB"}, "omissions": ["weights"]}
            ]
        }
    )


class KindAnswer(Answer):
    """A kind of exercise."""

    kind: str
    title: str


class KindList(Answer):
    """All kinds."""

    exercises: list[KindAnswer]


class GivenAnswer(Answer):
    """One line of a question's data."""

    code: str
    text: str
    value: str


class AskedAnswer(Answer):
    """One figure to find; in `B` it may be answered with a unit, such as `8 MiB`."""

    code: str
    text: str
    unit: str


class ChoiceAnswer(Answer):
    """A statement to tick or to leave."""

    code: str
    text: str


class ExerciseAnswer(Answer):
    """A question, without its solution."""

    kind: str
    seed: int
    title: str
    question: str
    givens: list[GivenAnswer]
    figures: list[AskedAnswer]
    omissions: list[ChoiceAnswer]
    conditions: list[ChoiceAnswer]


class FigureVerdictAnswer(Answer):
    """One figure's judgement."""

    code: str
    given: str | None
    is_right: bool
    expected_text: str
    remark: str | None


class ChoiceVerdictAnswer(Answer):
    """One statement's judgement."""

    code: str
    is_ticked: bool
    is_right: bool


class VerdictAnswer(Answer):
    """The judgement of an answer, and the solution line by line."""

    kind: str
    seed: int
    parts: int
    right_parts: int
    is_all_right: bool
    figures: list[FigureVerdictAnswer]
    omissions: list[ChoiceVerdictAnswer]
    conditions: list[ChoiceVerdictAnswer]
    working: list[str]


def answer_exercise(kind: str, seed: int) -> ExerciseAnswer:
    """Return a question; raises Unknown for a kind that there is not."""
    exercise = make_exercise(kind, seed)
    return ExerciseAnswer(
        kind=exercise.kind,
        seed=exercise.seed,
        title=exercise.title.text,
        question=exercise.question.text,
        givens=[
            GivenAnswer(code=line.code, text=line.label.text, value=line.value)
            for line in exercise.givens
        ],
        figures=[
            AskedAnswer(code=asked.code, text=asked.label.text, unit=asked.unit)
            for asked in exercise.figures
        ],
        omissions=_choices(exercise.omissions),
        conditions=_choices(exercise.conditions),
    )


def compute_check(kind: str, request: CheckRequest) -> tuple[Exercise, Verdict]:
    """Return an exercise and the judgement of an answer to it.

    Raises:
        Unknown: for a kind, a figure or a statement that there is not.

    """
    exercise = make_exercise(kind, request.seed)
    verdict = judge(
        exercise,
        figures=request.figures,
        omissions=request.omissions,
        conditions=request.conditions,
    )
    return exercise, verdict


def answer_check(kind: str, request: CheckRequest) -> VerdictAnswer:
    """Return the answer of `/exercises/{kind}/check`."""
    exercise, verdict = compute_check(kind, request)
    return VerdictAnswer(
        kind=exercise.kind,
        seed=exercise.seed,
        parts=verdict.parts,
        right_parts=verdict.right_parts,
        is_all_right=verdict.is_all_right,
        figures=[
            FigureVerdictAnswer(
                code=item.code,
                given=item.given,
                is_right=item.is_right,
                expected_text=item.expected_text,
                remark=None if item.remark is None else item.remark.text,
            )
            for item in verdict.figures
        ],
        omissions=_ticks(verdict.omissions),
        conditions=_ticks(verdict.conditions),
        working=[line.text for line in exercise.working],
    )


def _choices(choices: tuple[Choice, ...]) -> list[ChoiceAnswer]:
    return [ChoiceAnswer(code=choice.code, text=choice.label.text) for choice in choices]


def _ticks(verdicts: tuple[ChoiceVerdict, ...]) -> list[ChoiceVerdictAnswer]:
    return [
        ChoiceVerdictAnswer(code=item.code, is_ticked=item.is_ticked, is_right=item.is_right)
        for item in verdicts
    ]


@router.get("/exercises", summary="The kinds of exercise")
async def exercises() -> KindList:
    """Return every kind with its title."""
    kinds = [
        KindAnswer(kind=kind, title=make(0).title.text) for kind, make in EXERCISE_KINDS.items()
    ]
    return KindList(exercises=kinds)


@router.get("/exercises/{kind}", summary="One exercise by its seed")
async def exercise(kind: Kind, seed: Seed = 0) -> ExerciseAnswer:
    """Return the question; the same for the same seed, and seed 0 has the textbook's numbers."""
    return answer_exercise(kind, seed)


@router.post("/exercises/{kind}/check", summary="What is right in an answer")
async def check(kind: Kind, request: CheckRequest) -> VerdictAnswer:
    """Judge an answer part by part, with a remark where a known slip was made."""
    return answer_check(kind, request)
