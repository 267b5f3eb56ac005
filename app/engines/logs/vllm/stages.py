"""What each pipeline stage of a start pays where the stages hold different layers.

Block tables are the same on every stage, so a request takes as many blocks on each; a block is as
large as the stage's own layers make it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from app.domain.notes import Note
from app.engines.logs.numbers import gib_text
from app.engines.logs.result import Advice
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.table import Table
from app.engines.vllm import VllmPlan
from app.engines.vllm.versions import release

# The first release whose check asks a stage for its own layers (v1/core/kv_cache_utils.py).
_PROJECTS_STAGES = "0.17"


def differ(plan: VllmPlan) -> bool:
    """Say whether a block is larger on one stage than on another."""
    return len({rank.bytes_per_block for rank in plan.ranks}) > 1


def slopes_text(plan: VllmPlan) -> str:
    """Return what one more token costs each stage."""
    first, slope = plan.ranks[0].bytes_per_block, plan.request.slope_bytes_per_token
    return _by_rank(
        [f"{float(slope * rank.bytes_per_block / first):,.0f} B" for rank in plan.ranks]
        if first
        else []
    )


def needs_text(plan: VllmPlan) -> str:
    """Return what one request of the plan's length needs on each stage for its own layers."""
    first, total = plan.ranks[0].bytes_per_block, plan.request.total_bytes
    return _by_rank(
        [gib_text(total * rank.bytes_per_block // first) for rank in plan.ranks] if first else []
    )


def _by_rank(values: list[str]) -> str:
    """Return values by the names that workers have in a log (PP0, PP1 …), like ones together."""
    parts = []
    for value, run in groupby(enumerate(values), key=lambda item: item[1]):
        numbers = [number for number, _ in run]
        last = f"–PP{numbers[-1]}" if len(numbers) > 1 else ""
        parts.append(f"PP{numbers[0]}{last} {value}")
    return ", ".join(parts)


def stage_remarks(plan: VllmPlan) -> Iterator[Note]:
    """Yield what a token and a request cost each stage, where that is not the same everywhere."""
    if differ(plan) and plan.ranks[0].bytes_per_block:
        yield Note(
            "stage_costs",
            "the pipeline's ranks hold different layers, so a token costs each its own: {slopes};"
            " one request of {length} tokens needs {needs}",
            {
                "slopes": slopes_text(plan),
                "length": f"{plan.max_model_len:,}",
                "needs": needs_text(plan),
            },
        )


def charges_all_layers(plan: VllmPlan) -> bool:
    """Say whether the start-up check charges every stage with the layers of all: 0.14 to 0.16."""
    rules = release(plan.version)
    return len(plan.ranks) > 1 and rules.since(0, 14) and not rules.check_projects_stages


def stage_advice(case: Case) -> Iterator[Advice]:
    """Yield the release that no longer charges a stage with the layers of others."""
    plan = case.plan
    if plan is None or not case.evidence.refused or not charges_all_layers(plan):
        return
    change = Note("newer_release", "vLLM {version} or later", {"version": _PROJECTS_STAGES})
    table = Table(case=case)
    facts: dict[str, object] = {
        "needs": needs_text(plan),
        "length": f"{plan.max_model_len:,}",
        "all": gib_text(plan.needed_bytes),
    }
    own_alone = Note(
        "own_layers_alone",
        "each rank is then asked for its own layers alone, {needs} for {length} tokens,"
        " instead of {all} on each",
        facts,
    )
    later = table.changed({"version": f"{_PROJECTS_STAGES}.0"}, table.memory)
    if later is None or not later.refused or table.memory is None:
        yield Advice(change=change, effect=own_alone)
        return
    facts |= {"memory": gib_text(table.memory), "longest": f"{later.longest_that_starts or 0:,}"}
    yield Advice(
        change=change,
        effect=Note(
            "own_layers_still_refused",
            "each rank is then asked for its own layers alone, {needs} for {length} tokens, instead"
            " of {all} on each: with {memory} on each still too much; the longest that fits is"
            " {longest} tokens",
            facts,
        ),
    )
