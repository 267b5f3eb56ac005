"""A log explained through the API: its model, its fields, and what happens to the paste."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.catalog import models

LOG = "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens"
LLAMA = {"id": "meta-llama/Llama-3.1-8B"}


def explain(client: TestClient, **body: Any) -> Any:
    """Return a log explained."""
    answer = client.post("/api/v1/engines/explain", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answer_has_its_whole_shape(client: TestClient) -> None:
    """Engine, version, model, figures with line, range and reason, advice, formula, omissions."""
    answer = explain(client, log=LOG, model=LLAMA)
    assert (answer["engine"], answer["version_guess"]) == ("vllm", "0.9.0–0.27.1")
    assert answer["model"] == "meta-llama/Llama-3.1-8B"
    figure = answer["figures"][1]
    assert figure == {
        "name": "kv_cache_tokens",
        "line": "GPU KV cache size: 327,680 tokens",
        "line_number": 2,
        "rank": None,
        "printed": "327,680 tokens",
        "computed": "327,680 tokens",
        "interval": [327_632, 327_712],
        "unit": "tokens",
        "difference": "",
        "agrees": True,
        "reason": "20,480 blocks of 16 tokens each",
        "reason_codes": ["blocks_times_size"],
    }
    assert {item["code"] for item in answer["advice"]} >= {"kv_cache_dtype"}
    assert all(item["change"] and item["effect"] for item in answer["advice"])
    assert answer["settings"] == answer["inferred"]
    assert answer["inferred"]["tensor_parallel_size"] == 1
    assert answer["formula"]
    assert {note["code"] for note in answer["not_counted"]} >= {"weights", "activations"}
    assert answer["disagrees"] is False


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B", "META-LLAMA/llama-3.1-8b", "Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct-FP8", "Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
        "unsloth/Llama-3.1-8B-Instruct-bnb-4bit",
    ],
)  # fmt: skip
def test_a_model_in_any_spelling(name: str, client: TestClient) -> None:
    """What was done to the weights, and how it is written, does not change the layers."""
    answer = explain(client, log=LOG, model={"id": name})
    assert all(figure["agrees"] for figure in answer["figures"])
    codes = {note["code"] for note in answer["assumptions"]}
    assert ("model_by_name" in codes) == (name.casefold() != "meta-llama/llama-3.1-8b")


def test_the_model_of_the_log_itself(client: TestClient) -> None:
    """The arguments' own line names the model; the request's goes before it."""
    log = "non-default args: {'model': '/models/Qwen/Qwen3-8B'}\n" + LOG
    assert explain(client, log=log)["model"] == "Qwen/Qwen3-8B"
    assert explain(client, log=log, model=LLAMA)["model"] == "meta-llama/Llama-3.1-8B"


def test_any_description_of_the_model(client: TestClient) -> None:
    """Numbers, layers one by one and a config give the same verdicts."""
    config = models.entry("meta-llama/Llama-3.1-8B")["config"]
    layer = {"kind": "full_attention", "kv_heads": 8, "k_dim": 128, "v_dim": 128, "count": 32}
    for model in (
        {"config": config},
        {"layers": 32, "kv_heads": 8, "head_dim": 128},
        {"layer_states": [layer]},
    ):
        answer = explain(client, log=LOG, model=model, settings={"max_model_len": 131_072})
        assert [figure["agrees"] for figure in answer["figures"]] == [True, True]


def test_a_count_of_layers_names_no_model(client: TestClient) -> None:
    """Ollama's layers.model=81 counts layers: the log names no model."""
    log = 'layers.model=81 memory.required.kv="19.5 GiB" --ctx-size 64000 --parallel 1'
    answer = explain(client, log=log)
    assert answer["engine"] == "ollama"
    assert [note["code"] for note in answer["missing"]] == ["no_model"]


def test_an_unknown_model_is_asked_for(client: TestClient) -> None:
    """A name that no model has is said, models of that size are offered, and nothing is guessed."""
    answer = explain(client, log=LOG, model={"id": "nobody/no-such-model"})
    assert answer["model"] is None
    assert answer["missing"][0]["code"] == "unknown_model"
    assert "meta-llama/Llama-3.1-8B" in answer["model_candidates"]
    assert [figure["agrees"] for figure in answer["figures"]] == [None, None]
    assert explain(client, log=LOG)["missing"][0]["code"] == "no_model"
    assert explain(client, log=LOG, model=LLAMA)["model_candidates"] == []


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "log"]),
        ({"log": 5}, ["body", "log"]),
        ({"log": "x", "engine": "nope"}, ["body", "engine"]),
        ({"log": "x", "want_context_tokens": 0}, ["body", "want_context_tokens"]),
        ({"log": "x", "want_concurrency": 2**21}, ["body", "want_concurrency"]),
        ({"log": "x", "model": {"layers": 0, "kv_heads": 1, "head_dim": 1}},
         ["body", "model", "layers"]),
        ({"log": LOG, "model": LLAMA, "settings": {"nope": 1}}, ["body", "settings", "nope"]),
        ({"log": LOG, "settings": {"version": 0.33}}, ["body", "settings", "version"]),
        ({"log": LOG, "settings": {"version": 5}}, ["body", "settings", "version"]),
        ({"log": LOG, "model": LLAMA, "settings": {"version": "9.9"}},
         ["body", "settings", "version"]),
        ({"log": LOG, "model": LLAMA, "settings": {"block_size": "a"}},
         ["body", "settings", "block_size"]),
        ({"log": "x", "surprise": 1}, ["body", "surprise"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    body: dict[str, Any], loc: list[str], client: TestClient
) -> None:
    """A body that cannot be answered is refused at the field that is at fault."""
    answer = client.post("/api/v1/engines/explain", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == loc


def test_an_engine_that_nobody_knows(client: TestClient) -> None:
    """No line of a known form: no engine, no version, no figure, no guess."""
    answer = explain(client, log="loading 12 shards … cache of 4096 MB ready", model=LLAMA)
    assert (answer["engine"], answer["version_guess"], answer["figures"]) == (None, None, [])
    assert answer["missing"][0]["code"] == "unknown_engine"


def test_nothing_of_a_paste_is_written(
    client: TestClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line that the program writes about a call holds anything of the log."""
    secret = "hunter2-4711"  # noqa: S105 - a word to look for
    with caplog.at_level(logging.DEBUG):
        explain(client, log=f"{secret}\n{LOG}\n{secret} GPU KV cache size: 1 tokens", model=LLAMA)
        client.post("/api/v1/engines/explain", json={"log": secret, "engine": secret})
    written = capsys.readouterr()
    assert secret not in caplog.text + written.out + written.err


def test_megabytes_around_two_lines(client: TestClient) -> None:
    """A log of three megabytes gives the same figures as its two lines."""
    noise = "\n".join(f"DEBUG step {index} took {index % 97} ms" for index in range(50_000))
    answer = explain(client, log=f"{noise}\n{LOG}\n{noise}", model=LLAMA)
    assert [figure["agrees"] for figure in answer["figures"]] == [True, True]
    assert answer["figures"][0]["line_number"] == 50_001


@pytest.mark.parametrize(
    "log",
    [
        LOG,
        (
            "llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), "
            "K (f16): 1536.00 MiB, V (f16): 1536.00 MiB"
        ),
        "KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB",
        (
            "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 512\n"
            "[MemUsageChange] Allocated 4.67 GiB for max tokens in paged KV cache (33984)."
        ),
        'msg=offload layers.model=25 memory.required.kv="300.0 MiB"',
    ],
    ids=["vllm", "llama.cpp", "sglang", "tensorrt-llm", "ollama"],
)
def test_thousands_of_layers_do_not_take_long(log: str, client: TestClient) -> None:
    """Of a model with very many layers fewer settings are tried, so that the answer comes."""
    began = time.perf_counter()
    explain(client, log=log, model={"layers": 9_999, "kv_heads": 1, "head_dim": 1})
    assert time.perf_counter() - began < 20  # minutes, were all tried


def test_layers_that_keep_nothing(client: TestClient) -> None:
    """States of no bytes are a model whose cache is nothing: no memory of 40 GiB is its."""
    layer = {"kind": "recurrent", "state_bytes": 0, "conv_bytes": 0}
    answer = explain(client, log=LOG, model={"layer_states": [layer]}, want_concurrency=1)
    assert answer["figures"][0]["agrees"] is False
