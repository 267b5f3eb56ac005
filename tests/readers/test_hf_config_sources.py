"""Wrappers, configs without a model type, and tables of sizes in other projects' names."""

from __future__ import annotations

import json

import pytest

from app.domain.errors import Conflict, DomainError, Missing, Unknown, Unsupported, WrongType
from app.domain.state import FullAttention, LatentAttention, Recurrent, SlidingWindow
from app.readers.hf_config import read_config
from app.readers.hf_config.reader import _ARCHITECTURES_FILE, _architectures
from app.readers.hf_config.registry import FAMILIES, _by_type
from app.readers.hf_config.specials import is_special
from tests.readers.hf_states import BASE, kept_bytes, kinds, states

Config = dict[str, object]
TEXT: Config = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                "num_hidden_layers": 3}  # fmt: skip
PLAIN = [(FullAttention(kv_heads=2, k_dim=16, v_dim=16),)] * 3


# Wrappers


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llava", "text_config": {"model_type": "llama", **TEXT}},
        {"model_type": "llava", "text_config": TEXT},
        {"model_type": "llava", **TEXT},
        {"model_type": "internvl_chat", "llm_config": {"model_type": "internlm2", **TEXT}},
        {"model_type": "multi_modality", "language_config": {"model_type": "llama", **TEXT}},
        {"model_type": "multi_modality", "language_config": TEXT},
        {"model_type": "qwen2_vl", **TEXT, "vision_config": {"depth": 32, "window_size": 112}},
        {"model_type": "qwen2_5_omni", "thinker_config": {
            "model_type": "qwen2_5_omni_thinker", "text_config": TEXT, "audio_config": {}}},
        {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": TEXT}},
        {"model_type": "ministral3", "text_config": {
            "model_type": "ministral3", "head_dim": 16, **TEXT},
         "vision_config": {"model_type": "pixtral"}},
        {"model_type": "exaone4_5", "text_config": {
            "model_type": "exaone4_5_text", "sliding_window": None, **TEXT}},
        {"model_type": "voxtral", "hidden_size": 3072, "text_config": TEXT,
         "audio_config": {"sliding_window": 750}},
    ],
)  # fmt: skip
def test_wrappers_are_read_for_their_language_model(config: Config) -> None:
    """Nested or flat, named or by the wrapper's own default: the language model is what keeps."""
    assert states(config) == PLAIN


def test_a_part_without_a_type_takes_the_wrappers_as_an_assumption() -> None:
    """Which type an unnamed part has is the wrapper's default, and said so."""
    notes = read_config({"model_type": "llava", "text_config": TEXT}).assumptions
    assert [note.text for note in notes] == [
        "text_config names no model_type; llava has llama there"
    ]


def test_a_wrappers_format_and_length_serve_its_part() -> None:
    """Where the part does not say them, format and context length are the wrapper's."""
    config: Config = {"model_type": "llava", "text_config": TEXT, "torch_dtype": "float16",
                      "max_position_embeddings": 77}  # fmt: skip
    reading = read_config(config)
    assert (reading.dtype, reading.max_context_tokens) == ("float16", 77)


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"model_type": "made_up_vlm", "text_config": {"model_type": "llama", **TEXT}}, Unknown,
         ("model_type",)),
        ({"model_type": "llava", "text_config": {"model_type": "made_up", **TEXT}}, Unknown,
         ("text_config", "model_type")),
        ({"model_type": "llava", "text_config": {"model_type": 3, **TEXT}}, WrongType,
         ("text_config", "model_type")),
        ({"model_type": "llava"}, Missing, ("text_config",)),
        ({"model_type": "llava", "text_config": None}, Missing, ("text_config",)),
        ({"model_type": "internvl_chat"}, Missing, ("text_config",)),
        ({"model_type": "internvl_chat", "llm_config": TEXT}, Missing,
         ("llm_config", "model_type")),
        ({"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker"}},
         Missing, ("thinker_config", "text_config")),
        ({"model_type": "llava", "text_config": {
            "model_type": "llama", **TEXT, "num_key_value_heads": 3}}, Conflict,
         ("text_config", "num_key_value_heads")),
        ({"model_type": "llava", "text_config": {
            "model_type": "llama", **TEXT, "window_layers": 3}}, Unsupported,
         ("text_config", "window_layers")),
    ],
)  # fmt: skip
def test_wrappers_that_do_not_say_enough(
    config: Config, error: type[DomainError], field: tuple[object, ...]
) -> None:
    """An unknown wrapper or part is refused, with the path to it."""
    with pytest.raises(error) as refused:
        read_config(config)
    assert refused.value.field == field


# No model type, but a class


def test_a_class_of_one_type_stands_for_it() -> None:
    """`architectures` decides where its class belongs to one type, and what it lacks is missing."""
    config: Config = {"architectures": ["GPTNeoXForCausalLM"], "hidden_size": 64,
                      "num_attention_heads": 4, "num_hidden_layers": 2}  # fmt: skip
    reading = read_config(config)
    assert kept_bytes(reading, 1) == 2 * 2 * 64 * 2
    assert [note.code for note in reading.assumptions] == ["type_by_class"]


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
          "num_hidden_layers": 2}, Missing, ("num_key_value_heads",)),
        ({"architectures": ["FalconForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
          "num_hidden_layers": 2}, Missing, ("multi_query",)),
        ({"architectures": ["Gemma2ForCausalLM"], **TEXT, "head_dim": 16, "sliding_window": 8},
         Missing, ("layer_types",)),
        ({"architectures": ["LlamaForCausalLM"], **TEXT, "sliding_window": 8}, Missing,
         ("layer_types",)),
        ({"architectures": ["GPTNeoForCausalLM"], "hidden_size": 64, "num_heads": 4,
          "num_layers": 2}, Missing, ("attention_types",)),
        ({"architectures": ["MadeUpForCausalLM"], **TEXT}, Unknown, ("architectures",)),
        ({"architectures": ["A", "B"], "hidden_size": 64}, Missing, ("model_type",)),
        ({"architectures": [7], "hidden_size": 64}, Missing, ("model_type",)),
        ({"architectures": ["HrmTextForCausalLM"], "num_hidden_layers": 2}, Missing,
         ("H_cycles",)),
        ({"architectures": ["DbrxForCausalLM"], "d_model": 64, "n_heads": 4, "n_layers": 2},
         Missing, ("attn_config.kv_n_heads",)),
        ({"architectures": ["Gemma4ForCausalLM"], **TEXT, "head_dim": 16, "sliding_window": 8,
          "layer_types": ["full_attention"] * 3, "num_kv_shared_layers": 0}, Missing,
         ("global_head_dim",)),
    ],
)  # fmt: skip
def test_a_class_alone_leaves_no_default(
    config: Config, error: type[DomainError], field: tuple[object, ...]
) -> None:
    """A table that names only a class may leave out anything: no class default fills it in."""
    with pytest.raises(error) as refused:
        read_config(config)
    assert refused.value.field == field


def test_an_unknown_type_of_a_known_class_is_read_under_the_class() -> None:
    """A type that nobody knows is read where its class is one type's, unless code comes with it."""
    config: Config = {"model_type": "renamed", "architectures": ["LlamaForCausalLM"], **TEXT}
    assert states(config) == PLAIN
    assert [note.code for note in read_config(config).assumptions] == ["type_by_class"]
    for change in ({"auto_map": {"AutoConfig": "x.Y"}}, {"architectures": ["MadeUpForCausalLM"]}):
        with pytest.raises(Unknown) as refused:
            read_config({**config, **change})
        assert refused.value.field == ("model_type",)


def test_every_class_names_a_known_type_or_a_wrapper() -> None:
    """The list of classes is data of strings; a class stands in it once."""
    pairs = json.loads(_ARCHITECTURES_FILE.read_text(), object_pairs_hook=list)
    assert len(pairs) == len(_architectures()) > 300
    assert all(isinstance(value, str) for _, value in pairs)


# Tables of sizes


@pytest.mark.parametrize(
    ("config", "total"),
    [
        # litgpt
        ({"name": "x", "n_layer": 2, "n_head": 4, "n_query_groups": 2, "n_embd": 64,
          "head_size": 32, "block_size": 99}, 2 * 2 * 64 * 100),
        ({"n_layer": 2, "n_head": 4, "n_query_groups": 2, "n_embd": 64, "head_size": 32,
          "sliding_window_size": 8, "sliding_window_indices": [1, 0]}, 2 * 64 * (7 + 100)),
        # Megatron and NeMo
        ({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": None,
          "kv_channels": None, "seq_length": 9}, 2 * 2 * 64 * 100),
        ({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 2,
          "kv_channels": 8, "window_size": None}, 2 * 2 * 16 * 100),
        ({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "kv_channels": 8,
          "kv_lora_rank": 24, "qk_pos_emb_head_dim": 8, "v_head_dim": 9}, 2 * 32 * 100),
        # GenZ
        ({"num_decoder_layers": 2, "hidden_size": 64, "num_attention_heads": 4}, 2 * 2 * 64 * 100),
        # llm-calc
        ({"layers": 2, "hiddenDim": 64, "numHeads": 4, "numKvHeads": 2, "headDim": 16,
          "attention": {"type": "full"}, "maxContext": 9}, 2 * 2 * 32 * 100),
        ({"layers": 2, "hiddenDim": 64, "numHeads": 4, "numKvHeads": 4, "headDim": 16,
          "attention": {"type": "mla", "kvLoraRank": 24, "qkRopeHeadDim": 8}}, 2 * 32 * 100),
        # Grok
        ({"num_layers": 2, "emb_size": 64, "num_q_heads": 4, "num_kv_heads": 2, "key_size": 16},
         2 * 2 * 32 * 100),
        # config.json fields without a model type
        ({"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16}, 2 * 2 * 32 * 100),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "hidden_size": 64}, 2 * 2 * 32 * 100),
        ({"num_hidden_layers": 2, "kv_lora_rank": 24, "qk_rope_head_dim": 8,
          "num_key_value_heads": 64}, 2 * 32 * 100),
        ({"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
          "sliding_attention_layers": 3, "full_attention_layers": 1}, 2 * 32 * (3 * 7 + 100)),
        ({"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
          "sliding_attention_layers": 3, "full_attention_layers": 1,
          "sliding_window_pattern": 2}, 2 * 32 * (2 * 7 + 200)),
        ({"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "index_head_dim": 8,
          "full_attention_layers": 1, "sparse_attention_layers": 2, "sparse_attention": True},
         (3 * 64 + 2 * 8) * 100),
        ({"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 16, "v_head_dim": 8,
          "num_attention_heads": 4, "full_attention_layers": 1, "sliding_attention_layers": 2,
          "sliding_window": 8, "swa_num_key_value_heads": 4, "swa_head_dim": 16,
          "swa_v_head_dim": 8}, 48 * 100 + 2 * 96 * 7),
    ],
)  # fmt: skip
def test_tables_of_other_projects_are_read_aloud(config: Config, total: int) -> None:
    """Sizes in another project's names are read, with the assumption that they are all there is."""
    reading = read_config(config)
    assert kept_bytes(reading, 100, "fp8") == total
    assert "table" in {note.code for note in reading.assumptions}
    assert all(note.text for note in reading.assumptions)


def test_tables_of_hybrids_take_the_rule_that_their_fields_name() -> None:
    """Mamba, Jamba and gated-delta fields in a table are read by the rule of those types."""
    genz: Config = {"num_decoder_layers": 4, "hidden_size": 64, "num_attention_heads": 1,
                    "num_key_value_heads": 1, "intermediate_size": 0, "mamba_d_state": 16,
                    "mamba_dt_rank": 4, "mamba_expand": 2, "mamba_d_conv": 4}  # fmt: skip
    assert kinds(genz) == "RRRR"
    assert kept_bytes(read_config(genz), 9) == 4 * (128 * 3 * 2 + 128 * 16 * 4)
    jamba = {**genz, "num_attention_heads": 4, "attn_layer_offset": 2, "attn_layer_period": 4}
    assert kinds(jamba) == "RRFR"
    delta: Config = {"num_hidden_layers": 4, "full_attention_layers": 1, "head_dim": 16,
                     "linear_attention_layers": 3, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "linear_conv_kernel_dim": 4,
                     "linear_key_head_dim": 8, "linear_num_key_heads": 2,
                     "linear_num_value_heads": 4, "linear_value_head_dim": 8}  # fmt: skip
    assert sorted(kinds(delta)) == ["F", "R", "R", "R"]
    with pytest.raises(Missing) as refused:
        read_config({**delta, "linear_attention_layers": 10**9})
    assert refused.value.field == ("full_attention_layers",)


# The hybrid NVIDIA-Nemotron-Nano-9B-v2 cut to two layers, as Megatron-Core's tables spell it.
_HYBRID = {
    "num_layers": 2, "hidden_size": 4480, "num_attention_heads": 40, "num_query_groups": 8,
    "kv_channels": 128, "hybrid_override_pattern": "M*", "mamba_num_heads": 128,
    "mamba_head_dim": 80, "mamba_state_dim": 128, "mamba_num_groups": 8,
}  # fmt: skip


def test_a_hybrid_table_with_its_convolution_is_read() -> None:
    """With the width that the table lacks: 8 KV heads x 128, and 3 or 4 columns of 12,288."""
    recurrent, attention = read_config({**_HYBRID, "conv_kernel": 4}).state.layers
    (full,) = attention.states
    assert full == FullAttention(kv_heads=8, k_dim=128, v_dim=128)
    (state,) = recurrent.states
    assert isinstance(state, Recurrent)
    assert 12_288 in state.tensors[0].shape
    assert state.tensors[1].shape == (128, 80, 128)


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, Missing,
         ("num_key_value_heads",)),
        ({"num_hidden_layers": 2, "num_key_value_heads": 4}, Missing, ("head_dim",)),
        ({"model_type": "(table)"}, Missing, ("model_type",)),
        ({"model_type": "table", "num_hidden_layers": 2}, Unknown, ("model_type",)),
        ({"num_decoder_layers": 2, "head_dim": 64}, Missing, ("num_attention_heads",)),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 3,
          "head_dim": 8}, Conflict, ("num_key_value_heads",)),
        ({"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64},
         Unsupported, ("sliding_window",)),
        ({"num_layers": 2, "num_attention_heads": 2, "kv_channels": 8, "window_size": 64},
         Unsupported, ("window_size",)),
        ({"num_layers": 2, "num_attention_heads": 2, "kv_channels": 8,
          "hybrid_override_pattern": "M*"}, Missing, ("n_groups",)),
        (_HYBRID, Missing, ("conv_kernel",)),
        ({"layers": 2, "numKvHeads": 2, "headDim": 8, "attention": {"type": "hybrid"}},
         Unsupported, ("attention", "type")),
        ({"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8,
          "sliding_attention_layers": 3, "full_attention_layers": 2}, Conflict,
         ("sliding_attention_layers",)),
        ({"num_hidden_layers": 3, "index_head_dim": 8, "sparse_attention_layers": 2}, Missing,
         ("full_attention_layers",)),
        ({"num_hidden_layers": 3, "index_head_dim": 8, "sparse_attention_layers": 2,
          "full_attention_layers": 10**9}, Conflict, ("full_attention_layers",)),
        ({"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, "ssm_state_size": 64},
         Unsupported, ("ssm_state_size",)),
    ],
)  # fmt: skip
def test_tables_that_do_not_give_enough(
    config: Config, error: type[DomainError], field: tuple[object, ...]
) -> None:
    """A window without its layers, heads without a width: the table is refused by the field."""
    with pytest.raises(error) as refused:
        read_config(config)
    assert refused.value.field == field


# The registry


def test_each_type_belongs_to_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two families that claim one type are a mistake found on import."""
    from app.readers.hf_config import plain, remote  # noqa: PLC0415 - only this test looks inside

    assert len(FAMILIES) > 150
    assert all(family.source and family.name for family in FAMILIES.values())
    monkeypatch.setattr(remote, "FAMILIES", plain.FAMILIES)
    with pytest.raises(RuntimeError, match="registered twice"):
        _by_type()


def test_widths_and_windows_of_tables_are_what_they_say() -> None:
    """The states of a table are those of the sizes in it."""
    table: Config = {"num_layers": 2, "num_attention_heads": 4, "num_query_groups": 2,
                     "kv_channels": 8}  # fmt: skip
    assert states(table) == [(FullAttention(kv_heads=2, k_dim=8, v_dim=8),)] * 2
    latent: Config = {"num_hidden_layers": 1, "kv_lora_rank": 24, "qk_rope_head_dim": 8}
    assert states(latent) == [(LatentAttention(latent_dim=24, rope_dim=8),)]
    marks: Config = {"n_layer": 2, "n_head": 4, "n_query_groups": 2, "head_size": 8,
                     "sliding_window_size": 64, "sliding_window_indices": [0, 1]}  # fmt: skip
    assert states(marks)[1] == (SlidingWindow(kv_heads=2, k_dim=8, v_dim=8, window=64),)
    assert kinds(marks) == "FS"


@pytest.mark.parametrize(
    "name",
    ["sliding_window", "swa_head_dim", "attention_chunk_size", "ssm_state_size", "kv_lora_rank",
     "linear_attn_config", "sparse_attention_config", "index_head_dim", "hybrid_layer_pattern",
     "num_kv_shared_layers", "cla_share_factor", "block_configs", "compress_ratios", "v_head_dim",
     "conv_kernel", "per_layer_config", "cross_attention_layers", "loop_num_passes"],
)  # fmt: skip
def test_names_that_speak_of_special_attention(name: str) -> None:
    """Such a field is never passed over when nobody read it."""
    assert is_special(name)


@pytest.mark.parametrize(
    "name",
    ["image_token_index", "decoder_sparse_step", "q_lora_rank", "attn_logit_softcapping",
     "sparsity_config", "moe_layer_freq", "rope_theta", "initializer_range", "tie_word_embeddings",
     "chunk_size_feed_forward", "add_swa_attention_sink_bias", "vision_feature_layer"],
)  # fmt: skip
def test_names_that_only_sound_like_it(name: str) -> None:
    """Tokens' indexes, experts, norms and the like change nothing of what a layer keeps."""
    assert not is_special(name)


def test_base_is_what_the_other_tests_take_it_for() -> None:
    """A plain config of the shared base is Llama-3.1-8B's width."""
    config = {**BASE, "model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 8}
    assert states(config) == [(FullAttention(kv_heads=8, k_dim=128, v_dim=128),)]
