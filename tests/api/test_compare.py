"""`/compare` and `/sweep`: the answers of `/fit`, side by side and over many values."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.api.sweep import in_turns
from app.cli import app as cli

LLAMA: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "kv_dtype": "bf16",
    "device": "h100-sxm-80",
    "context_tokens": 8192,
}


def post(client: TestClient, call: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer."""
    answer = client.post(f"/api/v1/{call}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_differs_is_marked(client: TestClient) -> None:
    """Rows whose values are not all alike are marked; each calculation is that of `/fit`."""
    other = {**LLAMA, "kv_dtype": "fp8"}
    answer = post(client, "compare", {"calculations": [LLAMA, other]})
    differs = {row["name"] for row in answer["rows"] if row["differs"]}
    assert differs == {
        "kv_dtype", "bytes_per_token", "request_bytes", "max_concurrency", "max_concurrency_high",
        "max_context_tokens",
    }  # fmt: skip
    assert answer["calculations"] == [post(client, "fit", LLAMA), post(client, "fit", other)]
    values = next(row for row in answer["rows"] if row["name"] == "bytes_per_token")["values"]
    assert values == [131_072, 65_536]


def test_what_may_be_used_and_what_lacks(client: TestClient) -> None:
    """The share of the memory stands beside what is left of it, which may be below 0."""
    lacking = {**LLAMA, "utilisation": 0.9, "measured": {"state": -(2**30)}}
    unknown = {**LLAMA, "device": None, "measured": {"state": 2**30}}
    answer = post(client, "compare", {"calculations": [lacking, unknown]})
    rows = {row["name"]: row["values"] for row in answer["rows"]}
    assert rows["usable"] == ["71.26 GiB – 71.27 GiB", None]
    assert rows["room"] == ["−1 GiB", "1 GiB"]


def test_models_of_every_form(client: TestClient) -> None:
    """A model by numbers or a config has a name, too; figures that do not exist are empty."""
    uniform = {"model": {"layers": 2, "kv_heads": 4, "head_dim": 8}, "measured": {"state": 10**9}}
    mamba = {"model": {"id": "state-spaces/mamba-2.8b-hf"}, "device": "rtx-3090-ti"}
    mixed = {"model": {"layer_states": [{"kind": "full_attention", "kv_heads": 1, "k_dim": 1,
                                         "v_dim": 1}]},
             "kv_dtype": [{"dtype": "bf16"}], "measured": {"state": 10**9}}  # fmt: skip
    answer = post(client, "compare", {"calculations": [uniform, mamba, mixed]})
    rows = {row["name"]: row["values"] for row in answer["rows"]}
    assert rows["model"] == ["2 × 4 × 8", "state-spaces/mamba-2.8b-hf", "layerstates"]
    assert rows["max_context_tokens"][1] is None
    assert rows["weights"][0] is None


@pytest.mark.parametrize(
    ("calculations", "loc"),
    [
        ([LLAMA], ["body", "calculations"]),
        ([LLAMA] * 7, ["body", "calculations"]),
        ([LLAMA, {**LLAMA, "device": "abacus"}], ["body", "calculations", 1, "device"]),
    ],
)
def test_comparisons_are_bounded(
    client: TestClient, calculations: list[Any], loc: list[Any]
) -> None:
    """One alone, seven, or one that is refused: the place is named."""
    answer = client.post("/api/v1/compare", json={"calculations": calculations})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == loc


def test_a_sweep_is_many_fits(client: TestClient) -> None:
    """Every point is what `/fit` says there; what has no answer says why."""
    body = {
        "base": LLAMA,
        "context_tokens": [1024, 65_536],
        "devices": ["rtx-4090", "h100-sxm-80"],
        "kv_dtypes": ["bf16", "fp8"],
        "tensor_parallel": [1, 7],
    }
    points = post(client, "sweep", body)["points"]
    assert len(points) == 16
    for point in points:
        if point["tensor_parallel"] == 7:
            assert "neither divides" in point["error"]
            assert point["max_concurrency"] is None
            continue
        asked = {**LLAMA, **{name: point[name] for name in ("device", "kv_dtype",
                                                            "context_tokens")}}  # fmt: skip
        fit = post(client, "fit", asked)
        for name in ("request_bytes", "max_concurrency", "max_concurrency_high",
                     "kv_bytes_available"):  # fmt: skip
            assert point[name] == fit[name]


def test_a_sweep_of_nothing_is_its_base(client: TestClient) -> None:
    """Without values there is one point, the base's own; an engine's pool is counted there."""
    base = {**LLAMA, "engine": "vllm"}
    (point,) = post(client, "sweep", {"base": base})["points"]
    assert point["max_concurrency"] == post(client, "fit", base)["max_concurrency"]
    (faulty,) = post(client, "sweep", {"base": {**LLAMA, "device": "abacus"}})["points"]
    assert "abacus" in faulty["error"]


def test_ten_thousand_points_and_no_more(client: TestClient) -> None:
    """10,000 points are answered in one request; more are refused there, and come as a stream."""
    contexts = list(range(1, 10_001))
    assert len(post(client, "sweep", {"base": LLAMA, "context_tokens": contexts})["points"]) == (
        10_000
    )
    body = {"base": LLAMA, "context_tokens": [*contexts, 5, 6]}
    assert client.post("/api/v1/sweep", json=body).status_code == 422
    lines = client.post("/api/v1/sweep/stream", json=body).text.splitlines()
    progress = [row for line in lines if "done" in (row := json.loads(line))]
    assert len(lines) == 10_002 + 11
    assert progress[0] == {"done": 1000, "total": 10_002}
    assert progress[-1] == {"done": 10_002, "total": 10_002}


def test_many_different_layers_are_for_the_stream(client: TestClient) -> None:
    """Few points of thousands of unlike layers would hold a request for minutes: refused."""
    rows = [
        {
            "kind": "sliding_window",
            "count": 1,
            "kv_heads": 1,
            "k_dim": 8,
            "v_dim": 8,
            "window": 2 + i,
        }
        for i in range(9_000)
    ]
    base = {**LLAMA, "model": {"layer_states": rows}, "weights": {"bytes": 10**9}}
    answer = client.post("/api/v1/sweep", json={"base": base, "tensor_parallel": [1] * 40})
    (problem,) = answer.json()["detail"]
    assert (answer.status_code, problem["loc"]) == (422, ["body", "context_tokens"])
    assert "/sweep/stream takes them" in problem["msg"]


def test_a_stream_ends_with_its_reader() -> None:
    """Whoever stops reading stops the computation after the turn under way."""
    asked: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10**6):
            asked.append(number)
            yield number

    async def read_one() -> list[int]:
        async with aclosing(in_turns(numbers())) as turns:
            async for turn in turns:
                return turn
        return []

    assert asyncio.run(read_one()) == list(range(1000))
    assert len(asked) == 1000


def test_a_slow_turn_is_short() -> None:
    """A turn ends after a quarter of a second, however few points it has."""

    def slow() -> Iterator[int]:
        for number in range(4):
            time.sleep(0.2)
            yield number

    async def read_all() -> list[list[int]]:
        return [turn async for turn in in_turns(slow())]

    assert asyncio.run(read_all()) == [[0, 1], [2, 3]]


def test_combinations_are_bounded(client: TestClient) -> None:
    """More devices, formats and splits than can be set up at once are refused."""
    body = {"base": LLAMA, "devices": ["l4"] * 400, "kv_dtypes": ["bf16"] * 6}
    answer = client.post("/api/v1/sweep/stream", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "devices"]


def test_the_command_line_takes_addresses_and_files(tmp_path: Path) -> None:
    """Calculations are taken as addresses of the page or as files of requests."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps({**LLAMA, "kv_dtype": "fp8"}))
    address = "http://x/fit?model=meta-llama/Llama-3.1-8B&kv=bf16&utilisation=0.9"
    done = CliRunner().invoke(cli, ["compare", address, f"@{path}", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [row["values"] for row in answer["rows"] if row["name"] == "utilisation"] == [
        ["0.9", "0.92"]
    ]
    table = CliRunner().invoke(cli, ["compare", address, f"@{path}"])
    assert "≠" in table.stdout


@pytest.mark.parametrize("word", ["@/nowhere.json", "utilisation=most", "model=none"])
def test_the_command_line_refuses_in_one_line(word: str, tmp_path: Path) -> None:
    """A file that is not there, or a field that cannot be read, ends in one line."""
    done = CliRunner().invoke(cli, ["compare", word, word])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    path = tmp_path / "a.json"
    path.write_text("{")
    assert CliRunner().invoke(cli, ["compare", f"@{path}", "x"]).exit_code == 2
