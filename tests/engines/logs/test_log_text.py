"""A paste is read whatever its colours, breaks and prefixes are, and never beyond its bounds."""

from __future__ import annotations

import pytest

from app.engines.logs.text import MAX_SHOWN_CHARACTERS, MOST_LINES_A_WORD, LogText, shown_line

WORD = b"kv cache size"
PLAIN = "GPU KV cache size: 75,840 tokens"


def found(log: str) -> list[tuple[int, str, str | None]]:
    """Return number, text and rank of the lines that hold the word."""
    lines, _ = LogText(log).found((WORD,))
    return [(line.number, line.text, line.rank) for line in lines[WORD]]


@pytest.mark.parametrize(
    "log",
    [
        PLAIN,
        f"\x1b[1;36m{PLAIN}\x1b[0m",
        "\x1b[32mGPU KV\x1b[0m cache \x1b[1msize: 75,840 tokens\x1b[0m",
        f"\x1b]0;a title\x07{PLAIN}",
        f"\x1b(B{PLAIN}",
    ],
)
def test_colours_are_stripped(log: str) -> None:
    """Escape sequences leave no trace, wherever they stand."""
    assert found(log) == [(1, PLAIN, None)]


@pytest.mark.parametrize("mark", ["\n", "\r\n", "\r"])
def test_every_line_break_counts(mark: str) -> None:
    """Lines are numbered as an editor would, whatever ends them."""
    assert found(f"one{mark}two{mark}{PLAIN}{mark}four") == [(3, PLAIN, None)]


def test_breaks_written_out() -> None:
    """A log inside a JSON string is cut where its breaks are written."""
    assert found('{"log": "one\\ntwo\\n' + PLAIN + '\\nfour"}')[0][:2] == (3, PLAIN)


def test_spaces_of_other_widths() -> None:
    """A space that does not break, as pages paste it, is a space."""
    assert found("GPU\u00a0KV\u00a0cache\u202fsize: 75,840 tokens") == [(1, PLAIN, None)]


def test_case_does_not_count() -> None:
    """A word is found in any case, the line stays as it was."""
    assert found("gpu kv CACHE SIZE: 1 tokens")[0][1] == "gpu kv CACHE SIZE: 1 tokens"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("(VllmWorker rank=3 pid=7) ", "rank 3"),
        ("(VllmWorker TP1 pid=7) ", "TP1"),
        ("(Worker_TP0 pid=4711) ", "TP0"),
        ("(Worker_PP1_TP3 pid=4711) ", "PP1 TP3"),
        ("(VllmWorkerProcess pid=12) ", "pid 12"),
        ("(RayWorkerWrapper pid=99, ip=10.0.0.2) ", "pid 99"),
        ("[2025-01-02 03:04:05 TP2] ", "TP2"),
        ("[2025-01-02 03:04:05 DP1 TP2 EP2] ", "DP1 TP2 EP2"),
        ("[RANK 4] ", "rank 4"),
        ("(EngineCore_0 pid=5) ", None),
        ("INFO 01-02 03:04:05 [core.py:12] ", None),
    ],
)
def test_a_prefix_names_the_rank(prefix: str, rank: str | None) -> None:
    """The process in front of a line is its rank, in the engine's own words."""
    assert found(prefix + PLAIN)[0][2] == rank


def test_lines_that_repeat_are_bounded() -> None:
    """Of one word so many lines are looked at, and the rest are counted."""
    log = "\n".join(f"KV cache size {index}" for index in range(MOST_LINES_A_WORD + 40))
    lines, passed_over = LogText(log).found((WORD,))
    assert len(lines[WORD]) == MOST_LINES_A_WORD
    assert passed_over == 40


def test_a_long_line_is_cut_around_the_word() -> None:
    """What stands near the word is kept of a line without an end."""
    (line,) = found("x" * 100_000 + PLAIN + "y" * 100_000)
    assert PLAIN in line[1]
    assert len(line[1]) < 3_000


def test_a_word_across_digits_is_not_there() -> None:
    """Words are sought in lines without digits; one that digits divide is not found."""
    assert found("KV ca12che size") == []


def test_a_shown_line_has_no_time_and_an_end() -> None:
    """The time in front goes, control characters become spaces, and the end is cut."""
    assert shown_line("2025-01-02 03:04:05,678 loaded\x00it") == "loaded it"
    assert shown_line("03:04:05.678 loaded") == "loaded"
    assert len(shown_line("z" * 5_000)) == MAX_SHOWN_CHARACTERS


def test_nothing_is_no_line() -> None:
    """An empty paste holds nothing."""
    assert found("") == []


@pytest.mark.parametrize("form", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_of_16_bit_characters(form: str) -> None:
    """Windows consoles write them; read as bytes, the lines are those of the plain file."""
    plain = "INFO start\nGPU KV cache size: 327,680 tokens\n"
    log = LogText(plain.encode(form).decode("utf-8", "replace"))
    lines, _ = log.found([b"kv cache size"])
    (line,) = lines[b"kv cache size"]
    assert (line.number, line.text) == (2, "GPU KV cache size: 327,680 tokens")
