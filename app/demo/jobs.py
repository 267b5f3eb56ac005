"""What the lab's process can be asked to do: each job yields its results as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from app.demo.backends import choose_backend
from app.demo.budget import Budget
from app.demo.lab import AttentionAnswer, answer_attention, run_experiment
from app.demo.measure import FittedOrder, MeasuredPoint, fitted_orders, measure_steps
from app.demo.results import ExperimentResult
from app.domain.attention import AttentionInputs


def _attention(
    seconds: float,  # noqa: ARG001 - its work is bounded by its inputs
    inputs: AttentionInputs,
    dtype: str,
    device: str | None,
) -> Iterator[AttentionAnswer]:
    yield answer_attention(inputs, dtype=dtype, device=device)


def _experiment(
    seconds: float, code: str, device: str | None, seed: int, length_tokens: int
) -> Iterator[ExperimentResult]:
    yield run_experiment(
        code,
        device=device,
        seed=seed,
        length_tokens=length_tokens,
        budget=Budget(seconds=seconds),
    )


def _measured(
    seconds: float, device: str | None, seed: int
) -> Iterator[MeasuredPoint | tuple[FittedOrder, ...]]:
    """Yield the points, and after the last one the fitted orders."""
    points = []
    for point in measure_steps(choose_backend(device), Budget(seconds=seconds), seed=seed):
        points.append(point)
        yield point
    yield fitted_orders(points)


JOBS: dict[str, Callable[..., Iterator[Any]]] = {
    "attention": _attention,
    "experiment": _experiment,
    "measured": _measured,
}
