"""One paste of several starts: each is judged by its own lines."""

from __future__ import annotations

import pytest

from tests.engines.logs.asking import ask, remarks

LLAMA = "meta-llama/Llama-3.1-8B"
GEMMA = "google/gemma-3-12b-it"
MEMORY = "Available KV cache memory: 40.00 GiB"


def test_two_releases() -> None:
    """Gemma 3 12B in 40 GiB: 109,216 tokens until 0.19, 484,671 from 0.20.1 on, and both right."""
    at_once = "Maximum concurrency for 131,072 tokens per request: 3.70x"
    found = ask(
        f"vLLM API server version 0.19.1\n{MEMORY}\nGPU KV cache size: 109,216 tokens\n{at_once}\n"
        f"vLLM API server version 0.21.0\n{MEMORY}\nGPU KV cache size: 484,671 tokens\n{at_once}",
        GEMMA, max_num_batched_tokens=8192,
    )  # fmt: skip
    assert found.version_guess == "0.19.1, 0.21.0"
    assert [item.agrees for item in found.figures] == [True] * 6
    assert "several_starts" in remarks(found)
    assert found.remarks[0].params["lines"] == "1–4, 5–"
    assert found.settings["version"] == "0.21.0"
    assert {line[:8] for line in found.formulas} == {"start 1:", "start 2:"}


def test_two_lengths() -> None:
    """Another longest request is another start, with its own command before it."""
    found = ask(
        f"vllm serve {LLAMA} --max-model-len 65536 -tp 1\n{MEMORY}\n"
        "GPU KV cache size: 327,680 tokens\n"
        "Maximum concurrency for 65,536 tokens per request: 5.00x\n"
        f"vllm serve {LLAMA} --max-model-len 131072 --kv-cache-dtype fp8\n{MEMORY}\n"
        "GPU KV cache size: 655,360 tokens\n"
        "Maximum concurrency for 131,072 tokens per request: 5.00x", LLAMA,
    )  # fmt: skip
    assert [item.agrees for item in found.figures] == [True] * 6
    assert found.settings["kv_cache_dtype"] == "fp8"
    assert found.inferred.get("kv_cache_dtype") is None


def test_a_refusal_and_a_start() -> None:
    """A length that was too much, and the next try: both keep their own figures."""
    found = ask(
        "vLLM API server version 0.11.0\nAvailable KV cache memory: 8.00 GiB\n"
        "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache"
        " is needed, which is larger than the available KV cache memory (8.00 GiB).\n"
        "vLLM API server version 0.11.0\nAvailable KV cache memory: 8.00 GiB\n"
        "GPU KV cache size: 65,536 tokens\n"
        "Maximum concurrency for 32,768 tokens per request: 2.00x", LLAMA,
    )  # fmt: skip
    names = [item.name for item in found.figures]
    assert names.count("needed_memory") == 1
    assert [item.agrees for item in found.figures if item.name != "available_memory"] == [True] * 3
    assert found.settings["max_model_len"] == 32_768


POOL = f"{MEMORY}\nGPU KV cache size: 327,680 tokens"


@pytest.mark.parametrize(
    "log",
    [
        # Two workers, two replicas, a version named in a list of packages behind the log.
        f"{POOL}\n{POOL}",
        (
            f"vLLM API server version 0.11.0\n{POOL}\n"
            "(EngineCore_DP1 pid=2) Initializing a V1 LLM engine (v0.11.0)"
        ),
        f"vLLM API server version 0.11.0\n{POOL}\nvllm==0.10.2",
        f"the table says vllm 0.9.2\nvLLM API server version 0.11.0\n{POOL}",
        (
            "vLLM API server version 0.11.0\n"
            f"(EngineCore_DP0 pid=1) Initializing a V1 LLM engine (v0.11.0)\n{POOL}\n"
            f"(EngineCore_DP1 pid=2) Initializing a V1 LLM engine (v0.11.0)\n{POOL}"
        ),
    ],
)
def test_one_start(log: str) -> None:
    """Ranks, replicas and other words about a release make no second start."""
    assert "several_starts" not in remarks(ask(log, LLAMA))


def test_more_starts_than_anyone_pastes() -> None:
    """Beyond seven boundaries the log is read as one, so that the work stays bounded."""
    log = "\n".join(f"vLLM API server version 0.{minor}.0\n{POOL}" for minor in range(20, 33))
    assert "several_starts" not in remarks(ask(log, LLAMA))
