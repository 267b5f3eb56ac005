"""A model's state as `layer_states` rows, in the form that a request takes them."""

from __future__ import annotations

from typing import Any

from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
)


def layer_state_rows(model: ModelState) -> list[dict[str, Any]]:
    """Return the rows of a model; sent back as `layer_states`, they give the same model."""
    rows: list[dict[str, Any]] = []
    for run in model.runs:
        if not run.layer.states:
            rows.append({"kind": "none", "count": run.count})
        for position, state in enumerate(run.layer.states):
            row = {"kind": state.kind, **_fields(state), "count": run.count}
            if position:
                row["same_layer"] = True
            rows.append(row)
    return rows


def _fields(state: State) -> dict[str, Any]:
    if isinstance(state, LatentAttention):
        return _latent(state)
    if isinstance(state, Recurrent):
        return {
            "tensors": [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "dtype": tensor.dtype.name,
                    **({} if tensor.split_axis is None else {"split_axis": tensor.split_axis}),
                }
                for tensor in state.tensors
            ]
        }
    if isinstance(state, Shared):
        return {"with_layer": state.with_layer}
    fields: dict[str, Any] = {
        "kv_heads": state.kv_heads,
        "k_dim": state.k_dim,
        "v_dim": state.v_dim,
    }
    if isinstance(state, SlidingWindow):
        fields["window"] = state.window
    elif isinstance(state, ChunkedAttention):
        fields["chunk"] = state.chunk
    elif isinstance(state, CrossAttention):
        fields["encoder_tokens"] = state.encoder_tokens
    elif isinstance(state, FullAttention) and state.index_dim:
        fields["index_dim"] = state.index_dim
    return fields


def _latent(state: LatentAttention) -> dict[str, Any]:
    fields: dict[str, Any] = {"latent_dim": state.latent_dim, "rope_dim": state.rope_dim}
    if state.index_dim:
        fields["index_dim"] = state.index_dim
    if state.index_format is not None:
        fields["index_dtype"] = state.index_format.name
    if state.window is not None:
        fields["window"] = state.window
    if state.tokens_per_entry != 1:
        fields["tokens_per_entry"] = state.tokens_per_entry
    return fields
