"""What a cache must not lose: history, the pairing of K and V, and whose rows they are.

Each experiment draws one step of grouped attention by seed (8 query heads over 2 KV heads of 16)
and compares its output with the same step done wrong, or done another way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.demo.backends import Backend, Bools
from app.demo.bounds import agreement_bound
from app.demo.caches import PagedCache, PagePool, RowShape
from app.demo.masks import causal, everything, padded
from app.demo.quantise import Floats
from app.demo.results import (
    ExperimentResult,
    Lab,
    Row,
    Series,
    is_bit_equal,
    max_difference,
)
from app.domain.attention import cached_attention
from app.domain.notes import Note

QUERY_HEADS = 8
KV_HEADS = 2
WIDTH = 16

DIFFERENCE = Note("max_abs_difference", "largest difference of an output element")
BIT_EQUAL = Note("bit_equal", "equal to the last bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """One query [1, Hq, 1, d] over keys and values [1, Hkv, T, d]."""

    query: Floats
    keys: Floats
    values: Floats


def draw_step(seed: int, tokens: int) -> DrawnStep:
    """Return normally distributed numbers; the same for the same seed and length."""
    rng = np.random.default_rng([seed, tokens])

    def normal(heads: int, rows: int) -> Floats:
        return rng.standard_normal((1, heads, rows, WIDTH), dtype=np.float32)

    return DrawnStep(
        query=normal(QUERY_HEADS, 1), keys=normal(KV_HEADS, tokens), values=normal(KV_HEADS, tokens)
    )


def output_of(
    backend: Backend, step: DrawnStep, visible: Bools | None = None, *, window: int | None = None
) -> Floats:
    """Return the output of a step on a backend, over everything up to its query by default."""
    total = step.keys.shape[2]
    mask = causal(total - 1, 1, window) if visible is None else visible
    put = backend.put
    return backend.get(
        backend.attend(put(step.query), put(step.keys), put(step.values), mask).outputs
    )


def history_dropped(lab: Lab) -> ExperimentResult:
    """Throw the cache away and attend to the new position alone."""
    lab.budget.check()
    kept = cached_attention([0], [[0]], [[2]], [0], [4]).output[0]
    dropped = cached_attention([0], [], [], [0], [4]).output[0]
    step = draw_step(lab.seed, lab.length_tokens)
    newest = DrawnStep(query=step.query, keys=step.keys[:, :, -1:], values=step.values[:, :, -1:])
    with_history, without = output_of(lab.backend, step), output_of(lab.backend, newest)
    return ExperimentResult(
        ran=lab.ran(),
        code="history_dropped",
        title=Note("history_dropped", "History dropped"),
        columns=(
            Note("output_kept", "output with the history"),
            Note("output_dropped", "output without it"),
            DIFFERENCE,
        ),
        rows=(
            Row(
                code="worked",
                label=Note("worked", "zero query, history 2, new value 4"),
                figures=(kept, dropped, abs(dropped - kept)),
            ),
            Row(
                code="drawn",
                label=Note("drawn", "drawn step, first element"),
                figures=(
                    float(with_history.flat[0]),
                    float(without.flat[0]),
                    max_difference(with_history, without),
                ),
            ),
        ),
        statement=Note(
            "history_matters",
            "Without its history the step answers {dropped} instead of {kept}: "
            "a cache saves computing the history again, not reading it.",
            {"dropped": f"{dropped:g}", "kept": f"{kept:g}"},
        ),
    )


def rows_permuted(lab: Lab) -> ExperimentResult:
    """Put the cached rows in another order: keys with their values, then one of them alone."""
    lab.budget.check()
    step = draw_step(lab.seed, lab.length_tokens)
    last = lab.length_tokens - 1
    # A rotation moves every cached row; a random order might not.
    order = [*np.roll(np.arange(last), 1).tolist(), last]
    keys, values = step.keys[:, :, order], step.values[:, :, order]
    base = output_of(lab.backend, step)
    cases = (
        ("together", Note("together", "K and V together"), keys, values),
        ("keys_alone", Note("keys_alone", "K alone"), keys, step.values),
        ("values_alone", Note("values_alone", "V alone"), step.keys, values),
    )
    rows = []
    for code, label, case_keys, case_values in cases:
        got = output_of(
            lab.backend, DrawnStep(query=step.query, keys=case_keys, values=case_values)
        )
        rows.append(
            Row(
                code=code, label=label, figures=(is_bit_equal(got, base), max_difference(got, base))
            )
        )
    bound = _bound(step)
    return ExperimentResult(
        ran=lab.ran(),
        code="rows_permuted",
        title=Note("rows_permuted", "Rows in another order"),
        columns=(BIT_EQUAL, DIFFERENCE),
        rows=tuple(rows),
        statement=Note(
            "pairs_matter",
            "Moved together, K and V give the same output within rounding ({bound}); "
            "K moved without its V gives another answer, off by {difference}.",
            {"bound": f"{bound:.1e}", "difference": f"{rows[1].figures[1]:.3g}"},
        ),
    )


def window_narrowed(lab: Lab) -> ExperimentResult:
    """Let the query see fewer and fewer of the newest positions."""
    step = draw_step(lab.seed, lab.length_tokens)
    base = output_of(lab.backend, step)
    windows = sorted(
        {max(1, lab.length_tokens * part // 8) for part in (1, 2, 4, 6, 8)} | {1}, reverse=True
    )
    rows = []
    for window in windows:
        lab.budget.check()
        got = output_of(lab.backend, step, window=window)
        rows.append(
            Row(
                code=f"window_{window}",
                label=Note("window_of", "window of {window}", {"window": window}),
                figures=(window, max_difference(got, base)),
            )
        )
    return ExperimentResult(
        ran=lab.ran(),
        code="window_narrowed",
        title=Note("window_narrowed", "A sliding window"),
        columns=(Note("visible", "visible positions"), DIFFERENCE),
        rows=tuple(rows),
        series=(
            Series(
                code="difference",
                label=DIFFERENCE,
                x=tuple(float(row.figures[0]) for row in rows),
                y=tuple(float(row.figures[1]) for row in rows),
            ),
        ),
        x_label=Note("visible", "visible positions"),
        y_label=DIFFERENCE,
        statement=Note(
            "window_is_another_model",
            "A window changes which positions the model is defined to see: "
            "another model, not a cheaper form of the same one.",
        ),
    )


def pages_in_any_order(lab: Lab) -> ExperimentResult:
    """Keep the same rows in blocks that lie anywhere in a pool, and gather them."""
    step = draw_step(lab.seed, lab.length_tokens)
    base = output_of(lab.backend, step)
    rng = np.random.default_rng(lab.seed)
    rows = []
    for block_size in (1, 4, 16):
        blocks = -(-lab.length_tokens // block_size)
        orders = {
            "in_order": list(range(blocks)),
            "reversed": list(range(blocks))[::-1],
            "scattered": rng.permutation(2 * blocks)[:blocks].tolist(),
        }
        for name, table in orders.items():
            lab.budget.check()
            got = _through_pages(lab.backend, step, table, block_size)
            rows.append(
                Row(
                    code=f"{name}_{block_size}",
                    label=_order_label(name, block_size),
                    figures=(
                        block_size,
                        blocks,
                        is_bit_equal(got, base),
                        max_difference(got, base),
                    ),
                )
            )
    equal = sum(bool(row.figures[2]) for row in rows)
    return ExperimentResult(
        ran=lab.ran(),
        code="pages_in_any_order",
        title=Note("pages_in_any_order", "Through pages, in any order"),
        columns=(
            Note("block_size", "positions to a block"),
            Note("blocks", "blocks"),
            BIT_EQUAL,
            DIFFERENCE,
        ),
        rows=tuple(rows),
        statement=Note(
            "pages_are_equal",
            "{equal} of {cases} layouts give the contiguous answer to the last bit: "
            "where a block lies is bookkeeping, the block table keeps the order.",
            {"equal": equal, "cases": len(rows)},
        ),
    )


def sequences_mixed(lab: Lab) -> ExperimentResult:
    """Give one sequence the rows of another: swapped caches, one buffer, with and without mask."""
    lab.budget.check()
    own = draw_step(lab.seed, lab.length_tokens)
    other = draw_step(lab.seed + 1, lab.length_tokens)
    base = output_of(lab.backend, own)
    both = DrawnStep(
        query=own.query,
        keys=np.concatenate([other.keys, own.keys], axis=2),
        values=np.concatenate([other.values, own.values], axis=2),
    )
    swapped = DrawnStep(query=own.query, keys=other.keys, values=other.values)
    # Both sequences wrote their newest row into the same slot, and the other came last.
    overwritten = DrawnStep(
        query=own.query,
        keys=np.concatenate([own.keys[:, :, :-1], other.keys[:, :, -1:]], axis=2),
        values=np.concatenate([own.values[:, :, :-1], other.values[:, :, -1:]], axis=2),
    )
    total = 2 * lab.length_tokens
    own_rows = np.arange(total)[None, None, :] >= lab.length_tokens
    cases = (
        ("swapped", Note("swapped", "the other sequence's cache"), swapped, None),
        ("overwritten", Note("overwritten", "one slot written by both"), overwritten, None),
        ("unmasked", Note("unmasked", "one buffer, no mask"), both, everything(1, total)),
        ("masked", Note("masked", "one buffer, own rows only"), both, np.asarray(own_rows)),
    )
    rows = []
    for code, label, step, mask in cases:
        got = output_of(lab.backend, step, mask)
        rows.append(
            Row(
                code=code, label=label, figures=(is_bit_equal(got, base), max_difference(got, base))
            )
        )
    return ExperimentResult(
        ran=lab.ran(),
        code="sequences_mixed",
        title=Note("sequences_mixed", "Two sequences mixed up"),
        columns=(BIT_EQUAL, DIFFERENCE),
        rows=tuple(rows),
        statement=Note(
            "sequences_stay_apart",
            "Rows of another sequence move the output by up to {difference}; "
            "in one buffer only a mask of its own rows keeps a sequence to itself.",
            {"difference": f"{max(float(row.figures[1]) for row in rows):.3g}"},
        ),
    )


def left_padding(lab: Lab) -> ExperimentResult:
    """Pad a ragged batch on the left; attend with the padding hidden, and with it in sight."""
    lab.budget.check()
    longest = lab.length_tokens
    lengths = [longest, max(1, longest // 2), max(1, longest // 4)]
    steps = [draw_step(lab.seed + index, size) for index, size in enumerate(lengths)]
    # What a pad token computes is a row like any other: drawn, not zero.
    pad = draw_step(lab.seed + len(lengths), longest)
    batch = DrawnStep(
        query=np.concatenate([step.query for step in steps]),
        keys=np.concatenate([_pad_left(pad.keys, step.keys, longest) for step in steps]),
        values=np.concatenate([_pad_left(pad.values, step.values, longest) for step in steps]),
    )
    hidden = output_of(lab.backend, batch, padded(lengths, on_left=True))
    seen = output_of(lab.backend, batch, everything(1, longest))
    rows = []
    for index, (size, step) in enumerate(zip(lengths, steps, strict=True)):
        alone = output_of(lab.backend, step)[0]
        rows.append(
            Row(
                code=f"sequence_{index}",
                label=Note("sequence_of", "sequence of {tokens}", {"tokens": size}),
                figures=(
                    longest - size,
                    max_difference(hidden[index], alone),
                    max_difference(seen[index], alone),
                ),
            )
        )
    return ExperimentResult(
        ran=lab.ran(),
        code="left_padding",
        title=Note("left_padding", "Padding on the left"),
        columns=(
            Note("padding", "padded positions"),
            Note("masked_difference", "difference with the mask"),
            Note("unmasked_difference", "difference without it"),
        ),
        rows=tuple(rows),
        statement=Note(
            "padding_must_be_hidden",
            "Hidden, padding changes nothing beyond rounding ({masked}); "
            "in sight, it moves a short sequence's output by up to {unmasked}.",
            {
                "masked": f"{max(float(row.figures[1]) for row in rows):.1e}",
                "unmasked": f"{max(float(row.figures[2]) for row in rows):.3g}",
            },
        ),
    )


def _pad_left(pad: Floats, rows: Floats, longest: int) -> Floats:
    return np.concatenate([pad[:, :, : longest - rows.shape[2]], rows], axis=2)


def _through_pages(backend: Backend, step: DrawnStep, table: list[int], block_size: int) -> Floats:
    pool = PagePool(
        backend,
        blocks=max(table) + 1,
        block_size=block_size,
        row=RowShape(heads=KV_HEADS, key_width=WIDTH, value_width=WIDTH),
        dtype="fp32",
    )
    paged = PagedCache(pool, table)
    paged.append(backend.put(step.keys[0]), backend.put(step.values[0]))
    keys, values = paged.read()
    mask = causal(paged.length - 1, 1)
    return backend.get(backend.attend(backend.put(step.query), keys, values, mask).outputs)


def _order_label(name: str, block_size: int) -> Note:
    params: dict[str, object] = {"block": block_size}
    return {
        "in_order": Note("in_order", "blocks of {block} in order", params),
        "reversed": Note("reversed", "blocks of {block} reversed", params),
        "scattered": Note("scattered", "blocks of {block} scattered", params),
    }[name]


def _bound(step: DrawnStep) -> float:
    visible = causal(step.keys.shape[2] - 1, 1)
    return 2 * agreement_bound(step.query, step.keys, step.values, visible)
