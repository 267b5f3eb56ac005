"""What SGLang allocates for keys, values and states on its smallest rank, and prints."""

from __future__ import annotations

from app.engines.sglang.plan import PoolPlan, SglangPlan, plan
from app.engines.sglang.settings import ALIASES, KNOWN, NEWEST

__all__ = ["ALIASES", "KNOWN", "NEWEST", "PoolPlan", "SglangPlan", "plan"]
