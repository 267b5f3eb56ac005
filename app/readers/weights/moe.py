"""Families with routed experts and ordinary attention.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights.
"""

from __future__ import annotations

from app.domain.errors import Conflict, shown
from app.domain.weight_lines import Component
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import (
    BIASED_ATTENTION,
    BIASED_GATED,
    HUNYUAN_ATTENTION,
    OLMO2_ATTENTION,
    ONE,
    QWEN3_ATTENTION,
    plain,
)
from app.readers.weights.experts import (
    Experts,
    after_dense,
    by_list,
    num_layers,
    qwen_sparse,
    shared_own,
    shared_times,
    sparse_or_dense,
)
from app.readers.weights.fields import Fields
from app.readers.weights.layer_types import always, layer_kind
from app.readers.weights.parts import (
    Attention,
    FeedForward,
    Geometry,
    Heads,
    Norms,
    Switch,
    check_groups,
    head_dim,
    usual_heads,
)

W_NAMES = ("w1", "w3", "w2")
CORRECTION = "gate.e_score_correction_bias"
DEEPSEEK_SHARED = shared_times("moe_intermediate_size", "n_shared_experts")


# Which layers have experts


def _interleaved(fields: Fields, layer: int) -> bool:
    """Llama 4: the layers in `moe_layers`, else every `interleave_moe_layer_step`-th."""
    listed = fields.sizes("moe_layers")
    if listed is not None:
        return layer in listed
    return (layer + 1) % fields.size("interleave_moe_layer_step") == 0


def _ernie_sparse(fields: Fields, layer: int) -> bool:
    """ERNIE 4.5: from `moe_layer_start_index` to `moe_layer_end_index` (-1: the last), by steps."""
    end = fields.size_or_none("moe_layer_end_index", low=-1)
    last = num_layers(fields) - 1 if end is None or end < 0 else end
    interval = fields.size("moe_layer_interval")
    return (layer + 1) % interval == 0 and fields.count("moe_layer_start_index") <= layer <= last


def _afmoe_sparse(fields: Fields, layer: int) -> bool:
    return layer >= fields.count("num_dense_layers")


def _all_sparse_by_list(fields: Fields, layer: int) -> bool:
    """Return by `mlp_layer_types`, else after `first_k_dense_replace`, which is none by default."""
    if fields.words("mlp_layer_types") is not None:
        return by_list(fields, layer)
    return layer >= fields.count("first_k_dense_replace")


def _step_sparse(fields: Fields, layer: int) -> bool:
    """Step 3.7: `mlp_layer_types`, else the layers in `moe_layers_enum`, else from the fourth on.

    The enumeration is a list, or numbers in one string with commas.
    """
    if fields.words("mlp_layer_types", length=num_layers(fields)) is not None:
        return by_list(fields, layer)
    _, value = fields.find("moe_layers_enum")
    if value is None:
        return layer >= 3  # noqa: PLR2004  # the class's own default
    if isinstance(value, str):
        pieces = [piece.strip() for piece in value.split(",") if piece.strip()]
        if not all(piece.isdecimal() and len(piece) < 6 for piece in pieces):  # noqa: PLR2004
            raise Conflict("{field} must list layers, got {value}",
                           field=fields.at("moe_layers_enum"), value=shown(value))  # fmt: skip
        return str(layer) in pieces
    return layer in (fields.sizes("moe_layers_enum") or ())


def minimax_m3_sparse(fields: Fields, layer: int) -> bool:
    """MiniMax M3: `mlp_layer_types`, else ones in `moe_layer_freq`, else every layer."""
    if fields.words("mlp_layer_types", length=num_layers(fields)) is not None:
        return by_list(fields, layer)
    flags = fields.sizes("moe_layer_freq", length=num_layers(fields))
    return flags is None or bool(flags[layer])


# Heads by layer

MIMO_KIND = layer_kind(
    "layer_types",
    lambda _fields, layer: "full" if layer == 0 or (layer + 1) % 6 == 0 else "sliding",
)


def _mimo_heads(fields: Fields, layer: int) -> Heads:
    """MiMo V2 Flash: sliding layers have twice the KV heads; values are narrower than keys."""
    queries, keys = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    keys *= 2 if MIMO_KIND(fields, layer) == "sliding" else 1
    check_groups(fields, queries, keys)
    return Heads(queries=queries, keys=keys, key_dim=head_dim(fields),
                 value_dim=fields.size("v_head_dim"))  # fmt: skip


def _laguna_heads(fields: Fields, layer: int) -> Heads:
    """Laguna: `num_attention_heads_per_layer` where the file has it."""
    usual = usual_heads(fields, layer)
    listed = fields.sizes("num_attention_heads_per_layer", length=num_layers(fields))
    if listed is None:
        return usual
    check_groups(fields, listed[layer], usual.keys)
    return Heads(queries=listed[layer], keys=usual.keys, key_dim=usual.key_dim,
                 value_dim=usual.value_dim)  # fmt: skip


STEP_KIND = layer_kind("layer_types", always("full"))


def _step_heads(fields: Fields, layer: int) -> Heads:
    """Step 3.7: sliding layers have the heads of `attention_other_setting`."""
    usual = usual_heads(fields, layer)
    if STEP_KIND(fields, layer) != "sliding":
        return usual
    queries = fields.size_or_none("num_sliding_attention_heads", low=1)
    if queries is None and fields.says("attention_other_setting"):
        other = fields.part("attention_other_setting")
        queries = other.size_or_none("num_attention_heads", low=1)
    return Heads(queries=queries or usual.queries, keys=usual.keys, key_dim=usual.key_dim,
                 value_dim=usual.value_dim)  # fmt: skip


def _gate_grain(fields: Fields, _layer: int) -> str:
    """Laguna and Step 3.7: a head is gated by one number unless `gating` names another grain."""
    _, gating = fields.find("gating")
    by_head = gating is None or gating is True or gating == "per-head"
    return "head" if by_head else "width"


def _gated_by(geometry: Geometry) -> Switch:
    """Return attention with head norms and an output gate of either grain."""
    grains = {
        gate: Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
                        gate=gate, gate_name="g_proj", geometry=geometry)
        for gate in ("head", "width")
    }  # fmt: skip
    return Switch(rule=_gate_grain, parts={gate: (part,) for gate, part in grains.items()})


MIXTRAL_EXPERTS = Experts(at="block_sparse_moe", number="num_local_experts",
                          width="intermediate_size", names=W_NAMES)  # fmt: skip
GRANITE_EXPERTS = Experts(at="block_sparse_moe", router="router.layer", number="num_local_experts",
                          width="intermediate_size")  # fmt: skip
GRANITE_SHARED = FeedForward(at="shared_mlp", width="shared_intermediate_size", optional=True,
                             fused="input_linear", names=("", "", "output_linear"),
                             component=Component.SHARED_EXPERTS)  # fmt: skip
QWEN2_EXPERTS = Experts(shared=shared_own("shared_expert_intermediate_size"),
                        shared_at="shared_expert", shared_gate="shared_expert_gate")  # fmt: skip
DEEPSEEK_EXPERTS = Experts(number="n_routed_experts", correction=CORRECTION,
                           shared=DEEPSEEK_SHARED)  # fmt: skip
GRANITE_ATTENTION = Attention(qkv_bias="attention_bias", out_bias="attention_bias")
GRANITE_SINKS = Attention(qkv_bias="attention_bias", out_bias="attention_bias", sinks=True)

MOE: dict[str, Decoder] = {
    "mixtral": plain(Attention(), MIXTRAL_EXPERTS),
    "minimax_m2": plain(
        Attention(qk_norm="width"),
        Experts(at="block_sparse_moe", number="num_local_experts", width="intermediate_size",
                names=W_NAMES, correction="e_score_correction_bias"),
    ),
    "phimoe": plain(
        BIASED_ATTENTION, MIXTRAL_EXPERTS, Norms(bias=True), final_norm_bias=True,
        head_bias="lm_head_bias",
    ),
    "qwen2_moe": plain(
        Attention(qkv_bias="qkv_bias"), sparse_or_dense(qwen_sparse, QWEN2_EXPERTS)
    ),
    "qwen3_moe": plain(QWEN3_ATTENTION, sparse_or_dense(qwen_sparse, Experts())),
    "flint": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
                  sinks=True),
        sparse_or_dense(qwen_sparse, Experts(
            shared=shared_own("shared_expert_intermediate_size"), shared_at="shared_expert")),
    ),
    "mellum": plain(
        QWEN3_ATTENTION,
        sparse_or_dense(_all_sparse_by_list, Experts(number="num_local_experts")),
    ),
    "olmoe": plain(OLMO2_ATTENTION, Experts(width="intermediate_size")),
    "granitemoe": plain(GRANITE_ATTENTION, GRANITE_EXPERTS),
    "granitemoeshared": plain(GRANITE_ATTENTION, GRANITE_EXPERTS, Norms(), GRANITE_SHARED),
    "granitemoe_swa": plain(GRANITE_SINKS, GRANITE_EXPERTS, Norms(), GRANITE_SHARED),
    "gpt_oss": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias", sinks=True),
        Experts(router="router", number="num_local_experts", width="intermediate_size", bias=True,
                router_bias=True),
    ),
    "ernie4_5_moe": plain(
        Attention(qkv_bias="use_bias", out_bias="use_bias"),
        sparse_or_dense(
            _ernie_sparse,
            Experts(number="moe_num_experts", active="moe_k",
                    correction="moe_statics.e_score_correction_bias", correction_counts=True,
                    shared=shared_times("moe_intermediate_size", "moe_num_shared_experts"),
                    shared_bias="use_bias"),
            FeedForward(bias="use_bias"),
        ),
        head_bias="use_bias",
    ),
    "hunyuan_v1_moe": plain(
        HUNYUAN_ATTENTION,
        Experts(router="gate.wg", active="moe_topk", width="intermediate_size",
                shared=shared_own("intermediate_size"), shared_at="shared_mlp"),
    ),
    "hy_v3": plain(
        QWEN3_ATTENTION,
        sparse_or_dense(
            by_list,
            Experts(correction="expert_bias",
                    shared=shared_times("moe_intermediate_size", "num_shared_experts"),
                    shared_bias="mlp_bias"),
            BIASED_GATED,
        ),
    ),
    "llama4_text": plain(
        BIASED_ATTENTION,
        sparse_or_dense(
            _interleaved,
            Experts(at="feed_forward", router="router", number="num_local_experts",
                    width="intermediate_size", shared=shared_own("intermediate_size"),
                    shared_at="shared_expert"),
            FeedForward(at="feed_forward", width="intermediate_size_mlp"),
        ),
    ),
    "glm4_moe": plain(
        Attention(qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
        sparse_or_dense(after_dense, DEEPSEEK_EXPERTS),
    ),
    "solar_open": plain(Attention(qkv_bias="attention_bias"), DEEPSEEK_EXPERTS),
    "dots1": plain(QWEN3_ATTENTION, sparse_or_dense(after_dense, DEEPSEEK_EXPERTS)),
    "afmoe": plain(
        Attention(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head",
                  gate="width"),
        sparse_or_dense(
            _afmoe_sparse,
            Experts(router="router.gate", correction="expert_bias", correction_counts=True,
                    shared=shared_times("moe_intermediate_size", "num_shared_experts")),
        ),
        Norms(names=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm",
                     "post_mlp_layernorm")),
    ),
    "laguna": plain(
        _gated_by(_laguna_heads),
        sparse_or_dense(
            by_list,
            Experts(correction=CORRECTION, correction_counts=True,
                    shared=shared_own("shared_expert_intermediate_size")),
        ),
    ),
    "cohere2_moe": plain(
        BIASED_ATTENTION,
        sparse_or_dense(
            _all_sparse_by_list,
            Experts(width="intermediate_size",
                    shared=shared_times("intermediate_size", "num_shared_experts")),
        ),
        ONE,
    ),
    "aria_text": plain(
        BIASED_ATTENTION,
        Experts(router="router", number="moe_num_experts", active="moe_topk",
                width="intermediate_size",
                shared=shared_times("intermediate_size", "moe_num_shared_experts"),
                shared_bias="mlp_bias"),
    ),
    "kolibri1": plain(
        Attention(qk_norm="head"),
        Experts(number="num_local_experts", shared=shared_own("shared_expert_intermediate_size")),
        Norms(names=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                     "post_mlp_layernorm")),
    ),
    "mimo_v2_flash": plain(
        Switch(rule=MIMO_KIND, parts={
            "full": (Attention(qkv_bias="attention_bias", geometry=_mimo_heads),),
            "sliding": (Attention(qkv_bias="attention_bias", sinks=True, geometry=_mimo_heads),),
        }),
        sparse_or_dense(by_list, Experts(number="n_routed_experts", correction=CORRECTION)),
    ),
    "step3p5": plain(
        _gated_by(_step_heads),
        sparse_or_dense(
            _step_sparse,
            Experts(number="num_local_experts", correction=CORRECTION,
                    shared=shared_own("share_expert_dim")),
            BIASED_GATED,
        ),
    ),
}  # fmt: skip

SAME_MOE = {
    "sarvam_moe": "glm4_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
}
