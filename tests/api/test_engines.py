"""What engines are known, each engine's own plan, and all of them side by side.

Llama 3.1 8B takes 131,072 B a token at 16 bits in every engine: 40 GiB are 327,680 tokens, two and
a half requests of 131,072. A whole budget leaves out weights and activations.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

LLAMA = {"id": "meta-llama/Llama-3.1-8B"}
FORTY_GIB = 42_949_672_960
UNIFORM = {"layers": 32, "kv_heads": 8, "head_dim": 128}


def post(client: TestClient, call: str, body: dict[str, Any]) -> Any:
    """Return the answer of a call that is accepted."""
    answer = client.post(f"/api/v1/engines/{call}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_engines_are_listed(client: TestClient) -> None:
    """Each engine has its versions, its settings by their own names, and what its bytes mean."""
    engines = {item["name"]: item for item in client.get("/api/v1/engines").json()["engines"]}
    assert list(engines) == ["vllm", "llama_cpp", "sglang", "tensorrt_llm", "transformers"]
    assert engines["vllm"]["newest"] == "0.33.0"
    assert len(engines["vllm"]["versions"]) == 66
    assert {"max_model_len", "kv_cache_dtype", "version"} <= set(engines["vllm"]["settings"])
    assert "n_ctx" in engines["llama_cpp"]["settings"]
    assert engines["llama_cpp"]["aliases"]["ctx_size"] == "n_ctx"
    assert all(item["source_url"].startswith("https://") for item in engines.values())


@pytest.mark.parametrize(
    ("engine", "settings", "expected"),
    [
        ("vllm", {"max_model_len": 131_072, "version": "0.33.0"},
         {"num_gpu_blocks": 20_480, "kv_cache_tokens": 327_680, "max_concurrency_text": "2.50x",
          "blocks_per_request": 8_192, "needed_bytes": 17_179_869_184, "refused": False}),
        ("llama_cpp", {"n_ctx": 8_192},
         {"total_bytes": 1_073_741_824, "largest_n_ctx": 327_680, "fits": True}),
        ("sglang", {},
         {"tokens": 327_680, "cell_bytes": 131_072, "pool_bytes": 42_949_804_032}),
        ("tensorrt_llm", {"free_gpu_memory_fraction": 1.0},
         {"tokens": 327_680, "blocks": 10_240, "pool_bytes": 42_949_672_960}),
    ],
)  # fmt: skip
def test_each_engine_plans(
    engine: str, settings: dict[str, Any], expected: dict[str, Any], client: TestClient
) -> None:
    """An engine's own figures, its lines as printed, the working and what is left out."""
    body = {"model": LLAMA, "settings": settings, "available_bytes": FORTY_GIB}
    answer = post(client, f"{engine}/plan", body)
    assert answer["engine"] == engine
    assert {name: answer[name] for name in expected} == expected
    assert answer["request"] == {
        "fixed_bytes": 0, "saturating_bytes": 0, "slope_bytes": 131_072, "slope_tokens": 1,
        "holds_from_tokens": 1,
    }  # fmt: skip
    assert answer["printed"]
    assert answer["formula"]
    assert answer["not_counted"]


def test_a_request_has_a_fixed_part_and_a_slope(client: TestClient) -> None:
    """gpt-oss: 18 full layers of 2,048 B a token, and 18 windows that stop growing."""
    body = {"model": {"id": "openai/gpt-oss-120b"}, "settings": {"n_ctx": 131_072}}
    answer = post(client, "llama_cpp/plan", body)
    assert answer["request"]["slope_bytes"] == 36_864
    assert answer["request"]["saturating_bytes"] == 768 * 36_864
    assert answer["request"]["holds_from_tokens"] == 513
    assert answer["total_bytes"] == (131_072 + 768) * 36_864


def test_a_length_that_does_not_fit(client: TestClient) -> None:
    """A request of 16 GiB in 8 GiB: no start, and the longest that fits."""
    answer = post(client, "vllm/plan",
                  {"model": LLAMA, "settings": {"max_model_len": 131_072, "version": "0.21.0"},
                   "available_bytes": FORTY_GIB // 5})  # fmt: skip
    assert answer["refused"]
    assert answer["kv_cache_tokens"] is None
    assert answer["estimated_max_model_len"] == 65_536
    assert "estimated maximum model length is 65536" in answer["printed"][-1]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"model": LLAMA, "settings": {"nope": 1}}, ["body", "settings", "nope"]),
        ({"model": LLAMA, "settings": {"max_model_len": "x"}},
         ["body", "settings", "max_model_len"]),
        ({"model": LLAMA, "settings": {"version": "0.1.0"}}, ["body", "settings", "version"]),
        ({"model": LLAMA, "settings": {f"a{index}": 1 for index in range(101)}},
         ["body", "settings"]),
        ({"model": LLAMA, "available_bytes": -1}, ["body", "available_bytes"]),
        ({"model": LLAMA, "available_bytes": 2**60}, ["body", "available_bytes"]),
        ({"model": {"id": "no/such"}}, ["body", "model", "id"]),
        ({"settings": {}}, ["body", "model"]),
        ({"model": LLAMA, "surprise": 1}, ["body", "surprise"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    body: dict[str, Any], loc: list[str], client: TestClient
) -> None:
    """A body that cannot be planned is refused at the field that is at fault."""
    answer = client.post("/api/v1/engines/vllm/plan", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == loc


def test_an_unknown_engine(client: TestClient) -> None:
    """An engine that is not known is refused by name."""
    answer = client.post("/api/v1/engines/nope/plan", json={"model": LLAMA})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["path", "engine"]


@pytest.mark.parametrize(
    "model",
    [
        LLAMA,
        UNIFORM,
        {"layer_states": [{"kind": "full_attention", "kv_heads": 8, "k_dim": 128, "v_dim": 128,
                           "count": 32}]},
        {"config": {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
                    "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16",
                    "max_position_embeddings": 131_072}},
    ],
    ids=["id", "numbers", "layer_states", "config"],
)  # fmt: skip
def test_a_model_by_any_description(model: dict[str, Any], client: TestClient) -> None:
    """The same layers, however they are said, give the same blocks and tokens."""
    body = {"model": model, "settings": {"max_model_len": 131_072}, "available_bytes": FORTY_GIB}
    answer = post(client, "vllm/plan", body)
    assert (answer["num_gpu_blocks"], answer["kv_cache_tokens"]) == (20_480, 327_680)


# Side by side


def rows(client: TestClient, **body: Any) -> dict[str, Any]:
    """Return the rows of a comparison by engine."""
    answer = post(client, "side-by-side", body)
    return {row["engine"]: row for row in answer["engines"]}


def test_layers_that_are_all_alike(client: TestClient) -> None:
    """In every engine a token takes the same; llama.cpp and Transformers hold whole requests."""
    found = rows(client, model=LLAMA, available_bytes=FORTY_GIB, lengths=[1_024])
    assert {name: row["tokens"] for name, row in found.items()} == {
        "vllm": 327_680, "llama_cpp": 262_144, "sglang": 327_680, "tensorrt_llm": 327_680,
        "transformers": 262_144,
    }  # fmt: skip
    assert {name: row["concurrency"] for name, row in found.items()} == {
        "vllm": 2.5, "llama_cpp": 2.0, "sglang": 2.5, "tensorrt_llm": 2.5, "transformers": 2.0,
    }  # fmt: skip
    assert "up to 327680" in found["llama_cpp"]["remarks"][0]["text"]
    for row in found.values():
        assert row["still_bytes"] == 0
        assert row["holds_from_tokens"] == 1
        assert row["slope_bytes"] == 131_072
        assert row["spent"] == []
        assert row["lengths"][0]["bytes"] == 134_217_728


def test_windows_are_kept_in_five_ways(client: TestClient) -> None:
    """Gemma 3 at 131,072 tokens: windows freed, kept for the batch in flight, or kept whole."""
    found = rows(client, model={"id": "google/gemma-3-27b-it"}, available_bytes=FORTY_GIB,
                 context_tokens=131_072, kv_dtype="bf16")  # fmt: skip
    spent = {
        name: {part["code"]: part["bytes"] for part in row["spent"]} for name, row in found.items()
    }
    assert spent == {
        "vllm": {"padding_layers": 1_141_899_264, "window_reserve": 6_986_563_584},
        "llama_cpp": {"window_cells": 218_529_792},
        "sglang": {"pages_and_states": 425_984},
        "tensorrt_llm": {"full_windows": 55_398_793_216},
        "transformers": {},
    }
    for name, row in found.items():
        assert row["request_bytes"] - row["need_bytes"] == sum(spent[name].values())
    assert found["transformers"]["request_bytes"] == 11_173_199_872
    assert found["tensorrt_llm"]["slope_bytes"] == 507_904


def test_an_engine_that_would_not_start(client: TestClient) -> None:
    """A request of 63 GiB in 40: two engines say so with the longest that fits, three hold less."""
    found = rows(client, model={"id": "meta-llama/Llama-3.1-405B"}, available_bytes=FORTY_GIB)
    stopped = {name: row["stopped"]["code"] for name, row in found.items() if row["stopped"]}
    assert stopped == {"vllm": "does_not_start", "llama_cpp": "does_not_start"}
    assert "83200 tokens" in found["vllm"]["stopped"]["text"]
    assert found["vllm"]["tokens"] is None
    assert found["transformers"]["tokens"] == 0


def test_a_format_that_an_engine_does_not_have(client: TestClient) -> None:
    """q8_0 with q4_0 is llama.cpp's, 34 and 18 bytes for 32 elements; others say what they have."""
    found = rows(client, model=LLAMA, available_bytes=FORTY_GIB, context_tokens=8_192,
                 kv_dtype={"k": "q8_0", "v": "q4_0"})  # fmt: skip
    assert found["llama_cpp"]["slope_bytes"] == 32 * 1_024 * (34 + 18) // 32
    for name in ("vllm", "sglang", "tensorrt_llm", "transformers"):
        assert found[name]["refusal"]["code"] == "unsupported"
        assert found[name]["tokens"] is None
        assert "fp16" in found[name]["refusal"]["text"]


def test_settings_of_one_engine(client: TestClient) -> None:
    """A setting by an engine's name goes to that engine alone."""
    found = rows(client, model=LLAMA, available_bytes=FORTY_GIB,
                 settings={"vllm": {"tensor_parallel_size": 2}})  # fmt: skip
    assert found["vllm"]["tokens"] == 2 * 327_680
    assert found["sglang"]["tokens"] == 327_680


def test_ranks_of_all_engines(client: TestClient) -> None:
    """Ranks are asked once, and each engine takes them by its own name or says that it does not."""
    found = rows(client, model=LLAMA, available_bytes=FORTY_GIB, tensor_parallel=2,
                 settings={"vllm": {"version": "0.11.0"}})  # fmt: skip
    assert {name: row["slope_bytes"] for name, row in found.items()} == {
        "vllm": 65_536, "llama_cpp": 131_072, "sglang": 65_536, "tensorrt_llm": 65_536,
        "transformers": 131_072,
    }  # fmt: skip
    assert found["vllm"]["version"] == "0.11.0"
    assert found["llama_cpp"]["remarks"][0]["code"] == "ranks_not_taken"
    assert found["sglang"]["remarks"] == []


def test_numbers_alone_name_no_class(client: TestClient) -> None:
    """Without a config Transformers' class is not known; all others count by the layers."""
    found = rows(client, model=UNIFORM, available_bytes=FORTY_GIB)
    assert found["transformers"]["refusal"]["code"] == "missing"
    assert found["vllm"]["tokens"] == 327_680


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"available_bytes": 0}, ["body", "available_bytes"]),
        ({"lengths": []}, ["body", "lengths"]),
        ({"lengths": [0]}, ["body", "lengths", 0]),
        ({"lengths": [1] * 13}, ["body", "lengths"]),
        ({"context_tokens": 0}, ["body", "context_tokens"]),
        ({"kv_dtype": "fp17"}, ["body", "kv_dtype"]),
        ({"tensor_parallel": 0}, ["body", "tensor_parallel"]),
        ({"decode_context_parallel": 1_025}, ["body", "decode_context_parallel"]),
        ({"settings": {"vllm": {"nope": 1}}}, ["body", "settings", "vllm", "nope"]),
        ({"settings": {"nope": {}}}, ["body", "settings", "nope", "[key]"]),
    ],
)
def test_refusals_of_a_comparison(
    change: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """A comparison that cannot be made is refused at the field that is at fault."""
    body = {"model": LLAMA, "available_bytes": FORTY_GIB} | change
    answer = client.post("/api/v1/engines/side-by-side", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == loc
