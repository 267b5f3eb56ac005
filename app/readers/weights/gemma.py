"""Gemma 3n and 4: per-layer inputs, shared keys and values, wide heads in full layers.

Shapes are those of models/gemma3n and models/gemma4 of Transformers 5.24.0, and were compared with
classes built without weights.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut
from app.readers.weights.decoder import Decoder
from app.readers.weights.dense import SANDWICH
from app.readers.weights.experts import Experts, num_layers
from app.readers.weights.fields import Fields
from app.readers.weights.layer_types import every, layer_kind
from app.readers.weights.lines import Lines, linear, norm, table, vector
from app.readers.weights.parts import (
    FeedForward,
    Heads,
    Norms,
    Switch,
    Uniform,
    check_groups,
    hidden,
    usual_heads,
)

ATTENTION, OTHER = Component.ATTENTION, Component.OTHER
MAX_STREAMS = 64
DEFAULT_GLOBAL_HEAD_DIM = 512  # models/gemma4/configuration_gemma4.py, where the file names none

_BY_SIX = layer_kind("layer_types", every("", 6, "full", "sliding"))


def gemma4_kind(fields: Fields, layer: int) -> str:
    """Return whether a layer is full or sliding; the last is full whatever the list says."""
    return "full" if layer == num_layers(fields) - 1 else _BY_SIX(fields, layer)


def reuses_keys(fields: Fields, layer: int) -> bool:
    """Return whether a layer reads another's keys and values: the last `num_kv_shared_layers`."""
    return layer >= num_layers(fields) - fields.count("num_kv_shared_layers")


def gemma4_heads(fields: Fields, layer: int) -> Heads:
    """Return a layer's heads: full layers have `global_head_dim` and may have fewer KV heads.

    `per_layer_config`, which newer releases write, decides where it names the layer.
    """
    usual = usual_heads(fields, layer)
    dim, keys = usual.key_dim, usual.keys
    if fields.says("per_layer_config"):
        per_layer = fields.part("per_layer_config")
        if per_layer.says(str(layer)):
            own = per_layer.part(str(layer))
            dim = own.size_or_none("head_dim", low=1) or dim
            keys = own.size_or_none("num_key_value_heads", low=1) or keys
    elif gemma4_kind(fields, layer) == "full":
        dim = fields.size_or_none("global_head_dim", low=1) or DEFAULT_GLOBAL_HEAD_DIM
        if fields.flag("attention_k_eq_v"):
            keys = fields.size_or_none("num_global_key_value_heads", low=1) or keys
    check_groups(fields, usual.queries, keys)
    return Heads(queries=usual.queries, keys=keys, key_dim=dim, value_dim=dim)


@dataclass(frozen=True, slots=True)
class Gemma4Attention:
    """Queries, and keys and values unless the layer reads another's or takes its keys as values."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return heads, whether keys are borrowed, and whether they serve as values."""
        as_values = fields.flag("attention_k_eq_v") and gemma4_kind(fields, layer) == "full"
        return gemma4_heads(fields, layer), reuses_keys(fields, layer), as_values

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return projections and norms."""
        heads, width = gemma4_heads(fields, layer), hidden(fields)
        bias, as_values = fields.flag("attention_bias"), fields.flag("attention_k_eq_v")
        rows, dim = heads.queries * heads.key_dim, heads.key_dim
        lines = (
            *linear("self_attn.q_proj", ATTENTION, rows, width, bias=bias, cut=Cut.EVEN,
                    units=heads.queries),
            *norm("self_attn.q_norm", dim, component=ATTENTION),
            *linear("self_attn.o_proj", ATTENTION, width, rows, bias=bias, cut=Cut.EVEN,
                    units=heads.queries, axis=1),
        )  # fmt: skip
        if reuses_keys(fields, layer):
            return lines
        full = gemma4_kind(fields, layer) == "full"
        names = ("k_proj",) if as_values and full else ("k_proj", "v_proj")
        keys = tuple(
            line
            for name in names
            for line in linear(f"self_attn.{name}", ATTENTION, heads.keys * dim, width, bias=bias,
                               cut=Cut.COPIED, units=heads.keys)
        )  # fmt: skip
        return (*lines, *keys, *norm("self_attn.k_norm", dim, component=ATTENTION))


@dataclass(frozen=True, slots=True)
class Gemma4Network:
    """A gated network, twice as wide in layers that borrow keys when `use_double_wide_mlp`."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return whether the layer is a wide one."""
        return fields.flag("use_double_wide_mlp") and reuses_keys(fields, layer)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return gate, up and down."""
        inner = fields.size("intermediate_size") * (2 if self.variant(fields, layer) else 1)
        return FeedForward().of_width(inner, hidden(fields))


@dataclass(frozen=True, slots=True)
class Gemma4Experts(Uniform):
    """Experts beside the network, with norms of their own and a scaled router."""

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return router, experts and norms."""
        experts = Experts(at="", router="router.proj", active="top_k_experts")
        return (
            *experts.lines(fields, layer),
            *vector("router.scale", Component.ROUTER, hidden(fields)),
            *vector("router.per_expert_scale", Component.ROUTER, fields.size("num_experts")),
            *Norms(names=("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                          "pre_feedforward_layernorm_2")).lines(fields, layer),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PerLayerInput(Uniform):
    """A small embedding of each token for each layer, gated into its residual path."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return gate, projection and norm; nothing when the config gives no width."""
        inner = fields.count("hidden_size_per_layer_input")
        if not inner:
            return ()
        width = hidden(fields)
        return (
            *linear("per_layer_input_gate", OTHER, inner, width),
            *linear("per_layer_projection", OTHER, width, inner),
            *norm("post_per_layer_input_norm", width),
        )


def per_layer_tables(fields: Fields) -> Lines:
    """Return the embedding for all layers at once, its projection from the tokens' and a norm."""
    inner = fields.count("hidden_size_per_layer_input")
    if not inner:
        return ()
    columns = num_layers(fields) * inner
    return (
        *table("model.embed_tokens_per_layer.weight", fields.size("vocab_size_per_layer_input"),
               columns, cut=Cut.VOCABULARY),
        *linear("model.per_layer_model_projection", Component.EMBEDDING, columns, hidden(fields)),
        *norm("model.per_layer_projection_norm", inner, component=Component.EMBEDDING),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerScalar(Uniform):
    """Gemma 4's number by which a layer's output is scaled; a buffer."""

    def lines(self, _fields: Fields, _layer: int, /) -> Lines:
        """Return the number."""
        return vector("layer_scalar", OTHER, 1, is_buffer=True)


# Gemma 3n


@dataclass(frozen=True, slots=True)
class AltUp(Uniform):
    """Alternating updates: a router over `altup_num_inputs` streams, with coefficients."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return scale, coefficients, router and norm."""
        width, streams = hidden(fields), fields.size("altup_num_inputs", high=MAX_STREAMS)
        return (
            *vector("altup.correct_output_scale", OTHER, width),
            *vector("altup.correction_coefs.weight", OTHER, streams, streams),
            *vector("altup.prediction_coefs.weight", OTHER, streams * streams, streams),
            *vector("altup.modality_router.weight", OTHER, streams, width),
            *norm("altup.router_norm", width),
        )


@dataclass(frozen=True, slots=True)
class Laurel(Uniform):
    """The low-rank residual beside attention."""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return both matrices and a norm."""
        width, rank = hidden(fields), fields.size("laurel_rank")
        return (
            *linear("laurel.linear_left", OTHER, rank, width),
            *linear("laurel.linear_right", OTHER, width, rank),
            *norm("laurel.post_laurel_norm", width),
        )


def altup_projections(fields: Fields) -> Lines:
    """Return the streams' projections into and out of the model."""
    width = hidden(fields)
    return tuple(
        line
        for name in ("altup_projections", "altup_unembed_projections")
        for index in range(fields.size("altup_num_inputs", high=MAX_STREAMS) - 1)
        for line in linear(f"model.{name}.{index}", OTHER, width, width)
    )


@dataclass(frozen=True, slots=True)
class Gemma3nAttention:
    """Attention with norms on queries and keys; the last layers borrow keys and values.

    The class keeps no keys' projections there; checkpoints hold them all the same.
    """

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return whether keys are borrowed."""
        return reuses_keys(fields, layer)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return projections and norms."""
        heads, width = usual_heads(fields, layer), hidden(fields)
        bias, dim = fields.flag("attention_bias"), heads.key_dim
        rows = heads.queries * dim
        lines = (
            *linear("self_attn.q_proj", ATTENTION, rows, width, bias=bias, cut=Cut.EVEN,
                    units=heads.queries),
            *norm("self_attn.q_norm", dim, component=ATTENTION),
            *linear("self_attn.o_proj", ATTENTION, width, rows, bias=bias, cut=Cut.EVEN,
                    units=heads.queries, axis=1),
        )  # fmt: skip
        if reuses_keys(fields, layer):
            return lines
        keys = tuple(
            line
            for name in ("k_proj", "v_proj")
            for line in linear(f"self_attn.{name}", ATTENTION, heads.keys * dim, width, bias=bias,
                               cut=Cut.COPIED, units=heads.keys)
        )  # fmt: skip
        return (*lines, *keys, *norm("self_attn.k_norm", dim, component=ATTENTION))


def gemma3n_width(fields: Fields, layer: int) -> int:
    """Return a layer's inner width: one number for all, or a list."""
    _, value = fields.find("intermediate_size")
    if isinstance(value, list | tuple):
        widths = fields.sizes("intermediate_size", length=num_layers(fields)) or ()
        return widths[layer]
    if value is None:
        return 16384  # the class's own default, for every layer
    return fields.size("intermediate_size")


@dataclass(frozen=True, slots=True)
class Gemma3nNetwork:
    """A gated network whose width may differ by layer."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the width."""
        return gemma3n_width(fields, layer)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return gate, up and down."""
        return FeedForward().of_width(gemma3n_width(fields, layer), hidden(fields))


def _has_experts(fields: Fields, _layer: int) -> bool:
    return fields.flag("enable_moe_block")


def _gemma3n_first(fields: Fields) -> Lines:
    return (*per_layer_tables(fields), *altup_projections(fields))


GEMMA: dict[str, Decoder] = {
    "gemma4_text": Decoder(
        parts=(
            Gemma4Attention(),
            Gemma4Network(),
            SANDWICH,
            PerLayerInput(),
            Switch(rule=_has_experts, parts={True: (Gemma4Experts(),)}),
            LayerScalar(),
        ),
        first=per_layer_tables,
    ),
    "gemma3n_text": Decoder(
        parts=(
            Gemma3nAttention(),
            Gemma3nNetwork(),
            SANDWICH,
            AltUp(),
            Laurel(),
            PerLayerInput(),
        ),
        first=_gemma3n_first,
    ),
}
