"""A pasted log as lines worth looking at: colours stripped, noise passed over, everything bounded.

A log of megabytes holds a few dozen lines that matter. Each kind of line has a word of its own, and
only lines with such a word are cut out and looked at, so that reading takes time in proportion to
the text, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# A line that goes on is cut: what is looked for stands near its word.
_BEFORE, _AFTER = 400, 1_500
MAX_SHOWN_CHARACTERS = 400
# Of one word, so many lines are looked at; a start-up prints each a few times a rank.
MOST_LINES_A_WORD = 512

_ANSI = re.compile(
    rb"\x1b(?:\[[0-9;:?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|.)"
)
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


def prepared(log: str) -> bytes:
    """Return a paste as bytes with one line break, no colours, and no line breaks in writing."""
    for space in _SPACES:
        if space in log:
            log = log.replace(space, " ")
    data = log.encode("utf-8", "replace")
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # A log inside JSON has its line breaks written out.
    if data.count(b"\\n") > 2 * data.count(b"\n"):
        data = data.replace(b"\\r", b"").replace(b"\\n", b"\n").replace(b'\\"', b'"')
    return data


def found_lines(
    data: bytes, words: Iterable[bytes], *, after: int = _AFTER
) -> tuple[dict[bytes, list[LogLine]], int]:
    """Return the lines that hold each word (in lower case), and how many were passed over.

    Case does not count. Of a line no more than `after` characters behind the word are looked at.
    Time is linear in the text for each word.
    """
    lowered = data.lower()
    spans: dict[tuple[int, int], None] = {}
    of_word: dict[bytes, list[tuple[int, int]]] = {}
    passed_over = 0
    for word in words:
        own: list[tuple[int, int]] = []
        position = lowered.find(word)
        while position >= 0:
            if len(own) == MOST_LINES_A_WORD:
                passed_over += lowered.count(word, position)
                break
            start = max(data.rfind(b"\n", max(0, position - _BEFORE), position) + 1,
                        position - _BEFORE, 0)  # fmt: skip
            reach = position + len(word) + after
            end = data.find(b"\n", position, reach)
            end = min(reach, len(data)) if end < 0 else end
            own.append((start, end))
            spans[start, end] = None
            position = lowered.find(word, end)
        of_word[word] = own
    lines = _cut(data, sorted(spans))
    return {word: [lines[span] for span in own] for word, own in of_word.items()}, passed_over


def _cut(data: bytes, spans: list[tuple[int, int]]) -> dict[tuple[int, int], LogLine]:
    lines: dict[tuple[int, int], LogLine] = {}
    number, counted = 1, 0
    for start, end in spans:
        number += data.count(b"\n", counted, start)
        counted = start
        text = data[start:end].decode("utf-8", "replace").strip()
        lines[start, end] = LogLine(
            number=number, text=text, rank=_rank_of(text), old_prefix=_is_old_prefix(text)
        )
    return lines


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
