"""Every measured case is asked, by the code as it is, and none is dropped in silence."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from app.accuracy import data, transformers_runs, vllm_logs, vllm_plans, vllm_steps, yardstick
from app.accuracy.case import AccuracyCase, Evidence, Figure, Outcome, Suite, failed, outcome_of
from app.accuracy.registry import suites
from app.accuracy.run import AccuracyRun, Progress, process_run
from app.domain.errors import Unsupported
from app.domain.notes import Note
from app.engines.logs import Explained, LogFigure

COUNTS = {
    "yardstick": 8,
    "transformers_released": 144,
    "vllm_model_plans": 136,
    "vllm_architectures": 160,
    "vllm_specs": 57,
    "engine_logs": 78,
    "llama_cpp_runs": 435,
    "sglang_runs": 71,
    "transformers_caches": 1069,
    "transformers_classes": 553,
    "param_counts": 151,
    "weights_built": 339,
    "vllm_releases": 598,
    "vllm_parallel": 318,
    "vllm_hashes": 171,
    "vllm_pool_steps": 7,
    "vllm_manager_steps": 12,
    "vllm_cache_traces": 63,
    "vllm_logs": 86,
}
# What is in the folder beside measured cases: headers and configs that cases refer to.
NO_CASES = {
    "engine_gguf_metadata", "vllm_architecture_configs", "vllm_model_plan_configs",
    "weight_configs",
}  # fmt: skip


@pytest.fixture(scope="module")
def progress() -> Progress:
    """Return the answers to all cases."""
    run = process_run()
    run.start()
    assert run.wait(200)
    return run.progress()


def test_every_case_is_there(progress: Progress) -> None:
    """Each suite answers as many cases as its file holds."""
    counts = Counter(case.suite for case in progress.cases)
    assert {name: counts[name] for name in COUNTS} == COUNTS
    assert progress.is_complete
    assert progress.done == progress.total == sum(counts.values())


def test_every_measured_file_is_asked_or_named() -> None:
    """No file of measured cases lies beside the others unasked."""
    there = {path.name.partition(".")[0] for path in data.AMONG_TESTS.glob("*.json*")}
    assert there <= {suite.file for suite in suites()} | NO_CASES


def test_every_case_is_reproduced_or_explained(progress: Progress) -> None:
    """Each figure of each case agrees, or the reason is said: in three cases beside public logs."""
    wrong = [case for case in progress.cases if case.outcome is Outcome.NOT_REPRODUCED]
    assert wrong == []
    explained = [case for case in progress.cases if case.outcome is Outcome.EXPLAINED]
    assert {case.id for case in explained if case.suite != "vllm_logs"} == {
        "dots1 base", "gpt-oss-120b tp16", "ik-105",
    }  # fmt: skip
    assert all(case.reason for case in explained)


def test_logs_of_known_models_agree_or_say_why(progress: Progress) -> None:
    """Of logs whose source names the model most agree; the others hold nothing to check."""
    logs = [case for case in progress.cases if case.suite == "vllm_logs"]
    agreeing = [case for case in logs if case.outcome is Outcome.PRINTED]
    assert len(agreeing) >= 45
    assert sum(bool(case.source_url) for case in logs) == 35
    for case in logs:
        if case.outcome is Outcome.EXPLAINED and "inferred from the figures" not in case.reason:
            assert not case.figures or any(not figure.agrees for figure in case.figures)


def test_printed_figures_are_told_from_exact_ones(progress: Progress) -> None:
    """What was read off a log agrees to the printed digit, and is not called exact."""
    logs = [case for case in progress.cases if case.suite == "engine_logs"]
    assert {case.outcome for case in logs} == {Outcome.PRINTED, Outcome.EXPLAINED}
    assert sum(bool(case.source_url) for case in logs) == 58


def test_a_figure_that_agrees_has_no_difference(progress: Progress) -> None:
    """Where a figure of numbers agrees, ours less theirs is nothing."""
    figures = [figure for case in progress.cases for figure in case.figures]
    assert len(figures) > 8000
    same = [f for f in figures if f.agrees and not f.is_within]
    assert {figure.difference for figure in same if figure.difference is not None} == {0}


def test_the_yardstick_is_worked_out_by_hand() -> None:
    """The figures of the table, to the byte."""
    expected = [expected for _, _, expected in yardstick.ROWS]
    assert expected == [
        17_179_869_184, 9_210_691_584, 11_173_199_872, 11_173_199_872, 11_173_199_872,
        19_327_352_832, 3_298_492_416, 3_224_346_624,
    ]  # fmt: skip


def test_process_runs_once() -> None:
    """A second start begins nothing."""
    before = threading.active_count()
    process_run().start()
    assert threading.active_count() <= before
    assert process_run() is process_run()


# What goes wrong is shown


def _suite(*questions: object) -> Suite:
    return Suite(
        name="made up",
        engine="none",
        title="Made up",
        what="For a test.",
        evidence=Evidence.WORKED,
        file="",
        questions=lambda: list(questions),  # type: ignore[arg-type]
    )


def _asked(*made: Suite) -> Progress:
    run = AccuracyRun(lambda: made)
    assert run.progress().total == 0
    run.start()
    assert run.wait(10)
    return run.progress()


def test_a_case_that_breaks_our_code_is_not_reproduced() -> None:
    """The others are asked all the same, and the reason names what happened."""

    def breaks() -> AccuracyCase:
        raise ZeroDivisionError("of a test")

    good = failed(_suite(), 7, "a reason")
    progress = _asked(_suite(breaks, lambda: good))
    assert [case.outcome for case in progress.cases] == [Outcome.NOT_REPRODUCED] * 2
    assert "ZeroDivisionError: of a test" in progress.cases[0].reason
    assert progress.cases[1] is good
    assert progress.count(Outcome.NOT_REPRODUCED) == 2


def test_a_file_that_is_missing_is_said() -> None:
    """A suite that cannot be loaded is one case that says so; the others go on."""

    def missing() -> list[object]:
        return [data.load("no such file")]

    broken = Suite(name="b", engine="e", title="t", what="w", evidence=Evidence.RUN, file="f",
                   questions=missing)  # type: ignore[arg-type]  # fmt: skip
    progress = _asked(broken, _suite(lambda: failed(_suite(), 1, "x")))
    assert "FileNotFoundError: no such file" in progress.cases[0].reason
    assert progress.done == 2


def test_files_beside_the_program_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed program has its own copy of the measured files."""
    (tmp_path / "vllm_parallel.json").write_text(json.dumps({"own": 1}))
    monkeypatch.setattr(data, "INSTALLED", tmp_path)
    assert data.load("vllm_parallel") == {"own": 1}
    assert len(data.load("vllm_spec_cases")) == 57


@pytest.mark.parametrize(
    ("computed", "best", "reason", "outcome"),
    [
        (5, Outcome.EXACT, "", Outcome.EXACT),
        (5, Outcome.PRINTED, "inferred", Outcome.PRINTED),
        (6, Outcome.EXACT, "", Outcome.NOT_REPRODUCED),
        (6, Outcome.EXACT, "known", Outcome.EXPLAINED),
        (None, Outcome.EXACT, "", Outcome.NOT_REPRODUCED),
    ],
)
def test_outcomes(computed: int | None, best: Outcome, reason: str, outcome: Outcome) -> None:
    """All figures agree, or a reason is known, or the case is not reproduced."""
    figure = Figure(name="f", measured=5, computed=computed)
    assert outcome_of([figure], best=best, reason=reason) is outcome
    assert figure.difference == (None if computed is None else computed - 5)


def test_no_figures_are_no_agreement() -> None:
    """A case that was not asked is not exact for want of a difference."""
    assert outcome_of([]) is Outcome.NOT_REPRODUCED


def test_a_changed_measurement_is_seen() -> None:
    """One byte more, or one tensor less, and the case is not reproduced."""
    loaded = data.load("transformers_caches")
    case = loaded["cases"][0]
    config = loaded["configs"][case["config"]]
    assert transformers_runs.ask_small(case, config, "s").outcome is Outcome.EXACT
    more = case | {"total_bytes": case["total_bytes"] + 1}
    answer = transformers_runs.ask_small(more, config, "s")
    assert answer.outcome is Outcome.NOT_REPRODUCED
    assert answer.figures[0].difference == -1
    less = case | {"layers": [[1, *case["layers"][0][1:]]]}
    answer = transformers_runs.ask_small(less, config, "s")
    assert answer.figures[-1].computed == "2 and 8 others"


def test_a_config_that_we_refuse_says_why() -> None:
    """The refusal is the reason, and the figures stay empty on our side."""
    loaded = data.load("transformers_caches")
    case = loaded["cases"][0]
    answer = transformers_runs.ask_small(case, {"model_type": "made_up"}, "s")
    assert answer.outcome is Outcome.NOT_REPRODUCED
    assert "made_up" in answer.reason
    assert answer.figures[0].computed is None
    plan = data.load("vllm_model_plans")[0]
    refused = vllm_plans.ask(plan, {"model_type": "made_up"}, vllm_plans.CHECKPOINTS)
    assert "made_up" in refused.reason
    assert refused.figures[0].computed == "refused"


def test_refusals_of_ours_become_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked, a refusal of our own code is shown with the case."""

    def refuse(*_: object, **__: object) -> object:
        raise Unsupported("{field} is refused for a test", field="x")

    for module, names in {
        "yardstick": ["read_config"],
        "parameters": ["read_weights"],
        "vllm_pools": ["fill_pool"],
        "vllm_parts": ["vllm_chain"],
        "engine_runs": ["log_result"],
        "vllm_logs": ["explain"],
        "vllm_steps": ["vllm_chain"],
    }.items():
        for name in names:
            monkeypatch.setattr(f"app.accuracy.{module}.{name}", refuse)
    wanted = {"yardstick": 0, "param_counts": 0, "vllm_specs": 0, "vllm_releases": 0,
              "vllm_hashes": 0, "engine_logs": 0, "vllm_pool_steps": 2}  # fmt: skip
    for suite in suites():
        if suite.name in wanted:
            case = suite.questions()[wanted[suite.name]]()
            assert case.outcome is Outcome.NOT_REPRODUCED
            assert "refused for a test" in case.reason


def test_a_log_that_our_code_refuses_is_explained_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal stands where the figures would."""
    row = {"id": "a", "log_lines": [], "model_name": "nobody/nothing", "model_identified": "x"}
    case = vllm_logs.ask(row)
    assert case.outcome is Outcome.EXPLAINED
    assert "nothing in these lines can be checked" in case.reason

    def refuse(*_: object) -> object:
        raise Unsupported("{field} is refused for a test", field="x")

    monkeypatch.setattr(vllm_logs, "explain", refuse)
    assert "refused for a test" in vllm_logs.ask(row).reason


def test_a_log_that_differs_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that is other than computed carries its reasons."""
    figure = LogFigure(
        name="kv_cache_tokens", line="x", line_number=1, rank=None, printed="5 tokens",
        computed="6 tokens", agrees=False, reasons=(Note("a", "for a test"),),
    )  # fmt: skip
    monkeypatch.setattr(
        vllm_logs, "explain", lambda *_: Explained(engine="vllm", figures=(figure,))
    )
    row = {"id": "a", "log_lines": [], "model_name": "x", "model_identified": "stated in source"}
    case = vllm_logs.ask(row)
    assert (case.outcome, case.reason) == (Outcome.EXPLAINED, "for a test")


def test_steps_that_go_another_way_are_counted_up_to_there() -> None:
    """A changed record of the pool, of the manager and of a trace is seen at its step."""
    pool = data.load("vllm_block_pool_scenarios")[0]
    steps = [*pool["steps"]]
    steps[1] = steps[1] | {"result": [99]}
    assert vllm_steps.ask_pool(pool | {"steps": steps}).figures[0].computed == 1
    manager = data.load("vllm_kv_cache_manager_scenarios")[0]
    changes: tuple[dict[str, object], ...] = (
        {"prefix_hit_tokens": 99}, {"all_block_ids": [[99]]}, {"after": {}},
    )  # fmt: skip
    for change in changes:
        steps = [manager["steps"][0] | change, *manager["steps"][1:]]
        assert vllm_steps.ask_manager(manager | {"steps": steps}).figures[0].computed == 0
    trace = data.load("vllm_cache_traces")[0]
    index = next(i for i, step in enumerate(trace["steps"]) if step[0] == "after")
    steps = [*trace["steps"][:index], ["after", [], [], [], {}], *trace["steps"][index + 1 :]]
    assert vllm_steps.ask_trace(0, trace | {"steps": steps}).figures[0].computed == index
