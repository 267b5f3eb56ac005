"""What a practice task is made of, and how an answer to it is judged.

An answer has three parts, as a good one always has: the figures, what the figures leave out, and
when the state may be reused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange, Unknown, WrongType, shown
from app.domain.notes import Note
from app.domain.units import GIB, KIB, MIB, TIB, bytes_text

MAX_SEED = 2**32 - 1
MAX_ANSWER_CHARACTERS = 80
MAX_ANSWER_BITS = 240
MAX_ANSWERS = 32

_MASK = 2**64 - 1
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
# Lengths are bounded, so that no answer becomes a number without end.
_ANSWER = re.compile(
    r"(?P<sign>[-−]?)(?P<whole>\d{1,21})(?P<part>\.\d{1,12})?(?P<over>/\d{1,12})?(?P<unit>[a-z]*)"
)

T = TypeVar("T")


class Draws:
    """Numbers from a seed, alike on every machine and version (SplitMix64, Steele et al. 2014)."""

    def __init__(self, kind: str, seed: int) -> None:
        digest = hashlib.sha256(f"{kind}:{seed}".encode()).digest()
        self._state = int.from_bytes(digest[:8], "big")

    def between(self, low: int, high: int) -> int:
        """Return an integer of low..high; the bias of the remainder is below 2^-40 here."""
        return low + self._next() % (high - low + 1)

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.between(0, len(options) - 1)]

    def some(self, options: Sequence[T], size: int) -> tuple[T, ...]:
        """Return `size` different options, in a drawn order."""
        left = list(options)
        return tuple(left.pop(self.between(0, len(left) - 1)) for _ in range(size))

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One line of the question's data; the value reads the same in every language."""

    code: str
    label: Note
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A wrong figure that people arrive at, and what went wrong on the way."""

    value: Fraction
    remark: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One figure to find. `unit` is `B` for bytes, which may be answered as `8 MiB`, or empty."""

    code: str
    label: Note
    expected: Fraction
    unit: str = ""
    slips: tuple[Slip, ...] = ()

    @property
    def expected_text(self) -> str:
        """Return the right figure in words: `8 MiB (8388608 B)`, `1/2`, `34`."""
        if self.unit != "B":
            return str(self.expected)
        amount = int(self.expected)
        words = bytes_text(amount)
        return words if words == f"{amount} B" else f"{words} ({amount} B)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A statement to tick or to leave, and why."""

    code: str
    label: Note
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A task with its data, what it asks, and its solution worked out."""

    kind: str
    seed: int
    title: Note
    question: Note
    givens: tuple[Given, ...]
    figures: tuple[Asked, ...]
    omissions: tuple[Choice, ...]
    conditions: tuple[Choice, ...]
    working: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureVerdict:
    """One figure's judgement; `given` is what was written, None where nothing was."""

    code: str
    given: str | None
    is_right: bool
    expected_text: str
    remark: Note | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceVerdict:
    """One statement's judgement: right when it was ticked just if it holds."""

    code: str
    is_ticked: bool
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a whole answer."""

    figures: tuple[FigureVerdict, ...]
    omissions: tuple[ChoiceVerdict, ...]
    conditions: tuple[ChoiceVerdict, ...]

    @property
    def parts(self) -> int:
        """Return how many parts were judged."""
        return len(self.figures) + len(self.omissions) + len(self.conditions)

    @property
    def right_parts(self) -> int:
        """Return how many of them are right."""
        ticks = (*self.omissions, *self.conditions)
        return sum(part.is_right for part in self.figures) + sum(tick.is_right for tick in ticks)

    @property
    def is_all_right(self) -> bool:
        """Return whether nothing is wrong or missing."""
        return self.right_parts == self.parts


def checked_seed(seed: object) -> int:
    """Return the seed of an exercise if it is one."""
    return checked_int(seed, "seed", low=0, high=MAX_SEED)


def judge(
    exercise: Exercise,
    *,
    figures: Mapping[str, object],
    omissions: Collection[str] = (),
    conditions: Collection[str] = (),
) -> Verdict:
    """Return what is right in an answer, and the remark that a known slip deserves.

    A figure may be an integer or text: digits with a fraction or decimals (`7/2`, `3.5`), grouped
    by commas if at all, and for bytes a unit. It is compared exactly.

    Raises:
        Unknown: for a figure or a tick that the exercise does not have.
        WrongType: for a figure that is neither text nor an integer.
        OutOfRange: for a figure that is too long, or more answers than an exercise can have.

    """
    _refuse_unknown(figures, exercise.figures, "figures")
    _refuse_unknown(omissions, exercise.omissions, "omissions")
    _refuse_unknown(conditions, exercise.conditions, "conditions")
    return Verdict(
        figures=tuple(_judge_figure(asked, figures.get(asked.code)) for asked in exercise.figures),
        omissions=_judge_choices(exercise.omissions, omissions),
        conditions=_judge_choices(exercise.conditions, conditions),
    )


def read_figure(text: str, unit: str) -> Fraction | None:
    """Return the number that an answer means, or None where it means none.

    >>> read_figure("8 MiB", "B")
    Fraction(8388608, 1)
    """
    compact = re.sub(r"[\s,_]", "", text).lower()
    match = _ANSWER.fullmatch(compact)
    if match is None or (match["part"] and match["over"]):
        return None
    scale = _BYTE_UNITS.get(match["unit"]) if unit == "B" else {"": 1}.get(match["unit"])
    if scale is None:
        return None
    number = Fraction(match["whole"] + (match["part"] or ""))
    if match["over"]:
        divisor = int(match["over"][1:])
        if divisor == 0:
            return None
        number /= divisor
    return -number * scale if match["sign"] else number * scale


def _judge_figure(asked: Asked, answer: object) -> FigureVerdict:
    field = ("figures", asked.code)
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, (int, str))):
        raise WrongType(
            "{field} must be text or an integer, got {value}", field=field, value=shown(answer)
        )
    if isinstance(answer, int) and answer.bit_length() > MAX_ANSWER_BITS:
        raise OutOfRange("{field} is too long: {value}", field=field, value=shown(answer))
    given = None if answer is None else str(answer).strip()
    if given is not None and len(given) > MAX_ANSWER_CHARACTERS:
        raise OutOfRange(
            "{field} must be at most {high} characters",
            field=field,
            high=MAX_ANSWER_CHARACTERS,
        )
    value = read_figure(given, asked.unit) if given else None
    is_right = value == asked.expected
    return FigureVerdict(
        code=asked.code,
        given=given or None,
        is_right=is_right,
        expected_text=asked.expected_text,
        remark=None if is_right else _remark(asked, given, value),
    )


def _remark(asked: Asked, given: str | None, value: Fraction | None) -> Note:
    """Return what went wrong: nothing written, no number, a known slip, or just wrong."""
    if not given:
        return Note("empty", "Nothing was answered.")
    if value is None:
        return Note("unreadable", "{given} was not read as a number.", {"given": shown(given)})
    for slip in asked.slips:
        if value == slip.value:
            return slip.remark
    if asked.unit == "B" and any(
        value * binary == asked.expected * decimal
        for binary, decimal in ((KIB, 10**3), (MIB, 10**6), (GIB, 10**9))
    ):
        return Note(
            "decimal_units", "KB, MB and GB are powers of ten; KiB, MiB and GiB powers of two."
        )
    if asked.unit == "B" and abs(value - asked.expected) * 100 < asked.expected:
        return Note("rounded", "Close, but rounded: bytes are exact integers.")
    return Note("wrong", "Not this figure; follow the working line by line.")


def _judge_choices(
    choices: tuple[Choice, ...], ticked: Collection[str]
) -> tuple[ChoiceVerdict, ...]:
    return tuple(
        ChoiceVerdict(
            code=choice.code,
            is_ticked=choice.code in ticked,
            is_right=(choice.code in ticked) == choice.is_right,
        )
        for choice in choices
    )


def _refuse_unknown(
    named: Collection[str], known: tuple[Asked, ...] | tuple[Choice, ...], field: str
) -> None:
    if len(named) > MAX_ANSWERS:
        raise OutOfRange(
            "{field} must have at most {high} entries, got {value}",
            field=field,
            high=MAX_ANSWERS,
            value=len(named),
        )
    codes = [item.code for item in known]
    for name in named:
        if name not in codes:
            raise Unknown(
                "{field} has no {value}; known are {known}",
                field=field,
                value=shown(name),
                known=", ".join(codes),
            )
