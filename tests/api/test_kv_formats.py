"""Formats of keys and values through the API: one for both, or each by its own name."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

MODEL = {"layers": 32, "kv_heads": 8, "head_dim": 128}
CALLS: dict[str, dict[str, Any]] = {
    "per-token": {},
    "ledgers": {"lengths": [17]},
    "fit": {"memory_bytes": 24_000_000_000},
    "engines/side-by-side": {"available_bytes": 1_000_000_000},
}


def test_keys_and_values_apart(client: TestClient) -> None:
    """q8_0 keys take 34 bytes and q4_0 values 18 for 32 elements."""
    body = {"model": MODEL, "kv_dtype": {"k": "q8_0", "v": "q4_0"}}
    answer = client.post("/api/v1/per-token", json=body).json()
    assert answer["bytes_per_token"] == 32 * 8 * 4 * (34 + 18)


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_pair_in_one_word_is_told_how_to_part(call: str, client: TestClient) -> None:
    """As engines' users write it, `q8_0/q4_0` is refused with the names of the two fields."""
    body = {"model": MODEL, "kv_dtype": "q8_0/q4_0", **CALLS[call]}
    answer = client.post(f"/api/v1/{call}", json=body)
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert problem["loc"] == ["body", "kv_dtype"]
    assert problem["msg"] == (
        "kv_dtype takes one format, got 'q8_0/q4_0': keys and values of different formats are "
        "given apart, as k and v"
    )


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("at", ["k", "v"])
def test_the_half_that_is_wrong_is_named(call: str, at: str, client: TestClient) -> None:
    """Of two formats the one that is not known is the field at fault."""
    body = {"model": MODEL, "kv_dtype": {"k": "q8_0", "v": "q4_0", at: "q9_9"}, **CALLS[call]}
    answer = client.post(f"/api/v1/{call}", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "kv_dtype", at]


def test_a_pair_for_a_range_of_layers(client: TestClient) -> None:
    """The same sentence, at the entry of the list."""
    rows = [{"layers": [0, 1], "dtype": "q8_0/q4_0"}, {"dtype": "fp16"}]
    answer = client.post("/api/v1/per-token", json={"model": MODEL, "kv_dtype": rows})
    assert answer.json()["detail"][0]["loc"] == ["body", "kv_dtype", 0, "dtype"]
    assert "given apart" in answer.json()["detail"][0]["msg"]
