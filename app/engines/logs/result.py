"""What explaining a log answers: figures with verdicts, remarks, advice, what was assumed."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.kinds import Found

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigure:
    """One printed figure against ours.

    `interval` is what the printed decimals leave open, in `unit` (bytes for printed GiB and MiB).
    `agrees` is None where the log does not hold what it would take to check; `reasons` say why, in
    either case. `difference` is printed minus computed, in words; empty where there is none.
    """

    name: str
    line: str
    line_number: int
    rank: str | None
    printed: str
    computed: str | None = None
    interval: tuple[Number, Number] | None = None
    unit: str = ""
    difference: str = ""
    agrees: bool | None = None
    reasons: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change of settings, and what it would do, computed."""

    change: Note
    effect: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The whole answer. `engine` and `version_guess` are None where no line shows them.

    `settings` are those that the figures were computed with: as the log or the request says, and
    `inferred` those that neither says and the figures only agree with. `missing` says what to add.
    """

    engine: str | None
    version_guess: str | None = None
    version_used: str | None = None
    model_name: str | None = None
    figures: tuple[LogFigure, ...] = ()
    advice: tuple[Advice, ...] = ()
    remarks: tuple[Note, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)
    inferred: dict[str, object] = field(default_factory=dict)
    missing: tuple[Note, ...] = ()
    assumptions: tuple[Note, ...] = ()
    formulas: tuple[str, ...] = ()
    implied_bytes_per_token: tuple[Fraction, Fraction] | None = None
    lines_passed_over: int = 0

    @property
    def disagrees(self) -> bool:
        """Whether any figure in the log is other than computed."""
        return any(figure.agrees is False for figure in self.figures)


def figure(name: str, found: Found, printed: str, **rest: object) -> LogFigure:
    """Return a figure of a line."""
    return LogFigure(
        name=name,
        line=found.line.shown,
        line_number=found.line.number,
        rank=found.line.rank,
        printed=printed,
        **rest,  # type: ignore[arg-type]
    )
