"""`/exercises`: the questions, and how answers to them are judged."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from starlette.testclient import TestClient

from app.api.exercises import Kind
from app.domain.exercises import EXERCISE_KINDS

RIGHT = {
    "bytes_per_token": "128 KiB",
    "effective_bytes": "512 MiB",
    "padded_bytes": 805_306_368,
    "paged_bytes": "536,870,912",
    "tail_waste_bytes": "0",
}


def test_the_kinds_are_listed(client: TestClient) -> None:
    """Every kind of exercise has a title, and the path takes exactly these."""
    listed = client.get("/api/v1/exercises").json()["exercises"]
    assert [item["kind"] for item in listed] == list(EXERCISE_KINDS) == list(get_args(Kind))
    assert all(item["title"] for item in listed)


@pytest.mark.parametrize("kind", EXERCISE_KINDS)
def test_a_question_comes_without_its_solution(kind: str, client: TestClient) -> None:
    """The question states its data and what it asks, and nowhere what is right."""
    found = client.get(f"/api/v1/exercises/{kind}?seed=3").json()
    assert (found["kind"], found["seed"]) == (kind, 3)
    assert found["givens"]
    assert found["figures"]
    assert found["omissions"]
    assert found["conditions"]
    text = str(found)
    assert "expected" not in text
    assert "is_right" not in text
    assert "working" not in text


def check(client: TestClient, kind: str, **answer: object) -> dict[str, Any]:
    """Return the judgement of an answer."""
    found = client.post(f"/api/v1/exercises/{kind}/check", json=answer)
    assert found.status_code == 200, found.text
    verdict: dict[str, Any] = found.json()
    return verdict


def test_the_textbook_s_figures_are_right(client: TestClient) -> None:
    """Lengths 1024 and 3072: 128 KiB a position, 512 MiB, padded 768 MiB, paged 512 MiB."""
    asked = client.get("/api/v1/exercises/capacity_whole").json()["figures"]
    given = {item["code"]: RIGHT[item["code"]] for item in asked if item["code"] in RIGHT}
    verdict = check(client, "capacity_whole", figures=given)
    judged = {item["code"]: item["is_right"] for item in verdict["figures"]}
    assert {code for code, is_right in judged.items() if is_right} >= set(given)
    assert len(given) >= 4
    assert verdict["working"]
    assert not verdict["is_all_right"]


def test_a_known_slip_gets_its_remark(client: TestClient) -> None:
    """The padded figure given as the effective one is told apart from any wrong figure."""
    verdict = check(client, "capacity_whole", figures={"effective_bytes": "768 MiB"})
    remarks = {item["code"]: item["remark"] for item in verdict["figures"]}
    assert "padded" in remarks["effective_bytes"]
    assert remarks["padded_bytes"] == "Nothing was answered."


def test_the_seed_draws_the_numbers(client: TestClient) -> None:
    """An answer is judged by its seed: what is right for one is wrong for another."""
    for seed, is_right in ((0, True), (1, False)):
        verdict = check(client, "hand_attention", seed=seed, figures={"output": "3"})
        assert {item["code"]: item["is_right"] for item in verdict["figures"]}["output"] is is_right


@pytest.mark.parametrize(
    ("kind", "body", "loc"),
    [
        ("nothing", {}, ["path", "kind"]),
        ("capacity_whole", {"seed": -1}, ["body", "seed"]),
        ("capacity_whole", {"figures": {"nothing": "1"}}, ["body", "figures"]),
        ("capacity_whole", {"figures": {"effective_bytes": 1.5}}, ["body", "figures"]),
        ("capacity_whole", {"figures": {"effective_bytes": "1" * 81}}, ["body", "figures"]),
        ("capacity_whole", {"omissions": ["nothing"]}, ["body", "omissions"]),
        ("capacity_whole", {"conditions": [1]}, ["body", "conditions", 0]),
        ("capacity_whole", {"surprise": 1}, ["body", "surprise"]),
    ],
)
def test_refusals_name_their_field(
    kind: str, body: dict[str, Any], loc: list[str], client: TestClient
) -> None:
    """What an exercise does not have is refused, with the field named."""
    answer = client.post(f"/api/v1/exercises/{kind}/check", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][: len(loc)] == loc


def test_a_seed_is_bounded(client: TestClient) -> None:
    """A seed outside 32 bits is no seed."""
    assert client.get("/api/v1/exercises/unique_blocks?seed=4294967296").status_code == 422
