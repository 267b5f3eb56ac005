"""The constant-size states of recurrent layers: convolution channels and state shapes by family.

A convolution of width k needs k − 1 earlier columns; engines keep k − 1 or k. The shapes are those
of each type's modelling code (Transformers 5.24 models/<type>/modeling_<type>.py), measured:
tests/data/transformers_caches.json.gz.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.errors import Conflict, Missing, OutOfRange, WrongType, shown
from app.domain.state import MAX_DIM, MAX_HEADS
from app.readers.hf_config.fields import Fields, is_mapping
from app.readers.hf_config.recurrent_parts import (
    Accumulator,
    Convolution,
    RecurrentShape,
    ShapeOf,
    divided,
    expanded,
    kernel,
)


def mamba(fields: Fields) -> RecurrentShape:
    """Mamba 1: an explicit `intermediate_size` wins over expand × hidden (Gu and Dao, 2023)."""
    inner = (
        fields.integer("intermediate_size", high=MAX_DIM)
        if fields.says("intermediate_size")
        else expanded(fields, "expand")
    )
    return _mamba1(inner, kernel(fields, "conv_kernel"), fields.dim("state_size"))


def jamba(fields: Fields) -> RecurrentShape:
    """Jamba's Mamba 1 blocks."""
    inner = expanded(fields, "mamba_expand")
    return _mamba1(inner, kernel(fields, "mamba_d_conv"), fields.dim("mamba_d_state"))


def _mamba1(inner: int, width: int, state: int) -> RecurrentShape:
    return RecurrentShape(
        convolutions=(Convolution(channels=inner, kernel=width),),
        accumulators=(Accumulator(shape=(inner, state)),),
    )


def zamba(fields: Fields) -> RecurrentShape:
    """Zamba's Mamba 1 blocks, their channels divided among several Mamba heads."""
    inner = expanded(fields, "mamba_expand")
    heads = fields.heads("n_mamba_heads")
    width = divided(fields, inner, heads, "n_mamba_heads")
    return RecurrentShape(
        convolutions=(Convolution(channels=inner, kernel=kernel(fields, "mamba_d_conv")),),
        accumulators=(Accumulator(shape=(heads, width, fields.dim("mamba_d_state"))),),
    )


def _mamba2(heads: int, width: int, groups: int, state: int, conv: int) -> RecurrentShape:
    """Mamba 2: the convolution runs over x and every group's B and C (Dao and Gu, 2024)."""
    channels = heads * width + 2 * groups * state
    return RecurrentShape(
        convolutions=(Convolution(channels=channels, kernel=conv),),
        accumulators=(Accumulator(shape=(heads, width, state)),),
    )


def mamba2(fields: Fields) -> RecurrentShape:
    """Mamba 2 by its own names; heads × head_dim must be the expanded width.

    Raises:
        Conflict: when it is not.

    """
    heads, width = fields.heads("num_heads"), fields.dim("head_dim")
    if fields.says("expand") and expanded(fields, "expand") != heads * width:
        raise Conflict(
            "{field} × head_dim is {product}, but expand × hidden_size is {inner}",
            field=fields.at("num_heads"),
            product=heads * width,
            inner=expanded(fields, "expand"),
        )
    groups = fields.integer("n_groups", high=MAX_HEADS)
    return _mamba2(heads, width, groups, fields.dim("state_size"), kernel(fields, "conv_kernel"))


def bamba(fields: Fields) -> RecurrentShape:
    """Bamba and Granite 4 hybrid: `mamba_d_head` is the inner width over the heads unless given."""
    inner = expanded(fields, "mamba_expand")
    return _bamba(fields, inner)


def falcon_h1(fields: Fields) -> RecurrentShape:
    """Falcon-H1: as Bamba, but `mamba_d_ssm` may give the inner width.

    Where a file gives heads and their width but not that, it is their product: no other fits.
    """
    if not fields.has("mamba_d_ssm") and fields.says("mamba_n_heads") and type(
        fields.value("mamba_d_head")
    ) is int:  # fmt: skip
        inner = fields.heads("mamba_n_heads") * fields.dim("mamba_d_head")
        fields.assume_default("mamba_d_ssm", inner)
        return _bamba(fields, inner)
    width = fields.integer_or_none("mamba_d_ssm", high=MAX_DIM)
    return _bamba(fields, expanded(fields, "mamba_expand") if width is None else width)


def _bamba(fields: Fields, inner: int) -> RecurrentShape:
    heads = fields.heads("mamba_n_heads")
    if fields.value("mamba_d_head") in (None, "auto"):
        width = divided(fields, inner, heads, "mamba_n_heads")
    else:
        width = fields.dim("mamba_d_head")
    if heads * width != inner:
        raise Conflict(
            "{field} × mamba_d_head is {product}, but the inner width is {inner}",
            field=fields.at("mamba_n_heads"),
            product=heads * width,
            inner=inner,
        )
    groups = fields.integer("mamba_n_groups", high=MAX_HEADS)
    state = fields.dim("mamba_d_state")
    return _mamba2(heads, width, groups, state, kernel(fields, "mamba_d_conv"))


def zamba2(fields: Fields) -> RecurrentShape:
    """Zamba2's Mamba 2 blocks; the head's width follows from the inner width."""
    inner = expanded(fields, "mamba_expand")
    heads = fields.heads("n_mamba_heads")
    width = divided(fields, inner, heads, "n_mamba_heads")
    groups = fields.integer("mamba_ngroups", high=MAX_HEADS)
    state = fields.dim("mamba_d_state")
    return _mamba2(heads, width, groups, state, kernel(fields, "mamba_d_conv"))


def nemotron_h(fields: Fields) -> RecurrentShape:
    """Nemotron-H's Mamba 2 blocks, with older spellings of groups and kernel."""
    groups = fields.integer("n_groups", "mamba_n_groups", high=MAX_HEADS)
    conv = kernel(fields, "conv_kernel", "mamba_d_conv")
    heads, width = fields.heads("mamba_num_heads"), fields.dim("mamba_head_dim")
    return _mamba2(heads, width, groups, fields.dim("ssm_state_size"), conv)


def gated_delta(fields: Fields) -> RecurrentShape:
    """Gated DeltaNet (Qwen3-Next, 3.5, OLMo hybrid): one convolution over q, k and v together."""
    key_heads, value_heads, key_dim, value_dim = _delta_heads(fields)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return RecurrentShape(
        convolutions=(
            Convolution(channels=channels, kernel=kernel(fields, "linear_conv_kernel_dim")),
        ),
        accumulators=(Accumulator(shape=(value_heads, key_dim, value_dim)),),
    )


def _delta_heads(fields: Fields) -> tuple[int, int, int, int]:
    if fields.model_type != "olmo_hybrid":
        return (
            fields.heads("linear_num_key_heads"),
            fields.heads("linear_num_value_heads"),
            fields.dim("linear_key_head_dim"),
            fields.dim("linear_value_head_dim"),
        )
    # OLMo hybrid derives what the file leaves out: as many heads as attention has, keys of three
    # quarters of a head, values twice as wide as keys.
    heads = fields.heads() if not _all_said(fields) else 0
    key_heads = _said(fields, "linear_num_key_heads", heads)
    value_heads = _said(fields, "linear_num_value_heads", heads)
    key_dim = _said(fields, "linear_key_head_dim", 3 * fields.dim("hidden_size") // (4 * key_heads))
    return key_heads, value_heads, key_dim, _said(fields, "linear_value_head_dim", 2 * key_dim)


def _all_said(fields: Fields) -> bool:
    return fields.says("linear_num_key_heads") and fields.says("linear_num_value_heads")


def _said(fields: Fields, name: str, otherwise: int) -> int:
    if fields.says(name):
        return fields.integer(name, high=MAX_DIM)
    fields.assume_default(name, otherwise)
    return otherwise


def kimi_delta(fields: Fields) -> RecurrentShape:
    """Kimi delta attention (KDA): convolutions over q, k and v of the same width, kept together.

    Heads, width and kernel stand in `linear_attn_config` or under names of their own; Bailing's
    hybrid takes its attention heads and `head_dim` where it has none of these.
    """
    if fields.model_type == "bailing_hybrid":
        heads = _own(fields, "linear_num_heads") or fields.heads()
        width = _own(fields, "linear_head_dim") or fields.dim("head_dim")
        conv = _own(fields, "linear_conv_kernel_dim") or kernel(fields, "short_conv_kernel_size")
    else:
        nested = linear_part(fields)
        heads = _nested(nested, "num_heads") or fields.heads("linear_num_heads")
        width = _nested(nested, "head_dim") or fields.dim("linear_head_dim")
        conv = _nested(nested, "short_conv_kernel_size") or kernel(fields, "linear_conv_kernel_dim")
    return RecurrentShape(
        convolutions=(Convolution(channels=3 * heads * width, kernel=conv),),
        accumulators=(Accumulator(shape=(heads, width, width)),),
    )


def linear_part(fields: Fields) -> Fields | None:
    """Return `linear_attn_config`, or None when the file has none."""
    value = fields.value("linear_attn_config")
    if value is None:
        return None
    if not is_mapping(value):
        raise WrongType("{field} must be an object, got {value}",
                        field=fields.at("linear_attn_config"), value=shown(value))  # fmt: skip
    return Fields(raw=value, model_type=fields.model_type, path=fields.at("linear_attn_config"),
                  assumptions=fields.assumptions, notes=fields.notes)  # fmt: skip


def _own(fields: Fields, name: str) -> int | None:
    """Return the file's own value, passing over the class's default."""
    return fields.integer(name, high=MAX_DIM) if fields.says(name) else None


def _nested(part: Fields | None, name: str) -> int | None:
    return None if part is None else part.integer_or_none(name, high=MAX_DIM)


def short_convolution(fields: Fields) -> RecurrentShape:
    """LFM2's gated short convolution: the hidden size, `conv_L_cache` wide, and no other state."""
    return RecurrentShape(
        convolutions=(
            Convolution(channels=fields.dim("hidden_size"), kernel=kernel(fields, "conv_L_cache")),
        )
    )


def rg_lru(fields: Fields) -> RecurrentShape:
    """RecurrentGemma (Griffin): a real-gated linear recurrence behind a short convolution."""
    width = fields.dim("lru_width") if fields.says("lru_width") else fields.dim("hidden_size")
    conv = Convolution(channels=width, kernel=kernel(fields, "conv1d_width", otherwise=4))
    return RecurrentShape(convolutions=(conv,), accumulators=(Accumulator(shape=(width,)),))


def rwkv(fields: Fields) -> RecurrentShape:
    """RWKV-4: the last hidden state of both mixers, and numerator, denominator and maximum."""
    hidden = fields.dim("hidden_size")
    said = fields.says("attention_hidden_size")
    width = fields.dim("attention_hidden_size") if said else hidden
    last = Accumulator(shape=(hidden,), fp32=False)
    return RecurrentShape(accumulators=(last, last, *[Accumulator(shape=(width,))] * 3))


def xlstm(fields: Fields) -> RecurrentShape:
    """XLSTM's matrix memory, normaliser and maximum; q and v widths are rounded up to 64."""
    heads = fields.heads("num_heads")
    keys = divided(fields, _rounded(fields, "qk_dim_factor", 0.5), heads, "num_heads")
    values = divided(fields, _rounded(fields, "v_dim_factor", 1.0), heads, "num_heads")
    return RecurrentShape(
        accumulators=(
            Accumulator(shape=(heads, keys, values), fp32=False),
            Accumulator(shape=(heads, keys), fp32=False),
            Accumulator(shape=(heads, 1), fp32=False),
        )
    )


def _rounded(fields: Fields, name: str, otherwise: float) -> int:
    """Return hidden × factor rounded up to a multiple of 64."""
    value = fields.value(name)
    factor = otherwise if value is None else value
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 64:  # noqa: PLR2004
        raise OutOfRange("{field} must be between {low} and {high}, got {value}",
                         field=fields.at(name), low=0, high=64, value=shown(factor))  # fmt: skip
    width = fields.dim("hidden_size") * factor
    return 64 * -int(-width // 64)


def lightning(fields: Fields) -> RecurrentShape:
    """MiniMax's lightning attention: one matrix a head, in the model's dtype."""
    heads = fields.heads()
    width = fields.integer_or_none("head_dim", high=MAX_DIM) or divided(
        fields, fields.dim("hidden_size"), heads, "num_attention_heads"
    )
    return RecurrentShape(accumulators=(Accumulator(shape=(heads, width, width), fp32=False),))


def convolved_attention(fields: Fields) -> RecurrentShape:
    """Zaya's compressed convolutional attention: two columns of q and k, and half a value row.

    Both of its kernels are 2 wide, so it keeps 2 + 2 − 2 columns.
    """
    heads, kv_heads = fields.heads(), fields.heads("num_key_value_heads")
    width = fields.dim("head_dim")
    first, second = (kernel(fields, name, otherwise=2) for name in ("cca_time0", "cca_time1"))
    columns = first + second - 2
    return RecurrentShape(
        convolutions=(Convolution(channels=(heads + kv_heads) * width, kernel=columns + 1),),
        accumulators=(Accumulator(shape=(kv_heads * width // 2,), fp32=False),),
    )


def inkling(fields: Fields, *, sliding: bool) -> RecurrentShape:
    """Inkling's four short convolutions: over keys, values, and twice the hidden state, in fp32."""
    prefix = "swa_" if sliding else ""
    kv = fields.heads(f"{prefix}num_key_value_heads") * fields.dim(f"{prefix}head_dim")
    width = kernel(fields, "conv_kernel_size", "sconv_kernel_size")
    hidden = fields.dim("hidden_size")
    return RecurrentShape(
        convolutions=tuple(
            Convolution(channels=channels, kernel=width, fp32=True)
            for channels in (kv, kv, hidden, hidden)
        )
    )


def ngram_shape(fields: Fields) -> RecurrentShape:
    """Qwen4's n-gram embedding: a convolution over every stream, dilated by the n-gram's length.

    Its kernel of k columns n apart looks (k − 1) · n positions back.
    """
    columns = (kernel(fields, "ple_conv_kernel_size") - 1) * kernel(fields, "ngram_size")
    channels = fields.dim("hidden_size") * fields.integer("hc_count", high=MAX_HEADS)
    return RecurrentShape(convolutions=(Convolution(channels=channels, kernel=columns + 1),))


# By the type whose recurrent layers they are; Inkling's depend on the layer as well.
SHAPES: Mapping[str, ShapeOf] = {
    "bailing_hybrid": kimi_delta,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_mamba": mamba,
    "glm5_next_text": kimi_delta,
    "granitemoehybrid": bamba,
    "jamba": jamba,
    "kimi_linear": kimi_delta,
    "lara_mini": gated_delta,
    "lfm2": short_convolution,
    "lfm2_moe": short_convolution,
    "lfm3": short_convolution,
    "mamba": mamba,
    "mamba2": mamba2,
    "minimax": lightning,
    "nemotron_h": nemotron_h,
    "olmo_hybrid": gated_delta,
    "qwen3_5_moe_text": gated_delta,
    "qwen3_5_text": gated_delta,
    "qwen3_next": gated_delta,
    "qwen4_exp_text": gated_delta,
    "recurrent_gemma": rg_lru,
    "rwkv": rwkv,
    "xlstm": xlstm,
    "zamba": zamba,
    "zamba2": zamba2,
    "zaya": convolved_attention,
}


def shape_of(fields: Fields) -> RecurrentShape:
    """Return what a recurrent layer of that type keeps.

    Raises:
        Missing: for a type that has none.

    """
    found = SHAPES.get(fields.model_type)
    if found is None:
        raise Missing("{field}: no recurrent layer of {model_type} is known",
                      field=fields.at("layer_types"), model_type=fields.model_type)  # fmt: skip
    return found(fields)
