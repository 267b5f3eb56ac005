"""Decoders that no other family is like: DBRX, Mllama, MiniMax M3.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut, Kind
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import GATED, plain
from app.readers.weights.experts import Experts, num_layers, shared_own, sparse_or_dense
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, vector
from app.readers.weights.moe import minimax_m3_sparse
from app.readers.weights.parts import (
    Attention,
    FeedForward,
    Heads,
    Norms,
    Switch,
    Uniform,
    check_groups,
    hidden,
    shared_width,
)

# DBRX


def _dbrx_heads(fields: Fields, _layer: int) -> Heads:
    queries = fields.size("num_attention_heads")
    attention = fields.part("attn_config", model_type="dbrx_attn_config")
    keys = attention.size("kv_n_heads")
    check_groups(fields, queries, keys)
    dim = shared_width(fields)
    return Heads(queries=queries, keys=keys, key_dim=dim, value_dim=dim)


@dataclass(frozen=True, slots=True)
class DbrxExperts(Uniform):
    """DBRX's experts, whose sizes stand in `ffn_config`."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return router and experts (w1, v1 and w2)."""
        inner = fields.part("ffn_config", model_type="dbrx_ffn_config")
        number, active = inner.size("moe_num_experts"), inner.size("moe_top_k")
        wide, width = inner.size("ffn_hidden_size"), hidden(fields)
        shapes = {"w1": (wide, width, 0), "v1": (wide, width, 0), "w2": (width, wide, 1)}
        return (
            *linear("ffn.router.layer", Component.ROUTER, number, width, kind=Kind.GATE),
            *(line for name, (rows, columns, axis) in shapes.items()
              for line in linear(f"ffn.experts.*.{name}", Component.EXPERTS, rows, columns,
                                 copies=number, active=active, by_expert=True, cut=Cut.EVEN,
                                 units=wide, axis=axis)),
        )  # fmt: skip


# Mllama: every few layers read the image through cross-attention

_MLLAMA_CROSS = frozenset({3, 8, 13, 18, 23, 28, 33, 38})


def mllama_cross(fields: Fields, layer: int) -> bool:
    """Return whether a layer is a cross-attention layer: listed, else the class's own list."""
    listed = fields.sizes("cross_attention_layers")
    return layer in (_MLLAMA_CROSS if listed is None else listed)


@dataclass(frozen=True, slots=True)
class MllamaGates(Uniform):
    """The two numbers that gate what a cross-attention layer adds."""

    def lines(self, _fields: Fields, _layer: int, /) -> Lines:
        """Return both."""
        return (
            *vector("cross_attn_attn_gate", Component.ATTENTION, 1),
            *vector("cross_attn_mlp_gate", Component.MLP, 1),
        )


# MiniMax M3

_M3_INDEX = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim"}


def minimax_m3_indexed(fields: Fields, layer: int) -> bool:
    """Return whether a layer has an indexer: `layer_types`, else `sparse_attention_freq`."""
    words = fields.words("layer_types", length=num_layers(fields))
    if words is not None:
        return words[layer] == "minimax_m3_sparse"
    if not fields.says("sparse_attention_config"):
        return False
    sparse = fields.part("sparse_attention_config")
    flags = sparse.sizes("sparse_attention_freq", length=num_layers(fields))
    return flags is not None and bool(flags[layer])


def _index_size(fields: Fields, name: str) -> int:
    if fields.says("sparse_attention_config"):
        given = fields.part("sparse_attention_config").size_or_none(_M3_INDEX[name], low=1)
        if given is not None:
            return given
    return fields.size(name)


@dataclass(frozen=True, slots=True)
class MinimaxIndexer(Uniform):
    """MiniMax M3's lightning indexer: queries of a few heads, one key, and their norms."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections and norms."""
        heads, dim = _index_size(fields, "index_n_heads"), _index_size(fields, "index_head_dim")
        at, attention = "self_attn.indexer", Component.ATTENTION
        return (
            *linear(f"{at}.q_proj", attention, heads * dim, hidden(fields)),
            *linear(f"{at}.k_proj", attention, dim, hidden(fields)),
            *norm(f"{at}.q_norm", dim, component=attention),
            *norm(f"{at}.k_norm", dim, component=attention),
        )


SPECIALS: dict[str, Decoder] = {
    "dbrx": Decoder(
        parts=(
            Attention(at="norm_attn_norm.attn", names=("q", "k", "v", "out_proj"), fused="Wqkv",
                      geometry=_dbrx_heads),
            DbrxExperts(),
            Norms(names=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2")),
        ),
        prefix="transformer.blocks.{layer}", embedding="transformer.wte.weight",
        final_norm="transformer.norm_f",
    ),
    "mllama_text_model": plain(
        Switch(rule=mllama_cross, parts={
            True: (Attention(at="cross_attn", qk_norm="head"), MllamaGates()),
            False: (Attention(),),
        }),
        GATED,
        # Eight rows more for image tokens, which the output does not have.
        extra_rows=8,
    ),
    "minimax_m3_vl_text": plain(
        Attention(qk_norm="head"),
        sparse_or_dense(
            minimax_m3_sparse,
            Experts(at="block_sparse_moe", number="num_local_experts", width="intermediate_size",
                    names=("w1", "w3", "w2"), correction="e_score_correction_bias",
                    shared=shared_own("shared_intermediate_size")),
            FeedForward(width="dense_intermediate_size"),
        ),
        Norms(),
        Switch(rule=minimax_m3_indexed, parts={True: (MinimaxIndexer(),)}),
    ),
}  # fmt: skip
