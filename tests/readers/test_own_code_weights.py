"""Weights of families whose code lies beside their checkpoints, against the Hub's totals."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import Conflict, WrongType
from app.domain.weight_lines import Component, Part
from app.readers.weights import read_weights
from tests.domain.weight_sums import by_part, layer_parameters

DATA = Path(__file__).parents[1] / "data"


@cache
def configs() -> dict[str, dict[str, Any]]:
    """Return the configs by name."""
    with gzip.open(DATA / "weight_configs.json.gz", "rt", encoding="utf-8") as file:
        loaded: dict[str, dict[str, Any]] = json.load(file)
    return loaded


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("internlm/internlm2_5-7b-chat", 7_737_708_544),
        ("Qwen/Qwen-7B", 7_721_324_544),
        ("MiniMaxAI/MiniMax-M1-80k", 456_089_655_296),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49_867_145_216),
        ("nvidia/Llama-3_1-Nemotron-Ultra-253B-v1", 253_401_268_224),
        ("tencent/Hunyuan-A13B-Instruct", 80_393_183_232),
        ("XiaomiMiMo/MiMo-7B-Base", 7_833_409_536),
        ("OpenGVLab/InternVL2-2B", 2_205_754_368),
        ("microsoft/Phi-3-vision-128k-instruct", 4_146_621_440),
        ("deepseek-ai/deepseek-moe-16b-chat", 16_375_728_128),
        ("microsoft/phi-1_5", 1_418_270_720),
        ("microsoft/phi-2", 2_779_683_840),
    ],
)
def test_the_hub_s_total_is_met(name: str, total: int) -> None:
    """All parts together are the elements that the checkpoint's page lists."""
    assert read_weights(configs()[name]).parameters(tuple(Part)) == total


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # The page's 9,399,951,392 hold 32 rotary frequencies, which are no parameters.
        ("THUDM/glm-4-9b", 9_399_951_392 - 32),
        # The page's 41,835,970,560 hold the tied output's table once more.
        ("tiiuae/falcon-40b", 41_835_970_560 - 65_024 * 8192),
        ("THUDM/chatglm2-6b", 6_243_584_000),
        # 32 layers of Llama's 202,383,360, two tables of 100,534 rows, a norm.
        ("xverse/XVERSE-7B", 32 * 202_383_360 + 2 * 100_534 * 4096 + 4096),
        ("baichuan-inc/Baichuan2-7B-Chat", 7_505_973_248),
        # Llama's 202,383,360 a layer and 4 x 4096 biases.
        ("internlm/internlm-chat-7b", 32 * (202_383_360 + 16_384) + 2 * 103_168 * 4096 + 4096),
        ("FreedomIntelligence/openPangu-Embedded-7B", 8_030_887_936),
    ],
)
def test_totals_worked_out_from_the_page(name: str, total: int) -> None:
    """The same where the page counts something else with it, or lists nothing."""
    assert read_weights(configs()[name]).parameters() == total


def test_orion_s_norms_have_biases() -> None:
    """Orion is Llama with LayerNorms: two biases a layer, and one at the end."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 96, "vocab_size": 100, "tie_word_embeddings": False}  # fmt: skip
    orion = read_weights({**sizes, "model_type": "orion"}).parameters()
    minicpm = read_weights({**sizes, "model_type": "minicpm"}).parameters()
    assert orion - minicpm == (2 * 2 + 1) * 64


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({}, 4),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, 2),
    ],
)
def test_chatglm_s_key_groups(changes: dict[str, Any], heads: int) -> None:
    """ChatGLM has as many KV heads as query heads, or as many as its groups."""
    sizes = {"model_type": "chatglm", "num_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
             "kv_channels": 16, "ffn_hidden_size": 96, "padded_vocab_size": 100}  # fmt: skip
    fused = next(
        line
        for block in read_weights({**sizes, **changes}).blocks
        for line in block.lines
        if line.name == "self_attention.query_key_value.weight"
    )
    assert fused.shape == ((4 + 2 * heads) * 16, 64)


@pytest.mark.parametrize(("multi_query", "heads"), [(True, 1), (False, 4)])
def test_first_falcons_share_one_head_or_none(multi_query: bool, heads: int) -> None:  # noqa: FBT001
    """The small Falcon as first published has one KV head, if `multi_query`, and one norm."""
    sizes = {"model_type": "RefinedWebModel", "n_layer": 1, "hidden_size": 64, "n_head": 4,
             "vocab_size": 100, "multi_query": multi_query, "bias": False}  # fmt: skip
    weights = read_weights(sizes)
    # Fused queries, keys and values; output; four widths of network twice; norm; table; last norm.
    layer = (4 + 2 * heads) * 16 * 64 + 64 * 64 + 8 * 64 * 64 + 2 * 64
    assert weights.parameters() == layer + 100 * 64 + 2 * 64


def test_a_searched_network_leaves_parts_out() -> None:
    """Nemotron-NAS layers without attention or network hold neither, nor its norm."""
    sizes = {"model_type": "nemotron-nas", "num_hidden_layers": 3, "hidden_size": 64,
             "num_attention_heads": 4, "vocab_size": 100, "block_configs": [
                 {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
                 {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.5}},
                 {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
             ]}  # fmt: skip
    weights = read_weights(sizes)
    assert layer_parameters(weights, 0) == 2 * 64 * 64 + 2 * 32 * 64 + 64
    assert layer_parameters(weights, 1) == 3 * 256 * 64 + 64  # 128 columns, up to a whole 256
    assert layer_parameters(weights, 2) == 0


def test_hunyuan_s_numbers_may_differ_by_layer() -> None:
    """Lists of widths, choices and shared experts are read layer by layer."""
    sizes = {"model_type": "hunyuan", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
             "num_attention_heads": 4, "num_experts": 8, "moe_topk": 2, "num_shared_expert": [1, 2],
             "moe_intermediate_size": [16, 32], "use_qk_norm": True,
             "tie_word_embeddings": True}  # fmt: skip
    weights = read_weights(sizes)
    experts = {block.layers: [line.copies * line.shape[0] * line.shape[1] for line in block.lines
                              if line.component is Component.EXPERTS]
               for block in weights.blocks if block.layers}  # fmt: skip
    assert experts == {(0,): [8 * 16 * 64] * 3, (1,): [8 * 32 * 64] * 3}
    shared = [
        sum(line.parameters for line in block.lines if line.component is Component.SHARED_EXPERTS)
        for block in weights.blocks
        if block.layers
    ]
    assert shared == [3 * 16 * 64, 3 * 64 * 64]


def test_an_intern_vit_with_head_norms() -> None:
    """InternViT-6B norms queries and keys and has no biases in its RMS norms."""
    vision = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
              "intermediate_size": 96, "image_size": 28, "patch_size": 14, "qkv_bias": False,
              "qk_normalization": True, "norm_type": "rms_norm"}  # fmt: skip
    text = {"model_type": "internlm2", "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 10}  # fmt: skip
    raw = {"model_type": "internvl_chat", "vision_config": vision, "llm_config": text}
    rows = by_part(read_weights(raw))
    # qkv, output, network, norms, head norms, scales; class token, patches, 5 positions.
    layer = 3 * 64 * 64 + (64 * 64 + 64) + (2 * 64 * 96 + 96 + 64) + 2 * 64 + 2 * 64 + 2 * 64
    assert rows["vision"] == layer + 64 + (64 * 3 * 14 * 14 + 64) + 5 * 64
    assert rows["projector"] == 2 * 256 + (32 * 256 + 32) + (32 * 32 + 32)


def test_lists_of_the_wrong_kind_are_refused() -> None:
    """A list that is too short, or holds words, is refused by its name."""
    sizes = {"model_type": "hunyuan", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100,
             "num_attention_heads": 4, "num_experts": 8, "moe_topk": 2,
             "num_shared_expert": 1}  # fmt: skip
    with pytest.raises(Conflict, match="moe_intermediate_size"):
        read_weights({**sizes, "moe_intermediate_size": [16]})
    with pytest.raises(WrongType, match="moe_intermediate_size"):
        read_weights({**sizes, "moe_intermediate_size": ["16", "16"]})
