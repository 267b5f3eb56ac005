"""The lines of llama.cpp, Ollama, SGLang and TensorRT-LLM, worked out by hand.

Llama 3.1 8B keeps 131,072 B a token at 16 bits: 8,192 cells are 1,024 MiB. QwQ 32B keeps 64 layers
of 8 heads, 128 wide: on one of four ranks 32,768 B a token in K and as much in V.
"""

from __future__ import annotations

import pytest

from tests.engines.logs.asking import advice, ask, figure_of, reasons, remarks, verdicts

LLAMA = "meta-llama/Llama-3.1-8B"
SIZE = (
    "llama_kv_cache_unified: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), "
    "K (f16):  512.00 MiB, V (f16):  512.00 MiB"
)


def test_size_and_buffers() -> None:
    """The size line is the whole cache, the buffers are its parts on each device."""
    found = ask(
        f"{SIZE}\nCUDA0 KV buffer size = 512.00 MiB\nCUDA1 KV buffer size = 512.00 MiB", LLAMA
    )
    assert set(verdicts(found).values()) == {True}
    assert reasons(found, "buffer") == {"buffers_sum"}
    assert found.version_guess == "2025-05-25 – 2025-08-20"
    assert remarks(found) >= {"cells_per_stream", "allocated_whole"}


def test_a_size_that_disagrees() -> None:
    """One MiB more than the cells take disagrees, by that MiB."""
    found = ask(SIZE.replace("1024.00", "1025.00"), LLAMA)
    item = figure_of(found, "kv_cache")
    assert (item.agrees, item.difference) == (False, "+1.00 MiB")
    assert found.disagrees


def test_parts_without_a_model() -> None:
    """Without a model K and V are at least held against their sum."""
    found = ask(SIZE)
    assert figure_of(found, "kv_cache").agrees
    assert reasons(found, "kv_cache") == {"parts_add_up", "no_model"}
    wrong = ask(SIZE.replace("1024.00", "1025.00"))
    assert figure_of(wrong, "kv_cache").agrees is False


def test_the_old_line_and_a_wish() -> None:
    """544 MiB of q8_0 are 8,192 cells at 34 bytes for 32 elements; 32,768 cells take four times."""
    found = ask(
        "KV self size  =  544.00 MiB, K (q8_0):  272.00 MiB, V (q8_0):  272.00 MiB",
        LLAMA, want_context=32_768,
    )  # fmt: skip
    assert figure_of(found, "kv_self_size").agrees
    assert found.inferred["n_ctx"] == 8_192
    assert "2,176.00 MiB instead of 544.00 MiB" in advice(found)["ctx_and_parallel"]


def test_a_windowed_cache_has_cells_of_its_own() -> None:
    """128 tokens of window, 512 of the micro-batch, and padding to 256: 768 cells."""
    found = ask(
        "llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), "
        "K (f16): 1536.00 MiB, V (f16): 1536.00 MiB\n"
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells", "openai/gpt-oss-20b",
    )  # fmt: skip
    assert verdicts(found) == {"kv_cache": True, "cells": True}
    assert reasons(found, "cells") >= {"swa_cells"}


def test_recurrent_states_do_not_grow() -> None:
    """36 layers of 24,576 and 524,288 floats: 75.38 MiB whatever the context, which nobody said."""
    found = ask(
        "llama_memory_recurrent: size =   75.38 MiB (     1 cells,  48 layers,  1 seqs), "
        "R (f32):    3.38 MiB, S (f32):   72.00 MiB", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    )  # fmt: skip
    assert figure_of(found, "recurrent_states").agrees
    assert "states_constant" in reasons(found, "recurrent_states")


def test_an_allocation_that_failed() -> None:
    """16 GiB that could not be had: the formats and lengths with which it would take less."""
    found = ask(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 16384.00 MiB on device 0: "
        "cudaMalloc failed: out of memory\nllama_kv_cache: failed to allocate buffer for kv cache\n"
        "llama_context: n_ctx = 131072\nllama_context: n_seq_max = 1", LLAMA,
    )  # fmt: skip
    assert "8,704.00 MiB instead of 16,384.00 MiB" in advice(found)["cache_types"]
    assert "8,192.00 MiB instead of 16,384.00 MiB" in advice(found)["ctx_size"]
    assert "free_memory" in advice(found)


def test_a_header_in_the_log_is_a_model() -> None:
    """Lines of metadata say the layers, so that no model need be named."""
    found = ask(
        "llama_model_loader: - kv   0:   general.architecture str              = llama\n"
        "llama_model_loader: - kv   1:      llama.block_count u32              = 32\n"
        "llama_model_loader: - kv   2:   llama.context_length u32              = 131072\n"
        "llama_model_loader: - kv   3: llama.embedding_length u32              = 4096\n"
        "llama_model_loader: - kv   4: llama.attention.head_count u32          = 32\n"
        "llama_model_loader: - kv   5: llama.attention.head_count_kv u32       = 8\n"
        + SIZE
    )  # fmt: skip
    assert figure_of(found, "kv_cache").agrees
    assert found.model_name == "the log's own header"
    assert found.missing == ()


# SGLang


def test_pools_of_sglang_have_a_spare_page() -> None:
    """46,612 slots of 32,768 B are 1,527,382,016 B, printed as 1.42 GB, which are GiB."""
    found = ask(
        "KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB",
        "Qwen/QwQ-32B", tp_size=4,
    )  # fmt: skip
    assert verdicts(found) == {"k_pool": True, "v_pool": True}
    assert figure_of(found, "k_pool").computed == "1.42 GiB = 1,527,382,016 B"
    assert reasons(found, "k_pool") == {"spare_page"}
    assert "about 93,222 tokens" in advice(found)["sglang_dtype"]


def test_tokens_of_sglang_without_its_memory() -> None:
    """Tokens come from what is free before and after the load; without it they stay unchecked."""
    found = ask(
        "[2025-06-01 10:00:00 TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, "
        "V size: 1.42 GB\n[2025-06-01 10:00:01 TP0] max_total_num_tokens=46611, "
        "max_running_requests=2048, context_len=40960", "Qwen/QwQ-32B", tp_size=4,
    )  # fmt: skip
    item = figure_of(found, "max_total_num_tokens")
    assert (item.agrees, item.rank) == (None, "TP0")
    assert reasons(found, "max_total_num_tokens") == {"no_memory_lines"}


# TensorRT-LLM


def test_pools_of_tensorrt_llm() -> None:
    """7,998 blocks of 64 tokens are 511,872 tokens and 67,092,086,784 B."""
    found = ask(
        "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
        "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 62.48 GiB for max tokens in paged KV cache"
        " (511872).\n[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 7998", LLAMA,
    )  # fmt: skip
    assert verdicts(found) == {"kv_pool": True, "blocks": True}
    assert figure_of(found, "kv_pool").computed == "62.48 GiB = 67,092,086,784 B"
    wrong = ask("[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
                "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 62.48 GiB for max tokens in paged"
                " KV cache (511936).\n"
                "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 7998",
                LLAMA)  # fmt: skip
    assert figure_of(wrong, "blocks").agrees is False


# Ollama


@pytest.mark.parametrize(
    ("printed", "agrees"), [("1.0 GiB", True), ("1.1 GiB", False), ("1024.0 MiB", True)]
)
def test_estimates_of_ollama(printed: str, agrees: bool) -> None:  # noqa: FBT001 - a table's cell
    """8,192 tokens of 131,072 B are 1 GiB by its estimate."""
    found = ask(
        f'msg=offload layers.model=33 memory.required.kv="{printed}" --ctx-size 8192 --parallel 1',
        LLAMA,
    )
    item = figure_of(found, "estimated_cache")
    assert item.agrees is agrees
    assert "ollama_estimate_exact" in reasons(found, "estimated_cache")


def test_another_engine_than_the_lines_show() -> None:
    """An engine that is named goes before what the lines show: it finds no figure of its own."""
    found = ask(SIZE, LLAMA, engine="vllm")
    assert found.engine == "vllm"
    assert found.figures == ()
    assert [note.code for note in found.missing] == ["no_figures"]


# Settings that the lines themselves show


def test_settings_of_a_llama_cpp_log() -> None:
    """The command, the context's lines and the geometry give build, formats, slots and layers."""
    found = ask(
        "main: build = 6840 (0123456789)\n"
        "$ llama-server -c 4096 -ctk q8_0 -ctv q8_0 -np 1 -fa on\n"
        "print_info: arch             = llama\n"
        "print_info: n_layer          = 32\n"
        "print_info: n_head           = 32\n"
        "print_info: n_head_kv        = 8\n"
        "print_info: n_embd           = 4096\n"
        "print_info: n_embd_head_k    = 128\n"
        "print_info: n_embd_head_v    = 128\n"
        "print_info: n_ctx_train      = 131072\n"
        "llama_context: n_ctx         = 8192\n"
        "llama_context: n_batch       = 2048\n"
        "llama_context: n_ubatch      = 512\n"
        "llama_context: flash_attn    = enabled\n"
        "llama_context: kv_unified    = false\n"
        "llama_kv_cache: size =  544.00 MiB (  8192 cells,  32 layers,  1/1 seqs), "
        "K (q8_0):  272.00 MiB, V (q8_0):  272.00 MiB"
    )
    assert figure_of(found, "kv_cache").agrees
    assert (found.version_guess, found.model_name) == ("b6840", "the log's own header")
    assert found.settings["n_ctx"] == 8_192  # the context's own line goes before the command
    assert found.settings["flash_attn"] is True
    assert found.settings["kv_unified"] is False


def test_settings_of_a_vllm_log() -> None:
    """Arguments, prefixes and lines give ranks, stages, formats, speculation and overrides."""
    found = ask(
        "INFO args: Namespace(model='Qwen/Qwen3-Next-80B-A3B-Instruct', kv_cache_dtype='auto',"
        " enable_prefix_caching=True, dtype='torch.bfloat16', gpu_memory_utilization=0.9,"
        " speculative_config={'method': 'qwen3_next_mtp', 'num_speculative_tokens': 2})\n"
        "Using fp8 data type to store kv cache.\n"
        "Mamba cache mode is set to 'align' for Qwen3NextForCausalLM\n"
        "Hidden layers were unevenly partitioned: [20,28].\n"
        "Chunked prefill is enabled with max_num_batched_tokens=4096.\n"
        "Overriding num_gpu_blocks=1000 with num_gpu_blocks_override=512\n"
        "Hybrid KV cache manager is disabled for this hybrid model\n"
        "(Worker_PP1_TP3 pid=4) INFO Available KV cache memory: 10.00 GiB"
    )
    assert {
        "kv_cache_dtype": "fp8", "enable_prefix_caching": True, "layers_per_stage": [20, 28],
        "pipeline_parallel_size": 2, "max_num_batched_tokens": 4_096, "dtype": "bfloat16",
        "num_gpu_blocks_override": 512, "disable_hybrid_kv_cache_manager": True,
        "num_speculative_tokens": 2, "speculative_method": "mtp",
    }.items() <= found.settings.items()  # fmt: skip
    assert figure_of(found, "available_memory").rank == "PP1 TP3"


def test_tokens_of_sglang_from_its_memory() -> None:
    """6.09 GB are left of 21.63; 15 % of these stay free: 46,526 to 46,714 tokens."""
    found = ask(
        "server_args=ServerArgs(model_path='Qwen/QwQ-32B', tp_size=4, mem_fraction_static=0.85)\n"
        "[TP0] Load weight begin. avail mem=21.63 GB\n"
        "[TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=6.09 GB\n"
        "[TP0] KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB\n"
        "[TP0] max_total_num_tokens=46611, max_running_requests=2049, context_len=40960",
        "Qwen/QwQ-32B", want_context=40_960, want_concurrency=2,
    )  # fmt: skip
    item = figure_of(found, "max_total_num_tokens")
    assert (item.agrees, item.computed) == (True, "46,526 to 46,714 tokens")
    assert found.settings["tp_size"] == 4
    assert advice(found)["max_total_tokens"] == "2 × 40,960 tokens take 5.00 GiB on each rank"


def test_states_of_sglang() -> None:
    """44 slots of 36 layers of states: 0.07 GB of convolutions and 3.09 GB beside the keys."""
    found = ask(
        "Mamba Cache is allocated. max_mamba_cache_size: 43, conv_state size: 0.07 GB,"
        " ssm_state size: 3.09 GB\n"
        "KV Cache is allocated. #tokens: 46611, K size: 0.53 GB, V size: 0.53 GB",
        "Qwen/Qwen3-Next-80B-A3B-Instruct", tp_size=1,
    )  # fmt: skip
    assert verdicts(found) == {
        "conv_states": True, "ssm_states": True, "k_pool": True, "v_pool": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "log",
    [
        "KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB",
        "[MemUsageChange] Allocated 62.48 GiB for max tokens in paged KV cache (511872).",
    ],
)
def test_what_a_token_takes_without_a_model(log: str) -> None:
    """Sizes over tokens say what a token takes, and a model is asked for."""
    found = ask(log)
    assert reasons(found, "kv_pool") == {"implied_token", "no_model"}
    assert [note.code for note in found.missing] == ["no_model"]


@pytest.mark.parametrize(
    "log",
    [
        "#tokens: 2243474, K size: 59.91 GB",
        "KV Cache is allocated. #tokens: 2243474, K size: 59.91 GB",
    ],
)
def test_a_size_of_keys_alone(log: str) -> None:
    """What keys take is no whole token: as wide values take as much again, 57,344 B together.

    Measured: https://github.com/sgl-project/sglang/issues/11830.
    """
    found = ask(log)
    assert reasons(found, "kv_pool") == {"implied_key", "no_model"}
    note = next(n for n in figure_of(found, "kv_pool").reasons if n.code == "implied_key")
    assert note.text.startswith("28,670 to 28,675 B a token on this rank for keys alone;")
    assert note.text.endswith("57,340 to 57,350 B together")


def test_the_first_lines_of_tensorrt_llm() -> None:
    """132,608 tokens of 524,288 B are the bytes that the first releases print."""
    found = ask(
        "Allocate 69524783104 bytes for k/v cache.\nUsing 132608 tokens in paged KV cache.",
        "meta-llama/Llama-2-7b-hf",
    )
    assert figure_of(found, "kv_bytes").agrees
    assert found.version_guess == "0.8"


def test_blocks_of_a_sequence() -> None:
    """A window may begin inside a block: 2,049 blocks of 64 for 131,072 tokens."""
    found = ask(
        "Max KV cache blocks per sequence: 2049 [window size=131072], tokens per block=64,"
        " primary blocks=7998, secondary blocks=0\n"
        "[MemUsageChange] Allocated 62.48 GiB for max tokens in paged KV cache (511872).", LLAMA,
    )  # fmt: skip
    assert verdicts(found) == {"blocks_per_sequence": True, "kv_pool": True}


def test_blocks_from_the_free_memory() -> None:
    """0.9 of 70.48 GiB are 8,119 or 8,120 blocks of 8 MiB; another fraction is not known."""
    log = (
        "TensorRT-LLM version: 1.0.0\n[MemUsageChange] Memory usage when calculating max tokens in"
        " paged kv cache: total: 79.10 GiB, available: 70.48 GiB\n"
        "Number of blocks in KV cache primary pool: {blocks}\nNumber of tokens per block: 64."
    )
    found = ask(log.format(blocks=8_119), LLAMA)
    assert figure_of(found, "blocks").agrees
    assert found.version_guess == "1.0"
    other = ask(log.format(blocks=7_000), LLAMA)
    assert figure_of(other, "blocks").agrees is None


def test_requests_of_ollama_share_out_the_context() -> None:
    """Four parallel requests of 8,192 tokens are one context of 32,768; llama.cpp's lines too."""
    found = ask(
        'msg=offload memory.required.kv="4.0 GiB" --ctx-size 32768 --parallel 4\n' + SIZE, LLAMA
    )
    assert figure_of(found, "estimated_cache").agrees
    assert remarks(found) == {"context_times_parallel", "llama_lines_too"}


def test_caches_of_devices_are_shares() -> None:
    """What each of two devices holds is no whole, and without a model nothing is computed."""
    log = 'msg="kv cache" device=CUDA0 size="300.0 MiB"\nmsg="kv cache" device=CPU size="12.0 MiB"'
    found = ask(log, "openai/gpt-oss-20b")
    assert {item.agrees for item in found.figures} == {None}
    alone = ask(log)
    assert "no_model" in reasons(alone, "device_cache")
