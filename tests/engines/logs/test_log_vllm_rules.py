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


def test_what_a_request_is_made_of() -> None:
    """17 layers, of which one is of multi-token prediction, and six blocks a state in three groups.

    Six: one runs, one more for prefix caching, four speculated tokens; on a device without the
    checkpoints of Hopper.
    """
    found = ask(
        "To serve at least one request with the model's max seq len (131072), 9.5 GiB KV cache is"
        " needed, which is larger than the available KV cache memory (6.91 GiB).",
        "Qwen/Qwen3.8-27B", num_speculative_tokens=4, enable_prefix_caching=True, max_num_seqs=1,
        block_size=64, device_capability="8.0",
    )  # fmt: skip
    texts = {note.code: note.text for note in figure_of(found, "needed_memory").reasons}
    assert "3 × (6 × 16 mamba) + 158 × 17 full_attention" in texts["request_parts"]
    assert texts["draft_in_group"].startswith("1 of the 17 layers")
    assert texts["state_blocks_each"].startswith("a state takes 6 blocks a group: 1 that runs, 1")
    assert "draft_passed_over" not in {note.code for note in found.assumptions}


# Lines that nothing bounds

ALONE = "GPU KV cache size: 37,760 tokens"


@pytest.mark.parametrize(
    ("model", "memory"),
    [("meta-llama/Llama-3.1-70B", "11.52 GiB"), ("deepseek-ai/DeepSeek-V3", "2.47 GiB")],
)
def test_tokens_alone_agree_with_nothing(model: str, memory: str) -> None:
    """2,360 blocks are some memory of any model: what it is, and no verdict."""
    item = figure_of(ask(ALONE, model), "kv_cache_tokens")
    assert (item.agrees, item.computed) == (None, f"{memory} of memory")
    assert [note.code for note in item.reasons] == ["pool_takes", "blocks_times_size"]


def test_tokens_that_no_blocks_make() -> None:
    """37,761 is no multiple of 16: the two beside it are named."""
    found = ask(ALONE.replace("760", "761"), "meta-llama/Llama-3.1-70B")
    item = figure_of(found, "kv_cache_tokens")
    assert (item.agrees, item.computed) == (False, "37,760 or 37,776 tokens")
    assert [note.code for note in item.reasons] == ["no_blocks_print_it"]


def test_a_concurrency_alone() -> None:
    """4.61 requests of 8,192 tokens take 2,358 to 2,362 blocks of 2 MiB."""
    found = ask(
        "Maximum concurrency for 8,192 tokens per request: 4.61x", "meta-llama/Llama-3.1-8B"
    )
    item = figure_of(found, "max_concurrency")
    assert (item.agrees, item.computed) == (None, "4.61 GiB of memory")


def test_a_concurrency_beside_tokens_names_its_length() -> None:
    """325,335 tokens over 9.93 are between 32,747 and 32,779: one multiple of 1,024 is 32,768."""
    found = ask("fp8_per_token_head: KV pool 325,335 tokens\n9.93x", "google/gemma-4-26B-A4B-it")
    assert figure_of(found, "max_concurrency").printed == "9.93x of 32,768 tokens"
    assert figure_of(found, "max_concurrency").agrees


@pytest.mark.parametrize("lines", ["9.93x\n8.00x", "x", "0.00x"])
def test_a_bare_figure_that_says_nothing(lines: str) -> None:
    """Two of them, or one that is no concurrency, are not read."""
    found = ask(f"KV pool 325,335 tokens\n{lines}", "google/gemma-4-26B-A4B-it")
    assert {item.name for item in found.figures} == {"kv_cache_tokens"}


# Ranks that print their own


def test_each_worker_prints_its_own_pool() -> None:
    """3.30 GiB are 2,703 blocks, 43,248 tokens, and 3.26 are 42,720: both lines are right."""
    found = ask(
        "Available KV cache memory: 3.30 GiB\nAvailable KV cache memory: 3.26 GiB\n"
        "GPU KV cache size: 43,248 tokens\n"
        "Maximum concurrency for 8,192 tokens per request: 5.28x\n"
        "GPU KV cache size: 42,720 tokens\n"
        "Maximum concurrency for 8,192 tokens per request: 5.21x",
        "Qwen/Qwen3-14B", tensor_parallel_size=2, version="0.9.2",
    )  # fmt: skip
    assert [item.agrees for item in found.figures] == [True] * 6
    first, last = [item for item in found.figures if item.name == "kv_cache_tokens"]
    assert next(note.code for note in first.reasons) == "rank_prints_own"
    assert last.computed == "42,720 tokens"
    assert found.formulas[-1] == "blocks = 2670, by the printed figures"


def test_a_line_that_is_no_rank_s_own() -> None:
    """A larger figure that no printed memory gives is not checked."""
    found = ask(
        "Available KV cache memory: 3.26 GiB\nGPU KV cache size: 50,000 tokens\n"
        "GPU KV cache size: 42,720 tokens", "Qwen/Qwen3-14B", tensor_parallel_size=2,
    )  # fmt: skip
    assert [item.agrees for item in found.figures] == [True, None, True]


def test_the_rank_that_decides_may_be_in_no_line() -> None:
    """8.69 GiB hold 94,960 tokens of 98,304 B; the pool's 81,536 are another rank's 7.46 GiB."""
    found = ask(
        "the rest of the memory reserved for KV Cache is 8.69GiB\n"
        + REFUSED.replace("32768", "131072").replace("26064", "81536"),
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    )
    assert "smallest_rank_unseen" in reasons(found, "available_memory")
    item = figure_of(found, "stored_tokens")
    assert (item.agrees, item.computed) == (None, "at most 94,960 tokens")
    codes = {note.code for figure in found.figures for note in figure.reasons}
    assert "inferred" not in codes
    assert "inferred_partly" in codes


# What is printed twice, and what is not the cache


def test_a_line_that_overstates() -> None:
    """Whisper's pool over two groups is 215,920; with encoder positions reserved 77,509 fit."""
    found = ask(
        "Available KV cache memory: 16.47 GiB\nGPU KV cache size: 215,920 tokens\n"
        "Maximum concurrency for 448 tokens per request: 173.01x", "openai/whisper-large-v3",
    )  # fmt: skip
    (text,) = [
        note.text
        for note in figure_of(found, "kv_cache_tokens").reasons
        if note.code == "blocks_of_one_group"
    ]
    assert "overstates" in text
    assert "understates" not in text
    assert "77,509" in text


def test_the_memory_of_a_refusal_is_one_figure() -> None:
    """A refusal repeats the memory that its line already gave."""
    refusal = (
        "To serve at least one request with the models's max seq len (262144), (62.00 GiB KV cache"
        " is needed, which is larger than the available KV cache memory (48.66 GiB)."
    )
    model = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
    for log in (refusal, f"Available KV cache memory: 48.66 GiB\n{refusal}"):
        names = [item.name for item in ask(log, model).figures]
        assert names.count("available_memory") == 1


def test_a_budget_whose_terms_leave_another_sum() -> None:
    """71.24 less 14.99, 0.14 and 9.37 leave 46.74 GiB, not the 40.00 printed: 6.74 below."""
    found = ask(
        "the current vLLM instance can use total_gpu_memory (79.15GiB) x gpu_memory_utilization"
        " (0.90) = 71.24GiB\nmodel weights take 14.99GiB; non_torch_memory takes 0.14GiB; PyTorch"
        " activation peak memory takes 9.37GiB; the rest of the memory reserved for KV Cache is"
        " 40.00GiB.", "meta-llama/Llama-3.1-8B",
    )  # fmt: skip
    item = figure_of(found, "budget")
    assert (item.agrees, item.difference) == (False, "-6.74 GiB")
    assert [note.code for note in item.reasons] == ["budget_differs", "budget"]


def test_two_lines_that_differ_show_no_contradiction() -> None:
    """Without a model the quotient of two lines that count different things is not put beside."""
    found = ask(
        "GPU KV cache size: 75,840 tokens\nMaximum concurrency for 120,000 tokens per request:"
        " 2.48x"
    )
    item = figure_of(found, "max_concurrency")
    assert (item.agrees, item.computed) == (None, None)
    assert "297,600 tokens of such requests fit, not 75,840" in item.reasons[0].text


# Errors alone

NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 23.58 GiB of which 1.21 GiB is free."
)
NO_ROOM_BEFORE = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB (GPU 0; 23.69"
    " GiB total capacity; 22.10 GiB already allocated; 105.06 MiB free; 22.50 GiB reserved)"
)


@pytest.mark.parametrize(
    ("log", "printed", "short", "share"),
    [
        (NO_ROOM, "2.00 GiB asked for, 1.21 GiB free", "0.79 GiB", "0.034"),
        (NO_ROOM_BEFORE, "594.00 MiB asked for, 105.06 MiB free", "0.48 GiB", "0.021"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "2.00 GiB asked for", "", None),
    ],
)
@pytest.mark.parametrize("engine", [None, "vllm"])
def test_an_error_of_memory_alone(
    log: str, printed: str, short: str, share: str | None, engine: str | None
) -> None:
    """What was asked for and free is a figure, whoever asked; what is short is advice."""
    found = ask(log, None, engine=engine)
    item = figure_of(found, "failed_allocation")
    assert (item.printed, item.difference, item.agrees) == (printed, short, None)
    missing = {note.code for note in found.missing}
    assert missing.isdisjoint({"no_figures", "unknown_engine"})
    assert ("engine_of_error" in missing) is (engine is None)
    said = " ".join(f"{item.change.text} {item.effect.text}" for item in found.advice)
    assert (share is None) is (not said)
    assert share is None or share in said


def test_no_memory_left_is_a_figure_too() -> None:
    """The error alone says that nothing is left, and which line says how much is short."""
    found = ask("ValueError: No available memory for the cache blocks.")
    assert reasons(found, "available_memory") == {"nothing_is_left"}
    assert figure_of(found, "available_memory").printed == "none"
    assert "no_figures" not in {note.code for note in found.missing}
