"""What a vLLM log means by the rules of its release, worked out by hand.

Mistral 7B v0.1 keeps 131,072 B a token in 32 layers of 8 heads, 128 wide, and its layers see 4,096
tokens back; the first engine's blocks hold all of them whatever a layer sees.
"""

from __future__ import annotations

import pytest

from app.engines.logs.vllm.era import era_of
from tests.engines.logs.asking import advice, ask, figure_of, reasons, remarks

MISTRAL = "mistralai/Mistral-7B-v0.1"
REFUSED = (
    "The model's max seq len (32768) is larger than the maximum number of tokens that can be"
    " stored in KV cache (26064)."
)


# The first engine


@pytest.mark.parametrize("version", [None, "0.6.6", "0.7.3", "0.8.5", "0.10.2"])
def test_the_first_engine_keeps_windows_in_full(version: str | None) -> None:
    """32,768 tokens need 4.00 GiB; 3.18 are there, 0.82 short, whatever the batch; fp8 halves."""
    settings = {} if version is None else {"version": version}
    found = ask(REFUSED, MISTRAL, **settings)
    changes = {item.change.code: item.change.text for item in found.advice}
    assert changes["more_memory"].startswith("0.82 GiB more")
    assert advice(found)["more_memory"].startswith("4.00 GiB are what one request")
    assert "needs 2.00 GiB" in advice(found)["kv_cache_dtype"]
    assert "1.59x" in advice(found)["kv_cache_dtype"]
    assert "max_num_batched_tokens" not in changes
    (slope,) = [note.text for note in found.remarks if note.code == "slope"]
    assert slope.startswith("a token costs 131,072 B")
    assert "fixed_and_slope" not in remarks(found)


def test_a_window_as_long_as_the_context() -> None:
    """Phi 3 vision keeps 393,216 B a token: 131,072 tokens are 48.00 GiB, to the last block."""
    log = REFUSED.replace("32768", "131072").replace("26064", "50944")
    found = ask(log, "microsoft/Phi-3-vision-128k-instruct")
    assert advice(found)["more_memory"].startswith("48.00 GiB are what one request")
    (slope,) = [note.text for note in found.remarks if note.code == "slope"]
    assert slope.startswith("a token costs 393,216 B")


def test_the_first_engine_inside_a_newer_release() -> None:
    """0.8 to 0.10 still had it: its lines are read by its last rules, and that is said."""
    found = ask(f"vLLM API server version 0.9.2\n{REFUSED}", MISTRAL)
    assert (found.version_guess, found.version_used) == ("0.9.2", "0.7.3")
    assert found.assumptions[0].code == "first_engine"
    assert era_of({}, "0.9.2").releases == ("0.9.2",)


@pytest.mark.parametrize("model", [MISTRAL, "meta-llama/Llama-3.1-8B"])
def test_the_first_engine_assumes_neither_null_block_nor_batch(model: str) -> None:
    """It has no block that is never handed out, and nothing reserves by its batch."""
    codes = {note.code for note in ask(REFUSED, model).assumptions}
    assert codes.isdisjoint({"null_block", "max_num_batched_tokens"})


def test_a_window_is_full_from_some_length_on() -> None:
    """Gemma 3 27B with 8,192 batched tokens, two batches in flight: full from 17,407 tokens on."""
    found = ask(
        "GPU KV cache size: 291,658 tokens, Maximum concurrency for 131,072 tokens per request:"
        " 2.23x", "google/gemma-3-27b-it", version="0.33.0", max_num_batched_tokens=8192,
    )  # fmt: skip
    (text,) = [note.text for note in found.remarks if note.code == "fixed_and_slope"]
    assert text.startswith("from 17,407 tokens on")
    assert "7.976 GiB and 81,920 B a token" in text


# Working


def test_no_pool_is_made_up() -> None:
    """Where no line gives the memory, no formula divides any."""
    found = ask(REFUSED, MISTRAL)
    assert not any("⌊" in line for line in found.formulas)
    assert found.formulas[-1] == "blocks = 1629, by the printed figures"


def test_blocks_come_of_the_printed_memory() -> None:
    """17.385 to 17.395 GiB over a block of 368,640 B, as a refusal prints them."""
    found = ask(
        "To serve at least one request with the models's max seq len (1048576), (22.5 GiB KV cache"
        " is needed, which is larger than the available KV cache memory (17.39 GiB).",
        "mistralai/Mistral-Small-4-119B-2603",
    )  # fmt: skip
    assert found.formulas[-1] == (
        "blocks = ⌊18667001611 to 18677739028 B / 368640 B⌋ = 50637 to 50666"
    )


def test_blocks_of_a_pool() -> None:
    """The interval that the memory leaves, and the number that the tokens line then fixes."""
    found = ask(
        "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens",
        "meta-llama/Llama-3.1-8B",
    )
    assert found.formulas[-2:] == (
        "blocks = ⌊42944304251 to 42955041669 B / 2097152 B⌋ = 20477 to 20482",
        "blocks = 20480, by the printed figures",
    )


# Blocks grown to hold a state

GROWN = (
    "Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba"
    " page size."
)


def test_one_line_of_a_block_is_tried_too() -> None:
    """784 tokens in 16 bits: 1,568 are fp8, which the one line shows; the formula stands beside."""
    found = ask(GROWN, "Qwen/Qwen3.6-27B")
    item = figure_of(found, "attention_block_size")
    assert (item.agrees, item.computed) == (True, "1,568 tokens")
    assert found.inferred["kv_cache_dtype"] == "fp8"
    (formula,) = [note.text for note in item.reasons if note.code == "block_formula"]
    assert formula.endswith("16 × ⌈3207168 B / (16 × 2048 B)⌉ = 1568 tokens")
    assert "no_figures" not in {note.code for note in found.missing}


def test_the_formula_of_a_block_that_is_known() -> None:
    """Two bytes a value: 3,207,168 B over 4,096 B a token, in steps of 16, are 784 tokens."""
    found = ask(GROWN.replace("1568", "784"), "Qwen/Qwen3.6-27B", kv_cache_dtype="auto")
    assert figure_of(found, "attention_block_size").agrees
    assert "block_formula" in reasons(found, "attention_block_size")
    assert found.formulas[0].endswith("16 × ⌈3207168 B / (16 × 4096 B)⌉ = 784 tokens")


# Refusals in the log's own figures


def test_a_refusal_is_told_in_its_own_figures() -> None:
    """6.91 GiB there and 9.5 needed stay so: the block that is never handed out is in neither."""
    found = ask(
        "To serve at least one request with the model's max seq len (131072), 9.5 GiB KV cache is"
        " needed, which is larger than the available KV cache memory (6.91 GiB). Based on the"
        " available memory, the estimated maximum model length is 91520.",
        "Qwen/Qwen3.8-27B", num_speculative_tokens=4, enable_prefix_caching=True, max_num_seqs=1,
        block_size=64,
    )  # fmt: skip
    effects = advice(found)
    assert "6.9" in effects["max_model_len"]
    assert "6.96" not in effects["max_model_len"]
    assert effects["more_memory"].startswith("9.50 GiB are what")
