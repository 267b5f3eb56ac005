"""Reads measured specs, which are in vLLM's own words, into the values of the engine's plan."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
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
    retained = {"extra_retained_tokens": row.get("extra_retained_tokens", 0)}
    aligned = {"alignment": row.get("alignment")}
    latent = aligned | {
        "is_index_leader": row.get("is_index_group_leader"),
        "cache_role": row.get("cache_role", "").lower(),
    }
    window = {"window": row.get("sliding_window")}
    chunk = {"chunk": row.get("attention_chunk_size")}
    makers: dict[str, tuple[type[AttentionSpec], dict[str, Any]]] = {
        "MLAAttentionSpec": (MlaSpec, latent),
        "HiddenStateCacheSpec": (HiddenStateSpec, latent),
        "SlidingWindowMLASpec": (SlidingMlaSpec, window | aligned | retained),
        "SlidingWindowSpec": (SlidingSpec, window | retained),
        "ChunkedLocalAttentionSpec": (ChunkedSpec, chunk),
        "RSWASpec": (RecentWindowSpec, {"rswa_window": row.get("rswa_window")}),
        "SinkFullAttentionSpec": (SinkSpec, {"sink_len": row.get("sink_len")}),
        "CrossAttentionSpec": (CrossSpec, {}),
        "CircularBufferSpec": (RingSpec, {}),
        "FullAttentionSpec": (FullSpec, window | chunk),
    }
    cls, own = makers[kind]
    return cls(**shared, **own)
