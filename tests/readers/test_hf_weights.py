"""Weights from a config alone, against model classes built without weights and the Hub's totals."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unsupported,
    WrongType,
)
from app.domain.weight_lines import Part
from app.domain.weights import ModelWeights
from app.readers.weights import read_weights
from app.readers.weights.families import DECODERS
from app.readers.weights.wrappers import WRAPPERS
from tests.domain.weight_sums import by_component, by_part, layer_parameters

DATA = Path(__file__).parents[1] / "data"
TEXT = (Part.TEXT,)


@cache
def configs() -> dict[str, dict[str, Any]]:
    """Return the measured cases' configs by name."""
    with gzip.open(DATA / "weight_configs.json.gz", "rt", encoding="utf-8") as file:
        loaded: dict[str, dict[str, Any]] = json.load(file)
    return loaded


def config(name: str, **changes: Any) -> dict[str, Any]:
    """Return one config with some fields changed; None as a change means null."""
    return {**configs()[name], **changes}


def cases(file: str) -> list[dict[str, Any]]:
    """Return measured cases; an empty file would make every test below pass."""
    rows: list[dict[str, Any]] = json.loads((DATA / file).read_text(encoding="utf-8"))
    assert len(rows) > 150
    return rows


def counted(weights: ModelWeights, class_name: str) -> int:
    """Return what a class holds: a ...ForCausalLM is the decoder alone."""
    return weights.parameters(TEXT if class_name.endswith("ForCausalLM") else None)


def test_every_case_is_met_exactly() -> None:
    """Each real class built from its config has exactly the parameters that we count.

    Measured: Transformers 5.24.0 classes on torch's meta device, tests/data/param_counts.json.
    """
    rows = cases("param_counts.json")
    wrong = {
        row["hf_id"]: (row["parameters"], found)
        for row in rows
        if (found := counted(read_weights(configs()[row["hf_id"]]), row["class"]))
        != row["parameters"]
    }
    assert wrong == {}
    assert len(rows) == 151
    tied = {row["hf_id"]: row["tied"] for row in rows}
    assert {name: read_weights(configs()[name]).tied for name in tied} == tied


def test_more_classes_built_without_weights() -> None:
    """The same holds for further checkpoints' configs and for small made-up ones of each family.

    Measured: Transformers 5.24.0 classes on torch's meta device, tests/data/weights_built.json.
    """
    rows = cases("weights_built.json")
    wrong = {
        (row["hf_id"], row["class"]): (row["parameters"], found)
        for row in rows
        if (found := counted(read_weights(configs()[row["hf_id"]]), row["class"]))
        != row["parameters"]
    }
    assert wrong == {}


FP8_TILES = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
DEEPSEEK_BY_DTYPE = {"BF16": 3_918_786_560, "F8_E4M3": 680_571_043_840, "F32": 41_555_600}


def by_dtype(weights: ModelWeights, parts: tuple[Part, ...] = tuple(Part)) -> dict[str, int]:
    """Return stored elements by dtype."""
    return {tensor.dtype: tensor.elements for tensor in weights.stored(parts)}


def test_deepseek_v3_is_the_hub_s_to_the_element() -> None:
    """Tiles of 128 x 128, the multi-token layer and the router's biases add up to the Hub's totals.

    https://huggingface.co/deepseek-ai/DeepSeek-V3 lists 684,531,386,000 elements, by dtype as here.
    """
    weights = read_weights(config("deepseek-ai/DeepSeek-V3", quantization_config=FP8_TILES))
    assert by_dtype(weights) == DEEPSEEK_BY_DTYPE
    assert sum(DEEPSEEK_BY_DTYPE.values()) == 684_531_386_000
    assert weights.parameters((Part.MULTI_TOKEN,)) == 13_463_426_304 - 256


# (checkpoint, its quantisation, elements that its page lists, dtypes that the page counts)
HUB_TOTALS: list[tuple[str, dict[str, Any] | None, int, str]] = [
    ("zai-org/GLM-4.5", None, 358_337_791_296, "BF16 F32"),
    ("zai-org/GLM-5", None, 753_864_139_008, "BF16 F32"),
    ("zai-org/GLM-5.2", None, 753_329_940_480, "BF16 F32"),
    ("zai-org/GLM-5.1-FP8",
     {**FP8_TILES, "modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
     753_910_024_032, "BF16 F32 F8_E4M3"),
    ("Qwen/Qwen3.5-9B", None, 9_653_104_368, "BF16"),
    ("Qwen/Qwen3.5-35B-A3B", None, 35_951_822_704, "BF16"),
    ("Qwen/Qwen3.8-2.4T-A95B", None, 2_446_182_725_504, "BF16"),
    ("LGAI-EXAONE/EXAONE-4.5-33B", None, 34_350_097_664, "BF16"),
    ("deepseek-ai/DeepSeek-V4-Flash", None, 290_944_616_402, "BF16 F32 I64"),
    ("deepseek-ai/DeepSeek-V4-Pro", None, 1_598_839_674_782, "BF16 F32 I64"),
    ("Qwen/Qwen3-235B-A22B-FP8", {**FP8_TILES, "modules_to_not_convert": ["lm_head", "mlp.gate"]},
     235_107_904_512, "BF16 F8_E4M3"),
    ("Qwen/Qwen3-8B-FP8", FP8_TILES, 8_191_159_296, "BF16 F8_E4M3"),
    ("MiniMaxAI/MiniMax-M2.5",
     {**FP8_TILES, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
     228_703_644_928, "BF16 F32 F8_E4M3"),
    ("mistralai/Devstral-Small-2-24B-Instruct-2512",
     {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
      "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]},
     24_011_361_840, "BF16 F32 F8_E4M3"),
    ("ibm-granite/granite-3.3-8b-instruct-FP8",
     {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
          "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}},
     8_172_462_080, "BF16 F8_E4M3"),
    ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
     {"quant_method": "compressed-tensors", "format": "float-quantized",
      "ignore": ["re:.*self_attn.*", "re:.*router$", "re:.*lm_head"],
      "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
          "num_bits": 8, "type": "float", "strategy": "channel"}}}},
     108_659_340_800, "BF16 F8_E4M3"),
    ("nvidia/MiniMax-M2.5-NVFP4",
     {"quant_method": "modelopt", "quant_algo": "NVFP4",
      "ignore": ["lm_head", "*.block_sparse_moe.gate", "*.self_attn*"]},
     116_349_510_656, "BF16 U8"),
    ("openai/gpt-oss-20b", None, 20_914_757_184, "BF16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "quantisation", "total", "dtypes"), HUB_TOTALS,
                         ids=[row[0] for row in HUB_TOTALS])  # fmt: skip
def test_totals_of_published_checkpoints(
    name: str, quantisation: dict[str, Any] | None, total: int, dtypes: str
) -> None:
    """Towers, drafts, scales and buffers add up to the total that the checkpoint's page lists.

    Pages count the dtypes named here; for some quantised ones they leave scales out.
    """
    changes = {"quantization_config": quantisation} if quantisation else {}
    stored = by_dtype(read_weights(config(name, **changes)))
    assert set(dtypes.split()) <= set(stored)
    assert sum(stored[dtype] for dtype in dtypes.split()) == total


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [("openai/gpt-oss-20b", 13_761_264_768), ("openai/gpt-oss-120b", 65_248_815_744)],
)
def test_gpt_oss_is_as_long_as_its_index_says(name: str, size_bytes: int) -> None:
    """MXFP4 experts with a byte of scale for each 32 values, the rest BF16.

    `total_size` of the index at https://huggingface.co/openai/gpt-oss-20b and gpt-oss-120b.
    """
    scheme = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }
    weights = read_weights(config(name, quantization_config=scheme))
    assert weights.size_bytes() == size_bytes


# Components, layers, parts


def test_llama_8b_by_component() -> None:
    """The parts of Llama-3.1-8B, worked by hand, add up to 8,030,261,248."""
    weights = read_weights(config("meta-llama/Llama-3.1-8B-Instruct"))
    rows = by_component(weights)
    assert rows == {
        "embedding": 525_336_576,  # 128,256 x 4096
        "attention": 1_342_177_280,  # 32 x (2 x 4096 x 4096 + 2 x 1024 x 4096)
        "mlp": 5_637_144_576,  # 32 x 3 x 14,336 x 4096
        "norm": 266_240,  # 65 x 4096
        "output": 525_336_576,
    }
    assert sum(rows.values()) == 8_030_261_248
    assert layer_parameters(weights, 0) == layer_parameters(weights, 31) == 218_112_000
    assert weights.num_layers == 32
    assert not weights.tied


def test_experts_are_a_part_of_their_own_and_few_are_active() -> None:
    """Qwen3-30B-A3B holds 30.5 billion and uses 3.35 billion for a token."""
    weights = read_weights(config("Qwen/Qwen3-30B-A3B"))
    rows = by_component(weights)
    assert rows["experts"] == 48 * 128 * 3 * 768 * 2048
    assert rows["router"] == 48 * 128 * 2048
    unused = 48 * 120 * 3 * 768 * 2048
    assert weights.active_parameters() == weights.parameters() - unused == 3_353_032_704


def test_parts_are_named_apart() -> None:
    """Text, vision, projector and drafts have totals of their own; drafts are in no other total."""
    weights = read_weights(config("Qwen/Qwen3.5-9B"))
    rows = by_part(weights)
    assert rows == {"text": 8_953_803_264, "vision": 456_010_480, "multi_token": 243_290_624}
    assert weights.parameters() == 9_409_813_744
    whisper = read_weights(config("openai/whisper-base"))
    assert by_part(whisper) == {
        "text": 52_003_328,
        "encoder": 20_590_592,
    }


def test_a_tied_output_is_counted_once() -> None:
    """A tied model has one table; untied it has two."""
    tied = read_weights(config("Qwen/Qwen2.5-0.5B"))
    untied = read_weights(config("Qwen/Qwen2.5-0.5B", tie_word_embeddings=False))
    assert tied.tied
    assert untied.parameters() - tied.parameters() == 151_936 * 896


@pytest.mark.parametrize(("dtype", "size_bytes"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_the_file_s_dtype_is_the_weights(dtype: str, size_bytes: int) -> None:
    """`dtype` and its older name say how wide an element is."""
    for field in ("dtype", "torch_dtype"):
        weights = read_weights(config("Qwen/Qwen3-8B", **{field: dtype}))
        assert weights.size_bytes() == size_bytes * weights.parameters()


def test_what_the_class_assumes_is_said() -> None:
    """A size that the file does not name is taken from its class, and the answer says so."""
    weights = read_weights({"model_type": "llama", "vocab_size": 128})
    said = {note.params["field"]: note.params["value"] for note in weights.notes}
    assert said["hidden_size"] == "4096"
    assert said["num_hidden_layers"] == "32"
    assert "vocab_size" not in said
    assert {note.code for note in weights.notes} == {"class_default"}


def test_towers_that_the_file_does_not_describe_are_left_out_and_named() -> None:
    """A Llama 4 file without a vision config counts the text, and says what it leaves out."""
    weights = read_weights(config("meta-llama/Llama-4-Scout-17B-16E-Instruct"))
    assert weights.parameters() == weights.parameters(TEXT) == 107_769_861_120
    left_out = [note for note in weights.notes if note.code == "part_not_counted"]
    assert [note.params["field"] for note in left_out] == ["vision_config"]


def test_a_tower_of_an_unknown_kind_is_left_out_and_named() -> None:
    """Gemma 4's audio encoder has no shapes here, so the answer says that it is not counted."""
    base = config("google/gemma-4-26B-A4B")
    with_audio = {**base, "audio_config": {"model_type": "gemma4_audio"}}
    weights = read_weights(with_audio)
    assert weights.parameters() == read_weights(base).parameters()
    assert "gemma4_audio" in [note.params.get("kind") for note in weights.notes]


def test_an_unknown_wrapper_s_text_is_counted_alone() -> None:
    """A composite model that no row describes is counted by its decoder, with a note."""
    text = config("Qwen/Qwen3-8B")
    weights = read_weights({"model_type": "new_vl", "text_config": text, "vision_config": {}})
    assert weights.parameters() == 8_190_735_360
    assert weights.notes[-1].params == {"field": "text_config", "model_type": "'new_vl'"}
    with pytest.raises(Unsupported, match=r"llm_config\.model_type"):
        read_weights({"model_type": "new_vl", "llm_config": {"model_type": "newer"}})


def test_a_flat_composite_file_is_read_as_its_text() -> None:
    """LLaVA's first files have the decoder's sizes at the top: 13B is read as 13B."""
    flat = config("liuhaotian/llava-v1.5-7b", hidden_size=5120, intermediate_size=13_824,
                  num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=40)  # fmt: skip
    assert read_weights(flat).parameters(TEXT) == 13_015_864_320


def test_longcat_s_idle_experts_hold_no_weights() -> None:
    """Experts that do nothing take rows of the router and nothing else.

    Transformers 5.24.0 allocates gate and up matrices for them too; the published checkpoint, of
    561,862,880,256 elements with its draft layer, has none.
    """
    small = {"model_type": "longcat_flash", "num_layers": 1, "hidden_size": 64, "vocab_size": 10,
             "num_attention_heads": 2, "n_routed_experts": 4, "zero_expert_num": 3,
             "expert_ffn_hidden_size": 16}  # fmt: skip
    idle = (
        read_weights(small).parameters()
        - read_weights({**small, "zero_expert_num": 0}).parameters()
    )
    assert idle == 3 * 64


# The same model said in other words


def small(model_type: str, **fields: Any) -> dict[str, Any]:
    """Return a small config of a family."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
             "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 50}  # fmt: skip
    return {"model_type": model_type, **sizes, **fields}


GLM = {"q_lora_rank": 32, "kv_lora_rank": 16, "moe_intermediate_size": 32, "n_routed_experts": 4}
STEP = {"num_local_experts": 4, "moe_intermediate_size": 32, "share_expert_dim": 32,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"]}  # fmt: skip
KDA = {"kv_lora_rank": 16, "moe_intermediate_size": 32, "num_local_experts": 4}
M3 = {"dense_intermediate_size": 96, "num_local_experts": 4, "shared_intermediate_size": 32,
      "layer_types": ["minimax_m3_sparse"] * 3}  # fmt: skip
LFM2 = {"layer_types": ["conv"] * 3, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (small("glm_moe_dsa", **GLM, index_topk_pattern="FSF"),
         small("glm_moe_dsa", **GLM, indexer_types=["full", "shared", "full"])),
        (small("glm_moe_dsa", **GLM, index_topk_pattern=["full", "shared", "full"]),
         small("glm_moe_dsa", **GLM, index_topk_freq=2, index_skip_topk_offset=1)),
        (small("step3p5", **STEP, moe_layers_enum="1, 2"),
         small("step3p5", **STEP, mlp_layer_types=["dense", "sparse", "sparse"])),
        (small("step3p5", **STEP, moe_layers_enum=[0]),
         small("step3p5", **STEP, mlp_layer_types=["sparse", "dense", "dense"])),
        (small("step3p5", **STEP, attention_other_setting={"num_attention_heads": 8}),
         small("step3p5", **STEP, num_sliding_attention_heads=8)),
        (small("kimi_linear", **KDA, linear_head_dim=8, linear_num_heads=2,
               layer_types=["linear_attention", "full_attention", "linear_attention"]),
         small("kimi_linear", **KDA, linear_attn_config={
             "head_dim": 8, "num_heads": 2, "full_attn_layers": [2]})),
        (small("minimax_m3_vl_text", **M3, index_n_heads=2, index_head_dim=8),
         small("minimax_m3_vl_text", **M3, sparse_attention_config={
             "sparse_num_index_heads": 2, "sparse_index_dim": 8})),
        (small("minimax_m3_vl_text", **M3, index_n_heads=2, index_head_dim=8),
         small("minimax_m3_vl_text", **M3, index_n_heads=2, index_head_dim=8,
               sparse_attention_config={})),
        (small("gemma3n_text", intermediate_size=[96] * 3), small("gemma3n_text")),
        (small("gemma3n_text", intermediate_size=[16_384] * 3),
         {key: value for key, value in small("gemma3n_text").items()
          if key != "intermediate_size"}),
        # Two thirds of 96, times a factor, up to whole multiples; without a factor just 64.
        (small("lfm2", **LFM2, block_ffn_dim_multiplier=1.1, block_multiple_of=8),
         small("lfm2", **LFM2, block_auto_adjust_ff_dim=False, intermediate_size=72)),
        (small("lfm2", **LFM2, block_ffn_dim_multiplier=None),
         small("lfm2", **LFM2, block_auto_adjust_ff_dim=False, intermediate_size=64)),
        (small("exaone", num_layers=3), small("llama")),
        (small("kimi_linear", **KDA, linear_attn_config={"num_heads": 2}),
         small("kimi_linear", **KDA, linear_num_heads=2)),
        (small("cohere", use_qk_norm=False), small("cohere")),
        (small("deepseek_v4", compress_rates={"compressed_sparse_attention": 8,
                                              "heavily_compressed_attention": 64}),
         small("deepseek_v4", compress_rate_csa=8, compress_rate_hca=64)),
    ],
)  # fmt: skip
def test_the_same_model_in_other_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two spellings of one model have the same weights, component by component."""
    assert by_component(read_weights(one)) == by_component(read_weights(other))


def test_falcon_s_norms() -> None:
    """A new Falcon decoder has two norms a layer unless told one; an old parallel one has one."""
    base = small("falcon", num_kv_heads=2, parallel_attn=True, new_decoder_architecture=True)
    two = read_weights(base).parameters()
    one = read_weights({**base, "num_ln_in_parallel_attn": 1}).parameters()
    assert two - one == 3 * 2 * 64
    in_turn = read_weights({**base, "parallel_attn": False}).parameters()
    assert in_turn == two


def test_cohere_s_head_norms() -> None:
    """Cohere norms each head with a weight of its own: 4 query and 2 KV heads of 16, 3 layers."""
    with_norms = read_weights(small("cohere", use_qk_norm=True)).parameters()
    assert with_norms - read_weights(small("cohere")).parameters() == 3 * (4 + 2) * 16


def test_an_untied_t5_has_an_output_of_its_own() -> None:
    """T5 1.1 and its kin keep the output apart from the shared embedding."""
    base = {"model_type": "t5", "d_model": 64, "d_ff": 96, "d_kv": 16, "num_heads": 4,
            "num_layers": 2, "vocab_size": 50}  # fmt: skip
    untied = read_weights({**base, "tie_word_embeddings": False}).parameters()
    assert untied - read_weights(base).parameters() == 50 * 64


# Refusals

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "intermediate_size": 96,
                         "vocab_size": 100}  # fmt: skip

REFUSED: list[tuple[str, dict[str, Any], type[DomainError], str]] = [
    ("nothing", {}, Missing, "model_type"),
    ("a type that is a number", {"model_type": 7}, WrongType, "model_type"),
    ("an unknown type", {"model_type": "llama9"}, Unsupported, "model_type"),
    ("a number in words", {**LLAMA, "hidden_size": "64"}, WrongType, "hidden_size"),
    ("a number with a fraction", {**LLAMA, "hidden_size": 64.0}, WrongType, "hidden_size"),
    ("true for a number", {**LLAMA, "num_hidden_layers": True}, WrongType, "num_hidden_layers"),
    ("no layers", {**LLAMA, "num_hidden_layers": 0}, OutOfRange, "num_hidden_layers"),
    ("layers without end", {**LLAMA, "num_hidden_layers": 10**9}, OutOfRange, "num_hidden_layers"),
    ("negative width", {**LLAMA, "hidden_size": -64}, OutOfRange, "hidden_size"),
    ("heads that do not divide", {**LLAMA, "num_attention_heads": 5}, Conflict,
     "num_attention_heads"),
    ("KV heads that do not divide", {**LLAMA, "num_key_value_heads": 3}, Conflict,
     "num_key_value_heads"),
    ("a flag in words", {**LLAMA, "attention_bias": "yes"}, WrongType, "attention_bias"),
    ("sizes under foreign names", {"model_type": "llama", "hidden_dim": 5120}, Missing,
     "hidden_size"),
    ("two spellings that differ", {"model_type": "gpt2", "n_embd": 64, "hidden_size": 65}, Conflict,
     "n_embd"),
    ("a text config that is a list", {"model_type": "llava", "text_config": [1]}, WrongType,
     "text_config"),
    ("a type inside that is a number", {"model_type": "x", "text_config": {"model_type": 1}},
     WrongType, "text_config.model_type"),
    ("more than any answer holds", {**LLAMA, "hidden_size": 2**30, "num_attention_heads": 1},
     OutOfRange, "config"),
    ("layer types that are too few", {"model_type": "qwen3_next", "num_hidden_layers": 3,
                                      "layer_types": ["full_attention"]}, Conflict, "layer_types"),
    ("an unknown layer type", {"model_type": "qwen3_next", "num_hidden_layers": 1,
                               "layer_types": ["magic"]}, Conflict, "layer_types.0"),
    ("a layer type that is a number", {"model_type": "qwen3_next", "num_hidden_layers": 1,
                                       "layer_types": [1]}, WrongType, "layer_types.0"),
    ("layer types that are no list", {"model_type": "qwen3_next", "num_hidden_layers": 1,
                                      "layer_types": "full"}, WrongType, "layer_types"),
    ("a list without end", {"model_type": "qwen3_next", "num_hidden_layers": 1,
                            "layer_types": ["full_attention"] * 5000}, OutOfRange, "layer_types"),
    ("no pattern", {"model_type": "nemotron_h"}, Missing, "hybrid_override_pattern"),
    ("an unknown letter", {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, Conflict,
     "hybrid_override_pattern"),
    ("a pattern that is a number", {"model_type": "nemotron_h", "hybrid_override_pattern": 7},
     WrongType, "hybrid_override_pattern"),
    ("an unknown network kind", {"model_type": "glm4_moe_lite", "num_hidden_layers": 1,
                                 "mlp_layer_types": ["thick"]}, Conflict, "mlp_layer_types.0"),
    ("an indexer pattern too short", {"model_type": "glm_moe_dsa", "index_topk_pattern": "F"},
     Conflict, "index_topk_pattern"),
    ("an unknown indexer letter", {"model_type": "glm_moe_dsa", "num_hidden_layers": 1,
                                   "index_topk_pattern": "X"}, Conflict, "index_topk_pattern.0"),
    ("an unknown compression", {"model_type": "deepseek_v4", "num_hidden_layers": 1,
                                "compress_ratios": [7]}, Conflict, "layer_types"),
    ("a factor in words", {"model_type": "mamba2", "expand": "2"}, WrongType, "expand"),
    ("a factor below nothing", {"model_type": "mamba2", "expand": -1}, OutOfRange, "expand"),
    ("no factor", {"model_type": "mamba2", "expand": None}, Missing, "expand"),
    ("Mamba heads that do not divide", {"model_type": "zamba", "n_mamba_heads": 7}, Conflict,
     "n_mamba_heads"),
    ("an indexer word that is unknown", {"model_type": "glm_moe_dsa", "num_hidden_layers": 1,
                                         "index_topk_pattern": ["some"]}, Conflict,
     "index_topk_pattern.0"),
    ("layers in words", {"model_type": "step3p5", "moe_layers_enum": "3,four"}, Conflict,
     "moe_layers_enum"),
    ("an image smaller than a patch", {"model_type": "llava", "vision_config": {
        "model_type": "clip_vision_model", "image_size": 7, "patch_size": 14}}, Conflict,
     "vision_config.image_size"),
    ("blocks that are numbers", {"model_type": "nemotron-nas", "num_hidden_layers": 1,
                                 "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 9,
                                 "block_configs": [1]}, WrongType, "block_configs.0"),
    ("a pattern without end", {"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 5000},
     OutOfRange, "hybrid_override_pattern"),
    ("no blocks", {"model_type": "nemotron-nas", "num_hidden_layers": 1, "hidden_size": 64,
                   "num_attention_heads": 2, "vocab_size": 9}, WrongType, "block_configs.0"),
    ("a group that does not divide", {"model_type": "nemotron-nas", "num_hidden_layers": 1,
                                      "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 9,
                                      "block_configs": [{"attention": {"n_heads_in_group": 3},
                                                         "ffn": {"ffn_mult": 1.0}}]}, Conflict,
     "block_configs.0.attention.n_heads_in_group"),
    ("a chat model without sizes", {"model_type": "chatglm"}, Missing, "padded_vocab_size"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "error", "field"), [row[1:] for row in REFUSED],
                         ids=[row[0] for row in REFUSED])  # fmt: skip
def test_wrong_configs_are_refused(
    raw: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """A config that is wrong, or silent on what matters, is refused by the field's name."""
    with pytest.raises(error) as caught:
        read_weights(raw)
    assert ".".join(map(str, caught.value.field)) == field


SOME = sorted({row["model_type"]: name for name, row in configs().items()
               if name.startswith("small/") and "model_type" in row}.values())  # fmt: skip
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10), st.just(2**40), st.just(10**40), st.floats(),
    st.text(max_size=4), st.lists(st.integers(0, 3), max_size=3), st.just({}),
)  # fmt: skip


@given(st.sampled_from(SOME), st.data())
def test_mutated_configs_get_an_answer(name: str, data: st.DataObject) -> None:
    """A real config with fields dropped or replaced is read or refused; nothing else escapes."""
    raw = dict(configs()[name])
    keys = data.draw(st.lists(st.sampled_from(sorted(raw)), max_size=4))
    for key in keys:
        if data.draw(st.booleans()):
            raw.pop(key, None)
        else:
            raw[key] = data.draw(JUNK)
    try:
        weights = read_weights(raw)
    except DomainError:
        return
    assert weights.parameters(tuple(Part)) >= 0


@pytest.mark.parametrize("model_type", sorted({*DECODERS, *WRAPPERS}))
def test_every_family_answers_by_its_defaults(model_type: str) -> None:
    """A file with a type alone is read by its class's defaults, or told what is missing."""
    try:
        weights = read_weights({"model_type": model_type})
    except (Missing, Conflict, Unsupported, WrongType):
        return
    layers = sum(layer_parameters(weights, layer) for layer in range(weights.num_layers))
    outside = sum(
        block.parameters for block in weights.blocks if block.part is Part.TEXT and not block.layers
    )
    assert layers + outside == weights.parameters(TEXT) > 0
    for line in (line for block in weights.blocks for line in block.lines):
        assert min(line.shape, default=1) > 0, line.name
