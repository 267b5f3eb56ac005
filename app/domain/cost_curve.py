"""How the cost of a step and of a whole run grows: the same counts at doubling lengths."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.cost import MAX_COST_TOKENS, StepCost, Work, generation_cost, step_cost
from app.domain.work_plan import WorkPlan

MAX_CURVE_POINTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One new token at a length, and a run from a prompt of one token to that length."""

    step: StepCost
    run_with_cache: Work
    run_without_cache: Work

    @property
    def length_tokens(self) -> int:
        """Return the positions there are after the step."""
        return self.step.length_tokens


def cost_curve(plan: WorkPlan, last_tokens: int, *, points: int = 10) -> tuple[CurvePoint, ...]:
    """Return the costs at the `points` largest powers of two up to `last_tokens`, shortest first.

    Lengths double, so that a linear cost doubles from point to point, a quadratic one becomes four
    times as much and a cubic one eight times.

    Raises:
        OutOfRange: for a length outside 1..MAX_COST_TOKENS, or points outside the bound.

    """
    checked_int(last_tokens, "last_tokens", low=1, high=MAX_COST_TOKENS)
    checked_int(points, "points", low=1, high=MAX_CURVE_POINTS)
    longest = last_tokens.bit_length() - 1
    exponents = range(max(0, longest - points + 1), longest + 1)
    return tuple(_point(plan, 2**exponent) for exponent in exponents)


def _point(plan: WorkPlan, length: int) -> CurvePoint:
    run = generation_cost(plan, prompt_tokens=1, output_tokens=length)
    return CurvePoint(
        step=step_cost(plan, length),
        run_with_cache=run.with_cache,
        run_without_cache=run.without_cache,
    )
