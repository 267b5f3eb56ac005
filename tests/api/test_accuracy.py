"""The public table of measured cases, through the API."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from app.accuracy.run import AccuracyRun, process_run


@pytest.fixture(autouse=True, scope="module")
def asked() -> None:
    """Have every case asked, so that no call waits for less than all."""
    run = process_run()
    run.start()
    assert run.wait(200)


def ask(client: TestClient, **query: Any) -> dict[str, Any]:
    """Return the answer to a query."""
    answer = client.get("/api/v1/accuracy", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_all_cases_are_answered(client: TestClient) -> None:
    """Every case has been asked, and the outcomes are counted."""
    got = ask(client, limit=1)
    assert got["is_complete"]
    assert got["done"] == got["total"] == got["found"] >= 4456
    assert got["outcomes"]["exact"] >= 3885
    assert got["outcomes"]["printed"] >= 400
    assert got["outcomes"]["not_reproduced"] == 0
    assert sum(got["outcomes"].values()) == got["total"]
    assert sum(suite["cases"] for suite in got["suites"]) == got["total"]
    assert len(got["suites"]) >= 15


def test_a_case_has_its_figures(client: TestClient) -> None:
    """Measured, ours, and the difference, with what was asked."""
    got = ask(client, suite="transformers_released", q="01-ai/Yi-1.5-6B-Chat")
    assert got["found"] == 1
    case = got["cases"][0]
    assert case["engine"] == "transformers"
    assert case["version"] == "5.24.0"
    assert case["family"] == "llama"
    assert case["outcome"] == "exact"
    assert case["figures"][0] == {
        "name": "cache", "unit": "B", "measured": 589_889_536, "computed": 589_889_536,
        "difference": 0, "agrees": True,
    }  # fmt: skip
    assert case["figures"][1]["measured"] == 64


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"suite": "vllm_architectures", "outcome": "explained"}, 2),
        ({"suite": "vllm_architectures", "outcome": "not_reproduced"}, 0),
        ({"engine": "sglang", "suite": "sglang_runs"}, 71),
        ({"engine": "tensorrt-llm", "suite": "engine_logs"}, 5),
        ({"suite": "yardstick"}, 8),
        ({"suite": "yardstick", "q": "gemma wrapper"}, 1),
        ({"engine": "llama.cpp", "suite": "engine_logs"}, 36),
        ({"engine": "nobody"}, 0),
        ({"family": "deepseek_v3", "suite": "transformers_released"}, 5),
    ],
)
def test_filters(query: dict[str, str], found: int, client: TestClient) -> None:
    """By engine, family, suite, outcome and words, alone and together."""
    assert ask(client, limit=1, **query)["found"] == found


def test_pages(client: TestClient) -> None:
    """The cases come a page at a time, in one order."""
    first, second = ask(client, limit=3), ask(client, limit=3, offset=2)
    assert first["cases"][2] == second["cases"][0]
    assert second["offset"] == 2
    assert ask(client, offset=100_000)["cases"] == []


def test_what_is_not_reproduced_says_why(client: TestClient) -> None:
    """Each explained case has its reason."""
    cases = ask(client, outcome="explained")["cases"]
    assert all(case["reason"] for case in cases)


def test_without_waiting_the_answer_says_how_far_it_is(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait_s=0` gives what is there at once, and says that it is not all."""
    run = AccuracyRun(lambda: ())
    monkeypatch.setattr(run, "start", lambda: None)
    monkeypatch.setattr("app.accuracy.run.process_run", lambda: run)
    for wait in (0, 0.2):
        got = ask(client, wait_s=wait)
        assert not got["is_complete"]
        assert (got["done"], got["total"]) == (0, 0)


@pytest.mark.parametrize(
    "query",
    [{"outcome": "perfect"}, {"limit": 0}, {"limit": 10_001}, {"offset": -1}, {"wait_s": 61},
     {"wait_s": "nan"}, {"q": "x" * 201}],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(query: dict[str, Any], client: TestClient) -> None:
    """Every bound is in the schema."""
    assert client.get("/api/v1/accuracy", params=query).status_code == 422
