"""`/fragmentation`: layouts of one workload, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app

GOOD: dict[str, Any] = {
    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "kv_dtype": "fp16",
    "lengths": [1024, 3072],
    "max_length_tokens": 4096,
}
NUMBERS = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--kv-dtype", "fp16"]


def layouts(client: TestClient, **fields: object) -> dict[str, tuple[int, int, int | None]]:
    """Return allocated bytes, waste and admitted requests by strategy."""
    answer = client.post("/api/v1/fragmentation", json=GOOD | fields)
    assert answer.status_code == 200, answer.text
    return {
        each["strategy"]: (
            each["allocated_bytes"], each["waste_bytes"], each["admitted_requests"]
        )
        for each in answer.json()["layouts"]
    }  # fmt: skip


def test_two_requests(client: TestClient) -> None:
    """1 GiB reserved, half of it waste; paged 512 MiB, of which a GiB takes four requests."""
    assert layouts(client) == {
        "reserved": (1_073_741_824, 536_870_912, 2),
        "padded": (805_306_368, 268_435_456, 2),
        "paged": (536_870_912, 0, 4),
        "effective": (536_870_912, 0, 4),
    }


def test_memory_and_counts(client: TestClient) -> None:
    """In 40 GiB: 2 at 16 GiB each, or 500 of 300 and 20 of 6000 and then 183 of 300 again."""
    found = layouts(
        client,
        lengths=[{"length": 300, "count": 500}, {"length": 6000, "count": 20}],
        max_length_tokens=131_072,
        memory_bytes=40 * 2**30,
    )
    assert found["reserved"][2] == 2
    # 19 blocks of 2 MiB for 300 tokens, 375 for 6000: 17,000 blocks a round, 20,480 in all.
    assert found["paged"] == (17_000 * 2**21, 250 * 2**20, 520 + 183)


def test_the_working(client: TestClient) -> None:
    """Each layout has its working, and the answer its formula, assumptions and omissions."""
    answer = client.post("/api/v1/fragmentation", json=GOOD).json()
    assert answer["workings"]["reserved_bytes"]["numbers"] == (
        "2 × 536870912 B at 4096 tokens = 1073741824 B"
    )
    assert set(answer["workings"]) >= {"padded_bytes", "paged_bytes", "effective_bytes"}
    assert answer["formula"] == "2 × 32 layers × 8 KV heads × 128 × 2 B = 131072 B/token"
    assert "admission_in_order" in {note["code"] for note in answer["assumptions"]}
    assert "external_fragmentation" in {note["code"] for note in answer["not_counted"]}


@pytest.mark.parametrize(
    ("spoiled", "loc"),
    [
        ({"max_length_tokens": 3071}, ["max_length_tokens"]),
        ({"max_length_tokens": -1}, ["max_length_tokens"]),
        ({"max_length_tokens": None}, ["max_length_tokens"]),
        ({"max_length_tokens": 10**9, "lengths": [{"length": 1, "count": 10**6}]},
         ["max_length_tokens"]),
        ({"memory_bytes": 2**53 + 1}, ["memory_bytes"]),
        ({"memory_bytes": True}, ["memory_bytes"]),
        ({"block_size": 0}, ["block_size"]),
        ({"surprise": 1}, ["surprise"]),
    ],
)  # fmt: skip
def test_refusals(spoiled: dict[str, object], loc: list[str], client: TestClient) -> None:
    """What cannot be is refused at its field."""
    answer = client.post("/api/v1/fragmentation", json=GOOD | spoiled)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


def test_no_requests(client: TestClient) -> None:
    """No requests take nothing, and any number of them fits."""
    assert layouts(client, lengths=[])["reserved"] == (0, 0, None)


def test_command(client: TestClient) -> None:
    """The command prints the table, and with --json exactly the API's answer."""
    words = ["fragmentation", *NUMBERS, "--lengths", "1024,3072", "--max-length", "4096"]
    table = CliRunner().invoke(app, words)
    assert table.exit_code == 0
    assert "admitted in 1 GiB" in table.stdout
    assert "1073741824" in table.stdout
    body = GOOD | {"lengths": [{"length": 1024, "count": 1}, {"length": 3072, "count": 1}]}
    exact = CliRunner().invoke(app, [*words, "--json"])
    assert exact.stdout.strip() == client.post("/api/v1/fragmentation", json=body).text


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--lengths", "5000", "--max-length", "4096"], "max_length_tokens"),
        (["--lengths", "x", "--max-length", "4096"], "line 1, column 1"),
        (["--lengths", "5", "--max-length", "9", "--memory", "lots"], "memory"),
    ],
)
def test_bad_words(more: list[str], word: str) -> None:
    """Bad input ends with exit code 2 and one line that names it."""
    result = CliRunner().invoke(app, ["fragmentation", *NUMBERS, *more])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert word in result.stderr
