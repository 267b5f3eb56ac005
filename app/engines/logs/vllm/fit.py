"""What a log leaves unsaid, found from its figures: the fewest settings under which all agree.

A start-up line says little of the settings behind it. Where the settings that are known do not
give the printed figures, a bounded number of others is tried, those that people use most first;
the first under which every figure agrees is taken, and named as inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import prod

from app.domain.errors import DomainError
from app.engines import vllm
from app.engines.logs.numbers import Printed
from app.engines.logs.search import most_plans
from app.engines.logs.vllm.era import Era
from app.engines.logs.vllm.evidence import (
    ANY,
    Evidence,
    Refused,
    Span,
    blocks_of_memory,
    intersect,
    print_rule,
)
from app.engines.logs.vllm.hypotheses import Bound, hypotheses, what_matters
from app.engines.model import EngineModel
from app.engines.vllm import PlannedRank, VllmPlan
from app.engines.vllm.specs import MambaSpec
from app.engines.vllm.versions import release as release_named

Settings = Mapping[str, object]
MOST_PLANS = 300
MOST_TRIALS = 20_000
# A rank whose memory no line shows may have held less than the one that was printed: a seventh was
# measured with the first engine, a hundredth since (tests/data/vllm_logs.json). By more than a
# fifth no two ranks are taken to differ; by a twentieth where the ranks themselves are assumed, and
# not at all where more is, since any two figures can be made to go together so.
SMALLER_RANK_WEIGHT = 1.2
LEAST_SHARE = (4, 5)
_LEAST_SHARE_ASSUMED = (19, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A plan and the blocks that every figure of the log allows under it.

    `blocks` is empty (its first end above its second) where no number of blocks prints them all;
    `kept` then is what the memory and those figures leave that do not contradict the ones before.
    `from_memory` is that of --num-gpu-blocks-override where it is set, whatever memory there is.
    `smaller_rank` says that the pool is that of a rank with less memory than was printed;
    `borne_out` that some line of the pool goes with the memory, or that no line gives the memory.
    """

    settings: Settings
    plan: VllmPlan
    blocks: Span
    kept: Span
    from_memory: Span
    refusal_agrees: bool
    shape_agrees: bool
    smaller_rank: bool = False
    borne_out: bool = True
    inferred: Settings

    @property
    def agrees(self) -> bool:
        """Whether every figure agrees."""
        return self.blocks[0] <= self.blocks[1] and self.refusal_agrees and self.shape_agrees

    @property
    def misses(self) -> int:
        """How many kinds of figure do not agree."""
        return (
            int(self.blocks[0] > self.blocks[1])
            + int(not self.refusal_agrees)
            + int(not self.shape_agrees)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Printed figures that follow from the layers alone: blocks grown, layers and states padded."""

    attention_block: int | None = None
    padding_layers: frozenset[str] = frozenset()
    state_padding: Printed | None = None

    def __bool__(self) -> bool:
        """Say whether any such line was read."""
        grown = self.attention_block is not None or self.state_padding is not None
        return grown or bool(self.padding_layers)


def fit(
    model: EngineModel,
    evidence: Evidence,
    shape: Shape,
    known: Settings,
    era: Era,
    tensor_ranks: int | None,
) -> tuple[Fit | None, DomainError | None]:
    """Return the best fit, or the refusal of the plan where none could be made.

    Without a figure to fit, the plan of the known settings is all there is.
    """
    evidence = replace(evidence.of_pool, shows_ranks=tensor_ranks is not None)
    best: Fit | None = None
    best_weight = 0.0
    refusal: DomainError | None = None
    bound = Bound.of(model, evidence)
    planned = 0
    seen: set[tuple[tuple[str, object], ...]] = set()
    trials = hypotheses(model, known, era, tensor_ranks, evidence, has_shape=bool(shape))
    most = most_plans(model, MOST_PLANS)
    for weight, inferred in islice(trials, MOST_TRIALS):
        if planned == most or (best is not None and best.agrees and weight >= best_weight):
            break
        settings = {**known, **inferred}
        key = what_matters(settings, model)
        if key in seen or (planned and bound.excludes(settings)):
            continue
        seen.add(key)
        planned += 1
        try:
            found = _fit_of(model, evidence, shape, settings, inferred)
        except DomainError as error:
            refusal = refusal or error
            continue
        own = weight + (SMALLER_RANK_WEIGHT + _gap(found) if found.smaller_rank else 0.0)
        if best is None or (found.misses, own) < (best.misses, best_weight):
            best, best_weight = found, own
    return best, refusal


def _gap(found: Fit) -> float:
    """Return how far the smaller rank lies below the printed one, as a weight."""
    high = found.from_memory[1] or 1
    return 2.0 * (1 - found.blocks[1] / high)


def _fit_of(
    model: EngineModel, evidence: Evidence, shape: Shape, settings: Settings, inferred: Settings
) -> Fit:
    smallest = evidence.smallest
    memory = evidence.memory_bytes
    low, high = (memory, memory) if memory is not None else (0, 2**50)
    if memory is None and smallest is not None:
        low, high = smallest.bytes
    plan = vllm.plan(model.config, model.state, settings, max(high, 0))
    rule = print_rule(plan, settings)
    from_memory = ANY
    if memory is not None or smallest is not None:
        from_memory = blocks_of_memory(plan, low, high)
    by_hand = settings.get("num_gpu_blocks_override")
    if isinstance(by_hand, int):
        from_memory = (by_hand, by_hand)
    spans = [rule.blocks_of_tokens(tokens) for _, tokens in evidence.tokens]
    spans += [
        replace(rule, length=length).blocks_of_concurrency(printed)
        if not rule.release.has_groups
        else rule.blocks_of_concurrency(printed)
        for _, length, printed in evidence.concurrencies
        if length == plan.max_model_len or not rule.release.has_groups
    ]
    spans += [(blocks, blocks) for _, blocks, _ in evidence.blocks]
    spans += [_blocks_held(tokens, rule.smallest_block) for _, _, tokens in evidence.too_long]
    printed_span = intersect(ANY, *spans)
    blocks = intersect(from_memory, printed_span)
    smaller = False
    if (
        blocks[0] > blocks[1]
        and spans
        and by_hand is None
        and _rank_unseen(evidence, settings, inferred)
    ):
        part, whole = _least_share(evidence, inferred)
        least = -(-from_memory[1] * part // whole)
        below = intersect((least, from_memory[1]), printed_span)
        if below[0] <= below[1]:
            blocks, smaller = below, True
    return Fit(
        settings=settings,
        plan=plan,
        blocks=blocks,
        kept=_kept((blocks if smaller else from_memory, *spans)),
        from_memory=from_memory,
        refusal_agrees=_refusal_agrees(model, evidence, settings, plan),
        shape_agrees=_shape_agrees(shape, plan),
        smaller_rank=smaller,
        borne_out=smaller or _goes_with_any(from_memory, spans),
        inferred=inferred,
    )


def _least_share(evidence: Evidence, inferred: Settings) -> tuple[int, int]:
    """Return what part of the printed memory an unseen rank has at least."""
    defaults = {"tensor_parallel_size": 1, "kv_cache_dtype": "auto"}
    assumed = {name for name, value in inferred.items() if defaults.get(name) != value}
    if assumed - {"version", "tensor_parallel_size"}:
        return (1, 1)
    first_engine = bool(evidence.too_long)
    if "tensor_parallel_size" in assumed and not (evidence.shows_ranks or first_engine):
        return _LEAST_SHARE_ASSUMED
    return LEAST_SHARE


def _goes_with_any(from_memory: Span, spans: Sequence[Span]) -> bool:
    """Say whether a line of the pool goes with the memory, or there is none to contradict it."""
    both = (intersect(from_memory, span) for span in spans)
    return not spans or any(low <= high for low, high in both)


def _kept(spans: Sequence[Span]) -> Span:
    """Return the intersection of the spans, each left out that would empty it."""
    # Memory that holds no block leaves none.
    kept = (0, ANY[1])
    for span in spans:
        tried = intersect(kept, span)
        kept = tried if tried[0] <= tried[1] else kept
    return kept


def _blocks_held(tokens: int, block: int) -> Span:
    return (tokens // block, tokens // block) if tokens % block == 0 else (1, 0)


def _rank_unseen(evidence: Evidence, settings: Settings, inferred: Settings) -> bool:
    """Say whether a rank with less memory than was printed may be assumed: its line is not here.

    Not on top of an assumed format, which would make any two figures go together.
    """
    if inferred.get("kv_cache_dtype", "auto") != "auto":
        return False
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    sizes = [settings.get(name, 1) for name in names]
    return evidence.memory_ranks < prod(size for size in sizes if isinstance(size, int))


def _refusal_agrees(
    model: EngineModel, evidence: Evidence, settings: Settings, plan: VllmPlan
) -> bool:
    """Say whether the plan needs what the refusal says, and would fit what it estimates."""
    for refused in evidence.refused:
        own = plan
        if refused.length != plan.max_model_len:
            own = vllm.plan(
                model.config, model.state, {**settings, "max_model_len": refused.length}, None
            )
        if not any(refused.needed.holds_bytes(rank.needed_bytes, "GiB") for rank in own.ranks):
            return False
        if refused.estimate is not None:
            span = estimates_between(model, {**settings, "max_model_len": refused.length}, refused)
            if span is not None and not span[0] <= refused.estimate[1] <= span[1]:
                return False
    return True


def refusing_rank(plan: VllmPlan, refused: Refused) -> PlannedRank:
    """Return the stage whose check a refusal is of: the first that needs what it prints.

    Stages are checked in order and the first one to refuse is told of. Each may have another
    memory, so where none needs that, it is the first that needs more than is printed as there.
    """
    for rank in plan.ranks:
        if refused.needed.holds_bytes(rank.needed_bytes, "GiB"):
            return rank
    there = 0 if refused.available is None else refused.available.bytes("GiB")[0]
    over = [rank for rank in plan.ranks if rank.needed_bytes > there]
    return (over or list(plan.ranks))[0]


def estimates_between(
    model: EngineModel, settings: Settings, refused: Refused
) -> tuple[int, int] | None:
    """Return the lengths that would be estimated at the ends of a refusal's printed memory."""
    if refused.available is None:
        return None
    release = str(settings.get("version", ""))
    ends = []
    for size in refused.available.bytes("GiB"):
        # The refusal prints the memory that the check sees: without the null block since 0.29.
        plan = vllm.plan(model.config, model.state, settings, max(size, 0))
        rank = refusing_rank(plan, refused)
        if _keeps_null_block(release):
            unit = rank.bytes_per_block
            plan = vllm.plan(model.config, model.state, settings, max(size, 0) + unit)
        ends.append(plan.ranks[rank.pipeline_rank].estimated_max_model_len)
    if ends[0] is None:
        return None
    return ends[0], plan.max_model_len if ends[1] is None else ends[1]


def _keeps_null_block(name: str) -> bool:
    return release_named(name).keeps_null_block if name else True


def _shape_agrees(shape: Shape, plan: VllmPlan) -> bool:
    if shape.attention_block is not None and plan.block_size != shape.attention_block:
        return False
    if shape.state_padding is not None:
        percent = state_padding_percent(plan)
        if percent is not None and not shape.state_padding.holds(percent):
            return False
    padded = {line for line in plan.printed if line.startswith("Add ")}
    return all(any(text in line for line in padded) for text in shape.padding_layers)


def state_padding_percent(plan: VllmPlan) -> Fraction | None:
    """Return by how much of itself the largest state is padded to its page; None without states."""
    specs = [spec for layers in plan.layer_specs for spec in layers.values()]
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    if not states:
        return None
    state = max(states, key=lambda spec: spec.unpadded_page_bytes)
    return Fraction(state.page_bytes - state.unpadded_page_bytes, state.unpadded_page_bytes) * 100
