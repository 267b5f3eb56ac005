"""The plan of a run of Transformers, as the API answers it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from app.api.transformers_plan import TransformersPlanRequest
from app.engines.transformers.settings import KNOWN

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
RUN = {"cache": "dynamic", "batch": 2, "prompt_tokens": 100, "decode_steps": 28}


def ask(client: TestClient, model: dict[str, Any], **settings: Any) -> httpx.Response:
    """Return the answer for a model and settings on top of the usual run."""
    body = {"model": model, "settings": RUN | settings}
    answer: Any = client.post("/api/v1/engines/transformers/plan", json=body)
    found: httpx.Response = answer
    return found


def test_every_tensor_is_listed(client: TestClient) -> None:
    """128 positions of 2 sequences: 2 × 8 × 128 × 128 elements of 2 bytes, in 32 layers of two."""
    got = ask(client, {"config": LLAMA}).json()
    assert got["cache_bytes"] == 32 * 2 * (2 * 8 * 128 * 128 * 2)
    assert got["cache_bytes_text"] == "32 MiB"
    assert len(got["layers"]) == 32
    assert got["layers"][31] == {
        "index": 31,
        "kind": "full_attention",
        "bytes": 1_048_576,
        "storage_bytes": 1_048_576,
        "tensors": [
            {"name": name, "role": role, "shape": [2, 8, 128, 128], "dtype": "bfloat16",
             "bytes": 524_288, "storage_bytes": 524_288, "alias_of": None}
            for name, role in (("keys", "key"), ("values", "value"))
        ],
    }  # fmt: skip
    assert got["prefill_bytes"] == 26_214_400
    assert got["overhead"]["overhead_bytes"] == 0
    assert got["formula"] == "32 × 1048576 B = 33554432 B"
    assert {note["code"] for note in got["not_counted"]} >= {"weights", "activations"}


def test_a_static_cache_is_allocated_whole(client: TestClient) -> None:
    """`max_cache_len` positions are there from the start, whatever was asked."""
    got = ask(client, {"id": "meta-llama/Llama-3.1-8B"}, cache="static", max_cache_len=4096).json()
    assert got["cache_bytes"] == 4096 * 2 * 131_072
    assert got["max_cache_len"] == 4096
    assert got["overhead"]["layers"][0]["reasons"][0]["code"] == "allocated_whole"


def test_what_is_kept_beyond_need_is_said(client: TestClient) -> None:
    """Falcon-180B has 8 KV heads of 64; its class caches all 232 heads, 29 times as much."""
    got = ask(client, {"id": "tiiuae/falcon-180B-chat"}, batch=1, prompt_tokens=100, decode_steps=0)
    answer = got.json()
    assert answer["cache_bytes"] == 80 * 100 * 2 * 232 * 64 * 2
    assert answer["overhead"]["needed_bytes"] == 80 * 100 * 2 * 8 * 64 * 2
    assert answer["overhead"]["overhead_bytes"] == 458_752_000
    reasons = answer["overhead"]["layers"][0]["reasons"]
    assert [reason["code"] for reason in reasons] == ["broadcast_heads"]


def test_plain_numbers_are_a_llama(client: TestClient) -> None:
    """Layers, heads and width alone stand for the plainest class, and the answer says so."""
    got = ask(client, {"layers": 2, "kv_heads": 4, "head_dim": 8}, dtype="fp16").json()
    assert got["cache_bytes"] == 2 * 2 * (2 * 4 * 128 * 8 * 2)
    assert got["assumptions"][0]["code"] == "as_llama"


def test_the_encoders_length_may_come_with_the_model(client: TestClient) -> None:
    """`encoder_tokens` of the model is the setting of that name where it is not given."""
    t5 = {"model_type": "t5", "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_model": 32,
          "vocab_size": 100, "d_ff": 64, "decoder_start_token_id": 0}  # fmt: skip
    with_model = ask(client, {"config": t5, "encoder_tokens": 50}, dtype="fp32")
    with_settings = ask(client, {"config": t5}, dtype="fp32", encoder_tokens=50)
    assert with_model.status_code == 200
    assert with_model.json() == with_settings.json()
    assert with_model.json()["encoder_tokens"] == 50


@pytest.mark.parametrize(
    ("model", "settings", "loc"),
    [
        ({"config": LLAMA}, {"batch": 0}, ["settings", "batch"]),
        ({"config": LLAMA}, {"batch": True}, ["settings", "batch"]),
        ({"config": LLAMA}, {"prompt_tokens": 10**10}, ["settings", "prompt_tokens"]),
        ({"config": LLAMA}, {"cache": "paged"}, ["settings", "cache"]),
        ({"config": LLAMA}, {"dtype": "fp8"}, ["settings", "dtype"]),
        ({"config": LLAMA}, {"heat": 1}, ["settings", "heat"]),
        ({"config": LLAMA}, {"max_cache_len": 5}, ["settings", "max_cache_len"]),
        ({"config": LLAMA | {"num_hidden_layers": "x"}}, {}, ["model", "config",
                                                              "num_hidden_layers"]),
        ({"config": {"model_type": "made_up"}}, {}, ["model", "config", "model_type"]),
        ({"config": {}}, {}, ["model", "config", "model_type"]),
        ({"config": LLAMA, "draft_layers": True}, {}, ["model", "draft_layers"]),
        ({"id": "nobody/nothing"}, {}, ["model", "id"]),
        ({"hub": "org/name"}, {}, ["model", "hub"]),
        ({"gguf": {"general.architecture": "llama"}}, {}, ["model", "gguf"]),
        ({"layer_states": [{"kind": "none"}]}, {}, ["model", "layer_states"]),
        ({"layers": 1, "kv_heads": 1, "head_dim": 8, "v_head_dim": 4}, {},
         ["model", "v_head_dim"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    model: dict[str, Any], settings: dict[str, Any], loc: list[str], client: TestClient
) -> None:
    """A wrong setting, a config that decides nothing, a model without a class."""
    answer = ask(client, model, **settings)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


def test_the_plan_goes_by_the_class_where_the_reader_refuses(client: TestClient) -> None:
    """A config that no reader takes still names a class; then what is needed is not known."""
    answer = ask(client, {"id": "EleutherAI/gpt-neo-125m"})
    assert answer.status_code == 200
    assert answer.json()["overhead"]["needed_bytes"] is None
    assert answer.json()["overhead"]["unknown"]["code"] == "not_read"


def test_the_schema_names_every_setting() -> None:
    """The description lists what the engine knows, in its order, and nothing else."""
    described = TransformersPlanRequest.model_fields["settings"].description
    assert described == f"Of {', '.join(KNOWN)}."
