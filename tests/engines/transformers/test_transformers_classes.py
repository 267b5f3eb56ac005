"""Random small configs of each class: the layers, shapes and dtypes of a real forward pass."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from app.engines.transformers import plan

DATA = Path(__file__).parents[2] / "data"
with gzip.open(DATA / "transformers_classes.json.gz") as _file:
    CASES: list[dict[str, Any]] = json.load(_file)["cases"]

RUN = {"batch": 2, "prompt_tokens": 13, "decode_steps": 2, "dtype": "float32"}


def test_there_are_classes() -> None:
    """Most model types with a decoder of their own were measured."""
    assert len({case["config"]["model_type"] for case in CASES}) > 130


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{n}-{case['config']['model_type']}" for n, case in enumerate(CASES)]
)
def test_a_random_config_gives_its_classes_cache(case: dict[str, Any]) -> None:
    """Omitted fields, stray ones and windows are read as the class reads them."""
    found: list[list[Any]] = []
    for layer in plan(case["config"], RUN).layers:
        # The file lists the decoder's own layers, without empty cross-attention lists.
        if layer.kind == "cross_attention":
            continue
        row = [layer.kind, [[t.name, list(t.shape), t.dtype] for t in layer.tensors]]
        if found and found[-1][1:] == row:
            found[-1][0] += 1
        else:
            found.append([1, *row])
    assert found == case["layers"]


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        # Measured with Transformers 5.24.0: batch 2, 13 + 3 tokens, float32.
        ({"model_type": "unlimited_ocr_text", "sliding_window": 8},
         [("UnlimitedOcrDynamicReferenceSlidingWindowLayer", (2, 3, 3, 12))] * 5),
        ({"model_type": "minimax", "head_dim": 16, "layer_types": [
            "full_attention", "linear_attention", "full_attention", "linear_attention",
            "linear_attention"]},
         [("full_attention", (2, 3, 16, 16)), ("full_attention", None),
          ("full_attention", (2, 3, 16, 16)), *[("extra:linear_cache", (2, 6, 16, 16))] * 3]),
        ({"model_type": "rwkv"}, [("legacy:list", (2, 72, 5))] * 5),
        ({"model_type": "longcat_flash", "num_layers": 3, "num_hidden_layers": None,
          "kv_lora_rank": 24, "qk_rope_head_dim": 8}, [("full_attention", (2, 1, 16, 24))] * 6),
        ({"model_type": "kimi_linear", "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "linear_attn_config": {"kda_layers": [1, 3, 4], "full_attn_layers": [2, 5],
                                 "num_heads": 5, "head_dim": 10, "short_conv_kernel_size": 4}},
         [("linear_attention", (2, 150, 4)), ("full_attention", (2, 1, 16, 24)),
          *[("linear_attention", (2, 150, 4))] * 2, ("full_attention", (2, 1, 16, 24))]),
        ({"model_type": "mimo_v2_flash", "head_dim": 16, "v_head_dim": 12, "sliding_window": None,
          "sliding_window_size": 8},
         [("full_attention", (2, 3, 16, 16)), *[("sliding_attention", (2, 6, 8, 16))] * 4]),
        ({"model_type": "llama4_text", "head_dim": 16, "attention_chunk_size": 8},
         [*[("sliding_attention", (2, 3, 7, 16))] * 3, ("full_attention", (2, 3, 16, 16)),
          ("sliding_attention", (2, 3, 7, 16))]),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 8},
         [*[("full_attention", (2, 3, 16, 12))] * 3, ("sliding_attention", (2, 3, 7, 12)),
          ("full_attention", (2, 3, 16, 12))]),
        ({"model_type": "qwen2_moe", "use_sliding_window": True, "sliding_window": 8,
          "max_window_layers": 2},
         [("sliding_attention", (2, 3, 7, 12)), *[("full_attention", (2, 3, 16, 12))] * 4]),
        ({"model_type": "cohere2_moe", "head_dim": 16, "sliding_window": 8,
          "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 1,
          "sliding_window_pattern": 3},
         [*[("full_attention", (2, 3, 16, 16))] * 2, *[("sliding_attention", (2, 3, 7, 16))] * 2,
          ("full_attention", (2, 3, 16, 16))]),
        ({"model_type": "deepseek_v4", "num_hidden_layers": 4, "head_dim": 16,
          "sliding_window": 8, "index_head_dim": 14, "compress_rate_hca": 6,
          "compress_ratios": [0, 4, 128, 4]},
         [("sliding_attention", (2, 1, 7, 16)), ("DeepseekV4CSACache", (2, 1, 7, 16)),
          ("DeepseekV4HCACache", (2, 1, 7, 16)), ("DeepseekV4CSACache", (2, 1, 7, 16))]),
        ({"model_type": "minimax_m3_vl_text", "head_dim": 16, "sparse_attention_config": {
            "sparse_attention_freq": [0, 0, 1, 1, 1], "sparse_index_dim": 14}},
         [*[("full_attention", (2, 3, 16, 16))] * 2,
          *[("MiniMaxM3VLSparseCacheLayer", (2, 3, 16, 16))] * 3]),
        ({"model_type": "glm_moe_dsa", "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "index_head_dim": 14, "index_topk_pattern": "FSFSF"},
         [("indexed_attention", (2, 1, 16, 24))] * 5),
        ({"model_type": "mistral_large4_text", "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "index_head_dim": 14, "kv_source_layers": [0, 0, 2, 2, 4],
          "indexer_types": ["full", "full", "full", "shared", "full"]},
         [("indexed_attention", (2, 1, 16, 24)), ("indexed_attention", (2, 16, 14)),
          ("indexed_attention", (2, 1, 16, 24)), ("none(dummy)", None),
          ("indexed_attention", (2, 1, 16, 24))]),
        ({"model_type": "nemotron_h", "head_dim": 16, "hybrid_override_pattern": "M*-E",
          "mamba_num_heads": 9, "mamba_head_dim": 16, "n_groups": 3, "ssm_state_size": 14},
         [("linear_attention", (2, 228, 4)), ("full_attention", (2, 3, 16, 16)),
          *[("none(dummy)", None)] * 2]),
        ({"model_type": "dory", "head_dim": 16, "num_hidden_layers": 8, "sliding_window": 8,
          "n_input_layers": 2, "n_output_layers": 2, "n_recurrent_layers": 4,
          "n_recurrent_loops": 2, "layer_types": ["sliding_attention", "mlp"] * 4},
         [("sliding_attention", (2, 3, 7, 16))] * 6),
        ({"model_type": "dory", "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 8,
          "n_input_layers": 1, "n_output_layers": 1, "recurrent_kv_cache_mode": "last_loop"},
         [*[("sliding_attention", (2, 3, 7, 16))] * 3, ("full_attention", (2, 3, 16, 16))]),
        ({"model_type": "dots3_note_text", "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "index_head_dim": 14, "sliding_window_size": 8, "sliding_window": None,
          "use_dsa": False, "swa_kv_lora_rank": 30, "swa_head_dim": 20,
          "swa_qk_nope_head_dim": 14},
         [*[("full_attention", (2, 1, 16, 24))] * 2, *[("sliding_attention", (2, 1, 7, 30))] * 2,
          ("sliding_attention", (2, 1, 7, 30))]),
        ({"model_type": "zamba", "attn_layer_period": 3, "attn_layer_offset": 1,
          "n_mamba_heads": 2, "mamba_d_state": 14, "num_key_value_heads": 6},
         [*[("linear_attention", (2, 144, 4))] * 2, ("hybrid", (2, 6, 16, 24)),
          ("linear_attention", (2, 144, 4)), ("hybrid", (2, 6, 16, 24))]),
        ({"model_type": "inkling_text", "head_dim": 16, "swa_num_key_value_heads": 2,
          "swa_head_dim": 14, "sliding_window_size": 8, "local_layer_ids": [0, 2, 4]},
         [("hybrid_sliding", (2, 2, 7, 14)), ("hybrid", (2, 3, 16, 16))] * 2
         + [("hybrid_sliding", (2, 2, 7, 14))]),
        ({"model_type": "xlstm", "num_heads": 4}, [("xLSTMCache", (1,))]),
        ({"model_type": "mllama_text_model"},
         [*[("full_attention", (2, 3, 16, 12))] * 3, ("full_attention", None),
          ("full_attention", (2, 3, 16, 12))]),
        ({"model_type": "glm4_moe_lite", "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "head_dim": 8}, [("full_attention", (2, 1, 16, 24))] * 5),
        ({"model_type": "deepseek_v4", "head_dim": 16, "sliding_window": 8},
         [*[("DeepseekV4HCACache", (2, 1, 7, 16))] * 3, ("DeepseekV4CSACache", (2, 1, 7, 16)),
          ("DeepseekV4HCACache", (2, 1, 7, 16))]),
        ({"model_type": "mistral_large4_text", "num_hidden_layers": 2, "kv_lora_rank": 24,
          "qk_rope_head_dim": 8, "no_rope_layers": [1, 0]},
         [("indexed_attention", (2, 1, 16, 24))] * 2),
        ({"model_type": "zamba2", "num_hidden_layers": 54, "n_mamba_heads": 9},
         [("linear_attention", (2, 272, 4))] + 7 * (
             5 * [("linear_attention", (2, 272, 4))] + [("hybrid", (2, 3, 16, 24))])
         + 4 * [("linear_attention", (2, 272, 4))] + [("hybrid", (2, 3, 16, 24))]
         + 3 * [("linear_attention", (2, 272, 4))] + [("hybrid", (2, 3, 16, 24))]
         + 2 * [("linear_attention", (2, 272, 4))]),
        ({"model_type": "imagegpt", "n_embd": 72, "n_layer": 5, "n_head": 6},
         [("full_attention", (2, 6, 16, 12))] * 5),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)  # fmt: skip
def test_rules_of_single_classes(
    config: dict[str, Any], layers: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    """Each layer's kind and the shape of its first tensor, as the class makes them."""
    base = {"hidden_size": 72, "num_hidden_layers": 5, "num_attention_heads": 6,
            "num_key_value_heads": 3}  # fmt: skip
    answer = plan({**base, **config}, {**RUN, "decode_steps": 3})
    found = [
        (layer.kind, layer.tensors[0].shape if layer.tensors else None) for layer in answer.layers
    ]
    assert found == layers


def test_the_reference_window_in_full() -> None:
    """The prompt stays whole; decoded positions slide, and a static cache holds both."""
    config = {"model_type": "unlimited_ocr_text", "hidden_size": 72, "num_hidden_layers": 1,
              "num_attention_heads": 6, "num_key_value_heads": 3, "sliding_window": 4}  # fmt: skip

    def lengths(**more: object) -> list[int]:
        tensors = plan(config, {**RUN, **more}).layers[0].tensors
        return [tensor.shape[2] if len(tensor.shape) > 1 else 0 for tensor in tensors]

    assert lengths(decode_steps=0) == [0, 0, 13, 13]
    assert lengths(decode_steps=9) == [3, 3, 13, 13]
    assert lengths(decode_steps=9, cache="static", max_cache_len=32) == [4, 4, 13, 13]
    config["sliding_window"] = 1
    assert lengths(decode_steps=9) == [9, 9, 13, 13]
