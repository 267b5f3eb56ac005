"""`layer_states` rows: what comes out can be sent back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from starlette.testclient import TestClient

from app.api.model_input import read_model
from app.api.schemas import LayerStatesModel
from app.api.state_rows import layer_state_rows
from app.domain.state import ModelState
from tests.domain.strategies import models


@given(models())
def test_rows_give_the_same_model(model: ModelState) -> None:
    """A model's rows, sent back, give the model."""
    rows = LayerStatesModel.model_validate({"layer_states": layer_state_rows(model)})
    assert read_model(rows).state == model


def test_every_kind_through_the_api(client: TestClient) -> None:
    """All kinds in one model: slope, windows and fixed part are told apart, layer by layer."""
    heads = {"kv_heads": 2, "k_dim": 8, "v_dim": 8}
    rows: list[dict[str, Any]] = [
        {"kind": "full_attention", **heads},
        {"kind": "recurrent", "state_bytes": 100, "conv_bytes": 6, "same_layer": True},
        {"kind": "sliding_window", **heads, "window": 5, "count": 2},
        {"kind": "chunked_attention", **heads, "chunk": 9},
        {"kind": "latent_attention", "latent_dim": 6, "rope_dim": 2, "index_dim": 1,
         "index_dtype": "fp32"},
        {"kind": "recurrent",
         "tensors": [{"name": "ssm", "shape": [2, 3], "dtype": "fp32", "split_axis": 0}]},
        {"kind": "cross_attention", **heads, "encoder_tokens": 10},
        {"kind": "shared", "with_layer": 0},
        {"kind": "none"},
    ]  # fmt: skip
    answer = client.post(
        "/api/v1/per-token", json={"model": {"layer_states": rows}, "kv_dtype": "fp16"}
    ).json()
    assert answer["bytes_per_token"] == 64 + 16 + 4
    assert answer["window_bytes_per_sequence"] == 2 * 4 * 64 + 8 * 64
    assert answer["fixed_bytes_per_sequence"] == 106 + 24 + 640
    assert [(row["index"], row["kind"]) for row in answer["layers"]] == [
        (0, "full_attention"), (0, "recurrent"), (1, "sliding_window"), (2, "sliding_window"),
        (3, "chunked_attention"), (4, "latent_attention"), (5, "recurrent"),
        (6, "cross_attention"), (7, "shared"),
    ]  # fmt: skip
    assert answer["layers"][4]["window"] == 9
