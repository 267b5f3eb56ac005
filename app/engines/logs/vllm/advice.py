"""What to change in a vLLM start, and by how much: each effect is a plan's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.numbers import decimal, gib_text
from app.engines.logs.out_of_memory import out_of_memory_advice
from app.engines.logs.result import Advice
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.evidence import print_rule
from app.engines.logs.vllm.failures import (
    for_inputs_profiled,
    for_long_profile,
    for_nothing_left,
    for_state_blocks,
)
from app.engines.logs.vllm.ranks_advice import context_ranks, ranks_advice, shares_positions
from app.engines.logs.vllm.stages import stage_advice
from app.engines.logs.vllm.table import Table, least_bytes
from app.engines.logs.vllm.verdicts import verdict, verdict_of_batch
from app.engines.vllm import VllmPlan
from app.engines.vllm.versions import release

_BATCHES = (8192, 4096, 2048, 1024, 512)
_HALVED = "fp8"
_SHARE_FLAG = "--gpu-memory-utilization"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to serve: a length, and how many requests of it at once."""

    context_tokens: int | None = None
    concurrency: int | None = None


def advice_of(case: Case, wish: Wish) -> tuple[Advice, ...]:
    """Return changes with their effects; none where no plan was made and no line says enough."""
    made = [
        *out_of_memory_advice(case.reads, _SHARE_FLAG),
        *for_nothing_left(case),
        *for_state_blocks(case),
    ]
    made += stage_advice(case)
    # A model whose layers keep nothing has no block, and nothing to make room for.
    if case.plan is not None and any(rank.bytes_per_block for rank in case.plan.ranks):
        table = Table(case=case)
        if case.evidence.refused or case.evidence.too_long or _is_short(table):
            made += _refused(table)
        elif wish.context_tokens is None and wish.concurrency is None:
            made += _started(table)
        if wish.context_tokens is not None or wish.concurrency is not None:
            made += _wished(table, wish)
    made += for_long_profile(case)
    made += for_inputs_profiled(case)
    return tuple(made)


def _is_short(table: Table) -> bool:
    """Say whether the memory alone, without a line of the pool, holds no full-length request."""
    memory, evidence = table.memory, table.case.evidence
    if evidence.sized or not evidence.memories or not memory:
        return False
    own = table.changed({}, memory)
    return own is not None and own.refused


def _refused(table: Table) -> Iterator[Advice]:
    memory = table.memory
    own = table.changed({}, memory)
    if own is None or memory is None:
        return
    yield from _shorter(table, own, memory)
    yield from _more_memory(table, own, memory)
    yield from _smaller_format(table, memory)
    yield from _smaller_batch(table, memory)
    yield from ranks_advice(table, memory)


def _shorter(table: Table, own: VllmPlan, memory: int) -> Iterator[Advice]:
    length = own.longest_that_starts
    refusals = table.case.evidence.refused
    said = [refused.estimate[1] for refused in refusals if refused.estimate is not None]
    # What the error says is of one stage, and another may need more.
    widest = all(refused.needed.holds_bytes(own.needed_bytes, "GiB") for refused in refusals)
    if said and widest and table.case.fit is not None and table.case.fit.refusal_agrees:
        length = min(said)
    if table.case.evidence.too_long:
        length = min(tokens for _, _, tokens in table.case.evidence.too_long)
    if length:
        yield Advice(
            change=Note("max_model_len", "--max-model-len {length}", {"length": length}),
            effect=Note(
                "longest_that_fits",
                "the longest request that the {memory} for the cache holds",
                {"memory": gib_text(memory - table.unseen)},
            ),
        )


def _more_memory(table: Table, own: VllmPlan, memory: int) -> Iterator[Advice]:
    short = least_bytes(own) - memory
    if short <= 0:
        return
    # As the log counts it: a refusal leaves out the null block on both sides.
    least = least_bytes(own) - table.unseen
    total = _device_bytes(table.case)
    if total is not None:
        share = Fraction(short, total)
        yield Advice(
            change=Note(
                "gpu_memory_utilization",
                "--gpu-memory-utilization higher by at least {share}",
                {"share": f"{float(share):.3f}"},
            ),
            effect=Note(
                "one_request_fits",
                "{short} more for the cache on each rank: {least}, what"
                " one request of {length} tokens needs",
                {"short": gib_text(short), "least": gib_text(least), "length": f"{table.length:,}"},
            ),
        )
        return
    yield Advice(
        change=Note(
            "more_memory",
            "{short} more for the cache on each rank (a higher"
            " --gpu-memory-utilization, or less for weights and activations)",
            {"short": gib_text(short)},
        ),
        effect=Note(
            "one_request_needs",
            "{least} are what one request of {length} tokens needs",
            {"least": gib_text(least), "length": f"{table.length:,}"},
        ),
    )


def _device_bytes(case: Case) -> int | None:
    """Return the device's memory, where a line gives it."""
    for code, group in (("free_memory", 1), ("budget", 0), ("profile_results", 0)):
        for found in case.reads.get(code, ()):
            printed = decimal(found.groups[group] or "")
            if printed is not None and printed.value > 0:
                return int(printed.value * 2**30)
    return None


def _smaller_format(table: Table, memory: int) -> Iterator[Advice]:
    if table.settings.get("kv_cache_dtype", "auto") not in ("auto", "bfloat16", "float16"):
        return
    plan = table.changed({"kv_cache_dtype": _HALVED}, memory)
    if plan is not None and plan.kv_cache_dtype != table.plan.kv_cache_dtype:
        yield Advice(change=Note("kv_cache_dtype", "--kv-cache-dtype fp8"), effect=verdict(plan))


def _smaller_batch(table: Table, memory: int) -> Iterator[Advice]:
    """Fewer batched tokens reserve less behind windows; their activations are not counted here."""
    given = table.settings.get("max_num_batched_tokens")
    now = given if isinstance(given, int) else 8192
    own = table.changed({}, memory)
    best: tuple[int, VllmPlan] | None = None
    for tokens in (batch for batch in _BATCHES if batch < now):
        plan = table.changed({"max_num_batched_tokens": tokens}, memory)
        if plan is None or own is None or plan.needed_bytes >= own.needed_bytes:
            return
        best = tokens, plan
        if not plan.refused:
            break
    if best is not None:
        yield Advice(
            change=Note(
                "max_num_batched_tokens", "--max-num-batched-tokens {tokens}", {"tokens": best[0]}
            ),
            effect=verdict_of_batch(table, best[1]),
        )


def _started(table: Table) -> Iterator[Advice]:
    """Advise a start that worked: what doubles the pool, and what one request needs of it."""
    memory = table.memory
    if memory is None or memory <= 0:
        return
    own = table.changed({}, memory)
    if own is None or own.refused:
        return
    halved = table.changed({"kv_cache_dtype": _HALVED}, memory)
    plain = table.settings.get("kv_cache_dtype", "auto") in ("auto", "bfloat16", "float16")
    if plain and halved is not None and halved.max_concurrency_text != own.max_concurrency_text:
        yield Advice(
            change=Note("kv_cache_dtype", "--kv-cache-dtype fp8"),
            effect=_pool_effect(own, halved),
        )
    ranks = table.settings.get("tensor_parallel_size", 1)
    shards = table.settings.get("decode_context_parallel_size", 1)
    if isinstance(ranks, int) and ranks > 1 and shards == 1 and shares_positions(own):
        sharded = table.changed({"decode_context_parallel_size": ranks}, memory)
        if sharded is not None and not sharded.refused:
            yield context_ranks(ranks, _pool_effect(own, sharded))
    # What its blocks take: the check of 0.14 to 0.18 asks for less.
    least = max(least_bytes(own), print_rule(own, table.settings).request_blocks * table.unit)
    yield Advice(
        change=_pool_of(table, least),
        effect=Note(
            "enough_for_one",
            "the least that serves one request of {length} tokens: {gib};"
            " the pool is otherwise whatever is left of the device",
            {"length": f"{own.max_model_len:,}", "gib": gib_text(least, 3)},
        ),
    )


def _pool_of(table: Table, least: int) -> Note:
    """Return the setting of a pool of so many bytes: in blocks where the release has no bytes."""
    if release(table.plan.version).has_memory_bytes:
        return Note("kv_cache_memory_bytes", "--kv-cache-memory-bytes {least}", {"least": least})
    return Note(
        "num_gpu_blocks_override",
        "--num-gpu-blocks-override {blocks}",
        {"blocks": -(-least // table.unit)},
    )


def _pool_effect(own: VllmPlan, changed: VllmPlan) -> Note:
    return Note(
        "pool_becomes",
        "{concurrency} requests of the full length instead of {before}, from the same memory",
        {
            "concurrency": changed.max_concurrency_text or "",
            "before": own.max_concurrency_text or "",
        },
    )


def _wished(table: Table, wish: Wish) -> Iterator[Advice]:
    length = wish.context_tokens or table.length
    times = wish.concurrency or 1
    plan = table.changed({"max_model_len": length}, None)
    if plan is None:
        return
    blocks = print_rule(plan, table.settings).request_blocks * times
    unit = max(rank.bytes_per_block for rank in plan.ranks)
    null = unit if release(plan.version).keeps_null_block else 0
    least = blocks * unit + null
    memory = table.memory
    facts = {
        "times": times,
        "length": f"{length:,}",
        "gib": gib_text(least),
        "least": least,
        "memory": "" if memory is None else gib_text(memory),
        "short": "" if memory is None else gib_text(abs(least - memory)),
    }
    change = _pool_of(table, least)
    if memory is None:
        yield Advice(
            change=change,
            effect=Note("wish_takes", "{times} × {length} tokens take {gib} on each rank", facts),
        )
        return
    if least <= memory:
        yield Advice(
            change=change,
            effect=Note(
                "wish_fits",
                "{times} × {length} tokens take {gib} on each rank; of {memory}"
                " there, {short} stay free",
                facts,
            ),
        )
        return
    yield Advice(
        change=change,
        effect=Note(
            "wish_short",
            "{times} × {length} tokens take {gib} on each rank, {short} more"
            " than the {memory} there",
            facts,
        ),
    )
    halved = table.changed({"max_model_len": length, "kv_cache_dtype": _HALVED}, None)
    if halved is not None and halved.kv_cache_dtype != plan.kv_cache_dtype:
        size = (
            print_rule(halved, table.settings).request_blocks
            * times
            * max(rank.bytes_per_block for rank in halved.ranks)
        )
        yield Advice(
            change=Note("kv_cache_dtype", "--kv-cache-dtype fp8"),
            effect=Note(
                "wish_takes",
                "{times} × {length} tokens take {gib} on each rank",
                {**facts, "gib": gib_text(size)},
            ),
        )
