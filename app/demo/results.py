"""What an experiment answers: a table, lines to draw, and a sentence with the run's own numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.demo.backends import Backend
from app.demo.budget import Budget
from app.demo.model import MAX_SEED
from app.demo.quantise import Floats
from app.domain.checks import checked_int
from app.domain.notes import Note

Figure = int | float | bool

MIN_LAB_TOKENS = 4
MAX_LAB_TOKENS = 1024
DEFAULT_LAB_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Where and how long an experiment runs, and on which drawn numbers."""

    backend: Backend
    budget: Budget
    seed: int = 0
    length_tokens: int = DEFAULT_LAB_TOKENS

    def __post_init__(self) -> None:
        checked_int(self.seed, "seed", low=0, high=MAX_SEED)
        checked_int(self.length_tokens, "length_tokens", low=MIN_LAB_TOKENS, high=MAX_LAB_TOKENS)

    def ran(self) -> Ran:
        """Return what an answer says of its run."""
        return Ran(
            backend=self.backend.name,
            device=self.backend.device,
            seed=self.seed,
            length_tokens=self.length_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Where an answer was computed, and from which drawn numbers."""

    backend: str
    device: str
    seed: int
    length_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case of an experiment: `figures` stand under the result's `columns`.

    `group` is what several cases have in common, where an experiment has more than one setting.
    """

    code: str
    label: Note
    figures: tuple[Figure, ...]
    group: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart."""

    code: str
    label: Note
    x: tuple[float, ...]
    y: tuple[float, ...]
    group: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """A finished experiment; every figure is a plain number, every word a template."""

    code: str
    title: Note
    ran: Ran
    columns: tuple[Note, ...]
    rows: tuple[Row, ...]
    statement: Note
    notes: tuple[Note, ...] = ()
    series: tuple[Series, ...] = ()
    x_label: Note | None = None
    y_label: Note | None = None

    def figure(self, row: str, column: str) -> Figure:
        """Return one figure by the codes of its row and column."""
        at = [note.code for note in self.columns].index(column)
        return next(item for item in self.rows if item.code == row).figures[at]


def max_difference(one: Floats, other: Floats) -> float:
    """Return the largest absolute difference of two arrays of one shape."""
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())


def relative_error(got: Floats, wanted: Floats) -> float:
    """Return the root-mean-square error over the root mean square of what was wanted."""
    exact = wanted.astype(np.float64)
    error = got.astype(np.float64) - exact
    return float(np.sqrt((error**2).sum() / (exact**2).sum()))


def is_bit_equal(one: Floats, other: Floats) -> bool:
    """Return whether two arrays agree in every bit but the sign of a zero."""
    return bool(np.array_equal(one, other))
