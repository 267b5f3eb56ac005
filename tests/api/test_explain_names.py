"""Which model a log is explained with, and what is said where that is not known."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

FIGURES = "Available KV cache memory: 6.51 GiB\nGPU KV cache size: 42,656 tokens"


def explain(client: TestClient, **body: Any) -> Any:
    """Return a log explained."""
    answer = client.post("/api/v1/engines/explain", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_engine_s_own_configuration_names_the_model(client: TestClient) -> None:
    """The line that the engine starts with gives model, release and figures to hold it against."""
    log = (
        "INFO 10-10 12:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config:"
        " model='Qwen/Qwen3-14B', speculative_config=None, tokenizer='Qwen/Qwen3-14B',"
        " dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1\n" + FIGURES
    )
    answer = explain(client, log=log)
    assert (answer["model"], answer["version_guess"]) == ("Qwen/Qwen3-14B", "0.11.0")
    assert [figure["agrees"] for figure in answer["figures"]] == [True, True]


def test_the_banner_names_model_and_release(client: TestClient) -> None:
    """The greeting of newer servers has the release in one row and the model in the next."""
    log = (
        "(APIServer pid=1) INFO 02-02 10:00:00 [utils.py:293]  ▄▄ ▄█ █     █     █ ▀▄▀ █"
        "  version 0.15.0\n"
        "(APIServer pid=1) INFO 02-02 10:00:00 [utils.py:293]   █▄█▀ █     █     █     █"
        "  model   Qwen/Qwen3-14B\n" + FIGURES
    )
    answer = explain(client, log=log)
    assert (answer["model"], answer["version_guess"]) == ("Qwen/Qwen3-14B", "0.15.0")


@pytest.mark.parametrize(
    "body",
    [
        {"log": FIGURES, "model": {"id": "nonsense/x"}},
        {"log": f"vllm serve nonsense/x\n{FIGURES}"},
    ],
)
def test_a_name_that_nobody_knows_is_repeated(client: TestClient, body: dict[str, Any]) -> None:
    """Where a name was given or stands in the log, nothing says that none did."""
    answer = explain(client, **body)
    assert [note["code"] for note in answer["missing"]] == ["unknown_model"]
    codes = {code for figure in answer["figures"] for code in figure["reason_codes"]}
    assert "unknown_model" in codes
    assert "no_model" not in codes
    assert all("nonsense/x" in figure["reason"] for figure in answer["figures"])


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("GPU KV cache size: 42,656 tok", "kv_cache_tokens"),
        ("GPU KV cache size: 42,656 t", "kv_cache_tokens"),
        ("Available KV cache memory: 6.51 G", "available_memory"),
        ("Available KV cache memory: 6.51 Gi", "available_memory"),
    ],
)
def test_a_paste_that_ends_inside_a_unit(client: TestClient, line: str, figure: str) -> None:
    """A number that is whole is read though the word behind it is cut."""
    (item,) = explain(client, log=line)["figures"]
    assert item["name"] == figure


@pytest.mark.parametrize("line", ["GPU KV cache size: 42,6", "Available KV cache memory: 6.5"])
def test_a_paste_that_ends_inside_a_number(client: TestClient, line: str) -> None:
    """A number that may go on is not read."""
    assert explain(client, log=line)["figures"] == []


@pytest.mark.parametrize(
    ("second", "model", "verdicts"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B, Qwen/Qwen3-8B", [True, True]),
        ("nobody/none", "Qwen/Qwen3-14B", [None, None]),
    ],
)
def test_each_start_is_of_the_model_that_it_names(
    client: TestClient, second: str, model: str, verdicts: list[bool | None]
) -> None:
    """Two commands in one paste: 262,144 tokens of 147,456 B are 36 GiB of the second's model."""
    log = (
        f"vllm serve Qwen/Qwen3-14B\nvLLM API server version 0.20.2\n{FIGURES}\n"
        f"vllm serve {second}\nvLLM API server version 0.20.2\n"
        "Available KV cache memory: 36.0 GiB\nGPU KV cache size: 262,144 tokens"
    )
    answer = explain(client, log=log)
    assert answer["model"] == model
    assert [figure["agrees"] for figure in answer["figures"]] == [True, True, *verdicts]
