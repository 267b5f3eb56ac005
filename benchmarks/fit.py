"""What a call of `/fit` costs, and sweeps of 10,000 points, in CPU time of this process.

Budgets: 2 ms for a call without advice, 1 s for a sweep. Figures are the best of several rounds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 7
CALLS = 50
CALL_BUDGET_MS = 2.0
SWEEP_BUDGET_S = 1.0
BASE: dict[str, Any] = {
    "model": {"id": "meta-llama/Llama-3.1-8B"},
    "kv_dtype": "bf16",
    "device": "h100-sxm-80",
    "utilisation": 0.9,
    "context_tokens": 8192,
    "concurrency": 16,
}
CALLED = {
    "Llama 3.1 8B, one device": BASE,
    "DeepSeek V3, 8 ranks": {**BASE, "model": {"id": "deepseek-ai/DeepSeek-V3"},
                             "device": "h200-141", "tensor_parallel": 8},
    "gpt-oss-120b in vLLM's blocks": {**BASE, "model": {"id": "openai/gpt-oss-120b"},
                                      "engine": "vllm"},
}  # fmt: skip


def best_cpu_s(run: Callable[[], object], times: int) -> float:
    """Return the smallest CPU seconds of one call over the rounds."""
    run()
    found = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(times):
            run()
        found.append((time.process_time() - started) / times)
    return min(found)


def line(name: str, took: str, budget: str, *, holds: bool) -> None:
    """Print one figure beside its budget."""
    print(f"{name:44} {took:>12}   budget {budget}{'' if holds else '   << over'}")


def main() -> None:
    """Measure calls and sweeps, encoded answers included."""
    from app.api.fit import answer_fit
    from app.api.fit_schemas import FitRequest
    from app.api.sweep import SweepRequest, answer_sweep
    from app.catalog.devices import devices

    for name, body in CALLED.items():
        text = json.dumps(body).encode()
        took = 1000 * best_cpu_s(
            lambda text=text: answer_fit(  # type: ignore[misc]
                FitRequest.model_validate_json(text)
            ).model_dump_json(),
            CALLS,
        )
        line(name, f"{took:.2f} ms", f"{CALL_BUDGET_MS} ms", holds=took <= CALL_BUDGET_MS)
    ids = list(devices())[:100]
    sweeps: dict[str, dict[str, Any]] = {
        "10,000 context lengths": {"context_tokens": list(range(1, 10_001))},
        "100 devices × 5 types × 20 lengths": {
            "devices": ids,
            "kv_dtypes": ["bf16", "fp16", "fp8", "int8", "fp32"],
            "context_tokens": [1024 * step for step in range(1, 21)],
        },
        "100 devices × 5 types × 4 splits × 5 lengths": {
            "devices": ids,
            "kv_dtypes": ["bf16", "fp16", "fp8", "int8", "fp32"],
            "tensor_parallel": [1, 2, 4, 8],
            "context_tokens": [1024, 4096, 16_384, 65_536, 131_072],
        },
    }
    for name, axes in sweeps.items():
        request = SweepRequest.model_validate({"base": BASE, **axes})
        took = best_cpu_s(lambda request=request: answer_sweep(request).model_dump_json(), 1)  # type: ignore[misc]
        line(name, f"{took:.2f} s", f"{SWEEP_BUDGET_S} s", holds=took <= SWEEP_BUDGET_S)
