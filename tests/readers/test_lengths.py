"""Lengths as typed and as dropped files."""

# ruff: noqa: RUF001 - full-width characters are what is tested

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Malformed, OutOfRange, Unsupported
from app.readers.lengths import (
    MAX_FILE_BYTES,
    MAX_TEXT_CHARACTERS,
    LengthsMistake,
    ParsedLengths,
    parse_lengths,
    read_lengths_file,
)

Runs = tuple[tuple[int, int], ...]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", ()),
        (" \n\t ,;", ()),
        ("1024, 3072", ((1024, 1), (3072, 1))),
        ("17,31,32", ((17, 1), (31, 1), (32, 1))),
        ("17；31、32，33", ((17, 1), (31, 1), (32, 1), (33, 1))),
        ("１０２４", ((1024, 1),)),
        ("17\n31\r\n32\t33;34", ((17, 1), (31, 1), (32, 1), (33, 1), (34, 1))),
        ("0", ((0, 1),)),
        ("007", ((7, 1),)),
        ("32, 32, 32", ((32, 3),)),
        ("32, 33, 32", ((32, 1), (33, 1), (32, 1))),
        ("1k", ((1024, 1),)),
        ("32K", ((32_768, 1),)),
        ("1M", ((1_048_576, 1),)),
        ("1Mi 2ki", ((1_048_576, 1), (2048, 1))),
        ("1.5k", ((1536, 1),)),
        ("0.25M", ((262_144, 1),)),
        ("0.00000095367431640625M", ((1, 1),)),
        ("120_000", ((120_000, 1),)),
        ("1000000000", ((1_000_000_000, 1),)),
        ("20×2048", ((2048, 20),)),
        ("20x2048", ((2048, 20),)),
        ("20X2048", ((2048, 20),)),
        ("20*2048", ((2048, 20),)),
        ("500 × 2048", ((2048, 500),)),
        ("２０＊２０４８", ((2048, 20),)),
        ("1_000 x 1k, 5", ((1024, 1000), (5, 1))),
        ("100..103", ((100, 1), (101, 1), (102, 1), (103, 1))),
        ("100-103", ((100, 1), (101, 1), (102, 1), (103, 1))),
        ("100 - 102", ((100, 1), (101, 1), (102, 1))),
        ("100–102", ((100, 1), (101, 1), (102, 1))),
        ("100～102", ((100, 1), (101, 1), (102, 1))),
        ("100...102", ((100, 1), (101, 1), (102, 1))),
        ("100…102", ((100, 1), (101, 1), (102, 1))),
        ("100..130/10", ((100, 1), (110, 1), (120, 1), (130, 1))),
        ("100..135 / 10", ((100, 1), (110, 1), (120, 1), (130, 1))),
        ("5..5", ((5, 1),)),
        ("1k..2k/512", ((1024, 1), (1536, 1), (2048, 1))),
        ("2 x 7..8", ((7, 2), (8, 2))),
        ("[1024, 3072]", ((1024, 1), (3072, 1))),
        (" [] ", ()),
    ],
)
def test_what_people_type_is_read_as_ordered_runs(text: str, runs: Runs) -> None:
    """Every way to write lengths gives (length, count) in the order typed."""
    assert parse_lengths(text).runs == runs


def test_totals_count_every_request() -> None:
    """The box says how many requests, how many tokens and the longest."""
    parsed = parse_lengths("20 x 2048, 100..102, 0")
    assert (parsed.requests, parsed.tokens, parsed.longest_tokens) == (24, 41_263, 2048)
    nothing = parse_lengths("")
    assert (nothing.requests, nothing.tokens, nothing.longest_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("1024, 3072", []),
        ("1024,2048,4096", []),
        ("1024,512", []),
        ("0,128", []),
        ("120, 000", []),
        ("120,000", ["thousands_separator"]),
        ("120，000", ["thousands_separator"]),
        ("1,200,000", ["thousands_separator"]),
        ("17,120,000", ["thousands_separator"]),
        ("120,000,17", ["thousands_separator"]),
        ("20x1,024", ["count_first", "thousands_separator"]),
        ("1 024", ["thousands_separator"]),
        ("1k, 2k, 3M", ["binary_suffix"]),
        ("20x2048", []),
        ("2048x20, 4096x20", ["count_first"]),
        ("2048x20..21", []),
    ],
)
def test_an_ambiguity_is_noted_once(text: str, codes: list[str]) -> None:
    """What could mean two things is read one way, and a note says which."""
    notes = parse_lengths(text).notes
    assert [note.code for note in notes] == codes
    assert all(note.text for note in notes)


def test_a_thousands_separator_is_read_as_two_lengths() -> None:
    """A comma always separates, since a list is what the box asks for."""
    parsed = parse_lengths("7 120,000")
    assert parsed.runs == ((7, 1), (120, 1), (0, 1))
    assert parsed.notes[0].params == {"fragment": "'120,000'", "places": 1}


@pytest.mark.parametrize(
    ("text", "place", "fragment", "requests"),
    [
        ("1024, abc", (1, 7, 6), "abc", 1),
        ("17\n31\n3z 2", (3, 1, 6), "3z", 2),
        ("17, -5", (1, 5, 4), "-5", 1),
        ("100 -200", (1, 5, 4), "-200", 1),
        ("1.5", (1, 1, 0), "1.5", 0),
        ("1.0", (1, 1, 0), "1.0", 0),
        ("1.3k", (1, 1, 0), "1.3k", 0),
        ("1.0000000000000000000000001k", (1, 1, 0), "1.0000000000000000000000001k", 0),
        ("1000000001", (1, 1, 0), "1000000001", 0),
        ("1000M", (1, 1, 0), "1000M", 0),
        ("1G", (1, 1, 0), "1G", 0),
        ("99999999999999999999", (1, 1, 0), "99999999999999999999", 0),
        ("0x2048", (1, 1, 0), "0", 0),
        ("2kx2048", (1, 1, 0), "2k", 0),
        ("1.5x2048", (1, 1, 0), "1.5", 0),
        ("99999999999x1", (1, 1, 0), "99999999999", 0),
        ("5, 10000001x1", (1, 4, 3), "10000001x1", 1),
        ("9999999x1, 2x1", (1, 12, 11), "2x1", 9_999_999),
        ("5, 1..200001", (1, 4, 3), "1..200001", 1),
        ("5, 0..1000000000", (1, 4, 3), "0..1000000000", 1),
        ("200..100", (1, 1, 0), "200..100", 0),
        ("1..5/0", (1, 1, 0), "1..5/0", 0),
        ("1..5/x", (1, 1, 0), "1..5/x", 0),
        ("20x", (1, 1, 0), "20x", 0),
        ("x20", (1, 1, 0), "x20", 0),
        ("5 x 5 x 5", (1, 7, 6), "x", 5),
        ("1e3", (1, 1, 0), "1e3", 0),
        ("[1, 2", (1, 1, 0), "[1", 0),
        ("1, 2]", (1, 4, 3), "2]", 1),
        ("٣٢", (1, 1, 0), "٣٢", 0),
        ("５，ａ", (1, 3, 2), "ａ", 1),
    ],
)
def test_a_mistake_says_where_and_what_came_before(
    text: str, place: tuple[int, int, int], fragment: str, requests: int
) -> None:
    """A mistake names line, column, position and fragment, and keeps what was understood."""
    with pytest.raises(LengthsMistake) as caught:
        parse_lengths(text)
    mistake = caught.value
    params = mistake.params
    assert (params["line"], params["column"], mistake.position) == place
    assert params["fragment"] == repr(fragment)
    assert mistake.understood.requests == requests == params["requests"]
    assert mistake.field == ("lengths",)
    assert repr(fragment) in str(mistake)


def test_understood_lengths_are_kept_in_a_mistake() -> None:
    """The page can go on showing what stands before the mistake."""
    with pytest.raises(LengthsMistake) as caught:
        parse_lengths("2x16, 8, oops, 4", field="prompt")
    assert caught.value.understood == ParsedLengths(runs=((16, 2), (8, 1)))
    assert caught.value.field == ("prompt",)
    assert caught.value.params["tokens"] == 40


def test_a_text_has_a_longest_size() -> None:
    """A text over the bound is refused before it is read."""
    assert parse_lengths(" " * MAX_TEXT_CHARACTERS).requests == 0
    with pytest.raises(OutOfRange, match="1000000"):
        parse_lengths(" " * (MAX_TEXT_CHARACTERS + 1))


def test_the_bounds_themselves_are_allowed() -> None:
    """Ten million requests and two hundred thousand entries are within the bounds."""
    assert parse_lengths("10000000x1").requests == 10_000_000
    assert len(parse_lengths("1..200000").runs) == 200_000


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 1000)), max_size=30))
def test_what_is_written_is_read_back(entries: list[tuple[int, int]]) -> None:
    """Writing runs as count x length and reading them gives the same requests."""
    parsed = parse_lengths("; ".join(f"{count}x{length}" for length, count in entries))
    assert [length for length, count in parsed.runs for _ in range(count)] == [
        length for length, count in entries for _ in range(count)
    ]


@given(st.text(alphabet="0123456789 ,;x*.-/kM~\n[]×，…a_", max_size=40))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    """No text ends in anything but lengths or a mistake that keeps what was understood."""
    try:
        parsed = parse_lengths(text)
    except LengthsMistake as mistake:
        parsed = mistake.understood
    assert parsed.tokens == sum(length * count for length, count in parsed.runs)


@pytest.mark.parametrize(
    ("name", "content", "runs"),
    [
        ("a.csv", "", ()),
        ("a.csv", "length\n17\n31\n", ((17, 1), (31, 1))),
        ("a.csv", "\ufefflength\r\n17\r\n31\r\n", ((17, 1), (31, 1))),
        ("a.csv", "id;tokens\na;17\nb;31\n", ((17, 1), (31, 1))),
        ("a.tsv", "id\tprompt_tokens\n1\t17\n2\t31\n", ((17, 1), (31, 1))),
        ("a.csv", "name,size\na,17\nb,31\n", ((17, 1), (31, 1))),
        ("a.csv", "17\n31\n", ((17, 1), (31, 1))),
        ("a.csv", "17\n\n 31 \n", ((17, 1), (31, 1))),
        ("a.csv", 'length,count\n17,2\n"31",1\n', ((17, 2), (31, 1))),
        ("a.csv", "size,count\n17,2\n", ((17, 2),)),
        ("a.csv", "input_length,output_length\n10,7\n", ((17, 1),)),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
            ((4818, 1),),
        ),
        ("A.CSV", "length\n00000000000000000017\n", ((17, 1),)),
        ("a.txt", "17, 2x31", ((17, 1), (31, 2))),
        ("a.json", "[17, 31]", ((17, 1), (31, 1))),
        ("a.json", '{"lengths": [17]}', ((17, 1),)),
        ("a.json", '[{"length": 17, "count": 2}, 31]', ((17, 2), (31, 1))),
        ("a.json", '[{"context": 17}]', ((17, 1),)),
        ("a.jsonl", '17\n\n{"length": 31}\n', ((17, 1), (31, 1))),
        ("a.ndjson", '{"input_length": 10, "output_length": 7}', ((17, 1),)),
        (
            "a.jsonl",
            '{"input_length": 10}\n{"length": 5, "output_length": 7}',
            ((10, 1), (5, 1)),
        ),
    ],
)
def test_a_file_of_records_is_read(name: str, content: str, runs: Runs) -> None:
    """A named column or key, or the only numeric column, holds the lengths."""
    assert read_lengths_file(name, content.encode()).runs == runs


def test_input_and_output_together_are_noted_once() -> None:
    """That a length is input plus output is an assumption, so it is said."""
    content = b'{"input_length": 1, "output_length": 2}\n' * 3
    assert [note.code for note in read_lengths_file("a.jsonl", content).notes] == [
        "input_plus_output"
    ]


@pytest.mark.parametrize(
    ("name", "content", "line", "requests"),
    [
        ("a.csv", "length\n17\nx\n", 3, 1),
        ("a.csv", "length\n17\n-1\n", 3, 1),
        ("a.csv", "length\n1.5\n", 2, 0),
        ("a.csv", "length\n1000000001\n", 2, 0),
        ("a.csv", f"length\n{'9' * 5000}\n", 2, 0),
        ("a.csv", "id,length\na\n", 2, 0),
        ("a.csv", "length,count\n5,0\n", 2, 0),
        ("a.csv", "length,count\n5,10000001\n", 2, 0),
        ("a.csv", "length,count\n5,10000000\n6,1\n", 3, 10_000_000),
        ("a.csv", "input_length,output_length\n1000000000,1\n", 2, 0),
        ("a.csv", "a,b\n1,2\n", 1, 0),
        ("a.csv", "1,2\n3,4\n", 1, 0),
        ("a.csv", "a\nb\n", 1, 0),
        ("a.csv", "name\n", 1, 0),
        ("a.csv", "length" + "," * 1000, 1, 0),
        ("a.csv", 'length\n"5', 2, 0),
        ("a.csv", 'name,size\nx,"5', 2, 0),
        ("a.jsonl", "17\n{\n", 2, 1),
        ("a.jsonl", "17\nNaN\n", 2, 1),
        ("a.jsonl", "17\ntrue\n", 2, 1),
        ("a.jsonl", '17\n"31"\n', 2, 1),
        ("a.jsonl", "17\n31.0\n", 2, 1),
        ("a.jsonl", '17\n{"size": 5}\n', 2, 1),
        ("a.jsonl", '17\n{"input_length": -5}\n', 2, 1),
        ("a.jsonl", f"17\n{'9' * 5000}\n", 2, 1),
        ("a.json", "[1,\n2,\n]", 3, 0),
        ("a.json", "[1, Infinity]", 1, 0),
        ("a.json", "[" * 100_000, 1, 0),
    ],
)
def test_a_bad_record_names_its_line(name: str, content: str, line: int, requests: int) -> None:
    """A record that cannot be read is refused with its line; what came before is kept."""
    with pytest.raises(LengthsMistake, match=f"line {line}") as caught:
        read_lengths_file(name, content.encode())
    assert caught.value.params["line"] == line
    assert caught.value.understood.requests == requests


def test_a_bad_item_of_a_json_list_is_named_by_its_place() -> None:
    """A JSON list has items rather than lines."""
    with pytest.raises(LengthsMistake, match="item 2: length must be an integer") as caught:
        read_lengths_file("a.json", b"[17,\n-31]")
    assert caught.value.params["item"] == 2
    assert caught.value.understood.runs == ((17, 1),)


@pytest.mark.parametrize("content", ["5", '{"tokens": 5}', "null"])
def test_a_json_file_holds_a_list(content: str) -> None:
    """A JSON document that is no list of lengths is refused."""
    with pytest.raises(Malformed, match="must be a JSON list"):
        read_lengths_file("a.json", content.encode())


def test_bytes_that_are_not_text_name_their_line() -> None:
    """Binary data is refused with the line where it stops being UTF-8."""
    with pytest.raises(Malformed, match="line 2 is not UTF-8"):
        read_lengths_file("a.csv", b"length\n\xff\xfe\x00")


@pytest.mark.parametrize("name", ["a.xlsx", "a", "csv.pdf", ""])
def test_another_kind_of_file_is_refused(name: str) -> None:
    """The kinds that are read are named."""
    with pytest.raises(Unsupported, match="csv, json, jsonl, ndjson, tsv, txt"):
        read_lengths_file(name, b"1")


def test_a_file_has_a_largest_size() -> None:
    """A file over the bound is refused before it is read."""
    with pytest.raises(OutOfRange, match=str(MAX_FILE_BYTES)):
        read_lengths_file("a.txt", b" " * (MAX_FILE_BYTES + 1))


def test_a_file_has_a_largest_number_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many different lengths are read, one more is refused with its line."""
    monkeypatch.setattr("app.readers.length_runs.MAX_RUNS", 3)
    assert len(read_lengths_file("a.csv", b"1\n2\n3\n").runs) == 3
    with pytest.raises(LengthsMistake, match="line 4"):
        read_lengths_file("a.csv", b"1\n2\n3\n4\n")


def test_a_file_has_a_largest_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal lengths on many lines are bounded too, and a count says the same in one."""
    monkeypatch.setattr("app.readers.length_files.MAX_RECORDS", 3)
    assert read_lengths_file("a.csv", b"7\n7\n7\n").requests == 3
    with pytest.raises(LengthsMistake, match="line 4"):
        read_lengths_file("a.csv", b"7\n7\n7\n7\n")


@given(
    st.binary(max_size=120),
    st.sampled_from([b"", b"length,count\n5,2\n", b"5\n", b'{"length": 5}\n', b"[5,"]),
    st.sampled_from(["csv", "tsv", "json", "jsonl", "txt"]),
)
def test_mutated_files_are_read_or_refused(content: bytes, before: bytes, suffix: str) -> None:
    """Any bytes under any name are lengths within the bounds, or a refusal that names the file."""
    try:
        parsed = read_lengths_file(f"a.{suffix}", before + content)
    except Malformed as error:
        assert error.field == ("file",)  # noqa: PT017 - both outcomes are right
    else:
        assert all(0 <= length <= 10**9 and count >= 1 for length, count in parsed.runs)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), max_size=20))
def test_csv_json_and_jsonl_of_the_same_entries_agree(
    entries: list[tuple[int, int]],
) -> None:
    """The form of a file does not change what it says."""
    objects = [{"length": length, "count": count} for length, count in entries]
    table = "length,count\n" + "".join(f"{length},{count}\n" for length, count in entries)
    lines = "".join(json.dumps(entry) + "\n" for entry in objects)
    from_csv = read_lengths_file("a.csv", table.encode())
    assert from_csv == read_lengths_file("a.json", json.dumps(objects).encode())
    assert from_csv == read_lengths_file("a.jsonl", lines.encode())
