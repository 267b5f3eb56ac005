"""Whatever is sent is answered: a 4xx that names the field, never a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

GOOD: dict[str, Any] = {
    "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
    "kv_dtype": "fp16",
    "lengths": [3],
    "block_size": 16,
}
WINDOW = {"kind": "sliding_window", "kv_heads": 1, "k_dim": 1, "v_dim": 1, "window": 4}


def post(client: TestClient, body: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the problems of a ledgers call."""
    answer = client.post("/api/v1/ledgers", json=body)
    return answer.status_code, answer.json().get("detail", [])


def test_the_base_is_good(client: TestClient) -> None:
    """The body that the cases below spoil is itself accepted."""
    assert post(client, GOOD)[0] == 200


@pytest.mark.parametrize(
    ("spoiled", "loc"),
    [
        ({"lengths": [True]}, ["body", "lengths", 0]),
        ({"lengths": [-1]}, ["body", "lengths", 0]),
        ({"lengths": [1, 1.5]}, ["body", "lengths", 1]),
        ({"lengths": ["7"]}, ["body", "lengths", 0]),
        ({"lengths": None}, ["body", "lengths"]),
        ({"lengths": [10**9 + 1]}, ["body", "lengths", 0]),
        ({"lengths": [{"length": 1, "count": -1}]}, ["body", "lengths", 0, "count"]),
        ({"lengths": [{"length": 1}]}, ["body", "lengths", 0, "count"]),
        ({"lengths": [{"length": 10**9, "count": 10**7}]}, ["body", "lengths"]),
        ({"block_size": 0}, ["body", "block_size"]),
        ({"block_size": 10**30}, ["body", "block_size"]),
        ({"block_size": True}, ["body", "block_size"]),
        ({"kv_dtype": "fp17"}, ["body", "kv_dtype"]),
        ({"kv_dtype": {"k": "fp16", "v": "nope"}}, ["body", "kv_dtype", "v"]),
        ({"kv_dtype": "fp16", "element_bytes": 2}, ["body", "element_bytes"]),
        ({"kv_dtype": [{"layers": [0, 99], "dtype": "fp16"}, {"dtype": "fp8"}]},
         ["body", "kv_dtype", 0, "layers"]),
        ({"kv_dtype": [{"layers": [0, 1], "dtype": "fp16"}]}, ["body", "kv_dtype"]),
        ({"kv_dtype": [{"dtype": "fp16"}, {"dtype": "fp8"}]}, ["body", "kv_dtype", 1, "layers"]),
        ({"model": {"layers": 0, "kv_heads": 8, "head_dim": 128}}, ["body", "model", "layers"]),
        ({"model": {"layers": 1, "kv_heads": 8}}, ["body", "model", "head_dim"]),
        ({"model": {"id": "nobody/nothing"}}, ["body", "model", "id"]),
        ({"model": 5}, ["body", "model"]),
        ({"model": {"layer_states": []}}, ["body", "model", "layer_states"]),
        ({"model": {"layer_states": [{**WINDOW, "window": 0}]}},
         ["body", "model", "layer_states", 0, "window"]),
        ({"model": {"layer_states": [{**WINDOW, "kind": "unheard"}]}},
         ["body", "model", "layer_states", 0]),
        ({"model": {"layer_states": [{**WINDOW, "k_dim": 0, "v_dim": 0}]}},
         ["body", "model", "layer_states", 0, "k_dim"]),
        ({"model": {"layer_states": [{**WINDOW, "same_layer": True}]}},
         ["body", "model", "layer_states", 0, "same_layer"]),
        ({"model": {"layer_states": [WINDOW, {**WINDOW, "same_layer": True, "count": 2}]}},
         ["body", "model", "layer_states", 1, "count"]),
        ({"model": {"layer_states": [{"kind": "recurrent"}]}},
         ["body", "model", "layer_states", 0, "state_bytes"]),
        ({"model": {"layer_states": [{"kind": "shared", "with_layer": 7}]}},
         ["body", "model", "layer_states", "with_layer"]),
        ({"surprise": 1}, ["body", "surprise"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    spoiled: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """A spoiled body is refused with 422 at the field that is at fault."""
    status, problems = post(client, GOOD | spoiled)
    assert status == 422
    assert problems[0]["loc"] == loc
    assert set(problems[0]) == {"loc", "msg", "type"}


@pytest.mark.parametrize(
    "raw",
    [b'{"model": NaN}', b'{"lengths": [1e400]}', b'{"lengths": [Infinity]}', b"[" * 200_000,
     b'{"a":' * 10_000, b"\xff\xfe", b"", b"null", b"[]", b'"x"', b"{}", b'{"model":{}}',
     b'{"model": {"layers": 1' + b"0" * 5000 + b"}}", b"\x00" * 100],
)  # fmt: skip
def test_raw_rubbish_is_a_4xx(raw: bytes, client: TestClient) -> None:
    """Bytes that are no JSON, or no object, are refused as 4xx with a detail."""
    answer = client.post(
        "/api/v1/ledgers", content=raw, headers={"content-type": "application/json"}
    )
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]


def test_a_body_over_the_bound_is_413(client: TestClient) -> None:
    """A body over 16 MiB is refused before it is parsed."""
    answer = client.post(
        "/api/v1/ledgers",
        content=b" " * (16 * 2**20 + 1),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 413


def test_a_body_of_another_type_is_refused(client: TestClient) -> None:
    """A form is not a JSON body."""
    answer = client.post("/api/v1/ledgers", data={"model": "x"})
    assert answer.status_code == 422


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/nothing", "/static/../pyproject.toml"])
def test_unknown_paths(path: str, client: TestClient) -> None:
    """What is not there is a 404."""
    assert client.get(path).status_code == 404


def test_long_lists_are_counted_alike(client: TestClient) -> None:
    """A list that is long enough to be counted on arrays gives what its counts give."""
    drawn = [(index * 7919) % 5000 for index in range(120_000)]
    listed = client.post("/api/v1/ledgers", json=GOOD | {"lengths": drawn, "limit": 3}).json()
    counts = [{"length": n, "count": drawn.count(n)} for n in range(0, 5000, 2500)]
    assert counts[0]["count"] == 24
    summed = client.post(
        "/api/v1/ledgers",
        json=GOOD | {"lengths": [{"length": n, "count": 24} for n in range(5000)], "limit": 0},
    ).json()
    figures = ("effective_bytes", "padded_bytes", "paged_bytes", "blocks", "request_count")
    assert {k: listed[k] for k in figures} == {k: summed[k] for k in figures}
    assert [row["length"] for row in listed["requests"]] == drawn[:3]


def test_long_lists_of_long_lengths_are_counted_alike(client: TestClient) -> None:
    """Lengths too long for a bin each are counted by sorting, to the same figures."""
    drawn = [10_000_000 + index % 2 for index in range(100_000)]
    model = {"layers": 1, "kv_heads": 1, "head_dim": 1}
    listed = client.post("/api/v1/ledgers", json=GOOD | {"model": model, "lengths": drawn}).json()
    assert listed["effective_bytes"] == 4 * (50_000 * 10_000_000 + 50_000 * 10_000_001)
    assert listed["blocks"] == 50_000 * 625_000 + 50_000 * 625_001


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/models/a%0Ab"])
def test_unknown_calls_have_the_shape_of_a_problem(path: str, client: TestClient) -> None:
    """Under /api/ a 404 is a list of problems, whatever the path holds."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"detail": [{"loc": ["path"], "msg": "Not Found", "type": "unknown"}]}


LLAMA = '{"id": "meta-llama/Llama-3.1-8B"}'
TWO_LAYERS = '{"model_type": "llama", "num_hidden_layers": 1, "num_hidden_layers": 2}'


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("ledgers", '{"model": {"layers": 1, "layers": 2}, "lengths": [1]}', "layers"),
        ("ledgers", f'{{"model": {LLAMA}, "lengths": [1], "lengths": [2]}}', "lengths"),
        ("per-token", f'{{"model": {{"config": {TWO_LAYERS}}}}}', "num_hidden_layers"),
    ],
)
def test_a_key_named_twice_is_refused(client: TestClient, path: str, body: str, key: str) -> None:
    """No value is dropped in silence: whichever was meant, the caller must say."""
    answer = client.post(
        f"/api/v1/{path}", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    (problem,) = answer.json()["detail"]
    assert f"'{key}' is named twice" in problem["msg"]
