"""Keys and values as each attention class caches them: heads, widths, latents, index keys.

The rules are those of Transformers 5.24's modelling code (models/<type>/modeling_<type>.py) and
are measured: tests/data/transformers_caches.json.gz. They say what the class stores, which may be
more than attention needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Conflict, WrongType, shown
from app.domain.state import MAX_DIM, MAX_HEADS
from app.engines.transformers.cache import IndexKeys, KeyValue, Part
from app.engines.transformers.kinds import FULL, INDEXED, SLIDING, LayerKind
from app.readers.hf_config.fields import Fields, is_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Cached heads, and the widths of a key and of a value."""

    kv_heads: int
    k_dim: int
    v_dim: int


RowsOf = Callable[[Fields, LayerKind], Rows]


def split_width(fields: Fields) -> int:
    """Return hidden size // heads, rounded down as the code rounds it.

    Raises:
        Conflict: when nothing is left.

    """
    hidden, heads = fields.dim("hidden_size", "n_embed"), fields.heads()
    if hidden < heads:
        raise Conflict(
            "{field} is {heads}, more than the hidden size {hidden}",
            field=fields.at("num_attention_heads"),
            heads=heads,
            hidden=hidden,
        )
    return hidden // heads


def _own(fields: Fields, kind: LayerKind, name: str) -> int | None:
    """Return an integer of one layer: its own, else the model's; None for none."""
    if any(name == mine for mine, _ in kind.own):
        return kind.integer(name)
    return fields.integer_or_none(name, low=0, high=MAX_DIM)


def grouped(fields: Fields, kind: LayerKind) -> Rows:
    """Return `num_key_value_heads` heads (as many as heads when null) of `head_dim`.

    A `head_dim` in the file is honoured even by classes that declare no such field.
    """
    kv_heads = _own(fields, kind, "num_key_value_heads") or fields.heads()
    width = _own(fields, kind, "head_dim") or split_width(fields)
    return Rows(kv_heads=kv_heads, k_dim=width, v_dim=width)


def grouped_split(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    """Return the same for a class whose width is always hidden // heads."""
    kv_heads = fields.integer_or_none("num_key_value_heads", high=MAX_HEADS) or fields.heads()
    width = split_width(fields)
    return Rows(kv_heads=kv_heads, k_dim=width, v_dim=width)


def multi_head(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    """Return every head, hidden // heads wide."""
    width = split_width(fields)
    return Rows(kv_heads=fields.heads(), k_dim=width, v_dim=width)


def _multi_head_of(*width_names: str) -> RowsOf:
    def rows(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
        width = fields.integer_or_none(*width_names, high=MAX_DIM) or split_width(fields)
        return Rows(kv_heads=fields.heads(), k_dim=width, v_dim=width)

    return rows


def _multi_query(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    width = split_width(fields)
    kv_heads = 1 if fields.flag("multi_query") else fields.heads()
    return Rows(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _falcon(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    """The new decoder architecture broadcasts K and V to all query heads before caching them."""
    width = split_width(fields)
    alone = fields.flag("multi_query") and not fields.flag("new_decoder_architecture")
    return Rows(kv_heads=1 if alone else fields.heads(), k_dim=width, v_dim=width)


def _dbrx(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    nested = fields.value("attn_config")
    kv_heads = 1
    if is_mapping(nested):
        part = Fields(raw=nested, model_type="dbrx", path=fields.at("attn_config"))
        kv_heads = part.integer("kv_n_heads", high=MAX_HEADS, otherwise=1)
    elif nested is not None:
        raise WrongType("{field} must be an object, got {value}",
                        field=fields.at("attn_config"), value=shown(nested))  # fmt: skip
    width = split_width(fields)
    return Rows(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _one_head(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    """Return the one head that DeepSeek-V4 has, whatever `num_key_value_heads` says."""
    width = fields.dim("head_dim")
    return Rows(kv_heads=1, k_dim=width, v_dim=width)


def _jetmoe(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    width = fields.dim("kv_channels", "head_dim")
    return Rows(kv_heads=fields.heads("num_key_value_heads"), k_dim=width, v_dim=width)


def _mimo(fields: Fields, kind: LayerKind) -> Rows:
    """Sliding layers have twice the KV heads; values have a width of their own."""
    base = grouped(fields, kind)
    heads = base.kv_heads * (2 if kind.kind == SLIDING else 1)
    return Rows(kv_heads=heads, k_dim=base.k_dim, v_dim=fields.dim("v_head_dim"))


def _gemma4(fields: Fields, kind: LayerKind) -> Rows:
    """Full layers are `global_head_dim` wide; with `attention_k_eq_v` they may have own KV heads.

    Even then both K and V are cached. A saved file says the same in `per_layer_config`.
    """
    base = grouped(fields, kind)
    if kind.kind != FULL or fields.has("per_layer_config"):
        return base
    width = fields.integer("global_head_dim", high=MAX_DIM, otherwise=512)
    own = fields.integer_or_none("num_global_key_value_heads", high=MAX_HEADS)
    if own is not None and not fields.flag("attention_k_eq_v"):
        own = None
    return Rows(kv_heads=own or base.kv_heads, k_dim=width, v_dim=width)


def _inkling(fields: Fields, kind: LayerKind) -> Rows:
    prefix = "swa_" if kind.window is not None else ""
    width = fields.dim(f"{prefix}head_dim")
    return Rows(kv_heads=fields.heads(f"{prefix}num_key_value_heads"), k_dim=width, v_dim=width)


def _zamba(fields: Fields, kind: LayerKind) -> Rows:  # noqa: ARG001 - a RowsOf
    """Attention over the hidden state beside the embedding: heads of twice hidden // heads."""
    kv_heads = fields.integer_or_none("num_key_value_heads", high=MAX_HEADS) or fields.heads()
    own = None
    if fields.model_type == "zamba":
        own = fields.integer_or_none("attention_head_dim", "head_dim", high=MAX_DIM)
    width = own or 2 * fields.dim("hidden_size") // fields.heads()
    return Rows(kv_heads=kv_heads, k_dim=width, v_dim=width)


_MULTI_HEAD = (
    "bert", "bert-generation", "big_bird", "biogpt", "blip_text_model", "bloom", "camembert",
    "codegen", "ctrl", "data2vec-text", "electra", "ernie", "git", "gpt-sw3", "gpt2", "gpt_neo",
    "gpt_neox", "gpt_neox_japanese", "gptj", "imagegpt", "megatron-bert", "mpt", "opt",
    "persimmon", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xglm",
    "musicgen_decoder", "musicgen_melody_decoder", "trocr", "xlm", "xlm-roberta",
    "xlm-roberta-xl", "xmod", "semantic",
    "coarse_acoustics", "kosmos_2_text_model", "kosmos_2_5_text_model", "modernbert-decoder",
)  # fmt: skip

ROWS: Mapping[str, RowsOf] = {
    **dict.fromkeys(_MULTI_HEAD, multi_head),
    "blt_global_transformer": grouped_split,
    "blt_local_decoder": grouped_split,
    "blt_local_encoder": grouped_split,
    "cpmant": _multi_head_of("dim_head"),
    "dbrx": _dbrx,
    "deepseek_v4": _one_head,
    "diffusion_gemma_text": _gemma4,
    "falcon": _falcon,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "gpt_bigcode": _multi_query,
    "hrm_text": _multi_head_of("head_dim"),
    "inkling2_loop_text": _inkling,
    "inkling2_text": _inkling,
    "inkling_text": _inkling,
    "jetmoe": _jetmoe,
    "mimo_v2_flash": _mimo,
    "recurrent_gemma": grouped_split,
    "stablelm": grouped_split,
    "zamba": _zamba,
    "zamba2": _zamba,
}


# Latent attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The width of the latent vector and of its rope part, both cached once for all heads."""

    rank: int
    rope: int


LATENT_TYPES = frozenset(
    {
        "axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32",
        "dots3_note_text", "glm4_moe_lite", "glm5_next_text", "glm_moe_dsa", "hy_v4",
        "hy_v4_vl_text", "kimi_linear", "longcat_flash", "minicpm3", "mistral4",
        "mistral_large4_text", "sarvam_mla", "youtu",
    }
)  # fmt: skip


def latent(fields: Fields, kind: LayerKind) -> Latent:
    """Return the latent rows of a layer (MLA, cached compressed since 5.15.0)."""
    if fields.model_type == "dots3_note_text" and kind.kind == SLIDING:
        return _dots3_window(fields, kind)
    rope = _rope_width(fields)
    if not kind.rotates:
        rope = 0
    return Latent(rank=fields.dim("kv_lora_rank"), rope=rope)


def _rope_width(fields: Fields) -> int:
    """Return the rope part's width; a class that calls it `head_dim` takes that name first."""
    if fields.aliases.get("head_dim") == "qk_rope_head_dim" and "head_dim" in fields.raw:
        return checked_int(fields.raw["head_dim"], fields.at("head_dim"), low=0, high=MAX_DIM)
    return fields.dim("qk_rope_head_dim", low=0)


def _dots3_window(fields: Fields, kind: LayerKind) -> Latent:
    """Sliding layers have a latent of their own; its rope part is what `head_dim` leaves."""
    if fields.has("per_layer_config"):
        width = _own(fields, kind, "head_dim") or 0
        plain = _own(fields, kind, "qk_nope_head_dim") or 0
        rank = _own(fields, kind, "kv_lora_rank") or 0
    else:
        width = fields.integer("swa_head_dim", high=MAX_DIM, otherwise=256)
        plain = fields.integer("swa_qk_nope_head_dim", low=0, high=MAX_DIM, otherwise=192)
        rank = fields.integer("swa_kv_lora_rank", high=MAX_DIM, otherwise=1024)
    if width < plain:
        raise Conflict("{field} is {width}, less than its part without rope, {plain}",
                       field=fields.at("swa_head_dim"), width=width, plain=plain)  # fmt: skip
    return Latent(rank=rank, rope=width - plain)


# Index keys of sparse attention


def index_dim(fields: Fields, kind: LayerKind) -> int:
    """Return the width of the index key that a layer stores, 0 for one that borrows another's."""
    if kind.kind != INDEXED or kind.reads_index:
        return 0
    if fields.model_type == "qwen4_exp_text":
        return fields.dim("indexer_head_dim")
    width = fields.dim("index_head_dim")
    # GLM-5-next pools keys as they come: a key, its pooled value and one gate a token.
    return 2 * width + 1 if fields.model_type == "glm5_next_text" else width


def attention_parts(fields: Fields, kind: LayerKind) -> tuple[Part, ...]:
    """Return what the attention of one layer caches; nothing where it reads another's."""
    parts: list[Part] = []
    if not kind.reads_keys:
        if fields.model_type in LATENT_TYPES:
            rows = latent(fields, kind)
            parts.append(
                KeyValue(
                    kv_heads=1,
                    k_dim=rows.rank,
                    v_dim=rows.rope,
                    window=kind.window,
                    key_role="mla_latent",
                    value_role="mla_rope_key",
                )
            )
        else:
            heads = ROWS.get(fields.model_type, grouped)(fields, kind)
            extra = 0
            if fields.model_type == "cpmant":
                extra = fields.integer("prompt_length", low=0, high=MAX_DIM)
            parts.append(
                KeyValue(
                    kv_heads=heads.kv_heads,
                    k_dim=heads.k_dim,
                    v_dim=heads.v_dim,
                    window=kind.window,
                    extra_tokens=extra,
                )
            )
    width = index_dim(fields, kind)
    if width:
        # dots3 keeps its index keys in float32; the others in the model's dtype.
        dtype = "float32" if fields.model_type == "dots3_note_text" else None
        parts.append(IndexKeys(dim=width, dtype=dtype))
    return tuple(parts)
