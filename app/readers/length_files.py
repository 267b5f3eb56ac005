"""Lengths out of files of records: CSV, JSON and JSON lines."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, NoReturn

from app.domain.errors import Malformed, shown
from app.domain.notes import Note
from app.readers.column_names import (
    COUNT_NAMES,
    INPUT_NAMES,
    LENGTH_NAMES,
    OUTPUT_NAMES,
    pick,
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
    from collections.abc import Iterator

_INTEGER = re.compile(r"\s*[0-9]+\s*\Z")
_MOST_COLUMNS = 1000
_MOST_DIGITS = len(str(MAX_LENGTH_TOKENS))

_SUM_NOTE = Note(
    "input_plus_output",
    "A length is input plus output tokens: what the request holds when its answer is complete.",
)


class _Records:
    """Adds records to runs; `line` is where the reader stands, for the message."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.line = 0
        self.item = 0
        self._records = 0
        self.builder = RunsBuilder()

    def mistake(self, template: str, **params: object) -> LengthsMistake:
        return LengthsMistake(
            template,
            field=self.field,
            understood=self.builder.parsed(),
            position=0,
            line=self.line,
            item=self.item,
            place=f"line {self.line}" if self.line else f"item {self.item}",
            **params,
        )

    def add(self, length: object, count: object, what: str) -> None:
        self._records += 1
        if self._records > MAX_RECORDS:
            raise self.mistake(
                "{field}: {place}: more than {most} records; give equal lengths a count;"
                " before it {requests} requests with {tokens} tokens were read",
                most=MAX_RECORDS,
            )
        length_tokens = self._checked(length, what, low=0, high=MAX_LENGTH_TOKENS)
        repeated = self._checked(count, "count", low=1, high=MAX_REQUESTS)
        if not self.builder.room_for(1, repeated):
            raise self.mistake(
                "{field}: {place}: more than {most} requests, or more than {most_runs} entries;"
                " before it {requests} requests with {tokens} tokens were read",
                most=MAX_REQUESTS,
                most_runs=MAX_RUNS,
            )
        self.builder.add(length_tokens, repeated)

    def _checked(self, value: object, what: str, *, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            raise self.mistake(
                "{field}: {place}: {what} must be an integer from {low} to {high}, got {value};"
                " before it {requests} requests with {tokens} tokens were read",
                what=what,
                low=low,
                high=high,
                value=shown(value),
            )
        return value

    def add_entry(self, entry: object) -> None:
        """Add an integer, or an object with a length under one of the known names."""
        if not isinstance(entry, dict):
            self.add(entry, 1, "length")
            return
        names = list(entry)
        count_at = pick(names, COUNT_NAMES)
        count = 1 if count_at is None else entry[names[count_at]]
        at = pick(names, LENGTH_NAMES)
        if at is not None:
            self.add(entry[names[at]], count, names[at])
            return
        input_at, output_at = pick(names, INPUT_NAMES), pick(names, OUTPUT_NAMES)
        if input_at is None:
            raise self.mistake(
                "{field}: {place}: no length or input_length among {value}; before it {requests}"
                " requests with {tokens} tokens were read",
                value=shown(names),
            )
        parts = [names[at] for at in (input_at, output_at) if at is not None]
        self.add_sum([(name, entry[name]) for name in parts], count)

    def add_sum(self, parts: list[tuple[str, object]], count: object) -> None:
        """Add the sum of one record's tokens (input, or input and output), each checked alone."""
        if len(parts) == 1:
            self.add(parts[0][1], count, parts[0][0])
            return
        total = 0
        for name, value in parts:
            total += self._checked(value, name, low=0, high=MAX_LENGTH_TOKENS)
        if _SUM_NOTE not in self.builder.notes:
            self.builder.notes.append(_SUM_NOTE)
        self.add(total, count, " + ".join(name for name, _ in parts))


def _loads(text: str, records: _Records) -> object:
    def no_constant(name: str) -> NoReturn:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        records.line = records.line or error.lineno
    except (ValueError, RecursionError):
        # A number that JSON does not have, one of thousands of digits, or nesting without end.
        records.line = records.line or 1
    raise records.mistake(
        "{field}: {place} is not JSON; before it {requests} requests with {tokens} tokens were read"
    )


def read_json_lengths(text: str, field: str) -> ParsedLengths:
    """Read a list of integers or objects, or an object that has it under `lengths`."""
    records = _Records(field)
    document = _loads(text, records)
    if isinstance(document, dict):
        document = document.get("lengths")
    if not isinstance(document, list):
        raise Malformed("{field} must be a JSON list of lengths", field=field)
    for item, entry in enumerate(document, start=1):
        records.item = item
        records.add_entry(entry)
    return records.builder.parsed()


def read_jsonl_lengths(text: str, field: str) -> ParsedLengths:
    """Read one integer or object a line; empty lines are passed over."""
    records = _Records(field)
    for line, content in enumerate(text.split("\n"), start=1):
        records.line = line
        if content.strip():
            records.add_entry(_loads(content, records))
    return records.builder.parsed()


def read_csv_lengths(text: str, field: str) -> ParsedLengths:
    """Read the column that is named as a length, or the only one of nothing but integers.

    A column of input tokens with one of output tokens beside it is added up. The first line is a
    heading if a cell of it is no integer; commas, semicolons and tabs separate.
    """
    records = _Records(field)
    rows = _rows(text, records)
    first = next(rows, None)
    if first is None:
        return records.builder.parsed()
    heading = None if all(_INTEGER.match(cell) for cell in first) else first
    if len(first) > _MOST_COLUMNS:
        raise records.mistake("{field}: {place}: more than {most} columns", most=_MOST_COLUMNS)
    names = heading or [f"column {number}" for number in range(1, len(first) + 1)]
    columns, count_at = _columns(names, text, records, has_heading=heading is not None)
    if heading is None:
        _add_row(names, first, columns, count_at, records)
    for row in rows:
        _add_row(names, row, columns, count_at, records)
    return records.builder.parsed()


def _rows(text: str, records: _Records) -> Iterator[list[str]]:
    """Yield rows that are not empty; `records.line` is the line a row ends on."""
    head = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(text.split("\n"), delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            records.line = reader.line_num
            raise records.mistake(
                "{field}: {place} is not CSV; before it {requests} requests with {tokens} tokens"
                " were read"
            ) from None
        if row is None:
            return
        records.line = reader.line_num
        if any(cell.strip() for cell in row):
            yield row


def _columns(
    names: list[str], text: str, records: _Records, *, has_heading: bool
) -> tuple[list[int], int | None]:
    """Return the columns to add up and that of the count."""
    count_at = pick(names, COUNT_NAMES)
    length_at, input_at = pick(names, LENGTH_NAMES), pick(names, INPUT_NAMES)
    if length_at is not None:
        return [length_at], count_at
    if input_at is not None:
        output_at = pick(names, OUTPUT_NAMES)
        return [at for at in (input_at, output_at) if at is not None], count_at
    rows = _rows(text, _Records(records.field))
    if has_heading:
        next(rows)
    numeric = [at for at in _numeric_columns(rows, len(names)) if at != count_at]
    if len(numeric) != 1:
        raise records.mistake(
            "{field}: {place}: no column is named as a length, and {numeric} columns hold only"
            " integers: {names}",
            numeric=len(numeric),
            names=shown(names),
        )
    return numeric, count_at


def _numeric_columns(rows: Iterator[list[str]], width: int) -> list[int]:
    """Return the columns in which every cell is an integer; none where there is no row."""
    numeric = set(range(width))
    some = False
    for row in rows:
        some = True
        numeric = {at for at in numeric if at < len(row) and _INTEGER.match(row[at])}
    return sorted(numeric) if some else []


def _add_row(
    names: list[str],
    row: list[str],
    columns: list[int],
    count_at: int | None,
    records: _Records,
) -> None:
    row += [""] * (len(names) - len(row))
    count = 1 if count_at is None else _integer(row[count_at])
    records.add_sum([(names[at], _integer(row[at])) for at in columns], count)


def _integer(cell: str) -> int | str:
    """Return the integer a cell holds, or the cell itself for the message that refuses it."""
    if len(cell) <= _MOST_DIGITS and cell.isascii() and cell.isdecimal():
        return int(cell)
    digits = cell.strip().lstrip("0") or "0"
    if _INTEGER.match(cell) and len(digits) <= _MOST_DIGITS + 1:
        return int(digits)
    return cell
