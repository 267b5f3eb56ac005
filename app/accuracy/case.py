"""What a measured case and our answer to it look like, whatever engine was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How well a case is reproduced."""

    EXACT = "exact"
    PRINTED = "printed"
    EXPLAINED = "explained"
    NOT_REPRODUCED = "not_reproduced"


class Evidence(StrEnum):
    """Where the measured figures come from."""

    RUN = "run"
    LOG = "log"
    WORKED = "worked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure as measured and as computed; `unit` is empty for words and plain counts.

    `is_within`: ours is inside what the digits of a printed figure leave open.
    """

    name: str
    measured: int | str
    computed: int | str | None
    unit: str = ""
    is_within: bool = False

    @property
    def agrees(self) -> bool:
        """Return whether they are the same, as far as the measured one says."""
        return self.is_within or self.measured == self.computed

    @property
    def difference(self) -> int | None:
        """Return ours less theirs, for numbers."""
        if isinstance(self.measured, int) and isinstance(self.computed, int):
            return self.computed - self.measured
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyCase:
    """One case. `reason` says what was inferred, or why it is not reproduced."""

    suite: str
    id: str
    engine: str
    version: str
    family: str
    model: str
    settings: str
    figures: tuple[Figure, ...]
    outcome: Outcome
    reason: str = ""
    source_url: str | None = None


Question = Callable[[], AccuracyCase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A kind of measured cases; `questions` loads them and returns one function for each."""

    name: str
    engine: str
    title: str
    what: str
    evidence: Evidence
    file: str
    questions: Callable[[], Sequence[Question]]


def outcome_of(
    figures: Sequence[Figure], *, best: Outcome = Outcome.EXACT, reason: str = ""
) -> Outcome:
    """Return `best` when all figures agree; else explained where a reason is known."""
    if figures and all(figure.agrees for figure in figures):
        return best
    return Outcome.EXPLAINED if reason else Outcome.NOT_REPRODUCED


def failed(suite: Suite, number: int, reason: str) -> AccuracyCase:
    """Return a case that could not even be asked, so that none is dropped in silence."""
    return AccuracyCase(
        suite=suite.name,
        id=f"{suite.name} {number}",
        engine=suite.engine,
        version="",
        family="",
        model="",
        settings="",
        figures=(),
        outcome=Outcome.NOT_REPRODUCED,
        reason=reason,
    )


def settings_text(settings: object) -> str:
    """Return settings in one line: `batch=2 dtype=bfloat16`."""
    if isinstance(settings, dict):
        return " ".join(f"{name}={value}" for name, value in settings.items())
    return str(settings)
