"""The plan beyond the measured cases: settings, growth, storage, overhead, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    OutOfRange,
    Unknown,
    Unsupported,
    WrongType,
)
from app.engines.transformers import plan

DATA = Path(__file__).parents[2] / "data"
with gzip.open(DATA / "transformers_caches.json.gz") as _file:
    CONFIGS: list[dict[str, Any]] = json.load(_file)["configs"]

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 8}
RUN = {"batch": 2, "prompt_tokens": 13, "decode_steps": 3, "dtype": "bfloat16"}


def test_llama_by_hand() -> None:
    """2 rows × 16 tokens × 32 layers × 8 heads × 128 × 2 tensors × 2 B = 4,194,304 B."""
    answer = plan(LLAMA, RUN)
    assert answer.cache_bytes == 4_194_304
    assert answer.formula == "32 × 131072 B = 4194304 B"
    tensor = answer.layers[0].tensors[0]
    assert (tensor.name, tensor.role, tensor.shape, tensor.dtype, tensor.bytes) == (
        "keys",
        "key",
        (2, 8, 16, 128),
        "bfloat16",
        65_536,
    )
    assert answer.overhead.needed_bytes == answer.overhead.kept_bytes == 4_194_304
    assert answer.overhead.layers == ()
    assert {note.code for note in answer.not_counted} >= {"weights", "activations"}


def test_growing_by_one_token_copies_keys_then_values() -> None:
    """With 16 tokens held, the peak is 17 rows of values and one of keys beside the old cache."""
    row = 2 * 8 * 128 * 2
    assert plan(LLAMA, RUN).growth_peak_bytes == row * (17 + 1)
    assert plan(LLAMA, {**RUN, "cache": "static", "max_cache_len": 32}).growth_peak_bytes == 0


def test_a_window_holds_the_whole_prompt_until_it_decodes() -> None:
    """A layer of window 8 keeps 7 positions, yet 1,000 stay allocated after a prompt of 1,000."""
    answer = plan({**MISTRAL, "num_hidden_layers": 1}, {**RUN, "prompt_tokens": 1000})
    row = 2 * 8 * 128 * 2 * 2
    assert answer.cache_bytes == 7 * row
    assert answer.prefill_bytes == 7 * row
    assert answer.prefill_storage_bytes == 1000 * row
    assert answer.storage_bytes == 8 * row
    assert answer.growth_peak_bytes == 8 * row


def test_a_static_window_is_allocated_to_the_window() -> None:
    """StaticCache allocates min(window, length) positions, and may be smaller than its run."""
    short = plan(MISTRAL, {**RUN, "cache": "static", "max_cache_len": 7})
    assert short.layers[0].tensors[0].shape == (2, 8, 7, 128)
    assert plan(MISTRAL, {**RUN, "cache": "static"}).layers[0].tensors[0].shape == (2, 8, 8, 128)
    assert {r.code for layer in short.overhead.layers for r in layer.reasons} <= {"allocated_whole"}


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
          "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True},
         "broadcast_heads"),
        ({"model_type": "qwen3_next", "hidden_size": 64, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2}, "whole_kernel"),
        ({"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4,
          "attention_types": [[["global", "local"], 1]], "window_size": 8}, "other_positions"),
    ],
)  # fmt: skip
def test_what_is_kept_beyond_the_models_need(config: dict[str, Any], code: str) -> None:
    """The answer says which layers keep more than the model needs, and why."""
    answer = plan(config, {**RUN, "prompt_tokens": 40})
    assert answer.overhead.needed_bytes is not None
    assert answer.overhead.needed_bytes < answer.overhead.kept_bytes == answer.cache_bytes
    assert {r.code for layer in answer.overhead.layers for r in layer.reasons} == {code}


def test_generate_returns_what_passes_leave() -> None:
    """generate() changes nothing for most models, nor do states without a column too many."""
    assert plan(LLAMA, {**RUN, "generate": True}).cache_bytes == 4_194_304
    zaya = plan({"model_type": "zaya"}, {**RUN, "cache": "static", "max_cache_len": 20})
    assert {r.code for layer in zaya.overhead.layers for r in layer.reasons} == {"allocated_whole"}


def test_a_model_that_the_reader_refuses_still_has_a_cache() -> None:
    """Where the need is not known, the cache is still given, and the reason with it."""
    config = {"model_type": "reformer", "hidden_size": 64, "num_attention_heads": 4,
              "attn_layers": ["local", "lsh"]}  # fmt: skip
    answer = plan(config, {**RUN, "prompt_tokens": 4})
    assert answer.overhead.needed_bytes is None
    assert answer.overhead.unknown is not None
    assert answer.overhead.unknown.code == "not_read"


def test_dtype_comes_from_the_settings_then_the_file_then_torch() -> None:
    """A config's dtype decides where none is asked for; without any, float32 is assumed aloud."""
    run = {key: value for key, value in RUN.items() if key != "dtype"}
    assert plan({**LLAMA, "torch_dtype": "float16"}, run).run.dtype == "float16"
    assert plan({**LLAMA, "dtype": "bfloat16"}, run).run.dtype == "bfloat16"
    plain = plan({**LLAMA, "dtype": "float8_e4m3fn"}, run)
    assert plain.run.dtype == "float32"
    assert "dtype_float32" in {note.code for note in plain.assumptions}


WHISPER = {"model_type": "whisper", "d_model": 64, "decoder_layers": 2,
           "decoder_attention_heads": 4, "encoder_attention_heads": 4, "encoder_layers": 2,
           "max_source_positions": 1500}  # fmt: skip
BART = {"model_type": "bart", "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4,
        "encoder_attention_heads": 4, "encoder_layers": 2,
        "max_position_embeddings": 99}  # fmt: skip
MLLAMA = {"model_type": "mllama", "text_config": {
    "model_type": "mllama_text_model", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "cross_attention_layers": [1]}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "given_tokens", "encoder_tokens"),
    [
        (WHISPER, 3, 1500),
        (WHISPER, None, 1500),
        ({**WHISPER, "architectures": ["WhisperForCausalLM"]}, None, None),
        (BART, 11, 11),
        (BART, None, None),
        ({**BART, "architectures": ["BartForConditionalGeneration"]}, None, 99),
        ({"model_type": "encoder-decoder", "encoder": {"max_position_embeddings": 512},
          "decoder": {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1,
                      "num_attention_heads": 4}}, None, 512),
        (MLLAMA, None, None),
        (MLLAMA, 10, 10),
        (LLAMA, 10, None),
    ],
)  # fmt: skip
def test_how_long_the_encoder_is(
    config: dict[str, Any], given_tokens: int | None, encoder_tokens: int | None
) -> None:
    """Whisper's is fixed; others take the setting, the longest of the file, or run alone."""
    answer = plan(config, {**RUN, "encoder_tokens": given_tokens})
    assert answer.run.encoder_tokens == encoder_tokens


@pytest.mark.parametrize(
    ("config", "tensor"),
    [
        ({"model_type": "dia", "decoder_config": {"cross_num_key_value_heads": 3,
                                                  "cross_head_dim": 5}}, (2, 3, 7, 5)),
        ({"model_type": "moonshine", "hidden_size": 64, "decoder_num_hidden_layers": 1,
          "decoder_num_attention_heads": 4, "decoder_num_key_value_heads": 2}, (2, 2, 7, 16)),
        ({"model_type": "canary"}, (2, 8, 7, 128)),
    ],
)  # fmt: skip
def test_cross_attention_has_its_own_tensors(
    config: dict[str, Any], tensor: tuple[int, ...]
) -> None:
    """The encoder's keys stand in a list of their own."""
    answer = plan(config, {**RUN, "encoder_tokens": 7})
    cross = [layer for layer in answer.layers if layer.kind == "cross_attention"]
    assert len(cross) == len(answer.layers) // 2
    assert cross[0].tensors[0].shape == tensor


def test_a_wrapper_without_its_part_takes_the_parts_defaults() -> None:
    """LLaVA without a text_config is a default Llama, and the answer says so."""
    answer = plan({"model_type": "llava"}, RUN)
    assert len(answer.layers) == 32
    assert [note.code for note in answer.assumptions if note.code == "part_default"]


def test_a_wrapper_may_spread_its_text_over_the_top_level() -> None:
    """Older Qwen2-VL and UnlimitedOCR files nest nothing, or under another name."""
    flat = {"model_type": "qwen2_vl", "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    assert plan(flat, RUN).layers[0].tensors[0].shape == (2, 2, 16, 16)
    other = {"model_type": "unlimited_ocr", "sliding_window": 2,
             "language_config": {"hidden_size": 64, "num_hidden_layers": 3,
                                 "num_attention_heads": 4, "num_key_value_heads": 2}}  # fmt: skip
    assert plan(other, RUN).layers[0].tensors[0].shape == (2, 2, 1, 16)


def test_ngram_layers_of_qwen4() -> None:
    """A layer in `ple_layer_ids` (from 1) holds 9 columns of 4 streams and two tokens' numbers."""
    config = {"model_type": "qwen4_exp_text", "num_hidden_layers": 4, "hidden_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "indexer_head_dim": 8,
              "hc_count": 4, "ple_layer_ids": [2], "ngram_size": 3}  # fmt: skip
    names = [(t.name, t.shape, t.dtype) for t in plan(config, RUN).layers[1].tensors]
    assert ("conv_states[1]", (2, 256, 9), "bfloat16") in names
    assert ("conv_states[2]", (2, 2), "int64") in names


REFUSED = [
    ({"settings": {"surprise": 1}}, Unknown, "surprise"),
    ({"settings": {"cache": "paged"}}, Unknown, "cache"),
    ({"settings": {"batch": True}}, WrongType, "batch"),
    ({"settings": {"batch": 0}}, OutOfRange, "batch"),
    ({"settings": {"prompt_tokens": "13"}}, WrongType, "prompt_tokens"),
    ({"settings": {"decode_steps": -1}}, OutOfRange, "decode_steps"),
    ({"settings": {"dtype": "fp17"}}, Unknown, "dtype"),
    ({"settings": {"dtype": "fp8"}}, Unsupported, "dtype"),
    ({"settings": {"max_cache_len": 9}}, Conflict, "max_cache_len"),
    ({"settings": {"cache": "static", "max_cache_len": 9}}, Conflict, "max_cache_len"),
    ({"settings": {"version": "3.0"}}, Unsupported, "version"),
    ({"settings": {"generate": 1}}, WrongType, "generate"),
    ({"settings": {"nbits": 4}}, Conflict, "nbits"),
    ({"settings": {"cache": "quantized", "backend": "gguf"}}, Unknown, "backend"),
    ({"settings": {"cache": "quantized", "nbits": 3}}, Unsupported, "nbits"),
    ({"settings": {"cache": "quantized", "axis_key": 1}}, Unsupported, "axis_key"),
    ({"settings": {"cache": "quantized", "q_group_size": 999}}, Conflict, "q_group_size"),
    ({"config": MISTRAL, "settings": {"cache": "quantized"}}, Unsupported, "cache"),
    ({"config": {}}, Missing, "model_type"),
    ({"config": {"model_type": 3}}, WrongType, "model_type"),
    ({"config": {"model_type": "made_up"}}, Unsupported, "model_type"),
    ({"config": {"model_type": "llava", "text_config": 3}}, WrongType, "text_config"),
    ({"config": {"model_type": "llama", "text_config": {}}}, Missing, "text_config"),
    ({"config": {**LLAMA, "decoder": {"model_type": 7}}}, Missing, "decoder"),
    ({"config": {**LLAMA, "num_attention_heads": "32"}}, WrongType, "num_attention_heads"),
    ({"config": {**LLAMA, "num_attention_heads": 5000}}, Conflict, "num_attention_heads"),
    ({"config": {**LLAMA, "layer_types": ["full_attention"]}}, Conflict, "layer_types"),
    ({"config": {**LLAMA, "layer_types": ["magic"] * 32}}, Unsupported, "layer_types"),
    ({"config": {**LLAMA, "layer_types": ["sliding_attention"] * 32}}, Missing, "sliding_window"),
    ({"config": {**LLAMA, "per_layer_config": []}}, WrongType, "per_layer_config"),
    ({"config": {**LLAMA, "per_layer_config": {"x": {}}}}, WrongType, "per_layer_config"),
    ({"config": {**LLAMA, "per_layer_config": {"1": 3}}}, WrongType, "per_layer_config"),
    ({"config": {"model_type": "exaone4", "sliding_window": None}}, Unsupported, "layer_types"),
    ({"config": {"model_type": "deepseek_v4", "compress_ratios": [3]}}, Unsupported,
     "compress_ratios"),
    ({"config": {"model_type": "kimi_linear", "num_hidden_layers": 2, "linear_attn_config": {
        "kda_layers": [1], "full_attn_layers": []}}}, Missing, "linear_attn_config"),
    ({"config": {"model_type": "zamba2", "num_hidden_layers": 3}}, Conflict, "layers_block_type"),
    ({"config": {"model_type": "nemotron_h", "hybrid_override_pattern": "Q"}}, Unsupported,
     "hybrid_override_pattern"),
    ({"config": {"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 10_001}},
     OutOfRange, "layers_block_type"),
    ({"config": {"model_type": "nemotron_h", "layers_block_type": ["x"]}}, Unsupported,
     "layers_block_type"),
    ({"config": {"model_type": "hrm_text", "H_cycles": 5000, "num_hidden_layers": 5000}},
     OutOfRange, "H_cycles"),
    ({"config": {"model_type": "dory", "n_recurrent_loops": 9999}}, OutOfRange,
     "n_recurrent_layers"),
    ({"config": {"model_type": "inkling2_loop_text", "num_hidden_layers": 3}}, Conflict,
     "loop_num_passes"),
    ({"config": {"model_type": "glm_moe_dsa", "num_hidden_layers": 3,
                 "indexer_types": ["full"]}}, Conflict, "indexer_types"),
    ({"config": {"model_type": "mistral_large4_text", "num_hidden_layers": 3,
                 "kv_source_layers": [0]}}, Conflict, "kv_source_layers"),
    ({"config": {"model_type": "dots3_note_text", "swa_head_dim": 8}}, Conflict, "swa_head_dim"),
    ({"config": {"model_type": "dbrx", "attn_config": 3}}, WrongType, "attn_config"),
    ({"config": {"model_type": "t5", "d_model": 64, "d_kv": 16, "num_heads": 4,
                 "num_layers": 2}}, Missing, "encoder_tokens"),
    ({"config": {"model_type": "encoder-decoder", "decoder": {"model_type": "mamba"}},
      "settings": {"encoder_tokens": 3}}, Unsupported, "model_type"),
    ({"config": {"model_type": "falcon", "alibi": True}, "settings": {"cache": "static"}},
     Unsupported, "cache"),
    ({"config": {"model_type": "xlnet"}, "settings": {"cache": "static"}}, Unsupported, "cache"),
    ({"config": {"model_type": "reformer"}, "settings": {"cache": "static"}}, Unsupported,
     "cache"),
    ({"config": {"model_type": "reformer"}, "settings": {"decode_steps": 10**9}}, Unsupported,
     "decode_steps"),
    ({"config": {"model_type": "reformer"}, "settings": {"prompt_tokens": 1000}}, Unsupported,
     "prompt_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "error", "field"), REFUSED)
def test_what_cannot_be_answered_is_refused_by_field(
    asked: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """A wrong setting, a class that would not run, an open length: one error that names it."""
    with pytest.raises(error) as caught:
        plan(asked.get("config", LLAMA), {**RUN, **asked.get("settings", {})})
    assert caught.value.field[0] == field


@settings(max_examples=60, deadline=None)
@given(
    config=st.sampled_from(CONFIGS),
    prompt=st.integers(1, 60),
    steps=st.integers(0, 40),
    batch=st.integers(1, 4),
)
def test_cost_grows_with_tokens_and_batch(
    config: dict[str, Any], prompt: int, steps: int, batch: int
) -> None:
    """One more token never costs less in a growing layer, and rows cost alike.

    Only an open compression window may close, so models with one are left out.
    """
    if "deepseek_v4" in json.dumps(config.get("model_type")):
        return
    run = {"prompt_tokens": prompt, "dtype": "bfloat16", "encoder_tokens": 11}
    try:
        one = plan(config, {**run, "decode_steps": steps, "batch": batch})
        more = plan(config, {**run, "decode_steps": steps + 1, "batch": batch})
        single = plan(config, {**run, "decode_steps": steps, "batch": 1})
    except Unsupported:
        return
    assert one.cache_bytes <= more.cache_bytes
    assert one.cache_bytes <= one.storage_bytes
    if config["model_type"] not in ("xlstm", "reformer"):
        assert one.cache_bytes == batch * single.cache_bytes


RUBBISH = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers()),
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_configs_are_answered_or_refused(data: st.DataObject) -> None:
    """A real config with fields lost or replaced by rubbish gives an answer or one clear error."""
    config = dict(data.draw(st.sampled_from(CONFIGS)))
    target = config
    for name in ("text_config", "decoder", "encoder_config"):
        if isinstance(config.get(name), dict) and data.draw(st.booleans()):
            config[name] = target = dict(config[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(target)), max_size=3)):
        if data.draw(st.booleans()):
            target.pop(key, None)
        else:
            target[key] = data.draw(RUBBISH)
    try:
        answer = plan(config, {**RUN, "encoder_tokens": 11})
    except DomainError as caught:
        refused: DomainError | None = caught
    else:
        refused = None
        assert answer.cache_bytes >= 0
    assert refused is None or refused.field


def test_ten_thousand_layers_take_no_time() -> None:
    """Lists as long as a model may be are read once, not once a layer."""
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 10_000,
              "indexer_types": ["full", "shared"] * 5_000,
              "per_layer_config": {str(n): {"kv_lora_rank": 8} for n in range(10_000)}}  # fmt: skip
    assert len(plan(config, RUN).layers) == 10_000


@pytest.mark.parametrize(
    ("config", "tokens", "said"),
    [
        (LLAMA, 5, ["no_encoder"]),
        (LLAMA, None, []),
        (WHISPER, 3, ["audio_padded"]),
        (WHISPER, 1500, []),
        (BART, 11, []),
    ],
)
def test_an_encoder_length_that_changes_nothing_is_noted(
    config: dict[str, Any], tokens: int | None, said: list[str]
) -> None:
    """Without an encoder, or where its input is padded to one length, the setting has no effect."""
    answer = plan(config, {**RUN, "encoder_tokens": tokens})
    codes = [note.code for note in answer.assumptions]
    assert [code for code in codes if code in ("no_encoder", "audio_padded")] == said
