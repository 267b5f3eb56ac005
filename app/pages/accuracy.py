"""`/accuracy`: every measured case with the measured figure, ours and the difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.api.accuracy import (
    AccuracyAnswer,
    CaseFilter,
    accuracy_answer,
    accuracy_progress,
    no_outcomes,
)
from app.pages.page_parts import answer_page, command, csv_download, curl_get
from app.pages.problems import Problems
from app.pages.render import wants_fragment
from app.web.marks import mark

if TYPE_CHECKING:
    from app.accuracy.run import Progress

router = APIRouter(include_in_schema=False)

ROWS_SHOWN = 50
LONGEST_QUERY = 200
OUTCOMES: Mapping[str, str] = {
    "exact": mark("exact"),
    "printed": mark("to the printed digit"),
    "explained": mark("explained"),
    "not_reproduced": mark("not reproduced"),
}
EVIDENCE: Mapping[str, str] = {
    "run": mark("the engine's own code was run"),
    "log": mark("lines that users posted"),
    "worked": mark("worked out by hand"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPage:
    """Everything that the template of /accuracy may name."""

    problems: Problems
    query: str
    filter: CaseFilter
    answer: AccuracyAnswer
    engines: tuple[str, ...]
    families: tuple[str, ...]
    offers_again: bool
    outcomes: Mapping[str, str]
    evidence: Mapping[str, str]
    suite_queries: Mapping[str, str]
    outcome_queries: Mapping[str, str]
    next_query: str | None
    previous_query: str | None
    curl: str
    command: str


def _query(wanted: CaseFilter, offset: int = 0, **changes: str) -> str:
    values: dict[str, object] = {**wanted.model_dump(), **changes}
    if offset:
        values["offset"] = offset
    return urlencode({key: value for key, value in values.items() if value})


def _wanted(query: Mapping[str, str], progress: Progress) -> CaseFilter:
    """Return the filter; a value that no case has, as yet, is passed over."""
    suites = {suite.name for suite in progress.suites}
    return CaseFilter(
        q=" ".join(query.get("q", "").split())[:LONGEST_QUERY],
        engine=query.get("engine", "")[:LONGEST_QUERY],
        family=query.get("family", "")[:LONGEST_QUERY],
        suite=query.get("suite", "") if query.get("suite") in suites else "",
        outcome=query.get("outcome", "") if query.get("outcome") in OUTCOMES else "",
    )


def accuracy_page(query: Mapping[str, str], *, looks: bool = False) -> AccuracyPage:
    """Return the page's context; a page that shows how far the asking is `looks` again."""
    progress = accuracy_progress()
    wanted = _wanted(query, progress)
    text = query.get("offset", "0")
    offset = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0  # noqa: PLR2004
    answer = accuracy_answer(progress, wanted, offset, ROWS_SHOWN)
    engines = sorted({case.engine for case in progress.cases} | ({wanted.engine} - {""}))
    families = sorted({case.family for case in progress.cases if case.family}
                      | ({wanted.family} - {""}))  # fmt: skip
    after = offset + ROWS_SHOWN
    return AccuracyPage(
        problems={},
        query=_query(wanted, offset),
        filter=wanted,
        answer=answer,
        engines=tuple(engines),
        families=tuple(families),
        # A page that was opened before all cases were asked lists what was known by then.
        offers_again=looks and progress.is_complete,
        outcomes=OUTCOMES,
        evidence=EVIDENCE,
        suite_queries={suite.name: _query(wanted, suite=suite.name) for suite in progress.suites},
        outcome_queries={outcome: _query(wanted, outcome=outcome) for outcome in no_outcomes()},
        next_query=_query(wanted, after) if after < answer.found else None,
        previous_query=_query(wanted, max(0, offset - ROWS_SHOWN)) if offset else None,
        curl=curl_get("accuracy", _query(wanted)),
        command=command(
            "accuracy",
            *wanted.q.split(),
            engine=wanted.engine,
            family=wanted.family,
            suite=wanted.suite,
            outcome=wanted.outcome,
        ),
    )


@router.get("/accuracy", response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    looks = "look" in request.query_params and wants_fragment(request)
    page = accuracy_page(request.query_params, looks=looks)
    return answer_page(request, "accuracy.html", page, "/accuracy")


@router.get("/export/accuracy.csv", response_model=None)
async def export(request: Request) -> Response:
    """Answer every figure of the cases that pass the page's filters, as CSV."""
    progress = accuracy_progress()
    wanted = _wanted(request.query_params, progress)
    names = (
        "suite", "case", "engine", "version", "family", "model", "settings", "outcome", "figure",
        "unit", "measured", "computed", "difference", "reason", "source",
    )  # fmt: skip
    rows = (
        (
            case.suite, case.id, case.engine, case.version, case.family, case.model,
            case.settings, case.outcome.value, figure.name, figure.unit, figure.measured,
            "" if figure.computed is None else figure.computed,
            "" if figure.difference is None else figure.difference,
            case.reason, case.source_url or "",
        )
        for case in progress.cases
        if wanted.passes(case)
        for figure in case.figures
    )  # fmt: skip
    return csv_download("accuracy.csv", names, rows)
