"""What llama.cpp, the fork ik_llama.cpp and Ollama allocate for a context, and print."""

from __future__ import annotations

from app.engines.llama_cpp.placement import DeviceBytes
from app.engines.llama_cpp.plan import plan
from app.engines.llama_cpp.result import CachePlan, LlamaCppPlan, RecurrentPlan
from app.engines.llama_cpp.settings import ALIASES, KNOWN, Runner
from app.engines.llama_cpp.versions import NEWEST

__all__ = [
    "ALIASES",
    "KNOWN",
    "NEWEST",
    "CachePlan",
    "DeviceBytes",
    "LlamaCppPlan",
    "RecurrentPlan",
    "Runner",
    "plan",
]
