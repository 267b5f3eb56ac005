"""Decoders with an encoder: their own positions grow, the encoder's are kept once."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import DomainError, Missing, Unsupported
from app.domain.state import CrossAttention
from app.readers.hf_config import read_config

WHISPER = {
    "model_type": "whisper", "d_model": 1280, "decoder_layers": 4, "decoder_attention_heads": 20,
    "encoder_layers": 32, "encoder_attention_heads": 20, "max_source_positions": 1500,
}  # fmt: skip
BART = {"model_type": "bart", "d_model": 1024, "decoder_layers": 12, "decoder_attention_heads": 16,
        "max_position_embeddings": 1024}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6}
MLLAMA = {
    "model_type": "mllama",
    "text_config": {"model_type": "mllama_text_model", "hidden_size": 4096,
                    "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8,
                    "cross_attention_layers": [3]},
    "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
}  # fmt: skip
T5GEMMA = {
    "model_type": "t5gemma",
    "encoder": {"max_position_embeddings": 8192},
    "decoder": {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8},
}  # fmt: skip


def cross(config: dict[str, Any], tokens: int | None = None) -> CrossAttention:
    """Return the first cross-attention of a reading."""
    reading = read_config(config, encoder_tokens=tokens)
    return next(
        state
        for layer in reading.state.layers
        for state in layer.states
        if isinstance(state, CrossAttention)
    )


def test_whisper_always_has_its_1500_positions() -> None:
    """Whisper pads its audio: another length given is noted and not used."""
    reading = read_config(WHISPER, encoder_tokens=3)
    assert cross(WHISPER, 3) == CrossAttention(kv_heads=20, k_dim=64, v_dim=64, encoder_tokens=1500)
    assert [note.code for note in reading.notes] == ["encoder_fixed"]
    assert read_config(WHISPER).notes == ()
    assert [state.kind for state in next(iter(reading.state.layers)).states] == [
        "full_attention",
        "cross_attention",
    ]


@pytest.mark.parametrize(
    ("config", "tokens", "heads", "width", "length", "layers"),
    [
        (BART, None, 16, 64, 1024, 12),
        (BART, 77, 16, 64, 77, 12),
        (T5, 100, 8, 64, 100, 6),
        ({**T5, "num_decoder_layers": 2}, 100, 8, 64, 100, 2),
        ({**T5, "n_positions": 512}, None, 8, 64, 512, 6),
        ({"model_type": "prophetnet", "hidden_size": 64, "num_decoder_layers": 3,
          "num_decoder_attention_heads": 4}, 9, 4, 16, 9, 3),
        ({"model_type": "moonshine", "hidden_size": 64, "decoder_num_hidden_layers": 3,
          "decoder_num_attention_heads": 4, "decoder_num_key_value_heads": 2}, 9, 2, 16, 9, 3),
        ({"model_type": "moonshine", "hidden_size": 64, "decoder_num_hidden_layers": 3,
          "decoder_num_attention_heads": 4}, 9, 4, 16, 9, 3),
        ({"model_type": "speech_to_text", "d_model": 256, "decoder_layers": 6,
          "decoder_attention_heads": 4}, None, 4, 64, 6000, 6),
        ({"model_type": "encoder-decoder",
          "encoder": {"model_type": "bert", "max_position_embeddings": 512},
          "decoder": {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2,
                      "num_attention_heads": 4}}, None, 4, 16, 512, 2),
        ({"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"},
          "decoder": {"model_type": "trocr", "d_model": 64, "decoder_layers": 2,
                      "decoder_attention_heads": 4}}, 577, 4, 16, 577, 2),
        ({"model_type": "musicgen", "text_encoder": {"model_type": "t5", "n_positions": 512},
          "decoder": {"model_type": "musicgen_decoder", "hidden_size": 64,
                      "num_hidden_layers": 2, "num_attention_heads": 4}}, None, 4, 16, 512, 2),
        ({"model_type": "musicgen_decoder", "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4}, 5, 4, 16, 5, 2),
        ({"model_type": "dia", "encoder_config": {"max_position_embeddings": 1024},
          "decoder_config": {"hidden_size": 2048, "num_hidden_layers": 18,
                             "num_attention_heads": 16, "head_dim": 128}}, None, 16, 128, 1024, 18),
        (T5GEMMA, None, 2, 16, 8192, 4),
        ({**T5GEMMA, "encoder": {"text_config": {"max_position_embeddings": 4096}}},
         None, 2, 16, 4096, 4),
        ({**T5GEMMA, "model_type": "t5gemma2"}, 11, 2, 16, 11, 4),
    ],
)  # fmt: skip
def test_the_encoders_positions(
    config: dict[str, Any],
    tokens: int | None,
    heads: int,
    width: int,
    length: int,
    layers: int,
) -> None:
    """What the caller says, else the longest input that the config states, as an assumption."""
    assert cross(config, tokens) == CrossAttention(
        kv_heads=heads, k_dim=width, v_dim=width, encoder_tokens=length
    )
    reading = read_config(config, encoder_tokens=tokens)
    assert reading.state.num_layers == layers
    codes = {note.code for note in reading.assumptions}
    assert ("encoder_longest" in codes) == (tokens is None)


def test_t5gemma_windows_are_the_decoders_own() -> None:
    """Every second layer of T5Gemma is full; all of them attend to the encoder."""
    reading = read_config(T5GEMMA)
    assert [layer.states[0].kind for layer in reading.state.layers] == [
        "sliding_window",
        "full_attention",
    ] * 2


def test_mllama_crosses_in_layers_of_their_own() -> None:
    """Layer 3 keeps one image of four tiles, 4 · (40² + 1) positions, and none of the text."""
    reading = read_config(MLLAMA)
    kinds = [layer.states[0].kind for layer in reading.state.layers]
    assert kinds == ["full_attention"] * 3 + ["cross_attention", "full_attention"]
    assert cross(MLLAMA).encoder_tokens == 6404
    assert cross(MLLAMA, 10).encoder_tokens == 10
    assert "one_image" in {note.code for note in reading.assumptions}


def test_a_decoder_alone_keeps_no_encoder() -> None:
    """TrOCR's and MusicGen's decoders run alone unless the caller gives an encoder's length."""
    config = {"model_type": "trocr", "d_model": 64, "decoder_layers": 2,
              "decoder_attention_heads": 4}  # fmt: skip
    reading = read_config(config)
    assert [len(layer.states) for layer in reading.state.layers] == [1, 1]
    assert "decoder_alone" in {note.code for note in reading.assumptions}
    assert cross(config, 7).encoder_tokens == 7


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        (T5, Missing, "encoder_tokens"),
        ({**MLLAMA, "vision_config": None}, Missing, "encoder_tokens"),
        ({**MLLAMA, "text_config": {"hidden_size": 64, "num_hidden_layers": 2,
                                    "num_attention_heads": 4, "num_key_value_heads": 2}},
         Missing, "text_config"),
        ({"model_type": "encoder-decoder"}, Missing, "decoder"),
        ({"model_type": "encoder-decoder", "encoder": {"max_position_embeddings": 9},
          "decoder": {"model_type": "llama"}}, Unsupported, "decoder"),
    ],
)  # fmt: skip
def test_what_does_not_decide_is_refused(
    config: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """Without a length, a decoder or its cross-attention layers, the config is refused by field."""
    with pytest.raises(error) as caught:
        read_config(config)
    assert caught.value.field[0] == field
