"""What a changed start would come to for one request, in a sentence."""

from __future__ import annotations

from app.domain.notes import Note
from app.engines.logs.numbers import gib_text
from app.engines.logs.vllm.table import Table
from app.engines.vllm import VllmPlan


def verdict(plan: VllmPlan) -> Note:
    """Return what a plan comes to where the change leaves the memory for the cache as it was."""
    if not plan.refused:
        return Note(
            "starts",
            "one request then needs {needed}, and the engine starts with {concurrency} of them",
            _facts(plan),
        )
    return Note(
        "still_refused",
        "one request then needs {needed}, still too much; the longest that fits is {length} tokens",
        _facts(plan),
    )


def verdict_of_batch(table: Table, plan: VllmPlan) -> Note:
    """Return it for a smaller batch: the profile run's activations, not counted here, shrink."""
    facts = {**_facts(plan), "memory": _memory_text(table)}
    if not plan.refused:
        return Note(
            "starts",
            "one request then needs {needed}, and the engine starts with at least {concurrency} of"
            " them: the profile run's activations shrink too",
            facts,
        )
    return Note(
        "short_of_memory_now",
        "one request then needs {needed}, more than the {memory} there now; the profile run's"
        " activations shrink too, which leaves more, so at least {length} tokens fit",
        facts,
    )


def verdict_of_ranks(table: Table, plan: VllmPlan, devices: int) -> Note:
    """Return it for more ranks: their weights, not counted here, shrink as the cache does."""
    facts = {**_facts(plan), "memory": _memory_text(table), "devices": devices}
    if not plan.refused:
        return Note(
            "starts",
            "on {devices} devices in all, one request then needs {needed}, and the engine starts"
            " with at least {concurrency} of them: each rank's weights shrink too",
            facts,
        )
    return Note(
        "short_of_memory_now",
        "on {devices} devices in all, one request then needs {needed}, more than the {memory} there"
        " now; each rank's weights shrink too, which leaves more, so at least {length} tokens fit",
        facts,
    )


def _facts(plan: VllmPlan) -> dict[str, object]:
    return {
        "needed": gib_text(plan.needed_bytes),
        "concurrency": plan.max_concurrency_text or "1x",
        "length": f"{plan.longest_that_starts or 0:,}",
    }


def _memory_text(table: Table) -> str:
    return gib_text((table.memory or 0) - table.unseen)
