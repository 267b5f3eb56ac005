"""vLLM 0.33.0's own planning functions, run on layer specs: every figure must agree."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from app.engines.vllm.capacity import Pool, PoolSettings, fill_pool
from app.engines.vllm.printed import printed_lines, printed_tokens
from app.engines.vllm.specs import LayerSpec, RequestBounds, SlidingSpec, UniformSpec
from app.engines.vllm.types import Layers
from app.engines.vllm.versions import release
from tests.engines.vllm.cases import KIND_OF_TYPE, load, spec_of

CASES = load("vllm_spec_cases")
NEWEST = release("0.33.0")


def workers_of(case: dict[str, Any]) -> list[Layers]:
    """Return each worker's layers by name."""
    lookahead = case["input"]["config"]["num_prefill_lookahead_tokens"]
    workers: list[Layers] = []
    for runs in case["input"]["workers"]:
        layers: dict[str, LayerSpec] = {}
        for run in runs:
            spec = spec_of(run["spec"])
            assert spec.page_bytes == run["spec"]["page_size_bytes"]
            if isinstance(spec, SlidingSpec):
                spec = replace(spec, extra_retained_tokens=max(0, lookahead - 1))
            layers |= dict.fromkeys(run["layer_names"], spec)
        workers.append(layers)
    return workers


def pool_of(case: dict[str, Any]) -> Pool:
    """Return our pool for a measured case."""
    config = case["input"]["config"]
    workers = workers_of(case)
    memory = case["input"]["available_memory_bytes"]
    settings = PoolSettings(
        release=NEWEST,
        bounds=RequestBounds(
            max_model_len=config["max_model_len"],
            in_flight_tokens=config["max_in_flight_tokens"],
            encoder_tokens=config["max_num_encoder_input_tokens"],
            decode_context_parallel=config["dcp"],
        ),
        hybrid_manager=not config["disable_hybrid_kv_cache_manager"],
        block_outermost=config["layout"].startswith("B"),
        blocks_override=config["num_gpu_blocks_override"],
        auto_fit=config["auto_fit"],
    )
    return fill_pool(workers, memory if isinstance(memory, list) else [memory], settings)


def test_there_are_cases() -> None:
    """The file holds the 57 published cases."""
    assert len(CASES) == 57


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_groups_are_those_of_the_engine(case: dict[str, Any]) -> None:
    """Layers, kind, block size and page of every group, in order.

    The file lists a worker's layers by spec, not by index, so their order in a group is not asked.
    """
    got = [(set(g.layers), g.spec.kind, g.spec.block_size, g.spec.page_bytes)
           for g in pool_of(case).grouping.groups]  # fmt: skip
    want = []
    for group in case["output"]["groups"]:
        spec = group.get("spec", group)
        kind = KIND_OF_TYPE[spec["type"]]
        want.append((set(group["layer_names"]), kind, spec["block_size"], spec["page_size_bytes"]))
    assert got == want


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_pool_is_that_of_the_engine(case: dict[str, Any]) -> None:
    """Bytes per block, blocks, blocks per request, concurrency and tokens."""
    pool, out = pool_of(case), case["output"]
    assert [w.bytes_per_block or None for w in pool.workers] == out["bytes_per_block_per_worker"]
    if not case["input"]["config"]["auto_fit"]:  # else it was recorded before the length was set
        assert [w.needed_bytes for w in pool.workers] == out["max_memory_usage_bytes_per_worker"]
    if "error" in out:
        assert pool.refusal is not None
        estimated = re.search(r"estimated maximum model length is (\d+)", out["error"])
        assert estimated is not None
        assert pool.refusal.estimated_max_model_len == int(estimated[1])
        return
    assert pool.refusal is None
    assert pool.num_blocks == out["num_blocks"]
    assert pool.max_model_len == out["max_model_len_after"]
    if "kv_cache_size_tokens" not in out:
        assert pool.concurrency is None
        return
    assert pool.concurrency is not None
    assert list(pool.group_blocks) == out["blocks_per_max_len_request_by_group"]
    assert pool.concurrency.numerator / pool.concurrency.denominator == out["max_concurrency"]
    assert printed_tokens(pool, NEWEST) == out["kv_cache_size_tokens"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_lines_are_those_of_the_engine(case: dict[str, Any]) -> None:
    """The log lines, word for word, and the error where it stops."""
    config = case["input"]["config"]
    lines = printed_lines(
        pool_of(case), NEWEST, context_parallel=config["dcp"],
        blocks_override=config["num_gpu_blocks_override"], auto_fit=config["auto_fit"],
    )  # fmt: skip
    want = [re.sub(r"^[A-Z]+ \[[\w.]+\] ", "", line) for line in case["log_lines"]]
    if "error" in case["output"]:
        want.append(case["output"]["error"].removeprefix("ValueError: "))
    assert [line.text for line in lines] == want


def test_uniform_group_counts_its_members() -> None:
    """A group of mixed pages carries its members and the sum of their pages."""
    case = next(c for c in CASES if c["name"] == "uniform_type_varying_kv_heads")
    spec = pool_of(case).grouping.groups[0].spec
    assert isinstance(spec, UniformSpec)
    assert len(spec.members) == 24
    assert spec.unpadded_page_bytes == spec.page_bytes == 393216
