"""Timed steps: what is yielded, what is counted, and the order in which time grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from app.demo.backends import Array, BackendAttention, Bools, NumpyBackend
from app.demo.budget import Budget, RunStopped
from app.demo.measure import (
    CACHED,
    MEASURED_SHAPE,
    UNCACHED,
    Ladder,
    MeasuredPoint,
    counted_plan,
    fitted_order,
    fitted_orders,
    measure_steps,
    measured_orders,
)
from app.demo.model import ModelShape, SmallModel
from app.domain.cost import step_cost

SMALL = Ladder(cached=(8, 16, 32), uncached=(4, 8))


class CountingBackend(NumpyBackend):
    """NumPy that counts the products it makes."""

    def __init__(self) -> None:
        self.products: Counter[str] = Counter()

    def linear(self, rows: Array, weights: Array) -> Array:
        """Count rows × inner × columns."""
        self.products["projections"] += rows.shape[0] * weights.shape[0] * weights.shape[1]
        return super().linear(rows, weights)

    def attend(
        self, queries: Array, keys: Array, values: Array, visible: Bools
    ) -> BackendAttention:
        """Count the pairs that the mask leaves, times both widths, for each query head."""
        widths = keys.shape[-1] + values.shape[-1]
        self.products["attention"] += queries.shape[1] * int(visible.sum()) * widths
        return super().attend(queries, keys, values, visible)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_small_model_does_what_is_counted(length: int) -> None:
    """Both ways the decoder makes exactly the products that the cost's closed forms state."""
    shape = ModelShape(layers=3, hidden=12, query_heads=6, kv_heads=2, head_dim=5, intermediate=7)
    backend = CountingBackend()
    model = SmallModel(backend, shape, seed=0)
    inputs = model.inputs(length, seed=0)
    counted = step_cost(counted_plan(shape), length)
    caches = model.new_caches(length, ["fp32"] * shape.layers)
    if length > 1:
        model.forward(inputs[:-1], caches, Budget())
    for rows, kept, work in (
        (inputs[-1:], caches, counted.with_cache),
        (inputs, model.new_caches(length, ["fp32"] * shape.layers), counted.without_cache),
    ):
        backend.products.clear()
        model.forward(rows, kept, Budget())
        assert backend.products["projections"] == work.projection_macs
        assert backend.products["attention"] == work.attention_macs


def test_points_come_one_by_one_in_order() -> None:
    """Each point has its length, way, time and count; `done` runs to `total`."""
    clock = count()
    points = list(
        measure_steps(NumpyBackend(), Budget(), ladder=SMALL, clock=lambda: float(next(clock)))
    )
    assert [(point.length_tokens, point.way) for point in points] == [
        (4, UNCACHED),
        (8, CACHED),
        (8, UNCACHED),
        (16, CACHED),
        (32, CACHED),
    ]
    assert [point.done for point in points] == [1, 2, 3, 4, 5]
    assert {point.total for point in points} == {5}
    assert {point.seconds for point in points} == {1.0}
    plan = counted_plan(MEASURED_SHAPE)
    assert points[1].macs == step_cost(plan, 8).with_cache.macs
    assert points[2].macs == step_cost(plan, 8).without_cache.macs
    assert (points[0].backend, points[0].device) == ("numpy", "cpu")


def test_measuring_can_be_cancelled_between_points() -> None:
    """Points already there stay; the next is not begun."""
    points: list[MeasuredPoint] = []

    def cancelled() -> bool:
        return len(points) >= 2

    coming = measure_steps(
        NumpyBackend(), Budget(cancelled=cancelled), ladder=SMALL, clock=lambda: 0.0
    )
    with pytest.raises(RunStopped, match="cancelled"):
        points.extend(coming)
    assert len(points) == 2


def test_orders_are_those_of_powers() -> None:
    """A line has order 1, a square 2, and a constant factor does not matter."""
    lengths = [8, 16, 32, 64]
    assert fitted_order(lengths, [3 * x for x in lengths]) == pytest.approx(1)
    assert fitted_order(lengths, [0.5 * x * x for x in lengths]) == pytest.approx(2)
    with pytest.raises(ValueError, match="two different lengths"):
        fitted_order([8, 8], [1, 2])


def test_orders_of_the_counts() -> None:
    """Attention of a step grows as the length with a cache and as its square without."""
    lengths = [4096, 8192, 16384]
    plan = counted_plan(MEASURED_SHAPE)
    steps = [step_cost(plan, length) for length in lengths]
    with_cache = [step.with_cache.attention_macs for step in steps]
    without = [step.without_cache.attention_macs for step in steps]
    assert fitted_order(lengths, with_cache) == pytest.approx(1)
    assert fitted_order(lengths, without) == pytest.approx(2, abs=1e-3)


def test_orders_of_points_are_those_of_time_and_of_work() -> None:
    """Time that doubles with the length has order 1, whatever the order of what was counted."""
    points = [
        MeasuredPoint(
            way=UNCACHED, length_tokens=length, seconds=length / 1000, macs=length**2,
            backend="numpy", device="cpu", done=1, total=1,
        )
        for length in (8, 16, 32, 64)
    ]  # fmt: skip
    (order,) = fitted_orders(points)
    assert order.way == UNCACHED
    assert order.measured == pytest.approx(1)
    assert order.counted == pytest.approx(2)


def test_orders_need_two_points_of_a_way() -> None:
    """A way with one point has no order yet."""
    clock = count()
    points = list(
        measure_steps(
            NumpyBackend(),
            Budget(),
            ladder=Ladder(cached=(8, 16), uncached=(4,)),
            clock=lambda: float(next(clock)),
        )
    )
    assert measured_orders(points) == {CACHED: 0.0}


MEASURE = """
import json
from app.demo.backends import NumpyBackend
from app.demo.budget import Budget
from app.demo.measure import measure_steps, measured_orders
print(json.dumps(measured_orders(list(measure_steps(NumpyBackend(), Budget(seconds=60))))))
"""


def test_measured_time_grows_as_counted() -> None:
    """On this machine a cached step's time grows about as the length, an uncached as its square.

    Run in a process of its own with one thread, and up to three times, since others may be using
    the machine. What is counted at these lengths has orders of 1.0 and 1.9.
    """
    root = Path(__file__).resolve().parents[2]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    seen = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE],
            cwd=root,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        orders = json.loads(done.stdout)
        seen.append(orders)
        if 0.5 < orders[CACHED] < 1.5 < orders[UNCACHED] < 2.5:
            return
    pytest.fail(f"time did not grow as counted: {seen}")
