"""Which layers slide, by every spelling, and how wide the windows are."""

from __future__ import annotations

import pytest

from app.domain.errors import DomainError, Missing, OutOfRange, Unsupported, WrongType
from app.domain.state import ChunkedAttention, SlidingWindow
from app.readers.hf_config import read_config
from tests.readers.hf_states import BASE, kinds, states

Config = dict[str, object]
SLIDE, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("config", "layers", "expected"),
    [
        # A window and no list of layers: everywhere, for types that have no other rule.
        ({"model_type": "mistral"}, 4, "SSSS"),
        ({"model_type": "mistral", "sliding_window": None}, 4, "FFFF"),
        ({"model_type": "llama"}, 4, "SSSS"),
        ({"model_type": "llama", "use_sliding_window": False}, 4, "FFFF"),
        ({"model_type": "ministral"}, 4, "SSSS"),
        ({"model_type": "ministral", "sliding_window": None}, 4, "FFFF"),
        # layer_types decides wherever it stands.
        ({"model_type": "mistral", "layer_types": [FULL, SLIDE]}, 2, "FS"),
        ({"model_type": "llama", "layer_types": ["attention", SLIDE]}, 2, "FS"),
        ({"model_type": "gemma3_text", "layer_types": [FULL, SLIDE],
          "sliding_window_pattern": 9}, 2, "FS"),
        # max_window_layers, read three ways.
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2}, 4, "FFSS"),
        ({"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 9}, 4, "FFFF"),
        ({"model_type": "qwen2", "max_window_layers": 2}, 4, "FFFF"),
        ({"model_type": "qwen2", "use_sliding_window": None, "max_window_layers": 2}, 4, "FFFF"),
        ({"model_type": "dots1", "max_window_layers": 3}, 4, "FFFS"),
        ({"model_type": "qwen2_moe", "use_sliding_window": True, "max_window_layers": 3}, 5,
         "SFSFF"),
        ({"model_type": "qwen2_moe", "max_window_layers": 3}, 5, "FFFFF"),
        ({"model_type": "qwen3_moe", "use_sliding_window": True, "max_window_layers": 3}, 4,
         "SSSS"),
        ({"model_type": "qwen3_moe", "max_window_layers": 3}, 4, "FFFF"),
        ({"model_type": "mimo", "max_window_layers": 3}, 4, "FFFF"),
        # SmolLM3: where no rotary position is.
        ({"model_type": "smollm3", "use_sliding_window": True}, 5, "FFFSF"),
        ({"model_type": "smollm3", "use_sliding_window": True,
          "no_rope_layers": [0, 1, 1, 0]}, 4, "SFFS"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 2}, 4, "FFFF"),
        # Periods, by the type or by the file.
        ({"model_type": "gemma2"}, 5, "SFSFS"),
        ({"model_type": "vaultgemma"}, 4, "SFSF"),
        ({"model_type": "gpt_oss"}, 4, "SFSF"),
        ({"model_type": "gemma3_text"}, 7, "SSSSSFS"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, 7, "SSFSSFS"),
        ({"model_type": "gemma3_text", "_sliding_window_pattern": 2}, 4, "SFSF"),
        ({"model_type": "cohere2"}, 5, "SSSFS"),
        ({"model_type": "cohere2", "sliding_window_pattern": 2}, 5, "SFSFS"),
        ({"model_type": "olmo3"}, 5, "SSSFS"),
        ({"model_type": "exaone4"}, 5, "SSSFS"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLG"}, 5, "SSFSS"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, 9, "SSSFSSSFS"),
        ({"model_type": "exaone4", "sliding_window": None, "sliding_window_pattern": 4}, 3, "FFF"),
        ({"model_type": "exaone_moe", "sliding_window_pattern": 1}, 3, "FFF"),
        ({"model_type": "afmoe"}, 5, "SSSFS"),
        ({"model_type": "afmoe", "global_attn_every_n_layers": 2}, 5, "SFSFS"),
        ({"model_type": "kolibri1"}, 6, "SSSSFS"),
        ({"model_type": "beam"}, 8, "SSSSSFSF"),
        ({"model_type": "granite_swa"}, 6, "FSSSFS"),
        ({"model_type": "granitemoe_swa"}, 6, "FSSSFS"),
        ({"model_type": "cwm"}, 6, "FSSSFS"),
        ({"model_type": "muse_glimmer_text"}, 6, "SFSSSF"),
        ({"model_type": "muse_spark_text"}, 5, "FSSSF"),
        ({"model_type": "flint"}, 8, "FFSSSFSF"),
        ({"model_type": "laguna"}, 3, "FFF"),
        ({"model_type": "cohere_compass_text"}, 3, "FFF"),
        ({"model_type": "modernbert-decoder"}, 5, "FSSFS"),
        ({"model_type": "modernbert-decoder", "global_attn_every_n_layers": 2}, 5, "FSFSF"),
        ({"model_type": "cohere2_moe"}, 5, "SSSFS"),
        ({"model_type": "cohere2_moe", "first_k_dense_replace": 2,
          "prefix_dense_sliding_window_pattern": 1, "sliding_window_pattern": 3}, 5, "FFSSF"),
        ({"model_type": "cohere2_moe", "first_k_dense_replace": 9}, 3, "FFF"),
        # Chunks.
        ({"model_type": "llama4_text"}, 5, "CCCFC"),
        ({"model_type": "llama4_text", "no_rope_layers": []}, 4, "CCCF"),
        ({"model_type": "llama4_text", "no_rope_layers": [0, 1, 1]}, 3, "FCC"),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, 3, "FFF"),
        # Types of their own.
        ({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 2]],
          "window_size": 8}, 4, "FSFS"),
        ({"model_type": "gpt_neo", "attention_layers": ["local", "global"], "window_size": 8}, 2,
         "SF"),
        ({"model_type": "gpt_neo"}, 4, "FSFS"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 2]]}, 2, "FF"),
    ],
)  # fmt: skip
def test_which_layers_slide(config: Config, layers: int, expected: str) -> None:
    """Each spelling, and each type's rule where the file has none, marks the layers that slide."""
    whole = {**BASE, "num_key_value_heads": 8, "num_hidden_layers": layers, "sliding_window": 64,
             "window_size": 256} | config  # fmt: skip
    if config["model_type"] != "gpt_neo":
        del whole["window_size"]
    else:
        del whole["sliding_window"]
    assert kinds(whole) == expected


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "gemma2", "sliding_window_size": 512}, 512),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 512),
        ({"model_type": "gemma3_text", "sliding_window": 512,
          "use_bidirectional_attention": False}, 512),
        ({"model_type": "gemma3_text", "sliding_window": 512,
          "use_bidirectional_attention": True}, 257),
        ({"model_type": "gemma4_text", "sliding_window": 512,
          "use_bidirectional_attention": "vision"}, 512),
        ({"model_type": "gemma4_text", "sliding_window": 512,
          "use_bidirectional_attention": "all"}, 257),
        ({"model_type": "modernbert-decoder", "local_attention": 128,
          "layer_types": [SLIDE, FULL]}, 64),
        ({"model_type": "modernbert-decoder", "local_attention": 128, "sliding_window": 32,
          "layer_types": [SLIDE, FULL]}, 32),
        ({"model_type": "mimo_v2_flash", "sliding_window_size": 128, "sliding_window": 128,
          "hybrid_layer_pattern": [1, 0]}, 129),
        ({"model_type": "mimo_v2_flash", "sliding_window": 128, "hybrid_layer_pattern": [1, 0]},
         128),
    ],
)  # fmt: skip
def test_how_wide_a_window_is(config: Config, window: int) -> None:
    """A window is what the file or the class says; both sides of a bidirectional one share it."""
    first = states({**BASE, "num_hidden_layers": 2, "num_key_value_heads": 8, **config})[0][0]
    assert isinstance(first, SlidingWindow)
    assert first.window == window


def test_chunks_keep_their_size() -> None:
    """Llama 4 keeps what came since the last boundary of `attention_chunk_size`."""
    config: Config = {**BASE, "model_type": "llama4_text", "num_hidden_layers": 1,
                      "attention_chunk_size": 4096, "head_dim": 128}  # fmt: skip
    assert states(config)[0] == (ChunkedAttention(kv_heads=8, k_dim=128, v_dim=128, chunk=4096),)


@pytest.mark.parametrize(
    ("config", "codes"),
    [
        ({"model_type": "gemma3_text"}, {"layer_pattern"}),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 6}, set()),
        ({"model_type": "granite_swa"}, {"layer_pattern"}),
        ({"model_type": "muse_spark_text"}, {"layer_pattern"}),
        ({"model_type": "laguna"}, {"layer_pattern"}),
        ({"model_type": "mimo_v2_flash", "v_head_dim": 64, "swa_num_key_value_heads": 4},
         {"layer_pattern"}),
        ({"model_type": "llama"}, {"window_everywhere"}),
        ({"model_type": "mistral"}, set()),
        ({"model_type": "mistral", "layer_types": [FULL, SLIDE]}, set()),
    ],
)  # fmt: skip
def test_rules_that_the_file_does_not_state_are_assumed(config: Config, codes: set[str]) -> None:
    """A pattern that the type decides and the file does not is returned with the answer."""
    whole = {**BASE, "num_hidden_layers": 2, "num_key_value_heads": 8, "head_dim": 128,
             "sliding_window": 64} | config  # fmt: skip
    reading = read_config(whole)
    assert {note.code for note in reading.assumptions} == codes
    assert all(note.text for note in reading.assumptions)


@pytest.mark.parametrize(
    ("config", "error", "field"),
    [
        ({"model_type": "gemma3_text", "sliding_window": None}, Missing, ("sliding_window",)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, OutOfRange,
         ("sliding_window_pattern",)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2.5}, WrongType,
         ("sliding_window_pattern",)),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLX"}, Unsupported,
         ("sliding_window_pattern",)),
        ({"model_type": "llama", "attention_chunk_size": 8192}, Unsupported,
         ("attention_chunk_size",)),
        ({"model_type": "llama", "sliding_window": None, "attention_chunk_size": 8}, Unsupported,
         ("attention_chunk_size",)),
        ({"model_type": "exaone4", "sliding_window_pattern": ""}, Unsupported,
         ("sliding_window_pattern",)),
        ({"model_type": "mistral", "sliding_window": 0}, OutOfRange, ("sliding_window",)),
        ({"model_type": "mistral", "sliding_window": "4096"}, WrongType, ("sliding_window",)),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}, OutOfRange,
         ("max_window_layers",)),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, DomainError, ("no_rope_layers",)),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 2]}, OutOfRange,
         ("no_rope_layers", 1)),
        ({"model_type": "llama4_text", "layer_types": ["chunked_attention"] * 2,
          "attention_chunk_size": None}, Missing, ("attention_chunk_size",)),
        ({"model_type": "gpt_neo", "window_size": None}, Missing, ("window_size",)),
        ({"model_type": "gpt_neo", "attention_types": [[["global"] * 9999, 10**4]]}, Unsupported,
         ("attention_types",)),
    ],
)  # fmt: skip
def test_windows_that_say_too_little_are_refused(
    config: Config, error: type[DomainError], field: tuple[object, ...]
) -> None:
    """A sliding layer without a window, or a pattern that is none, is refused by its field."""
    whole = {**BASE, "num_hidden_layers": 2, "num_key_value_heads": 8, "sliding_window": 64}
    if config["model_type"] == "gpt_neo":
        del whole["sliding_window"]
    with pytest.raises(error) as refused:
        read_config({**whole, **config})
    assert refused.value.field == field
