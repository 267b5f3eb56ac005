"""Logs to try the page with: lines that people asked about in public, and what they wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.notes import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleLog:
    """Lines as they were posted, and what else the page's fields hold with them."""

    text: Note
    source_url: str
    log: str
    model: str
    settings: str = ""
    want_context: str = ""
    want_concurrency: str = ""


EXAMPLE_LOGS: Mapping[str, ExampleLog] = {
    "kimi-linear": ExampleLog(
        text=Note("", "75,840 tokens, and 2.48 requests of 120,000?"),
        source_url="https://github.com/vllm-project/vllm/issues/28228",
        log="""\
Available KV cache memory: 2.30 GiB
Add 1 padding layers, may waste at most 5.00% KV cache memory
GPU KV cache size: 75,840 tokens
Maximum concurrency for 120,000 tokens per request: 2.48x""",
        model="moonshotai/Kimi-Linear-48B-A3B-Instruct",
        settings="tensor_parallel_size=2 max_num_batched_tokens=64000 max_num_seqs=8",
    ),
    "stages": ExampleLog(
        text=Note("", "Stages of 16 and 32 layers: why are 24.0 GiB needed?"),
        source_url="https://github.com/vllm-project/vllm/issues/34076",
        log="""\
ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV \
cache is needed, which is larger than the available KV cache memory (3.18 GiB). Based on the \
available memory, the estimated maximum model length is 34736. Try increasing \
`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.""",
        model="Qwen/Qwen3-Coder-30B-A3B-Instruct",
        settings="pipeline_parallel_size=2 layers_per_stage=[16,32]",
    ),
    "replicas": ExampleLog(
        text=Note("", "Eight replicas, 62 GiB each, for one request of 262,144 tokens"),
        source_url="https://github.com/vllm-project/recipes/issues/12",
        log="""\
Available KV cache memory: 48.66 GiB
ValueError: To serve at least one request with the models's max seq len (262144), (62.00 GiB KV \
cache is needed, which is larger than the available KV cache memory (48.66 GiB). Based on the \
available memory, the estimated maximum model length is 205728.""",
        model="Qwen/Qwen3-Coder-480B-A35B-Instruct",
        settings="data_parallel_size=8",
    ),
    "two-engines": ExampleLog(
        text=Note("", "178,880 tokens here, 367,404 in SGLang: is half wasted?"),
        source_url="https://github.com/vllm-project/vllm/issues/21348",
        log="""\
Available KV cache memory: 8.11 GiB
GPU KV cache size: 178,880 tokens""",
        model="Qwen/Qwen3-235B-A22B",
        settings="tensor_parallel_size=4",
    ),
    "default-number": ExampleLog(
        text=Note("", "Where does 7,344 come from?"),
        source_url="https://github.com/QwenLM/Qwen3/issues/295",
        log="""\
ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can \
be stored in KV cache (7344). Try increasing `gpu_memory_utilization` or decreasing \
`max_model_len` when initializing the engine.""",
        model="Qwen/Qwen1.5-7B-Chat",
    ),
    "one-user": ExampleLog(
        text=Note("", "18.78 GiB for one request of 1,024 tokens: what would be enough?"),
        source_url="https://github.com/vllm-project/vllm/issues/18121",
        log="""\
Available KV cache memory: 18.78 GiB
GPU KV cache size: 175,808 tokens""",
        model="Qwen/Qwen3-1.7B",
        settings="max_model_len=1024 max_num_seqs=1",
        want_context="1024",
        want_concurrency="1",
    ),
    "nothing-left": ExampleLog(
        text=Note("", "gpt-oss 120B on one 80 GB card: 1.71 GiB are left"),
        source_url="https://github.com/vllm-project/vllm/issues/27508",
        log="""\
Available KV cache memory: 1.71 GiB
ValueError: To serve at least one request with the models's max seq len (131072), (4.54 GiB KV \
cache is needed, which is larger than the available KV cache memory (1.71 GiB).""",
        model="openai/gpt-oss-120b",
        settings="max_num_batched_tokens=1024",
    ),
    "llama-cpp": ExampleLog(
        text=Note("", "llama.cpp: two caches for one model"),
        source_url="https://github.com/ggml-org/llama.cpp/issues/22053",
        log="""\
llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), \
K (f16): 1536.00 MiB, V (f16): 1536.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells""",
        model="openai/gpt-oss-20b",
    ),
    "sglang": ExampleLog(
        text=Note("", "SGLang: 46,611 tokens on each of four cards"),
        source_url="https://github.com/didier-durand/llms-in-clouds/blob/main/docs/sglang.md",
        log="KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB",
        model="Qwen/QwQ-32B",
        settings="tp_size=4",
    ),
}
