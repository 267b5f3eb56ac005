"""Costs at doubling lengths: which lengths, and by what each cost multiplies."""

from __future__ import annotations

import pytest

from app.domain.cost_curve import CurvePoint, cost_curve
from app.domain.dtypes import DTYPES
from app.domain.errors import OutOfRange
from app.domain.formats import KvFormats
from app.domain.projections import ProjectionShape
from app.domain.state import ModelState
from app.domain.work_plan import WorkPlan, plan_work


def plan() -> WorkPlan:
    """Return two layers with one head of 4: 16 products a pair and 8 a weight of hidden size 2."""
    return plan_work(
        ModelState.uniform(layers=2, kv_heads=1, head_dim=4),
        KvFormats.same(DTYPES["fp16"]),
        ProjectionShape(hidden_size=2),
        DTYPES["bf16"],
    )


@pytest.mark.parametrize(
    ("last", "points", "lengths"),
    [
        (1, 10, [1]),
        (2, 10, [1, 2]),
        (1151, 4, [128, 256, 512, 1024]),
        (1024, 2, [512, 1024]),
        (10_000_000, 1, [8_388_608]),
    ],
)
def test_lengths_double_up_to_the_last(last: int, points: int, lengths: list[int]) -> None:
    """The lengths are the largest powers of two that the last length reaches."""
    assert [point.length_tokens for point in cost_curve(plan(), last, points=points)] == lengths


def test_each_cost_multiplies_by_its_order() -> None:
    """Per token: 2 against 4 for attention, 1 against 2 for projections; in total 4 against 8."""
    before, after = cost_curve(plan(), 2**20, points=2)

    def factor(pick: str, way: str, part: str) -> float:
        def of(point: CurvePoint) -> int:
            work = getattr(point.step if pick == "step" else point, way)
            return int(getattr(work, part))

        return of(after) / of(before)

    assert factor("step", "with_cache", "attention_macs") == 2
    assert factor("step", "without_cache", "attention_macs") == pytest.approx(4, abs=1e-5)
    assert factor("step", "with_cache", "projection_macs") == 1
    assert factor("step", "without_cache", "projection_macs") == 2
    assert factor("run", "run_with_cache", "attention_macs") == pytest.approx(4, abs=1e-5)
    assert factor("run", "run_without_cache", "attention_macs") == pytest.approx(8, abs=1e-4)
    assert factor("run", "run_with_cache", "projection_macs") == 2
    assert factor("run", "run_without_cache", "projection_macs") == pytest.approx(4, abs=1e-5)


def test_the_smallest_costs_by_hand() -> None:
    """At one token both ways are one pass: a pair of 2 × 8 products, 2 × 32 weights."""
    (only,) = cost_curve(plan(), 1)
    assert only.step.with_cache == only.step.without_cache == only.run_without_cache
    assert (only.run_with_cache.attention_macs, only.run_with_cache.projection_macs) == (16, 64)


@pytest.mark.parametrize(
    ("last", "points", "field"),
    [(0, 10, "last_tokens"), (10_000_001, 10, "last_tokens"), (8, 0, "points"), (8, 25, "points")],
)
def test_bounds(last: int, points: int, field: str) -> None:
    """A length or a number of points outside the bounds is refused by name."""
    with pytest.raises(OutOfRange) as caught:
        cost_curve(plan(), last, points=points)
    assert caught.value.field == (field,)
