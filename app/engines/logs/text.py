"""A pasted log as lines worth looking at: colours stripped, noise passed over, everything bounded.

A log of megabytes holds a few dozen lines that matter. Each kind of line has a word of its own, and
only lines with such a word are cut out and looked at, so that reading takes time in proportion to
the text, whatever it holds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

# A line that goes on is cut: what is looked for stands near its word.
_BEFORE, _AFTER = 400, 1_500
MAX_SHOWN_CHARACTERS = 400
# Of one word, so many lines are looked at; a start-up prints each a few times a rank.
MOST_LINES_A_WORD = 512
_LONG = _BEFORE + _AFTER
_DIGITS = b"0123456789"

_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"
    rb"|[()*+][0-9A-Za-z]|.)"
)
# What is left of the two bytes in front of such a file.
_UNREADABLE_MARK = "\ufffd\ufffd".encode()
# Bytes that pasted text holds in place of plain spaces.
_SPACES = ("\u00a0", "\u202f", "\u2009")
_TIME = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?\s*"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s+)"
)
_RANK = re.compile(
    r"\b(?:VllmWorker\s+(?:rank=(\d{1,4})|(TP\d{1,4}))"
    r"|Worker_((?:[A-Z]{2,3}\d{1,4})(?:_[A-Z]{2,3}\d{1,4}){0,5})"
    r"|((?:(?:DP|PP|TP|EP)\d{1,4}\s?){1,4})\]"
    r"|\[?(?:RANK|rank)\s?(\d{1,4})\]"
    r"|(?:RayWorker\w{0,20}|VllmWorkerProcess|ModelRunner\w{0,20})\s+pid=(\d{1,10}))"
)
_SOURCE = re.compile(r"\[?([\w./-]{1,80}\.py):(\d{1,5})\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line: its number in the paste, counted from 1, and its text around what was found.

    `rank` names the process that wrote it, as its prefix does; None where it has none.
    """

    number: int
    text: str
    rank: str | None
    old_prefix: bool = False

    @property
    def shown(self) -> str:
        """The line without time and process in front, cut to a length that a page can show."""
        return shown_line(self.text)


class LogText:
    """A paste made ready to be searched: lines without colours, and their distinct shapes.

    Running lines repeat with other numbers in them, so words are looked for only once in all lines
    that differ by digits alone.
    """

    def __init__(self, log: str) -> None:
        data = _plain(log)
        self._lines = data.split(b"\n")
        shapes: dict[bytes, list[int]] = {}
        for index, shape in enumerate(data.lower().translate(None, _DIGITS).split(b"\n")):
            shapes.setdefault(shape, []).append(index)
        self._by_shape = shapes
        self._groups = list(shapes.values())
        self._shapes = b"\n".join(shapes)
        self._ends: list[int] = []
        self._long: dict[int, bytes] = {}
        end = -1
        for shape in shapes:
            end += len(shape) + 1
            self._ends.append(end)

    def found(
        self, words: Iterable[bytes], *, after: int = _AFTER
    ) -> tuple[dict[bytes, list[LogLine]], int]:
        """Return the lines that hold each word, and how many were passed over.

        Words are in lower case and without digits; case does not count. Of a line no more than
        `after` characters behind the word are looked at. Time is linear in the text for each word.
        """
        made: dict[tuple[int, int], LogLine] = {}
        lines: dict[bytes, list[LogLine]] = {}
        passed_over = 0
        for word in words:
            spans, more = self._spans(word)
            passed_over += more
            own = []
            for index, position in spans:
                key = (index, max(0, position - _BEFORE))
                line = made.get(key)
                if line is None:
                    line = made[key] = self._cut(index, position, len(word) + after)
                own.append(line)
            lines[word] = own
        return lines, passed_over

    def shaped(self, shapes: Iterable[bytes]) -> list[LogLine]:
        """Return the lines that are nothing but digits and one of these texts, in lower case."""
        indices = [index for shape in shapes for index in self._by_shape.get(shape, ())]
        return [self._cut(index, 0, _AFTER) for index in sorted(indices)[:MOST_LINES_A_WORD]]

    def _spans(self, word: bytes) -> tuple[list[tuple[int, int]], int]:
        """Return (line, position) of the word, in the order of the log, and how many beyond."""
        indices: list[int] = []
        position = self._shapes.find(word)
        while position >= 0:
            group = bisect_right(self._ends, position)
            indices += self._groups[group]
            position = self._shapes.find(word, self._ends[group])
        indices.sort()
        spans: list[tuple[int, int]] = []
        for number, index in enumerate(indices):
            if len(spans) >= MOST_LINES_A_WORD:
                return spans, len(indices) - number
            line = self._lines[index]
            if len(line) > _LONG:
                spans += _within(self._lowered(index), word, index)
                continue
            # A word may be found only across digits that stood in it: then it is not there.
            at = line.lower().find(word)
            if at >= 0:
                spans.append((index, at))
        return spans, 0

    def _lowered(self, index: int) -> bytes:
        """Return a long line in lower case, made once."""
        lowered = self._long.get(index)
        if lowered is None:
            lowered = self._long[index] = self._lines[index].lower()
        return lowered

    def _cut(self, index: int, position: int, after: int) -> LogLine:
        line = self._lines[index]
        text = (
            line[max(0, position - _BEFORE) : position + after].decode("utf-8", "replace").strip()
        )
        return LogLine(
            number=index + 1, text=text, rank=_rank_of(text), old_prefix=_is_old_prefix(text)
        )


def _within(lowered: bytes, word: bytes, index: int) -> list[tuple[int, int]]:
    """Return the places of a word in a line that goes on, each beyond the reach of the last."""
    spans: list[tuple[int, int]] = []
    position = lowered.find(word)
    while position >= 0 and len(spans) < MOST_LINES_A_WORD:
        spans.append((index, position))
        position = lowered.find(word, position + _LONG)
    return spans


def _plain(log: str) -> bytes:
    """Return a paste as bytes with one line break, no colours, and no line breaks in writing."""
    for space in _SPACES:
        if space in log:
            log = log.replace(space, " ")
    data = log.encode("utf-8", "replace")
    if b"\x00" in data:
        # A file of 16-bit characters that was read as bytes: each plain one has a zero beside it.
        data = data.replace(b"\x00", b"").removeprefix(_UNREADABLE_MARK)
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # A log inside JSON has its line breaks written out.
    if data.count(b"\\n") > 2 * data.count(b"\n"):
        data = data.replace(b"\\r", b"").replace(b"\\n", b"\n").replace(b'\\"', b'"')
    return data


def _rank_of(text: str) -> str | None:
    """Return the rank that a line's prefix names, in the engine's own words."""
    found = _RANK.search(text[:300])
    if found is None:
        return None
    worker, old, new, sglang, plain, pid = found.groups()
    if worker is not None or plain is not None:
        return f"rank {worker or plain}"
    if pid is not None:
        return f"pid {pid}"
    return " ".join((old or new or sglang).replace("_", " ").split())


def _is_old_prefix(text: str) -> bool:
    """Say whether the source file stands without an opening bracket, as vLLM wrote until 0.7."""
    found = _SOURCE.search(text[:200])
    return found is not None and not found[0].startswith("[")


def shown_line(text: str) -> str:
    """Return a line without the time in front, cut at its end."""
    plain = _TIME.sub("", text, count=1)
    plain = "".join(character if character.isprintable() else " " for character in plain[:2_000])
    if len(plain) <= MAX_SHOWN_CHARACTERS:
        return plain
    return plain[: MAX_SHOWN_CHARACTERS - 1] + "…"
