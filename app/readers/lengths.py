"""What a person types as request lengths, or drops as a file, becomes ordered runs.

The text is a list of items between commas, semicolons or any white space:

    1024          one request            32k, 1.5M        k is 1024, M is 1024 x 1024
    20 x 2048     twenty of 2048         100..200         every length from 100 to 200 once
    100..200/10   every tenth            20 x 100..102    each of the three, twenty times

The count comes first. `x`, `*` and the multiplication sign mean the same, so do `..`, `-` and `~`.
Full-width digits and punctuation are read as their narrow twins. What is ambiguous is read one way
and noted; what is not understood is refused with its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from app.domain.errors import Malformed, OutOfRange, Unsupported, shown
from app.domain.notes import Note
from app.readers.length_files import (
    read_csv_lengths,
    read_json_lengths,
    read_jsonl_lengths,
)
from app.readers.length_runs import (
    MAX_LENGTH_TOKENS,
    MAX_RECORDS,
    MAX_REQUESTS,
    MAX_RUNS,
    LengthsMistake,
    ParsedLengths,
    RunsBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_LENGTH_TOKENS",
    "MAX_RECORDS",
    "MAX_REQUESTS",
    "MAX_RUNS",
    "MAX_TEXT_CHARACTERS",
    "LengthsMistake",
    "ParsedLengths",
    "parse_lengths",
    "read_lengths_file",
]

MAX_TEXT_CHARACTERS = 1_000_000
MAX_FILE_BYTES = 8 * 1024 * 1024

# Characters that mean the same as an ASCII one. One character for one, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    ord(wide): narrow
    for narrow, wides in {
        ",": "\u3001\uff0c",
        " ": "\u3000\u00a0\u2007\u2009\u202f\ufeff",
        "x": "\u00d7\u2715\u2716\u2a2f",
        "-": "\u2010\u2011\u2012\u2013\u2014\u2212",  # hyphens, dashes and the minus sign
        "~": "\u301c",
        "\n": "\u2028\u2029\u0085",
    }.items()
    for wide in wides
}

_NUMBER = r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[kKmM][iI]?)?"
_TO = r"(?:\.\.\.?|…|~|(?:(?<! )-|- ))"
_ITEM = re.compile(
    rf"(?:(?P<count>{_NUMBER}) *[xX*] *)?(?P<first>{_NUMBER})"
    rf"(?: *{_TO} *(?P<last>{_NUMBER})(?: */ *(?P<step>{_NUMBER}))?)?"
)
_SEPARATORS = re.compile(r"[,;\s]*")
_FRAGMENT = re.compile(r"[^,;\s]*")
_END_OF_ITEM = re.compile(r"[,;\s]|\Z")
_FACTORS: dict[str, int] = {"": 1, "k": 1024, "m": 1024 * 1024}
# Nothing allowed has more digits than the largest length, and int() of a long text is slow.
_MOST_DIGITS = len(str(MAX_LENGTH_TOKENS))
_MOST_DECIMALS = 20

# Groups of digits with nothing but one comma between them, none of them part of another item.
_TIGHT_GROUPS = re.compile(r"(?<![0-9a-zA-Z_.,*/~-])[0-9]+(?:,[0-9]+)+(?![0-9a-zA-Z_.*/~-])")
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+")
_ZERO_LED_GROUP = re.compile(r"[0-9][, ]0[0-9]{2}(?![0-9])")


def parse_lengths(text: str, *, field: str = "lengths") -> ParsedLengths:
    """Read lengths as typed; an empty text is no requests.

    Raises:
        OutOfRange: for a text longer than MAX_TEXT_CHARACTERS.
        LengthsMistake: for anything not understood or out of bounds, with its line and column
            (from 1), its position (from 0), the fragment, and what was understood before it.

    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise OutOfRange(
            "{field} must have at most {high} characters, got {value}",
            field=field,
            high=MAX_TEXT_CHARACTERS,
            value=len(text),
        )
    reader = _TextReader(text, field)
    reader.read()
    return reader.builder.parsed()


def read_lengths_file(name: str, data: bytes, *, field: str = "file") -> ParsedLengths:
    """Read a dropped file; the suffix of its name says how.

    `.csv` and `.tsv` take the column that is named as a length or the only numeric one; `.json` a
    list of integers or of {"length", "count"}; `.jsonl` and `.ndjson` one integer or object a line;
    `.txt` is read as if it had been typed.

    Raises:
        OutOfRange: for more than MAX_FILE_BYTES.
        Unsupported: for another suffix.
        Malformed: for bytes that are not UTF-8.
        LengthsMistake: for a record that cannot be read, with its line.

    """
    if len(data) > MAX_FILE_BYTES:
        raise OutOfRange(
            "{field} must have at most {high} bytes, got {value}",
            field=field,
            high=MAX_FILE_BYTES,
            value=len(data),
        )
    readers: dict[str, Callable[[str, str], ParsedLengths]] = {
        "csv": read_csv_lengths,
        "tsv": read_csv_lengths,
        "json": read_json_lengths,
        "jsonl": read_jsonl_lengths,
        "ndjson": read_jsonl_lengths,
        "txt": lambda text, field: parse_lengths(text, field=field),
    }
    suffix = name.rpartition(".")[2].lower()
    if suffix not in readers:
        raise Unsupported(
            "{field}: lengths are read from {known} files, got {value}",
            field=field,
            known=", ".join(sorted(readers)),
            value=shown(name),
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(
            "{field}: line {line} is not UTF-8 text",
            field=field,
            line=data.count(b"\n", 0, error.start) + 1,
        ) from None
    return readers[suffix](text, field)


class _TextReader:
    """Walks over a text once, item by item."""

    def __init__(self, text: str, field: str) -> None:
        self.typed = text
        self.text = text.translate(_NARROW)
        self.field = field
        self.builder = RunsBuilder()
        self._at = 0
        self._suffix_noted = False
        self._order_noted = False

    def read(self) -> None:
        start, end = self._bounds()
        self._at = self._skip_separators(start)
        while self._at < end:
            match = _ITEM.match(self.text, self._at, end)
            if match is None or not _END_OF_ITEM.match(self.text, match.end(), end):
                raise self._unread(end)
            self._add(match)
            self._at = self._skip_separators(match.end())
        self._note_thousands()

    def _bounds(self) -> tuple[int, int]:
        """Return where the items lie: a pasted list may stand in one pair of brackets."""
        stripped = self.text.strip()
        if not (stripped.startswith("[") and stripped.endswith("]")):
            return 0, len(self.text)
        return self.text.index("[") + 1, self.text.rindex("]")

    def _skip_separators(self, at: int) -> int:
        # The pattern matches the empty text too, so there is always a match.
        return cast("re.Match[str]", _SEPARATORS.match(self.text, at)).end()

    def _add(self, match: re.Match[str]) -> None:
        count = 1 if match["count"] is None else self._count(match)
        first = self._number(match, "first")
        if match["last"] is None:
            lengths = range(first, first + 1)
        else:
            step = 1 if match["step"] is None else self._number(match, "step")
            last = self._number(match, "last")
            if step == 0 or last < first:
                raise self._mistake(
                    "line {line}, column {column}: the range {fragment} must go up, by a step of"
                    " at least 1; before it {requests} requests with {tokens} tokens were read",
                    match.start("first"),
                    match.end(),
                )
            lengths = range(first, last + 1, step)
        if not self.builder.room_for(len(lengths), count):
            raise self._mistake(
                "line {line}, column {column}: {fragment} makes more than {most} requests, or more"
                " than {most_runs} different entries; before it {requests} requests with {tokens}"
                " tokens were read",
                *match.span(),
                most=MAX_REQUESTS,
                most_runs=MAX_RUNS,
            )
        for length in lengths:
            self.builder.add(length, count)

    def _count(self, match: re.Match[str]) -> int:
        digits = match["count"].replace("_", "").lstrip("0")
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            raise self._mistake(
                "line {line}, column {column}: {fragment} is not a count (a whole number from 1 to"
                " {most}, in digits alone); before it {requests} requests with {tokens} tokens were"
                " read",
                *match.span("count"),
                most=MAX_REQUESTS,
            )
        count = int(digits)
        if not self._order_noted and match["last"] is None:
            self._note_order(match, count)
        return count

    def _note_order(self, match: re.Match[str], count: int) -> None:
        if count > self._number(match, "first"):
            self._order_noted = True
            self.builder.notes.append(
                Note(
                    "count_first",
                    "{fragment} is read as {count} requests: the count comes first.",
                    {
                        "fragment": shown(self.typed[slice(*match.span())]),
                        "count": count,
                    },
                )
            )

    def _number(self, match: re.Match[str], group: str) -> int:
        """Return a length as a whole number of tokens; `1.5k` is one, `1.5` is not."""
        written = match[group].replace("_", "")
        digits = written.rstrip("kKmMiI")
        suffix = written[len(digits) :].lower().removesuffix("i")
        whole, _, decimals = digits.partition(".")
        whole, decimals = whole.lstrip("0"), decimals.rstrip("0")
        if len(whole) > _MOST_DIGITS:
            raise self._too_long(match, group)
        # A 1,048,576th has twenty decimals: what has more is whole in no unit.
        parts = int(whole + decimals[:_MOST_DECIMALS] or "0") * _FACTORS[suffix]
        value, rest = divmod(parts, int(10 ** len(decimals[:_MOST_DECIMALS])))
        if rest or len(decimals) > _MOST_DECIMALS or ("." in digits and not suffix):
            raise self._mistake(
                "line {line}, column {column}: {fragment} is not a whole number of tokens;"
                " before it {requests} requests with {tokens} tokens were read",
                *match.span(group),
            )
        if value > MAX_LENGTH_TOKENS:
            raise self._too_long(match, group)
        if suffix and not self._suffix_noted:
            self._suffix_noted = True
            self.builder.notes.append(
                Note("binary_suffix", "k is read as 1,024 tokens and M as 1,048,576.")
            )
        return value

    def _too_long(self, match: re.Match[str], group: str) -> LengthsMistake:
        return self._mistake(
            "line {line}, column {column}: {fragment} is more than {most} tokens; before it"
            " {requests} requests with {tokens} tokens were read",
            *match.span(group),
            most=MAX_LENGTH_TOKENS,
        )

    def _note_thousands(self) -> None:
        """Say so once, if a comma may have been meant to group the digits of one number."""
        doubtful = [
            group[0]
            for group in _TIGHT_GROUPS.finditer(self.text)
            if _THOUSANDS.fullmatch(group[0]) or _ZERO_LED_GROUP.search(group[0])
        ] or [group[0] for group in _ZERO_LED_GROUP.finditer(self.text)]
        if doubtful:
            self.builder.notes.append(
                Note(
                    "thousands_separator",
                    "{fragment} is read as separate lengths; write one number without a separator"
                    " if you meant one. ({places} such places)",
                    {"fragment": shown(doubtful[0]), "places": len(doubtful)},
                )
            )

    def _unread(self, end: int) -> LengthsMistake:
        fragment = cast("re.Match[str]", _FRAGMENT.match(self.text, self._at, end))
        if fragment[0].startswith("-"):
            return self._mistake(
                "line {line}, column {column}: a length is not negative, got {fragment}; before it"
                " {requests} requests with {tokens} tokens were read",
                *fragment.span(),
            )
        return self._mistake(
            "line {line}, column {column}: {fragment} is not a length, a count x length or a range"
            " first..last; before it {requests} requests with {tokens} tokens were read",
            *fragment.span(),
        )

    def _mistake(self, template: str, start: int, end: int, **params: object) -> LengthsMistake:
        before = self.text[:start]
        return LengthsMistake(
            template,
            field=self.field,
            understood=self.builder.parsed(),
            position=start,
            line=before.count("\n") + 1,
            column=start - (before.rfind("\n") + 1) + 1,
            fragment=shown(self.typed[start:end]),
            **params,
        )
