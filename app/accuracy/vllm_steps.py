"""vLLM's block pool and cache manager, step by step: answers, free order, counts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from app.accuracy.case import AccuracyCase, Evidence, Figure, Question, Suite, outcome_of
from app.accuracy.data import load
from app.domain.cache_groups import ChunkGroup, FullGroup, GroupSpec, StateGroup, WindowGroup
from app.domain.cache_manager import CacheManager
from app.domain.cache_settings import CacheSettings
from app.domain.errors import DomainError, OutOfRange
from app.domain.pool import BlockPool
from app.domain.vllm_hashes import vllm_chain
from app.domain.vllm_prompt import VllmPrompt
from app.web.marks import mark

VERSION = "0.33.0"
Row = Mapping[str, Any]
Step = Mapping[str, Any]
# The scenario with a drafter does not say how far it looks ahead; two tokens give its tables.
_LOOKAHEAD = {"spec_decode_lookahead": 2}
# A hash is recorded by its first digits.
_SHOWN_HASH, _SHOWN_TRACED = 16, 8


def _case(
    suite: Suite, name: str, settings: str, steps: int, replay: Callable[[], Iterator[bool]]
) -> AccuracyCase:
    """Return how many steps go the engine's way before one does not."""
    alike, reason = 0, ""
    try:
        for agrees in replay():
            if not agrees:
                break
            alike += 1
    except DomainError as error:
        reason = str(error)
    figure = Figure(name="steps alike", measured=steps, computed=alike)
    return AccuracyCase(
        suite=suite.name,
        id=name,
        engine="vllm",
        version=VERSION,
        family="",
        model=name,
        settings=settings,
        figures=(figure,),
        outcome=outcome_of([figure]),
        reason=reason,
    )


# The pool alone


class _PoolReplay:
    """One scenario on our pool."""

    def __init__(self, scenario: Row) -> None:
        self.size: int = scenario["block_size"]
        self.pool = BlockPool(scenario["num_gpu_blocks"], caching=scenario["enable_caching"])
        self.named: dict[str, tuple[int, ...]] = {}

    def hashes(self, tokens: list[int]) -> tuple[str, ...]:
        return vllm_chain(VllmPrompt(tokens=tokens, block_size=self.size, hash_seed="0")).hashes

    def do(self, step: Step) -> object:
        """Take a step and return what it answers, as the engine's was recorded."""
        op = step["op"]
        if op == "alloc":
            try:
                self.named[step["as"]], _ = self.pool.allocate(step["n"])
            except OutOfRange:
                return f"ValueError: Cannot get {step['n']} free blocks from the pool"
            return list(self.named[step["as"]])
        if op == "cache":
            hashes = self.hashes(step["tokens"])
            for index, (block, name) in enumerate(
                zip(self.named[step["as"]], hashes, strict=False)
            ):
                self.pool.cache_full(block, (name, 0), (index + 1) * self.size)
            return [name[:_SHOWN_HASH] for name in hashes]
        if op == "lookup":
            return list(self.pool.find_prefix([(name, 0) for name in self.hashes(step["tokens"])]))
        if op == "free":
            self.pool.release(reversed(self.named[step["as"]]))
        else:
            steps = {"free_ids": self.pool.release, "touch": self.pool.touch,
                     "evict": self.pool.evict}  # fmt: skip
            steps[op](step["ids"])
        return None

    def after(self) -> dict[str, object]:
        """Return the pool in the record's words."""
        usage = self.pool.usage
        return {
            "free_order": list(self.pool.free_queue),
            "num_free": self.pool.free_blocks,
            "ref_cnt": {str(block): count for block, count in self.pool.ref_counts.items()},
            "cached": {str(block): name[:_SHOWN_HASH] for block, name in self.pool.cached.items()},
            "usage": 1 - (usage.usable_blocks - usage.used_blocks) / usage.usable_blocks,
        }


def _pool_steps(scenario: Row) -> Iterator[bool]:
    replay = _PoolReplay(scenario)
    for step in scenario["steps"]:
        yield (replay.do(step), replay.after()) == (step["result"], step["after"])


def ask_pool(scenario: Row) -> AccuracyCase:
    """Return one scenario of the pool alone."""
    settings = f"blocks={scenario['num_gpu_blocks']} block_size={scenario['block_size']}"
    return _case(POOL, scenario["name"], settings, len(scenario["steps"]),
                 partial(_pool_steps, scenario))  # fmt: skip


# The manager: requests over groups of layers


def _measured_group(spec: Row) -> GroupSpec:
    size = spec["block_size"]
    if spec["type"] == "FullAttentionSpec":
        return FullGroup(block_size=size)
    if spec["type"] == "SlidingWindowSpec":
        return WindowGroup(block_size=size, window=spec["sliding_window"],
                           extra_retained=spec["extra_retained_tokens"])  # fmt: skip
    return StateGroup(block_size=size, mode=spec["mamba_cache_mode"],
                      speculative_blocks=spec["num_speculative_blocks"])  # fmt: skip


def _prompt(tokens: list[int], lookahead: int = 0) -> VllmPrompt:
    return VllmPrompt(tokens=tokens, block_size=1, lookahead_tokens=lookahead)


def _manager_after(manager: CacheManager) -> dict[str, object]:
    usage = manager.pool.usage
    return {
        "free_order": list(manager.pool.free_queue),
        "num_free": manager.pool.free_blocks,
        "ref_cnt": {str(block): count for block, count in manager.pool.ref_counts.items()},
        "usage": round(usage.used_blocks / usage.usable_blocks, 9),
    }


def _manager_steps(scenario: Row) -> Iterator[bool]:
    given = scenario["input"]
    ahead = _LOOKAHEAD.get(scenario["name"], 0)
    manager = CacheManager(
        CacheSettings(
            num_blocks=given["num_blocks"],
            groups=[_measured_group(spec) for spec in given["specs"]],
            caching=given.get("caching", True),
            max_model_len=given.get("mml", 10**6),
            in_flight_tokens=given.get("inflight"),
            watermark_blocks=int(given.get("watermark", 0) * given["num_blocks"]),
        )
    )
    for name, request in scenario["requests"].items():
        manager.add(name, _prompt(request["prompt_tokens"]))
    for step in scenario["steps"]:
        agrees = True
        if step["op"] == "free":
            manager.free(step["req"])
        else:
            agrees = _schedule(manager, step, ahead)
        yield agrees and _manager_after(manager) == step["after"]


def _schedule(manager: CacheManager, step: Step, ahead: int) -> bool:
    name = step["req"]
    if manager.computed(name) == len(manager.tokens(name)):
        manager.append(name, [1_000 + manager.computed(name)])
    manager.begin_step()
    done = manager.schedule(name, step["num_new_tokens"], lookahead_tokens=ahead)
    if (done.admitted, done.hit_tokens) != (step["ok"], step["prefix_hit_tokens"]):
        return False
    return not done.admitted or (
        [list(row) for row in done.new_blocks] == step["new_block_ids"]
        and [list(row) for row in done.tables] == step["all_block_ids"]
    )


def ask_manager(scenario: Row) -> AccuracyCase:
    """Return one scenario of the cache manager."""
    settings = f"blocks={scenario['input']['num_blocks']}"
    return _case(MANAGER, scenario["name"], settings, len(scenario["steps"]),
                 partial(_manager_steps, scenario))  # fmt: skip


# Random steps, recorded


_KINDS: dict[str, type[FullGroup | WindowGroup | ChunkGroup | StateGroup]] = {
    kind.kind: kind for kind in (FullGroup, WindowGroup, ChunkGroup, StateGroup)
}


def _trace_steps(trace: Row) -> Iterator[bool]:
    groups: list[GroupSpec] = [
        _KINDS[fields["kind"]](**{key: value for key, value in fields.items() if key != "kind"})
        for fields in trace["groups"]
    ]
    manager = CacheManager(
        CacheSettings(
            num_blocks=trace["num_blocks"],
            groups=groups,
            caching=trace["caching"],
            max_model_len=trace["max_model_len"],
            in_flight_tokens=trace["in_flight_tokens"],
            watermark_blocks=trace["watermark_blocks"],
        )
    )
    for op, *given in trace["steps"]:
        yield _take(manager, op, given, trace["lookahead_hash_tokens"])


def _take(manager: CacheManager, op: str, given: list[Any], lookahead: int) -> bool:
    """Take one recorded step; return whether it answers as recorded."""
    if op == "schedule":
        name, count, ahead, whole, in_flight, hit, new_blocks = given
        done = manager.schedule(name, count, lookahead_tokens=ahead, whole_must_fit=whole,
                                in_flight_tokens=in_flight)  # fmt: skip
        answer = (done.hit_tokens, done.admitted, [list(row) for row in done.new_blocks])
        return answer == (hit, new_blocks is not None, new_blocks or [])
    if op == "reset":
        return manager.pool.reset() is given[0]
    if op == "after":
        return _is_after(manager, given)
    if op == "add":
        manager.add(given[0], _prompt(given[1], lookahead))
    else:
        steps: dict[str, Callable[..., object]] = {
            "begin_step": manager.begin_step, "append": manager.append, "free": manager.free,
            "preempt": manager.preempt, "evict": manager.pool.evict,
        }  # fmt: skip
        steps[op](*given)
    return True


def _is_after(manager: CacheManager, given: list[Any]) -> bool:
    free_queue, counts, cached, tables = given
    pool = manager.pool
    return (
        list(pool.free_queue) == free_queue
        and pool.ref_counts == dict(counts)
        and [[b, name[:_SHOWN_TRACED]] for b, name in pool.cached.items()] == cached
        and all(
            [list(row) for row in manager.tables(request)] == rows
            for request, rows in tables.items()
        )
    )


def ask_trace(number: int, trace: Row) -> AccuracyCase:
    """Return one recorded trace."""
    kinds = ", ".join(group["kind"] for group in trace["groups"])
    settings = f"blocks={trace['num_blocks']} caching={trace['caching']} groups={kinds}"
    return _case(TRACES, f"trace {number}", settings, len(trace["steps"]),
                 partial(_trace_steps, trace))  # fmt: skip


def _pools() -> list[Question]:
    return [partial(ask_pool, scenario) for scenario in load(POOL.file)]


def _managers() -> list[Question]:
    return [partial(ask_manager, scenario) for scenario in load(MANAGER.file)]


def _traces() -> list[Question]:
    return [partial(ask_trace, number, trace) for number, trace in enumerate(load(TRACES.file))]


POOL = Suite(
    name="vllm_pool_steps",
    engine="vllm",
    title=mark("vLLM's block pool, step by step"),
    what=mark("Answers, free order, reference counts, names and usage after every step."),
    evidence=Evidence.RUN,
    file="vllm_block_pool_scenarios",
    questions=_pools,
)
MANAGER = Suite(
    name="vllm_manager_steps",
    engine="vllm",
    title=mark("vLLM's cache manager, step by step"),
    what=mark("Hits, admissions and block tables of requests over several groups of layers."),
    evidence=Evidence.RUN,
    file="vllm_kv_cache_manager_scenarios",
    questions=_managers,
)
TRACES = Suite(
    name="vllm_cache_traces",
    engine="vllm",
    title=mark("vLLM's cache manager on random steps"),
    what=mark("Recorded steps over groups of every kind, alone and mixed."),
    evidence=Evidence.RUN,
    file="vllm_cache_traces",
    questions=_traces,
)
