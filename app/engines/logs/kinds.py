"""The kinds of line that are known, each by a word of its own and the pattern of its figures.

Patterns are bounded and never nest repetitions, so that no line can make them slow. Formats:
vLLM's own sources from 0.6 to 0.33 (tests/golden/vllm_log_lines.json), llama.cpp's
src/llama-kv-cache*.cpp through the years, SGLang's mem_cache and model_executor, TensorRT-LLM's
kvCacheManager.cpp, Ollama's llm/memory.go and ml/device.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.engines.logs.text import LogLine, LogText

NUMBER = r"(-?\d[\d.,]{0,20})"
COUNT = r"(\d[\d,._ ]{0,20})"
GIB = r"\s{0,2}(?:GiB|GB|Gib)"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of line; `strong` ones show which engine wrote the log."""

    code: str
    word: bytes
    pattern: re.Pattern[str]
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A line of a known kind, and the texts of its figures (None where a part is absent)."""

    code: str
    line: LogLine
    groups: tuple[str | None, ...]


Reads = Mapping[str, list[Found]]


def _kind(code: str, word: str, pattern: str, *, strong: bool = False) -> Kind:
    return Kind(code, word.lower().encode(), re.compile(pattern, re.IGNORECASE), strong)


VLLM: tuple[Kind, ...] = (
    _kind("available", "available KV cache memory",
          rf"available KV cache memory:\s{{0,4}}{NUMBER}(?:{GIB}|\s{{1,2}}Gi?$)", strong=True),
    # A paste may end inside the unit; the number before it is whole.
    _kind("tokens", "KV cache size",
          rf"(\w{{1,12}}) KV cache size:\s{{0,4}}{COUNT} (?:tokens|t(?:o(?:k(?:en?)?)?)?$)",
          strong=True),
    _kind("concurrency", "maximum concurrency",
          rf"Maximum concurrency for {COUNT} tokens per request:\s{{0,4}}{NUMBER}\s?x",
          strong=True),
    _kind("blocks", "# CPU blocks", r"# (\w{1,12}) blocks: (\d{1,12}), # CPU blocks: (\d{1,12})",
          strong=True),
    _kind("gpu_blocks", "# GPU blocks", r"# GPU blocks: (\d{1,12})(?!\d|.{0,3}# CPU)", strong=True),
    _kind("num_blocks", "num_gpu_blocks", r"(?<![\w-])num_gpu_blocks(?: is)?\s?[:=]\s?(\d{1,12})"
          r"(?!\d|.{0,40}num_gpu_blocks_override)"),
    _kind("override", "num_gpu_blocks_override",
          r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})"),
    _kind("needed", "KV cache is needed",
          rf"max seq len \((\d{{1,12}})\),?\s{{0,2}}\(?{NUMBER}\s?(GiB|GB) KV cache is needed"
          rf"(?:,? which is larger than the available KV cache memory \({NUMBER}"
          rf"(?:\s?-\s?{NUMBER})?\s?(?:GiB|GB))?", strong=True),
    _kind("needed_alone", "KV cache is needed",
          rf"{NUMBER}\s?(?:GiB|GB) KV cache is needed \(max_model_len {COUNT}\)"),
    _kind("estimated", "maximum model length",
          rf"estimated maximum model length is {COUNT}", strong=True),
    _kind("too_long", "larger than the maximum number of tokens",
          r"max seq len \((\d{1,12})\) is larger than the maximum number of tokens that can be"
          r" stored in KV cache \((\d{1,12})\)", strong=True),
    _kind("nothing", "no available memory for the cache blocks",
          r"(No available memory for the cache blocks)", strong=True),
    _kind("state_blocks", "mamba cache blocks",
          r"max_num_seqs \((\d{1,9})\) exceeds (?:the )?available Mamba cache blocks"
          r" \((\d{1,12})\)",
          strong=True),
    _kind("profile_results", "memory profiling results",
          rf"total_gpu_memory={NUMBER}GiB.{{0,400}}?kv_cache_size={NUMBER}Gi[Bb]"
          rf".{{0,40}}?gpu_memory_utilization={NUMBER}", strong=True),
    _kind("profile_peak", "peak_torch_memory", rf"peak_torch_memory={NUMBER}Gi[Bb]"),
    _kind("profile_non_torch", "non_torch_memory=", rf"non_torch_memory={NUMBER}Gi[Bb]"),
    _kind("budget", "the current vllm instance can use",
          rf"total_gpu_memory \({NUMBER}GiB\) x gpu_memory_utilization \({NUMBER}\)"
          rf" = {NUMBER}GiB", strong=True),
    _kind("rest", "reserved for KV Cache is",
          rf"the rest of the memory reserved for KV Cache is {NUMBER}GiB", strong=True),
    _kind("rest_weights", "model weights take", rf"model weights take {NUMBER}GiB"),
    _kind("rest_non_torch", "non_torch_memory takes", rf"non_torch_memory takes {NUMBER}GiB"),
    _kind("rest_peak", "activation peak memory takes",
          rf"PyTorch activation peak memory takes {NUMBER}GiB"),
    _kind("weights", "model loading took",
          rf"Model loading took {NUMBER}\s?(GiB|GB)( memory)?(?: and|\b)", strong=True),
    _kind("weights_old", "loading model weights took",
          rf"Loading model weights took {NUMBER}\s?(GB|GiB)"),
    _kind("graphs_estimated", "estimated cuda graph memory",
          rf"Estimated CUDA graph memory: {NUMBER} GiB total"),
    _kind("graphs", "graph capturing finished", rf"took {NUMBER} GiB"),
    _kind("usage", "actual usage is",
          rf"Desired GPU memory utilization is \({NUMBER}, {NUMBER} GiB\)\. Actual usage is"
          rf" {NUMBER} GiB for (weight|consumed memory)[^,]{{0,40}}, {NUMBER} GiB for peak"
          rf" activation(?:, {NUMBER} GiB for non-torch memory)?,? and {NUMBER} GiB for CUDAGraph"),
    _kind("free_memory", "free memory on device",
          rf"Free memory on device[^(]{{0,20}}\({NUMBER}/{NUMBER} GiB\)", strong=True),
    _kind("free_too_small", "less than desired gpu memory utilization",
          rf"less than desired GPU memory utilization \({NUMBER}, {NUMBER} GiB\)"),
    _kind("reserved", "kv_cache_memory_bytes config",
          rf"Initial free memory:? {NUMBER} GiB,? reserved {NUMBER} GiB memory for KV Cache"),
    _kind("attention_block", "attention block size",
          r"Setting attention block size to (\d{1,9}) tokens", strong=True),
    _kind("state_padding", "padding mamba page size",
          rf"Padding mamba page size by {NUMBER}%", strong=True),
    _kind("padding_layers", "padding layers",
          rf"Add (\d{{1,6}}) padding layers, may waste at most {NUMBER}%", strong=True),
    _kind("forced_block", "kv cache block size to",
          r"(?:Forcing|Setting) kv cache block size to (\d{1,9})(?: for (\w{1,60}))?"),
    _kind("context_ranks", "multiplying the GPU KV cache size",
          r"Multiplying the GPU KV cache size by the (dcp|cp)_world_size (\d{1,6})"
          r"(?: \(pcp_world_size (\d{1,6}) \* dcp_world_size (\d{1,6})\))?", strong=True),
    _kind("group_sizes", "kv cache group sizes", r"kv cache group sizes \(([\d, ]{1,400})\)"),
    _kind("batched", "max_num_batched_tokens=",
          r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,12})"),
    _kind("length", "using max model len", r"Using max model len (\d{1,12})"),
    _kind("kv_dtype", "data type to store kv cache",
          r"Using (\w{1,40}) data type to store kv cache"),
    _kind("partition", "unevenly partitioned", r"unevenly partitioned: \[([\d,\s]{1,200})\]"),
    _kind("auto_fit", "auto-fit max_model_len", r"Auto-fit max_model_len: reduced from (\d{1,12})"
          r" to (\d{1,12}) to fit"),
    _kind("hybrid_off", "hybrid kv cache manager",
          r"(Hybrid KV cache manager is disabled for this hybrid model"
          r"|Turning off hybrid kv cache manager)"),
    _kind("mamba_mode", "mamba cache mode is set to", r"Mamba cache mode is set to '(\w{1,10})'"),
    _kind("version", "server version",
          r"(?:API|vLLM) server version\s{0,2}:?\s{0,2}v?(\d[\w.+-]{0,40})", strong=True),
    _kind("version_banner", "version ",
          r"[\u2580-\u259f]\s{0,6}version\s{1,6}v?(\d{1,3}\.\d[\w.+-]{0,40})", strong=True),
    _kind("version_engine", "llm engine (v",
          r"Initializing an? (?:V1 |V0 )?LLM engine \(v?(\d[\w.+-]{0,40})\)", strong=True),
    _kind("version_said", "vllm",
          r"\bvllm(?:==|[ _-]version:?\s{0,3}|\s{1,3}v?)(\d{1,3}\.\d{1,3}[\w.+-]{0,40})"),
    _kind("engine_core", "(enginecore", r"\((EngineCore\w{0,12})"),
    _kind("pool_loose", "kv pool", rf"KV pool(?: of|:)? {COUNT} tokens", strong=True),
    _kind("budget_loose", "gib kv budget", rf"{NUMBER}\s?GiB KV budget"),
    _kind("concurrency_loose", "concurrency", r"concurrency[^\d\n]{0,6}(?:@ ?(\d{1,7})k ?)?"
          rf"[^\d\n]{{0,6}}{NUMBER}\s?x\b"),
    _kind("concurrency_at", "x concurrency at", rf"{NUMBER}\s?x concurrency at {COUNT}"),
)  # fmt: skip

_MIB = r"\s{0,8}MiB"
LLAMA_CPP: tuple[Kind, ...] = (
    _kind("self_size", "kv self size",
          rf"KV self size\s{{0,3}}=\s{{0,8}}{NUMBER}\s{{0,3}}(MiB|MB)"
          rf"(?:,\s{{0,3}}(K|c\^KV) \((\w{{1,10}})\):\s{{0,8}}{NUMBER}\s{{0,3}}MiB)?"
          rf"(?:,\s{{0,3}}(V|kv\^T)(?: \((\w{{1,10}})\))?:\s{{0,8}}(?:{NUMBER}|not used))?",
          strong=True),
    _kind("size", "cells,",
          rf"size =\s{{0,8}}{NUMBER} MiB \(\s{{0,8}}(\d{{1,10}}) cells,\s{{0,4}}(\d{{1,5}}) layers"
          r"(?:,\s{0,4}(\d{1,4})(?:/\s{0,3}(\d{1,4}))? seqs)?(?:\s{1,4}(\d{1,4}) rs_seq)?\)"
          rf"(?:,\s{{0,3}}(K|R) \((\w{{1,10}})\):\s{{0,8}}{NUMBER} MiB)?"
          rf"(?:,\s{{0,3}}(V|S) \((\w{{1,10}})\):\s{{0,8}}{NUMBER} MiB)?", strong=True),
    _kind("size_alone", "llama_kv_cache: size",
          rf"llama_kv_cache\w{{0,20}}: size =\s{{0,8}}{NUMBER} MiB(?! \()", strong=True),
    _kind("states_alone", "llama_memory_recurrent: size",
          rf"llama_memory_recurrent: size =\s{{0,8}}{NUMBER} MiB(?! \()"
          rf"(?:,\s{{0,3}}R \(f32\):\s{{0,8}}{NUMBER} MiB)?"
          rf"(?:,\s{{0,3}}S \(f32\):\s{{0,8}}{NUMBER} MiB)?", strong=True),
    _kind("buffer", "buffer size",
          rf"(\S{{1,40}})\s{{1,8}}(KV|RS) buffer size =\s{{0,8}}{NUMBER}{_MIB}", strong=True),
    _kind("creating", "kv cache, size",
          r"creating\s{1,8}(\S{1,30}(?: \S{1,30}){0,3}) KV cache, size = (\d{1,10}) cells",
          strong=True),
    _kind("announced", "kv_size =",
          r"kv_size\s?=\s?(\d{1,10}), offload = (\d), type_k = '?(\w{1,10})'?,"
          r" type_v = '?(\w{1,10})'?, n_layer = (\d{1,5})", strong=True),
    _kind("context", "n_ctx ", r"(n_ctx\w{0,16}?)\s{0,12}[=:]\s{0,6}(\d{1,10})\b"),
    _kind("context_sequences", "n_ctx_seq", r"(n_ctx_seq)\s{0,12}=\s{0,6}(\d{1,10})\b"),
    _kind("sequences", "n_seq_max", r"(n_seq_max)\s{0,12}=\s{0,6}(\d{1,6})\b"),
    _kind("batch", "n_batch", r"(n_batch)\s{0,12}=\s{0,6}(\d{1,10})\b"),
    _kind("ubatch", "n_ubatch", r"(n_ubatch)\s{0,12}=\s{0,6}(\d{1,10})\b"),
    _kind("flash", "flash_attn", r"flash_attn\s{0,12}=\s{0,6}(\w{1,10})\b"),
    _kind("unified", "kv_unified", r"kv_unified\s{0,12}=\s{0,6}(\w{1,10})\b"),
    _kind("swa_full", "swa_full", r"swa_full\s{0,12}=\s{0,6}(\w{1,10})\b"),
    _kind("metadata", "- kv ",
          r"- kv\s{1,4}\d{1,4}:\s{1,60}([\w.-]{1,100})\s{1,20}([\w\[\],]{1,20})\s{1,20}=\s?"
          r"(.{1,600})"),
    _kind("shape", "n_layer ", r"(?:print_info|print_meta): (n_layer)\s{0,20}=\s(\d{1,6})"),
    _kind("arch", " arch ", r"(?:print_info|print_meta): (arch)\s{0,20}=\s(\S{1,40})"),
    _kind("print_info", "print_info:", r"print_info: (\w{1,40})\s{0,24}=\s(.{1,400})"),
    _kind("print_meta", "print_meta:", r"print_meta: (\w{1,40})\s{0,24}=\s(.{1,400})"),
    _kind("build", "build", r"\bbuild:?\s{0,3}=?\s{0,3}(\d{3,6})\s\(([0-9a-f]{7,12})\)"),
    _kind("build_info", "build_info", r"build_info:?\s{0,3}(b\d{3,6})"),
    _kind("device_free", "mib free", r"using device (\S{1,20})[^\n]{0,120}? - (\d{1,9}) MiB free"),
    _kind("failed_buffer", "allocating",
          r"allocating (\d[\d.,]{0,20}) MiB on device (\d{1,3})[^\n]{0,40}"
          r"(?:cudaMalloc failed|hipMalloc failed|out of memory)", strong=True),
    _kind("failed_size", "failed to allocate",
          r"failed to allocate (\S{1,30}) buffer of size (\d{1,20})", strong=True),
    _kind("failed_cache", "failed to allocate", r"(failed to allocate buffer for (?:the )?kv cache"
          r"|failed to create context|failed to initialize the context)"),
    _kind("failed_kv", "for kv cache", r"(failed to allocate buffer for kv cache)", strong=True),
    _kind("failed_the_kv", "for the kv cache", r"(failed to allocate buffer for the kv cache)",
          strong=True),
    _kind("self_cache", "llama_init_from_file", r"(llama_init_from_file)"),
    _kind("old_shape", "n_embd =", r"n_ctx\s{0,8}=\s{0,6}(\d{1,9}), n_embd\s{0,8}=\s{0,6}(\d{1,9}),"
          r" n_layer\s{0,8}=\s{0,6}(\d{1,6})"),
)  # fmt: skip

SGLANG: tuple[Kind, ...] = (
    _kind("allocated", "kv cache is allocated",
          rf"KV Cache is allocated\.(?: dtype: (\S{{1,40}}),)?(?: #tokens: (\d{{1,15}}),)?"
          rf" (?:KV size: {NUMBER}\s?GB|K size: {NUMBER}\s?GB(?:, V size: {NUMBER}\s?GB)?)",
          strong=True),
    _kind("allocated_loose", "#tokens:",
          rf"(?<!allocated\. )#tokens: (\d{{1,15}}), K size: {NUMBER}\s?GB"
          rf"(?:, V size: {NUMBER}\s?GB)?", strong=True),
    _kind("mamba", "mamba cache is allocated",
          rf"max_mamba_cache_size: (\d{{1,9}}), conv_state size: {NUMBER}\s?GB,"
          rf" ssm_state size: {NUMBER}\s?GB", strong=True),
    _kind("windows", "window memory pool",
          r"full_layer_tokens=(\d{1,15}), swa_layer_tokens=(\d{1,15})", strong=True),
    _kind("totals", "max_total_num_tokens=",
          r"max_total_num_tokens=(\d{1,15})(?:.{0,200}?context_len=(\d{1,12}))?", strong=True),
    _kind("loaded", "load weight end",
          rf"Load weight end\.(?:.{{0,120}}?type=(\w{{1,80}}))?.{{0,120}}?avail mem={NUMBER}\s?GB",
          strong=True),
    _kind("begin", "load weight begin", rf"Load weight begin\. avail mem={NUMBER}\s?GB",
          strong=True),
    _kind("args", "server_args=", r"server_args=(?:ServerArgs\()?(.{1,1400})", strong=True),
    _kind("version", "sglang", r"\bsglang(?:==|[ _-]version:?\s{0,3}|\s+v?)(\d+\.\d+[\w.]{0,20})"),
    _kind("draft_loose", "draft k", rf"draft K {NUMBER}\s?GB"),
    _kind("mamba_loose", "mamba ", rf"mamba (\d{{1,9}}): conv {NUMBER}\s?GB, ssm {NUMBER}\s?GB"),
)  # fmt: skip

TENSORRT_LLM: tuple[Kind, ...] = (
    _kind("allocated", "in paged kv cache",
          rf"Allocated {NUMBER} GiB for max tokens in paged KV cache \((\d{{1,15}})\)",
          strong=True),
    _kind("using", "in paged kv cache", r"Using (\d{1,15}) (?:total )?tokens in paged KV cache",
          strong=True),
    _kind("bytes", "for k/v cache", r"Allocate (\d{1,18}) bytes for k/v cache", strong=True),
    _kind("blocks", "primary pool", r"Number of blocks in KV cache primary pool: (\d{1,12})",
          strong=True),
    _kind("block_tokens", "tokens per block", r"[Nn]umber of tokens per block: (\d{1,6})",
          strong=True),
    _kind("sequence", "blocks per sequence",
          r"(?:pages/)?blocks per sequence: (\d{1,9})(?: \[window size=(\d{1,12})\])?"
          r"(?:, tokens per block=(\d{1,6}), primary blocks=(\d{1,12}),"
          r" secondary blocks=(\d{1,12}))?", strong=True),
    _kind("memory", "calculating max tokens in paged",
          rf"total: {NUMBER} GiB, available: {NUMBER} GiB", strong=True),
    _kind("available_loose", "available:", rf"^\W{{0,4}}available: {NUMBER} GiB"),
    _kind("profiled", "peak memory during memory usage profiling",
          rf"Peak memory during memory usage profiling.{{0,60}}?: {NUMBER} GiB,? available KV"
          rf" cache memory when calculating max tokens: {NUMBER} GiB,? fraction is set {NUMBER},?"
          rf" kv size per token is (\d{{1,12}})", strong=True),
    _kind("version", "tensorrt-llm", r"TensorRT-LLM version:?\s{0,3}v?(\d[\w.]{0,20})",
          strong=True),
    _kind("pool_loose", "blocks of", rf"(\d{{1,9}}) blocks of (\d{{1,5}}) tokens, {NUMBER} GiB"),
)  # fmt: skip

OLLAMA: tuple[Kind, ...] = (
    _kind("required", "memory.required.kv", rf"memory\.required\.kv=\"?{NUMBER} (KiB|MiB|GiB|B)\"?",
          strong=True),
    _kind("cache", 'msg="kv cache"',
          rf"msg=\"kv cache\" device=(\S{{1,30}}) size=\"{NUMBER} (KiB|MiB|GiB|B)\"", strong=True),
    _kind("command", "--ctx-size", r"--ctx-size[ =](\d{1,10})"),
    _kind("parallel", "--parallel", r"--parallel[ =](\d{1,5})"),
    _kind("cache_type", "--kv-cache-type", r"--kv-cache-type[ =](\w{1,10})"),
    _kind("num_ctx", "num_ctx", r"\bnum_ctx[\"']?\s?[:=]\s?(\d{1,10})"),
    _kind("version", "ollama version", r"ollama version(?: is)? v?(\d[\w.]{0,20})"),
)  # fmt: skip

ANY: tuple[Kind, ...] = (
    _kind("out_of_memory", "tried to allocate",
          rf"CUDA out of memory\. Tried to allocate {NUMBER}\s?(MiB|GiB)"
          rf"(?:.{{0,60}}?total capac(?:i)?ty of {NUMBER}\s?GiB of which {NUMBER}\s?(MiB|GiB|bytes)"
          rf" is free|\s?\(GPU \d{{1,3}}; {NUMBER} GiB total capacity;.{{0,80}}?"
          rf" {NUMBER} (MiB|GiB|bytes) free)?"),
)  # fmt: skip

ENGINES: Mapping[str, tuple[Kind, ...]] = {
    "vllm": VLLM,
    "llama_cpp": LLAMA_CPP,
    "sglang": SGLANG,
    "tensorrt_llm": TENSORRT_LLM,
    "ollama": OLLAMA,
}


# Of one kind, so many different readings are looked at. Every rank of a large start may print its
# own; each is held against every plan that is tried, so their number bounds the work.
MOST_DIFFERENT = 64


def read_kinds(log: LogText, kinds: Iterable[Kind]) -> tuple[dict[str, list[Found]], int]:
    """Return the lines of these kinds by code, and how many were passed over."""
    wanted = tuple(kinds)
    lines, passed_over = log.found(dict.fromkeys(kind.word for kind in wanted))
    reads: dict[str, list[Found]] = {}
    different: dict[str, set[tuple[str | None, ...]]] = {}
    for kind in wanted:
        for line in lines[kind.word]:
            match = kind.pattern.search(line.text)
            if match is None:
                continue
            seen = different.setdefault(kind.code, set())
            if match.groups() not in seen and len(seen) == MOST_DIFFERENT:
                passed_over += 1
                continue
            seen.add(match.groups())
            found = Found(code=kind.code, line=line, groups=match.groups())
            reads.setdefault(kind.code, []).append(found)
    return reads, passed_over


def engine_of(log: LogText) -> tuple[str | None, dict[str, int]]:
    """Return the engine whose lines the log holds, and how many lines each engine's forms match.

    Ollama starts llama.cpp, whose lines then stand in its log: its own lines decide.
    """
    counts: dict[str, int] = {}
    strong = {name: [kind for kind in kinds if kind.strong] for name, kinds in ENGINES.items()}
    words = dict.fromkeys(kind.word for kinds in strong.values() for kind in kinds)
    lines, _ = log.found(words)
    for name, kinds in strong.items():
        matched = {
            line.number
            for kind in kinds
            for line in lines[kind.word]
            if kind.pattern.search(line.text)
        }
        if matched:
            counts[name] = len(matched)
    if "ollama" in counts:
        return "ollama", counts
    return max(counts, key=lambda name: counts[name], default=None), counts
