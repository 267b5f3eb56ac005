"""The command that reads a request log in a stream."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app
from tests.api.test_traces import AZURE, MOONCAKE, columns

NUMBERS = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--kv-dtype", "fp16"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the path of a log with block ids."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(MOONCAKE)
    return str(path)


def test_tables(log: str) -> None:
    """Percentiles, live state, pools and notes are printed, with the exact numbers."""
    result = CliRunner().invoke(
        app, ["traces", log, *NUMBERS, "--duration-ms", "1000", "--pool", "128MiB"]
    )
    assert result.exit_code == 0, result.stderr
    assert "Live at most: 425721856 B (406 MiB), 3 requests at once" in result.stdout
    assert "Blocks: 5 unique of 8 logical; without bound 3 hit (37.5%)" in result.stdout
    assert [line.split() for line in result.stdout.splitlines() if line.startswith("--pool")] == [
        ["--pool", "2", "134217728", "128", "MiB", "2", "25.0%"]
    ]
    assert "Assumed: " in result.stdout


def test_json_is_the_api_s(log: str, client: TestClient) -> None:
    """--json prints exactly what the API answers to the same log."""
    printed = CliRunner().invoke(app, ["traces", log, *NUMBERS, "--json"])
    answer = client.post(
        "/api/v1/traces", files={"file": ("log", MOONCAKE)},
        data={"model": '{"layers": 32, "kv_heads": 8, "head_dim": 128}', "kv_dtype": "fp16"},
    )  # fmt: skip
    assert printed.stdout.strip() == answer.text


def test_standard_input() -> None:
    """A dash reads standard input; without a model nothing is told in bytes."""
    result = CliRunner().invoke(app, ["traces", "-"], input=AZURE)
    assert result.exit_code == 0
    assert "2 requests, CSV" in result.stdout
    assert "Live" not in result.stdout
    assert "Blocks" not in result.stdout


def test_a_pipe_cannot_give_parquet(root: Path) -> None:
    """Lines come through a pipe; Parquet, which is read from its end, is refused in one line."""
    words = [sys.executable, "-m", "app", "traces", "-"]
    lines = subprocess.run(words, input=MOONCAKE, cwd=root, capture_output=True, check=True)
    assert b"3 requests, JSON lines, hash ids" in lines.stdout
    refused = subprocess.run(words, input=columns(), cwd=root, capture_output=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count(b"\n") == 1
    assert b"not from a pipe" in refused.stderr


def test_parquet(tmp_path: Path) -> None:
    """A Parquet file is told by its first bytes, whatever its name."""
    path = tmp_path / "log.bin"
    path.write_bytes(columns())
    result = CliRunner().invoke(app, ["traces", str(path), "--time-unit", "ms", "--json"])
    assert json.loads(result.stdout)["form"] == "Parquet, hash ids"
    assert json.loads(result.stdout)["blocks"]["hit_blocks"] == 3


def test_csv_files(log: str, tmp_path: Path) -> None:
    """Curve and live state go into files of numbers."""
    curve, live = tmp_path / "curve.csv", tmp_path / "live.csv"
    result = CliRunner().invoke(
        app, ["traces", log, *NUMBERS, "--csv", str(curve), "--live-csv", str(live)]
    )
    assert result.exit_code == 0
    rows = list(csv.reader(io.StringIO(curve.read_text())))
    assert rows[0][:2] == ["capacity_blocks", "capacity_bytes"]
    assert rows[-1] == ["3", "201326592", "96", "3", "8"]
    assert live.read_text().splitlines()[0] == "from_ns,peak_bytes,mean_bytes,peak_requests"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["missing.jsonl"], "No such file"),
        (["LOG", "--csv", "/nowhere/x.csv"], "/nowhere/x.csv"),
        (["LOG", "--live-csv", "x.csv"], "needs a model"),
        (["LOG", "--pool", "much"], "pool"),
        (["LOG", "--time-unit", "weeks"], "time_unit"),
        (["LOG", "--bins", "1"], "bins"),
        (["LOG", "--model", "no/body"], "model.id"),
        (["LOG", "--model", "a", "--layers", "3"], "one of --model"),
    ],
)
def test_bad_words(words: list[str], text: str, log: str) -> None:
    """Bad input ends with exit code 2 and one line that names it."""
    result = CliRunner().invoke(
        app, ["traces", *(log if word == "LOG" else word for word in words)]
    )
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert text in result.stderr


def test_a_bad_line_and_no_curve(tmp_path: Path) -> None:
    """A line that cannot be read is named; a log without blocks has no curve to write."""
    path = tmp_path / "log.csv"
    path.write_bytes(AZURE + b"oops\n")
    bad = CliRunner().invoke(app, ["traces", str(path)])
    assert (bad.exit_code, bad.stdout) == (2, "")
    assert "line 4" in bad.stderr
    path.write_bytes(AZURE)
    none = CliRunner().invoke(app, ["traces", str(path), "--csv", str(tmp_path / "x.csv")])
    assert none.exit_code == 2
    assert "names no blocks" in none.stderr


def test_progress_on_a_terminal(tmp_path: Path, root: Path) -> None:
    """On a terminal a bar shows what has been read; the answer goes to standard output alone."""
    path = tmp_path / "log.csv"
    path.write_bytes(AZURE + b"2023-11-16 18:17:05,100,10\n" * 100_000)
    ours, theirs = pty.openpty()
    result = subprocess.run(
        [sys.executable, "-m", "app", "traces", str(path), "--json"],
        cwd=root, stdout=subprocess.PIPE, stderr=theirs, check=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the other end is closed and all is read
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert b"requests" in shown
    assert json.loads(result.stdout)["requests"] == 100_002
