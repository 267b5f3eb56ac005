"""What vLLM's lines mean, why two of them differ, and what to change, worked out by hand.

A block of Llama 3.1 8B is 16 tokens in 32 layers of 8 heads, 128 wide, 16 bits each of K and V:
2,097,152 B. 40 GiB are 20,480 of them, which are 327,680 tokens.
"""

from __future__ import annotations

import pytest

from app.domain.errors import DomainError
from tests.engines.logs.asking import advice, ask, figure_of, reasons, remarks, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
MEMORY = "Available KV cache memory: 40.00 GiB"
TOKENS = "GPU KV cache size: 327,680 tokens"
AT_ONCE = "Maximum concurrency for 131,072 tokens per request: 2.50x"


def test_three_lines_of_one_model() -> None:
    """Memory over a block gives blocks, blocks give tokens, tokens over a length the last line."""
    found = ask(f"{MEMORY}\n{TOKENS}\n{AT_ONCE}", LLAMA)
    assert verdicts(found) == {
        "available_memory": True, "kv_cache_tokens": True, "max_concurrency": True,
    }  # fmt: skip
    assert figure_of(found, "available_memory").computed == "40.00 GiB = 20,480 × 2,097,152 B"
    assert figure_of(found, "available_memory").interval == (42_944_304_251, 42_955_041_669)
    assert figure_of(found, "kv_cache_tokens").computed == "327,680 tokens"
    assert not found.disagrees


@pytest.mark.parametrize("tokens", ["327,679", "300,000", "163,840,000", "1"])
def test_a_figure_that_no_setting_gives(tokens: str) -> None:
    """Tokens that no ranks and no format make of the memory disagree, with the difference."""
    found = ask(f"{MEMORY}\n{TOKENS.replace('327,680', tokens)}", LLAMA)
    item = figure_of(found, "kv_cache_tokens")
    assert item.agrees is False
    assert item.difference.endswith(" tokens")
    assert [note.code for note in item.reasons] == ["not_reproduced"]
    assert found.disagrees


@pytest.mark.parametrize(
    ("tokens", "inferred"),
    [
        ("655,360", {"kv_cache_dtype": "fp8"}),
        ("655,360", {"tensor_parallel_size": 2}),
        ("1,310,720", {"tensor_parallel_size": 4}),
    ],
)
def test_what_only_the_figures_show(tokens: str, inferred: dict[str, object]) -> None:
    """Twice the tokens are another format or another rank; what is said decides between them."""
    one_rank: dict[str, object] = {"tensor_parallel_size": 1}
    said = one_rank if "kv_cache_dtype" in inferred else {"kv_cache_dtype": "auto"}
    found = ask(f"{MEMORY}\n{TOKENS.replace('327,680', tokens)}", LLAMA, **said)
    assert figure_of(found, "kv_cache_tokens").agrees
    assert inferred.items() <= found.inferred.items()


def test_the_smallest_rank_makes_the_pool() -> None:
    """A rank with more memory than the pool takes is said to have some to spare."""
    found = ask(
        "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens",
        "Qwen/Qwen3-235B-A22B", tensor_parallel_size=4,
    )  # fmt: skip
    assert figure_of(found, "available_memory").difference == "0.09 GiB"
    assert reasons(found, "available_memory") == {"smallest_rank", "smallest_rank_unseen"}
    assert figure_of(found, "kv_cache_tokens").interval is None
    assert "per_rank" in remarks(found)


def test_a_line_of_groups_understates() -> None:
    """Until 0.20.0 tokens are blocks over groups: half of what concurrency times length says."""
    found = ask(
        "GPU KV cache size: 129,472 tokens\n"
        "Maximum concurrency for 262,144 tokens per request: 1.97x", "Qwen/Qwen3.5-2B",
    )  # fmt: skip
    assert set(verdicts(found).values()) == {True}
    said = figure_of(found, "kv_cache_tokens").reasons
    assert any("understates" in note.text for note in said)


# Without a model


def test_two_lines_alone() -> None:
    """Without a model the lines are held against each other, and the model is asked for."""
    found = ask(f"{TOKENS}\n{AT_ONCE}")
    assert reasons(found, "kv_cache_tokens") == {"two_lines_agree", "no_constant", "no_model"}
    assert verdicts(found) == {"kv_cache_tokens": True, "max_concurrency": True}
    assert {note.code for note in found.missing} == {"no_model", "no_memory_line"}


def test_two_lines_that_contradict_each_other() -> None:
    """Lines that no rule brings together have no verdict without a model, and say so."""
    found = ask(f"{TOKENS}\n{AT_ONCE.replace('2.50', '3.50')}")
    assert set(verdicts(found).values()) == {None}
    assert "lines_contradict" in reasons(found, "max_concurrency")


def test_what_a_token_would_take() -> None:
    """Memory over tokens leaves a narrow span for a token's bytes: 131,072 of Llama's are in it."""
    found = ask(f"{MEMORY}\n{TOKENS}")
    assert found.implied_bytes_per_token is not None
    low, high = found.implied_bytes_per_token
    assert low < 131_072 < high
    assert high - low < 64


# Refusals


def test_a_length_that_does_not_fit() -> None:
    """62 GiB are needed and 48.66 there: the longest that fits, and what else would do."""
    found = ask(
        "Available KV cache memory: 48.66 GiB\nTo serve at least one request with the models's max"
        " seq len (262144), (62.00 GiB KV cache is needed, which is larger than the available KV"
        " cache memory (48.66 GiB). Based on the available memory, the estimated maximum model"
        " length is 205728.",
        "Qwen/Qwen3-Coder-480B-A35B-Instruct", data_parallel_size=8,
    )  # fmt: skip
    assert figure_of(found, "needed_memory").computed == "62.00 GiB = 66,571,993,088 B"
    assert figure_of(found, "estimated_length").agrees
    assert "dp_not_divide" in remarks(found)
    changes = {item.change.code: item.change.text for item in found.advice}
    assert changes["max_model_len"] == "--max-model-len 205728"
    assert changes["more_memory"].startswith("13.34 GiB more")
    assert changes["tensor_for_data"] == "--tensor-parallel-size 8 --data-parallel-size 1"
    assert "needs 7.75 GiB" in advice(found)["tensor_for_data"]


def test_stages_are_charged_with_all_layers() -> None:
    """0.15 asked each of two stages for all 48 layers: 24 GiB where they hold 8 and 16."""
    found = ask(
        "To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache"
        " is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the"
        " available memory, the estimated maximum model length is 34736.",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct", pipeline_parallel_size=2,
        layers_per_stage=[16, 32], version="0.15.1",
    )  # fmt: skip
    item = figure_of(found, "needed_memory")
    assert item.agrees
    assert any("PP0 8.00 GiB, PP1 16.00 GiB" in note.text for note in item.reasons)


def test_tokens_that_can_be_stored() -> None:
    """The first engine's error gives tokens; 7,344 of half a MiB are 3.59 GiB, and no constant."""
    found = ask(
        "The model's max seq len (32768) is larger than the maximum number of tokens that can be"
        " stored in KV cache (7344).", "Qwen/Qwen1.5-7B-Chat",
    )  # fmt: skip
    item = figure_of(found, "stored_tokens")
    assert (item.agrees, item.computed) == (None, "3.59 GiB of memory")
    assert "never_a_constant" in reasons(found, "stored_tokens")
    assert {item.change.text for item in found.advice} >= {"--max-model-len 7344"}
    assert "profile_batch" in remarks(found)


def test_a_state_block_for_each_sequence() -> None:
    """8.82 GiB are 184 blocks of 51,380,224 B, and 256 sequences want one each."""
    found = ask(
        "Available KV cache memory: 8.82 GiB\nRuntimeError: max_num_seqs (256) exceeds available"
        " Mamba cache blocks (184). Each decode sequence requires one Mamba cache block",
        "Qwen3.8-27B", kv_cache_dtype="fp8",
    )  # fmt: skip
    assert figure_of(found, "state_blocks").agrees
    changes = {item.change.code: item.change.text for item in found.advice}
    assert changes["max_num_seqs"] == "--max-num-seqs 184"
    assert advice(found)["max_num_seqs"].endswith("72 of the 256 asked for are too many")
    assert reasons(found, "available_memory") == {"measured", "pool_of_error"}
    assert changes["more_memory"].startswith("3.45 GiB more")
    assert "256 blocks of 51,380,224 B" in advice(found)["more_memory"]


def test_nothing_left_for_the_cache() -> None:
    """A negative memory leads to what is short, and to what one request takes besides."""
    found = ask(
        "Model loading took 65.9651 GiB\nAvailable KV cache memory: -2.14 GiB\n"
        "No available memory for the cache blocks.", "openai/gpt-oss-120b",
    )  # fmt: skip
    assert reasons(found, "available_memory") == {"nothing_left"}
    assert "2.14 GiB to have anything left" in advice(found)["more_memory"]
    assert "smaller_profile" in advice(found)


def test_nothing_left_without_a_figure() -> None:
    """The error alone says what one request takes, and that nothing says how much is short."""
    found = ask("No available memory for the cache blocks.\nModel loading took 14.99 GiB", LLAMA)
    assert advice(found)["more_memory"].startswith("16.00 GiB are what one request")


def test_out_of_memory_elsewhere() -> None:
    """Two GiB were asked for and 1.21 free: 0.79 GiB are 0.034 of a card of 23.58 GiB."""
    found = ask(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
        " capacity of 23.58 GiB of which 1.21 GiB is free.\n"
        "Available KV cache memory: 6.51 GiB\nGPU KV cache size: 42,656 tokens", "Qwen/Qwen3-14B",
    )  # fmt: skip
    assert "0.79 GiB more" in advice(found)["lower_utilization"]
    (change,) = [item.change for item in found.advice if item.change.code == "lower_utilization"]
    assert change.text.endswith("0.034")


# Wishes


@pytest.mark.parametrize(
    ("concurrency", "bytes_needed", "effect"),
    [
        (2, 34_359_738_368, "8.00 GiB stay free"),
        (4, 68_719_476_736, "24.00 GiB more than the 40.00 GiB there"),
    ],
)
def test_what_one_wants(concurrency: int, bytes_needed: int, effect: str) -> None:
    """So many requests of a length take so many bytes, which are there or are not."""
    found = ask(f"{MEMORY}\n{TOKENS}", LLAMA, want_concurrency=concurrency)
    (first, *_) = found.advice
    assert first.change.text == f"--kv-cache-memory-bytes {bytes_needed}"
    assert effect in first.effect.text


def test_a_wish_for_one_short_request() -> None:
    """For one request of 1,024 tokens 112 MiB are enough, of 18.78 GiB."""
    found = ask(
        "Available KV cache memory: 18.78 GiB\nGPU KV cache size: 175,808 tokens",
        "Qwen/Qwen3-1.7B", want_context=1024, want_concurrency=1,
    )  # fmt: skip
    (item,) = found.advice
    assert item.change.text == "--kv-cache-memory-bytes 117440512"
    assert "18.67 GiB stay free" in item.effect.text


# Settings and versions


def test_settings_of_the_log_and_of_the_request() -> None:
    """What a request says goes before the log's own word."""
    log = f"vllm serve {LLAMA} --max-model-len 8192\n{MEMORY}\n{TOKENS}"
    assert ask(log, LLAMA).settings["max_model_len"] == 8_192
    assert ask(log, LLAMA, max_model_len=4_096).settings["max_model_len"] == 4_096


@pytest.mark.parametrize(
    ("name", "value"),
    [("no_such_setting", 1), ("max_model_len", "long"), ("version", "7"), ("block_size", -1)],
)
def test_a_wrong_setting_is_named(name: str, value: object) -> None:
    """A setting that the engine does not have, or whose value is wrong, is refused by name."""
    with pytest.raises(DomainError) as refused:
        ask(f"{MEMORY}\n{TOKENS}", LLAMA, **{name: value})
    assert refused.value.field[0] == name


def test_a_release_between_two() -> None:
    """A candidate's own rules are not known: those before it are taken, and that is said."""
    found = ask(f"vLLM API server version 0.11.1rc6.dev210\n{MEMORY}\n{TOKENS}", LLAMA)
    assert (found.version_guess, found.version_used) == ("0.11.1rc6.dev210", "0.11.0")
    assert found.assumptions[0].code == "release_between"
    exact = ask(f"vLLM API server version 0.11.0\n{MEMORY}\n{TOKENS}", LLAMA)
    assert "release_between" not in {note.code for note in exact.assumptions}


def test_a_draft_that_is_not_planned() -> None:
    """A draft model of its own has layers that no line names; that is said."""
    found = ask(
        f"vllm serve {LLAMA} --speculative-config "
        """'{"method": "eagle", "model": "x/y", "num_speculative_tokens": 3}'"""
        f"\n{TOKENS}", LLAMA,
    )  # fmt: skip
    assert "draft_model" in {note.code for note in found.missing}


def test_blocks_of_the_first_engine() -> None:
    """2,360 blocks are 37,760 tokens: 4.61 requests of 8,192; 4 GiB of swap show a block's size."""
    found = ask(
        "# GPU blocks: 2360, # CPU blocks: 2048\n"
        "Maximum concurrency for 8192 tokens per request: 4.61x", LLAMA,
    )  # fmt: skip
    assert verdicts(found) == {"gpu_blocks": True, "cpu_blocks": True, "max_concurrency": True}
    assert "worst_case" in reasons(found, "max_concurrency")
    assert "counters_cumulative" in remarks(found)
    assert len([item for item in found.figures if item.name == "gpu_blocks"]) == 1
