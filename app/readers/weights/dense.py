"""Families of plain decoders: attention and one feed-forward network in every layer.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights. A row says only how a family differs from Llama.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from app.domain.weight_lines import Component
from app.readers.weights.decoder import Decoder
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, table, vector
from app.readers.weights.parts import (
    Attention,
    FeedForward,
    Heads,
    Norms,
    Part,
    Switch,
    Uniform,
    check_groups,
    hidden,
    model_wide_heads,
)

BIASED_ATTENTION = Attention(qkv_bias="attention_bias", out_bias="attention_bias")
QKV_BIASED = Attention(qkv_bias="attention_bias")
QWEN3_ATTENTION = Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head")
OLMO2_ATTENTION = Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="width")
COHERE_ATTENTION = Attention(
    qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="heads", qk_norm_if="use_qk_norm"
)
HUNYUAN_ATTENTION = Attention(
    qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
    norm_names=("query_layernorm", "key_layernorm"),
)  # fmt: skip
GATED = FeedForward()
BIASED_GATED = FeedForward(bias="mlp_bias")
FUSED_GATED = FeedForward(fused="gate_up_proj")
UP_DOWN = FeedForward(gated=False, bias="mlp_bias", names=("up_proj", "down_proj"))
TWO = Norms()
ONE = Norms(names=("input_layernorm",))
BEHIND = Norms(names=("post_attention_layernorm", "post_feedforward_layernorm"))
SANDWICH = Norms(
    names=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
)
GLM_SANDWICH = Norms(
    names=(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    )
)
BIASED_TWO = Norms(bias=True)


@dataclass(frozen=True, slots=True)
class BitnetNorms(Uniform):
    """BitNet's norms before the output and the down projection."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return one of the model's width and one of the network's."""
        return (
            *norm("self_attn.attn_sub_norm", hidden(fields)),
            *norm("mlp.ffn_sub_norm", fields.size("intermediate_size")),
        )


@dataclass(frozen=True, slots=True)
class ApertusActivation(Uniform):
    """The two learned numbers of xIELU."""

    def lines(self, _fields: Fields, _layer: int, /) -> Lines:
        """Return alpha_p and alpha_n."""
        return (
            *vector("mlp.act_fn.alpha_p", Component.MLP, 1),
            *vector("mlp.act_fn.alpha_n", Component.MLP, 1),
        )


@dataclass(frozen=True, slots=True)
class DifferentialNumbers:
    """DiffLlama's lambdas, four of a head's width."""

    def variant(self, _fields: Fields, _layer: int, /) -> Hashable:
        """Return nothing to tell layers apart by."""
        return None

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return lambda_q1, k1, q2 and k2."""
        dim = fields.size_or_none("head_dim", low=1) or (
            hidden(fields) // fields.size("num_attention_heads")
        )
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        return tuple(
            line for name in names for line in vector(f"self_attn.{name}", Component.ATTENTION, dim)
        )


def _flag(name: str, parts: dict[Hashable, tuple[Part, ...]]) -> Switch:
    """Return parts that one flag of the config decides."""
    return Switch(rule=lambda fields, _layer: fields.flag(name), parts=parts)


# Families with their own arithmetic of heads, norms or positions


def _bigcode_heads(fields: Fields, layer: int) -> Heads:
    heads = model_wide_heads(fields, layer)
    keys = 1 if fields.flag("multi_query", otherwise=True) else heads.queries
    return Heads(queries=heads.queries, keys=keys, key_dim=heads.key_dim, value_dim=heads.key_dim)


def _falcon_heads(fields: Fields, layer: int) -> Heads:
    heads = model_wide_heads(fields, layer)
    if fields.flag("new_decoder_architecture"):
        keys = fields.size_or_none("num_kv_heads", low=1) or heads.queries
        check_groups(fields, heads.queries, keys)
    else:
        keys = 1 if fields.flag("multi_query") else heads.queries
    return Heads(queries=heads.queries, keys=keys, key_dim=heads.key_dim, value_dim=heads.key_dim)


def _falcon_norms(fields: Fields, _layer: int) -> str:
    """Return which norms a layer has: parallel layers share one, new ones have one each."""
    if not fields.flag("parallel_attn"):
        return "in turn"
    number = fields.size_or_none("num_ln_in_parallel_attn", low=1)
    if number is None:
        number = 2 if fields.flag("new_decoder_architecture") else 1
    return "shared" if number == 1 else "apart"


def gpt2_positions(fields: Fields) -> Lines:
    """Return the learned positions of GPT-2."""
    return table("transformer.wpe.weight", fields.size("max_position_embeddings"), hidden(fields))


def _opt_first(fields: Fields) -> Lines:
    """Return OPT's positions (two rows more than it says) and a narrow embedding's projections."""
    width, words = hidden(fields), _opt_width(fields)
    lines = table("model.decoder.embed_positions.weight",
                  fields.size("max_position_embeddings") + 2, width)  # fmt: skip
    if words != width:
        lines += linear("model.decoder.project_in", Component.EMBEDDING, width, words)
        lines += linear("model.decoder.project_out", Component.OUTPUT, words, width)
    return lines


def _opt_width(fields: Fields) -> int:
    return fields.size_or_none("word_embed_proj_dim", low=1) or hidden(fields)


def _opt_final_norm(fields: Fields) -> bool:
    """Return whether the last norm has weights: only where norms stand before, and are affine."""
    return (
        fields.flag("do_layer_norm_before")
        and fields.flag("layer_norm_elementwise_affine")
        and not fields.flag("_remove_final_layer_norm")
    )


def _bloom_embedding_norm(fields: Fields) -> Lines:
    return norm("transformer.word_embeddings_layernorm", hidden(fields), bias=True,
                component=Component.EMBEDDING)  # fmt: skip


def _gpt(
    attention: Attention,
    feed_forward: FeedForward,
    norms: Part,
    *,
    embedding: str = "transformer.wte.weight",
    prefix: str = "transformer.h.{layer}",
    head_bias: bool = False,
    **rest: object,
) -> Decoder:
    """Return a decoder named as GPT-2's."""
    return Decoder(
        parts=(attention, feed_forward, norms),
        prefix=prefix,
        embedding=embedding,
        final_norm="transformer.ln_f",
        final_norm_bias=True,
        head_bias=head_bias,
        **rest,  # type: ignore[arg-type]
    )


def plain(
    attention: Part = BIASED_ATTENTION,
    feed_forward: Part = GATED,
    norms: Part = TWO,
    *more: Part,
    **rest: object,
) -> Decoder:
    """Return a decoder named as Llama's."""
    return Decoder(parts=(attention, feed_forward, norms, *more), **rest)  # type: ignore[arg-type]


_LN_GPT = Norms(names=("ln_1", "ln_2"), bias=True)
_C_FC = FeedForward(width="n_inner", times_hidden=4, gated=False, bias=True,
                    names=("mlp.c_fc", "mlp.c_proj"), at="")  # fmt: skip
_FC_IN = FeedForward(width="n_inner", times_hidden=4, gated=False, bias=True,
                     names=("fc_in", "fc_out"))  # fmt: skip
_FC12 = FeedForward(gated=False, bias=True, names=("fc1", "fc2"))
_DENSE_4H = FeedForward(gated=False, bias=True, names=("dense_h_to_4h", "dense_4h_to_h"))
_OUT_PROJ = ("q_proj", "k_proj", "v_proj", "out_proj")
_OPT_NORMS = Norms(
    names=("self_attn_layer_norm", "final_layer_norm"), bias="layer_norm_elementwise_affine",
    only_if="layer_norm_elementwise_affine",
)  # fmt: skip

DENSE: dict[str, Decoder] = {
    "llama": plain(BIASED_ATTENTION, BIASED_GATED),
    "mistral": plain(Attention()),
    "qwen2": plain(Attention(qkv_bias=True)),
    "qwen3": plain(QWEN3_ATTENTION),
    "gemma": plain(),
    "gemma2": plain(BIASED_ATTENTION, GATED, SANDWICH),
    "gemma3_text": plain(QWEN3_ATTENTION, GATED, SANDWICH),
    "olmo": plain(norms=Norms(names=()), final_norm=""),
    "olmo2": plain(OLMO2_ATTENTION, GATED, BEHIND),
    "exaone4": plain(Attention(qk_norm="head"), GATED, BEHIND),
    "smollm3": plain(BIASED_ATTENTION, BIASED_GATED),
    "seed_oss": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_out_bias"), BIASED_GATED
    ),
    "cohere": plain(COHERE_ATTENTION, GATED, ONE),
    "cohere2": plain(BIASED_ATTENTION, GATED, ONE),
    "glm": plain(QKV_BIASED, FUSED_GATED),
    "glm4": plain(QKV_BIASED, FUSED_GATED, GLM_SANDWICH),
    "glm4v_text": plain(Attention(qkv_bias=True), FUSED_GATED, GLM_SANDWICH),
    "phi3": plain(Attention(fused="qkv_proj"), FUSED_GATED),
    "phi": plain(
        Attention(names=("q_proj", "k_proj", "v_proj", "dense"), qkv_bias=True, out_bias=True,
                  qk_norm="head", qk_norm_if="qk_layernorm", qk_norm_bias=True,
                  norm_names=("q_layernorm", "k_layernorm")),
        _FC12, Norms(names=("input_layernorm",), bias=True),
        final_norm="model.final_layernorm", final_norm_bias=True, head_bias=True,
    ),
    "starcoder2": plain(
        Attention(qkv_bias="use_bias", out_bias="use_bias"),
        FeedForward(gated=False, bias="use_bias", names=("c_fc", "c_proj")),
        BIASED_TWO, final_norm_bias=True,
    ),
    "stablelm": plain(
        Attention(qkv_bias="use_qkv_bias", qk_norm="heads", qk_norm_if="qk_layernorm",
                  norm_names=("q_layernorm.norms", "k_layernorm.norms")),
        GATED, Norms(names=("input_layernorm",), bias=True),
        _flag("use_parallel_residual",
              {False: (Norms(names=("post_attention_layernorm",), bias=True),)}),
        final_norm_bias=True,
    ),
    "ernie4_5": plain(
        Attention(qkv_bias="use_bias", out_bias="use_bias"), FeedForward(bias="use_bias")
    ),
    "hunyuan_v1_dense": plain(HUNYUAN_ATTENTION),
    "hyperclovax": plain(
        BIASED_ATTENTION, BIASED_GATED, TWO,
        Norms(names=("post_norm1", "post_norm2"), only_if="use_post_norm"),
    ),
    "jais2": plain(BIASED_ATTENTION, UP_DOWN, BIASED_TWO, final_norm_bias=True),
    "nemotron": plain(BIASED_ATTENTION, UP_DOWN, BIASED_TWO, final_norm_bias=True),
    "arcee": plain(BIASED_ATTENTION, UP_DOWN),
    "helium": plain(QKV_BIASED, BIASED_GATED),
    "apertus": plain(
        QWEN3_ATTENTION, FeedForward(gated=False, names=("up_proj", "down_proj")),
        Norms(names=("attention_layernorm", "feedforward_layernorm")), ApertusActivation(),
    ),
    "bitnet": plain(BIASED_ATTENTION, GATED, TWO, BitnetNorms()),
    "diffllama": plain(BIASED_ATTENTION, GATED, TWO, DifferentialNumbers()),
    "granite_swa": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias", sinks=True), BIASED_GATED
    ),
    "muse_glimmer_text": plain(
        Attention(qkv_bias="attention_bias", gate="width"), GATED, SANDWICH
    ),
    "persimmon": plain(
        Attention(names=("q", "k", "v", "dense"), fused="query_key_value", qkv_bias=True,
                  out_bias=True, qk_norm="head", qk_norm_if="qk_layernorm", qk_norm_bias=True,
                  norm_names=("q_layernorm", "k_layernorm"), geometry=model_wide_heads),
        _DENSE_4H, BIASED_TWO, final_norm="model.final_layernorm", final_norm_bias=True,
    ),
    "gpt_neox": Decoder(
        parts=(
            Attention(at="attention", names=("q", "k", "v", "dense"), fused="query_key_value",
                      qkv_bias="attention_bias", out_bias="attention_bias",
                      geometry=model_wide_heads),
            _DENSE_4H, BIASED_TWO,
        ),
        prefix="gpt_neox.layers.{layer}", embedding="gpt_neox.embed_in.weight",
        final_norm="gpt_neox.final_layer_norm", final_norm_bias=True, head="embed_out",
    ),
    "gptj": _gpt(
        Attention(at="attn", names=_OUT_PROJ, geometry=model_wide_heads), _FC_IN,
        Norms(names=("ln_1",), bias=True), head_bias=True,
    ),
    "codegen": _gpt(
        Attention(at="attn", names=_OUT_PROJ, fused="qkv_proj", geometry=model_wide_heads),
        _FC_IN, Norms(names=("ln_1",), bias=True), head_bias=True,
    ),
    "gpt2": _gpt(
        Attention(at="attn", names=("q", "k", "v", "c_proj"), fused="c_attn", qkv_bias=True,
                  out_bias=True, geometry=model_wide_heads),
        _C_FC, _LN_GPT, first=gpt2_positions,
    ),
    "gpt_neo": _gpt(
        Attention(at="attn.attention", names=_OUT_PROJ, out_bias=True, geometry=model_wide_heads),
        FeedForward(times_hidden=4, gated=False, bias=True, names=("c_fc", "c_proj")),
        _LN_GPT, first=gpt2_positions,
    ),
    "gpt_bigcode": _gpt(
        Attention(at="attn", names=("q", "k", "v", "c_proj"), fused="c_attn", qkv_bias=True,
                  out_bias=True, geometry=_bigcode_heads),
        _C_FC, _LN_GPT, first=gpt2_positions,
    ),
    "bloom": _gpt(
        Attention(at="self_attention", names=("q", "k", "v", "dense"), fused="query_key_value",
                  qkv_bias=True, out_bias=True, geometry=model_wide_heads),
        FeedForward(width="_", times_hidden=4, gated=False, bias=True,
                    names=("dense_h_to_4h", "dense_4h_to_h")),
        BIASED_TWO, embedding="transformer.word_embeddings.weight", first=_bloom_embedding_norm,
    ),
    "falcon": _gpt(
        Attention(at="self_attention", names=("q", "k", "v", "dense"), fused="query_key_value",
                  qkv_bias="bias", out_bias="bias", geometry=_falcon_heads),
        FeedForward(width="ffn_hidden_size", times_hidden=4, gated=False, bias="bias",
                    names=("dense_h_to_4h", "dense_4h_to_h")),
        Switch(rule=_falcon_norms, parts={
            "in turn": (BIASED_TWO,),
            "shared": (Norms(names=("input_layernorm",), bias=True),),
            "apart": (Norms(names=("ln_attn", "ln_mlp"), bias=True),),
        }),
        embedding="transformer.word_embeddings.weight",
    ),
    "mpt": Decoder(
        parts=(
            Attention(at="attn", names=("q", "k", "v", "out_proj"), fused="Wqkv",
                      geometry=model_wide_heads),
            FeedForward(at="ffn", width="_", times_hidden=4, gated=False,
                        names=("up_proj", "down_proj")),
            Norms(names=("norm_1", "norm_2")),
        ),
        prefix="transformer.blocks.{layer}", embedding="transformer.wte.weight",
        final_norm="transformer.norm_f",
    ),
    "opt": Decoder(
        parts=(
            Attention(names=_OUT_PROJ, qkv_bias="enable_bias", out_bias="enable_bias",
                      geometry=model_wide_heads),
            FeedForward(at="", width="ffn_dim", gated=False, bias="enable_bias",
                        names=("fc1", "fc2")),
            _OPT_NORMS,
        ),
        prefix="model.decoder.layers.{layer}", embedding="model.decoder.embed_tokens.weight",
        final_norm="model.decoder.final_layer_norm", final_norm_if=_opt_final_norm,
        final_norm_bias="layer_norm_elementwise_affine", first=_opt_first, width=_opt_width,
    ),
    "xglm": Decoder(
        parts=(
            Attention(names=_OUT_PROJ, qkv_bias=True, out_bias=True, geometry=model_wide_heads),
            FeedForward(at="", width="ffn_dim", gated=False, bias=True, names=("fc1", "fc2")),
            Norms(names=("self_attn_layer_norm", "final_layer_norm"), bias=True),
        ),
        final_norm="model.layer_norm", final_norm_bias=True,
    ),
}  # fmt: skip

# Families whose class has the shapes of another's.
SAME = {
    "ministral": "mistral",
    "ministral3": "mistral",
    "exaone": "llama",
    "iquestcoder": "llama",
    "granite": "llama",
    "olmo3": "olmo2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "exaone4_5_text": "exaone4",
}
