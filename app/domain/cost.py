"""What a cache costs and saves: multiply–accumulates and bytes read, with it and without it.

A generation of P prompt and N output tokens is N passes: one over the prompt, which yields the
first new token, and N − 1 that each put one more token through (the last token is never put
through). With the cache a pass computes its new position only and reads the rows in its sight;
without it every pass computes the whole prefix again. So projections grow per token as a constant
against the length, and attention as the length against its square; over a whole generation that
is N against N² and N² against N³.

Counted exactly: matrix products of projections, MLP and logits, and the two products of attention
(q · K and weights · V). A multiply–accumulate is two floating-point operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Missing
from app.domain.notes import Note
from app.domain.work_plan import WorkPlan
from app.domain.working import Working

MAX_COST_TOKENS = 10**7
MAX_BATCH = 2**20
MAX_BANDWIDTH_BYTES_PER_S = 10**15
MAX_WEIGHTS_BYTES = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Exact work of some passes, with projections, attention and logits apart."""

    projection_macs: int
    attention_macs: int
    logits_macs: int
    weights_read_bytes: int
    state_read_bytes: int

    @property
    def macs(self) -> int:
        """Return all multiply–accumulates."""
        return self.projection_macs + self.attention_macs + self.logits_macs

    @property
    def read_bytes(self) -> int:
        """Return all bytes read."""
        return self.weights_read_bytes + self.state_read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One new token at `length_tokens` (itself included), both ways."""

    length_tokens: int
    with_cache: Work
    without_cache: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How attention and projections multiply when the length doubles; 2 is linear, 4 quadratic."""

    length_tokens: int
    step_attention_with: float
    step_attention_without: float
    step_projections_with: float
    step_projections_without: float
    run_attention_with: float
    run_attention_without: float
    run_projections_with: float
    run_projections_without: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCost:
    """A whole generation, both ways, with its first and last decode step."""

    prompt_tokens: int
    output_tokens: int
    passes: int
    with_cache: Work
    without_cache: Work
    first_step: StepCost
    last_step: StepCost
    workings: dict[str, Working]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    @property
    def saved_macs(self) -> int:
        """Return the products that the cache saves: work, and neither memory nor hits."""
        return self.without_cache.macs - self.with_cache.macs


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One decode step of a batch of sequences of one length: its products beside its bytes."""

    batch: int
    length_tokens: int
    macs: int
    weights_read_bytes: int
    state_read_bytes: int

    @property
    def read_bytes(self) -> int:
        """Return the bytes of the step."""
        return self.weights_read_bytes + self.state_read_bytes

    @property
    def flops_per_byte(self) -> float:
        """Return the arithmetic intensity: two operations a product, over the bytes read."""
        return 2 * self.macs / self.read_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBound:
    """What memory bandwidth allows a decode step at a batch of sequences of one length.

    `tokens_per_s_bound` is of the whole batch. The figure is an upper bound: a step cannot be
    faster than its bytes, read once, take.
    """

    batch: int
    length_tokens: int
    bandwidth_bytes_per_s: int
    macs: int
    weights_read_bytes: int
    state_read_bytes: int
    flops_per_byte: float
    seconds_per_step: float
    tokens_per_s_bound: float

    @property
    def read_bytes(self) -> int:
        """Return the bytes of one step."""
        return self.weights_read_bytes + self.state_read_bytes


def step_cost(plan: WorkPlan, length_tokens: int) -> StepCost:
    """Return the work of computing position `length_tokens` both ways.

    Raises:
        OutOfRange: for a length outside 1..MAX_COST_TOKENS × 2.

    """
    length = checked_int(length_tokens, "length_tokens", low=1, high=2 * MAX_COST_TOKENS)
    return StepCost(
        length_tokens=length,
        with_cache=_decode_passes(plan, length - 1, length),
        without_cache=_prefix_pass(plan, length),
    )


def generation_cost(plan: WorkPlan, *, prompt_tokens: int, output_tokens: int) -> GenerationCost:
    """Return the work of a whole generation both ways.

    Raises:
        OutOfRange: for a prompt or an output outside 1..MAX_COST_TOKENS.

    """
    prompt = checked_int(prompt_tokens, "prompt_tokens", low=1, high=MAX_COST_TOKENS)
    output = checked_int(output_tokens, "output_tokens", low=1, high=MAX_COST_TOKENS)
    last = prompt + output - 1
    cached = _plus(_prefix_pass(plan, prompt), _decode_passes(plan, prompt, last))
    anew = _prefix_passes(plan, prompt, last)
    return GenerationCost(
        prompt_tokens=prompt,
        output_tokens=output,
        passes=output,
        with_cache=cached,
        without_cache=anew,
        first_step=step_cost(plan, min(prompt + 1, last)),
        last_step=step_cost(plan, last),
        workings=_workings(plan, prompt, output, cached, anew),
        assumptions=plan.assumptions,
        not_counted=plan.not_counted,
    )


def decode_step(
    plan: WorkPlan, *, batch: int, length_tokens: int, weights_bytes: int | None = None
) -> DecodeStep:
    """Return one decode step of `batch` sequences of `length_tokens` each, with the cache.

    The weights are read once for the whole batch, every sequence's state once each.
    `weights_bytes`, where known, replaces the weights counted from the shape.

    Raises:
        Missing: when neither the shape nor the caller says what the weights take.
        OutOfRange: outside the bounds of batch, length or weights.

    """
    checked_int(batch, "batch", low=1, high=MAX_BATCH)
    step = step_cost(plan, length_tokens).with_cache
    weights = plan.weights_bytes
    if weights_bytes is not None:
        weights = checked_int(weights_bytes, "weights_bytes", low=1, high=MAX_WEIGHTS_BYTES)
    if not weights:
        raise Missing("{field} is required where the model's sizes are not known",
                      field="weights_bytes")  # fmt: skip
    return DecodeStep(
        batch=batch,
        length_tokens=length_tokens,
        macs=batch * step.macs,
        weights_read_bytes=weights,
        state_read_bytes=batch * step.state_read_bytes,
    )


def decode_bound(
    plan: WorkPlan,
    *,
    batch: int,
    length_tokens: int,
    bandwidth_bytes_per_s: int,
    weights_bytes: int | None = None,
) -> DecodeBound:
    """Return arithmetic intensity and the bandwidth's bound of one decode step.

    Raises:
        Missing: as `decode_step`.
        OutOfRange: as `decode_step`, and outside the bounds of bandwidth.

    """
    bandwidth = checked_int(
        bandwidth_bytes_per_s, "bandwidth_bytes_per_s", low=1, high=MAX_BANDWIDTH_BYTES_PER_S
    )
    step = decode_step(plan, batch=batch, length_tokens=length_tokens, weights_bytes=weights_bytes)
    return DecodeBound(
        batch=batch,
        length_tokens=length_tokens,
        bandwidth_bytes_per_s=bandwidth,
        macs=step.macs,
        weights_read_bytes=step.weights_read_bytes,
        state_read_bytes=step.state_read_bytes,
        flops_per_byte=step.flops_per_byte,
        seconds_per_step=step.read_bytes / bandwidth,
        tokens_per_s_bound=batch * bandwidth / step.read_bytes,
    )


def growth(plan: WorkPlan, length_tokens: int) -> Growth:
    """Return by what factors a step and a run from one token grow when the length doubles.

    Raises:
        OutOfRange: for a length outside 1..MAX_COST_TOKENS / 2.

    """
    length = checked_int(length_tokens, "length_tokens", low=1, high=MAX_COST_TOKENS // 2)
    steps = [step_cost(plan, size) for size in (length, 2 * length)]
    runs = [generation_cost(plan, prompt_tokens=1, output_tokens=n) for n in (length, 2 * length)]

    def ratio(before: int, after: int) -> float:
        return after / before if before else 0.0

    return Growth(
        length_tokens=length,
        step_attention_with=ratio(*(s.with_cache.attention_macs for s in steps)),
        step_attention_without=ratio(*(s.without_cache.attention_macs for s in steps)),
        step_projections_with=ratio(*(s.with_cache.projection_macs for s in steps)),
        step_projections_without=ratio(*(s.without_cache.projection_macs for s in steps)),
        run_attention_with=ratio(*(r.with_cache.attention_macs for r in runs)),
        run_attention_without=ratio(*(r.without_cache.attention_macs for r in runs)),
        run_projections_with=ratio(*(r.with_cache.projection_macs for r in runs)),
        run_projections_without=ratio(*(r.without_cache.projection_macs for r in runs)),
    )


def _decode_passes(plan: WorkPlan, before: int, last: int) -> Work:
    """Return the passes over positions before + 1..last, one position each, with the cache."""
    passes = last - before
    pairs = [
        (group, group.sight.seen_up_to(last) - group.sight.seen_up_to(before))
        for group in plan.groups
    ]
    return Work(
        projection_macs=passes * plan.token_macs,
        attention_macs=sum(group.count * group.macs_per_pair * seen for group, seen in pairs),
        logits_macs=passes * plan.logits_macs,
        weights_read_bytes=passes * plan.weights_bytes,
        state_read_bytes=passes * plan.recurrent_bytes
        + sum(group.count * group.row_bytes * seen for group, seen in pairs),
    )


def _prefix_pass(plan: WorkPlan, length: int) -> Work:
    """Return one pass over a whole prefix: the prompt's, or any pass without a cache."""
    return _prefix_passes(plan, length, length)


def _prefix_passes(plan: WorkPlan, first: int, last: int) -> Work:
    """Return a pass over each prefix of first..last positions; each reads every row once."""
    passes = last - first + 1
    positions = (first + last) * passes // 2
    attention = rows = 0
    for group in plan.groups:
        sight = group.sight
        pairs = sight.seen_by_all_prefixes(last) - sight.seen_by_all_prefixes(first - 1)
        attention += group.count * group.macs_per_pair * pairs
        read = sight.rows_of_all_prefixes(last) - sight.rows_of_all_prefixes(first - 1)
        rows += group.count * group.row_bytes * read
    return Work(
        projection_macs=positions * plan.token_macs + passes * plan.encoder_macs,
        attention_macs=attention,
        logits_macs=passes * plan.logits_macs,
        weights_read_bytes=passes * (plan.weights_bytes + plan.encoder_weights_bytes),
        state_read_bytes=rows,
    )


def _plus(one: Work, other: Work) -> Work:
    return Work(
        projection_macs=one.projection_macs + other.projection_macs,
        attention_macs=one.attention_macs + other.attention_macs,
        logits_macs=one.logits_macs + other.logits_macs,
        weights_read_bytes=one.weights_read_bytes + other.weights_read_bytes,
        state_read_bytes=one.state_read_bytes + other.state_read_bytes,
    )


def _workings(
    plan: WorkPlan, prompt: int, output: int, cached: Work, anew: Work
) -> dict[str, Working]:
    """Return how the four totals of multiply–accumulates came about."""
    last = prompt + output - 1
    positions = (prompt + last) * output // 2
    encoder = f" + {plan.encoder_macs} for the encoder's rows" if plan.encoder_macs else ""
    pair_terms = [
        (
            group.count * group.macs_per_pair,
            group.sight.seen_up_to(last),
            group.sight.seen_by_all_prefixes(last) - group.sight.seen_by_all_prefixes(prompt - 1),
        )
        for group in plan.groups
    ]
    with_pairs = " + ".join(f"{macs} × {once} pairs" for macs, once, _ in pair_terms) or "0"
    without_pairs = " + ".join(f"{macs} × {again} pairs" for macs, _, again in pair_terms) or "0"
    return {
        "projections_with_cache": Working(
            symbols="weights a token passes × (P + N − 1) positions",
            numbers=f"{plan.token_macs} × {last}{encoder} = {cached.projection_macs}",
            result=cached.projection_macs,
            unit="MAC",
            source="each position is computed once",
        ),
        "projections_without_cache": Working(
            symbols="weights a token passes × Σ (P + i) for i in 0..N − 1",
            numbers=f"{plan.token_macs} × {positions}"
            + (f" + {output} × {plan.encoder_macs}" if plan.encoder_macs else "")
            + f" = {anew.projection_macs}",
            result=anew.projection_macs,
            unit="MAC",
            source="every pass computes its whole prefix",
        ),
        "attention_with_cache": Working(
            symbols="Σ over layers of query heads × (k + v) × rows in sight of positions 1..P+N−1",
            numbers=f"{with_pairs} = {cached.attention_macs}",
            result=cached.attention_macs,
            unit="MAC",
            source="a query reads each visible row once for its key and once for its value",
        ),
        "attention_without_cache": Working(
            symbols="the same, summed anew over each prefix of P..P+N−1 positions",
            numbers=f"{without_pairs} = {anew.attention_macs}",
            result=anew.attention_macs,
            unit="MAC",
            source="every pass attends with all positions of its prefix",
        ),
    }
