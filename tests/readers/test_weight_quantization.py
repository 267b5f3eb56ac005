"""Which matrices a quantisation config quantises, and how names in its lists are matched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import DomainError, Missing, OutOfRange, Unsupported, WrongType
from app.domain.weight_formats import WeightFormat
from app.domain.weights import ModelWeights
from app.readers.weights import read_weights
from app.readers.weights.module_names import NameMatcher, globs_of

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 100,
                         "tie_word_embeddings": False}  # fmt: skip
MOE: dict[str, Any] = {"model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 2,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                       "num_experts": 4, "moe_intermediate_size": 256, "vocab_size": 100,
                       "tie_word_embeddings": False}  # fmt: skip


def read(scheme: dict[str, Any], base: dict[str, Any] | None = None) -> ModelWeights:
    """Return the weights of a small model under a scheme."""
    return read_weights({**(base or LLAMA), "quantization_config": scheme})


def formats(weights: ModelWeights) -> dict[str, str]:
    """Return the format of each matrix by full name."""
    return {
        f"{block.prefix.format(layer=layer)}.{line.name}" if block.prefix else line.name: (
            line.format.name
        )
        for block in weights.blocks
        for layer in (block.layers or (None,))
        for line in block.lines
        if len(line.shape) == 2
    }


def quantised(weights: ModelWeights) -> set[str]:
    """Return the last parts of the names of the quantised matrices."""
    return {
        name.removesuffix(".weight").rpartition(".")[2]
        for name, format_name in formats(weights).items()
        if format_name != "bf16"
    }


PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "f8_e4m3 128x128"),
        ({"quant_method": "fp8", "weight_block_size": None}, "f8_e4m3 per tensor"),
        ({"quant_method": "fbgemm_fp8"}, "f8_e4m3 per row"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4 g128"),
        ({"bits": 4, "group_size": -1}, "int4 grow"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4 g64"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, "int4 g128"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True,
          "bnb_4bit_use_double_quant": True}, "nf4 double"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "i8 per row"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "FP8"}, "f8_e4m3 per tensor"),
    ],
)  # fmt: skip
def test_each_method_takes_the_decoder_s_linear_layers(scheme: dict[str, Any], name: str) -> None:
    """By default all projections of the decoder are quantised; embedding and output are not."""
    weights = read(scheme)
    assert quantised(weights) == PROJECTIONS
    assert set(formats(weights).values()) == {name, "bf16"}


def group(**weights: Any) -> dict[str, Any]:
    """Return a compressed-tensors config of one group over all linear layers."""
    return {"quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "packed", "name"),
    [
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, "pack-quantized",
         "int4 g32"),
        ({"num_bits": 4, "type": "int", "group_size": 32}, "pack-quantized", "int4 g32"),
        ({"num_bits": 4, "strategy": "channel"}, "pack-quantized", "int4 grow"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, "int-quantized", "i8 per row"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "float-quantized",
         "f8_e4m3 per tensor"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 128]}, "",
         "f8_e4m3 64x128"),
        ({"num_bits": 4, "type": "float", "group_size": 16}, "nvfp4-pack-quantized", "nvfp4"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, "mxfp4-pack-quantized", "mxfp4"),
    ],
)  # fmt: skip
def test_compressed_tensors_groups(weights: dict[str, Any], packed: str, name: str) -> None:
    """Bits, type, strategy and group of a compressed-tensors group make its format."""
    found = formats(read({**group(**weights), "format": packed}))
    assert set(found.values()) == {name, "bf16"}


def test_groups_with_named_targets() -> None:
    """The first group that names a module decides, and a module in none stays as it is."""
    scheme = {
        "quant_method": "compressed-tensors",
        "ignore": ["re:.*layers\\.0\\..*"],
        "config_groups": {
            "a": {"targets": ["re:.*self_attn\\.(q|k)_proj$"],
                  "weights": {"num_bits": 8, "type": "float"}},
            "b": {"targets": ["model.layers.1.mlp.down_proj", "lm_head"], "weights": {
                "num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}},
        },
    }  # fmt: skip
    found = {name: kind for name, kind in formats(read(scheme)).items() if kind != "bf16"}
    assert found == {
        "model.layers.1.self_attn.q_proj.weight": "f8_e4m3 per tensor",
        "model.layers.1.self_attn.k_proj.weight": "f8_e4m3 per tensor",
        "model.layers.1.mlp.down_proj.weight": "int4 g32",
        "lm_head.weight": "int4 g32",
    }


def test_layers_named_one_by_one() -> None:
    """ModelOpt's mixed precision names each layer's algorithm; `experts` names all of them."""
    scheme = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.1.self_attn.o_proj": {"quant_algo": "MXFP8"},
            "lm_head": {"quant_algo": "W4A16_NVFP4"},
        },
        "ignore": ["mtp*"],
    }
    found = {name: kind for name, kind in formats(read(scheme, MOE)).items() if kind != "bf16"}
    assert found == {
        "model.layers.0.mlp.experts.*.gate_proj.weight": "nvfp4",
        "model.layers.0.mlp.experts.*.up_proj.weight": "nvfp4",
        "model.layers.0.mlp.experts.*.down_proj.weight": "nvfp4",
        "model.layers.1.self_attn.o_proj.weight": "f8_e4m3 1x32",
        "lm_head.weight": "nvfp4",
    }


def test_experts_quantised_over_fp8() -> None:
    """Where experts alone were quantised anew, the rest keeps its FP8 tiles."""
    scheme = {"quant_method": "fp8", "quant_algo": "MIXED_PRECISION",
              "weight_block_size": [128, 128], "ignore": ["*.self_attn.*"],
              "quantized_layers": {
                  "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"}}}  # fmt: skip
    found = formats(read(scheme, MOE))
    assert found["model.layers.0.mlp.experts.*.up_proj.weight"] == "nvfp4"
    assert found["model.layers.1.mlp.experts.*.up_proj.weight"] == "f8_e4m3 128x128"
    assert found["model.layers.0.self_attn.q_proj.weight"] == "f8_e4m3 128x128"


def test_experts_alone() -> None:
    """MXFP4 as gpt-oss ships it takes the experts and nothing else; DeepSeek V4's FP4 too."""
    assert quantised(read({"quant_method": "mxfp4"}, MOE)) == {"gate_proj", "up_proj", "down_proj"}
    assert quantised(read({"quant_method": "mxfp4"})) == set()
    fp4 = {**MOE, "expert_dtype": "fp4"}
    found = formats(read({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp4))
    assert found["model.layers.0.mlp.experts.*.up_proj.weight"] == "mxfp4"
    assert found["model.layers.0.self_attn.q_proj.weight"] == "f8_e4m3 128x128"


def test_the_config_may_stand_in_the_text_part() -> None:
    """A composite file may keep the scheme, and the dtype, with its text."""
    text = {**LLAMA, "dtype": "float16",
            "quantization_config": {
                "quant_method": "gptq", "bits": 4, "group_size": 128}}  # fmt: skip
    for raw in ({"model_type": "new", "text_config": text},):
        assert set(formats(read_weights(raw)).values()) == {"int4 g128", "f16"}
    plain = {"model_type": "new", "text_config": LLAMA}
    assert set(formats(read_weights(plain)).values()) == {"bf16"}
    older = {**LLAMA, "compression_config": group(num_bits=8, type="int", strategy="channel")}
    assert quantised(read_weights(older)) == PROJECTIONS


@pytest.mark.parametrize(
    ("scheme", "error", "field"),
    [
        ({}, Missing, "quantization_config.quant_method"),
        ({"quant_method": "compressed-tensors"}, Missing, "quantization_config.config_groups"),
        ({"quant_method": "magic"}, Unsupported, "quantization_config.quant_method"),
        ({"quant_method": 4}, WrongType, "quantization_config.quant_method"),
        ({"quant_method": "gptq"}, Missing, "quantization_config.bits"),
        ({"quant_method": "gptq", "bits": 400}, OutOfRange, "quantization_config.bits"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, WrongType,
         "quantization_config.modules_to_not_convert.0"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["x" * 300]}, OutOfRange,
         "quantization_config.modules_to_not_convert.0"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, Unsupported,
         "quantization_config.quant_algo"),
        ({"quant_method": "modelopt"}, Unsupported, "quantization_config.quant_algo"),
        ({"quantized_layers": {"lm_head": 1}}, Unsupported, "quantization_config.quant_algo"),
        (group(num_bits=4, type="int", strategy="token"), Unsupported,
         "quantization_config.config_groups.group_0.weights.strategy"),
        (group(type="int"), Missing, "quantization_config.config_groups.group_0.weights.num_bits"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {
            "num_bits": 8}, "targets": ["re:(a+)+$"]}}}, Unsupported,
         "quantization_config.config_groups.g.targets.0"),
    ],
)  # fmt: skip
def test_schemes_that_cannot_be_read_are_refused(
    scheme: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """An unknown method, a missing size or an unreadable list is refused by name."""
    if not scheme:
        scheme = {"note": "nothing"}
    with pytest.raises(error) as caught:
        read(scheme)
    assert ".".join(map(str, caught.value.field)) == field


def matcher(*items: str) -> NameMatcher:
    """Return the matcher of a list."""
    return NameMatcher.of(items, ("list",))


@pytest.mark.parametrize(
    ("item", "name", "is_match"),
    [
        ("lm_head", "lm_head", True),
        ("gate", "model.layers.0.mlp.gate", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("mlp.gate", "model.layers.0.mlp.gate", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("model.layers.0*", "model.layers.0.mlp.up_proj", True),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.7.mlp.up_proj", False),
        ("*.self_attn*", "model.layers.7.self_attn.q_proj", True),
        ("re:.*self_attn.*", "model.layers.7.self_attn.q_proj", True),
        ("re:.*mlp\\.(gate|up|down)_proj.*", "model.layers.0.mlp.up_proj", True),
        ("re:.*mlp\\.(gate|up|down)_proj.*", "model.layers.0.mlp.experts.0.up_proj", False),
        ("re:.*\\.mlp\\.gate$", "model.layers.0.mlp.gate", True),
        ("re:.*\\.mlp\\.gate$", "model.layers.0.mlp.gate_proj", False),
        ("re:^model.layers.[0-9]+.mlp", "model.layers.12.mlp.gate", True),
        ("re:layers", "model.layers.12.mlp.gate", False),
    ],
)
def test_names_match_as_loaders_match_them(item: str, name: str, is_match: bool) -> None:  # noqa: FBT001
    """A plain name is a module, a holder or a tail; a glob is the whole; an expression a start."""
    assert matcher(item).matches(name) is is_match


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+$",
        "a{2,9}",
        "(a|(b))",
        "a$b",
        "[a-z]",
        "(?=x)",
        "\\w+",
        "(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)",
    ],
)
def test_other_expressions_are_refused(expression: str) -> None:
    """An expression outside the small language is refused, so that none can take long."""
    with pytest.raises(Unsupported):
        globs_of(expression, ("list", 0))


def test_lists_are_bounded() -> None:
    """More patterns than any real list has are refused; plain names are many, and cheap."""
    with pytest.raises(OutOfRange):
        matcher(*(f"a{number}*b" for number in range(200)))
    many = matcher(*(f"model.layers.{number}.mlp.up_proj" for number in range(20_000)))
    assert many.matches("model.layers.19999.mlp.up_proj")
    assert not many.matches("model.layers.20000.mlp.up_proj")
    assert matcher().is_empty
    with pytest.raises(OutOfRange):
        matcher(*("x" for _ in range(65_537)))


@given(
    st.lists(st.text(alphabet="ab.*?(|)$^\\+[]re:", max_size=12), max_size=4), st.text(max_size=8)
)
def test_any_list_is_matched_or_refused(items: list[str], name: str) -> None:
    """Whatever stands in a list, it is matched or refused."""
    try:
        found = matcher(*items)
    except DomainError:
        return
    assert found.matches(name) in {True, False}


def test_a_format_is_the_same_in_every_layer_that_is_alike() -> None:
    """Layers under one treatment stay one block; another treatment takes its layers out."""
    scheme = {"quant_method": "fp8", "weight_block_size": [128, 128],
              "modules_to_not_convert": ["model.layers.1"]}  # fmt: skip
    blocks = [block for block in read(scheme).blocks if block.layers]
    assert sorted(block.layers for block in blocks) == [(0,), (1,)]
    kinds: list[set[WeightFormat]] = [{line.format for line in block.lines} for block in blocks]
    assert sorted(len(kind) for kind in kinds) == [1, 2]
