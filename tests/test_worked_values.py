"""Every worked value holds through the API, the command line and the page alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli
from app.domain.units import bytes_text

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "ledgers.json").read_text()
)
FIGURES = (
    "bytes_per_token", "effective_bytes", "padded_bytes", "paged_bytes", "blocks",
    "tail_waste_tokens", "tail_waste_bytes", "waste_bound_tokens",
)  # fmt: skip
UNIFORM = [case for case in GOLDEN if "layers" in case["model"]]
by_name = pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["case"])
by_uniform = pytest.mark.parametrize("case", UNIFORM, ids=lambda case: case["case"])


def test_there_are_cases() -> None:
    """The golden file is not empty, and some of its models can be typed as numbers."""
    assert len(GOLDEN) >= 9
    assert len(UNIFORM) >= 6


def typed(lengths: list[Any]) -> str:
    """Return lengths as a person types them."""
    return ", ".join(
        f"{item['count']}×{item['length']}" if isinstance(item, dict) else str(item)
        for item in lengths
    )


@by_name
def test_api(case: dict[str, Any], client: TestClient) -> None:
    """The API answers the worked values, with formula, assumptions and omissions."""
    body = {key: case[key] for key in ("model", "kv_dtype", "block_size", "lengths")}
    answer = client.post("/api/v1/ledgers", json=body)
    assert answer.status_code == 200
    got = answer.json()
    assert {name: got[name] for name in FIGURES} == {name: case[name] for name in FIGURES}
    assert got["formula"]
    assert got["assumptions"]
    assert got["not_counted"]


@by_uniform
def test_command_line(case: dict[str, Any], client: TestClient) -> None:
    """`--json` prints exactly what the API answers."""
    model = [f"--{key.replace('_', '-')}={value}" for key, value in case["model"].items()]
    done = CliRunner().invoke(
        cli,
        ["ledgers", *model, f"--kv-dtype={case['kv_dtype']}",
         f"--block-size={case['block_size']}", f"--lengths={typed(case['lengths'])}", "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    body = {key: case[key] for key in ("model", "kv_dtype", "block_size", "lengths")}
    assert done.stdout.strip() == client.post("/api/v1/ledgers", json=body).text


@by_uniform
def test_page(case: dict[str, Any], client: TestClient) -> None:
    """The page shows the three totals in words and to the byte."""
    query = urlencode(
        {"source": "numbers", **case["model"], "kv": case["kv_dtype"],
         "block_size": case["block_size"], "lengths": typed(case["lengths"])}
    )  # fmt: skip
    page = client.get(f"/?{query}")
    assert page.status_code == 200
    for name in ("effective", "padded", "paged"):
        figure = page.text.partition(f'id="{name}"')[2][:400]
        assert f'data-copy="{case[f"{name}_bytes"]}"' in figure
        assert bytes_text(case[f"{name}_bytes"]) in figure


def test_the_tensor_of_the_second_text(client: TestClient) -> None:
    """Batch 4 × 32 heads × 4096 × 128 in fp16: 134,217,728 elements, 256 MiB a layer, 8 GiB."""
    answer = client.post(
        "/api/v1/per-token",
        json={
            "model": {"layers": 32, "kv_heads": 32, "head_dim": 128},
            "kv_dtype": "fp16",
            "batch": 4,
            "seq_len": 4096,
        },
    ).json()
    assert answer["tensor_shape"] == {
        "shape": [4, 32, 4096, 128],
        "layer_elements": 134_217_728,
        "layer_bytes": 268_435_456,
        "layer_bytes_text": "256 MiB",
        "total_bytes": 8_589_934_592,
        "total_bytes_text": "8 GiB",
    }


def test_a_model_of_the_catalogue(client: TestClient) -> None:
    """Llama 3.1 8B costs 131,072 B a token through the API and the command line."""
    body = {"model": {"id": "meta-llama/Llama-3.1-8B"}, "lengths": [17, 31, 32]}
    answer = client.post("/api/v1/ledgers", json=body)
    assert answer.json()["paged_bytes"] == 12_582_912
    done = CliRunner().invoke(
        cli, ["ledgers", "--model", "meta-llama/Llama-3.1-8B", "--lengths", "17,31,32", "--json"]
    )
    assert done.stdout.strip() == answer.text
