"""Recurrent and hybrid models: what a config says of the states that do not grow."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unsupported,
    WrongType,
)
from app.domain.state import (
    FullAttention,
    LatentAttention,
    Recurrent,
    SlidingWindow,
)
from app.readers.hf_config import read_config
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.recurrent_shapes import shape_of

DATA = Path(__file__).parents[1] / "data"
with gzip.open(DATA / "transformers_caches.json.gz") as _file:
    CACHES: dict[str, Any] = json.load(_file)

MINE = frozenset({
    "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "glm5_next", "granitemoehybrid",
    "jamba", "kimi_linear", "lara_mini", "lfm2", "lfm2_moe", "lfm3", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp_text", "zamba", "zamba2",
})  # fmt: skip
MEASURED = [
    case
    for case in CACHES["cases"]
    if case["scenario"] == "dynamic-bf16"
    and CACHES["configs"][case["config"]]["model_type"] in MINE
]


def states(config: dict[str, Any]) -> list[list[tuple[str, tuple[int, ...], str]]]:
    """Return the recurrent tensors of each layer."""
    reading = read_config(config)
    return [
        [
            (tensor.name, tensor.shape, tensor.dtype.name)
            for state in layer.states
            if isinstance(state, Recurrent)
            for tensor in state.tensors
        ]
        for layer in reading.state.layers
    ]


def test_there_are_measured_models() -> None:
    """The measured file has many of the families read here."""
    assert len(MEASURED) >= 20


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case["id"])
def test_states_are_those_measured_with_a_column_less(case: dict[str, Any]) -> None:
    """A convolution needs one column less than its kernel; every other state is as measured."""
    config = {**CACHES["configs"][case["config"]], "dtype": "bfloat16"}
    measured = []
    names = {"float32": "fp32", "bfloat16": "bf16"}
    for count, kind, tensors in case["layers"]:
        rows = []
        for name, role, shape, dtype, *_ in tensors:
            if role == "conv_state":
                rows.append((name[:4], (shape[1], shape[2] - 1), names[dtype]))
            elif role == "recurrent_state":
                rows.append(("stat", tuple(shape[1:]), names[dtype]))
        if kind != "module_state":
            measured += [rows] * count
    ours = [[(name[:4], shape, dtype) for name, shape, dtype in rows] for rows in states(config)]
    assert ours == measured


QWEN = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_qwen3_next_80b() -> None:
    """Twelve of 48 layers attend; each other keeps 32 × 128 × 128 fp32 and 3 columns of 8192."""
    reading = read_config(QWEN)
    kinds = [type(layer.states[0]) for layer in reading.state.layers]
    assert kinds == ([Recurrent] * 3 + [FullAttention]) * 12
    assert states(QWEN)[0] == [
        ("conv", (8192, 3), "bf16"),
        ("state", (32, 128, 128), "fp32"),
    ]
    assert sum(s.fixed_bytes() for layer in reading.state.layers for s in layer.states) == 36 * (
        8192 * 3 * 2 + 32 * 128 * 128 * 4
    )


JAMBA = {
    "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8,
    "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
    "dtype": "bfloat16",
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 8,
    "n_groups": 1, "ssm_state_size": 16, "conv_kernel": 4, "dtype": "bfloat16",
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "dtype": "bfloat16",
    "linear_attn_config": {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4,
                           "full_attn_layers": [4], "kda_layers": [1, 2, 3]},
}  # fmt: skip
LFM = {"model_type": "lfm2", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
       "num_key_value_heads": 2, "conv_L_cache": 3, "full_attn_idxs": [2],
       "dtype": "bfloat16"}  # fmt: skip
FALCON_H1 = {
    "model_type": "falcon_h1", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_d_conv": 4, "dtype": "bfloat16",
}  # fmt: skip
MINIMAX = {
    "model_type": "minimax_text_01", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "attn_type_list": [0, 0, 0, 1], "dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "attending"),
    [
        (JAMBA, [4, 12, 20, 28]),
        ({**NEMOTRON, "hybrid_override_pattern": "M*-E"}, [1]),
        ({**NEMOTRON, "layers_block_type": ["mamba", "attention", "moe", "mlp"]}, [1]),
        (KIMI, [3]),
        ({**KIMI, "num_hidden_layers": 9, "linear_attn_config": None,
          "linear_num_heads": 4, "linear_head_dim": 8}, [4, 8]),
        (LFM, [2]),
        ({**LFM, "layer_types": ["conv", "full_attention", "conv"]}, [1]),
        (FALCON_H1, [0, 1]),
        (MINIMAX, [3]),
        ({**MINIMAX, "model_type": "minimax", "attn_type_list": None}, [0, 2]),
        ({"model_type": "bailing_hybrid", "num_hidden_layers": 6, "hidden_size": 64,
          "num_attention_heads": 4, "head_dim": 8, "layer_group_size": 3}, [2, 5]),
        ({"model_type": "bamba", "num_hidden_layers": 3, "hidden_size": 64,
          "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1],
          "mamba_n_heads": 4, "mamba_d_head": 32}, [1]),
        ({"model_type": "olmo_hybrid", "num_hidden_layers": 3, "hidden_size": 64,
          "num_attention_heads": 4}, [2]),
        ({"model_type": "lara_mini", "num_hidden_layers": 5}, [1, 3, 4]),
        ({"model_type": "lfm3", "num_hidden_layers": 7, "hidden_size": 64,
          "num_attention_heads": 4, "sliding_window": 8}, [2, 4, 6]),
        ({"model_type": "recurrent_gemma", "num_hidden_layers": 4, "hidden_size": 64,
          "num_attention_heads": 4, "num_key_value_heads": 1, "attention_window_size": 8}, [2]),
        ({"model_type": "zamba", "num_hidden_layers": 7, "hidden_size": 64,
          "num_attention_heads": 4, "attn_layer_period": 3, "attn_layer_offset": 1}, [2, 4]),
        ({"model_type": "granitemoehybrid", "num_hidden_layers": 2, "hidden_size": 64,
          "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4}, []),
        ({"model_type": "glm5_next_text", "num_hidden_layers": 4}, [3]),
        ({"model_type": "zaya", "num_hidden_layers": 2}, [0, 1]),
    ],
)  # fmt: skip
def test_which_layers_attend(config: dict[str, Any], attending: list[int]) -> None:
    """Each family's way of saying it, or its class's rule, names the layers that attend."""
    reading = read_config(config)
    found = [
        index
        for index, layer in enumerate(reading.state.layers)
        if any(isinstance(s, (FullAttention, LatentAttention, SlidingWindow)) for s in layer.states)
    ]
    assert found == attending


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        (JAMBA, [("conv", (8192, 3), "bf16"), ("state", (8192, 16), "fp32")]),
        ({**JAMBA, "mamba_expand": 2.0},
         [("conv", (8192, 3), "bf16"), ("state", (8192, 16), "fp32")]),
        ({**NEMOTRON, "hybrid_override_pattern": "M"},
         [("conv", (64, 3), "bf16"), ("state", (4, 8, 16), "fp32")]),
        (LFM, [("conv", (64, 2), "bf16")]),
        ({**LFM, "conv_L_cache": 1}, []),
        (FALCON_H1, [("conv", (80, 3), "bf16"), ("state", (4, 16, 8), "fp32")]),
        ({**FALCON_H1, "mamba_d_ssm": None, "mamba_expand": 1},
         [("conv", (80, 3), "bf16"), ("state", (4, 16, 8), "fp32")]),
        (MINIMAX, [("state", (4, 16, 16), "bf16")]),
        ({**MINIMAX, "head_dim": None}, [("state", (4, 16, 16), "bf16")]),
        ({"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 64, "state_size": 16,
          "expand": 2, "conv_kernel": 4},
         [("conv", (128, 3), "bf16"), ("state", (128, 16), "fp32")]),
        ({"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 64, "state_size": 16,
          "intermediate_size": 96, "conv_kernel": 4},
         [("conv", (96, 3), "bf16"), ("state", (96, 16), "fp32")]),
        ({"model_type": "mamba2", "num_hidden_layers": 1, "hidden_size": 64, "state_size": 16,
          "num_heads": 4, "head_dim": 32, "n_groups": 2, "expand": 2, "conv_kernel": 4},
         [("conv", (192, 3), "bf16"), ("state", (4, 32, 16), "fp32")]),
        ({"model_type": "rwkv", "num_hidden_layers": 1, "hidden_size": 64},
         [("state_0", (64,), "bf16"), ("state_1", (64,), "bf16"),
          *[(f"state_{n}", (64,), "fp32") for n in (2, 3, 4)]]),
        ({"model_type": "rwkv", "num_hidden_layers": 1, "hidden_size": 64,
          "attention_hidden_size": 32},
         [("state_0", (64,), "bf16"), ("state_1", (64,), "bf16"),
          *[(f"state_{n}", (32,), "fp32") for n in (2, 3, 4)]]),
        ({"model_type": "xlstm", "num_blocks": 1, "num_hidden_layers": None, "hidden_size": 72,
          "num_heads": 4},
         [("state_0", (4, 16, 32), "bf16"), ("state_1", (4, 16), "bf16"),
          ("state_2", (4, 1), "bf16")]),
        ({"model_type": "zaya", "num_hidden_layers": 1},
         [("conv", (1280, 2), "bf16"), ("state", (128,), "bf16")]),
        ({"model_type": "recurrent_gemma", "num_hidden_layers": 1, "hidden_size": 64,
          "num_attention_heads": 4, "lru_width": 80},
         [("conv", (80, 3), "bf16"), ("state", (80,), "fp32")]),
        ({"model_type": "olmo_hybrid", "num_hidden_layers": 4, "hidden_size": 64,
          "num_attention_heads": 4},
         [("conv", (192, 3), "bf16"), ("state", (4, 12, 24), "fp32")]),
        ({"model_type": "olmo_hybrid", "num_hidden_layers": 4, "hidden_size": 64,
          "num_attention_heads": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
          "linear_key_head_dim": 8, "linear_value_head_dim": 8},
         [("conv", (48, 3), "bf16"), ("state", (2, 8, 8), "fp32")]),
    ],
)  # fmt: skip
def test_what_a_recurrent_layer_keeps(
    config: dict[str, Any], tensors: list[tuple[str, tuple[int, ...], str]]
) -> None:
    """Shapes follow each family's own fields; convolutions keep the model's dtype."""
    assert states({"dtype": "bfloat16", **config})[0] == tensors


def test_ngram_embeddings_keep_columns_and_tokens() -> None:
    """A Qwen4 layer in `ple_layer_ids` keeps (4 − 1) · 3 columns of 4 streams and 2 tokens."""
    config = {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 4, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hc_count": 4,
        "ple_layer_ids": [2], "ple_conv_kernel_size": 4, "ngram_size": 3, "indexer_head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "dtype": "bfloat16",
    }  # fmt: skip
    plain, numbered = states(config)[:2]
    assert numbered[: len(plain)] == plain
    assert numbered[len(plain) :] == [
        ("conv", (256, 9), "bf16"),
        ("ngram_tokens", (2,), "8-byte elements"),
    ]
    assert states({**config, "ple_layer_ids": []})[1] == plain


def test_draft_layers_are_counted_apart() -> None:
    """Nemotron-H's multi-token-prediction layers have a pattern of their own."""
    config = {
        **NEMOTRON,
        "hybrid_override_pattern": "M*",
        "num_nextn_predict_layers": 2,
        "mtp_hybrid_override_pattern": "*E",
    }
    reading = read_config(config)
    assert reading.state.num_layers == 2
    assert [bool(layer.states) for layer in reading.draft_layers] == [True, False, True, False]
    named = {**config, "mtp_hybrid_override_pattern": None, "mtp_layers_block_type": ["attention"]}
    assert len(read_config(named).draft_layers) == 2
    assert read_config({**config, "num_nextn_predict_layers": 0}).draft_layers == ()
    with pytest.raises(OutOfRange):
        read_config({**config, "num_nextn_predict_layers": 10_000})


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({**JAMBA, "mamba_expand": 2.5}, WrongType, "mamba_expand"),
        ({**JAMBA, "mamba_expand": 0}, OutOfRange, "mamba_expand"),
        ({**JAMBA, "mamba_expand": None}, Missing, "mamba_expand"),
        ({**JAMBA, "attn_layer_offset": 8}, Conflict, "attn_layer_offset"),
        ({**JAMBA, "mamba_d_conv": "4"}, WrongType, "mamba_d_conv"),
        (NEMOTRON, Missing, "hybrid_override_pattern"),
        ({**NEMOTRON, "hybrid_override_pattern": "MX"}, Unsupported, "hybrid_override_pattern"),
        ({**NEMOTRON, "hybrid_override_pattern": ""}, OutOfRange, "hybrid_override_pattern"),
        ({**NEMOTRON, "hybrid_override_pattern": "M" * 20_000}, OutOfRange,
         "hybrid_override_pattern"),
        ({**KIMI, "linear_attn_config": [4]}, WrongType, "linear_attn_config"),
        ({**KIMI, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2],
                                         "num_heads": 4, "head_dim": 8}},
         Missing, "linear_attn_config"),
        ({**LFM, "full_attn_idxs": None}, Missing, "layer_types"),
        ({**LFM, "layer_types": ["conv", "conv", "rope"]}, Unsupported, "layer_types"),
        ({**FALCON_H1, "mamba_d_ssm": 60}, Conflict, "mamba_n_heads"),
        ({**FALCON_H1, "mamba_d_head": "auto", "mamba_d_ssm": 66}, Conflict, "mamba_n_heads"),
        ({"model_type": "mamba2", "num_hidden_layers": 1, "hidden_size": 64, "state_size": 16,
          "num_heads": 4, "head_dim": 8, "n_groups": 2, "expand": 2, "conv_kernel": 4},
         Conflict, "num_heads"),
        ({**MINIMAX, "attn_type_list": None}, Missing, "attn_type_list"),
        ({"model_type": "xlstm", "num_hidden_layers": 1, "hidden_size": 64, "num_heads": 4,
          "qk_dim_factor": -1}, OutOfRange, "qk_dim_factor"),
        ({"model_type": "zamba2", "num_hidden_layers": 4, "hidden_size": 64,
          "num_attention_heads": 4}, Missing, "layers_block_type"),
        ({"model_type": "recurrent_gemma", "num_hidden_layers": 1, "hidden_size": 64,
          "num_attention_heads": 4, "block_types": ["rnn"]}, Unsupported, "block_types"),
        ({"model_type": "lfm3", "num_hidden_layers": 7, "hidden_size": 64,
          "num_attention_heads": 4, "sliding_window": None}, Missing, "sliding_window"),
    ],
)  # fmt: skip
def test_what_does_not_decide_is_refused(
    config: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """A hybrid whose config contradicts itself or leaves a state open is refused by field."""
    with pytest.raises(error) as caught:
        read_config(config)
    assert caught.value.field[0] == field


def test_a_type_without_recurrence_has_no_shape() -> None:
    """Asking for the recurrent state of a type that has none is refused."""
    with pytest.raises(Missing):
        shape_of(Fields.of({}, "llama"))
