"""Records of a request log, one line each, as requests: JSON objects, token ids, rows of CSV.

- JSON with block ids: `timestamp, input_length, output_length, hash_ids`, as Mooncake publishes it
  (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces: milliseconds, blocks of 512), and
  as Alibaba does (https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon: seconds, beside a
  `chat_id`, blocks of 16);
- the same without block ids;
- JSON with the token ids themselves, hashed here into chained blocks;
- CSV with a time and token counts, as Azure publishes it
  (https://github.com/Azure/AzurePublicDataset: dates) and BurstGPT (seconds).

The first record says which fields there are; every other must have them too.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import NoReturn, Protocol

from app.domain.checks import checked_int
from app.domain.errors import Unknown, shown
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.domain.traces import MAX_BLOCK_TOKENS, TraceRequest
from app.readers.column_names import (
    HASH_NAMES,
    INPUT_NAMES,
    OUTPUT_NAMES,
    TIME_NAMES,
    TOKEN_NAMES,
    pick_name,
)
from app.readers.trace_errors import TraceMistake
from app.readers.trace_times import UNITS_NS, is_date, time_ns

_LONGEST_ID = 128
_LARGEST_ID = 2**64 - 1
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What a log does not say of itself.

    `time_unit` is that of times written as numbers; without it they are milliseconds in JSON, as in
    Mooncake's logs, seconds in CSV, as in BurstGPT's, and in JSON with a `chat_id`, and a note says
    so. `token_block_tokens` is the block size into which token ids are hashed.
    """

    time_unit: str | None = None
    token_block_tokens: int = 16

    def __post_init__(self) -> None:
        checked_int(self.token_block_tokens, "token_block_tokens", low=1, high=MAX_BLOCK_TOKENS)
        if self.time_unit is not None and self.time_unit not in UNITS_NS:
            raise Unknown(
                "{field} must be one of {known}, got {value}",
                field="time_unit",
                known=", ".join(UNITS_NS),
                value=shown(self.time_unit),
            )


class TraceForm(Protocol):
    """Reads one record after another; `notes` and `block_tokens` are final after the first."""

    name: str
    notes: list[Note]
    block_tokens: int | None

    def request(self, line: int, text: str) -> TraceRequest:
        """Return the request of a line."""


class RecordForm:
    """Named fields, whatever they were written in: the fields of the first record are required."""

    def __init__(
        self, line: int, record: Mapping[str, object], options: TraceOptions, unit: str
    ) -> None:
        self.notes: list[Note] = []
        self._options = options
        self._time = pick_name(record, TIME_NAMES)
        self._input = pick_name(record, INPUT_NAMES)
        self._output = pick_name(record, OUTPUT_NAMES)
        self._hashes = pick_name(record, HASH_NAMES)
        self._tokens = None if self._input or self._hashes else pick_name(record, TOKEN_NAMES)
        self._unit = options.time_unit or unit
        if self._tokens is None:
            self._require_lengths(line, record)
        # Known where the blocks are made here; ids in a log do not say how many tokens they name.
        self.block_tokens = options.token_block_tokens if self._tokens else None
        self.name = "hash ids" if self._hashes else "token ids" if self._tokens else "lengths"
        if self._time and not options.time_unit and not is_date(record[self._time]):
            self.notes.append(
                Note("time_unit", "Times are numbers of {unit}.", {"unit": self._unit})
            )
        if self._output is None:
            self.notes.append(
                Note("no_output", "The log tells no output: only prompts are counted.")
            )

    def _require_lengths(self, line: int, record: Mapping[str, object]) -> None:
        for found, wanted in (
            (self._time, "timestamp"),
            (self._input, "input_length"),
            (self._output, "output_length"),
        ):
            if found is None:
                raise TraceMistake(
                    "line {line}: no {wanted} among the fields {value}",
                    line=line,
                    wanted=wanted,
                    value=shown(list(record)),
                )

    def read(self, line: int, record: Mapping[str, object]) -> TraceRequest:
        """Return the request of a record.

        Raises:
            TraceMistake: for a field that is missing, of another type or out of bounds.

        """
        blocks: tuple[int | str, ...] | tuple[bytes, ...] | None = None
        if self._tokens is not None:
            tokens = self._list_of_ints(line, record, self._tokens, 2**32 - 1)
            blocks = chained_blocks(tokens, self._options.token_block_tokens)
            input_tokens = len(tokens)
        else:
            input_tokens = self._tokens_of(line, record, self._input)
        output_tokens = self._tokens_of(line, record, self._output)
        if input_tokens + output_tokens > MAX_TOKENS:
            raise TraceMistake(
                "line {line}: input and output together are more than {high} tokens",
                line=line,
                high=MAX_TOKENS,
            )
        if self._hashes is not None:
            blocks = self._block_ids(line, record, self._hashes)
        return TraceRequest(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            arrival_ns=self._arrival_ns(line, record),
            blocks=blocks,
            line=line,
        )

    def _field(self, line: int, record: Mapping[str, object], name: str) -> object:
        try:
            return record[name]
        except KeyError:
            raise TraceMistake("line {line}: {name} is missing", line=line, name=name) from None

    def _arrival_ns(self, line: int, record: Mapping[str, object]) -> int | None:
        if self._time is None:
            return None
        value = self._field(line, record, self._time)
        arrival_ns = time_ns(value, self._unit)
        if arrival_ns is None:
            raise TraceMistake(
                "line {line}: {name} must be a date or a number of {unit} from 0 on, got {value}",
                line=line,
                name=self._time,
                unit=self._unit,
                value=_plainly(value),
            )
        return arrival_ns

    def _tokens_of(self, line: int, record: Mapping[str, object], name: str | None) -> int:
        if name is None:
            return 0
        value = self._field(line, record, name)
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            raise TraceMistake(
                "line {line}: {name} must be an integer from 0 to {high}, got {value}",
                line=line,
                name=name,
                high=MAX_TOKENS,
                value=_plainly(value),
            )
        return value

    def _list_of_ints(
        self, line: int, record: Mapping[str, object], name: str, high: int
    ) -> list[int]:
        values = self._field(line, record, name)
        if (
            not isinstance(values, list)
            or set(map(type, values)) - {int}
            or (values and (min(values) < 0 or max(values) > high))
        ):
            raise TraceMistake(
                "line {line}: {name} must be a list of integers from 0 to {high}",
                line=line,
                name=name,
                high=high,
            )
        return values

    def _block_ids(
        self, line: int, record: Mapping[str, object], name: str
    ) -> tuple[int | str, ...]:
        values = self._field(line, record, name)
        if isinstance(values, list) and values and set(map(type, values)) == {str}:
            if max(map(len, values)) > _LONGEST_ID:
                raise TraceMistake(
                    "line {line}: an id in {name} has more than {high} characters",
                    line=line,
                    name=name,
                    high=_LONGEST_ID,
                )
            return tuple(values)
        return tuple(self._list_of_ints(line, record, name, _LARGEST_ID))


class JsonForm:
    """One JSON object a line, or one list of token ids."""

    def __init__(self, line: int, text: str, options: TraceOptions) -> None:
        first = _record(line, text)
        self._records = RecordForm(line, first, options, "s" if "chat_id" in first else "ms")
        self.name = f"JSON lines, {self._records.name}"
        self.notes = self._records.notes
        self.block_tokens = self._records.block_tokens

    def request(self, line: int, text: str) -> TraceRequest:
        """Return the request of a line."""
        return self._records.read(line, _record(line, text))


class CsvForm:
    """Rows under a heading; a row has as many cells as the heading."""

    def __init__(self, line: int, text: str, options: TraceOptions) -> None:
        self._delimiter = max(",;\t", key=text.count)
        self._names = self._cells(line, text)
        self._options = options
        self._records: RecordForm | None = None
        self.name = "CSV"
        self.notes: list[Note] = []
        self.block_tokens: int | None = None
        if len(set(self._names)) < len(self._names):
            raise TraceMistake("line {line}: the heading names a column twice", line=line)
        # Checked at the heading, where a missing column belongs; the unit needs the first row.
        RecordForm(line, dict.fromkeys(self._names, ""), options, "s")

    def request(self, line: int, text: str) -> TraceRequest:
        """Return the request of a row."""
        cells = self._cells(line, text)
        if len(cells) != len(self._names):
            raise TraceMistake(
                "line {line}: {value} cells under a heading of {wanted}",
                line=line,
                value=len(cells),
                wanted=len(self._names),
            )
        record = {
            name: _integer_or_text(cell) for name, cell in zip(self._names, cells, strict=True)
        }
        if self._records is None:
            self._records = RecordForm(line, record, self._options, "s")
            self.notes = self._records.notes
        return self._records.read(line, record)

    def _cells(self, line: int, text: str) -> list[str]:
        if '"' not in text:
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error:
            raise TraceMistake("line {line} is not CSV", line=line) from None


def form_of(line: int, text: str, options: TraceOptions) -> tuple[TraceForm, bool]:
    """Return the form of a log from its first line, and whether that line is a request already."""
    if text.startswith(("{", "[")):
        return JsonForm(line, text, options), True
    return CsvForm(line, text, options), False


def chained_blocks(tokens: list[int], block_tokens: int) -> tuple[bytes, ...]:
    """Return a name for each full block, which tells it and all before it; a rest has none."""
    packed = array("I", tokens)
    width = block_tokens * packed.itemsize
    content = packed.tobytes()
    names = []
    parent = b""
    for start in range(0, len(content) - width + 1, width):
        parent = blake2b(parent + content[start : start + width], digest_size=16).digest()
        names.append(parent)
    return tuple(names)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)


def _record(line: int, text: str) -> dict[str, object]:
    """Return a line's object; a bare list is one of token ids.

    Raises:
        TraceMistake: for what is not JSON (NaN and Infinity are not), or no object.

    """
    try:
        value = _DECODER.decode(text)
    except (ValueError, ArithmeticError, RecursionError):
        raise TraceMistake("line {line} is not JSON", line=line) from None
    if isinstance(value, list):
        value = {"tokens": value}
    if not isinstance(value, dict):
        raise TraceMistake("line {line} must be a JSON object", line=line)
    return value


def _integer_or_text(cell: str) -> int | str:
    text = cell.strip()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    return text


def _plainly(value: object) -> str:
    """Return a rejected value as it was written rather than as Python holds it."""
    return shown(value) if not isinstance(value, Decimal) else str(value)[:60]
