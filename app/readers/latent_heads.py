"""The heads behind a compressed latent: what a cache keeps that expands it, from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.state import MAX_DIM, MAX_HEADS


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentHeads:
    """Heads and their widths once keys and values are expanded from the latent."""

    heads: int
    k_dim: int
    v_dim: int


def latent_heads(config: Mapping[str, object]) -> LatentHeads | None:
    """Return the heads of a config with compressed attention; None where it does not say them.

    A key is its part without positions and its rotated part: 128 + 64 of DeepSeek-V3's 128 heads.
    """
    nested = config.get("text_config")
    part = nested if isinstance(nested, Mapping) else config
    heads = _count(part.get("num_attention_heads"), MAX_HEADS)
    plain = _count(part.get("qk_nope_head_dim"), MAX_DIM // 2)
    rotated = _count(part.get("qk_rope_head_dim"), MAX_DIM // 2)
    value = _count(part.get("v_head_dim"), MAX_DIM)
    if heads is None or plain is None or rotated is None or value is None:
        return None
    return LatentHeads(heads=heads, k_dim=plain + rotated, v_dim=value)


def _count(value: object, high: int) -> int | None:
    return value if type(value) is int and 1 <= value <= high else None
