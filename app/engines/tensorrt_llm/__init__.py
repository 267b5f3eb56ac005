"""What TensorRT-LLM's paged KV cache holds on its smallest rank, and prints."""

from __future__ import annotations

from app.engines.tensorrt_llm.plan import TensorrtLlmPlan, WindowPool, plan
from app.engines.tensorrt_llm.settings import ALIASES, KNOWN

__all__ = ["ALIASES", "KNOWN", "TensorrtLlmPlan", "WindowPool", "plan"]
