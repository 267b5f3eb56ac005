"""The catalogue through the API: filters, order, one entry."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient


def ids(client: TestClient, **query: Any) -> list[str]:
    """Return the ids that a query lists."""
    answer = client.get("/api/v1/models", params={"limit": 1000, **query})
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["models"]]


def test_the_whole_catalogue(client: TestClient) -> None:
    """572 entries, a hundred a page unless asked otherwise."""
    answer = client.get("/api/v1/models").json()
    assert (answer["total"], len(answer["models"])) == (572, 100)
    assert len(ids(client)) == 572
    assert ids(client)[570:] == [
        row["id"] for row in client.get("/api/v1/models?offset=570").json()["models"]
    ]


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ({"q": "gemma 27b"}, "google/gemma-3-27b-it", "Qwen/Qwen3-8B"),
        ({"kind": "latent_attention"}, "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-8B"),
        ({"kind": "recurrent"}, "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b"),
        ({"family": "qwen3_moe"}, "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"),
        ({"max_parameters": 10**9}, "Qwen/Qwen3-0.6B", "deepseek-ai/DeepSeek-V3"),
        ({"min_parameters": 5 * 10**11}, "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-0.6B"),
    ],
)
def test_filters(query: dict[str, Any], there: str, absent: str, client: TestClient) -> None:
    """By words, kind, family and size."""
    found = ids(client, **query)
    assert there in found
    assert absent not in found


def test_what_is_not_read_is_listed_with_its_reason(client: TestClient) -> None:
    """Read and unread are all there is; the unread name a field."""
    assert len(ids(client, readable=True)) + len(ids(client, readable=False)) == 572
    answer = client.get("/api/v1/models", params={"readable": False, "limit": 1000}).json()
    assert all(row["field"] and row["reason"] for row in answer["models"])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "sort", ["parameters", "layers", "bytes_per_token", "fixed_bytes", "max_context_tokens"]
)
def test_order(sort: str, descending: bool, client: TestClient) -> None:  # noqa: FBT001
    """In the order of a figure either way; entries that lack it come last."""
    answer = client.get(
        "/api/v1/models", params={"sort": sort, "descending": descending, "limit": 1000}
    ).json()
    values = [
        row["parameters"] or row["counted_parameters"] if sort == "parameters" else row[sort]
        for row in answer["models"]
    ]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=descending)
    assert values == known + [None] * (len(values) - len(known))


def test_order_of_ids_backwards(client: TestClient) -> None:
    """The same ids, the other way round."""
    assert ids(client, sort="id", descending=True) == ids(client)[::-1]


def test_one_entry(client: TestClient) -> None:
    """Gemma 3 27B: 52 windows of 1,024 and 10 full layers, with source, rows and weights."""
    got = client.get("/api/v1/models/google/gemma-3-27b-it").json()
    assert got["summary"]["id"] == "google/gemma-3-27b-it"
    assert got["source"]["url"].startswith("https://")
    assert len(got["layers"]) == 62
    at = {row["tokens"]: row["total_bytes"] for row in got["contexts"]}
    assert at[131_072] == 11_173_199_872
    assert got["kv_dtype"] == "bf16"
    assert got["weights"]["basis"] == "config"
    assert got["weights"]["parameters"] == 27_432_406_640


def test_a_format_and_an_encoder(client: TestClient) -> None:
    """`kv_dtype` and `encoder_tokens` change what the entry's figures are about."""
    one = client.get("/api/v1/models/meta-llama/Llama-3.1-8B?kv_dtype=fp8").json()
    assert one["contexts"][0]["average_bytes_per_token"] == 65_536
    bart = "/api/v1/models/facebook/bart-large?encoder_tokens="
    long, short = (client.get(f"{bart}{tokens}").json() for tokens in (1000, 500))
    # 12 layers of 16 heads × 64, keys and values, 2 bytes.
    assert long["contexts"][0]["fixed_bytes"] == 12 * 1000 * 2 * 16 * 64 * 2
    assert short["contexts"][0]["fixed_bytes"] * 2 == long["contexts"][0]["fixed_bytes"]


def test_an_entry_that_is_not_read(client: TestClient) -> None:
    """Its config and source are shown, with the field and the reason."""
    model_id = ids(client, readable=False)[0]
    got = client.get(f"/api/v1/models/{model_id}").json()
    assert got["summary"]["field"]
    assert got["summary"]["reason"]
    assert got["layers"] == got["contexts"] == []
    assert got["config"]


@pytest.mark.parametrize(
    ("path", "status", "loc"),
    [
        ("nobody/nothing", 404, ["path", "id"]),
        ("meta-llama/Llama-3.1-8B?kv_dtype=fp17", 422, ["query", "kv_dtype"]),
        ("meta-llama/Llama-3.1-8B?encoder_tokens=-1", 422, ["query", "encoder_tokens"]),
    ],
)
def test_refusals(path: str, status: int, loc: list[str], client: TestClient) -> None:
    """An unknown id is not there; a wrong query is refused by name."""
    answer = client.get(f"/api/v1/models/{path}")
    assert answer.status_code == status
    assert answer.json()["detail"][0]["loc"] == loc
