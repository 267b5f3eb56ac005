"""Mixers that keep a state in place of a cache: Mamba 1 and 2, gated delta, KDA, convolutions.

Shapes are those of the model classes of Transformers 5.24.0 and were compared with classes built
without weights. State decays and gates (`A_log`, `D`, `dt_bias`) are vectors for each head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.errors import Conflict
from app.domain.weight_lines import Component, Cut
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, convolution, linear, norm, vector
from app.readers.weights.parts import Option, Uniform, chosen, hidden

RECURRENT = Component.RECURRENT
Width = Callable[[Fields], int]


def expanded(name: str) -> Width:
    """Return the inner width: the model's times the config's factor (which may be 2.0)."""
    return lambda fields: fields.whole(name, hidden(fields))


def head_by_head(heads: str, dim: str) -> Width:
    """Return the inner width as heads times their width."""
    return lambda fields: fields.size(heads) * fields.size(dim)


def dt_rank(fields: Fields, name: str) -> int:
    """Return the time step's rank: `auto` (or silence) is a sixteenth of the width, rounded up."""
    if fields.find(name)[1] in {None, "auto"}:
        return -(-hidden(fields) // 16)
    return fields.size(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1(Uniform):
    """Mamba's selective state space; `heads` splits its inner width (Zamba), `norms` Jamba's three.

    The x projection gives the time step's rank and two states for each position.
    """

    at: str = "mamba"
    inner: Width
    state: str = "mamba_d_state"
    kernel: str = "mamba_d_conv"
    rank: str = "mamba_dt_rank"
    conv_bias: Option = "mamba_conv_bias"
    proj_bias: Option = "mamba_proj_bias"
    norms: bool = False
    heads: str = ""

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, convolution and state."""
        width, inner, state = hidden(fields), self.inner(fields), fields.size(self.state)
        rank, bias = dt_rank(fields, self.rank), chosen(fields, self.proj_bias)
        heads = fields.size(self.heads) if self.heads else 1
        if inner % heads:
            raise Conflict("{field} {heads} does not divide the inner width {width}",
                           field=fields.at(self.heads), heads=heads, width=inner)  # fmt: skip
        each, at = inner // heads, self.at
        norms: Lines = ()
        if self.norms:
            norms = (
                *norm(f"{at}.dt_layernorm", rank, component=RECURRENT),
                *norm(f"{at}.b_layernorm", state, component=RECURRENT),
                *norm(f"{at}.c_layernorm", state, component=RECURRENT),
            )
        return (
            *linear(f"{at}.in_proj", RECURRENT, 2 * inner, width, bias=bias, cut=Cut.EVEN,
                    units=inner),
            *convolution(f"{at}.conv1d", RECURRENT, inner, 1, fields.size(self.kernel),
                         bias=chosen(fields, self.conv_bias), cut=Cut.EVEN, units=inner),
            *linear(f"{at}.x_proj", RECURRENT, heads * (rank + 2 * state), each, cut=Cut.EVEN,
                    units=each, axis=1),
            *linear(f"{at}.dt_proj", RECURRENT, inner, rank, bias=True, cut=Cut.EVEN, units=inner),
            *vector(f"{at}.A_log", RECURRENT, inner, state, cut=Cut.EVEN, units=inner),
            *vector(f"{at}.D", RECURRENT, inner, cut=Cut.EVEN, units=inner),
            *linear(f"{at}.out_proj", RECURRENT, width, inner, bias=bias, cut=Cut.EVEN,
                    units=inner, axis=1),
            *norms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Uniform):
    """Mamba 2: one projection for gate, x, B, C and time step; a convolution over x, B and C."""

    at: str = "mamba"
    inner: Width
    heads: str = "mamba_n_heads"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    kernel: str = "mamba_d_conv"
    conv_bias: Option = "mamba_conv_bias"
    proj_bias: Option = "mamba_proj_bias"
    out_bias: Option | None = None
    norm_if: Option = True

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, convolution, norm and state."""
        width, inner, heads = hidden(fields), self.inner(fields), fields.size(self.heads)
        channels = inner + 2 * fields.size(self.groups) * fields.size(self.state)
        bias, at = chosen(fields, self.proj_bias), self.at
        out_bias = bias if self.out_bias is None else chosen(fields, self.out_bias)
        gate_norm: Lines = ()
        if chosen(fields, self.norm_if):
            gate_norm = vector(f"{at}.norm.weight", RECURRENT, inner, cut=Cut.EVEN, units=heads)
        return (
            *linear(f"{at}.in_proj", RECURRENT, inner + channels + heads, width, bias=bias,
                    cut=Cut.EVEN, units=heads),
            *convolution(f"{at}.conv1d", RECURRENT, channels, 1, fields.size(self.kernel),
                         bias=chosen(fields, self.conv_bias), cut=Cut.EVEN, units=heads),
            *(line for name in ("dt_bias", "A_log", "D")
              for line in vector(f"{at}.{name}", RECURRENT, heads, cut=Cut.EVEN, units=heads)),
            *gate_norm,
            *linear(f"{at}.out_proj", RECURRENT, width, inner, bias=out_bias, cut=Cut.EVEN,
                    units=heads, axis=1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta(Uniform):
    """Qwen's gated delta net. `fused`: two input projections as in Qwen3-Next, else four."""

    at: str = "linear_attn"
    fused: bool = False

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, convolution, decays and norm."""
        width, at = hidden(fields), self.at
        key_heads, value_heads = (
            fields.size("linear_num_key_heads"),
            fields.size("linear_num_value_heads"),
        )
        keys = key_heads * fields.size("linear_key_head_dim")
        dim = fields.size("linear_value_head_dim")
        values = value_heads * dim
        channels = 2 * keys + values
        rows = (
            {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * value_heads}
            if self.fused
            else {"in_proj_qkv": channels, "in_proj_z": values, "in_proj_b": value_heads,
                  "in_proj_a": value_heads}
        )  # fmt: skip
        projections = tuple(
            line
            for name, count in rows.items()
            for line in linear(f"{at}.{name}", RECURRENT, count, width, cut=Cut.EVEN,
                               units=key_heads)
        )  # fmt: skip
        return (
            *projections,
            *convolution(f"{at}.conv1d", RECURRENT, channels, 1,
                         fields.size("linear_conv_kernel_dim"), cut=Cut.EVEN, units=key_heads),
            *vector(f"{at}.dt_bias", RECURRENT, value_heads, cut=Cut.EVEN, units=value_heads),
            *vector(f"{at}.A_log", RECURRENT, value_heads, cut=Cut.EVEN, units=value_heads),
            *norm(f"{at}.norm", dim, component=RECURRENT),
            *linear(f"{at}.out_proj", RECURRENT, width, values, cut=Cut.EVEN, units=value_heads,
                    axis=1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDelta(Uniform):
    """OLMo Hybrid's gated delta net: every projection apart, `g` gates the output."""

    at: str = "linear_attn"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, convolution, decays and norm."""
        width, at, all_heads = hidden(fields), self.at, fields.size("num_attention_heads")
        key_heads = fields.size_or_none("linear_num_key_heads", low=1) or all_heads
        value_heads = fields.size_or_none("linear_num_value_heads", low=1) or all_heads
        key_dim = fields.size_or_none("linear_key_head_dim", low=1) or 3 * width // (4 * key_heads)
        dim = fields.size_or_none("linear_value_head_dim", low=1) or 2 * key_dim
        keys, values = key_heads * key_dim, value_heads * dim
        rows = {"q_proj": keys, "k_proj": keys, "v_proj": values, "a_proj": value_heads,
                "b_proj": value_heads, "g_proj": values}  # fmt: skip
        return (
            *(line for name, count in rows.items()
              for line in linear(f"{at}.{name}", RECURRENT, count, width, cut=Cut.EVEN,
                                 units=key_heads)),
            *convolution(f"{at}.conv1d", RECURRENT, 2 * keys + values, 1,
                         fields.size("linear_conv_kernel_dim"), cut=Cut.EVEN, units=key_heads),
            *vector(f"{at}.dt_bias", RECURRENT, value_heads, cut=Cut.EVEN, units=value_heads),
            *vector(f"{at}.A_log", RECURRENT, value_heads, cut=Cut.EVEN, units=value_heads),
            *norm(f"{at}.o_norm", dim, component=RECURRENT),
            *linear(f"{at}.o_proj", RECURRENT, width, values, cut=Cut.EVEN, units=value_heads,
                    axis=1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta(Uniform):
    """Kimi delta attention: q, k, v with a convolution each, low-rank forget and output gates."""

    at: str = "self_attn"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, convolution, gates and norm."""
        width, at = hidden(fields), self.at
        heads, dim = kda_size(fields, "num_heads"), kda_size(fields, "head_dim")
        inner, kernel = heads * dim, kda_size(fields, "short_conv_kernel_size")
        return (
            *(line for name in ("q_proj", "k_proj", "v_proj")
              for line in linear(f"{at}.{name}", RECURRENT, inner, width, cut=Cut.EVEN,
                                 units=heads)),
            *convolution(f"{at}.conv1d", RECURRENT, 3 * inner, 1, kernel, cut=Cut.EVEN,
                         units=heads),
            *vector(f"{at}.dt_bias", RECURRENT, inner, cut=Cut.EVEN, units=heads),
            *vector(f"{at}.A_log", RECURRENT, heads, cut=Cut.EVEN, units=heads),
            *linear(f"{at}.b_proj", RECURRENT, heads, width, cut=Cut.EVEN, units=heads),
            *(line for gate in ("f", "g") for line in (
                *linear(f"{at}.{gate}_a_proj", RECURRENT, dim, width),
                *linear(f"{at}.{gate}_b_proj", RECURRENT, inner, dim, cut=Cut.EVEN, units=heads),
            )),
            *norm(f"{at}.o_norm", dim, component=RECURRENT),
            *linear(f"{at}.o_proj", RECURRENT, width, inner, cut=Cut.EVEN, units=heads, axis=1),
        )  # fmt: skip


_KDA_NAMES = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def kda_size(fields: Fields, name: str) -> int:
    """Return one of KDA's sizes: `linear_attn_config` has it, else the class's flat field."""
    if fields.says("linear_attn_config"):
        given = fields.part("linear_attn_config").size_or_none(name, low=1)
        if given is not None:
            return given
    return fields.size(_KDA_NAMES[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Uniform):
    """LFM2's gated short convolution: three projections in, one convolution, one out."""

    at: str = "conv"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections and convolution."""
        width, bias, at = hidden(fields), fields.flag("conv_bias"), self.at
        return (
            *linear(f"{at}.in_proj", RECURRENT, 3 * width, width, bias=bias, cut=Cut.EVEN,
                    units=width),
            *convolution(f"{at}.conv", RECURRENT, width, 1, fields.size("conv_L_cache"), bias=bias,
                         cut=Cut.EVEN, units=width),
            *linear(f"{at}.out_proj", RECURRENT, width, width, bias=bias, cut=Cut.EVEN,
                    units=width, axis=1),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning(Uniform):
    """MiniMax's lightning attention: all heads, an output gate, a norm over their joint width."""

    at: str = "self_attn"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return projections, gate and norm."""
        width, heads = hidden(fields), fields.size("num_attention_heads")
        dim = fields.size_or_none("head_dim", low=1) or width // heads
        inner, at = heads * dim, self.at
        return (
            *linear(f"{at}.qkv_proj", RECURRENT, 3 * inner, width, cut=Cut.EVEN, units=heads),
            *linear(f"{at}.out_proj", RECURRENT, width, inner, cut=Cut.EVEN, units=heads, axis=1),
            *linear(f"{at}.output_gate", RECURRENT, inner, width, cut=Cut.EVEN, units=heads),
            *norm(f"{at}.norm", inner, component=RECURRENT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLru(Uniform):
    """Griffin's recurrent block: two branches, a convolution, gates for each head's square."""

    at: str = "temporal_block"

    def lines(self, fields: Fields, _layer: int, /) -> Lines:
        """Return branches, convolution and the gated recurrence."""
        width, heads = hidden(fields), fields.size("num_attention_heads")
        inner = fields.size_or_none("lru_width", low=1) or width
        each, at = inner // heads, self.at
        gates = tuple(
            line
            for gate in ("input", "recurrent")
            for line in (
                *vector(f"{at}.rg_lru.{gate}_gate_weight", RECURRENT, heads, each, each,
                        cut=Cut.EVEN, units=heads),
                *vector(f"{at}.rg_lru.{gate}_gate_bias", RECURRENT, heads, each, cut=Cut.EVEN,
                        units=heads),
            )
        )  # fmt: skip
        return (
            *(line for name in ("linear_y", "linear_x")
              for line in linear(f"{at}.{name}", RECURRENT, inner, width, bias=True, cut=Cut.EVEN,
                                 units=heads)),
            *linear(f"{at}.linear_out", RECURRENT, width, inner, bias=True, cut=Cut.EVEN,
                    units=heads, axis=1),
            *convolution(f"{at}.conv_1d", RECURRENT, inner, 1, fields.size("conv1d_width"),
                         bias=True, cut=Cut.EVEN, units=heads),
            *vector(f"{at}.rg_lru.recurrent_param", RECURRENT, inner, cut=Cut.EVEN, units=heads),
            *gates,
        )  # fmt: skip
