"""`/cost`: what a cache saves in work, and what it has to be read for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import Field

from app.api.answers import Answer, Explained, notes_answer
from app.api.cost_schemas import CostRequest
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.cost import (
    MAX_COST_TOKENS,
    DecodeBound,
    DecodeStep,
    GenerationCost,
    Growth,
    StepCost,
    Work,
    decode_bound,
    decode_step,
    generation_cost,
    growth,
)
from app.domain.errors import Conflict, Missing
from app.domain.notes import Note
from app.domain.per_token import shape_of
from app.domain.request_bytes import effective_bytes
from app.domain.units import bytes_text, si_text

if TYPE_CHECKING:
    from app.api.work_input import Work as PricedWork
    from app.domain.cost_curve import CurvePoint

router = APIRouter(tags=["cost"], responses=REFUSED, route_class=JsonRoute)

# Batches shown beside the one asked for: how reading the weights once is shared out.
BATCHES = (1, 4, 16, 64, 256)
BYTES_PER_GB = 10**9


class WorkAnswer(Answer):
    """Multiply–accumulates and bytes of some passes."""

    projection_macs: int
    attention_macs: int
    logits_macs: int
    macs: int
    macs_text: str
    weights_read_bytes: int
    state_read_bytes: int
    read_bytes: int
    read_bytes_text: str


class StepAnswer(Answer):
    """One new token at a length, itself included, both ways."""

    length_tokens: int
    with_cache: WorkAnswer
    without_cache: WorkAnswer


class GrowthAnswer(Answer):
    """By what each cost multiplies when the length doubles: 2 linear, 4 quadratic, 8 cubic."""

    length_tokens: int
    step_attention_with: float
    step_attention_without: float
    step_projections_with: float
    step_projections_without: float
    run_attention_with: float
    run_attention_without: float
    run_projections_with: float
    run_projections_without: float


class CurveAnswer(Answer):
    """Attention and projections at one length: of a step, and of a run from one token to it."""

    length_tokens: int
    step_attention_with_macs: int
    step_attention_without_macs: int
    step_projections_with_macs: int
    step_projections_without_macs: int
    run_attention_with_macs: int
    run_attention_without_macs: int
    run_projections_with_macs: int
    run_projections_without_macs: int


class DecodeAnswer(Answer):
    """One decode step of a batch; the bound is there where a bandwidth is known."""

    batch: int
    length_tokens: int
    macs: int
    weights_read_bytes: int
    state_read_bytes: int
    read_bytes: int
    read_bytes_text: str
    flops_per_byte: float = Field(description="Arithmetic intensity: 2 × macs / read_bytes.")
    bandwidth_bytes_per_s: int | None
    seconds_per_step: float | None
    tokens_per_s_bound: float | None = Field(description="Of the whole batch.")


class CostAnswer(Explained):
    """A generation both ways, how it grows, and its decode step against a bandwidth."""

    prompt_tokens: int
    output_tokens: int
    passes: int
    with_cache: WorkAnswer
    without_cache: WorkAnswer
    saved_macs: int = Field(description="Work that the cache saves; memory is what it takes.")
    cache_bytes: int = Field(description="What the cache holds at the end, for one sequence.")
    cache_bytes_text: str
    first_step: StepAnswer
    last_step: StepAnswer
    growth: GrowthAnswer
    curve: list[CurveAnswer]
    device: str | None
    decode: DecodeAnswer | None = Field(description="Null where the weights are not known.")
    decode_by_batch: list[DecodeAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """A decode step, and its bound where a bandwidth is known."""

    step: DecodeStep
    bound: DecodeBound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParts:
    """A request's answer as domain values."""

    work: PricedWork
    cost: GenerationCost
    cache_bytes: int
    growth: Growth
    curve: tuple[CurvePoint, ...]
    device_name: str | None
    decode: Decode | None
    decode_by_batch: tuple[Decode, ...]
    not_counted: tuple[Note, ...]

    @property
    def formula(self) -> str:
        """Return the cached run's work as the sum of its parts."""
        done = self.cost.with_cache
        return (
            f"{done.projection_macs} projections + {done.attention_macs} attention + "
            f"{done.logits_macs} logits = {done.macs} MAC with the cache, "
            f"{self.cost.without_cache.macs} MAC without"
        )


def compute_cost(request: CostRequest) -> CostParts:
    """Return the cost of a request; raises a DomainError that names the field."""
    from app.api.work_input import read_work
    from app.domain.cost_curve import cost_curve

    work = read_work(request)
    cost = generation_cost(
        work.plan, prompt_tokens=request.prompt_tokens, output_tokens=request.output_tokens
    )
    name, bandwidth = _bandwidth(request)
    length = request.decode_tokens or cost.last_step.length_tokens
    reading = work.given.reading
    groups = shape_of(reading.state, work.given.formats).groups
    left_out = cost.not_counted
    decode: Decode | None = None
    others: tuple[Decode, ...] = ()
    try:
        decode = _decode(work, request, request.batch, length, bandwidth)
        others = tuple(_decode(work, request, size, length, bandwidth) for size in BATCHES)
    except Missing:
        left_out = (*left_out, Note("decode", "No decode step: the weights are not known."))
    curve_end = min(cost.last_step.length_tokens, MAX_COST_TOKENS)
    curve = cost_curve(work.plan, curve_end)
    return CostParts(
        work=work,
        cost=cost,
        cache_bytes=effective_bytes(groups, cost.last_step.length_tokens),
        growth=growth(work.plan, curve[-2 if len(curve) > 1 else -1].length_tokens),
        curve=curve,
        device_name=name,
        decode=decode,
        decode_by_batch=others,
        not_counted=left_out,
    )


def _bandwidth(request: CostRequest) -> tuple[str | None, int | None]:
    """Return the device's name and bandwidth, or the bandwidth as given, or neither."""
    if request.device is None:
        return None, request.bandwidth_bytes_per_s
    if request.bandwidth_bytes_per_s is not None:
        raise Conflict("{field} and device both say a bandwidth: give one",
                       field="bandwidth_bytes_per_s")  # fmt: skip
    from app.catalog.devices import device

    row = device(request.device)
    listed = row["bandwidth_gb_s"]
    if listed is None:
        raise Missing("{field}: no bandwidth is known for {device}; give bandwidth_bytes_per_s",
                      field="device", device=row["name"])  # fmt: skip
    return row["name"], int(Fraction(str(listed)) * BYTES_PER_GB)


def _decode(
    work: PricedWork, request: CostRequest, batch: int, length: int, bandwidth: int | None
) -> Decode:
    weights = None if request.weights is None else request.weights.bytes
    step = decode_step(work.plan, batch=batch, length_tokens=length, weights_bytes=weights)
    if bandwidth is None:
        return Decode(step=step, bound=None)
    bound = decode_bound(
        work.plan,
        batch=batch,
        length_tokens=length,
        bandwidth_bytes_per_s=bandwidth,
        weights_bytes=weights,
    )
    return Decode(step=step, bound=bound)


def answer_cost(request: CostRequest) -> CostAnswer:
    """Return the answer of `/cost`."""
    return cost_answer(compute_cost(request))


def cost_answer(parts: CostParts) -> CostAnswer:
    """Return a cost as JSON shows it."""
    cost = parts.cost
    return CostAnswer(
        prompt_tokens=cost.prompt_tokens,
        output_tokens=cost.output_tokens,
        passes=cost.passes,
        with_cache=_work_answer(cost.with_cache),
        without_cache=_work_answer(cost.without_cache),
        saved_macs=cost.saved_macs,
        cache_bytes=parts.cache_bytes,
        cache_bytes_text=bytes_text(parts.cache_bytes),
        first_step=_step_answer(cost.first_step),
        last_step=_step_answer(cost.last_step),
        growth=GrowthAnswer(
            **{name: getattr(parts.growth, name) for name in GrowthAnswer.model_fields}
        ),
        curve=[_curve_answer(point) for point in parts.curve],
        device=parts.device_name,
        decode=None if parts.decode is None else _decode_answer(parts.decode),
        decode_by_batch=[_decode_answer(item) for item in parts.decode_by_batch],
        formula=parts.formula,
        workings=cost.workings,
        assumptions=notes_answer(parts.work.assumed),
        not_counted=notes_answer(parts.not_counted),
    )


def _work_answer(work: Work) -> WorkAnswer:
    return WorkAnswer(
        projection_macs=work.projection_macs,
        attention_macs=work.attention_macs,
        logits_macs=work.logits_macs,
        macs=work.macs,
        macs_text=si_text(work.macs, "MAC"),
        weights_read_bytes=work.weights_read_bytes,
        state_read_bytes=work.state_read_bytes,
        read_bytes=work.read_bytes,
        read_bytes_text=bytes_text(work.read_bytes),
    )


def _step_answer(step: StepCost) -> StepAnswer:
    return StepAnswer(
        length_tokens=step.length_tokens,
        with_cache=_work_answer(step.with_cache),
        without_cache=_work_answer(step.without_cache),
    )


def _curve_answer(point: CurvePoint) -> CurveAnswer:
    step, once, again = point.step, point.run_with_cache, point.run_without_cache
    return CurveAnswer(
        length_tokens=point.length_tokens,
        step_attention_with_macs=step.with_cache.attention_macs,
        step_attention_without_macs=step.without_cache.attention_macs,
        step_projections_with_macs=step.with_cache.projection_macs,
        step_projections_without_macs=step.without_cache.projection_macs,
        run_attention_with_macs=once.attention_macs,
        run_attention_without_macs=again.attention_macs,
        run_projections_with_macs=once.projection_macs,
        run_projections_without_macs=again.projection_macs,
    )


def _decode_answer(decode: Decode) -> DecodeAnswer:
    step, bound = decode.step, decode.bound
    return DecodeAnswer(
        batch=step.batch,
        length_tokens=step.length_tokens,
        macs=step.macs,
        weights_read_bytes=step.weights_read_bytes,
        state_read_bytes=step.state_read_bytes,
        read_bytes=step.read_bytes,
        read_bytes_text=bytes_text(step.read_bytes),
        flops_per_byte=step.flops_per_byte,
        bandwidth_bytes_per_s=None if bound is None else bound.bandwidth_bytes_per_s,
        seconds_per_step=None if bound is None else bound.seconds_per_step,
        tokens_per_s_bound=None if bound is None else bound.tokens_per_s_bound,
    )


@router.post("/cost", summary="Work and bytes read, with a cache and without")
async def cost(request: CostRequest) -> CostAnswer:
    """Count a generation both ways, and hold its decode step against a bandwidth."""
    return answer_cost(request)
