"""What a measured case is held against: figures, verdicts, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.measured import (
    DIFFERS,
    EXACT,
    EXPLAINED,
    PRINTED,
    CaseResult,
    Figure,
    llama_cpp_run,
)
from app.engines.measured_logs import log_result
from app.engines.request_cost import GrowingPart, RequestCost

DATA = Path(__file__).parents[1] / "data"
HEADERS: dict[str, dict[str, Any]] = json.loads((DATA / "engine_gguf_metadata.json").read_text())
LOGS: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((DATA / "engine_logs.json").read_text())
}


@pytest.mark.parametrize(
    ("computed", "best", "reason", "verdict"),
    [
        ("5", EXACT, "", EXACT),
        ("5", PRINTED, "shape inferred", PRINTED),
        ("6", EXACT, "", DIFFERS),
        ("6", EXACT, "not read", EXPLAINED),
    ],
)
def test_verdicts(computed: str, best: str, reason: str, verdict: str) -> None:
    """A figure that differs makes the case differ, unless a reason is known."""
    result = CaseResult(
        case="a",
        engine="b",
        model="c",
        figures=(Figure(name="f", measured="5", computed=computed),),
        best=best,
        reason=reason,
    )
    assert result.verdict == verdict


@pytest.mark.parametrize(("keys", "verdict"), [(0.06, PRINTED), (0.07, DIFFERS)])
def test_early_lines_count_states_as_a_cache(keys: float, verdict: str) -> None:
    """Before states had lines of their own, the self size named them as keys and values."""
    # 8 layers and 5 sequences of 3 × 128 and 16 × 128 elements of 4 B.
    case = {
        "model": "mamba.gguf",
        "commit": "0000000 (2024-05-15)",
        "settings": {"n_ctx": 512, "n_seq": 5},
        "engine_lines": [[0.37, keys, 0.31], 5],
    }
    result = llama_cpp_run(case, HEADERS)
    assert [figure.name for figure in result.figures] == ["KV self size", "K", "V", "kv_size"]
    assert result.verdict == verdict


def test_states_that_a_log_names_and_a_plan_lacks() -> None:
    """States that were logged for a model without states are a difference."""
    case = next(
        case
        for case in LOGS.values()
        if case["engine"] == "llama.cpp" and log_result(case).verdict == PRINTED
    )
    assert case["geometry"].get("ssm") is None
    changed = case | {"measured": case["measured"] | {"rs": {"MiB": 1.5}}}
    assert log_result(changed).verdict == DIFFERS


def test_a_request_cost_has_three_parts() -> None:
    """What comes at once, what stops growing, and what grows with every token."""
    cost = RequestCost(
        fixed_bytes=100,
        parts=(
            GrowingPart(name="full", bytes_per_entry=10, unit_entries=16),
            GrowingPart(name="window", bytes_per_entry=7, unit_entries=16, most_entries=64),
            GrowingPart(name="compressed", bytes_per_entry=6, tokens_per_entry=4),
        ),
    )
    assert (cost.slope_bytes_per_token, cost.saturating_bytes) == (12, 7 * 64)
    assert cost.bytes_at(0) == 0
    assert cost.bytes_at(1) == 100 + 160 + 112 + 6
    assert cost.bytes_at(1024) == 100 + 10 * 1024 + 7 * 64 + 6 * 256
