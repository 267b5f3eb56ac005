"""The parts that decoder layers are put together from: attention, feed-forward and norms.

A part says which lines a layer has. `variant` tells apart layers for which its lines differ, so
that equal layers are built once. Names are those of checkpoints; an option is a bool, or the name
of the config field that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

from app.domain.errors import Conflict
from app.domain.weight_lines import Component, Cut
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, vector

Option = bool | str


class Part(Protocol):
    """Some of a layer's lines."""

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return the lines of one layer."""

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return what tells this layer's lines from another's."""


class Uniform:
    """A part whose lines are the same in every layer."""

    __slots__ = ()

    def variant(self, _fields: Fields, _layer: int, /) -> Hashable:
        """Return nothing to tell layers apart by."""
        return None


def chosen(fields: Fields, option: Option) -> bool:
    """Return an option's value: itself, or the config's flag of that name."""
    return fields.flag(option) if isinstance(option, str) else option


def hidden(fields: Fields) -> int:
    """Return the model's width."""
    return fields.size("hidden_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """An attention layer's heads and their widths."""

    queries: int
    keys: int
    key_dim: int
    value_dim: int


Geometry = Callable[[Fields, int], Heads]


def head_dim(fields: Fields, name: str = "head_dim") -> int:
    """Return a head's width: the config's, else the model's width dealt out over the heads."""
    given = fields.size_or_none(name, low=1)
    return shared_width(fields) if given is None else given


def shared_width(fields: Fields) -> int:
    """Return the model's width dealt out over the query heads.

    Raises:
        Conflict: when it does not divide.

    """
    width, heads = hidden(fields), fields.size("num_attention_heads")
    if width % heads:
        raise Conflict(
            "{field} {heads} does not divide hidden_size {width}, and no head_dim is given",
            field=fields.at("num_attention_heads"),
            heads=heads,
            width=width,
        )
    return width // heads


def usual_heads(fields: Fields, _layer: int) -> Heads:
    """Return query heads, KV heads (as many when the config gives none) and one width for all."""
    queries = fields.size("num_attention_heads")
    keys = fields.size_or_none("num_key_value_heads", low=1) or queries
    check_groups(fields, queries, keys)
    dim = head_dim(fields)
    return Heads(queries=queries, keys=keys, key_dim=dim, value_dim=dim)


def check_groups(fields: Fields, queries: int, keys: int) -> None:
    """Refuse KV heads that the query heads do not share out evenly."""
    if queries % keys:
        raise Conflict(
            "{field} {keys} does not divide the {queries} query heads",
            field=fields.at("num_key_value_heads"),
            keys=keys,
            queries=queries,
        )


def model_wide_heads(fields: Fields, _layer: int) -> Heads:
    """Return as many KV heads as query heads, which share the model's width."""
    queries = fields.size("num_attention_heads")
    dim = shared_width(fields)
    return Heads(queries=queries, keys=queries, key_dim=dim, value_dim=dim)


_LAYER_BLIND = frozenset({usual_heads, model_wide_heads})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Query, key, value and output projections, with what families add to them.

    `qk_norm`: "" none, "head" one weight for a head's width, "width" one for all heads' width,
    "heads" one for each head. `gate`: a projection of the output's width ("width") or of one number
    a head ("head"). `doubled_query`: the query projection carries the gate as well.
    """

    at: str = "self_attn"
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")
    fused: str = ""
    qkv_bias: Option = False
    key_bias: bool = True
    out_bias: Option = False
    qk_norm: str = ""
    qk_norm_if: Option = True
    qk_norm_bias: bool = False
    norm_names: tuple[str, str] = ("q_norm", "k_norm")
    sinks: Option = False
    gate: str = ""
    gate_name: str = "gate_proj"
    gate_bias: bool = False
    doubled_query: bool = False
    geometry: Geometry = usual_heads
    component: Component = Component.ATTENTION

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the layer's heads, unless the family's geometry is the same in every layer."""
        if self.geometry in _LAYER_BLIND:
            return None
        return self.geometry(fields, layer)

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return projections, norms, sinks and gate."""
        heads = self.geometry(fields, layer)
        return (
            *self._projections(fields, heads),
            *self._norms(fields, heads),
            *self._extras(fields, heads),
        )

    def _projections(self, fields: Fields, heads: Heads) -> Lines:
        width, bias = hidden(fields), chosen(fields, self.qkv_bias)
        q, k, v, o = (f"{self.at}.{name}" if self.at else name for name in self.names)
        query_rows = heads.queries * heads.key_dim * (2 if self.doubled_query else 1)
        key_rows, value_rows = heads.keys * heads.key_dim, heads.keys * heads.value_dim
        out = linear(o, self.component, width, heads.queries * heads.value_dim,
                     bias=chosen(fields, self.out_bias), cut=Cut.EVEN, units=heads.queries,
                     axis=1)  # fmt: skip
        if self.fused:
            fused = f"{self.at}.{self.fused}"
            # One tensor in the file; ranks cut it by the heads within.
            return *linear(fused, self.component, query_rows + key_rows + value_rows, width,
                           bias=bias, cut=Cut.EVEN, units=heads.keys), *out  # fmt: skip
        return (
            *linear(q, self.component, query_rows, width, bias=bias, cut=Cut.EVEN,
                    units=heads.queries),
            *linear(k, self.component, key_rows, width, bias=bias and self.key_bias,
                    cut=Cut.COPIED, units=heads.keys),
            *linear(v, self.component, value_rows, width, bias=bias, cut=Cut.COPIED,
                    units=heads.keys),
            *out,
        )  # fmt: skip

    def _norms(self, fields: Fields, heads: Heads) -> Lines:
        if not self.qk_norm or not chosen(fields, self.qk_norm_if):
            return ()
        q, k = (f"{self.at}.{name}" for name in self.norm_names)
        if self.qk_norm == "heads":
            return (
                *vector(f"{q}.weight", self.component, heads.queries, heads.key_dim, cut=Cut.EVEN,
                        units=heads.queries),
                *vector(f"{k}.weight", self.component, heads.keys, heads.key_dim, cut=Cut.COPIED,
                        units=heads.keys),
            )  # fmt: skip
        wide = self.qk_norm == "width"
        query_dim = heads.queries * heads.key_dim if wide else heads.key_dim
        key_dim = heads.keys * heads.key_dim if wide else heads.key_dim
        return (
            *norm(q, query_dim, bias=self.qk_norm_bias, component=self.component),
            *norm(k, key_dim, bias=self.qk_norm_bias, component=self.component),
        )

    def _extras(self, fields: Fields, heads: Heads) -> Lines:
        extras: Lines = ()
        if chosen(fields, self.sinks):
            extras += vector(f"{self.at}.sinks", self.component, heads.queries, cut=Cut.EVEN,
                             units=heads.queries)  # fmt: skip
        if self.gate:
            rows = heads.queries * (heads.value_dim if self.gate == "width" else 1)
            extras += linear(f"{self.at}.{self.gate_name}", self.component, rows, hidden(fields),
                             bias=self.gate_bias, cut=Cut.EVEN, units=heads.queries)  # fmt: skip
        return extras


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward(Uniform):
    """A gated (three matrices) or plain (two) feed-forward network.

    `width` names the config field; when it is null or absent the width is `times_hidden` of the
    model's. `fused`: the name of one matrix that holds gate and up. `optional`: a width of zero is
    no network.
    """

    at: str = "mlp"
    width: str = "intermediate_size"
    times_hidden: int = 0
    optional: bool = False
    gated: bool = True
    fused: str = ""
    bias: Option = False
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    component: Component = Component.MLP

    def inner(self, fields: Fields) -> int:
        """Return the inner width."""
        if self.optional:
            return fields.count(self.width)
        if self.times_hidden:
            return fields.size_or_none(self.width, low=1) or self.times_hidden * hidden(fields)
        return fields.size(self.width)

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return the matrices."""
        return self.of_width(self.inner(fields), hidden(fields), bias=chosen(fields, self.bias))

    def of_width(self, inner: int, width: int, *, bias: bool = False) -> Lines:
        """Return the matrices of one network between `width` and `inner`; none when it is zero."""
        if not inner:
            return ()
        *into, out = (f"{self.at}.{name}" if self.at else name for name in self.names)
        if self.fused:
            first = linear(f"{self.at}.{self.fused}", self.component, 2 * inner, width, bias=bias,
                           cut=Cut.EVEN, units=inner)  # fmt: skip
        else:
            names = into if self.gated else into[-1:]
            first = tuple(
                line
                for name in names
                for line in linear(name, self.component, inner, width, bias=bias, cut=Cut.EVEN,
                                   units=inner)
            )  # fmt: skip
        return *first, *linear(out, self.component, width, inner, bias=bias, cut=Cut.EVEN,
                               units=inner, axis=1)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms(Uniform):
    """Norms of the model's width, by name."""

    names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    bias: Option = False
    only_if: Option = True

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return one norm for each name."""
        if not chosen(fields, self.only_if):
            return ()
        width, bias = hidden(fields), chosen(fields, self.bias)
        return tuple(line for name in self.names for line in norm(name, width, bias=bias))


Rule = Callable[[Fields, int], Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One part or another by layer: `rule` gives the key into `parts`; an unknown key is none."""

    rule: Rule
    parts: dict[Hashable, tuple[Part, ...]] = field(hash=False)

    def variant(self, fields: Fields, layer: int, /) -> Hashable:
        """Return the key and what tells the chosen parts apart."""
        key = self.rule(fields, layer)
        return key, *(part.variant(fields, layer) for part in self.parts.get(key, ()))

    def lines(self, fields: Fields, layer: int, /) -> Lines:
        """Return the lines of the chosen parts."""
        parts = self.parts.get(self.rule(fields, layer), ())
        return tuple(line for part in parts for line in part.lines(fields, layer))
