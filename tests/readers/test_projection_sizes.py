"""Sizes around the caches, from files that name them in different ways or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.projections import ProjectionShape
from app.readers.projection_sizes import gguf_sizes, projection_sizes


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({}, {}),
        (
            {"n_embd": 5120, "n_head": 40, "intermediate_size": 27648, "padded_vocab_size": 152064,
             "vocab_size": 151643, "n_expert": 0},
            {"hidden_size": 5120, "query_heads": 40, "vocab_size": 152064},
        ),
        (
            {"hidden_size": 7168, "num_attention_heads": 56, "intermediate_size": 28672,
             "hidden_act": "relu"},
            {"hidden_size": 7168, "query_heads": 56, "intermediate_size": 28672,
             "mlp_matrices": 2},
        ),
        (
            {"hidden_size": 64, "intermediate_size": 256, "hidden_act": "silu"},
            {"hidden_size": 64, "intermediate_size": 256},
        ),
        (
            {"hidden_size": 64, "intermediate_size": 256, "hidden_act": "gelu"},
            {"hidden_size": 64},
        ),
        (
            {"hidden_size": 8192, "intermediate_size": 24576, "hidden_act": "silu",
             "num_experts": 16},
            {"hidden_size": 8192, "experts": 16},
        ),
        ({"kv_lora_rank": 512, "num_key_value_heads": 64}, {"query_heads": 64}),
        ({"num_key_value_heads": 8}, {}),
        ({"hidden_size": 1, "text_config": {"d_model": 32}}, {"hidden_size": 32}),
        ({"hidden_size": True, "num_heads": -1, "vocab_size": 10**12, "n_embd": "8"}, {}),
    ],
)  # fmt: skip
def test_named_sizes(config: dict[str, Any], sizes: dict[str, Any]) -> None:
    """A size counts under each of its spellings, and only if it is a size."""
    assert projection_sizes(config) == ProjectionShape(**sizes)


@pytest.mark.parametrize(
    ("heads", "read"),
    [
        (32, 32),
        ([8, 0, 8], (8, 0, 8)),
        ([], None),
        (["8"], None),
        (None, None),
        (2.0, None),
    ],
)
def test_gguf_headers(heads: object, read: object) -> None:
    """A header names widths by its architecture, and heads once or for each layer."""
    header = {
        "general.architecture": "llama",
        "llama.embedding_length": 4096,
        "llama.attention.head_count": heads,
        "llama.vocab_size": 128_256,
        "gemma.embedding_length": 7,
    }
    assert gguf_sizes(header) == ProjectionShape(
        hidden_size=4096,
        query_heads=read,  # type: ignore[arg-type]
        vocab_size=128_256,
    )
