"""`/accuracy`: every measured case with its figures, ours, and the difference, computed now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.answers import Answer
from app.api.problems import REFUSED

if TYPE_CHECKING:
    from app.accuracy.case import AccuracyCase, Suite
    from app.accuracy.run import Progress

router = APIRouter(tags=["accuracy"], responses={422: REFUSED[422]})

OutcomeName = Literal["exact", "printed", "explained", "not_reproduced"]
MAX_CASES = 10_000
_LOOK_AGAIN_S = 0.1


class FigureAnswer(Answer):
    """One figure; `difference` is ours less theirs, for numbers."""

    name: str
    unit: str
    measured: int | str
    computed: int | str | None
    difference: int | None
    agrees: bool


class CaseAnswer(Answer):
    """One measured case."""

    suite: str
    id: str
    engine: str
    version: str
    family: str
    model: str
    settings: str
    outcome: OutcomeName
    reason: str = Field(description="What was inferred, or why the case is not reproduced.")
    source_url: str | None
    figures: list[FigureAnswer]


class SuiteAnswer(Answer):
    """A kind of measured cases, and how they come out."""

    name: str
    engine: str
    title: str
    what: str
    evidence: Literal["run", "log", "worked"] = Field(
        description="run: the engine's own code; log: lines that users posted; worked: by hand"
    )
    file: str
    cases: int
    outcomes: dict[OutcomeName, int]


class AccuracyAnswer(Answer):
    """A page of the cases; the counts are over all of them."""

    is_complete: bool = Field(description="False while cases are still being asked.")
    done: int
    total: int
    outcomes: dict[OutcomeName, int]
    suites: list[SuiteAnswer]
    found: int = Field(description="How many pass the filters.")
    offset: int
    cases: list[CaseAnswer]


class CaseFilter(Answer):
    """Which cases to show; an empty field lets all through."""

    q: str = ""
    engine: str = ""
    family: str = ""
    suite: str = ""
    outcome: str = ""

    def passes(self, case: AccuracyCase) -> bool:
        """Return whether a case is to be shown; words are looked for in names and settings."""
        if self.engine and case.engine != self.engine:
            return False
        if self.family and case.family != self.family:
            return False
        if self.suite and case.suite != self.suite:
            return False
        if self.outcome and case.outcome != self.outcome:
            return False
        words = self.q.casefold().split()
        if not words:
            return True
        text = f"{case.id} {case.model} {case.version} {case.settings}".casefold()
        return all(word in text for word in words)


def accuracy_progress() -> Progress:
    """Return what has been asked so far; the first call of a process begins the asking."""
    from app.accuracy.run import process_run

    run = process_run()
    run.start()
    return run.progress()


def accuracy_answer(
    progress: Progress, wanted: CaseFilter, offset: int = 0, limit: int = 100
) -> AccuracyAnswer:
    """Return a page of the cases that pass the filters."""
    found = [case for case in progress.cases if wanted.passes(case)]
    by_suite = {suite.name: no_outcomes() for suite in progress.suites}
    for case in progress.cases:
        by_suite[case.suite][case.outcome.value] += 1
    return AccuracyAnswer(
        is_complete=progress.is_complete,
        done=progress.done,
        total=progress.total,
        outcomes={
            outcome: sum(counts[outcome] for counts in by_suite.values())
            for outcome in no_outcomes()
        },
        suites=[suite_answer(suite, by_suite[suite.name]) for suite in progress.suites],
        found=len(found),
        offset=offset,
        cases=[case_answer(case) for case in found[offset : offset + limit]],
    )


def no_outcomes() -> dict[OutcomeName, int]:
    """Return every outcome with a count of 0, best first."""
    return {"exact": 0, "printed": 0, "explained": 0, "not_reproduced": 0}


def suite_answer(suite: Suite, outcomes: dict[OutcomeName, int]) -> SuiteAnswer:
    """Return a suite with the outcomes of its cases."""
    return SuiteAnswer(
        name=suite.name,
        engine=suite.engine,
        title=suite.title,
        what=suite.what,
        evidence=suite.evidence.value,
        file=suite.file,
        cases=sum(outcomes.values()),
        outcomes=outcomes,
    )


def case_answer(case: AccuracyCase) -> CaseAnswer:
    """Return a case as answers show it."""
    return CaseAnswer(
        suite=case.suite,
        id=case.id,
        engine=case.engine,
        version=case.version,
        family=case.family,
        model=case.model,
        settings=case.settings,
        outcome=case.outcome.value,
        reason=case.reason,
        source_url=case.source_url,
        figures=[
            FigureAnswer(
                name=figure.name,
                unit=figure.unit,
                measured=figure.measured,
                computed=figure.computed,
                difference=figure.difference,
                agrees=figure.agrees,
            )
            for figure in case.figures
        ],
    )


@router.get("/accuracy", summary="Every measured case, and what this program computes for it")
async def get_accuracy(
    *,
    q: Annotated[str, Query(max_length=200, description="Words of a case.")] = "",
    engine: Annotated[str, Query(max_length=40)] = "",
    family: Annotated[str, Query(max_length=100)] = "",
    suite: Annotated[str, Query(max_length=40)] = "",
    outcome: OutcomeName | None = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_CASES)] = 100,
    wait_s: Annotated[
        float, Query(ge=0, le=60, description="Longest wait for the first asking to end.")
    ] = 30,
) -> AccuracyAnswer:
    """Return the cases, asked once in a process: the first call waits for some seconds."""
    progress = accuracy_progress()
    for _ in range(round(wait_s / _LOOK_AGAIN_S)):
        if progress.is_complete:
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
        progress = accuracy_progress()
    wanted = CaseFilter(q=q, engine=engine, family=family, suite=suite, outcome=outcome or "")
    return accuracy_answer(progress, wanted, offset, limit)
