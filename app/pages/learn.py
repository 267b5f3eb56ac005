"""`/learn`: short exercises with drawn numbers; an answer is checked part by part."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.datastructures import QueryParams

from app.api.exercises import CheckRequest, compute_check
from app.domain.errors import DomainError
from app.domain.exercises import EXERCISE_KINDS, make_exercise
from app.domain.notes import Note
from app.domain.practice import MAX_SEED, Exercise, Verdict
from app.pages.model_form import integer
from app.pages.page_parts import answer_page, curl
from app.pages.problems import Problems, problems_of

router = APIRouter(include_in_schema=False)

ADDRESS = "/learn"
TEMPLATE = "learn.html"
API = "http://127.0.0.1:8000/api/v1"
FIRST_KIND = next(iter(EXERCISE_KINDS))
# A figure's field is named for its code, so that no figure can be taken for a field of the form.
FIGURE = "figure."
_FORM_FIELDS = ("kind", "seed", "figures", "omissions", "conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of exercise to choose."""

    kind: str
    title: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was answered, as it was typed and ticked."""

    figures: Mapping[str, str]
    omissions: Collection[str]
    conditions: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnPage:
    """Everything that the template of `/learn` may name."""

    kinds: tuple[Kind, ...]
    exercise: Exercise
    given: Given
    verdict: Verdict | None
    problems: Problems
    next_query: str
    curl: str
    query: str


def learn_page(query: QueryParams) -> LearnPage:
    """Return the page's context for a query string; an unknown kind or seed shows the first."""
    problems: dict[str, Note] = {}
    exercise = make_exercise(FIRST_KIND, 0)
    verdict: Verdict | None = None
    given = _given(query)
    said = ""
    try:
        kind = query.get("kind", FIRST_KIND)
        exercise = make_exercise(kind, integer("seed", query.get("seed", "0")))
        if query.get("check"):
            asked = CheckRequest(
                seed=exercise.seed,
                figures=dict(given.figures),
                omissions=list(given.omissions),
                conditions=list(given.conditions),
            )
            _, verdict = compute_check(kind, asked)
            said = curl(f"exercises/{kind}/check", asked.model_dump())
    except (DomainError, ValidationError) as error:
        problems |= problems_of(error, _FORM_FIELDS, "kind")
    after = exercise.seed + 1 if exercise.seed < MAX_SEED else 0
    return LearnPage(
        kinds=tuple(Kind(kind=kind, title=make(0).title) for kind, make in EXERCISE_KINDS.items()),
        exercise=exercise,
        given=given,
        verdict=verdict,
        problems=problems,
        next_query=urlencode({"kind": exercise.kind, "seed": after}),
        curl=said or f"curl -s '{API}/exercises/{exercise.kind}?seed={exercise.seed}'",
        query=_canonical(exercise, given, is_checked=verdict is not None),
    )


def _given(query: QueryParams) -> Given:
    return Given(
        figures={
            name.removeprefix(FIGURE): text.strip()
            for name, text in query.items()
            if name.startswith(FIGURE) and text.strip()
        },
        omissions=query.getlist("omission"),
        conditions=query.getlist("condition"),
    )


def _canonical(exercise: Exercise, given: Given, *, is_checked: bool) -> str:
    kept = [("kind", exercise.kind), ("seed", str(exercise.seed))]
    if is_checked:
        kept += [(f"{FIGURE}{code}", text) for code, text in given.figures.items()]
        kept += [("omission", code) for code in given.omissions]
        kept += [("condition", code) for code in given.conditions]
        kept.append(("check", "1"))
    return urlencode(kept)


@router.get(ADDRESS, response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the exercise, or only the judgement when htmx asks."""
    return answer_page(request, TEMPLATE, learn_page(request.query_params), ADDRESS)
