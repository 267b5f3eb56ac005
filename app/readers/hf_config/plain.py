"""Plain decoders: the same heads in every layer, all positions or one window for all of them.

Rules: models/<type>/modeling_<type>.py of Transformers 5.24, and what its caches were measured to
hold.
"""

from __future__ import annotations

from app.domain.errors import Unsupported
from app.domain.state import Layer
from app.readers.hf_config.attention import (
    HeadShape,
    head_width,
    multi_head,
    one_if_multi_query,
    shared_heads,
    split_width,
)
from app.readers.hf_config.draft import like_the_last
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import (
    even_below_max_window_layers,
    from_max_window_layers,
    windowed,
    without_rope,
)

_SOURCE = "Transformers 5.24 models/llama/modeling_llama.py and its copies"

_GROUPED = (
    "llama", "mistral", "mixtral", "gemma", "glm", "glm4", "granite", "granitemoe",
    "granitemoeshared", "cohere", "olmo", "olmo2", "olmoe", "flex_olmo", "phi", "phi3", "phimoe",
    "starcoder2", "seed_oss", "ernie4_5", "hunyuan_v1_dense", "hunyuan_v1_moe", "apertus",
    "arcee", "bitnet", "nemotron", "stablelm", "internlm3", "jais2", "helium",
    "solar_open", "hyperclovax", "iquestcoder", "ministral3", "nanochat", "doge", "aria_text",
    "sarvam_moe", "diffllama", "chameleon", "moshi", "csm", "deepseek_ocr2_text", "molmo2_text",
    "cosmos3_edge_text", "apertus1p5_text", "ernie4_5_vl_moe_text", "glm4v_text", "glm_ocr_text",
    "glm4v_moe_text", "paddleocr_vl_text", "hunyuan_vl_text", "granite4_vision_text",
    "granite_docling_text", "emu3_text_model", "voxtral_realtime_text", "qwen3_vl_text",
    "phi4_multimodal", "kyutai_speech_to_text", "glm_image_text",
)  # fmt: skip

_DRAFTING = ("glm4_moe", "ernie4_5_moe", "hy_v3")

_QWEN2 = (
    "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text",
)  # fmt: skip

_QWEN_ALL_SLIDE = (
    "qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "qwen3_omni_moe_talker_text",
)  # fmt: skip

_MULTI_HEAD = (
    "gpt2", "gpt-sw3", "codegen", "gptj", "ctrl", "openai-gpt", "gpt_neox", "gpt_neox_japanese",
    "persimmon", "opt", "biogpt", "git", "xglm", "xlm",
    "kosmos_2_text_model", "kosmos_2_5_text_model",
)  # fmt: skip

_plain = windowed()
_multi_head = windowed(heads=multi_head)


def _jetmoe(fields: Fields) -> HeadShape:
    """Return JetMoE's heads: query heads are KV heads times experts a token."""
    fields.seen("num_attention_heads")
    width = head_width(fields)
    return HeadShape(kv_heads=fields.heads("num_key_value_heads"), k_dim=width, v_dim=width)


def _falcon(fields: Fields) -> HeadShape:
    """Return Falcon's heads: its KV heads in the new architecture, else one or all of them.

    The model needs no more; Transformers copies them to all heads before it caches them.
    """
    fields.seen("multi_query", "num_kv_heads", "n_head_kv", "head_dim")
    if fields.flag("new_decoder_architecture"):
        width = split_width(fields)
        return HeadShape(kv_heads=shared_heads(fields, "num_kv_heads"), k_dim=width, v_dim=width)
    return one_if_multi_query(fields)


def _mpt(fields: Fields) -> HeadShape:
    """Return MPT's heads: `attn_config` may say one, or a number, for all heads.

    llm-foundry reads attn_type; Transformers knows multi-head attention alone.
    """
    width = split_width(fields)
    attention = fields.part("attn_config")
    kind = attention.text("attn_type") if attention else None
    kv_heads = fields.heads()
    if attention and kind == "multiquery_attention":
        kv_heads = 1
    elif attention and (kind == "grouped_query_attention" or attention.says("kv_n_heads")):
        kv_heads = shared_heads(attention, "kv_n_heads")
    elif kind not in (None, "multihead_attention"):
        raise Unsupported(
            "{field} is {value}, which MPT is not known to have",
            field=fields.at("attn_config", "attn_type"),
            value=kind,
        )
    if attention and attention.integer_or_none("sliding_window_size", low=-1) not in (None, -1):
        raise Unsupported(
            "{field} is set, and MPT's windows are not modelled",
            field=fields.at("attn_config", "sliding_window_size"),
        )
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _dbrx(fields: Fields) -> HeadShape:
    """Return DBRX's heads: only `attn_config.kv_n_heads` counts."""
    width = split_width(fields)
    attention = fields.part("attn_config")
    if attention is None or not attention.says("kv_n_heads"):
        kv_heads = 1
        fields.guess("attn_config.kv_n_heads")
        fields.assume_default("attn_config.kv_n_heads", kv_heads)
    else:
        kv_heads = shared_heads(attention, "kv_n_heads")
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _minimax_m2(fields: Fields) -> list[Layer]:
    """Return MiniMax-M2's layers: its `attn_type_list` marks every one as softmax attention."""
    for index, kind in enumerate(fields.integers("attn_type_list") or ()):
        if kind != 1:
            raise Unsupported(
                "{field} is {value}: {model_type} is not known with linear attention",
                field=fields.at("attn_type_list", index),
                value=kind,
                model_type=fields.model_type,
            )
    return _plain(fields)


FAMILIES: tuple[Family, ...] = (
    Family(name="grouped", model_types=_GROUPED, layers=_plain, source=_SOURCE),
    Family(
        name="grouped",
        model_types=("exaone",),
        layers=_plain,
        aliases={"num_hidden_layers": "num_layers"},
        source="https://huggingface.co/LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct modeling_exaone.py",
    ),
    Family(
        name="grouped",
        model_types=_DRAFTING,
        layers=_plain,
        draft=like_the_last(_plain),
        source=_SOURCE,
    ),
    Family(
        name="grouped",
        model_types=("minimax_m2",),
        layers=_minimax_m2,
        draft=like_the_last(_plain),
        source="Transformers 5.24 models/minimax_m2/modeling_minimax_m2.py",
    ),
    Family(
        name="qwen2",
        model_types=_QWEN2,
        layers=windowed(from_max_window_layers),
        source="Transformers 5.24 models/qwen2/configuration_qwen2.py",
    ),
    Family(
        name="qwen2_moe",
        model_types=("qwen2_moe",),
        layers=windowed(even_below_max_window_layers),
        source="Transformers 5.24 models/qwen2_moe/configuration_qwen2_moe.py",
    ),
    Family(
        name="qwen3_moe",
        model_types=_QWEN_ALL_SLIDE,
        layers=_plain,
        reads=frozenset({"max_window_layers"}),
        source="Transformers 5.24 models/qwen3_moe/configuration_qwen3_moe.py",
    ),
    Family(
        name="smollm3",
        model_types=("smollm3",),
        layers=windowed(without_rope),
        reads=frozenset({"max_window_layers"}),
        source="Transformers 5.24 models/smollm3/configuration_smollm3.py",
    ),
    Family(
        name="multi_head",
        model_types=_MULTI_HEAD,
        layers=_multi_head,
        source="Transformers 5.24 models/gpt2/modeling_gpt2.py and kin",
    ),
    Family(
        name="bark",
        model_types=("semantic", "coarse_acoustics"),
        layers=_multi_head,
        aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        defaults={"num_layers": 12, "num_heads": 12, "hidden_size": 768},
        source="Transformers 5.24 models/bark/configuration_bark.py",
    ),
    Family(
        name="bloom",
        model_types=("bloom",),
        layers=_multi_head,
        aliases={"hidden_size": "n_embed"},
        source="Transformers 5.24 models/bloom/configuration_bloom.py",
    ),
    Family(
        name="gpt_bigcode",
        model_types=("gpt_bigcode",),
        layers=windowed(heads=one_if_multi_query),
        defaults={"multi_query": True},
        source="Transformers 5.24 models/gpt_bigcode/modeling_gpt_bigcode.py",
    ),
    Family(
        name="falcon",
        model_types=("falcon",),
        layers=windowed(heads=_falcon),
        aliases={"hidden_size": "n_embed"},
        source="https://arxiv.org/abs/2311.16867, Transformers 5.24 models/falcon",
    ),
    Family(
        name="mpt",
        model_types=("mpt",),
        layers=windowed(heads=_mpt),
        source="llm-foundry, models/layers/attention.py",
    ),
    Family(
        name="dbrx",
        model_types=("dbrx",),
        layers=windowed(heads=_dbrx),
        source="Transformers 5.24 models/dbrx/configuration_dbrx.py",
    ),
    Family(
        name="jetmoe",
        model_types=("jetmoe",),
        layers=windowed(heads=_jetmoe),
        source="Transformers 5.24 models/jetmoe/configuration_jetmoe.py",
    ),
)
