"""Families whose model code lies beside their checkpoints (`auto_map`), not in Transformers.

Shapes are those of that code; the totals that the Hub lists for their safetensors are met exactly:
InternLM2-7B 7,737,708,544, Qwen-7B 7,721,324,544, GLM-4-9B 9,399,951,360 (and 32 numbers of rotary
frequencies), MiniMax-Text-01 456,089,655,296, Llama-3.3-Nemotron-Super-49B 49,867,145,216.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from app.domain.errors import Conflict, WrongType, shown
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import BIASED_TWO, GATED, TWO, plain
from app.readers.weights.experts import (
    Experts,
    after_dense,
    num_layers,
    shared_times,
    sparse_or_dense,
)
from app.readers.weights.fields import Fields
from app.readers.weights.hybrid import MINIMAX_MIXER
from app.readers.weights.lines import Lines
from app.readers.weights.parts import (
    Attention,
    FeedForward,
    Heads,
    Norms,
    Uniform,
    check_groups,
    hidden,
    model_wide_heads,
    shared_width,
    usual_heads,
)

# InternLM2, Qwen, ChatGLM, Phi and Falcon as first published


def _qwen_heads(fields: Fields, _layer: int) -> Heads:
    heads, dim = fields.size("num_attention_heads"), fields.size("kv_channels")
    return Heads(queries=heads, keys=heads, key_dim=dim, value_dim=dim)


@dataclass(frozen=True, slots=True)
class QwenNetwork(Uniform):
    """Qwen's network: `intermediate_size` is the width of gate and up together."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return w2 (gate), w1 (up) and the projection back."""
        inner = fields.size("intermediate_size") // 2
        return FeedForward(names=("w2", "w1", "c_proj")).of_width(inner, hidden(fields))


def _chatglm_heads(fields: Fields, _layer: int) -> Heads:
    heads, dim = fields.size("num_attention_heads"), fields.size("kv_channels")
    keys = heads
    if fields.flag("multi_query_attention"):
        keys = fields.size("multi_query_group_num")
        check_groups(fields, heads, keys)
    return Heads(queries=heads, keys=keys, key_dim=dim, value_dim=dim)


def _refined_heads(fields: Fields, layer: int) -> Heads:
    """Falcon as first published: `n_head_kv` of the large ones, one of the small."""
    heads = model_wide_heads(fields, layer)
    given = fields.size_or_none("n_head_kv", low=1)
    keys = given or (1 if fields.flag("multi_query") else heads.queries)
    check_groups(fields, heads.queries, keys)
    return Heads(queries=heads.queries, keys=keys, key_dim=heads.key_dim, value_dim=heads.key_dim)


def _refined(norms: tuple[str, ...]) -> Decoder:
    return Decoder(
        parts=(
            Attention(at="self_attention", names=("q", "k", "v", "dense"), fused="query_key_value",
                      qkv_bias="bias", out_bias="bias", geometry=_refined_heads),
            FeedForward(width="_", times_hidden=4, gated=False, bias="bias",
                        names=("dense_h_to_4h", "dense_4h_to_h")),
            Norms(names=norms, bias=True),
        ),
        prefix="transformer.h.{layer}", embedding="transformer.word_embeddings.weight",
        final_norm="transformer.ln_f", final_norm_bias=True,
    )  # fmt: skip


# Nemotron-NAS: a searched network, whose every layer is described


def _block(fields: Fields, layer: int, part: str) -> Fields:
    """Return what `block_configs` says of a layer's attention or network.

    Raises:
        WrongType: when the list holds no objects.

    """
    blocks = fields.items("block_configs", length=num_layers(fields)) or ()
    where = (*fields.at("block_configs"), layer)
    block = blocks[layer] if layer < len(blocks) else None
    if not isinstance(block, Mapping):
        raise WrongType("{field} must be an object, got {value}", field=where,
                        value=shown(block))  # fmt: skip
    return Fields(raw=block, model_type="", path=where, used=fields.used).part(part)


def _nas_heads(fields: Fields, layer: int) -> Heads | None:
    """Return a layer's heads, or None when it has no attention."""
    own = _block(fields, layer, "attention")
    if own.flag("no_op") or own.flag("replace_with_linear"):
        return None
    queries, group = fields.size("num_attention_heads"), own.size("n_heads_in_group")
    if queries % group:
        raise Conflict("{field} {group} does not divide the {queries} query heads",
                       field=own.at("n_heads_in_group"), group=group, queries=queries)  # fmt: skip
    dim = fields.size_or_none("head_dim", low=1) or shared_width(fields)
    return Heads(queries=queries, keys=queries // group, key_dim=dim, value_dim=dim)


def _nas_width(fields: Fields, layer: int) -> int:
    """Return a network's width: two thirds of `ffn_mult` widths, doubled, up to a whole 256."""
    own = _block(fields, layer, "ffn")
    if own.flag("no_op") or own.flag("replace_with_linear"):
        return 0
    inner = own.whole("ffn_mult", 2 * hidden(fields)) // 3
    return -(-inner // 256) * 256


@dataclass(frozen=True, slots=True)
class NasLayer:
    """What a layer of Nemotron-NAS keeps: attention and network, each with its norm, or neither."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return heads and width."""
        return _nas_heads(fields, layer), _nas_width(fields, layer)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return the lines that the layer has."""
        heads, inner = _nas_heads(fields, layer), _nas_width(fields, layer)
        lines: Lines = ()
        if heads is not None:
            attention = Attention(geometry=lambda _fields, _layer: heads,
                                  qkv_bias="attention_bias", out_bias="attention_bias")  # fmt: skip
            lines += attention.lines(fields, layer)
            lines += Norms(names=("input_layernorm",)).lines(fields, layer)
        if inner:
            lines += FeedForward().of_width(inner, hidden(fields), bias=fields.flag("mlp_bias"))
            lines += Norms(names=("post_attention_layernorm",)).lines(fields, layer)
        return lines


# Hunyuan-A13B: numbers in lists, one a layer


def _hunyuan_heads(fields: Fields, layer: int) -> Heads:
    usual = usual_heads(fields, layer)
    dim = fields.size_or_none("attention_head_dim", low=1) or usual.key_dim
    return Heads(queries=usual.queries, keys=usual.keys, key_dim=dim, value_dim=dim)


@dataclass(frozen=True, slots=True)
class HunyuanExperts:
    """Hunyuan's experts, whose sizes may differ by layer."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the layer's own numbers."""
        return tuple(_by_layer(fields, name, layer) for name in _HUNYUAN_LISTS)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return router, experts and the shared network."""
        inner, active, shared = (_by_layer(fields, name, layer) for name in _HUNYUAN_LISTS)
        own = Fields(
            raw={**fields.raw, "moe_intermediate_size": inner, "moe_topk": active},
            model_type=fields.model_type, path=fields.path, used=fields.used,
        )  # fmt: skip
        experts = Experts(router="gate.wg", active="moe_topk", shared=lambda _own: inner * shared,
                          shared_at="shared_mlp")  # fmt: skip
        return experts.lines(own, layer)


_HUNYUAN_LISTS = ("moe_intermediate_size", "moe_topk", "num_shared_expert")


def _by_layer(fields: Fields, name: str, layer: int) -> int:
    """Return a number that may be one for all layers or a list."""
    if isinstance(fields.find(name)[1], list | tuple):
        listed = fields.sizes(name, length=num_layers(fields)) or ()
        return listed[layer]
    return fields.size(name)


_WQKV = Attention(at="attention", names=("wq", "wk", "wv", "wo"), fused="wqkv", qkv_bias="bias",
                  out_bias="bias")  # fmt: skip
_ALL_BIASED = Attention(qkv_bias="bias", out_bias="bias")
_EXPERTS_V1 = Experts(number="n_routed_experts",
                      shared=shared_times("moe_intermediate_size", "n_shared_experts"))  # fmt: skip

OWN_CODE: dict[str, Decoder] = {
    "internlm2": Decoder(
        parts=(_WQKV, FeedForward(at="feed_forward", names=("w1", "w3", "w2")),
               Norms(names=("attention_norm", "ffn_norm"))),
        embedding="model.tok_embeddings.weight", head="output",
    ),
    "internlm": plain(_ALL_BIASED),
    "PanguEmbedded": plain(_ALL_BIASED),
    "baichuan": plain(Attention(fused="W_pack", geometry=model_wide_heads)),
    "xverse": plain(Attention()),
    "minicpm": plain(Attention()),
    "orion": plain(Attention(), GATED, BIASED_TWO, final_norm_bias=True),
    "mimo": plain(Attention(qkv_bias="attention_bias")),
    "deepseek": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias"),
        sparse_or_dense(after_dense, _EXPERTS_V1),
    ),
    "qwen": Decoder(
        parts=(
            Attention(at="attn", names=("q", "k", "v", "c_proj"), fused="c_attn", qkv_bias=True,
                      geometry=_qwen_heads),
            QwenNetwork(),
            Norms(names=("ln_1", "ln_2")),
        ),
        prefix="transformer.h.{layer}", embedding="transformer.wte.weight",
        final_norm="transformer.ln_f",
    ),
    "chatglm": Decoder(
        parts=(
            Attention(at="self_attention", names=("q", "k", "v", "dense"), fused="query_key_value",
                      qkv_bias="add_qkv_bias", out_bias="add_bias_linear",
                      geometry=_chatglm_heads),
            FeedForward(width="ffn_hidden_size", fused="dense_h_to_4h", bias="add_bias_linear",
                        names=("", "", "dense_4h_to_h")),
            TWO,
        ),
        prefix="transformer.encoder.layers.{layer}",
        embedding="transformer.embedding.word_embeddings.weight",
        final_norm="transformer.encoder.final_layernorm",
        final_norm_if=lambda fields: fields.flag("post_layer_norm", otherwise=True),
        head="transformer.output_layer",
        count=lambda fields: fields.size("num_layers", high=4096),
        vocabulary=lambda fields: fields.size("padded_vocab_size"),
    ),
    "phi-msft": Decoder(
        parts=(
            Attention(at="mixer", names=("q", "k", "v", "out_proj"), fused="Wqkv", qkv_bias=True,
                      out_bias=True),
            FeedForward(width="n_inner", times_hidden=4, gated=False, bias=True,
                        names=("fc1", "fc2")),
            Norms(names=("ln",), bias=True),
        ),
        prefix="transformer.h.{layer}", embedding="transformer.embd.wte.weight",
        final_norm="lm_head.ln", final_norm_bias=True, head="lm_head.linear", head_bias=True,
    ),
    "RefinedWeb": _refined(("ln_attn", "ln_mlp")),
    "RefinedWebModel": _refined(("input_layernorm",)),
    "minimax_text_01": plain(MINIMAX_MIXER, Experts(
        at="block_sparse_moe", number="num_local_experts", width="intermediate_size",
        names=("w1", "w3", "w2"))),
    "nemotron-nas": Decoder(parts=(NasLayer(),)),
    "hunyuan": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
                  qk_norm_if="use_qk_norm", norm_names=("query_layernorm", "key_layernorm"),
                  geometry=_hunyuan_heads),
        HunyuanExperts(),
    ),
}  # fmt: skip

SAME_OWN_CODE = {"minimax_m1": "minimax_text_01"}
