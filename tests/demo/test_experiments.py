"""The experiments: each shows what it says, on every backend, within its time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from app.demo.backends import NumpyBackend, is_torch_installed
from app.demo.budget import Budget, LabBusy, LabSlot, RunStopped
from app.demo.eviction import (
    HISTORIES,
    RULES,
    keep_heaviest,
    keep_newest,
    keep_sinks,
    run_with_budget,
)
from app.demo.lab import EXPERIMENTS, run_experiment
from app.demo.model import ModelShape, SmallModel
from app.demo.precision import SHAPE
from app.demo.results import MAX_LAB_TOKENS, ExperimentResult, Lab
from app.domain.errors import Conflict, OutOfRange, Unknown

DEVICES = [
    "numpy",
    pytest.param(
        "cpu",
        marks=[
            pytest.mark.torch,
            pytest.mark.skipif(not is_torch_installed(), reason="torch is not installed"),
        ],
    ),
]


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Return each device on which the experiments run."""
    return str(request.param)


def figures(result: ExperimentResult, column: str) -> dict[str, float]:
    """Return one column of a result by the codes of its rows."""
    return {row.code: float(result.figure(row.code, column)) for row in result.rows}


@pytest.mark.parametrize("length", [4, 5, 33])
@pytest.mark.parametrize("code", list(EXPERIMENTS))
def test_every_experiment_is_a_table_of_plain_figures(code: str, device: str, length: int) -> None:
    """Rows have a figure for each column, lines as many x as y, and all are finite numbers."""
    result = run_experiment(code, device=device, length_tokens=length, seed=2)
    assert result.code == code == result.title.code
    assert result.ran.length_tokens == length
    assert result.ran.backend == ("numpy" if device == "numpy" else "torch")
    assert result.rows
    assert len({row.code for row in result.rows}) == len(result.rows)
    for row in result.rows:
        assert len(row.figures) == len(result.columns)
        assert {type(figure) for figure in row.figures} <= {int, float, bool}
        assert np.isfinite(row.figures).all()
        assert row.label.text
    for line in result.series:
        assert len(line.x) == len(line.y) > 1
        assert np.isfinite(line.x + line.y).all()
    assert "{" not in result.statement.text + "".join(note.text for note in result.notes)


@pytest.mark.parametrize("code", list(EXPERIMENTS))
def test_a_seed_repeats_an_experiment(code: str) -> None:
    """The same seed gives the same figures, another seed others."""
    first = run_experiment(code, device="numpy", length_tokens=16, seed=1)
    assert first == run_experiment(code, device="numpy", length_tokens=16, seed=1)
    other = run_experiment(code, device="numpy", length_tokens=16, seed=9)
    # Where blocks lie does not show in the output, so the drawn numbers leave that table alike.
    if code != "pages_in_any_order":
        assert [row.figures for row in first.rows] != [row.figures for row in other.rows]


def test_dropping_the_history_turns_3_into_4(device: str) -> None:
    """The worked step answers 3 with its history and 4 without."""
    result = run_experiment("history_dropped", device=device)
    assert result.rows[0].figures == (3.0, 4.0, 1.0)
    assert float(result.figure("drawn", "max_abs_difference")) > 0.1


def test_only_pairs_may_be_permuted(device: str) -> None:
    """K and V together move the output by rounding alone, one of them by far more."""
    result = run_experiment("rows_permuted", device=device)
    moved = figures(result, "max_abs_difference")
    assert moved["together"] < 1e-6
    assert moved["keys_alone"] > 0.05
    assert moved["values_alone"] > 0.05
    assert not result.figure("keys_alone", "bit_equal")


def test_a_narrower_window_is_another_model(device: str) -> None:
    """A window over everything changes nothing; half of it changes the output."""
    result = run_experiment("window_narrowed", device=device, length_tokens=64)
    moved = figures(result, "max_abs_difference")
    assert moved["window_64"] == 0
    assert all(moved[f"window_{window}"] > 0.05 for window in (32, 16, 8, 1))


def test_pages_give_the_same_bits(device: str) -> None:
    """Blocks of 1, 4 and 16, in order, reversed or scattered: all equal to the last bit."""
    result = run_experiment("pages_in_any_order", device=device, length_tokens=50)
    assert len(result.rows) == 9
    assert all(result.figure(row.code, "bit_equal") is True for row in result.rows)
    assert result.figure("scattered_16", "blocks") == 4
    assert result.statement.text.startswith("9 of 9")


def test_mixed_sequences_show(device: str) -> None:
    """Foreign rows change the output unless a mask hides them."""
    moved = figures(run_experiment("sequences_mixed", device=device), "max_abs_difference")
    assert moved["masked"] < 1e-6
    assert min(moved[code] for code in ("swapped", "overwritten", "unmasked")) > 0.05


def test_left_padding_needs_its_mask(device: str) -> None:
    """Hidden padding changes nothing; seen, it changes all but the unpadded sequence."""
    result = run_experiment("left_padding", device=device, length_tokens=32)
    assert figures(result, "padding") == {"sequence_0": 0, "sequence_1": 16, "sequence_2": 24}
    assert max(figures(result, "masked_difference").values()) < 1e-6
    seen = figures(result, "unmasked_difference")
    assert seen["sequence_0"] < 1e-6
    assert min(seen["sequence_1"], seen["sequence_2"]) > 0.05


def test_cached_steps_differ_from_a_recompute_by_rounding(device: str) -> None:
    """Through four layers fp32 caches lie within 1e-5; coarser ones within a step of theirs."""
    result = run_experiment("step_against_recompute", device=device, length_tokens=48)
    relative = figures(result, "relative_difference")
    assert relative["fp32"] < 1e-5
    # Rounding in another order may carry a row over an edge: one step of the format at most.
    steps = {"fp16": 2**-10, "bf16": 2**-7, "fp8": 2**-3, "int8": 2**-6, "int4": 2**-2}
    for dtype, step in steps.items():
        assert relative[dtype] <= step
    assert set(figures(result, "steps").values()) == {48}


def test_coarser_formats_err_more_and_kept_layers_less(device: str) -> None:
    """Error falls from int4 to fp16, and each format's falls with its end layers in fp32."""
    result = run_experiment("error_by_length", device=device, length_tokens=128)
    error = figures(result, "error_long")
    assert error["fp16"] < error["bf16"] < error["int8"] < error["fp8"] < error["int4"]
    for dtype in ("fp16", "bf16", "fp8", "int8", "int4"):
        assert error[f"{dtype}_ends_fp32"] < error[dtype]
    # 4 layers of 2 heads with 16 + 16 elements; two scales of 4 bytes a head and layer.
    size = figures(result, "bytes_per_token")
    assert (size["fp16"], size["fp8"], size["int8"], size["int4"]) == (512, 256, 320, 192)
    assert size["fp16_ends_fp32"] == 768
    assert result.series[0].x == (2, 4, 8, 16, 32, 64, 128)


def test_no_rule_of_eviction_is_best_everywhere(device: str) -> None:
    """A sink needs the first positions and a needle the heavy ones; keeping all errs nowhere."""
    result = run_experiment("eviction_compared", device=device, length_tokens=64)
    by_code = {row.code: dict(zip((8, 16, 32, 48, 64), row.figures, strict=True))
               for row in result.rows}  # fmt: skip
    assert len(by_code) == 9
    assert {errors[64] for errors in by_code.values()} == {0}
    assert by_code["sink_sinks"][16] < by_code["sink_window"][16] / 2
    assert by_code["needle_heaviest"][32] < by_code["needle_sinks"][32] / 2
    assert by_code["needle_window"][32] < by_code["needle_sinks"][32]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (keep_newest, [6, 7, 8, 9]),
        (keep_sinks, [0, 1, 2, 9]),
        (keep_heaviest, [1, 5, 8, 9]),
    ],
)
def test_rules_keep_what_they_say(rule: object, kept: list[int]) -> None:
    """Of ten positions with 1 and 5 the heaviest, each rule keeps its own four."""
    gathered = np.array([0, 9, 0, 0, 0, 8, 1, 0, 0, 0], dtype=np.float64)
    assert callable(rule)
    assert rule(list(range(10)), gathered, 4) == kept


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_rules_never_keep_more_than_the_budget(rule: str, budget: int) -> None:
    """Every rule keeps exactly the budget, in order, the newest position among it."""
    choose = RULES[rule][1]
    kept = choose(list(range(9)), np.zeros(9), budget)
    assert len(kept) == budget
    assert kept == sorted(set(kept))
    assert budget == 1 or kept[-1] == 8


def test_a_full_budget_changes_nothing() -> None:
    """With room for all, the rules give what a cache without eviction gives."""
    lab = Lab(backend=NumpyBackend(), budget=Budget())
    history = HISTORIES["even"][1](0, 12)
    outputs = [run_with_budget(lab, history, rule, 12) for _, rule in RULES.values()]
    assert np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(outputs[0], outputs[2])


@pytest.mark.parametrize("code", list(EXPERIMENTS))
def test_every_experiment_can_be_cancelled(code: str) -> None:
    """A run asks its budget between steps, and stops when it is told to."""
    with pytest.raises(RunStopped, match="cancelled") as caught:
        run_experiment(code, device="numpy", budget=Budget(cancelled=lambda: True))
    assert caught.value.note.code == "cancelled"


def ticking() -> Iterator[float]:
    """Yield a clock that is a second later at each look."""
    return (float(second) for second in count())


def test_a_run_over_its_time_is_stopped() -> None:
    """A budget of 3 seconds allows three looks at a clock that ticks by one."""
    clock = ticking()
    budget = Budget(seconds=3, clock=lambda: next(clock))
    for _ in range(3):
        budget.check()
    with pytest.raises(RunStopped, match="stopped after 3 seconds") as caught:
        budget.check()
    assert caught.value.note.code == "over_time"


def test_the_lab_has_room_for_one_run() -> None:
    """A second run is told at once that the lab is busy; after the first, even failed, it may."""
    slot = LabSlot()

    def hold_twice() -> None:
        with slot.hold(), slot.hold():
            pytest.fail("two runs held the slot")

    def fail_inside() -> None:
        with slot.hold():
            raise KeyError

    with pytest.raises(LabBusy, match="busy"):
        hold_twice()
    with pytest.raises(KeyError):
        fail_inside()
    with slot.hold():
        pass


@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"code": "alchemy"}, Unknown, "experiment"),
        ({"code": None}, Unknown, "experiment"),
        ({"length_tokens": 3}, OutOfRange, "length_tokens"),
        ({"length_tokens": MAX_LAB_TOKENS + 1}, OutOfRange, "length_tokens"),
        ({"seed": -1}, OutOfRange, "seed"),
        ({"seed": 2**32}, OutOfRange, "seed"),
    ],
)
def test_settings_are_checked(
    settings: dict[str, object], error: type[OutOfRange | Unknown], field: str
) -> None:
    """An unknown experiment, a length or a seed out of bounds is refused by name."""
    asked: dict[str, object] = {"code": "history_dropped", "device": "numpy", **settings}
    with pytest.raises(error) as caught:
        run_experiment(**asked)  # type: ignore[arg-type]
    assert caught.value.field == (field,)


@pytest.mark.parametrize(
    ("sizes", "error", "field"),
    [
        ({"layers": 17}, OutOfRange, "layers"),
        ({"hidden": 0}, OutOfRange, "hidden"),
        ({"query_heads": 3}, Conflict, "query_heads"),
    ],
)
def test_model_sizes_are_checked(
    sizes: dict[str, int], error: type[OutOfRange | Conflict], field: str
) -> None:
    """The small decoder stays small, and its heads divide into groups."""
    with pytest.raises(error) as caught:
        ModelShape(**sizes)
    assert caught.value.field == (field,)


@pytest.mark.torch
@pytest.mark.skipif(not is_torch_installed(), reason="torch is not installed")
def test_the_small_model_is_the_same_on_torch() -> None:
    """The same seed draws the same weights, and outputs agree within 1e-5 of their size."""
    from app.demo.torch_backend import open_torch  # noqa: PLC0415 - torch may be absent

    outputs = []
    for backend in (NumpyBackend(), open_torch("cpu")):
        model = SmallModel(backend, SHAPE, seed=4)
        rows = backend.put(model.inputs(24, seed=4))
        caches = model.new_caches(24, ["fp32"] * SHAPE.layers)
        outputs.append(backend.get(model.forward(rows, caches, Budget())))
    assert np.abs(outputs[0] - outputs[1]).max() <= 1e-5 * np.abs(outputs[0]).max()
