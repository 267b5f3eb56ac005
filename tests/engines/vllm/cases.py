"""Measured rows of vLLM, in a form that can be compared with the specs of our plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.accuracy.vllm_rows import KIND_OF_TYPE, spec_of
from app.engines.vllm.specs import LayerSpec

DATA = Path(__file__).parents[2] / "data"

__all__ = ["KIND_OF_TYPE", "load", "projected", "projection_of", "spec_of"]


def load(name: str) -> Any:
    """Return the measured cases of that file."""
    return json.loads((DATA / f"{name}.json").read_text())


def projection_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a measured row says of a layer's cache, comparable with `projected`."""
    return (
        KIND_OF_TYPE[row["type"]],
        row["block_size"],
        row["page_size_bytes"],
        row.get("num_kv_heads"),
        row.get("head_size"),
        row.get("head_size_v"),
        row.get("dtype"),
        row.get("sliding_window"),
        row.get("attention_chunk_size"),
        tuple(tuple(shape) for shape in row.get("shapes", ())),
        tuple(row.get("dtypes", ())),
        row.get("num_prefill_checkpoint_blocks"),
        row.get("max_tp_shards"),
    )


def projected(spec: LayerSpec) -> tuple[object, ...]:
    """Return what makes one layer's cache, as `projection_of` reads it from a measured row."""
    return (
        spec.kind,
        spec.block_size,
        spec.page_bytes,
        getattr(spec, "kv_heads", None),
        getattr(spec, "k_dim", None),
        getattr(spec, "v_dim", None),
        getattr(spec, "dtype", None),
        getattr(spec, "window", None),
        getattr(spec, "chunk", None),
        getattr(spec, "shapes", ()),
        getattr(spec, "dtypes", ()),
        getattr(spec, "checkpoint_blocks", None),
        getattr(spec, "max_tp_shards", None),
    )
