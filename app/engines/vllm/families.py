"""Where vLLM reads a model otherwise than the model needs: one row of data for each way.

Model types are those of the language model's own config. Rules: vLLM 0.33.0 model_executor/models
and models/*; measured in tests/data/vllm_model_plans.json and vllm_architecture_cases.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.notes import Note

# Latents that vLLM's own implementation expands to plain heads of nope + rope wide keys, its values
# padded to the same width.
PLAIN_LATENT = frozenset({"minicpm3"})

# Types whose layers all slide or none does in vLLM: their attention is told one window for the
# whole model, and only if every layer has it.
ONE_WINDOW_FOR_ALL = frozenset({
    "mixtral", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl",
    "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text",
})  # fmt: skip

# Windows that count the query's own position apart: vLLM's window is one wider.
WINDOW_PLUS_ONE = frozenset({"cohere2", "cohere2_moe"})

# Types whose window vLLM takes from this field as it stands, where the model's own code counts the
# query's position beside it.
WINDOW_FIELDS: Mapping[str, str] = {
    "mimo_v2": "sliding_window_size", "mimo_v2_flash": "sliding_window_size",
}  # fmt: skip

# Types with attention over a block index beside plain keys and values; their kernels take blocks
# of 128 tokens, and the index keys stay in bf16.
BLOCK_INDEX_TYPES = frozenset({"minimax_m3_vl", "minimax_m3", "minimax_m3_text"})

# Sparse latents whose cache is fp8 on Blackwell unless told otherwise (since 0.32).
FP8_ON_BLACKWELL = frozenset({"glm_moe_dsa"})

# Types whose attention layers are all built before their recurrent ones.
ATTENTION_FIRST = frozenset({"zamba2"})

# Models that vLLM does not serve, and why.
_NEVER = Note("", "it was never supported")
NOT_IN_VLLM: Mapping[str, Note] = {
    "t5": _NEVER,
    "mt5": _NEVER,
    "umt5": _NEVER,
    "mllama_text_model": Note("", "0.10.2 was the last release with its cross-attention layers"),
    "zamba": _NEVER,
    "rwkv": _NEVER,
    "recurrent_gemma": _NEVER,
}

# The last release with an implementation of its own of that architecture (vLLM 0.33.0
# model_executor/models/registry.py).
LAST_RELEASE: Mapping[str, tuple[int, ...]] = {
    "AquilaForCausalLM": (0, 24, 0), "AquilaModel": (0, 24, 0), "ArcticForCausalLM": (0, 28, 0),
    "BaiChuanForCausalLM": (0, 23, 0), "BaichuanForCausalLM": (0, 23, 0),
    "BambaForCausalLM": (0, 23, 0), "ChameleonForConditionalGeneration": (0, 28, 0),
    "Dots1ForCausalLM": (0, 23, 0), "FuyuForCausalLM": (0, 25, 0),
    "Grok1ForCausalLM": (0, 24, 0), "Grok1ModelForCausalLM": (0, 24, 0),
    "InternLMForCausalLM": (0, 23, 0), "JAISLMHeadModel": (0, 22, 0),
    "MPTForCausalLM": (0, 28, 0), "MiniMaxForCausalLM": (0, 23, 0),
    "MiniMaxM1ForCausalLM": (0, 23, 0), "MiniMaxText01ForCausalLM": (0, 23, 0),
    "MotifForCausalLM": (0, 10, 2), "MptForCausalLM": (0, 28, 0), "OuroForCausalLM": (0, 26, 0),
    "PersimmonForCausalLM": (0, 25, 0), "Phi3SmallForCausalLM": (0, 9, 2),
    "Phi4FlashForCausalLM": (0, 10, 2), "Plamo2ForCausalLM": (0, 26, 0),
    "QWenLMHeadModel": (0, 23, 0), "RWForCausalLM": (0, 28, 0),
    "StableLMEpochForCausalLM": (0, 28, 0), "TeleChatForCausalLM": (0, 25, 0),
    "XverseForCausalLM": (0, 23, 0),
}  # fmt: skip

# Models whose caches vLLM lays out in a way that no rule here describes.
LAYOUT_UNKNOWN = frozenset({
    "deepseek_v41", "dots3_note", "glm5_next", "glm5_next_text", "hy_v4", "inkling", "qwen4_exp",
    "qwen4_exp_text", "step5",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKind:
    """How vLLM keeps the states of one family of recurrent layers.

    `state_dtype` is the running state's element type where nothing is set: `model` for the model's
    own; `dtype_field` names the config field that may say otherwise. `checkpoints` is when a
    prefill leaves one more block at a block boundary: `always`, `gdn` (on Hopper), `kda` (a bounded
    gate on Hopper or later) or `never`. `grouped_conv`: groups that ranks cannot share out are
    copied.
    """

    name: str
    state_dtype: str = "model"
    dtype_field: str | None = None
    checkpoints: str = "never"
    grouped_conv: bool = False


_MAMBA1 = StateKind(name="mamba1")
_MAMBA2 = StateKind(name="mamba2", checkpoints="always", grouped_conv=True)
_NEMOTRON = StateKind(
    name="mamba2", checkpoints="always", grouped_conv=True, state_dtype="float32",
    dtype_field="mamba_ssm_cache_dtype",
)  # fmt: skip
_GDN = StateKind(name="gdn", checkpoints="gdn")
_GDN_FIELD = StateKind(name="gdn", checkpoints="gdn", dtype_field="mamba_ssm_dtype")
_KDA = StateKind(name="kda", checkpoints="kda", state_dtype="float32")
_SHORT_CONV = StateKind(name="short_conv")
_LINEAR = StateKind(name="linear")

STATE_KINDS: Mapping[str, StateKind] = {
    "mamba": _MAMBA1, "falcon_mamba": _MAMBA1, "jamba": _MAMBA1,
    "mamba2": _MAMBA2, "bamba": _MAMBA2, "zamba2": _MAMBA2, "granitemoehybrid": _MAMBA2,
    "falcon_h1": _MAMBA2, "plamo2": _MAMBA2,
    "nemotron_h": _NEMOTRON, "nemotron_h_puzzle": _NEMOTRON,
    "qwen3_next": _GDN, "olmo_hybrid": _GDN,
    "qwen3_5": _GDN_FIELD, "qwen3_5_text": _GDN_FIELD, "qwen3_5_moe": _GDN_FIELD,
    "qwen3_5_moe_text": _GDN_FIELD,
    "kimi_linear": _KDA, "lfm2": _SHORT_CONV, "lfm2_moe": _SHORT_CONV,
    "minimax": _LINEAR, "minimax_text_01": _LINEAR, "minimax_m1": _LINEAR,
}  # fmt: skip

# States of a model given by hand, without a type: kept as they are said to be.
STATED = StateKind(name="state", state_dtype="stated")

# Fields that name how many layers of multi-token prediction a checkpoint has.
MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
