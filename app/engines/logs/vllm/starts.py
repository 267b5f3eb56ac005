"""Where one paste holds several starts of the engine: each is judged by its own lines.

A start names one release and one longest request. A line that names another begins a new start, and
so does a greeting after the pool was made, or another memory where no rank is named; lines of ranks
and of engines beside each other do not.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.domain.notes import Note
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import count, decimal
from app.engines.logs.result import Explained
from app.engines.logs.vllm.evidence import MEMORIES

# Lines that a start ends with: the pool as it became, or why there is none.
_CLOSING = ("tokens", "concurrency", "blocks", "gpu_blocks", "needed", "too_long", "nothing")
_OPENING = (*MEMORIES, *_CLOSING)
_GREETINGS = ("version", "version_engine", "version_banner")
_RELEASES = (*_GREETINGS, "version_said")
_LENGTHS = {"concurrency": 0, "needed": 0, "too_long": 0}
_REPLICA = re.compile(r"(?:\b|_)DP\d")
MOST_STARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The lines of one start; `first` is where its own commands and arguments may begin."""

    reads: Reads
    first: int
    end: int | None


def starts_of(reads: Reads) -> tuple[Start, ...]:
    """Return the starts in order; one where nothing shows that there are more."""
    events = sorted(
        ((found.line.number, found) for code in {*_RELEASES, *_OPENING}
         for found in reads.get(code, ())),
        key=lambda event: event[0],
    )  # fmt: skip
    closings = [number for number, found in events if _closes(found)]
    # A part without a pool is no start: a version named in a sentence, or after the log.
    kept: list[int] = []
    for cut in _cuts([found for _, found in events]):
        since = kept[-1] if kept else 0
        if any(since <= number < cut for number in closings) and closings[-1] >= cut:
            kept.append(cut)
    if not kept or len(kept) >= MOST_STARTS:
        return (Start(reads=reads, first=1, end=None),)
    parts: list[dict[str, list[Found]]] = [{} for _ in range(len(kept) + 1)]
    for code, own in reads.items():
        for found in own:
            parts[bisect_right(kept, found.line.number)].setdefault(code, []).append(found)
    for before, part in pairwise(parts):
        if not any(code in part for code in _RELEASES):
            part.update({code: before[code] for code in _RELEASES if code in before})
    # A command stands before its start's first line: behind the last of the start before it.
    firsts = [1, *(closings[bisect_left(closings, cut) - 1] + 1 for cut in kept)]
    ends = [*firsts[1:], None]
    return tuple(
        Start(reads=part, first=first, end=end)
        for part, first, end in zip(parts, firsts, ends, strict=True)
    )


def _cuts(events: list[Found]) -> Iterator[int]:
    """Yield the numbers of the lines that begin another start."""
    release: str | None = None
    length: int | None = None
    closed = False
    first_after: int | None = None
    memory: Found | None = None
    for found in events:
        number = found.line.number
        if found.code in _RELEASES:
            said = found.groups[-1] or ""
            again = found.code in _GREETINGS and not _REPLICA.search(found.line.text[:200])
            if closed and (again or said != release):
                yield number
                length, closed, first_after = None, False, None
            if found.code in _GREETINGS or release is None:
                release = said
            continue
        if closed and first_after is None:
            first_after = number
        if found.code in MEMORIES:
            if closed and memory is not None and _is_another(found, memory):
                yield number
                length, closed, first_after = None, False, number
            memory = found
        own = count(found.groups[_LENGTHS[found.code]] or "") if found.code in _LENGTHS else None
        if own is not None:
            if length is not None and own != length:
                yield first_after if first_after is not None else number
            length, first_after = own, None
        closed = closed or _closes(found)


def _is_another(found: Found, memory: Found) -> bool:
    """Say whether a memory line after a pool is of another start: no rank's, and another size."""
    ranked = any(
        line.rank or _REPLICA.search(line.text[:200]) for line in (found.line, memory.line)
    )
    return not ranked and found.groups != memory.groups and _leaves_any(found)


def _leaves_any(found: Found) -> bool:
    """Say whether a memory line leaves anything for the cache."""
    printed = decimal(found.groups[MEMORIES[found.code]] or "")
    return printed is not None and printed.value > 0


def _closes(found: Found) -> bool:
    """Say whether a start ends with this line: a start that has nothing left prints no pool."""
    return found.code in _CLOSING or (found.code in MEMORIES and not _leaves_any(found))


def joined(starts: Sequence[Start], answers: Sequence[Explained]) -> Explained:
    """Return the answers of several starts as one: every figure, and the last one's advice."""
    last = answers[-1]
    guesses = dict.fromkeys(answer.version_guess or "" for answer in answers)
    models = dict.fromkeys(answer.model_name for answer in answers if answer.model_name)
    used = dict.fromkeys(answer.version_used for answer in answers if answer.version_used)
    lines = ", ".join(
        f"{start.first}–{'' if start.end is None else start.end - 1}" for start in starts
    )
    note = Note(
        "several_starts",
        "the log holds {count} starts, in its lines {lines}: each is judged by its own; settings"
        " and advice are of the last",
        {"count": len(starts), "lines": lines},
    )
    return replace(
        last,
        version_guess=", ".join(guesses),
        model_name=", ".join(models) or None,
        version_used=", ".join(used) or None,
        figures=tuple(figure for answer in answers for figure in answer.figures),
        remarks=(note, *_once(note for answer in answers for note in answer.remarks)),
        missing=_once(note for answer in answers for note in answer.missing),
        assumptions=_once(note for answer in answers for note in answer.assumptions),
        formulas=tuple(
            f"start {number}: {line}"
            for number, answer in enumerate(answers, 1)
            for line in answer.formulas
        ),
    )


def _once(notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple({note.text: note for note in notes}.values())
