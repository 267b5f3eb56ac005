"""Every line that a vLLM release prints about its cache is known, and so is the release's era."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.logs.kinds import VLLM, engine_of, read_kinds
from app.engines.logs.text import LogText
from app.engines.logs.vllm.era import era_of, nearest_release
from app.engines.vllm.versions import KNOWN_RELEASES, release

LINES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "vllm_log_lines.json").read_text(encoding="utf-8")
)


def test_there_are_lines() -> None:
    """The table of lines, taken from the sources of 26 releases, is not empty."""
    assert len(LINES) == 66


@pytest.mark.parametrize("row", LINES, ids=lambda row: f"{row['code']}-{row['first']}")
def test_the_era_holds_the_releases(row: dict[str, Any]) -> None:
    """A line is recognised, and every release that prints it so is among those guessed."""
    reads, _ = read_kinds(LogText("INFO 11-02 10:11:12 [somewhere.py:7] " + row["line"]), VLLM)
    assert row["code"] in reads
    guessed = era_of(reads, None).releases
    first, last = KNOWN_RELEASES.index(row["first"]), KNOWN_RELEASES.index(row["last"])
    assert set(KNOWN_RELEASES[first : last + 1]) <= set(guessed)


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("GPU KV cache size: 1,024 tokens", "0.8.0–0.27.1"),
        ("GPU KV cache size: 1,024 tokens, Maximum concurrency for 64 tokens per request: 16.00x",
         "0.28.0–0.33.0"),
        ("# CUDA blocks: 10, # CPU blocks: 20", "0.7.0–0.11.0"),
        ("# GPU blocks: 10, # CPU blocks: 20", "≤ 0.7.3"),
        ("Available KV cache memory: 1.5 GiB", "0.14.0–0.33.0"),
        (("Multiplying the GPU KV cache size by the dcp_world_size 8.\n"
         "GPU KV cache size: 1,024 tokens"), "0.10.2–0.11.2"),
        (("Initializing a V1 LLM engine (v0.11.0) with config: model='a/b'\n"
         "GPU KV cache size: 1,024 tokens"), "0.11.0"),
        ("vLLM API server version 0.11.1rc6.dev210\nGPU KV cache size: 1,024 tokens",
         "0.11.1rc6.dev210"),
    ],
)  # fmt: skip
def test_eras(log: str, text: str) -> None:
    """Forms together narrow the releases; a release that the log names is taken at its word."""
    reads, _ = read_kinds(LogText(log), VLLM)
    assert era_of(reads, None).text == text


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ("0.11.0", "0.11.0"), ("v0.11.0", "0.11.0"), ("0.11.1rc6.dev210+gabc", "0.11.0"),
        ("0.20.1+cu129", "0.20.1"), ("0.33.7", "0.33.0"), ("1.0", None), ("0.1.5", None),
        ("nightly", None),
    ],
)  # fmt: skip
def test_a_build_between_releases(named: str, known: str | None) -> None:
    """A candidate follows the release before it; what is no release of these is none."""
    assert nearest_release(named) == known


def test_lines_that_contradict_each_other() -> None:
    """Of lines from releases that do not meet the earlier word stands."""
    reads, _ = read_kinds(
        LogText("# CUDA blocks: 10, # CPU blocks: 20\nkv cache group sizes (1, 2)"), VLLM
    )
    assert era_of(reads, None).releases


def test_rules_are_asked_once_each() -> None:
    """Releases that count alike are tried once, the newest first."""
    reads, _ = read_kinds(LogText("GPU KV cache size: 1,024 tokens"), VLLM)
    tried = era_of(reads, None).representatives()
    assert tried[0] is release("0.27.1")
    assert 3 <= len(tried) < len(KNOWN_RELEASES)


@pytest.mark.parametrize(
    ("log", "engine"),
    [
        ("GPU KV cache size: 75,840 tokens", "vllm"),
        (("llama_kv_cache_unified: size =  256.00 MiB (  2048 cells,  32 layers,  1 seqs), "
         "K (f16):  128.00 MiB, V (f16):  128.00 MiB"), "llama_cpp"),
        ("KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB", "llama_cpp"),
        ("KV Cache is allocated. #tokens: 46611, K size: 1.42 GB, V size: 1.42 GB", "sglang"),
        ("[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 512", "tensorrt_llm"),
        ('msg=offload layers.model=25 memory.required.kv="300.0 MiB"', "ollama"),
        ("CREATE TABLE kv (size INT); -- 12 tokens of 4 GiB", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_engine_shows_in_its_lines(log: str, engine: str | None) -> None:
    """An engine is known by the form of its own lines, and none is guessed."""
    assert engine_of(LogText(log))[0] == engine
