"""Which positions to keep when not all fit: three rules at equal memory, on three histories.

The rules decide step by step, as they would in a server: after each step the cache holds at most
the budget.

- window: the newest positions;
- sinks: the first four and then the newest (Xiao et al., arXiv:2309.17453);
- heaviest: those that gathered most attention so far, half of the budget reserved for the newest
  (Zhang et al., arXiv:2306.14048).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.demo.quantise import Floats
from app.demo.results import ExperimentResult, Lab, Row, Series, relative_error
from app.domain.notes import Note

WIDTH = 16
SINKS = 4
# A key this far along the queries' common direction draws most of the attention.
PULL = 3.0

Kept = list[int]
Gathered = NDArray[np.float64]
Rule = Callable[[Kept, Gathered, int], Kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Queries, keys and values of one head, [T, width] each."""

    queries: Floats
    keys: Floats
    values: Floats


def keep_newest(kept: Kept, gathered: Gathered, budget: int) -> Kept:  # noqa: ARG001 - one question
    """Return the newest positions."""
    return kept[-budget:]


def keep_sinks(kept: Kept, gathered: Gathered, budget: int) -> Kept:  # noqa: ARG001 - to all rules
    """Return the first positions and then the newest."""
    first = min(SINKS, budget - 1)
    return kept[:first] + kept[first:][-(budget - first) :]


def keep_heaviest(kept: Kept, gathered: Gathered, budget: int) -> Kept:
    """Return the newest half of the budget, and of the rest what gathered most attention."""
    recent = (budget + 1) // 2
    older, newest = kept[:-recent], kept[-recent:]
    heavy = sorted(older, key=lambda position: -gathered[position])[: budget - recent]
    return sorted(heavy) + newest


RULES: dict[str, tuple[Note, Rule]] = {
    "window": (Note("window", "newest kept"), keep_newest),
    "sinks": (Note("sinks", "first four and newest"), keep_sinks),
    "heaviest": (Note("heaviest", "heaviest and newest"), keep_heaviest),
}


def _even(seed: int, tokens: int) -> History:
    """Return a history in which every position matters about as much."""
    rng = np.random.default_rng([seed, tokens])

    def rows() -> Floats:
        return rng.standard_normal((tokens, WIDTH), dtype=np.float32)

    return History(queries=rows(), keys=rows(), values=rows())


def _with_sink(seed: int, tokens: int) -> History:
    """Return one whose first position draws every query."""
    drawn = _even(seed, tokens)
    drawn.queries[:] += np.float32(1)
    drawn.keys[0] = np.float32(PULL / 2)
    return drawn


def _with_needle(seed: int, tokens: int) -> History:
    """Return one in which only the last quarter of the queries asks for an early position."""
    drawn = _even(seed, tokens)
    direction = np.sign(drawn.keys[tokens // 8])
    drawn.keys[tokens // 8] = direction * np.float32(PULL)
    asking = tokens - tokens // 4
    drawn.queries[asking:] += direction
    return drawn


HISTORIES: dict[str, tuple[Note, Callable[[int, int], History]]] = {
    "even": (Note("even", "all positions alike"), _even),
    "sink": (Note("sink", "the first position draws every query"), _with_sink),
    "needle": (Note("needle", "an early position is asked for late"), _with_needle),
}


def eviction_compared(lab: Lab) -> ExperimentResult:
    """Run each rule at a range of budgets and compare with a cache that keeps everything."""
    budgets = sorted({max(2, lab.length_tokens * part // 8) for part in (1, 2, 4, 6, 8)})
    rows, series = [], []
    for history_code, (history_label, draw) in HISTORIES.items():
        history = draw(lab.seed, lab.length_tokens)
        exact = run_with_budget(lab, history, keep_newest, lab.length_tokens)
        for rule_code, (rule_label, rule) in RULES.items():
            errors = tuple(
                relative_error(run_with_budget(lab, history, rule, size), exact) for size in budgets
            )
            code = f"{history_code}_{rule_code}"
            rows.append(Row(code=code, label=rule_label, figures=errors, group=history_label))
            x = tuple(float(size) for size in budgets)
            series.append(Series(code=code, label=rule_label, x=x, y=errors, group=history_label))
    return ExperimentResult(
        ran=lab.ran(),
        code="eviction_compared",
        title=Note("eviction_compared", "Eviction at equal memory"),
        columns=tuple(Note(f"kept_{size}", "{tokens} kept", {"tokens": size}) for size in budgets),
        rows=tuple(rows),
        series=tuple(series),
        x_label=Note("kept", "positions kept"),
        y_label=Note("relative_error", "relative error of the output"),
        statement=Note(
            "capacity_is_not_choice",
            "Capacity says how many positions fit, not which to keep: "
            "which rule errs least depends on what the queries ask for.",
        ),
        notes=(
            Note(
                "made_up_histories",
                "Histories are drawn to show where a rule helps or fails; "
                "the quality of an answer has to be measured on the task itself.",
            ),
        ),
    )


def run_with_budget(lab: Lab, history: History, rule: Rule, budget: int) -> Floats:
    """Return the outputs of all steps, [T, width], when at most `budget` positions are kept.

    A step attends over what was kept and its own position; then the rule chooses.
    """
    backend, total = lab.backend, len(history.keys)
    gathered = np.zeros(total, dtype=np.float64)
    kept: Kept = []
    outputs = []
    for position in range(total):
        lab.budget.check()
        kept = [*kept, position]
        attended = backend.attend(
            backend.put(history.queries[None, None, position : position + 1]),
            backend.put(history.keys[None, None, kept]),
            backend.put(history.values[None, None, kept]),
            np.ones((1, 1, len(kept)), dtype=np.bool_),
        )
        outputs.append(backend.get(attended.outputs)[0, 0, 0])
        gathered[kept] += backend.get(attended.weights)[0, 0, 0]
        if len(kept) > budget:
            kept = rule(kept, gathered, budget)
    return np.stack(outputs)
