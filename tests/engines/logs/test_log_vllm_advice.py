"""What a vLLM start is advised to change: no more than the release can do, and what that makes."""

from __future__ import annotations

import pytest

from app.domain.state import Layer, ModelState
from app.engines.logs import Explained
from app.engines.model import EngineModel
from tests.engines.logs.asking import advice, ask, figure_of, reasons, remarks

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


# The first engine's profile run


def _stored(length: int, version: str | None = None) -> Explained:
    banner = "" if version is None else f"vLLM API server version {version}\n"
    return ask(banner + STORED.replace("32768", str(length)), "Qwen/Qwen1.5-7B-Chat")


@pytest.mark.parametrize(
    ("length", "version", "code"),
    [
        (8192, None, "profile_batch"),
        (32_768, "0.6.3", "profile_batch"),
        (32_769, None, "profile_batch_chunked"),
        (32_769, "0.6.0", "profile_batch_chunked"),
        (32_769, "0.5.3", "profile_batch"),
    ],
)
def test_small_batches_came_on_above_a_length(length: int, version: str | None, code: str) -> None:
    """Above 32,768 tokens chunked prefill came on by itself, since 0.6.0: said there alone."""
    found = remarks(_stored(length, version))
    assert {name for name in found if name.startswith("profile_batch")} == {code}


@pytest.mark.parametrize(("length", "named"), [(8192, False), (29_000, True), (32_769, False)])
def test_a_profile_run_in_chunks(length: int, named: bool) -> None:  # noqa: FBT001 - a table's cell
    """Where a whole request was profiled at once, chunks of 512 leave more for the cache."""
    changes = {item.change.code: item.change.text for item in _stored(length).advice}
    assert ("chunked_prefill" in changes) is named
    if named:
        assert changes["chunked_prefill"].endswith("--max-num-batched-tokens 512")
        assert "instead of 29,000" in advice(_stored(length))["chunked_prefill"]


def test_no_chunks_beside_windows_or_a_batch_that_is_set() -> None:
    """The first engine kept chunks off where a model has windows; a batch that is set stands."""
    assert "chunked_prefill" not in advice(ask(STORED, "mistralai/Mistral-7B-v0.1"))
    found = ask(STORED, "Qwen/Qwen1.5-7B-Chat", max_num_batched_tokens=2048)
    assert "chunked_prefill" not in advice(found)


# What a guess and a sentence claim


@pytest.mark.parametrize(
    ("log", "guess"),
    [
        (STORED, "≤ 0.10.2"),
        (f"INFO 07-01 config.py:1] a\n{STORED}", "≤ 0.10.2"),
        ("# GPU blocks: 5691\nMaximum concurrency for 8192 tokens per request: 11.12x",
         "0.6.3–0.7.3"),
    ],
)  # fmt: skip
def test_the_oldest_known_release_is_not_the_first(log: str, guess: str) -> None:
    """0.6.0 is the oldest that is known; lines that older ones print too are of no span."""
    assert ask(log).version_guess == guess


def test_a_figure_that_cannot_be_checked_contradicts_nothing() -> None:
    """The pool is that of a rank no line is of: its tokens are unchecked, and none disagrees."""
    found = ask(
        "the rest of the memory reserved for KV Cache is 8.69GiB\n"
        + STORED.replace("32768", "131072").replace("7344", "81536"),
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    )
    assert {item.agrees for item in found.figures} == {True, None}
    texts = [note.text for item in found.figures for note in item.reasons]
    assert any("not every other could be checked" in text for text in texts)
    assert not any("not every other does" in text for text in texts)


def test_no_line_is_named_that_is_not_there() -> None:
    """318 blocks of 4 groups: what fits is of no concurrency line, where there is none."""
    found = ask("GPU KV cache size: 75,840 tokens", "moonshotai/Kimi-Linear-48B-A3B-Instruct",
                version="0.17.1", tensor_parallel_size=2, max_model_len=120_000)  # fmt: skip
    texts = [note.text for note in figure_of(found, "kv_cache_tokens").reasons]
    assert any("tokens of full-length requests fit" in text for text in texts)
    assert not any("concurrency line" in text for text in texts)


# What needs no model


@pytest.mark.parametrize(
    ("log", "name", "code"),
    [
        ("Maximum concurrency for 8192 tokens per request: 4.61x", "max_concurrency", "worst_case"),
        ("GPU KV cache size: 43,328 tokens", "kv_cache_tokens", "no_constant"),
        (STORED, "stored_tokens", "no_constant"),
    ],
)
def test_a_figure_has_a_meaning_without_a_model(log: str, name: str, code: str) -> None:
    """What a line counts, and that it is no constant, is said of any model."""
    assert reasons(ask(log), name) == {code, "no_model"}


# Memory alone


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("Available KV cache memory: 0.20 GiB", """'{"image": 1, "video": 0}'"""),
        ("the rest of the memory reserved for KV Cache is 0.20GiB", "'image=1,video=0'"),
    ],
)
def test_memory_alone_that_holds_no_request(line: str, limit: str) -> None:
    """128,000 tokens of 57,344 B are 6.84 GiB: images of the profile run may have taken them."""
    found = ask(line, "Qwen/Qwen2.5-VL-7B-Instruct")
    effects = advice(found)
    assert effects["more_memory"].startswith("6.84 GiB are what one request of 128,000 tokens")
    assert "images and videos" in effects["limit_inputs"]
    changes = {item.change.code: item.change.text for item in found.advice}
    assert changes["limit_inputs"] == f"--limit-mm-per-prompt {limit}"


@pytest.mark.parametrize(
    ("memory", "model"),
    [("9.00", "Qwen/Qwen2.5-VL-7B-Instruct"), ("0.20", "Qwen/Qwen2.5-7B-Instruct")],
)
def test_inputs_are_limited_where_they_take_too_much(memory: str, model: str) -> None:
    """Not where a request fits, nor for a model that takes text alone."""
    found = ask(f"Available KV cache memory: {memory} GiB", model)
    assert "limit_inputs" not in advice(found)
    assert ("more_memory" in advice(found)) is (memory == "0.20")


@pytest.mark.parametrize("version", ["0.10.1", "0.33.0"])
def test_a_model_that_keeps_nothing_needs_no_pool(version: str) -> None:
    """No layer keeps a cache: no block is there to count in, and nothing is advised."""
    nothing = EngineModel(name="nothing", state=ModelState.of_layers([Layer(states=())]))
    found = ask("GPU KV cache size: 42,656 tokens", nothing, want_context=4096, version=version)
    assert found.version_used is not None
    assert found.advice == ()
