"""Plans of one start with a thing changed: what every piece of advice is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.errors import DomainError
from app.engines import vllm
from app.engines.logs.vllm.case import Case
from app.engines.vllm import VllmPlan
from app.engines.vllm.versions import release


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plans of the same start with one thing changed."""

    case: Case

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of the start."""
        assert self.case.fit is not None  # noqa: S101 - asked before
        return self.case.fit.settings

    @property
    def plan(self) -> VllmPlan:
        """Its plan."""
        assert self.case.fit is not None  # noqa: S101 - asked before
        return self.case.fit.plan

    @property
    def length(self) -> int:
        """The longest request that the log speaks of."""
        evidence = self.case.evidence
        if evidence.refused:
            return evidence.refused[0].length
        return evidence.too_long[0][1] if evidence.too_long else self.plan.max_model_len

    @property
    def memory(self) -> int | None:
        """The bytes for the cache on the smallest rank, as the log's figures leave them."""
        evidence, fit = self.case.evidence, self.case.fit
        assert fit is not None  # noqa: S101 - asked before
        for refused in evidence.refused:
            if refused.available is not None:
                return max(refused.available.bytes("GiB")[0], 0) + self.unseen
        blocks = self.case.blocks
        if blocks is not None and evidence.sized:
            return blocks * self.unit
        if evidence.memory_bytes is not None:
            return evidence.memory_bytes
        return max(evidence.smallest.bytes[0], 0) if evidence.smallest is not None else None

    @property
    def unseen(self) -> int:
        """The bytes of the null block where the log's own figures leave it out: a refusal's do."""
        given = any(refused.available is not None for refused in self.case.evidence.refused)
        return self.unit if given and release(self.plan.version).keeps_null_block else 0

    @property
    def unit(self) -> int:
        """The bytes of a block on the stage where it is largest."""
        return max(rank.bytes_per_block for rank in self.plan.ranks)

    def changed(self, changes: Mapping[str, object], memory: int | None) -> VllmPlan | None:
        """Return the plan with these settings, or None where the engine has no such."""
        model = self.case.model
        assert model is not None  # noqa: S101 - asked before
        settings = {**self.settings, "max_model_len": self.length, **changes}
        settings.pop("num_gpu_blocks_override", None)
        settings.pop("kv_cache_memory_bytes", None)
        try:
            return vllm.plan(model.config, model.state, settings, memory)
        except DomainError:
            return None


def least_bytes(plan: VllmPlan) -> int:
    """Return the memory that lets one request of the plan's length through, null block included."""
    unit = max(rank.bytes_per_block for rank in plan.ranks)
    return plan.needed_bytes + (unit if release(plan.version).keeps_null_block else 0)
