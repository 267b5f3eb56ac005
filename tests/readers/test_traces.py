"""Request logs: every form that is read, and every way in which a log can be bad."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
import tracemalloc
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from app.domain import reuse
from app.domain.errors import DomainError, Malformed, OutOfRange, Unknown, Unsupported
from app.domain.timeline import TokenRates
from app.domain.traces import TraceMeter, TraceRequest
from app.readers import parquet_traces, trace_lines
from app.readers.parquet_traces import ParquetReader
from app.readers.trace_formats import chained_blocks
from app.readers.trace_times import time_ns
from app.readers.traces import (
    TraceCancelled,
    TraceMistake,
    TraceOptions,
    TraceReader,
    chunks_of,
    read_report,
)

MS = 10**6
S = 10**9

# Of the form of https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 1300, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 40, "input_length": 513, "output_length": 4, "hash_ids": [0, 3]}\n'
    b'{"timestamp": 40, "input_length": 1400, "output_length": 1, "hash_ids": [0, 1, 4]}\n'
)
# Of the form of https://github.com/Azure/AzurePublicDataset, 2023 and 2024.
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:17:03.9799600,4808,10\n"
    b"2023-11-16 18:17:04.0319600,3180,8\n"
)
HEADING = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(
    content: bytes, options: TraceOptions | None = None
) -> tuple[list[TraceRequest], TraceReader]:
    """Return the requests of a log, and the reader that gave them."""
    reader = TraceReader([content], options)
    return list(reader), reader


def codes(reader: TraceReader | ParquetReader) -> list[str]:
    """Return what was taken for granted in reading, by code."""
    return [note.code for note in reader.notes]


def test_mooncakes_form() -> None:
    """Milliseconds, lengths and block ids, with the unit said as an assumption."""
    requests, reader = read(MOONCAKE)
    assert requests[0] == TraceRequest(
        input_tokens=1300, output_tokens=6, arrival_ns=0, blocks=(0, 1, 2)
    )
    assert [request.arrival_ns for request in requests] == [0, 40 * MS, 40 * MS]
    assert (reader.form, reader.requests) == ("JSON lines, hash ids", 3)
    assert codes(reader) == ["time_unit"]
    assert reader.notes[0].params == {"unit": "ms"}
    assert reader.block_tokens is None


def test_alibabas_form() -> None:
    """A chat id marks times in seconds; other fields are passed over."""
    requests, reader = read(
        b'{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521,'
        b' "output_length": 132, "type": "text", "turn": 1, "hash_ids": [18446744073709551615]}\n'
    )
    assert requests[0].arrival_ns == 61_114 * MS
    assert requests[0].blocks == (2**64 - 1,)
    assert reader.notes[0].params == {"unit": "s"}


def test_azures_form() -> None:
    """Dates with seven decimals need no unit."""
    requests, reader = read(AZURE)
    assert [(r.input_tokens, r.output_tokens) for r in requests] == [(4808, 10), (3180, 8)]
    # date --date="2023-11-16T18:17:03Z" +%s
    assert requests[0].arrival_ns == 1_700_158_623 * S + 979_960_000
    assert requests[1].arrival_ns == 1_700_158_624 * S + 31_960_000
    assert requests[0].blocks is None
    assert (reader.form, codes(reader)) == ("CSV", [])


def test_burstgpts_form() -> None:
    """Seconds, and columns that say nothing of lengths."""
    requests, reader = read(
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
        b'5,"Chat,GPT",472,18,490,Conversation log\r\n'
        b"45.5,GPT-4,1087,230,1317,Conversation log\r\n"
    )
    assert [(r.arrival_ns, r.input_tokens, r.output_tokens) for r in requests] == [
        (5 * S, 472, 18),
        (45_500 * MS, 1087, 230),
    ]
    assert reader.notes[0].params == {"unit": "s"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"arrived_at;num_prefill_tokens;num_decode_tokens\n0.25;7;3\n", (S // 4, 7, 3)),
        (b"arrival_timestamp\tprompt_size\ttoken_size\n2\t7\t3\n", (2 * S, 7, 3)),
        (b"\xef\xbb\xbf" + HEADING + b"\n 1 , 7 , 3 \n\n", (S, 7, 3)),
        (HEADING + b"2024-05-10 00:00:00.009930+00:00,7,3", (1_715_299_200 * S + 9_930_000, 7, 3)),
        (HEADING + b'"2024-05-10T02:00:00+0200","7","3"\n', (1_715_299_200 * S, 7, 3)),
        (HEADING + b"2024-05-10T00:00:00Z,7,3\n", (1_715_299_200 * S, 7, 3)),
        (b'{"time": 1, "prompt_tokens": 7, "completion_tokens": 3}\n', (MS, 7, 3)),
        (
            b'{"timestamp": "2024-05-10T00:00:00", "input_length": 7, "output_length": 3}',
            (1_715_299_200 * S, 7, 3),
        ),
    ],
)
def test_other_names_for_the_same(content: bytes, expected: tuple[int, int, int]) -> None:
    """What simulators and other logs call arrival, prompt and answer is read too."""
    requests, _ = read(content)
    assert [(r.arrival_ns, r.input_tokens, r.output_tokens) for r in requests] == [expected]


def test_a_unit_can_be_given() -> None:
    """A given unit is no assumption."""
    requests, reader = read(MOONCAKE, TraceOptions(time_unit="us"))
    assert requests[1].arrival_ns == 40_000
    assert reader.notes == ()


def test_token_ids_are_hashed_into_chained_blocks() -> None:
    """Equal blocks under equal beginnings have equal names; an incomplete block has none."""
    requests, reader = read(
        b"[1, 2, 3, 4]\n[9, 2, 3, 4]\n[1, 2, 3, 4, 5]\n[]\n", TraceOptions(token_block_tokens=2)
    )
    first, second, third, fourth = (request.blocks or () for request in requests)
    assert [len(first), len(second), len(third), len(fourth)] == [2, 2, 2, 0]
    assert first == third
    assert not set(first) & set(second)
    assert [request.input_tokens for request in requests] == [4, 4, 5, 0]
    assert {(request.output_tokens, request.arrival_ns) for request in requests} == {(0, None)}
    assert (reader.form, codes(reader)) == ("JSON lines, token ids", ["no_output"])
    assert reader.block_tokens == 2


def test_token_ids_with_time_and_output() -> None:
    """Beside token ids, a log may tell when and how much was answered."""
    requests, reader = read(
        b'{"prompt_token_ids": [7, 8], "timestamp": 3, "output_length": 9}\n'
        b'{"prompt_token_ids": [7], "timestamp": 4, "output_length": 0}\n'
    )
    assert [(r.arrival_ns, r.input_tokens, r.output_tokens) for r in requests] == [
        (3 * MS, 2, 9),
        (4 * MS, 1, 0),
    ]
    assert codes(reader) == ["time_unit"]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9))
def test_a_block_name_tells_all_before_it(tokens: list[int], size: int) -> None:
    """A prompt's blocks are the beginning of those of any longer prompt, and no two are equal."""
    names = chained_blocks(tokens, size)
    assert len(names) == len(tokens) // size == len(set(names))
    assert chained_blocks([*tokens, 5, 6, 7], size)[: len(names)] == names


def test_block_ids_may_be_texts() -> None:
    """Hashes are written as hex digits too."""
    requests, _ = read(
        b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a1", "b2"]}'
    )
    assert requests[0].blocks == ("a1", "b2")


GOOD = b'{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'


def with_field(field: str, value: str) -> bytes:
    """Return a good line with one field of another value, as JSON text."""
    fields = {"timestamp": "5", "input_length": "1", "output_length": "1", "hash_ids": "[1]"}
    fields[field] = value
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}").encode()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (with_field("timestamp", "4"), "time goes back by 1000000 ns"),
        (b'{"timestamp": 5, "input_length": 1, "hash_ids": [1]}', "output_length is missing"),
        (b'{"input_length": 1, "output_length": 1, "hash_ids": [1]}', "timestamp is missing"),
        (b'{"timestamp": 5, "input_length": 1, "output_length": 1}', "hash_ids is missing"),
        (with_field("input_length", "-1"), "input_length must be an integer from 0"),
        (with_field("output_length", "-1"), "output_length must be an integer from 0"),
        (with_field("input_length", "1.5"), "got 1.5"),
        (with_field("input_length", "1e3"), "got 1E+3"),
        (with_field("input_length", '"1"'), "got '1'"),
        (with_field("input_length", "true"), "got True"),
        (with_field("input_length", "null"), "got None"),
        (with_field("input_length", "1000000001"), "input_length must be"),
        (with_field("input_length", "1000000000"), "input and output together"),
        (with_field("input_length", "NaN"), "is not JSON"),
        (with_field("timestamp", "NaN"), "is not JSON"),
        (with_field("timestamp", "-Infinity"), "is not JSON"),
        (with_field("timestamp", "-1"), "timestamp must be a date or a number of ms"),
        (with_field("timestamp", "true"), "timestamp must be"),
        (with_field("timestamp", "1e999999999"), "timestamp must be"),
        (with_field("timestamp", "1e99999999999999999999"), "is not JSON"),
        (with_field("timestamp", '"yesterday"'), "timestamp must be"),
        (with_field("timestamp", '"2023-13-16 18:17:03"'), "timestamp must be"),
        (with_field("timestamp", '"1_000"'), "timestamp must be"),
        (with_field("hash_ids", "1"), "hash_ids must be a list of integers"),
        (with_field("hash_ids", "[1, 2.0]"), "hash_ids must be a list of integers"),
        (with_field("hash_ids", "[1, true]"), "hash_ids must be a list of integers"),
        (with_field("hash_ids", '[1, "a"]'), "hash_ids must be a list of integers"),
        (with_field("hash_ids", "[-1]"), "hash_ids must be a list of integers"),
        (with_field("hash_ids", "[18446744073709551616]"), "hash_ids must be a list of integers"),
        (with_field("hash_ids", f'["{"a" * 129}"]'), "more than 128 characters"),
        (with_field("hash_ids", "9" * 5000), "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"timestamp": 5', "is not JSON"),
        (b"[1, 2]", "input_length is missing"),
        (b"5", "must be a JSON object"),
        (b"timestamp,input_length", "is not JSON"),
        (b"\x00\x01\x02", "binary data"),
        (b"\xff\xfe", "binary data"),
    ],
)
def test_a_bad_line_is_named(bad: bytes, message: str) -> None:
    """A line that cannot be read ends the stream with its number; blank lines count."""
    with pytest.raises(TraceMistake) as caught:
        read(GOOD + b"\n" + bad + b"\n" + GOOD)
    assert caught.value.line == caught.value.params["line"] == 3
    assert str(caught.value).startswith("line 3")
    assert message in str(caught.value)
    assert caught.value.field == ("trace",)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1", "time goes back"),
        (b"1,1,1\n2,1\n", "2 cells under a heading of 3"),
        (b"1,1,1\n2,1,1,1\n", "4 cells under a heading of 3"),
        (b"1,1,1\n2,-1,1\n", "ContextTokens must be an integer"),
        (b"1,1,1\n2,,1\n", "ContextTokens must be an integer"),
        (b"1,1,1\n2,1.0,1\n", "ContextTokens must be an integer"),
        (b"1,1,1\n2,1,99999999999\n", "GeneratedTokens must be an integer"),
        (b"1,1,1\nnan,1,1\n", "TIMESTAMP must be"),
        (b"1,1,1\n,1,1\n", "TIMESTAMP must be"),
        (b'1,1,1\n"2,1,1\n', "is not CSV"),
        (b"1,1,1\n2,1,\xff\n", "binary data"),
    ],
)
def test_a_bad_row_is_named(bad: bytes, message: str) -> None:
    """A row of CSV that cannot be read is refused with its line."""
    with pytest.raises(TraceMistake, match=message) as caught:
        read(HEADING + bad)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: the log ends without a request"),
        (b"\n\n", "line 1: the log ends without a request"),
        (HEADING, "line 1: the log ends without a request"),
        (b"1,2,3\n", "line 1: no timestamp among the fields"),
        (b"TIMESTAMP,GeneratedTokens\n1,2\n", "line 1: no input_length among the fields"),
        (b'{"timestamp": 0, "input_length": 1}', "line 1: no output_length among the fields"),
        (b'{"hash_ids": [1]}', "line 1: no timestamp among the fields"),
        (b"TIMESTAMP,input,output,input\n1,2,3,4\n", "line 1: the heading names a column twice"),
        (b"[1, -2]\n", "line 1: tokens must be a list of integers"),
        (b"[1, 4294967296]\n", "line 1: tokens must be a list of integers"),
        (gzip.compress(GOOD, mtime=0), "line 1: this is gzip data"),
        (b"PK\x03\x04\x14", "line 1: this is ZIP data"),
        (b"PAR1\x15\x00\n", "line 1 is not UTF-8 text but binary data"),
        (b"hello\n", "line 1: no timestamp"),
    ],
)
def test_what_is_no_log_is_refused_at_its_first_line(content: bytes, message: str) -> None:
    """Something else than a log says what is missing."""
    with pytest.raises(TraceMistake) as caught:
        read(content)
    assert str(caught.value).startswith(message)


def endless_line(mebibytes: int, taken: list[int]) -> Iterator[bytes]:
    """Yield one good line, then one without end, counting what is taken of it."""
    yield GOOD
    for _ in range(mebibytes):
        taken.append(1)
        yield b"x" * 2**20


def test_a_line_of_a_gibibyte_is_refused_before_it_is_held() -> None:
    """Reading stops after 16 MiB of a line, with its number, in little more memory than that."""
    taken: list[int] = []
    tracemalloc.start()
    try:
        with pytest.raises(TraceMistake, match="line 2 is longer than 16777216 bytes"):
            list(TraceReader(endless_line(1024, taken)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(taken) == 17
    assert peak_bytes < 24 * 2**20


def test_a_long_line_that_ends_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for a line that ends within the piece it began in."""
    monkeypatch.setattr(trace_lines, "MAX_LINE_BYTES", len(GOOD) - 1)
    assert len(read(GOOD)[0]) == 1
    with pytest.raises(TraceMistake, match="line 2 is longer"):
        read(GOOD + b" " + GOOD)


@given(st.lists(st.integers(0, len(MOONCAKE)), max_size=6))
def test_how_the_bytes_arrive_does_not_matter(cuts: list[int]) -> None:
    """A log cut anywhere, also inside a line, gives the same requests."""
    places = [0, *sorted(cuts), len(MOONCAKE)]
    chunks = [MOONCAKE[start:end] for start, end in pairwise(places)]
    reader = TraceReader(chunks)
    assert list(reader) == read(MOONCAKE)[0]
    assert reader.read_bytes == len(MOONCAKE)


def test_progress_is_told_and_may_stop() -> None:
    """Bytes and requests are told after each piece; what the callback raises ends everything."""
    told: list[tuple[int, int]] = []
    line = len(GOOD)
    list(
        TraceReader(
            chunks_of(io.BytesIO(GOOD * 4), 2 * line),
            progress=lambda count, requests: told.append((count, requests)),
        )
    )
    assert told == [(2 * line, 2), (4 * line, 4), (4 * line, 4)]

    def stop(_: int, requests: int) -> None:
        if requests == 2:
            raise TraceCancelled

    with pytest.raises(TraceCancelled):
        read_report(
            TraceReader(chunks_of(io.BytesIO(GOOD * 4), 2 * line), progress=stop), TraceMeter()
        )


def test_one_large_chunk_is_told_piece_by_piece() -> None:
    """A whole file in one chunk still gives progress every mebibyte."""
    told: list[int] = []
    content = GOOD * (3 * 2**20 // len(GOOD))
    list(TraceReader([content], progress=lambda count, _: told.append(count)))
    assert told[:2] == [2**20, 2 * 2**20]
    assert told[-1] == len(content)


def test_a_report_of_a_log() -> None:
    """A reader and a meter together: reuse, block size, live state, all assumptions."""
    report = read_report(
        TraceReader([MOONCAKE]),
        TraceMeter(
            bytes_of_tokens=lambda tokens: tokens, service=TokenRates(decode_tokens_per_s=100)
        ),
    )
    assert report.requests == 3
    assert report.curve is not None
    # Stack after two requests: 0 3 1 2, so that the third hits 0 at depth 1 and 1 at depth 3.
    assert [report.curve.at(size).hit_blocks for size in range(5)] == [0, 2, 2, 3, 3]
    assert (report.curve.logical_blocks, report.curve.unique_blocks) == (8, 5)
    assert report.block_tokens == 512
    assert report.timeline is not None
    # At 40 ms the first has begun its fifth token, the others their first.
    assert report.timeline.peak_bytes == 1305 + 514 + 1401
    assert [note.code for note in report.assumptions][:2] == ["time_unit", "lru_pool"]


def test_the_block_size_of_token_ids_is_known() -> None:
    """Blocks made here have the size they were made with, whatever else is said."""
    options = TraceOptions(token_block_tokens=2)
    report = read_report(TraceReader([b"[1, 2, 3]\n"], options), TraceMeter(), block_tokens=7)
    assert report.block_tokens == 2
    assert read_report(TraceReader([GOOD]), TraceMeter(), block_tokens=7).block_tokens == 7


def test_an_error_leaves_no_report() -> None:
    """A bad last line is an error of the whole, not a shorter log."""
    with pytest.raises(TraceMistake, match="line 4"):
        read_report(TraceReader([MOONCAKE + b"{}\n"]), TraceMeter())


def test_options_are_checked() -> None:
    """A unit that nobody knows and a block size out of bounds are refused by name."""
    with pytest.raises(Unknown, match="time_unit must be one of s, ms, us, ns, got 'h'"):
        TraceOptions(time_unit="h")
    with pytest.raises(OutOfRange, match="token_block_tokens"):
        TraceOptions(token_block_tokens=0)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (3, "s", 3 * S),
        (0, "ns", 0),
        (Decimal("0.0000000019"), "s", 1),
        (1.5, "ms", 1_500_000),
        (" 1.5e3 ", "us", 1_500_000),
        ("7.", "ns", 7),
        (float("nan"), "s", None),
        (float("inf"), "s", None),
        (10**13, "s", 10**22),
        (10**13 + 1, "s", None),
        (None, "s", None),
        ([], "s", None),
        ("1969-12-31 23:59:59.5", "s", -S // 2),
        ("0001-01-01 00:00:00", "s", -62_135_596_800 * S),
        ("2023-02-29 00:00:00", "s", None),
        ("2023-02-28", "s", None),
    ],
)
def test_times_are_exact_nanoseconds(value: object, unit: str, expected: int | None) -> None:
    """Numbers are scaled without a float between; what is no time is none."""
    assert time_ns(value, unit) == expected


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.sampled_from(["2023-11-16 18:17:03.98", "1e5", "-1", "nan", "x"]),
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(sorted(json.loads(GOOD))), json_values), max_size=4)
)
def test_mutated_records_are_read_or_refused(records: list[dict[str, object]]) -> None:
    """Whatever the fields hold, the answer is requests or a named line, never another error."""
    content = GOOD + "\n".join(map(json.dumps, records)).encode()
    try:
        requests, _ = read(content)
    except TraceMistake as error:
        assert 2 <= error.line <= 1 + len(records)  # noqa: PT017 - both outcomes are right
    else:
        assert len(requests) == 1 + len(records)


@given(st.binary(max_size=200), st.sampled_from([b"", GOOD, HEADING, AZURE]))
def test_mutated_bytes_are_read_or_refused(content: bytes, before: bytes) -> None:
    """Any bytes at all, alone or after good lines, are requests or a named line."""
    try:
        requests, _ = read(before + content)
    except TraceMistake as error:
        assert error.line >= 1  # noqa: PT017 - both outcomes are right
    else:
        assert requests


def parquet_of(columns: Mapping[str, object], **settings: object) -> io.BytesIO:
    """Return a Parquet file of some columns."""
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **settings)
    file.seek(0)
    return file


def test_parquet_gives_what_json_gives() -> None:
    """The same log in Parquet and in JSON lines is the same requests."""
    records = [json.loads(line) for line in MOONCAKE.splitlines()]
    table = {name: [record[name] for record in records] for name in records[0]}
    told: list[tuple[int, int]] = []
    file = parquet_of(table, row_group_size=2)
    reader = ParquetReader(
        file,
        TraceOptions(time_unit="ms"),
        progress=lambda count, requests: told.append((count, requests)),
    )
    assert list(reader) == read(MOONCAKE)[0]
    assert (reader.form, reader.requests, codes(reader)) == ("Parquet, hash ids", 3, [])
    assert told[-1] == (len(file.getvalue()), 3)
    assert read_report(ParquetReader(file), TraceMeter()).block_tokens == 512


def test_parquet_times_are_read_as_times() -> None:
    """A column of timestamps has its own unit, whatever was given."""
    column = pa.array([1_500_000, 2_000_000], pa.timestamp("us"))
    table = {"arrived_at": column, "num_prefill_tokens": [7, 8], "num_decode_tokens": [3, 4]}
    reader = ParquetReader(parquet_of(table), TraceOptions(time_unit="s"))
    assert [request.arrival_ns for request in reader] == [1_500 * MS, 2 * S]
    numbers = ParquetReader(parquet_of({**table, "arrived_at": [1.5, 2.0]}))
    assert [request.arrival_ns for request in numbers] == [1_500 * MS, 2 * S]
    assert codes(numbers) == ["time_unit"]


def test_parquet_of_token_ids() -> None:
    """Token ids are hashed as those of JSON lines are."""
    reader = ParquetReader(parquet_of({"token_ids": [[1, 2], [1, 2, 3]]}), TraceOptions())
    assert [request.input_tokens for request in reader] == [2, 3]
    assert reader.block_tokens == 16


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": [1, 0]}, "line 2: time goes back"),
        ({"input_length": [1, -1]}, "line 2: input_length must be"),
        ({"input_length": [1, None]}, "line 2: input_length must be"),
        ({"input_length": [1.0, 2.0]}, "line 1: input_length must be"),
        ({"timestamp": [1.0, float("nan")]}, "line 2: timestamp must be"),
        ({"timestamp": pa.array([-5, 0], pa.timestamp("ns"))}, "line 1: timestamp must be"),
        (
            {"timestamp": pa.array([0, 2**62], pa.timestamp("ms"))},
            "line 1 and those after it cannot be unpacked",
        ),
        ({"hash_ids": [[1], [None]]}, "line 2: hash_ids must be"),
    ],
)
def test_a_bad_row_of_parquet_is_named(columns: dict[str, object], message: str) -> None:
    """A row that cannot be read is refused with its number."""
    good = {"timestamp": [0, 0], "input_length": [1, 1], "output_length": [1, 1]}
    with pytest.raises(TraceMistake) as caught:
        list(ParquetReader(parquet_of({**good, **columns})))
    assert str(caught.value).startswith(message)


def test_what_is_no_parquet_is_refused() -> None:
    """Other bytes, missing columns and no rows are each refused in words."""
    with pytest.raises(Malformed, match="is not a Parquet file"):
        list(ParquetReader(io.BytesIO(MOONCAKE)))
    with pytest.raises(TraceMistake, match="line 1: no timestamp"):
        list(ParquetReader(parquet_of({"a": [1]})))
    empty = pa.array([], pa.int64())
    with pytest.raises(TraceMistake, match="line 1: the log ends"):
        list(ParquetReader(parquet_of({"timestamp": empty, "input": empty, "output": empty})))


def test_damaged_parquet_is_refused() -> None:
    """A page that does not unpack is an error, not fewer rows."""
    file = parquet_of(
        {"timestamp": [0] * 9000, "input": list(range(9000)), "output": [1] * 9000},
        use_dictionary=False,
        compression="zstd",
    )
    content = bytearray(file.getvalue())
    for place in range(200, len(content) // 2, 7):
        content[place] ^= 0xFF
    with pytest.raises(DomainError):
        list(ParquetReader(io.BytesIO(bytes(content))))


@pytest.mark.parametrize("bound", ["MAX_GROUP_VALUES", "MAX_GROUP_BYTES"])
def test_a_row_group_that_unpacks_to_too_much_is_refused(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a row group claims to hold is bounded before it is unpacked."""
    monkeypatch.setattr(parquet_traces, bound, 5)
    table = {"timestamp": [0] * 6, "input_length": [1] * 6, "output_length": [1] * 6}
    with pytest.raises(OutOfRange, match="row group 0 has 6 values"):
        list(ParquetReader(parquet_of(table)))


def test_parquet_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the other forms still work, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unsupported, match=r"kv-ledger\[parquet\]"):
        ParquetReader(io.BytesIO())


def test_a_log_of_any_size_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 requests over the same few blocks take no more memory than 500 of them."""

    def lines(requests: int) -> Iterator[bytes]:
        chance = random.Random(1)
        for turn in range(requests):
            # More than twenty: the interpreter keeps shorter tuples for later use.
            ids = list(range(chance.randrange(30, 60)))
            yield (
                json.dumps(
                    {
                        "timestamp": turn,
                        "input_length": 512 * len(ids),
                        "output_length": 1,
                        "hash_ids": ids,
                    }
                ).encode()
                + b"\n"
            )

    monkeypatch.setattr(reuse, "_SPENT_SEGMENTS", 100)
    peaks = []
    for requests in (500, 5_000):
        tracemalloc.start()
        report = read_report(TraceReader(lines(requests)), TraceMeter())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert report.requests == requests
        assert report.curve is not None
        assert report.curve.unique_blocks == 59
    assert peaks[1] < 2 * peaks[0], peaks


def test_a_given_block_size_that_a_line_contradicts_is_refused() -> None:
    """The first line that no rule of counting explains is named; before it nothing is wrong."""
    log = (
        b'{"timestamp": 0, "input_length": 32, "output_length": 1, "hash_ids": [1, 2]}\n\n'
        b'{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2]}\n'
        b'{"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [1, 2, 3]}\n'
    )
    with pytest.raises(TraceMistake, match="line 4: with 16 tokens to a block, 33 tokens") as found:
        read_report(TraceReader([log]), TraceMeter(), block_tokens=16)
    assert found.value.line == 4
    fitting = log[: log.rindex(b'{"timestamp')]
    assert read_report(TraceReader([fitting]), TraceMeter(), block_tokens=16).block_tokens == 16
    assert read_report(TraceReader([log]), TraceMeter()).block_tokens is None


def test_lines_without_blocks_contradict_no_block_size() -> None:
    """A log of lengths alone takes any size, which then says nothing."""
    log = b'{"timestamp": 0, "input_length": 32, "output_length": 1}\n'
    assert read_report(TraceReader([log]), TraceMeter(), block_tokens=16).block_tokens is None
