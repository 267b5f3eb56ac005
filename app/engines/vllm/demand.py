"""What a request takes of vLLM's pool on one worker: whole blocks of its groups, reserves included.

A pool keeps one null block (v1/core/block_pool.py), which no request may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.state import MAX_TOKENS, ModelState
from app.engines.vllm.plan import plan
from app.engines.vllm.planned import VllmPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmDemand:
    """A request's peak on a worker of one stage, by the plan of its settings.

    Groups are formed on the whole model, so that every stage hands out as many blocks.
    """

    plan: VllmPlan
    stage: int

    def __call__(self, tokens: int) -> int:
        """Return the bytes; nothing for a request of no tokens."""
        if not tokens:
            return 0
        bounds = self.plan.bounds.at(tokens)
        blocks = sum(group.spec.blocks_per_request(bounds) for group in self.plan.worker_groups)
        return blocks * self.plan.ranks[self.stage].bytes_per_block

    def usable(self, room: int) -> int:
        """Return the bytes that requests may have of a pool: whole blocks, less the null block."""
        unit = self.plan.ranks[self.stage].bytes_per_block
        return (room // unit - 1) * unit if unit and room >= unit else min(room, 0)


def vllm_demands(
    config: Mapping[str, object], state: ModelState, settings: Mapping[str, object]
) -> tuple[VllmDemand, ...]:
    """Return what requests of any length take on each stage under these settings.

    Raises:
        DomainError: as the plan does.

    """
    asked = {**settings, "max_model_len": MAX_TOKENS}
    planned = plan(config, state, asked, None)
    return tuple(VllmDemand(plan=planned, stage=stage) for stage in range(len(planned.ranks)))
