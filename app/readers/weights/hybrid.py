"""Families that mix attention with recurrent layers, and those without attention.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.weight_lines import Component, Kind
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import (
    BIASED_ATTENTION,
    GATED,
    OLMO2_ATTENTION,
    plain,
)
from app.readers.weights.experts import (
    Experts,
    by_list,
    num_layers,
    qwen_sparse,
    sparse_or_dense,
)
from app.readers.weights.fields import Fields
from app.readers.weights.latent import HyperConnections, Latent
from app.readers.weights.layer_types import Rule as KindRule
from app.readers.weights.layer_types import always, every, layer_kind
from app.readers.weights.lines import Lines, linear, norm, vector
from app.readers.weights.moe import (
    DEEPSEEK_EXPERTS,
    GRANITE_EXPERTS,
    GRANITE_SHARED,
    QWEN2_EXPERTS,
)
from app.readers.weights.nemotron_h import NEMOTRON_MIXER, nemotron_layers
from app.readers.weights.parts import (
    Attention,
    FeedForward,
    Norms,
    Switch,
    Uniform,
    hidden,
)
from app.readers.weights.recurrent import (
    GatedDelta,
    KimiDelta,
    Lightning,
    Mamba1,
    Mamba2,
    RgLru,
    ShortConvolution,
    SplitDelta,
    expanded,
)
from app.readers.weights.zamba import Zamba2Layer, ZambaLayer, zamba_layers

QWEN_KIND = layer_kind("layer_types", every("full_attention_interval", 4, "full", "linear"))
GATED_QUERIES = Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
                          doubled_query=True)  # fmt: skip


def _qwen_hybrid(delta: GatedDelta, feed_forward: Switch | Experts | FeedForward) -> Decoder:
    mixer = Switch(rule=QWEN_KIND, parts={"full": (GATED_QUERIES,), "linear": (delta,)})
    return plain(mixer, feed_forward)


# Jamba, Zamba, Bamba, Granite


def _jamba_kind(fields: Fields, layer: int) -> str:
    period, offset = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
    return "full" if layer % period == offset else "linear"


def _jamba_sparse(fields: Fields, layer: int) -> bool:
    period, offset = fields.size("expert_layer_period"), fields.count("expert_layer_offset")
    return layer % period == offset and fields.size("num_experts") > 1


def _listed_attention(name: str) -> KindRule:
    """Return a rule: full attention in the layers that the config lists."""
    return lambda fields, layer: "full" if layer in (fields.sizes(name) or ()) else "linear"


_GRANITE_KIND = layer_kind("layer_types", always("linear"))


def _granite_has_experts(fields: Fields, _layer: int) -> bool:
    return fields.count("num_local_experts") > 0


# LFM2


def _lfm2_kind(fields: Fields, layer: int) -> str:
    """LFM2: `layer_types`, else the layers in `full_attn_idxs`, which are all by default."""
    listed = fields.sizes("full_attn_idxs")
    return "full" if listed is None or layer in listed else "conv"


LFM2_KIND = layer_kind("layer_types", _lfm2_kind)


@dataclass(frozen=True, slots=True)
class Lfm2Network(Uniform):
    """LFM2's network, whose width the config lets grow: two thirds, a factor, whole multiples."""

    adjusts: bool = True

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return w1, w3 and w2."""
        inner = fields.size_or_none("block_ff_dim", low=1) if self.adjusts else None
        inner = inner or fields.size("intermediate_size")
        if self.adjusts and fields.flag("block_auto_adjust_ff_dim", otherwise=True):
            inner = 2 * inner // 3
            if fields.find("block_ffn_dim_multiplier")[1] is not None or not fields.names(
                "block_ffn_dim_multiplier"
            ):
                inner = fields.whole("block_ffn_dim_multiplier", inner)
                step = fields.size("block_multiple_of")
                inner = -(-inner // step) * step
        network = FeedForward(at="feed_forward", names=("w1", "w3", "w2"))
        return network.of_width(inner, hidden(fields))


LFM2_ATTENTION = Attention(names=("q_proj", "k_proj", "v_proj", "out_proj"), qk_norm="head",
                           norm_names=("q_layernorm", "k_layernorm"))  # fmt: skip
LFM2_MIXER = Switch(
    rule=LFM2_KIND, parts={"full": (LFM2_ATTENTION,), "conv": (ShortConvolution(),)}
)
LFM2_NORMS = Norms(names=("operator_norm", "ffn_norm"))


def _lfm2_sparse(fields: Fields, layer: int) -> bool:
    return layer >= fields.count("num_dense_layers")


# Griffin, MiniMax, Falcon-H1, Kimi Linear, GLM-5-Next


def _griffin_kind(fields: Fields, layer: int) -> str:
    words = fields.words("block_types")
    words = words or ("recurrent", "recurrent", "attention")
    return words[layer % len(words)]


@dataclass(frozen=True, slots=True)
class GriffinNetwork(Uniform):
    """RecurrentGemma's network: the config's width is that of gate and up together."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return gate, up and down with biases."""
        inner = fields.size("intermediate_size") // 2
        return FeedForward(at="mlp_block").of_width(inner, hidden(fields), bias=True)


def _minimax_kind(fields: Fields, layer: int) -> str:
    """MiniMax-Text-01: `layer_types`, else `attn_type_list` (1 is full), else by turns."""
    flags = fields.sizes("attn_type_list", length=num_layers(fields))
    if flags is not None:
        return "full" if flags[layer] else "linear"
    return "full" if (layer + 1) % 2 else "linear"


def _falcon_h1_inner(fields: Fields) -> int:
    given = fields.size_or_none("mamba_d_ssm", low=1)
    return given or fields.whole("mamba_expand", hidden(fields))


def _kda_kind(own: KindRule) -> KindRule:
    """Return a rule: `linear_attn_config` lists layers from 1, else the family's own."""

    def kind(fields: Fields, layer: int) -> str:
        if fields.says("linear_attn_config"):
            listed = fields.part("linear_attn_config").sizes("full_attn_layers")
            if listed is not None:
                return "full" if layer + 1 in listed else "linear"
        return own(fields, layer)

    return kind


KIMI_KIND = layer_kind(
    "layer_types",
    _kda_kind(lambda _fields, layer: "full" if layer and layer % 4 == 0 else "linear"),
)
GLM5_KIND = layer_kind("layer_types", every("", 4, "full", "linear"))


@dataclass(frozen=True, slots=True)
class Glm5Indexer(Uniform):
    """GLM-5-Next's indexer: DeepSeek's, with pooled keys (`index_kpool` positions to one)."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return the pooling's table and gate beside the indexer."""
        heads, dim = fields.size("index_n_heads"), fields.size("index_head_dim")
        at, attention = "self_attn.indexer", Component.ATTENTION
        return (
            *vector(f"{at}.index_kpool_compress_ape", attention, fields.size("index_kpool"), dim),
            *linear(f"{at}.index_kpool_compress_gate", attention, dim, hidden(fields)),
            *linear(f"{at}.wq_b", attention, heads * dim, fields.size("q_lora_rank")),
            *linear(f"{at}.wk", attention, dim, hidden(fields)),
            *norm(f"{at}.k_norm", dim, bias=True, component=attention),
            *linear(f"{at}.weights_proj", attention, heads, hidden(fields), kind=Kind.GATE),
        )


def _glm5_sparse(fields: Fields, layer: int) -> bool:
    if fields.words("mlp_layer_types", length=num_layers(fields)) is not None:
        return by_list(fields, layer)
    return layer >= 3  # noqa: PLR2004  # the class's own default


MINIMAX_MIXER = Switch(rule=layer_kind("layer_types", _minimax_kind), parts={
    "full": (Attention(),), "linear": (Lightning(),),
})  # fmt: skip
_BLOCKSPARSE = Experts(at="block_sparse_moe", number="num_local_experts",
                       width="intermediate_size", names=("w1", "w3", "w2"))  # fmt: skip
_BACKBONE = {"prefix": "backbone.layers.{layer}", "embedding": "backbone.embeddings.weight",
             "final_norm": "backbone.norm_f"}  # fmt: skip


def _mamba_inner(fields: Fields) -> int:
    given = fields.size_or_none("intermediate_size", low=1)
    return given or fields.whole("expand", hidden(fields))


_MAMBA1 = Mamba1(
    at="mixer",
    inner=_mamba_inner,
    state="state_size",
    kernel="conv_kernel",
    rank="time_step_rank",
    conv_bias="use_conv_bias",
    proj_bias="use_bias",
)

HYBRID: dict[str, Decoder] = {
    "qwen3_next": _qwen_hybrid(GatedDelta(fused=True), sparse_or_dense(qwen_sparse, QWEN2_EXPERTS)),
    "qwen3_5_text": _qwen_hybrid(GatedDelta(), GATED),
    "qwen3_5_moe_text": _qwen_hybrid(GatedDelta(), QWEN2_EXPERTS),
    "jamba": plain(
        Switch(rule=_jamba_kind, parts={
            "full": (Attention(),),
            "linear": (Mamba1(inner=expanded("mamba_expand"), norms=True),),
        }),
        sparse_or_dense(
            _jamba_sparse,
            Experts(at="feed_forward", router="router", width="intermediate_size"),
            FeedForward(at="feed_forward"),
        ),
        Norms(names=("input_layernorm", "pre_ff_layernorm")),
        final_norm="model.final_layernorm",
    ),
    "bamba": plain(
        Switch(rule=_listed_attention("attn_layer_indices"), parts={
            "full": (BIASED_ATTENTION,), "linear": (Mamba2(inner=expanded("mamba_expand")),),
        }),
        FeedForward(at="feed_forward", bias="mlp_bias"),
        Norms(names=("input_layernorm", "pre_ff_layernorm")),
        final_norm="model.final_layernorm",
    ),
    "granitemoehybrid": plain(
        Switch(rule=_GRANITE_KIND, parts={
            "full": (BIASED_ATTENTION,), "linear": (Mamba2(inner=expanded("mamba_expand")),),
        }),
        Switch(rule=_granite_has_experts, parts={True: (GRANITE_EXPERTS,)}), Norms(),
        GRANITE_SHARED,
    ),
    "falcon_h1": plain(
        BIASED_ATTENTION, FeedForward(at="feed_forward", bias="mlp_bias"),
        Norms(names=("input_layernorm", "pre_ff_layernorm")),
        Mamba2(inner=_falcon_h1_inner, norm_if="mamba_rms_norm", out_bias="projectors_bias"),
        final_norm="model.final_layernorm",
    ),
    "nemotron_h": Decoder(
        parts=(Norms(names=("norm",)), NEMOTRON_MIXER), prefix="backbone.layers.{layer}",
        embedding="backbone.embeddings.weight", final_norm="backbone.norm_f",
        count=nemotron_layers,
    ),
    "lfm2": plain(LFM2_MIXER, Lfm2Network(), LFM2_NORMS, final_norm="model.embedding_norm"),
    "lfm2_moe": plain(
        LFM2_MIXER,
        sparse_or_dense(
            _lfm2_sparse,
            Experts(at="feed_forward", names=("w1", "w3", "w2"), correction="expert_bias"),
            Lfm2Network(adjusts=False),
        ),
        LFM2_NORMS, final_norm="model.embedding_norm",
    ),
    "zamba": plain(ZambaLayer(), Norms(names=()), Norms(names=()),
                   count=zamba_layers, final_norm="model.final_layernorm"),
    "zamba2": plain(Zamba2Layer(), Norms(names=()), Norms(names=()),
                    count=zamba_layers, final_norm="model.final_layernorm"),
    "recurrent_gemma": plain(
        Switch(rule=_griffin_kind, parts={
            "recurrent": (RgLru(),),
            "attention": (Attention(at="temporal_block", qkv_bias="attention_bias",
                                    out_bias=True),),
        }),
        GriffinNetwork(), Norms(names=("temporal_pre_norm", "channel_pre_norm")),
        final_norm="model.final_norm",
    ),
    "minimax": plain(MINIMAX_MIXER, _BLOCKSPARSE),
    "mamba": Decoder(parts=(_MAMBA1, Norms(names=("norm",))), **_BACKBONE),  # type: ignore[arg-type]
    "mamba2": Decoder(
        parts=(
            Mamba2(at="mixer", inner=expanded("expand"), heads="num_heads", groups="n_groups",
                   state="state_size", kernel="conv_kernel", conv_bias="use_conv_bias",
                   proj_bias="use_bias"),
            Norms(names=("norm",)),
        ),
        **_BACKBONE,  # type: ignore[arg-type]
    ),
    "olmo_hybrid": plain(
        Switch(rule=layer_kind("layer_types", every("", 4, "full", "linear")), parts={
            "full": (OLMO2_ATTENTION, Norms(names=("post_attention_layernorm",
                                                   "post_feedforward_layernorm"))),
            "linear": (SplitDelta(), Norms()),
        }),
        GATED, Norms(names=()),
    ),
    "kimi_linear": plain(
        Switch(rule=KIMI_KIND, parts={"full": (Latent(out_bias=False),),
                                      "linear": (KimiDelta(),)}),
        sparse_or_dense(by_list, replace(
            DEEPSEEK_EXPERTS, number="num_local_experts", at="block_sparse_moe",
            names=("w1", "w3", "w2"), active="num_experts_per_token")),
    ),
    "glm5_next_text": plain(
        Switch(rule=GLM5_KIND, parts={"full": (Latent(), Glm5Indexer()),
                                      "linear": (KimiDelta(),)}),
        sparse_or_dense(_glm5_sparse, DEEPSEEK_EXPERTS), Norms(),
        HyperConnections(names=("attn_hc", "ffn_hc")),
    ),
}  # fmt: skip

SAME_HYBRID = {"falcon_mamba": "mamba"}
