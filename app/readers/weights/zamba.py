"""Zamba 1 and 2: Mamba layers, and a transformer block that several layers share.

Shapes are those of models/zamba and models/zamba2 of Transformers 5.24.0, and were compared with
classes built without weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut
from app.readers.weights.fields import Fields
from app.readers.weights.layer_types import layer_kind
from app.readers.weights.lines import Lines, linear, norm
from app.readers.weights.parts import FeedForward, hidden
from app.readers.weights.recurrent import Mamba1, Mamba2, expanded


def _zamba_kind(fields: Fields, layer: int) -> str:
    """Zamba: the third layer is hybrid, then by `attn_layer_period` and `attn_layer_offset`."""
    if layer <= 2:  # noqa: PLR2004  # the class's own beginning
        return "hybrid" if layer == 2 else "linear"  # noqa: PLR2004
    period, offset = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
    return "hybrid" if (layer - 3) % period == offset else "linear"


_RANKS = ("ranks", "hybrid")
MAX_SHARED_BLOCKS = 16
_ZAMBA2_HYBRIDS = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})
ZAMBA_KIND = layer_kind("layers_block_type", _zamba_kind)
ZAMBA2_KIND = layer_kind(
    "layers_block_type", lambda _fields, layer: "hybrid" if layer in _ZAMBA2_HYBRIDS else "linear"
)


def hybrid_ranks(kind: Callable[[Fields, int], str], fields: Fields) -> tuple[int, ...]:
    """Return for each layer how many hybrid ones stand before it; worked out once a config."""
    found = fields.lists.get(_RANKS)
    if found is None:
        ranks, before = [], 0
        for layer in range(zamba_layers(fields)):
            ranks.append(before)
            before += kind(fields, layer) == "hybrid"
        found = fields.lists[_RANKS] = (*ranks, before)
    return found  # type: ignore[return-value]  # integers, as built here


def zamba_layers(fields: Fields) -> int:
    """Return the number of layers, of which published models have 81 at most."""
    return fields.size("num_hidden_layers", high=512)


@dataclass(frozen=True, slots=True)
class ZambaLayer:
    """Zamba 1: a Mamba layer, hybrid ones with a projection, the first of them with the block."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the kind, and whether the layer owns the shared block."""
        kind = ZAMBA_KIND(fields, layer)
        return kind, kind == "hybrid" and hybrid_ranks(ZAMBA_KIND, fields)[layer] == 0

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return the layer's own lines."""
        kind, owns = ZAMBA_KIND(fields, layer), self.variant(fields, layer)
        at = "mamba_decoder." if kind == "hybrid" else ""
        mamba = Mamba1(at=f"{at}mamba", inner=expanded("mamba_expand"), heads="n_mamba_heads")
        lines = (
            *mamba.lines(fields, layer),
            *norm(f"{at}input_layernorm", hidden(fields)),
        )
        if kind != "hybrid":
            return lines
        lines += linear("linear", Component.OTHER, hidden(fields), hidden(fields))
        return lines + self._block(fields) if owns == ("hybrid", True) else lines

    def _block(self, fields: Fields) -> Lines:
        width, joint = hidden(fields), zamba_joint(fields)
        dim = fields.size_or_none("attention_head_dim", low=1) or (
            2 * width // fields.size("num_attention_heads")
        )
        return (
            *zamba_attention("shared_transf.self_attn", fields, joint, dim, width),
            *FeedForward(at="shared_transf.feed_forward").of_width(
                fields.size("intermediate_size"), width),
            *norm("shared_transf.input_layernorm", joint),
            *norm("shared_transf.pre_ff_layernorm", width),
        )  # fmt: skip


def zamba_joint(fields: Fields) -> int:
    """Return the shared block's width: the hidden state beside the first embedding."""
    return fields.size_or_none("attention_hidden_size", low=1) or 2 * hidden(fields)


def zamba_attention(at: str, fields: Fields, joint: int, dim: int, out: int) -> Lines:
    """Return attention over the joint width, whose output has the model's."""
    heads = fields.size("num_attention_heads")
    keys = fields.size_or_none("num_key_value_heads", low=1) or heads
    rows = {"q_proj": heads, "k_proj": keys, "v_proj": keys}
    return (
        *(line for name, count in rows.items()
          for line in linear(f"{at}.{name}", Component.ATTENTION, count * dim, joint,
                             cut=Cut.EVEN if name == "q_proj" else Cut.COPIED, units=count)),
        *linear(f"{at}.o_proj", Component.ATTENTION, out, heads * dim, cut=Cut.EVEN, units=heads,
                axis=1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zamba2Layer:
    """Zamba 2: as Zamba, with `num_mem_blocks` blocks by turns and adapters for each use."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the kind, and which shared block the layer owns, if any."""
        kind = ZAMBA2_KIND(fields, layer)
        before = hybrid_ranks(ZAMBA2_KIND, fields)[layer]
        owns = kind == "hybrid" and before < fields.size("num_mem_blocks", high=MAX_SHARED_BLOCKS)
        return kind, before if owns else None

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return the layer's own lines."""
        kind, owned = ZAMBA2_KIND(fields, layer), self.variant(fields, layer)
        at = "mamba_decoder." if kind == "hybrid" else ""
        mamba = Mamba2(
            at=f"{at}mamba",
            inner=expanded("mamba_expand"),
            heads="n_mamba_heads",
            groups="mamba_ngroups",
            conv_bias=True,
            proj_bias="add_bias_linear",
        )
        lines = (*mamba.lines(fields, layer), *norm(f"{at}input_layernorm", hidden(fields)))
        if kind != "hybrid":
            return lines
        lines += linear("linear", Component.OTHER, hidden(fields), hidden(fields))
        return lines if owned == (kind, None) else lines + self._block(fields)

    def _block(self, fields: Fields) -> Lines:
        width = hidden(fields)
        joint, heads = 2 * width, fields.size("num_attention_heads")
        inner = fields.size_or_none("intermediate_size", low=1) or 4 * width
        rank, at = fields.size("adapter_rank"), "shared_transformer"
        uses = hybrid_ranks(ZAMBA2_KIND, fields)[-1]
        adapters: Lines = ()
        for use in range(uses):
            # The class gives each block adapters for all uses, and keeps those of its own turn.
            adapters += _adapter(f"{at}.feed_forward.gate_up_proj_adapter_list.{use}", 2 * inner,
                                 width, rank)  # fmt: skip
            if fields.flag("use_shared_attention_adapter"):
                for name in ("q", "k", "v"):
                    adapters += _adapter(f"{at}.self_attn.linear_{name}_adapter_list.{use}", joint,
                                         joint, rank)  # fmt: skip
        return (
            *zamba_attention(f"{at}.self_attn", fields, joint, joint // heads, width),
            *FeedForward(at=f"{at}.feed_forward", fused="gate_up_proj").of_width(
                inner, width, bias=fields.flag("add_bias_linear")),
            *norm(f"{at}.input_layernorm", joint),
            *norm(f"{at}.pre_ff_layernorm", width),
            *adapters,
        )  # fmt: skip


def _adapter(at: str, outputs: int, inputs: int, rank: int) -> Lines:
    return (
        *linear(f"{at}.0", Component.OTHER, rank, inputs),
        *linear(f"{at}.1", Component.OTHER, outputs, rank),
    )
