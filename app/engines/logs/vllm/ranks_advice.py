"""More tensor ranks, fewer replicas, or positions shared out: what each would make of a start."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.engines.logs.result import Advice
from app.engines.logs.vllm.table import Table
from app.engines.logs.vllm.verdicts import verdict, verdict_of_ranks
from app.engines.vllm import VllmPlan

_MOST_RANKS = 64
# The engine shares out the positions of these kinds alone, and of one group only: its coordinator
# of several groups has no context ranks (vLLM 0.33.0 v1/core/kv_cache_coordinator.py).
_SHARED_OUT = frozenset({"full_attention", "mla_attention"})


def ranks_advice(table: Table, memory: int) -> Iterator[Advice]:
    """Yield what divides a refused request: heads over more ranks, else positions over them."""
    ranks, replicas = _setting(table, "tensor_parallel_size"), _setting(table, "data_parallel_size")
    own = table.changed({}, memory)
    if own is None:
        return
    if replicas > 1:
        traded = _traded(table, own, memory)
        if traded is not None:
            yield traded
            return
    if ranks * 2 > _MOST_RANKS:
        return
    plan = table.changed({"tensor_parallel_size": ranks * 2}, memory)
    if plan is None:
        return
    if plan.needed_bytes < own.needed_bytes:
        yield Advice(
            change=Note(
                "tensor_parallel_size", "--tensor-parallel-size {ranks}", {"ranks": ranks * 2}
            ),
            effect=verdict_of_ranks(table, plan, devices_of(table) * 2),
        )
    elif ranks > 1 and shares_positions(own):
        sharded = table.changed({"decode_context_parallel_size": ranks}, memory)
        if sharded is not None and sharded.needed_bytes < own.needed_bytes:
            yield context_ranks(ranks, verdict(sharded))


def context_ranks(ranks: int, effect: Note) -> Advice:
    """Return the advice to share positions out over so many ranks."""
    return Advice(
        change=Note(
            "decode_context_parallel_size",
            "--decode-context-parallel-size {ranks}",
            {"ranks": ranks},
        ),
        effect=effect,
    )


def shares_positions(plan: VllmPlan) -> bool:
    """Say whether the engine can share out a request's positions: one group of full attention."""
    return len(plan.worker_groups) == 1 and plan.worker_groups[0].spec.kind in _SHARED_OUT


def devices_of(table: Table) -> int:
    """Return the devices that the start takes in all."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    tensor, stages, replicas = (_setting(table, name) for name in names)
    return tensor * stages * replicas


def _traded(table: Table, own: VllmPlan, memory: int) -> Advice | None:
    """Return replicas turned into tensor ranks on the same devices: as few as need the least."""
    ranks, replicas = _setting(table, "tensor_parallel_size"), _setting(table, "data_parallel_size")
    best: tuple[int, VllmPlan] | None = None
    least = own.needed_bytes
    for factor in (n for n in range(2, min(replicas, _MOST_RANKS) + 1) if replicas % n == 0):
        changes = {
            "tensor_parallel_size": ranks * factor,
            "data_parallel_size": replicas // factor,
        }
        plan = table.changed(changes, memory)
        if plan is not None and plan.needed_bytes < least:
            best, least = (factor, plan), plan.needed_bytes
    if best is None:
        return None
    factor, plan = best
    return Advice(
        change=Note(
            "tensor_for_data",
            "--tensor-parallel-size {ranks} --data-parallel-size {replicas}",
            {"ranks": ranks * factor, "replicas": replicas // factor},
        ),
        effect=verdict_of_ranks(table, plan, devices_of(table)),
    )


def _setting(table: Table, name: str) -> int:
    value = table.settings.get(name, 1)
    return value if isinstance(value, int) else 1
