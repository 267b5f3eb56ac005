"""What a vLLM start is advised to change: no more than the release can do, and what that makes."""

from __future__ import annotations

import pytest

from tests.engines.logs.asking import advice, ask, remarks

CODER = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
TOO_LITTLE = (
    "To serve at least one request with the models's max seq len (262144), (62.00 GiB KV cache is"
    " needed, which is larger than the available KV cache memory (48.66 GiB)."
)
STORED = (
    "The model's max seq len (32768) is larger than the maximum number of tokens that can be"
    " stored in KV cache (7344)."
)
KIMI = (
    "Available KV cache memory: 2.30 GiB\nGPU KV cache size: 75,840 tokens\n"
    "Maximum concurrency for 120,000 tokens per request: 2.48x"
)


# More ranks and smaller batches leave more memory than there was


def test_more_ranks_leave_more_memory() -> None:
    """With half the heads 14,688 tokens fit in today's memory, and the weights halve besides."""
    text = advice(ask(STORED, "Qwen/Qwen1.5-7B-Chat"))["tensor_parallel_size"]
    assert text.startswith("on 2 devices in all, one request then needs 8.00 GiB, more than the")
    assert "weights shrink too" in text
    assert text.endswith("at least 14,688 tokens fit")
    assert "still too much" not in text


def test_a_smaller_batch_leaves_more_memory() -> None:
    """The profile run's activations are not in the plan: what fits beside them is the least."""
    found = ask(
        "Available KV cache memory: 1.71 GiB\nTo serve at least one request with the models's max"
        " seq len (131072), (4.54 GiB KV cache is needed, which is larger than the available KV"
        " cache memory (1.71 GiB).", "openai/gpt-oss-120b", max_num_batched_tokens=1024,
    )  # fmt: skip
    text = advice(found)["max_num_batched_tokens"]
    assert "activations shrink too" in text
    assert text.endswith("at least 48,992 tokens fit")


@pytest.mark.parametrize(
    ("replicas", "change", "devices"),
    [
        (8, "--tensor-parallel-size 8 --data-parallel-size 1", 8),
        (64, "--tensor-parallel-size 8 --data-parallel-size 8", 64),
        (3, None, 6),
    ],
)
def test_replicas_turn_into_ranks(replicas: int, change: str | None, devices: int) -> None:
    """On the same devices, as far as 8 heads divide; else twice as many devices are named."""
    found = ask(TOO_LITTLE, CODER, data_parallel_size=replicas)
    changes = {item.change.code: item.change.text for item in found.advice}
    assert changes.get("tensor_for_data") == change
    code = "tensor_parallel_size" if change is None else "tensor_for_data"
    assert advice(found)[code].startswith(f"on {devices} devices in all")
    assert ("at least 6.28x" in advice(found)[code]) is (change is not None)


# What a release has


@pytest.mark.parametrize(
    ("version", "change"),
    [
        ("0.10.1", "--num-gpu-blocks-override 256"),
        ("0.10.2", "--kv-cache-memory-bytes 536870912"),
    ],
)
def test_a_pool_is_set_as_the_release_can(version: str, change: str) -> None:
    """4,096 tokens of 131,072 B are half a GiB, 256 blocks; bytes may be set since 0.10.2."""
    found = ask(
        "GPU KV cache size: 32,768 tokens\nMaximum concurrency for 4,096 tokens per request: 8.00x",
        "meta-llama/Llama-3.1-8B", version=version,
    )  # fmt: skip
    assert change in {item.change.text for item in found.advice}


def test_a_wish_is_set_as_the_release_can() -> None:
    """29,000 tokens are 1,813 blocks of 16; the first engine knows no bytes."""
    found = ask("# GPU blocks: 1478, # CPU blocks: 2048", "meta-llama/Llama-3.1-8B",
                want_context=29_000, version="0.6.4")  # fmt: skip
    changes = {item.change.text for item in found.advice}
    assert "--num-gpu-blocks-override 1813" in changes
    assert not any("kv-cache-memory-bytes" in change for change in changes)


# Positions shared out


def test_positions_of_several_groups_are_not_shared_out() -> None:
    """The engine refuses context ranks beside states and windows: neither advised nor named."""
    found = ask(KIMI, "moonshotai/Kimi-Linear-48B-A3B-Instruct", tensor_parallel_size=2)
    assert "kv_cache_memory_bytes" in advice(found)
    assert "decode_context_parallel_size" not in advice(found)
    assert "latent_replicated_beside_others" in remarks(found)
    assert "latent_replicated" not in remarks(found)


def test_positions_of_one_latent_are_shared_out() -> None:
    """61 like layers of latents: eight ranks hold eight times the tokens."""
    found = ask(
        "GPU KV cache size: 715,072 tokens\n"
        "Maximum concurrency for 131,072 tokens per request: 5.46x",
        "moonshotai/Kimi-K2-Instruct", tensor_parallel_size=8,
    )  # fmt: skip
    assert advice(found)["decode_context_parallel_size"].startswith("43.6")
    assert "latent_replicated" in remarks(found)


# A newer release


@pytest.mark.parametrize(
    ("there", "code"), [("3.18", "own_layers_still_refused"), ("20.0", "own_layers_alone")]
)
def test_a_newer_release_may_still_refuse(there: str, code: str) -> None:
    """Its own layers are 16 GiB on the second stage: too much for 3.18 GiB, not for 20."""
    found = ask(
        "To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache"
        f" is needed, which is larger than the available KV cache memory ({there} GiB).",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct", pipeline_parallel_size=2, layers_per_stage=[16, 32],
        version="0.15.1",
    )  # fmt: skip
    (effect,) = [item.effect for item in found.advice if item.change.code == "newer_release"]
    assert effect.code == code
    assert "PP0 8.00 GiB, PP1 16.00 GiB" in effect.text
    assert ("with 3.18 GiB on each still too much" in effect.text) is (there == "3.18")
