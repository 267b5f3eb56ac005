"""Every measured cache is reproduced to the byte, tensor by tensor."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.engines.transformers import TransformersPlan, plan
from app.engines.transformers.unreproduced import UNREPRODUCED

DATA = Path(__file__).parents[2] / "data"


@cache
def packed(name: str) -> dict[str, Any]:
    """Return a file of measured cases."""
    with gzip.open(DATA / name) as file:
        found: dict[str, Any] = json.load(file)
    return found


CACHES = packed("transformers_caches.json.gz")
RELEASED = packed("transformers_released.json.gz")["cases"]


def settings_of(case: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings under which a case was measured."""
    scenario = case["scenario"]
    static = scenario.startswith("static") or "static" in scenario
    found: dict[str, object] = {
        "cache": "static" if static else "dynamic",
        "batch": case.get("effective_batch", case["batch"]),
        "prompt_tokens": case["prompt_tokens"],
        "decode_steps": case["decode_steps"],
        "dtype": case["dtype"],
    }
    if "max_cache_len" in case:
        found["max_cache_len"] = case["max_cache_len"]
    if "encoder_tokens" in case:
        found["encoder_tokens"] = case["encoder_tokens"]
    if "quant" in case:
        found |= {"cache": "quantized", **case["quant"]}
    if scenario == "generate-fp32":
        found["generate"] = True
    return found


def ours(answer: TransformersPlan) -> list[list[object]]:
    """Return the plan's layers in the form of the file, equal neighbours joined."""
    rows: list[list[Any]] = []
    for layer in answer.layers:
        row = [
            layer.kind,
            [[t.name, t.role, list(t.shape), t.dtype, t.bytes] for t in layer.tensors],
        ]
        if rows and rows[-1][1:] == row:
            rows[-1][0] += 1
        else:
            rows.append([1, *row])
    return rows


def theirs(case: Mapping[str, Any]) -> list[list[object]]:
    """Return the measured layers without their storage."""
    rows: list[list[Any]] = []
    for count, kind, tensors in case["layers"]:
        row = [kind, [tensor[:5] for tensor in tensors]]
        if rows and rows[-1][1:] == row:
            rows[-1][0] += count
        else:
            rows.append([count, *row])
    return rows


def test_there_are_cases() -> None:
    """The files hold the cases that the next tests go through."""
    assert len(CACHES["cases"]) == 1069
    assert len(RELEASED) == 144
    assert set(UNREPRODUCED) <= {case["id"] for case in CACHES["cases"] + RELEASED}


@pytest.mark.parametrize("case", CACHES["cases"], ids=lambda case: case["id"])
def test_each_tensor_of_a_small_model(case: dict[str, Any]) -> None:
    """Names, shapes, dtypes, bytes and allocations are those of a real forward pass."""
    if case["id"] in UNREPRODUCED:
        pytest.skip(UNREPRODUCED[case["id"]])
    answer = plan(CACHES["configs"][case["config"]], settings_of(case))
    assert ours(answer) == theirs(case)
    assert answer.cache_bytes == case["total_bytes"]
    assert answer.storage_bytes == case["storage_bytes"]
    if not case["scenario"].startswith("generate"):
        assert answer.prefill_bytes == case["trace_bytes"][0]
        assert answer.prefill_storage_bytes == case["trace_storage_bytes"][0]


SAVED = [case for case in CACHES["cases"] if "saved" in case]


@pytest.mark.parametrize("case", SAVED, ids=lambda case: case["id"])
def test_a_saved_config_gives_the_same(case: dict[str, Any]) -> None:
    """A config.json without what equals its class's defaults gives the same tensors."""
    answer = plan(CACHES["configs"][case["saved"]], settings_of(case))
    assert ours(answer) == theirs(case)


@pytest.mark.parametrize("case", RELEASED, ids=lambda case: case["id"])
def test_released_checkpoints(case: dict[str, Any]) -> None:
    """A released checkpoint's own config.json gives the tensors measured at its full size."""
    answer = plan(case["config"], settings_of({**case, "scenario": "dynamic"}))
    found: Counter[object] = Counter()
    for layer in answer.layers:
        found[(layer.kind, tuple((t.name, t.role, t.shape, t.dtype) for t in layer.tensors))] += 1
    measured: Counter[object] = Counter()
    for kind, count, _, tensors in case["groups"]:
        rows = tuple((name, role, tuple(shape), dtype) for name, role, shape, dtype in tensors)
        measured[(kind, rows)] += count
    assert found == measured
    assert answer.cache_bytes == case["total_bytes"]
