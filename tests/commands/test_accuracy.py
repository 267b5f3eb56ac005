"""`accuracy` on the command line."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.accuracy.case import Outcome, Suite, failed
from app.accuracy.run import AccuracyRun
from app.cli import app


def test_json_is_what_the_api_answers(client: TestClient) -> None:
    """The same filters through both, to the byte."""
    done = CliRunner().invoke(app, ["accuracy", "gemma", "--suite", "yardstick", "--json"])
    assert done.exit_code == 0, done.output
    api = client.get("/api/v1/accuracy?suite=yardstick&q=gemma")
    assert json.loads(done.stdout) == api.json()


def test_a_table_of_kinds_and_of_what_was_asked_for() -> None:
    """Every kind of case with its outcomes; with a filter the figures too."""
    done = CliRunner().invoke(app, ["accuracy"])
    assert done.exit_code == 0, done.output
    assert "transformers_released" in done.stdout
    assert "figures" not in done.stdout
    done = CliRunner().invoke(app, ["accuracy", "--suite", "yardstick"], terminal_width=200)
    assert "8 figures" in done.stdout


def test_a_case_that_is_not_reproduced_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a build can stop on it."""
    from app.accuracy.yardstick import SUITE  # noqa: PLC0415 - only here

    case = failed(SUITE, 1, "for a test")
    suite = Suite(name=SUITE.name, engine="e", title="t", what="w", evidence=SUITE.evidence,
                  file="", questions=lambda: [lambda: case])  # fmt: skip
    run = AccuracyRun(lambda: (suite,))
    monkeypatch.setattr("app.accuracy.run.process_run", lambda: run)
    assert case.outcome is Outcome.NOT_REPRODUCED
    assert CliRunner().invoke(app, ["accuracy"]).exit_code == 1


def test_bad_input_ends_with_one_line() -> None:
    """An outcome that there is not."""
    done = CliRunner().invoke(app, ["accuracy", "--outcome", "perfect"])
    assert done.exit_code == 2
    assert "not_reproduced" in done.stderr
