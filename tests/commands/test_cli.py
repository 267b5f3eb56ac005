"""What every command says of bad input: one line, exit code 2, the field named once."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"model_type": "llama", "a": 1, "a": 2}', "error: {path} names 'a' twice\n"),
        ("{", "error: {path} is not JSON: Expecting property name enclosed in double quotes: "),
        ('{"a": NaN}', "error: {path} holds 'NaN', which is no JSON\n"),
    ],
)
@pytest.mark.parametrize(
    "words", [["per-token", "--config", "{path}"], ["compare", "@{path}", "/"]]
)
def test_a_file_of_json_is_read_strictly(
    words: list[str], text: str, line: str, tmp_path: Path
) -> None:
    """A config, or a request to compare, that names a key twice says nothing certain."""
    path = tmp_path / "config.json"
    path.write_text(text)
    answer = CliRunner().invoke(app, [word.format(path=path) for word in words])
    assert answer.exit_code == 2
    assert answer.stderr.startswith(line.format(path=path))
