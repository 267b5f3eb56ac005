"""One step timed on this machine, with a cache and without, beside what is counted for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.demo.backends import Backend
from app.demo.budget import Budget
from app.demo.caches import ContiguousCache
from app.demo.model import ModelShape, SmallModel
from app.demo.quantise import Floats
from app.domain.cost import step_cost
from app.domain.dtypes import DTYPES
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.projections import ProjectionShape
from app.domain.state import ModelState
from app.domain.work_plan import WorkPlan, plan_work

# Narrow beside its heads, so that attention outweighs the projections at short lengths already.
MEASURED_SHAPE = ModelShape(
    layers=2, hidden=32, query_heads=4, kv_heads=1, head_dim=64, intermediate=64
)
# A step with the cache is linear and one without quadratic, so the ladders end where each takes
# some tens of milliseconds and megabytes. The longest caches outgrow a processor's own cache, as
# real ones do; where they begin to, time rises faster than length.
CACHED_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
UNCACHED_LENGTHS = (32, 64, 128, 256, 512, 1024)
REPEATS = 7

CACHED = "cached"
UNCACHED = "uncached"

MEASURED_NOTES = (
    Note("best_of", "Each point is the best of {repeats} runs.", {"repeats": REPEATS}),
    Note(
        "whole_square",
        "Without a cache the whole square of scores is computed and then masked: "
        "twice the counted products of attention.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One step of one new token at a length, as timed; `done` of `total` points are known."""

    way: str
    length_tokens: int
    seconds: float
    macs: int
    backend: str
    device: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedOrder:
    """The exponents with which one way's measured time and its counted work grow with length."""

    way: str
    measured: float
    counted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The lengths at which each way is timed, shortest first."""

    cached: Sequence[int] = CACHED_LENGTHS
    uncached: Sequence[int] = UNCACHED_LENGTHS


def measure_steps(
    backend: Backend,
    budget: Budget,
    *,
    seed: int = 0,
    ladder: Ladder | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[MeasuredPoint]:
    """Yield points as they are timed, both ways in turn, shortest first.

    Raises:
        RunStopped: between layers and points, when the budget says so.

    """
    steps = ladder or Ladder()
    model = SmallModel(backend, MEASURED_SHAPE, seed=seed)
    plan = counted_plan(MEASURED_SHAPE)
    timed = sorted(
        [(length, CACHED) for length in steps.cached]
        + [(length, UNCACHED) for length in steps.uncached]
    )
    for index, (length, way) in enumerate(timed):
        budget.check()
        run = _cached_step if way == CACHED else _uncached_step
        seconds = run(model, length, budget, clock)
        counted = step_cost(plan, length)
        work = counted.with_cache if way == CACHED else counted.without_cache
        yield MeasuredPoint(
            way=way,
            length_tokens=length,
            seconds=seconds,
            macs=work.macs,
            backend=backend.name,
            device=backend.device,
            done=index + 1,
            total=len(timed),
        )


def counted_plan(shape: ModelShape) -> WorkPlan:
    """Return what the domain counts for the small decoder: two MLP matrices, no logits."""
    return plan_work(
        ModelState.uniform(layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim),
        KvFormats.same(DTYPES["fp32"]),
        ProjectionShape(
            hidden_size=shape.hidden,
            query_heads=shape.query_heads,
            intermediate_size=shape.intermediate,
            mlp_matrices=2,
        ),
        DTYPES["fp32"],
    )


def fitted_order(lengths: Sequence[float], amounts: Sequence[float]) -> float:
    """Return the exponent p of the least-squares fit amount = c · length^p over all points.

    1 is linear, 2 quadratic. At short lengths a fixed cost hides the order, so fit the longest.

    Raises:
        ValueError: for fewer than two points, or lengths and amounts that are not positive.

    """
    x = [math.log(length) for length in lengths]
    y = [math.log(amount) for amount in amounts]
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    if spread == 0:
        raise ValueError("an order needs two different lengths")
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def measured_orders(points: Sequence[MeasuredPoint], longest: int = 3) -> dict[str, float]:
    """Return the fitted order of each way over its `longest` points, where there are two."""
    return {order.way: order.measured for order in fitted_orders(points, longest)}


def fitted_orders(points: Sequence[MeasuredPoint], longest: int = 3) -> tuple[FittedOrder, ...]:
    """Return how time and counted work of each way grow over its `longest` points."""
    orders = []
    for way in (CACHED, UNCACHED):
        own = sorted((p for p in points if p.way == way), key=lambda p: p.length_tokens)[-longest:]
        if len(own) > 1:
            lengths = [point.length_tokens for point in own]
            orders.append(
                FittedOrder(
                    way=way,
                    measured=fitted_order(lengths, [point.seconds for point in own]),
                    counted=fitted_order(lengths, [point.macs for point in own]),
                )
            )
    return tuple(orders)


def _cached_step(
    model: SmallModel, length: int, budget: Budget, clock: Callable[[], float]
) -> float:
    """Return the seconds of one position over caches that already hold the others."""
    backend, shape = model.backend, model.shape
    caches = model.new_caches(length, ["fp32"] * shape.layers)
    rng = np.random.default_rng(length)
    for layer_cache in caches:
        drawn = rng.standard_normal(
            (2, shape.kv_heads, length - 1, shape.head_dim), dtype=np.float32
        )
        layer_cache.append(backend.put(drawn[0]), backend.put(drawn[1]))
    return _best_seconds(model, model.inputs(1, seed=length), caches, budget, clock)


def _uncached_step(
    model: SmallModel, length: int, budget: Budget, clock: Callable[[], float]
) -> float:
    """Return the seconds of computing every position again for one new one."""
    caches = model.new_caches(length, ["fp32"] * model.shape.layers)
    return _best_seconds(model, model.inputs(length, seed=length), caches, budget, clock)


def _best_seconds(
    model: SmallModel,
    inputs: Floats,
    caches: Sequence[ContiguousCache],
    budget: Budget,
    clock: Callable[[], float],
) -> float:
    """Return the shortest of the repeated passes; each starts from the same caches."""
    held = caches[0].length
    rows = model.backend.put(inputs)
    best = math.inf
    for _ in range(REPEATS):
        for layer_cache in caches:
            layer_cache.rewind(held)
        model.backend.wait()
        started = clock()
        model.forward(rows, caches, budget)
        model.backend.wait()
        best = min(best, clock() - started)
    return best
