"""The attention lab's front door: one question answered, and the list of experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.demo.backends import Backend, choose_backend
from app.demo.bounds import agreement_bound
from app.demo.budget import Budget
from app.demo.caches import ContiguousCache, RowShape
from app.demo.eviction import eviction_compared
from app.demo.experiments import (
    history_dropped,
    left_padding,
    pages_in_any_order,
    rows_permuted,
    sequences_mixed,
    window_narrowed,
)
from app.demo.masks import causal
from app.demo.model import MAX_SEED
from app.demo.precision import error_by_length, step_against_recompute
from app.demo.quantise import LARGEST, Floats, lab_dtype
from app.demo.results import ExperimentResult, Lab, is_bit_equal, max_difference
from app.domain.attention import AttentionInputs, MaskedRows, Rows, attend
from app.domain.checks import checked_int
from app.domain.errors import FieldPath, OutOfRange, Unknown, shown
from app.domain.notes import Note

MAX_DRAWN_WIDTH = 16
MAX_DRAWN_TOKENS = 64

EXPERIMENTS: dict[str, Callable[[Lab], ExperimentResult]] = {
    "history_dropped": history_dropped,
    "rows_permuted": rows_permuted,
    "window_narrowed": window_narrowed,
    "step_against_recompute": step_against_recompute,
    "pages_in_any_order": pages_in_any_order,
    "sequences_mixed": sequences_mixed,
    "left_padding": left_padding,
    "error_by_length": error_by_length,
    "eviction_compared": eviction_compared,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Another way to the same output, and how far it lies from the cached step's."""

    output: Rows
    is_bit_equal: bool
    max_abs_difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAnswer:
    """What the cached steps gave, a row for each query, beside three other ways to compute it.

    `keys` and `values` are the rows as the cache keeps them. `recomputed` presents all positions
    at once on the same backend, `reference` is plain Python in binary64 on the numbers as given,
    and `without_history` is what the steps would answer had the past been dropped. An output
    element lies within `rounding_bound` of the exact one over the rows as they are kept, so the
    cached and the recomputed one within twice that.
    """

    is_single: bool
    output: Rows
    weights: Rows
    scores: MaskedRows
    keys: Rows
    values: Rows
    dtype: str
    backend: str
    device: str
    cache_bytes: int
    rounding_bound: float
    recomputed: Comparison
    reference: Comparison
    without_history: Comparison
    assumptions: tuple[Note, ...]


def answer_attention(
    inputs: AttentionInputs, *, dtype: object = "fp32", device: object = None
) -> AttentionAnswer:
    """Append and attend step by step through a cache of that format, on that device.

    Raises:
        Unknown: for a format or a device that is no name of one.
        Unsupported: for a device that is absent.
        OutOfRange: for a number that the format cannot hold.

    """
    kept_as = lab_dtype(dtype)
    _check_fits(inputs, kept_as)
    backend = choose_backend(device)
    cached = _steps(backend, inputs, kept_as)
    at_once = _steps(backend, inputs, kept_as, together=True)
    dropped = _steps(backend, inputs.without_history(), kept_as)
    return AttentionAnswer(
        is_single=inputs.is_single,
        output=_rows(cached.outputs),
        weights=_rows(cached.weights),
        scores=_masked(cached.scores),
        keys=_rows(cached.keys),
        values=_rows(cached.values),
        dtype=kept_as,
        backend=backend.name,
        device=backend.device,
        cache_bytes=cached.cache_bytes,
        rounding_bound=_rounding_bound(inputs, cached),
        recomputed=_compared(cached.outputs, at_once.outputs),
        reference=_compared(cached.outputs, np.asarray(attend(inputs).outputs, dtype=np.float64)),
        without_history=_compared(cached.outputs, dropped.outputs),
        assumptions=_assumptions(inputs, kept_as),
    )


def draw_question(*, seed: int, past_tokens: int, new_tokens: int, width: int) -> AttentionInputs:
    """Return a question of random numbers with two decimals; the same for the same arguments.

    Raises:
        OutOfRange: outside the bounds of seed, length or width.

    """
    checked_int(seed, "seed", low=0, high=MAX_SEED)
    checked_int(past_tokens, "past_tokens", low=0, high=MAX_DRAWN_TOKENS)
    checked_int(new_tokens, "new_tokens", low=1, high=MAX_DRAWN_TOKENS)
    checked_int(width, "width", low=1, high=MAX_DRAWN_WIDTH)
    rng = np.random.default_rng([seed, past_tokens, new_tokens, width])

    def rows(count: int) -> Rows:
        drawn = np.round(rng.standard_normal((count, width)), 2) + 0.0
        return tuple(tuple(row) for row in drawn.tolist())

    return AttentionInputs(
        queries=rows(new_tokens),
        past_keys=rows(past_tokens),
        past_values=rows(past_tokens),
        new_keys=rows(new_tokens),
        new_values=rows(new_tokens),
        is_single=new_tokens == 1,
    )


def run_experiment(
    code: object,
    *,
    device: object = None,
    seed: int = 0,
    length_tokens: int | None = None,
    budget: Budget | None = None,
) -> ExperimentResult:
    """Run one experiment by its code.

    Raises:
        Unknown: for a code that is not in `EXPERIMENTS`, or an unknown device.
        Unsupported: for a device that is absent.
        OutOfRange: outside the bounds of seed or length.
        RunStopped: when the budget ends it.

    """
    if not isinstance(code, str) or code not in EXPERIMENTS:
        raise Unknown(
            "{field} {value} is not known; known are {known}",
            field="experiment",
            value=shown(code),
            known=", ".join(EXPERIMENTS),
        )
    size = {} if length_tokens is None else {"length_tokens": length_tokens}
    lab = Lab(backend=choose_backend(device), budget=budget or Budget(), seed=seed, **size)
    return EXPERIMENTS[code](lab)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Arrays of one head: outputs [N, d_v], weights and scores [N, T], the kept rows."""

    outputs: Floats
    weights: Floats
    scores: Floats
    keys: Floats
    values: Floats
    cache_bytes: int


def _steps(
    backend: Backend, inputs: AttentionInputs, dtype: str, *, together: bool = False
) -> _Steps:
    """Return the answer of a cache, one new position after another or all `together`."""
    past, new = inputs.past_tokens, len(inputs.queries)
    keys, values = _head(inputs.keys), _head(inputs.values)
    row = RowShape(heads=1, key_width=keys.shape[-1], value_width=values.shape[-1])
    kept = ContiguousCache(backend, capacity=past + new, row=row, dtype=dtype)
    queries = backend.put(_head(inputs.queries)[None])
    all_keys, all_values = backend.put(keys), backend.put(values)
    pieces = [(0, past + new)] if together else _pieces(past, new)
    outputs, weights, scores = [], [], []
    for start, end in pieces:
        kept.append(all_keys[:, start:end], all_values[:, start:end])
        first = max(start, past)
        if first == end:
            continue
        seen_keys, seen_values = kept.read()
        mask = causal(first, end - first, inputs.window)
        asked = queries[:, :, first - past : end - past]
        attended = backend.attend(asked, seen_keys, seen_values, mask)
        unseen = ((0, 0), (0, past + new - end))
        outputs.append(backend.get(attended.outputs)[0, 0])
        weights.append(np.pad(backend.get(attended.weights)[0, 0], unseen))
        scores.append(np.pad(backend.get(attended.scores)[0, 0], unseen, constant_values=-np.inf))
    kept_keys, kept_values = kept.read()
    return _Steps(
        outputs=np.concatenate(outputs),
        weights=np.concatenate(weights),
        scores=np.concatenate(scores),
        keys=backend.get(kept_keys)[0, 0],
        values=backend.get(kept_values)[0, 0],
        cache_bytes=kept.size_bytes,
    )


def _rounding_bound(inputs: AttentionInputs, kept: _Steps) -> float:
    queries = _head(inputs.queries)[None]
    visible = causal(inputs.past_tokens, len(inputs.queries), inputs.window)
    return agreement_bound(queries, kept.keys[None, None], kept.values[None, None], visible)


def _pieces(past: int, new: int) -> list[tuple[int, int]]:
    history = [(0, past)] if past else []
    return history + [(position, position + 1) for position in range(past, past + new)]


def _head(rows: Sequence[Sequence[float]]) -> Floats:
    return np.asarray(rows, dtype=np.float32)[None]


def _rows(array: Floats) -> Rows:
    return tuple(tuple(row) for row in array.astype(np.float64).tolist())


def _masked(array: Floats) -> MaskedRows:
    """Return rows of numbers, None where a position is out of sight."""
    return tuple(
        tuple(element if np.isfinite(element) else None for element in row) for row in _rows(array)
    )


def _compared(cached: Floats, other: Floats) -> Comparison:
    return Comparison(
        output=_rows(other),
        is_bit_equal=is_bit_equal(cached, other),
        max_abs_difference=max_difference(cached, other),
    )


def _check_fits(inputs: AttentionInputs, dtype: str) -> None:
    """Refuse a key or value beyond the largest number of the format, rather than clip it."""
    high = LARGEST.get(dtype)
    if high is None:
        return
    for name, rows in (
        ("past_keys", inputs.past_keys),
        ("past_values", inputs.past_values),
        ("new_keys", inputs.new_keys),
        ("new_values", inputs.new_values),
    ):
        for index, row in enumerate(rows):
            for column, element in enumerate(row):
                if abs(element) > high:
                    raise OutOfRange(
                        "{field} must be between {low} and {high} to be kept as {dtype}, "
                        "got {value}",
                        field=_path(name, index, column, is_single=inputs.is_single),
                        low=-high,
                        high=high,
                        dtype=dtype,
                        value=shown(element),
                    )


def _path(name: str, index: int, column: int, *, is_single: bool) -> FieldPath:
    if is_single and name.startswith("new_"):
        return (name.removesuffix("s"), column)
    return (name, index, column)


def _assumptions(inputs: AttentionInputs, dtype: str) -> tuple[Note, ...]:
    notes = [
        Note("one_head", "One head, without positions: the vectors are taken as they are given."),
        Note(
            "cache_format",
            "Keys and values are kept as {dtype}; scores, weights and output are binary32.",
            {"dtype": dtype},
        ),
    ]
    if inputs.window is not None:
        notes.append(
            Note(
                "windowed",
                "A query sees {window} positions, itself included: another model than full "
                "attention.",
                {"window": inputs.window},
            )
        )
    return tuple(notes)
