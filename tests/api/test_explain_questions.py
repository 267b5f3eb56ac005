"""Twenty-four questions that people asked about their logs in public, and the right answers.

Each row is what somebody pasted, or the settings; then the figures that settle the question, as
computed, and the codes of the reasons, remarks and changes that say why. Two rows that belong to
one question compare two logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from starlette.testclient import TestClient

TOO_LONG = (
    "The model's max seq len ({length}) is larger than the maximum number of tokens that can be"
    " stored in KV cache ({held})."
)
REFUSED = (
    "To serve at least one request with the models's max seq len ({length}), ({needed} GiB KV cache"
    " is needed, which is larger than the available KV cache memory ({there} GiB). Based on the"
    " available memory, the estimated maximum model length is {estimate}."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A question: what is asked, and what must be in the answer."""

    number: int
    log: str
    model: str
    settings: dict[str, object] = field(default_factory=dict)
    wants: tuple[int, int] | None = None
    computed: dict[str, str | None]
    codes: set[str]
    changes: set[str] = field(default_factory=set)


ROWS = [
    # Where does 7,344 come from? It is what 3.59 GiB hold of half a MiB a token.
    Row(number=1, log=TOO_LONG.format(length=32768, held=7344), model="Qwen/Qwen1.5-7B-Chat",
        computed={"stored_tokens": "3.59 GiB of memory"}, codes={"never_a_constant", "slope"},
        changes={"--max-model-len 7344"}),
    Row(number=1, log=TOO_LONG.format(length=131072, held=53376), model="THUDM/glm-4-9b-chat",
        computed={"stored_tokens": "2.04 GiB of memory"}, codes={"never_a_constant"},
        changes={"--max-model-len 53376"}),
    # 20,000 and 45,000 tokens start and 29,000 do not: the profile run's batch was as long.
    Row(number=2,
        log="Memory profiling results: total_gpu_memory=23.58GiB peak_torch_memory=17.06GiB"
            " non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90\n"
            "# GPU blocks: 1950\nMaximum concurrency for 20000 tokens per request: 1.56x",
        model="meta-llama/Llama-3.1-8B-Instruct",
        computed={"gpu_blocks": "1,948 to 1,953 blocks", "max_concurrency": "1.56x",
                  "budget": "3.81 GiB"},
        codes={"profile_batch"}),
    Row(number=2,
        log="Memory profiling results: total_gpu_memory=23.58GiB peak_torch_memory=17.98GiB"
            " non_torch_memory=0.35GiB kv_cache_size=2.89GiB gpu_memory_utilization=0.90\n"
            "# GPU blocks: 1478\n" + TOO_LONG.format(length=29000, held=23648),
        model="meta-llama/Llama-3.1-8B-Instruct",
        computed={"stored_tokens": "23,648 tokens", "budget": "2.89 GiB"},
        codes={"profile_batch"}, changes={"--max-model-len 23648"}),
    # Quantised weights, and heads that queries share: 57,344 B a token, not 1.5 MB.
    Row(number=3,
        log="non-default args: {'model': 'Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8', 'quantization':"
            " 'gptq'}\nAvailable KV cache memory: 10.00 GiB\nGPU KV cache size: 187,232 tokens",
        model="", computed={"available_memory": "10.00 GiB = 11,702 × 917,504 B"},
        codes={"weights_not_cache", "slope"}),
    # DeepSeek keeps one latent of 576 values a token in 61 layers: 70,272 B.
    Row(number=4,
        log="Available KV cache memory: 41.60 GiB\nGPU KV cache size: 635,648 tokens",
        model="deepseek-ai/DeepSeek-V3", settings={"tensor_parallel_size": 8, "block_size": 64},
        computed={"available_memory": "41.60 GiB = 9,932 × 4,497,408 B",
                  "kv_cache_tokens": "635,648 tokens"},
        codes={"latent_replicated"}),
    # Is vLLM twice as wasteful as SGLang? Both keep 48,128 B a token on each rank.
    Row(number=5, log="Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens",
        model="Qwen/Qwen3-235B-A22B", settings={"tensor_parallel_size": 4},
        computed={"available_memory": "8.02 GiB = 11,180 × 770,048 B"},
        codes={"smallest_rank", "per_rank", "slope"}),
    Row(number=5, log="KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
        model="Qwen/Qwen3-235B-A22B", settings={"tp_size": 4},
        computed={"k_pool": "8.23 GiB = 8,841,233,920 B"}, codes={"token_costs", "per_rank_pools"}),
    # Two cards, 8.69 GiB: every figure is one rank's, and each keeps half of the heads.
    Row(number=6,
        log="(VllmWorkerProcess pid=8) INFO model weights take 13.95GiB; non_torch_memory takes"
            " 0.25GiB; PyTorch activation peak memory takes 0.19GiB; the rest of the memory"
            " reserved for KV Cache is 8.69GiB\n# CUDA blocks: 5096, # CPU blocks: 2730",
        model="Qwen/Qwen2.5-14B-Instruct", settings={"tensor_parallel_size": 2},
        computed={"cpu_blocks": "2,730 blocks", "weights": None},
        codes={"per_rank", "weights_are_per_rank", "swap_shows_block"}),
    # 24 GiB for stages of 16 and 32 layers: all layers were charged to each.
    Row(number=7,
        log=REFUSED.format(length=262144, needed="24.0", there="3.18", estimate=34736),
        model="Qwen3-Coder-30B-A3B-Instruct-FP8",
        settings={"pipeline_parallel_size": 2, "layers_per_stage": [16, 32], "version": "0.15.1"},
        computed={"needed_memory": "24.00 GiB = 25,769,803,776 B"},
        codes={"stages_charged_all_layers", "per_rank"}),
    # 405B in fp8 on eight cards: 4.77 GiB a rank are 79,392 tokens, 7.88 would be enough.
    Row(number=8, log=TOO_LONG.format(length=131072, held=79392),
        model="meta-llama/Llama-3.1-405B-Instruct-FP8", settings={"tensor_parallel_size": 8},
        computed={"stored_tokens": "4.77 GiB of memory"}, codes={"more_memory", "per_rank"},
        changes={"--max-model-len 79392"}),
    # Eight ranks hold one latent eight times; sharing the positions out holds eight times more.
    Row(number=9,
        log="Available KV cache memory: 46.80 GiB\nMultiplying the GPU KV cache size by the"
            " dcp_world_size 8.\nGPU KV cache size: 5,721,088 tokens",
        model="moonshotai/Kimi-K2-Thinking", settings={"tensor_parallel_size": 8},
        computed={"kv_cache_tokens": "5,721,088 tokens"},
        codes={"latent_replicated", "dcp_multiplies"}),
    Row(number=9, log="Available KV cache memory: 46.80 GiB\nGPU KV cache size: 715,072 tokens",
        model="moonshotai/Kimi-K2-Thinking",
        settings={"tensor_parallel_size": 8, "block_size": 64},
        computed={"kv_cache_tokens": "715,072 tokens"},
        codes={"latent_replicated", "decode_context_parallel_size"},
        changes={"--decode-context-parallel-size 8"}),
    # Replicas do not divide the heads: 62 GiB each for one request.
    Row(number=10,
        log="Available KV cache memory: 48.66 GiB\n"
            + REFUSED.format(length=262144, needed="62.00", there="48.66", estimate=205728),
        model="Qwen/Qwen3-Coder-480B-A35B-Instruct", settings={"data_parallel_size": 8},
        computed={"needed_memory": "62.00 GiB = 66,571,993,088 B"},
        codes={"dp_not_divide", "slope"}, changes={"--max-model-len 205728"}),
    # 4.61 requests at once is the worst case, that all grow to the full length.
    Row(number=11, log="# GPU blocks: 2360\nMaximum concurrency for 8192 tokens per request: 4.61x",
        model="meta-llama/Llama-3.1-8B",
        computed={"max_concurrency": "4.61x", "gpu_blocks": "2,360 blocks"}, codes={"worst_case"}),
    # Half of the model's length, and it starts: the line counts one group of four.
    Row(number=12,
        log="GPU KV cache size: 129,472 tokens\n"
            "Maximum concurrency for 262,144 tokens per request: 1.97x",
        model="Qwen/Qwen3.5-2B",
        computed={"kv_cache_tokens": "129,472 tokens", "max_concurrency": "1.97x"},
        codes={"blocks_of_one_group", "worst_case"}),
    # Ten times the tokens in the next release, from the same memory: another count.
    Row(number=13, log="GPU KV cache size: 54,608 tokens", model="google/gemma-4-31B-it",
        settings={"version": "0.20.0"}, computed={"kv_cache_tokens": "25.00 GiB of memory"},
        codes={"blocks_of_one_group", "fixed_and_slope"}),
    Row(number=13,
        log="GPU KV cache size: 384,522 tokens\n"
            "Maximum concurrency for 131,072 tokens per request: 2.93x",
        model="google/gemma-4-31B-it", settings={"version": "0.21.0"},
        computed={"kv_cache_tokens": "384,522 tokens"},
        codes={"concurrency_times_length", "fixed_and_slope"}),
    # The pool seems to shrink at shorter lengths: a request has a fixed part and a slope.
    Row(number=14,
        log="GPU KV cache size: 398,000 tokens\n"
            "Maximum concurrency for 50,000 tokens per request: 7.96x",
        model="deepseek-ai/DeepSeek-V4-Flash", settings={"version": "0.33.0"},
        computed={"kv_cache_tokens": "398,000 tokens", "max_concurrency": "7.96x"},
        codes={"concurrency_times_length", "fixed_and_slope"}),
    # Counters go beyond 91,056 tokens: they add up over time.
    Row(number=15,
        log="# GPU blocks: 5691\nMaximum concurrency for 8192 tokens per request: 11.12x\n"
            "PyTorch activation peak memory takes 9.37GiB",
        model="meta-llama/Llama-3.1-8B",
        computed={"gpu_blocks": "5,691 blocks", "max_concurrency": "11.12x"},
        codes={"counters_cumulative", "large_activation_peak"}),
    # Only 2.30 GiB: the profile run worked on 64,000 tokens at once.
    Row(number=16,
        log="non-default args: {'max_num_batched_tokens': 64000, 'max_num_seqs': 8}\n"
            "Available KV cache memory: 2.30 GiB\n"
            "Add 1 padding layers, may waste at most 5.00% KV cache memory\n"
            "GPU KV cache size: 75,840 tokens\n"
            "Maximum concurrency for 120,000 tokens per request: 2.48x",
        model="Kimi-Linear-48B-A3B-Instruct-AWQ-4bit", settings={"tensor_parallel_size": 2},
        computed={"available_memory": "2.29 GiB = 318 × 7,741,440 B",
                  "kv_cache_tokens": "75,840 tokens", "max_concurrency": "2.48x",
                  "padding_layers": "1 layers, at most 5.00 %"},
        codes={"batched_tokens_took_memory", "blocks_of_one_group", "padding_is_a_bound"}),
    # 76 KiB a token where 64 were expected: the drafter's layer, and states at block boundaries.
    Row(number=17,
        log="max seq len (131072), 9.5 GiB KV cache is needed, which is larger than the available"
            " KV cache memory (6.91 GiB). Based on the available memory, the estimated maximum"
            " model length is 91520.",
        model="Qwen3.8-27B",
        settings={"num_speculative_tokens": 4, "enable_prefix_caching": True, "max_num_seqs": 1},
        computed={"needed_memory": "9.50 GiB = 10,196,353,024 B"},
        codes={"spent_state_copies", "fixed_and_slope"}, changes={"--max-model-len 91520"}),
    # Blocks of 1,568 tokens: grown until one holds a recurrent state.
    Row(number=18,
        log="Setting attention block size to 1568 tokens to ensure that attention page size is >="
            " mamba page size.\nPadding mamba page size by 0.13%\n"
            "Available KV cache memory: 6.67 GiB\nGPU KV cache size: 53,312 tokens\n"
            "Maximum concurrency for 32,768 tokens per request: 5.15x",
        model="Qwen3.6-27B",
        computed={"attention_block_size": "1,568 tokens", "kv_cache_tokens": "53,312 tokens",
                  "max_concurrency": "5.15x", "state_page_padding": "0.13 %"},
        codes={"block_grown_to_state", "state_padded_to_page"}),
    # 256 sequences want 256 state blocks, and 8.82 GiB are 184.
    Row(number=19,
        log="Available KV cache memory: 8.82 GiB\nRuntimeError: max_num_seqs (256) exceeds"
            " available Mamba cache blocks (184). Each decode sequence requires one Mamba cache"
            " block",
        model="Qwen3.8-27B", settings={"kv_cache_dtype": "fp8"},
        computed={"state_blocks": "184 blocks"}, codes={"state_needs_block"},
        changes={"--max-num-seqs 184"}),
    # A scale for each token and head: pages are no longer one twice the other, and are padded.
    Row(number=20,
        log="15.18 GiB KV budget, fp8: KV pool 417,022 tokens\nmax concurrency @32k 12.73x",
        model="gemma-4-26B-A4B-it", settings={"version": "0.25.1"},
        computed={"kv_cache_tokens": "417,022 tokens"}, codes={"fixed_and_slope"}),
    Row(number=20,
        log="15.18 GiB KV budget, fp8_per_token_head: KV pool 325,335 tokens\n"
            "max concurrency @32k 9.93x",
        model="gemma-4-26B-A4B-it", settings={"version": "0.25.1"},
        computed={"kv_cache_tokens": "325,335 tokens"}, codes={"spent_page_padding"}),
    # gpt-oss 120B on one card: what is short, and what a request takes besides.
    Row(number=21,
        log="Model loading took 65.9651 GiB\nAvailable KV cache memory: -2.14 GiB\n"
            "No available memory for the cache blocks.",
        model="openai/gpt-oss-120b", computed={"available_memory": None},
        codes={"nothing_left", "covers_deficit", "smaller_profile"}),
    Row(number=21,
        log="Available KV cache memory: 1.71 GiB\nTo serve at least one request with the models's"
            " max seq len (131072), (4.54 GiB KV cache is needed, which is larger than the"
            " available KV cache memory (1.71 GiB).",
        model="openai/gpt-oss-120b", settings={"max_num_batched_tokens": 1024},
        computed={"needed_memory": "4.54 GiB = 4,874,895,360 B"},
        codes={"fixed_and_slope", "more_memory"}),
    # 18.78 GiB for one request of 1,024 tokens: the pool is whatever is left; 112 MiB are enough.
    Row(number=22, log="Available KV cache memory: 18.78 GiB\nGPU KV cache size: 175,808 tokens",
        model="Qwen/Qwen3-1.7B", wants=(1024, 1),
        computed={"available_memory": "18.78 GiB = 10,988 × 1,835,008 B"}, codes={"wish_fits"},
        changes={"--kv-cache-memory-bytes 117440512"}),
    # 6.43 GiB of activations and 0.20 left: multimodal dummies in the profile run.
    Row(number=23,
        log="model weights take 15.63GiB; non_torch_memory takes 0.14GiB; PyTorch activation peak"
            " memory takes 6.43GiB; the rest of the memory reserved for KV Cache is 0.20GiB\n"
            "the current vLLM instance can use total_gpu_memory (24.89GiB) x"
            " gpu_memory_utilization (0.90) = 22.40GiB",
        model="Qwen/Qwen2.5-VL-7B-Instruct", computed={"budget": "0.20 GiB"},
        codes={"large_activation_peak"}),
    # A length that was picked for the model and does not fit: what does.
    Row(number=24,
        log=REFUSED.format(length=1048576, needed="22.5", there="17.39", estimate=810208),
        model="mistralai/Mistral-Small-4-119B-2603",
        computed={"needed_memory": "22.50 GiB = 24,159,191,040 B"}, codes={"request_blocks"},
        changes={"--max-model-len 810208"}),
]  # fmt: skip


def test_every_question_is_asked() -> None:
    """The table has all twenty-four."""
    assert sorted({row.number for row in ROWS}) == list(range(1, 25))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number}-{row.model}")
def test_the_answer(row: Row, client: TestClient) -> None:
    """Key figures come out as computed, none disagrees, and the reason is named."""
    body: dict[str, object] = {"log": row.log, "settings": row.settings}
    if row.model:
        body["model"] = {"id": row.model}
    if row.wants is not None:
        body["want_context_tokens"], body["want_concurrency"] = row.wants
    response = client.post("/api/v1/engines/explain", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    computed = {item["name"]: item["computed"] for item in answer["figures"]}
    assert {name: computed[name] for name in row.computed} == row.computed
    assert not answer["disagrees"]
    codes = {code for item in answer["figures"] for code in item["reason_codes"]}
    codes |= {note["code"] for note in answer["remarks"] + answer["missing"]}
    codes |= {item["code"] for item in answer["advice"]}
    effects = [item["effect"] for item in answer["advice"]]
    for code, words in (("covers_deficit", "to have anything left"), ("wish_fits", "stay free")):
        codes |= {code for text in effects if words in text}
    assert row.codes <= codes
    assert row.changes <= {item["change"] for item in answer["advice"]}
