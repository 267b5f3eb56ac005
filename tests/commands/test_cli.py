"""What every command says of bad input: one line, exit code 2, the field named once."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from app.cli import app


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--model", "nope"], "error: model.id 'nope' is not in the catalogue of"),
        (["--layers", "0", "--kv-heads", "8", "--head-dim", "8"], "error: model.layers: "),
        (["--layers", "1"], "error: model.kv_heads: "),
    ],
)
def test_a_mistake_names_its_field_once(words: list[str], line: str) -> None:
    """A sentence that begins with the field stands alone; another follows the field."""
    answer = CliRunner().invoke(app, ["per-token", *words])
    assert answer.exit_code == 2
    assert answer.stderr.startswith(line)
    assert answer.stderr.count("model.") == 1
    assert answer.stderr.count("\n") == 1
