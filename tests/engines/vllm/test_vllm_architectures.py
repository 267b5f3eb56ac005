"""One config of every architecture through ranks, stages, formats, devices and flags.

The configs in tests/data/vllm_architecture_configs.json are written by hand after public models;
what vLLM 0.33.0 made of them is measured in tests/data/vllm_architecture_cases.json.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.domain.errors import Conflict, DomainError, Unsupported
from app.engines.vllm import VllmPlan, plan
from app.readers.hf_config import read_config
from tests.engines.vllm.cases import KIND_OF_TYPE, load, projected, projection_of

ROWS: list[dict[str, Any]] = load("vllm_architecture_cases")
CONFIGS: dict[str, dict[str, Any]] = load("vllm_architecture_configs")
CASES = [row for row in ROWS if "fatal" not in row]
STARTED = [row for row in CASES if "error" not in row["expected"]]
REFUSED = [row for row in CASES if "error" in row["expected"]]
# What vLLM stopped at before it came to the cache; two more failed while it built the model's
# other parts, of which a plan knows nothing.
STOPPED: list[tuple[str, str, dict[str, Any], type[DomainError]]] = [
    ("qwen2.5-7b", "tp8", {"tensor_parallel_size": 8}, Conflict),
    ("falcon-7b", "tp2", {"tensor_parallel_size": 2}, Conflict),
    ("falcon-h1-7b", "tp8", {"tensor_parallel_size": 8}, Conflict),
    ("deepseek-v3", "kv_fp8_ds_mla", {"kv_cache_dtype": "fp8_ds_mla"}, Unsupported),
    ("deepseek-v3.2", "a100_base", {"device_capability": "8.0"}, Unsupported),
    (
        "deepseek-v3", "a100_kv_fp8",
        {"device_capability": "8.0", "kv_cache_dtype": "fp8"}, Unsupported,
    ),
    (
        "deepseek-v3.2", "a100_kv_fp8",
        {"device_capability": "8.0", "kv_cache_dtype": "fp8"}, Unsupported,
    ),
    ("glm-moe-dsa", "a100_base", {"device_capability": "8.0"}, Unsupported),
]  # fmt: skip
ELSEWHERE = {("dots1", "base"), ("gpt-oss-120b", "tp16")}


def name_of(case: dict[str, Any]) -> str:
    """Return the name under which a case is reported."""
    return f"{case['name']}-{case['variant']}"


def planned(case: dict[str, Any]) -> VllmPlan:
    """Return the plan of a case."""
    config = CONFIGS[case["name"]]
    return plan(config, read_config(config).state, case["settings"], case["available_bytes"])


def test_there_are_cases() -> None:
    """Each measured case is asked below, once."""
    assert len(STARTED) == 147
    assert len(REFUSED) == 3
    fatal = {(row["name"], row["variant"]) for row in ROWS if "fatal" in row}
    assert fatal == {(name, variant) for name, variant, _, _ in STOPPED} | ELSEWHERE


@pytest.mark.parametrize("case", STARTED, ids=name_of)
def test_a_model_gets_the_same_pool(case: dict[str, Any]) -> None:
    """Blocks, tokens, groups, bytes a block, fitted length and the log's lines are vLLM's."""
    got, want = planned(case), case["expected"]
    assert not got.refused
    assert got.num_gpu_blocks == want["num_blocks"]
    assert got.kv_cache_tokens == want["kv_cache_size_tokens"]
    assert got.max_concurrency_text == want["max_concurrency_2dp"]
    assert got.max_model_len == want["max_model_len_after"]
    assert [rank.bytes_per_block for rank in got.ranks] == want["bytes_per_block"]
    assert [
        [g.layers, g.kind, g.block_size, g.page_size_bytes, g.blocks_per_request]
        for g in got.groups
    ] == [
        [
            g["num_layers"],
            KIND_OF_TYPE[g["type"]],
            g["block_size"],
            g["page_size_bytes"],
            g["blocks"],
        ]
        for g in want["groups"]
    ]
    # With several stages the log of the measured runs was not kept.
    if len(case["workers"]) == 1:
        assert list(got.printed) == want["log_lines"]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_each_layer_of_each_stage_is_cached_alike(case: dict[str, Any]) -> None:
    """Heads, widths, windows, states and element types are vLLM's on every pipeline stage."""
    got = planned(case)
    assert got.kv_cache_dtype == case["cache_dtype"]
    assert len(got.layer_specs) == len(case["workers"])
    for layers, rows in zip(got.layer_specs, case["workers"], strict=True):
        want: Counter[tuple[object, ...]] = Counter()
        for count, row in rows:
            want[projection_of(row)] += count
        assert Counter(projected(spec) for spec in layers.values()) == want


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_too_little_memory_is_refused_in_the_engines_words(case: dict[str, Any]) -> None:
    """The error names the need, what there is, and the length that would fit."""
    got = planned(case)
    assert got.refused
    assert got.num_gpu_blocks is None
    assert got.printed[-1] in case["expected"]["error"]
    assert str(got.estimated_max_model_len) in case["expected"]["error"]


@pytest.mark.parametrize(("name", "variant", "settings", "error"), STOPPED)
def test_what_cannot_be_served_is_refused(
    name: str, variant: str, settings: dict[str, Any], error: type[DomainError]
) -> None:
    """Heads that ranks cannot share, and formats without a backend, stop the plan too."""
    assert [row["fatal"] for row in ROWS if (row["name"], row["variant"]) == (name, variant)]
    with pytest.raises(error):
        plan(CONFIGS[name], read_config(CONFIGS[name]).state, settings, 40 * 2**30)
