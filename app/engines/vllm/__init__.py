"""vLLM: what its block pool makes of a model, release by release.

`plan` is the way in; the names below are all that other packages need.
"""

from __future__ import annotations

from app.engines.vllm.plan import plan
from app.engines.vllm.planned import PlannedGroup, PlannedRank, VllmPlan
from app.engines.vllm.spending import RequestBytes, Spent
from app.engines.vllm.versions import KNOWN_RELEASES

__all__ = [
    "KNOWN_RELEASES",
    "PlannedGroup",
    "PlannedRank",
    "RequestBytes",
    "Spent",
    "VllmPlan",
    "plan",
]
