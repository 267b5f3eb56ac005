"""Configs of public checkpoints to blocks, groups and tokens, as vLLM 0.33.0 planned them.

Measured on a Hopper device with 64 GiB for each worker's cache: tests/data/vllm_model_plans.json.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app.engines.vllm import VllmPlan, plan
from app.readers.hf_config import read_config
from tests.engines.vllm.cases import KIND_OF_TYPE, load, projected, projection_of

CASES: list[dict[str, Any]] = load("vllm_model_plans")
CONFIGS: dict[str, dict[str, Any]] = load("vllm_model_plan_configs")


def test_there_are_cases() -> None:
    """Every measured checkpoint has its config."""
    assert len(CASES) == 136
    assert {case["hf_id"] for case in CASES} == set(CONFIGS)


@pytest.fixture(scope="module")
def plans() -> dict[str, VllmPlan]:
    """Return the plan of each checkpoint."""
    return {
        case["hf_id"]: plan(
            CONFIGS[case["hf_id"]],
            read_config(CONFIGS[case["hf_id"]]).state,
            case["settings"] | {"version": "0.33.0"},
            case["available_bytes"],
        )
        for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hf_id"])
def test_a_checkpoint_gets_the_same_pool(plans: dict[str, VllmPlan], case: dict[str, Any]) -> None:
    """Blocks, tokens, groups, bytes a block, blocks a request and the log's lines are vLLM's."""
    got, want = plans[case["hf_id"]], case["expected"]
    assert got.num_gpu_blocks == want["num_blocks"]
    assert got.kv_cache_tokens == want.get("kv_cache_size_tokens")
    assert got.max_concurrency_text == want.get("max_concurrency_2dp")
    assert got.max_model_len == want["max_model_len_after"]
    assert [rank.bytes_per_block for rank in got.ranks] == [
        unit or 0 for unit in want["bytes_per_block"]
    ]
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
    assert list(got.printed) == want["log_lines"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hf_id"])
def test_each_layer_is_cached_alike(plans: dict[str, VllmPlan], case: dict[str, Any]) -> None:
    """Heads, widths, windows, states and element types of every layer are vLLM's.

    Checked before groups make pages equal, which the groups themselves show.
    """
    got = Counter(projected(spec) for spec in plans[case["hf_id"]].layer_specs[0].values())
    want: Counter[tuple[object, ...]] = Counter()
    for count, row in case["workers"][0]:
        want[projection_of(row)] += count
    assert got == want


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["hf_id"])
def test_the_parts_of_a_request_add_up(plans: dict[str, VllmPlan], case: dict[str, Any]) -> None:
    """Need and what is spent beyond it are all that the pool hands out to a request."""
    got = plans[case["hf_id"]]
    request = got.request
    assert request.need_bytes + sum(part.size_bytes for part in got.spent) == request.total_bytes
    assert request.total_bytes == (got.blocks_per_request or 0) * got.ranks[0].bytes_per_block
