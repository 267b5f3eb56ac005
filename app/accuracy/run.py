"""Asks every suite once in a process, in a thread of its own, and keeps the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from app.accuracy.case import AccuracyCase, Outcome, Question, Suite, failed
from app.accuracy.registry import suites as all_suites


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has been asked so far; `total` is 0 until the files have been counted."""

    cases: Sequence[AccuracyCase]
    suites: tuple[Suite, ...]
    total: int
    is_complete: bool

    @property
    def done(self) -> int:
        """Return the number of answers."""
        return len(self.cases)

    def count(self, outcome: Outcome) -> int:
        """Return how many cases came out so."""
        return sum(case.outcome is outcome for case in self.cases)


class AccuracyRun:
    """One run over all suites; `start` begins it, once."""

    def __init__(self, suites: Callable[[], tuple[Suite, ...]] = all_suites) -> None:
        self._load = suites
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._suites: tuple[Suite, ...] = ()
        self._cases: list[AccuracyCase] = []
        self._total = 0
        self._finished = threading.Event()

    def start(self) -> None:
        """Begin in a thread, unless that has been done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="accuracy", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Return whether all answers are there, having waited for them at most so long."""
        return self._finished.wait(seconds)

    def progress(self) -> Progress:
        """Return the answers so far."""
        return Progress(
            cases=tuple(self._cases),
            suites=self._suites,
            total=self._total,
            is_complete=self._finished.is_set(),
        )

    def _run(self) -> None:
        try:
            self._suites = self._load()
            loaded = [(suite, _questions(suite)) for suite in self._suites]
            self._total = sum(len(questions) for _, questions in loaded)
            for suite, questions in loaded:
                for number, question in enumerate(questions):
                    self._cases.append(_answer(suite, number, question))
        finally:
            self._finished.set()


def _questions(suite: Suite) -> Sequence[Question]:
    """Return a suite's questions; of a file that cannot be loaded, one that says so."""
    try:
        return suite.questions()
    except Exception as error:  # noqa: BLE001 - the other suites are still worth showing
        reason = f"the measured file could not be read: {type(error).__name__}: {error}"
        return [partial(failed, suite, 0, reason)]


def _answer(suite: Suite, number: int, question: Question) -> AccuracyCase:
    try:
        return question()
    except Exception as error:  # noqa: BLE001 - a case that breaks our code is shown as such
        return failed(suite, number, f"this program failed on it: {type(error).__name__}: {error}")


@lru_cache(maxsize=1)
def process_run() -> AccuracyRun:
    """Return the run of this process, not yet started."""
    return AccuracyRun()
