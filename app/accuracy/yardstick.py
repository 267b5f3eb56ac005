"""Eight models at 131,072 tokens and 16 bits, worked out by hand from their configs.

No public calculator answers all of them right from a config: the wrapper of Gemma 3 names no
pattern of windows, a latent has a rope part beside its rank, a head's width need not be the hidden
size over the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.accuracy.case import AccuracyCase, Evidence, Figure, Question, Suite, outcome_of
from app.domain.context_table import context_table
from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError
from app.domain.formats import KvFormats
from app.readers.hf_config import read_config
from app.web.marks import mark

TOKENS = 131_072
_BASE: dict[str, Any] = {
    "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336,
    "vocab_size": 128256, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62,
    "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
    "intermediate_size": 21504, "vocab_size": 262208, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_GEMMA_TYPES = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(62)]
# 10 full layers of 131,072 positions and 52 windows of 1,023 earlier ones, 8,192 bytes each.
_GEMMA_BYTES = 11_173_199_872

ROWS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("Llama-3.1-8B",
     _BASE | {"model_type": "llama", "num_hidden_layers": 32, "num_key_value_heads": 8},
     17_179_869_184),
    ("DeepSeek-V3",
     _BASE | {"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
              "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
              "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
              "q_lora_rank": 1536, "num_nextn_predict_layers": 1, "n_routed_experts": 256},
     9_210_691_584),
    ("Gemma-3-27B by sliding_window_pattern", _GEMMA | {"sliding_window_pattern": 6}, _GEMMA_BYTES),
    ("Gemma-3-27B by layer_types", _GEMMA | {"layer_types": _GEMMA_TYPES}, _GEMMA_BYTES),
    ("Gemma-3-27B in its wrapper, which names no pattern",
     {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
      "text_config": _GEMMA,
      "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152,
                        "num_hidden_layers": 27, "num_attention_heads": 16}},
     _GEMMA_BYTES),
    ("Qwen3-4B",
     _BASE | {"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36,
              "num_key_value_heads": 8, "head_dim": 128},
     19_327_352_832),
    # 3 GiB in 12 layers of 2 heads × 256, and 36 states of 32 × 128 × 128 elements in fp32 with
    # three columns of 8,192 channels in bf16.
    ("Qwen3-Next-80B-A3B",
     {"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "vocab_size": 151936, "intermediate_size": 5120, "torch_dtype": "bfloat16"},
     3_221_225_472 + 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    ("gpt-oss-20b",
     _BASE | {"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
              "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
              "sliding_window": 128,
              "layer_types": ["sliding_attention", "full_attention"] * 12},
     3_224_346_624),
)  # fmt: skip


def ask(name: str, config: Mapping[str, Any], expected: int) -> AccuracyCase:
    """Return one model read from its config."""
    computed, reason = None, ""
    try:
        state = read_config(config).state
        (row,) = context_table(state, KvFormats.same(dtype_named("bf16")), [TOKENS])
        computed = row.total_bytes
    except DomainError as error:
        reason = str(error)
    figures = (Figure(name="one sequence", unit="B", measured=expected, computed=computed),)
    return AccuracyCase(
        suite=SUITE.name,
        id=name,
        engine="model",
        version="",
        family=str(config["model_type"]),
        model=name,
        settings=f"tokens={TOKENS} kv_dtype=bf16",
        figures=figures,
        outcome=outcome_of(figures),
        reason=reason,
    )


def _questions() -> list[Question]:
    return [partial(ask, name, config, expected) for name, config, expected in ROWS]


SUITE = Suite(
    name="yardstick",
    engine="model",
    title=mark("Eight configs that no public calculator reads all right"),
    what=mark("What the model itself needs for one sequence of 131,072 tokens at 16 bits."),
    evidence=Evidence.WORKED,
    file="",
    questions=_questions,
)
