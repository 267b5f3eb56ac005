"""What a format of the cache does to a whole model: step against recompute, and error by length.

Runs the small decoder, whose caches alone are kept in the format; everything else is binary32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.demo.model import ModelShape, SmallModel
from app.demo.quantise import LAB_DTYPES, Floats
from app.demo.results import (
    ExperimentResult,
    Lab,
    Row,
    Series,
    is_bit_equal,
    max_difference,
    relative_error,
)
from app.domain.notes import Note

SHAPE = ModelShape()
# Step by step without a cache is cubic work, so this experiment runs on shorter sequences.
MAX_RECOMPUTED_TOKENS = 128

POSITION = Note("position", "position")


def step_against_recompute(lab: Lab) -> ExperimentResult:
    """Put one token after another through caches, and all of them anew for every step."""
    tokens = min(lab.length_tokens, MAX_RECOMPUTED_TOKENS)
    model = SmallModel(lab.backend, SHAPE, seed=lab.seed)
    inputs = model.inputs(tokens, seed=lab.seed)
    rows, series = [], []
    for dtype in LAB_DTYPES:
        cached = _step_by_step(lab, model, inputs, dtype)
        anew = np.concatenate(
            [
                _all_at_once(lab, model, inputs[: size + 1], [dtype] * SHAPE.layers)[-1:]
                for size in range(tokens)
            ]
        )
        label = Note("format", "{dtype}", {"dtype": dtype})
        same = sum(is_bit_equal(cached[i], anew[i]) for i in range(tokens))
        figures = (same, tokens, max_difference(cached, anew), relative_error(cached, anew))
        rows.append(Row(code=dtype, label=label, figures=figures))
        by_position = tuple(max_difference(cached[i], anew[i]) for i in range(tokens))
        positions = tuple(float(i + 1) for i in range(tokens))
        series.append(Series(code=dtype, label=label, x=positions, y=by_position))
    return ExperimentResult(
        ran=lab.ran(),
        code="step_against_recompute",
        title=Note("step_against_recompute", "Cached step against full recompute"),
        columns=(
            Note("equal_steps", "steps equal to the last bit"),
            Note("steps", "steps"),
            Note("max_abs_difference", "largest difference of an output element"),
            Note("relative_difference", "difference relative to the output"),
        ),
        rows=tuple(rows),
        series=tuple(series),
        x_label=POSITION,
        y_label=Note("max_abs_difference", "largest difference of an output element"),
        statement=Note(
            "cache_is_exact_but_for_order",
            "In fp32 the cached step and the recompute differ by {difference} at most, "
            "and only because their sums run in another order.",
            {"difference": f"{rows[0].figures[2]:.1e}"},
        ),
        notes=(
            Note(
                "rounding_flips",
                "In a coarse format such a difference can carry a row over a rounding edge, "
                "and then shows as one step of that format.",
            ),
            Note(
                "recomputed_tokens",
                "Run over {tokens} tokens: recomputing every prefix is cubic work.",
                {"tokens": tokens},
            ),
        ),
    )


def error_by_length(lab: Lab) -> ExperimentResult:
    """Compare each format's outputs with those of fp32 caches, along one sequence."""
    model = SmallModel(lab.backend, SHAPE, seed=lab.seed)
    inputs = model.inputs(lab.length_tokens, seed=lab.seed)
    exact = _all_at_once(lab, model, inputs, ["fp32"] * SHAPE.layers)
    lengths = _checkpoints(lab.length_tokens)
    rows, series = [], []
    for code, label, formats in _variants():
        caches_bytes = sum(cache.size_bytes for cache in model.new_caches(1, formats))
        got = _all_at_once(lab, model, inputs, formats)
        # The half of the sequence before each length: one position alone would be noise.
        errors = tuple(relative_error(got[n // 2 : n], exact[n // 2 : n]) for n in lengths)
        rows.append(Row(code=code, label=label, figures=(caches_bytes, errors[0], errors[-1])))
        series.append(Series(code=code, label=label, x=tuple(float(n) for n in lengths), y=errors))
    return ExperimentResult(
        ran=lab.ran(),
        code="error_by_length",
        title=Note("error_by_length", "Lower precision, by length"),
        columns=(
            Note("bytes_per_token", "bytes a token, scales included"),
            Note("error_short", "relative error at the shortest length"),
            Note("error_long", "relative error at the longest"),
        ),
        rows=tuple(rows),
        series=tuple(series),
        x_label=Note("length", "tokens"),
        y_label=Note("relative_error", "relative error of the output"),
        statement=Note(
            "precision_costs_error",
            "At {tokens} tokens the output of int4 caches is off by {coarse}, of fp16 caches by "
            "{fine}; with the first and last layer kept in fp32, int4 is off by {kept}.",
            {
                "tokens": lab.length_tokens,
                "coarse": _percent(_figure(rows, "int4")),
                "fine": _percent(_figure(rows, "fp16")),
                "kept": _percent(_figure(rows, "int4_ends_fp32")),
            },
        ),
        notes=(
            Note(
                "random_weights",
                "Weights are drawn, not trained: the order of the formats carries over to real "
                "models, the size of the errors does not.",
            ),
            Note(
                "averaging",
                "A row's error is made once, when it is kept. Whether errors add up or average "
                "out along a sequence depends on how evenly its queries attend; here they "
                "attend evenly.",
            ),
        ),
    )


def _variants() -> list[tuple[str, Note, list[str]]]:
    """Return each format in all layers, then again with the first and last layer in fp32."""
    variants = []
    for dtype in LAB_DTYPES[1:]:
        inner = [dtype] * (SHAPE.layers - 2)
        variants += [
            (dtype, Note("format", "{dtype}", {"dtype": dtype}), [dtype] * SHAPE.layers),
            (
                f"{dtype}_ends_fp32",
                Note("format_ends_fp32", "{dtype}, first and last layer fp32", {"dtype": dtype}),
                ["fp32", *inner, "fp32"],
            ),
        ]
    return variants


def _checkpoints(tokens: int) -> list[int]:
    """Return powers of two from 2 up to `tokens`, which ends the list itself."""
    lengths = [2]
    while lengths[-1] * 2 < tokens:
        lengths.append(lengths[-1] * 2)
    return [*lengths, tokens]


def _all_at_once(lab: Lab, model: SmallModel, inputs: Floats, formats: Sequence[str]) -> Floats:
    caches = model.new_caches(len(inputs), formats)
    return lab.backend.get(model.forward(lab.backend.put(inputs), caches, lab.budget))


def _step_by_step(lab: Lab, model: SmallModel, inputs: Floats, dtype: str) -> Floats:
    caches = model.new_caches(len(inputs), [dtype] * SHAPE.layers)
    outputs = [
        lab.backend.get(model.forward(lab.backend.put(row[None]), caches, lab.budget))
        for row in inputs
    ]
    return np.concatenate(outputs)


def _figure(rows: Sequence[Row], code: str) -> float:
    return float(next(row for row in rows if row.code == code).figures[-1])


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %"
