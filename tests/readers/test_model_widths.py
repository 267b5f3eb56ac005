"""The widths of a config's decoder, for an estimate of activations."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.assumed_lines import Widths
from app.readers.model_widths import read_widths

LLAMA = {"hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128_256}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "widths"),
    [
        (LLAMA, Widths(hidden=4096, mlp=14_336, attention=6144, vocabulary=128_256)),
        ({"text_config": LLAMA, "hidden_size": 1}, Widths(hidden=4096, mlp=14_336, attention=6144,
                                                          vocabulary=128_256)),
        ({"n_embd": 768, "n_head": 12, "vocab_size": 50_257},
         Widths(hidden=768, mlp=3072, attention=2304, vocabulary=50_257)),
        ({"hidden_size": 2048, "num_attention_heads": 16, "head_dim": 256,
          "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144},
         Widths(hidden=2048, mlp=6144, attention=48 * 256, vocabulary=0, experts=8, expert=768)),
        ({"hidden_size": 64, "num_experts_per_tok": 2, "intermediate_size": 100},
         Widths(hidden=64, mlp=100, attention=192, vocabulary=0, experts=2, expert=100)),
        ({"hidden_size": "wide"}, None),
        ({"hidden_size": True}, None),
        ({"hidden_size": 2**40}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_widths(config: dict[str, Any], widths: Widths | None) -> None:
    """Widths are read under their usual names; without a hidden size there are none."""
    assert read_widths(config) == widths
