"""`inspect` on the command line: the API's own answer, or tables; one line on bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app
from app.settings import Settings
from tests.hub.fake_hub import Served, fake_hub
from tests.readers.test_model_files import gguf_bytes, index_bytes, safetensors_bytes

pytestmark = pytest.mark.enable_socket
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a config.json."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_json_is_what_the_api_answers(config: Path, client: TestClient) -> None:
    """The same file through both, to the byte."""
    done = CliRunner().invoke(app, ["inspect", str(config), "--json"])
    assert done.exit_code == 0, done.output
    api = client.post(
        "/api/v1/models/inspect", files={"file": ("config.json", config.read_bytes())}
    )
    assert done.stdout.strip() == api.text


def test_tables(config: Path, tmp_path: Path) -> None:
    """Kinds, formula, context lengths, and the weights of a header beside the config."""
    header = tmp_path / "m.safetensors"
    header.write_bytes(safetensors_bytes())
    done = CliRunner().invoke(app, ["inspect", str(config), str(header), "--kv-dtype", "fp16"])
    assert done.exit_code == 0, done.output
    assert "2 × full_attention" in done.stdout
    assert "2 × 2 layers × 4 KV heads × 8 × 2 B = 256 B/token" in done.stdout
    assert "268435456" in done.stdout
    assert "Weights (header): 12 B" in done.stdout


def test_a_header_without_layers_and_an_index(tmp_path: Path) -> None:
    """What lists tensors alone has no table of contexts; an undeclared total is said."""
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(index_bytes("a", total=None))
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert done.exit_code == 0, done.output
    assert "not declared" in done.stdout
    assert "context lengths" not in done.stdout


def test_a_gguf_part_says_what_is_missing(tmp_path: Path) -> None:
    """A note is printed as a line."""
    path = tmp_path / "x-00001-of-00002.gguf"
    path.write_bytes(gguf_bytes(split=(0, 2)))
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert "split over 2 files" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one or more files"),
        (["nothing.json", "--hub", "org/name"], "one or more files"),
        (["nothing.json"], "No such file"),
        (["--hub", "org/name"], "switched off"),
    ],
)
def test_bad_input_ends_with_one_line(arguments: list[str], words: str) -> None:
    """Exit code 2, and the reason on standard error."""
    done = CliRunner().invoke(app, ["inspect", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_field_at_fault_is_named_once(tmp_path: Path) -> None:
    """The sentence names the field itself."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "nope"}')
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert done.exit_code == 2
    assert done.stderr.count("file.model_type") == 1


@pytest.fixture
def hub() -> Iterator[Served]:
    """Return a server that answers as the Hub does."""
    with fake_hub() as served:
        yield served


def test_a_model_of_the_hub(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is enabled a model is read by its name."""
    config = Settings(hub_enabled=True, hub_endpoint=hub.url, hub_allow_private=True,
                      hub_cache_bytes=0)  # fmt: skip
    monkeypatch.setattr("app.settings.settings", lambda: config)
    done = CliRunner().invoke(app, ["inspect", "--hub", "org/single", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["hub"]["repo"] == "org/single"


def test_layers_by_hand_are_a_config_too(tmp_path: Path) -> None:
    """What the inspection prints as layer_states can be calculated with."""
    path = tmp_path / "layers.json"
    rows = [{"kind": "full_attention", "kv_heads": 4, "k_dim": 8, "v_dim": 8, "count": 2}]
    path.write_text(json.dumps({"layer_states": rows}))
    arguments = ["ledgers", "--config", str(path), "--lengths", "10", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["effective_bytes"] == 2560
