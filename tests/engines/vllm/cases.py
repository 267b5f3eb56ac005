"""Reads measured specs (vLLM's own words) into the values of app.engines.vllm.specs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from app.engines.vllm.specs import (
    AttentionSpec,
    ChunkedSpec,
    CrossSpec,
    FullSpec,
    HiddenStateSpec,
    LayerSpec,
    MambaSpec,
    MlaSpec,
    RecentWindowSpec,
    RingSpec,
    SinkSpec,
    SlidingMlaSpec,
    SlidingSpec,
)

DATA = Path(__file__).parents[2] / "data"

KIND_OF_TYPE = {
    "FullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "mla_attention",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window_mla",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "CrossAttentionSpec": "cross_attention",
    "MambaSpec": "mamba",
    "RSWASpec": "rswa",
    "SinkFullAttentionSpec": "sink_full_attention",
    "HiddenStateCacheSpec": "hidden_state",
    "CircularBufferSpec": "circular_buffer",
    "UniformTypeKVCacheSpecs": "uniform_type",
}


def load(name: str) -> Any:
    """Return the measured cases of that file."""
    return json.loads((DATA / f"{name}.json").read_text())


def spec_of(row: Mapping[str, Any]) -> LayerSpec:
    """Return the spec that a measured row describes."""
    kind = row["type"]
    if kind == "MambaSpec":
        return MambaSpec(
            block_size=row["block_size"],
            shapes=tuple(map(tuple, row["shapes"])),
            dtypes=tuple(row["dtypes"]),
            mamba_type=row["mamba_type"].lower(),
            page_bytes_padded=row.get("page_size_padded"),
            cache_mode=row["mamba_cache_mode"],
            speculative_blocks=row["num_speculative_blocks"],
            checkpoint_blocks=row["num_prefill_checkpoint_blocks"],
        )
    alignment = row.get("block_stride_alignment")
    shared: dict[str, Any] = {
        "block_size": row["block_size"],
        "dcp_sharded": row["dcp_sharded"],
        "is_draft": row.get("is_draft", False),
        "kv_heads": row["num_kv_heads"],
        "k_dim": row["head_size"],
        "v_dim": row["head_size_v"],
        "dtype": row["dtype"],
        "quant_mode": row["kv_quant_mode"],
        "head_slots": row.get("num_head_slots"),
        "state_bytes": row.get("state_content_bytes"),
        "tokens_per_state": Fraction(row["tokens_per_state"]),
        "page_bytes_padded": row.get("page_size_padded"),
        "max_tp_shards": row.get("max_tp_shards"),
        "cache_dtype": row.get("cache_dtype_str"),
        "kernel_block_limit": 256 if alignment == "MultipleOf(256)" else None,
    }
    return _attention(kind, row, shared)


def _attention(kind: str, row: Mapping[str, Any], shared: dict[str, Any]) -> AttentionSpec:
    if kind in ("MLAAttentionSpec", "HiddenStateCacheSpec"):
        cls = MlaSpec if kind == "MLAAttentionSpec" else HiddenStateSpec
        return cls(**shared, is_index_leader=row["is_index_group_leader"],
                   cache_role=row["cache_role"].lower(), alignment=row.get("alignment"))  # fmt: skip
    if kind == "SlidingWindowMLASpec":
        return SlidingMlaSpec(
            **shared, window=row["sliding_window"], alignment=row.get("alignment"),
            extra_retained_tokens=row["extra_retained_tokens"],
        )  # fmt: skip
    if kind == "SlidingWindowSpec":
        return SlidingSpec(**shared, window=row["sliding_window"],
                           extra_retained_tokens=row["extra_retained_tokens"])  # fmt: skip
    if kind == "ChunkedLocalAttentionSpec":
        return ChunkedSpec(**shared, chunk=row["attention_chunk_size"])
    if kind == "RSWASpec":
        return RecentWindowSpec(**shared, rswa_window=row["rswa_window"])
    if kind == "SinkFullAttentionSpec":
        return SinkSpec(**shared, sink_len=row["sink_len"])
    if kind == "CrossAttentionSpec":
        return CrossSpec(**shared)
    if kind == "CircularBufferSpec":
        return RingSpec(**shared)
    return FullSpec(**shared, window=row.get("sliding_window"),
                    chunk=row.get("attention_chunk_size"))  # fmt: skip
