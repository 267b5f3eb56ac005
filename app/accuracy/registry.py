"""All suites, in the order in which they are asked; a new one is a line here."""

from __future__ import annotations

from importlib import import_module

from app.accuracy.case import Suite

# Module and name, so that nothing is imported before the figures are asked for.
_SUITES = (
    ("yardstick", "SUITE"),
    ("transformers_runs", "RELEASED"),
    ("vllm_plans", "CHECKPOINTS"),
    ("vllm_plans", "ARCHITECTURES"),
    ("vllm_pools", "SPECS"),
    ("engine_runs", "LOGS"),
    ("engine_runs", "LLAMA_CPP"),
    ("engine_runs", "SGLANG"),
    ("transformers_runs", "CACHES"),
    ("transformers_runs", "CLASSES"),
    ("parameters", "SUITE"),
    ("parameters", "BUILT"),
    ("vllm_pools", "RELEASES"),
    ("vllm_parts", "PARALLEL"),
    ("vllm_parts", "HASHES"),
    ("vllm_steps", "POOL"),
    ("vllm_steps", "MANAGER"),
    ("vllm_steps", "TRACES"),
    ("vllm_logs", "SUITE"),
)


def suites() -> tuple[Suite, ...]:
    """Return every suite."""
    found = []
    for module, name in _SUITES:
        suite: Suite = getattr(import_module(f"app.accuracy.{module}"), name)
        found.append(suite)
    return tuple(found)
