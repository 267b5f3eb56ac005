"""Heads, defaults and refusals of the config reader."""

from __future__ import annotations

import pytest

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unknown,
    Unsupported,
    WrongType,
)
from app.domain.state import FullAttention
from app.readers.hf_config import read_config
from tests.readers.hf_states import BASE, kept_bytes, kinds, states

TOKENS = 131_072

LLAMA = BASE | {"model_type": "llama", "num_hidden_layers": 32, "num_key_value_heads": 8}
MLA = BASE | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536,
    "num_nextn_predict_layers": 1, "n_routed_experts": 256,
}  # fmt: skip
GEMMA = BASE | {
    "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
}  # fmt: skip
GEMMA_KINDS = [
    "full_attention" if (index + 1) % 6 == 0 else "sliding_attention" for index in range(62)
]
QWEN3 = BASE | {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "head_dim": 128,
}  # fmt: skip
OSS = BASE | {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
WRAPPED = {
    "model_type": "gemma3",
    "text_config": GEMMA,
    "vision_config": {"model_type": "siglip_vision_model", "num_hidden_layers": 27},
}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (LLAMA, 17_179_869_184),
        (MLA, 9_210_691_584),
        (GEMMA | {"sliding_window_pattern": 6}, 11_173_199_872),
        (GEMMA | {"layer_types": GEMMA_KINDS}, 11_173_199_872),
        (WRAPPED, 11_173_199_872),
        (QWEN3, 19_327_352_832),
        (OSS, 3_224_346_624),
    ],
    ids=["llama", "deepseek-v3", "gemma-pattern", "gemma-list", "gemma-wrapper", "qwen3", "oss"],
)
def test_totals_worked_out_by_hand(config: dict[str, object], total: int) -> None:
    """At 131,072 tokens in bf16 each pasted config keeps what was worked out from its fields."""
    assert kept_bytes(read_config(config), TOKENS) == total


def test_reading_carries_what_the_file_says_beside_its_layers() -> None:
    """Name, format and context length come from the file; an unusual one is left out."""
    reading = read_config(LLAMA | {"_name_or_path": "a/b"})
    assert (reading.name, reading.dtype, reading.max_context_tokens) == ("a/b", "bfloat16", 131072)
    assert (reading.family, reading.assumptions, reading.draft_layers) == ("grouped", (), ())
    odd = read_config({**LLAMA, "torch_dtype": 7, "max_position_embeddings": 10**12})
    assert (odd.name, odd.dtype, odd.max_context_tokens) == ("", None, None)
    assert read_config({**LLAMA, "dtype": "torch.float16", "torch_dtype": None}).dtype == "float16"


# Heads under all their names


@pytest.mark.parametrize(
    ("config", "kv_heads", "width"),
    [
        ({"model_type": "llama", "num_key_value_heads": 8}, 8, 128),
        ({"model_type": "llama", "num_key_value_heads": None}, 32, 128),
        ({"model_type": "llama"}, 32, 128),
        ({"model_type": "llama", "num_key_value_heads": 1, "head_dim": 64}, 1, 64),
        ({"model_type": "llama", "num_key_value_heads": 8, "head_dim": None}, 8, 128),
        ({"model_type": "gpt_neox"}, 32, 128),
        ({"model_type": "gpt_neox", "head_dim": 16}, 32, 128),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8}, 8, 128),
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 32}, 1, 128),
        ({"model_type": "falcon", "multi_query": False}, 32, 128),
        ({"model_type": "gpt_bigcode", "multi_query": False}, 32, 128),
        ({"model_type": "gpt_bigcode"}, 1, 128),
        ({"model_type": "jetmoe", "num_key_value_heads": 16, "kv_channels": 96}, 16, 96),
        ({"model_type": "mpt"}, 32, 128),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multihead_attention"}}, 32, 128),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"}}, 1, 128),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": 4}}, 4, 128),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}}, 8, 128),
        ({"model_type": "dbrx"}, 1, 128),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2,
          "kv_channels": 128}, 2, 128),
        ({"model_type": "chatglm", "kv_channels": None}, 32, 128),
        ({"model_type": "qwen", "kv_channels": 96}, 32, 96),
        ({"model_type": "baichuan"}, 32, 128),
        ({"model_type": "baichuan", "num_key_value_heads": 4, "head_dim": 64}, 4, 64),
        ({"model_type": "internlm2", "num_key_value_heads": 8}, 8, 128),
        ({"model_type": "phi-msft", "n_head_kv": 8}, 8, 128),
        ({"model_type": "RefinedWeb", "n_head_kv": 8}, 8, 128),
        ({"model_type": "RefinedWebModel", "multi_query": True}, 1, 128),
        ({"model_type": "codeshell", "group_query_attention": True, "num_query_groups": 8}, 8, 128),
        ({"model_type": "codeshell", "num_query_groups": 8}, 32, 128),
        ({"model_type": "gpt_refact", "multi_query": True}, 1, 128),
        ({"model_type": "hf_olmo", "n_kv_heads": 8}, 8, 128),
        ({"model_type": "hf_olmo", "multi_query_attention": True}, 1, 128),
        ({"model_type": "hf_olmo"}, 32, 128),
        ({"model_type": "grok-1", "num_kv_heads": 8, "key_size": 128}, 8, 128),
    ],
)  # fmt: skip
def test_kv_heads_and_widths(config: dict[str, object], kv_heads: int, width: int) -> None:
    """Every naming of shared heads gives the model's own number of KV heads and their width."""
    found = states({**BASE, "num_hidden_layers": 2, **config})
    assert set(found) == {(FullAttention(kv_heads=kv_heads, k_dim=width, v_dim=width),)}


def test_gpt2_names_are_read_as_their_class_maps_them() -> None:
    """A class's attribute map holds: n_layer, n_head and n_embd are layers, heads and width."""
    config: dict[str, object] = {"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 64}
    assert states(config) == [(FullAttention(kv_heads=4, k_dim=16, v_dim=16),)] * 3
    bark: dict[str, object] = {"model_type": "semantic", "num_layers": 3, "num_heads": 4,
                               "hidden_size": 64}  # fmt: skip
    assert states(bark) == states(config)
    default = (FullAttention(kv_heads=12, k_dim=64, v_dim=64),)
    assert states({"model_type": "gpt2"}) == [default] * 12


def test_per_layer_heads_of_pruned_and_uneven_models() -> None:
    """Lists of heads and block configs give each layer its own KV heads, or none at all."""
    openelm: dict[str, object] = {
        "model_type": "openelm", "num_transformer_layers": 3, "head_dim": 64,
        "num_kv_heads": [3, 3, 5], "num_query_heads": [12, 12, 20],
    }  # fmt: skip
    assert [own[0] for own in states(openelm)] == [
        FullAttention(kv_heads=heads, k_dim=64, v_dim=64) for heads in (3, 3, 5)
    ]
    blocks: list[dict[str, object]] = [
        {"attention": {"n_heads_in_group": 8, "no_op": False, "window_length": None}},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"n_heads_in_group": 16, "window_length": 64}},
        {"attention": {"replace_with_linear": True}},
    ]
    nemotron = BASE | {
        "model_type": "nemotron-nas", "num_hidden_layers": 4, "block_configs": blocks,
        "num_key_value_heads": None,
    }  # fmt: skip
    assert kinds(nemotron) == "F-S-"
    assert kept_bytes(read_config(nemotron), 100) == 2 * 256 * (4 * 100 + 2 * 63)


# What the class decides


def test_absent_fields_take_the_classs_constants_as_assumptions() -> None:
    """An old wrapper omits what equals the default; each default taken is an assumption."""
    reading = read_config({"model_type": "llava", "text_config": {"model_type": "llama"}})
    assert kept_bytes(reading, 1) == 32 * 2 * 4096 * 2
    assert {note.code for note in reading.assumptions} == {"class_default", "kv_heads_as_heads"}
    assert next(note.text for note in reading.assumptions) == (
        "text_config.num_hidden_layers is not in the file; llama takes 32"
    )


def test_absent_kv_heads_are_a_constant_in_some_classes() -> None:
    """Mistral's class assumes 8 KV heads: absent is neither null nor as many as heads."""
    mistral = states({**BASE, "model_type": "mistral", "sliding_window": None,
                      "num_hidden_layers": 2})  # fmt: skip
    assert mistral[0] == (FullAttention(kv_heads=8, k_dim=128, v_dim=128),)
    with pytest.raises(WrongType) as refused:
        read_config({**BASE, "model_type": "mistral", "num_key_value_heads": None})
    assert refused.value.field == ("num_key_value_heads",)


def test_an_assumption_is_said_once() -> None:
    """A default that several steps need is one assumption."""
    notes = read_config({"model_type": "llama"}).assumptions
    assert len({note.text for note in notes}) == len(notes) == 4


def test_foreign_size_names_are_taken_and_end_the_classs_defaults() -> None:
    """A table in other names than its class's is no whole config: its sizes count, defaults not."""
    table: dict[str, object] = {
        "model_type": "llama", "num_layers": 80, "n_head": 64, "hidden_dim": 8192,
    }  # fmt: skip
    with pytest.raises(Missing) as refused:
        read_config(table)
    assert refused.value.field == ("num_key_value_heads",)
    reading = read_config(table | {"num_key_value_heads": 8})
    assert kept_bytes(reading, 1) == 80 * 2 * 8 * 128 * 2
    assert {note.code for note in reading.assumptions} == {"foreign_spelling"}


# Refusals, each naming its field


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"model_type": "made_up_arch", "weird_memory_slots": 9}, Unknown, ("model_type",)),
        ({"model_type": "made_up_arch"}, Unknown, ("model_type",)),
        ({"model_type": 7}, WrongType, ("model_type",)),
        ({"num_key_value_heads": 7}, Conflict, ("num_key_value_heads",)),
        ({"num_key_value_heads": 64}, Conflict, ("num_key_value_heads",)),
        ({"num_key_value_heads": "8"}, WrongType, ("num_key_value_heads",)),
        ({"num_key_value_heads": 8.0}, WrongType, ("num_key_value_heads",)),
        ({"num_key_value_heads": True}, WrongType, ("num_key_value_heads",)),
        ({"num_key_value_heads": 0}, OutOfRange, ("num_key_value_heads",)),
        ({"num_hidden_layers": 10**30}, OutOfRange, ("num_hidden_layers",)),
        ({"num_hidden_layers": float("nan")}, WrongType, ("num_hidden_layers",)),
        ({"num_hidden_layers": -1}, OutOfRange, ("num_hidden_layers",)),
        ({"hidden_size": 4097}, Conflict, ("num_attention_heads",)),
        ({"head_dim": 2**21}, OutOfRange, ("head_dim",)),
        ({"kv_lora_rank": 512}, Unsupported, ("kv_lora_rank",)),
        ({"ssm_state_size": 128}, Unsupported, ("ssm_state_size",)),
        ({"sparse_attention_topk": 16}, Unsupported, ("sparse_attention_topk",)),
        ({"linear_attn_config": {"a": 1}}, Unsupported, ("linear_attn_config",)),
        ({"global_window_stride": 4}, Unsupported, ("global_window_stride",)),
        ({"num_kv_shared_layers": 4}, Unsupported, ("num_kv_shared_layers",)),
        ({"use_sliding_window": "yes", "sliding_window": 8}, WrongType, ("use_sliding_window",)),
        ({"layer_types": ["full_attention"] * 31}, Conflict, ("layer_types",)),
        ({"layer_types": ["full_attention"] * 31 + ["mystery"]}, Unsupported, ("layer_types", 31)),
        ({"layer_types": ["full_attention"] * 31 + [None]}, WrongType, ("layer_types", 31)),
        ({"layer_types": "full"}, WrongType, ("layer_types",)),
        ({"layer_types": ["full_attention"] * 20_000}, OutOfRange, ("layer_types",)),
        ({"layer_types": ["sliding_attention"] * 32}, Missing, ("sliding_window",)),
    ],
)
def test_wrong_but_plausible_configs_are_refused_by_field(
    change: dict[str, object], error: type[DomainError], field: tuple[object, ...]
) -> None:
    """Heads that do not divide, numbers of another type, special attention: each is refused."""
    with pytest.raises(error) as refused:
        read_config({**LLAMA, **change})
    assert refused.value.field == field
    assert str(refused.value)


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"model_type": "mpt", "attn_config": {"attn_type": "odd"}}, Unsupported,
         ("attn_config", "attn_type")),
        ({"model_type": "mpt", "attn_config": {"sliding_window_size": 64}}, Unsupported,
         ("attn_config", "sliding_window_size")),
        ({"model_type": "mpt", "attn_config": []}, WrongType, ("attn_config",)),
        ({"model_type": "phi3small", "blocksparse_homo_head_pattern": True}, Unsupported,
         ("blocksparse_homo_head_pattern",)),
        ({"model_type": "openelm", "head_dim": 64}, Missing, ("num_kv_heads",)),
        ({"model_type": "openelm", "head_dim": 64, "num_kv_heads": [3, 3],
          "num_query_heads": [12, 13]}, Conflict, ("num_kv_heads", 1)),
        ({"model_type": "nemotron-nas"}, Missing, ("block_configs",)),
        ({"model_type": "nemotron-nas", "block_configs": [{}, {}]}, Missing,
         ("block_configs", 0, "attention")),
        ({"model_type": "nemotron-nas", "block_configs": [1, 2]}, WrongType, ("block_configs", 0)),
        ({"model_type": "nemotron-nas", "block_configs": [
            {"attention": {"num_sink_tokens": 4}}] * 2}, Unsupported,
         ("block_configs", 0, "attention", "num_sink_tokens")),
        ({"model_type": "minicpm", "kv_lora_rank": 8}, Conflict, ("kv_lora_rank",)),
        ({"model_type": "minicpm", "sparse_config": {"a": 1}}, Unsupported, ("sparse_config",)),
        ({"model_type": "bert"}, Unsupported, ("is_decoder",)),
        ({"model_type": "bert", "is_decoder": True, "add_cross_attention": True}, Missing,
         ("encoder_tokens",)),
        ({"model_type": "gpt_neo", "attention_types": 3}, WrongType, ("attention_types",)),
        ({"model_type": "gpt_neo", "attention_types": [3]}, Unsupported, ("attention_types",)),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 9]]}, Unsupported,
         ("attention_types",)),
        ({"model_type": "gpt_neo", "attention_layers": ["global", "near"]}, Unsupported,
         ("attention_layers", 1)),
        ({"model_type": "minimax_m2", "attn_type_list": [1, 0]}, Unsupported,
         ("attn_type_list", 1)),
        ({"model_type": "llama", "per_layer_config": {"0": {}}}, Unsupported,
         ("per_layer_config",)),
    ],
)  # fmt: skip
def test_refusals_of_other_types(
    config: dict[str, object], error: type[DomainError], field: tuple[object, ...]
) -> None:
    """What a type cannot be, or what nobody modelled, is refused by the field that says it."""
    with pytest.raises(error) as refused:
        read_config({**BASE, "num_hidden_layers": 2, "num_transformer_layers": 2, **config})
    assert refused.value.field == field


def test_two_spellings_must_agree() -> None:
    """Two names of one size with different values contradict each other; equal ones do not."""
    config: dict[str, object] = {"model_type": "gpt2", "n_head": 4, "n_embd": 64, "n_layer": 2}
    assert len(states(config | {"num_hidden_layers": 2})) == 2
    with pytest.raises(Conflict) as refused:
        read_config(config | {"num_hidden_layers": 3})
    assert refused.value.field == ("n_layer",)
    assert len(states({**config, "num_hidden_layers": None})) == 2


def test_not_a_config_at_all() -> None:
    """A list is no config, and a length below nothing is no encoder."""
    with pytest.raises(WrongType):
        read_config([])  # type: ignore[arg-type]
    with pytest.raises(OutOfRange):
        read_config(LLAMA, encoder_tokens=-1)
    with pytest.raises(Missing) as refused:
        read_config({})
    assert refused.value.field == ("model_type",)


def test_nesting_without_end_is_refused() -> None:
    """Ten thousand wrappers in one another are refused by the depth, in no time."""
    config: dict[str, object] = {"model_type": "llava"}
    for _ in range(10_000):
        config = {"model_type": "llava", "text_config": config}
    with pytest.raises(Unsupported):
        read_config(config)
    with pytest.raises(WrongType):
        read_config({**LLAMA, "num_key_value_heads": config})


def test_switched_off_special_fields_pass() -> None:
    """A special field that is null, false, nought or empty says that there is no such thing."""
    off: dict[str, object] = {
        "ssm_state_size": None, "use_sparse_attention": False, "kv_lora_rank": 0,
        "linear_attn_config": {}, "compress_ratios": [], "hybrid_override_pattern": "",
        "window_layers": 0.0, "x" * 300 + "window": 8,
    }  # fmt: skip
    assert kept_bytes(read_config({**LLAMA, **off}), TOKENS) == 17_179_869_184


# Decoders with something else beside keys and values


def test_bert_as_a_decoder_may_attend_to_an_encoder() -> None:
    """A BERT decoder with cross-attention keeps the encoder's positions once."""
    config = {**BASE, "model_type": "bert", "is_decoder": True, "add_cross_attention": True,
              "num_hidden_layers": 2}  # fmt: skip
    reading = read_config(config, encoder_tokens=11)
    assert kept_bytes(reading, 5) == 2 * (5 + 11) * 2 * 4096 * 2
    assert kept_bytes(read_config({**config, "add_cross_attention": False}), 5) == 163_840


def test_virtual_prompts_and_hidden_states_are_counted() -> None:
    """CPM-Ant keeps 32 virtual positions; XLNet one vector a position, not a key and a value."""
    cpmant = read_config({"model_type": "cpmant", "num_hidden_layers": 1})
    assert kept_bytes(cpmant, 10) == (10 + 32) * 2 * 4096 * 2
    xlnet = read_config({"model_type": "xlnet", "n_layer": 2, "d_model": 64, "n_head": 4})
    assert kept_bytes(xlnet, 10) == 2 * 10 * 64 * 2


def test_what_sparse_readers_keep_is_everything() -> None:
    """Block-sparse heads read different blocks, and a kept prompt has no length in a config."""
    phi = read_config({**BASE, "model_type": "phi3small", "num_hidden_layers": 1,
                       "num_key_value_heads": 8, "blocksparse_vert_stride": 8})  # fmt: skip
    assert kept_bytes(phi, 10) == 10 * 2 * 1024 * 2
    assert [note.code for note in phi.assumptions] == ["sparse_reads_all"]
    ocr = read_config({**BASE, "model_type": "unlimited_ocr_text", "num_hidden_layers": 1,
                       "num_key_value_heads": 8, "sliding_window": 4})  # fmt: skip
    assert kept_bytes(ocr, 10) == 10 * 2 * 1024 * 2
    assert [note.code for note in ocr.assumptions] == ["prompt_kept"]
    full = read_config({**BASE, "model_type": "unlimited_ocr_text", "num_hidden_layers": 1,
                        "num_key_value_heads": 8, "sliding_window": None})  # fmt: skip
    assert [note.code for note in full.assumptions] == []
