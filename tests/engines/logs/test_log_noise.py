"""The same log with anything around it gives the same figures, or says what is missing."""

from __future__ import annotations

import json
import random
import re
import string
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.logs import Explained, explain, open_log
from tests.engines.logs.asking import ask, model_named

KIMI = """\
Available KV cache memory: 2.30 GiB
Add 1 padding layers, may waste at most 5.00% KV cache memory
GPU KV cache size: 75,840 tokens
Maximum concurrency for 120,000 tokens per request: 2.48x"""
REFUSED = """\
Available KV cache memory: 48.66 GiB
ValueError: To serve at least one request with the models's max seq len (262144), (62.00 GiB KV \
cache is needed, which is larger than the available KV cache memory (48.66 GiB). Based on the \
available memory, the estimated maximum model length is 205728."""
OLD = """\
Memory profiling results: total_gpu_memory=23.58GiB peak_torch_memory=17.06GiB \
non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
# GPU blocks: 1950
Maximum concurrency for 20000 tokens per request: 1.56x"""
LLAMA = """\
llama_kv_cache: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), \
K (f16): 1536.00 MiB, V (f16): 1536.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells"""
SGLANG = "KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB"

LOGS = {
    "kimi": (KIMI, "moonshotai/Kimi-Linear-48B-A3B-Instruct", {"tensor_parallel_size": 2}),
    "refused": (REFUSED, "Qwen/Qwen3-Coder-480B-A35B-Instruct", {}),
    "old": (OLD, "meta-llama/Llama-3.1-8B", {}),
    "llama": (LLAMA, "openai/gpt-oss-20b", {}),
    "sglang": (SGLANG, "Qwen/QwQ-32B", {}),
}
Told = list[tuple[str, str, str | None, bool | None]]


def told(found: Explained) -> Told:
    """Return what was said of each figure, in an order of its own."""
    return sorted(
        ((item.name, item.printed, item.computed, item.agrees) for item in found.figures), key=str
    )


def coloured(log: str) -> str:
    """Colour every line and every number in it."""
    return "\n".join(
        "\x1b[32mINFO\x1b[0m " + re.sub(r"(\d+)", "\x1b[1;36m\\1\x1b[0m", line)
        for line in log.splitlines()
    )


def prefixed(log: str) -> str:
    """Put time, process and place in front of every line."""
    return "\n".join(
        f"(EngineCore_DP0 pid=4711) INFO 11-02 10:11:{index:02d} [gpu_worker.py:298] {line}"
        for index, line in enumerate(log.splitlines())
    )


def noisy(log: str) -> str:
    """Put a hundred thousand characters of other lines around and between."""
    chance = random.Random(7)
    letters = string.ascii_letters + "     "
    parts = []
    for line in log.splitlines():
        for _ in range(200):
            length = chance.randrange(40, 160)
            parts.append(f"DEBUG {''.join(chance.choices(letters, k=length))} {chance.random():f}")
        parts.append(line)
    return "\n".join(parts)


def of_json(log: str) -> str:
    """Write the log as somebody copies it out of an answer in JSON."""
    padding = "\n".join(f"line {index}" for index in range(5))
    return json.dumps({"logs": f"{padding}\n{log}\n{padding}"})


def fenced(log: str) -> str:
    """Quote it as a forum does."""
    return "```\n" + "\n".join(f"> {line}" for line in log.splitlines()) + "\n```"


def with_commas(log: str) -> str:
    """Write the point of every decimal as a comma."""
    return re.sub(r"(\d)\.(\d)", r"\1,\2", log)


DISGUISES: dict[str, Callable[[str], str]] = {
    "coloured": coloured,
    "prefixed": prefixed,
    "both": lambda log: coloured(prefixed(log)),
    "noisy": noisy,
    "crlf": lambda log: log.replace("\n", "\r\n"),
    "json": of_json,
    "fenced": fenced,
    "commas": with_commas,
    "indented": lambda log: "\n".join(f"    {line}   " for line in log.splitlines()),
    "spaces": lambda log: log.replace(" ", "\u00a0"),
    "reversed": lambda log: "\n".join(reversed(log.splitlines())),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("name", LOGS)
def test_figures_are_the_same(name: str, disguise: str) -> None:
    """Colours, prefixes, noise, quoting, other breaks, commas, another order: the same figures."""
    log, model, settings = LOGS[name]
    plain = ask(log, model, **settings)
    changed = ask(DISGUISES[disguise](log), model, **settings)
    assert changed.engine == plain.engine
    if disguise == "commas":
        assert [item[::3] for item in told(changed)] == [item[::3] for item in told(plain)]
    else:
        assert told(changed) == told(plain)


def rank_line(rank: int, gib: str) -> str:
    """Return the memory line of one of several ranks."""
    return f"(Worker_TP{rank} pid={100 + rank}) INFO Available KV cache memory: {gib} GiB"


def test_ranks_in_any_order() -> None:
    """Of ranks with unlike memory the smallest makes the pool, whichever line comes first."""
    tokens = "GPU KV cache size: 178,880 tokens"
    lines = [rank_line(0, "8.11"), rank_line(1, "8.02"), rank_line(2, "8.11"), rank_line(3, "8.07")]
    answers = []
    for seed in range(6):
        shuffled = [*lines, tokens]
        random.Random(seed).shuffle(shuffled)
        found = ask("\n".join(shuffled), "Qwen/Qwen3-235B-A22B")
        answers.append(told(found))
        assert not found.disagrees
        assert {item.rank for item in found.figures} == {"TP0", "TP1", "TP2", "TP3", None}
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("kept", range(1, 5))
def test_a_log_cut_in_the_middle(kept: int) -> None:
    """What is left is checked as before, or said to be unchecked; nothing comes out otherwise."""
    whole = {item[:2]: item for item in told(ask(KIMI, LOGS["kimi"][1], tensor_parallel_size=2))}
    lines = KIMI.splitlines()
    for part in (lines[:kept], lines[-kept:]):
        found = ask("\n".join(part), LOGS["kimi"][1], tensor_parallel_size=2)
        for item in found.figures:
            assert item.agrees in (whole[item.name, item.printed][3], None)
            assert item.agrees is not None or item.reasons
        if not any("Available" in line for line in part):
            assert "no_memory_line" in {note.code for note in found.missing}


def test_cut_within_a_line() -> None:
    """A line that ends in the middle of its number is another number, or none."""
    for end in range(1, len(KIMI)):
        found = ask(KIMI[:end], None)
        assert all(item.printed for item in found.figures)


# An engine that is not known


@pytest.mark.parametrize(
    "log",
    [
        "",
        "   \n\n\t",
        "Hello, world",
        "[mlx] cache 4.2 GiB, 17,000 tokens, concurrency 3.1x",
        "LMDeploy: block count 4096, tokens 262144",
        "\x00" * 1_000,
        "🙂" * 1_000,
    ],
)
def test_an_unknown_engine_is_not_guessed(log: str) -> None:
    """No engine, no version, no figure: what is known is said instead."""
    found = ask(log, "Qwen/Qwen3-8B")
    assert (found.engine, found.version_guess, found.figures) == (None, None, ())
    assert [note.code for note in found.missing] == ["unknown_engine"]


def test_an_unknown_version_follows_the_newest_rules_before_it() -> None:
    """A version from the future is named as the log names it, and what was used instead is said."""
    found = ask(
        "vLLM API server version 0.40.1\nGPU KV cache size: 327,680 tokens\n"
        "Available KV cache memory: 40.00 GiB",
        "meta-llama/Llama-3.1-8B",
    )
    assert found.version_guess == "0.40.1"
    assert found.version_used == "0.33.0"


# Anything at all

WORDS = [
    *KIMI.splitlines(), *REFUSED.splitlines(), *OLD.splitlines(), *LLAMA.splitlines(), SGLANG,
    "Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba",
    "max_num_seqs (256) exceeds available Mamba cache blocks (184).",
    "No available memory for the cache blocks.", "Available KV cache memory: -2.14 GiB",
    ("The model's max seq len (32768) is larger than the maximum number of tokens that can be "
    "stored in KV cache (7344)."),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: "
    "cudaMalloc failed: out of memory"),
    'msg=offload layers.model=25 memory.required.kv="300.0 MiB"',
    "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 512",
    ("[TensorRT-LLM][INFO] [MemUsageChange] Allocated 4.67 GiB for max tokens in paged KV cache "
    "(33984)."),
    "non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 32768}",
    "--tensor-parallel-size 4 --kv-cache-dtype fp8", "\x1b[31m", "\r", '\\n"', "9" * 60, "-1", "0",
    "1e999", "NaN GiB", ",,,,", "((((((", "'" * 40, "=" * 40, "\u202f", "\u0000",
]  # fmt: skip
pieces = st.lists(st.sampled_from(WORDS) | st.text(max_size=30), max_size=12)
MODEL = model_named("google/gemma-3-27b-it")
ALIKE = model_named("meta-llama/Llama-3.1-8B")


@given(pieces, st.data())
def test_mutated_logs_find_no_crash(parts: list[str], data: st.DataObject) -> None:
    """Lines joined, cut and changed at any place: an answer within a second, and never an error."""
    log = data.draw(st.sampled_from(["\n", " ", ""])).join(parts)
    cuts = data.draw(st.lists(st.integers(0, max(len(log), 1)), max_size=4))
    for at in cuts:
        log = log[:at] + data.draw(st.sampled_from(["", "7", ",", ".", "x", "-", "\n"])) + log[at:]
    began = time.perf_counter()
    for model in (None, MODEL):
        found = explain(open_log(log), model, {})
        assert all(item.reasons for item in found.figures)
        assert all(note.text for note in found.missing)
        assert all(item.change.text and item.effect.text for item in found.advice)
    assert time.perf_counter() - began < 8  # a plan of mixed layers on a busy machine


@given(st.integers(0, 2**64))
def test_numbers_of_any_size(number: int) -> None:
    """A figure of any size is read or passed over, never an error."""
    log = KIMI.replace("75,840", f"{number:,}").replace("2.30", str(number))
    found = explain(open_log(log), ALIKE, {})
    assert all(item.reasons for item in found.figures)


@pytest.mark.parametrize(
    "line",
    [
        "GPU KV cache size: " + "1," * 200_000,
        "Available KV cache memory: " * 50_000,
        "(" * 400_000 + "KV cache size",
        "non-default args: {" + "'a': {" * 100_000,
        "--" + "a-" * 200_000 + " max-model-len",
        "size = " * 100_000 + " cells, ",
        "- kv " * 100_000,
        "\x1b[" * 200_000,
        "\x1b]" * 200_000,
        "KV self size = " + " " * 400_000 + "1 MiB",
        "GPU KV cache size: 1 tokens\r" * 20_000,
    ],
    ids=lambda line: repr(line[:16]),
)
def test_no_line_takes_long(line: str) -> None:
    """Lines made to make a pattern go back and forth take no longer than others."""
    began = time.perf_counter()
    ask(line, None)
    assert time.perf_counter() - began < 3  # half a megabyte on a busy machine
