"""Tables of a model's sizes that are no config.json: no model type, and names of other projects.

Such a table is read only where it gives every size that matters; what its project takes for an
absent one is stated. It says nothing of what it leaves out, so no default of a class fills it in.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.errors import Conflict, Missing, Unsupported, shown
from app.domain.notes import Note
from app.domain.state import (
    MAX_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    LatentAttention,
    Layer,
)
from app.readers.hf_config.attention import HeadShape, must_divide
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import FULL, SLIDING, every, sliding

TABLE = "(table)"  # no name that a config can give
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "num_decoder_layers", "layers")
_HEADS = ("num_attention_heads", "n_head", "num_q_heads", "numHeads")
_KV_HEADS = (
    "num_key_value_heads", "n_query_groups", "num_query_groups", "num_kv_heads", "numKvHeads",
)  # fmt: skip
_WIDTH = ("head_dim", "head_size", "kv_channels", "key_size", "headDim")
_HIDDEN = ("hidden_size", "n_embd", "emb_size", "hiddenDim")

# Fields by which a project's table is known, with its rule for absent KV heads: Megatron-Core
# (transformer_config.py) and GenZ (Models/default_models.py) then take as many as heads.
_DIALECTS: tuple[tuple[str | Note, frozenset[str], bool], ...] = (
    ("litgpt", frozenset({"n_query_groups", "head_size"}), False),
    ("llm-calc", frozenset({"numKvHeads", "headDim"}), False),
    ("GenZ", frozenset({"num_decoder_layers"}), True),
    ("Megatron", frozenset({"num_layers", "num_attention_heads"}), True),
    ("Grok", frozenset({"num_q_heads", "key_size"}), False),
    (Note("", "config.json without its model_type"), frozenset({"num_hidden_layers"}), False),
)
_READS = frozenset({
    "kv_lora_rank", "qk_rope_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "qk_nope_head_dim",
    "qk_head_dim", "q_lora_rank", "moe_ffn_hidden_size", "query_pre_attn_scalar",
    "disable_draft_kv_cache",
})  # fmt: skip


def dialect(raw: Mapping[str, object]) -> tuple[str | Note, bool] | None:
    """Return whose names a table uses, and whether absent KV heads there mean as many as heads."""
    for name, marks, as_heads in _DIALECTS:
        if all(mark in raw for mark in marks):
            return name, as_heads
    return None


def known_as(raw: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the model type whose rule fits a table, and what to overlay for it.

    A table that counts its layers by kind has no order of them; the order changes no total.
    """
    if "mamba_d_conv" in raw and "attn_layer_period" in raw:
        return "jamba", {"num_hidden_layers": raw.get("num_decoder_layers")}
    if "mamba_d_conv" in raw and raw.get("num_attention_heads") == 1:
        return "mamba", {
            "num_hidden_layers": raw.get("num_decoder_layers"),
            "state_size": raw.get("mamba_d_state"),
            "conv_kernel": raw.get("mamba_d_conv"),
            "expand": raw.get("mamba_expand"),
            "intermediate_size": None,  # of an MLP there, which these models have none of
        }
    if type(raw.get("hybrid_override_pattern")) is str:
        return "nemotron_h", {
            name: raw[own] for name, own in _MEGATRON_HYBRID.items() if own in raw
        }
    return _counted_as(raw)


def _counted_as(raw: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the type whose rule fits a table that counts its layers by kind."""
    counts = {name: raw.get(name) for name in _COUNTED if type(raw.get(name)) is int}
    if "linear_attention_layers" in counts and "linear_conv_kernel_dim" in raw:
        return "qwen3_5_text", {"layer_types": _counted(raw, "linear_attention_layers")}
    if "sparse_attention_layers" in counts and "index_head_dim" in raw:
        return "minimax_m3_vl_text", {"layer_types": _counted(raw, "sparse_attention_layers")}
    if "sliding_attention_layers" in counts and "swa_num_key_value_heads" in raw:
        return "mimo_v2_flash", {"layer_types": _counted(raw, "sliding_attention_layers")}
    return TABLE, {}


# What Megatron-Core's tables of hybrids call the sizes of nemotron_h; the width of the convolution
# is in none of them, and so must be given as `conv_kernel`.
_MEGATRON_HYBRID: Mapping[str, str] = {
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "ssm_state_size": "mamba_state_dim",
    "n_groups": "mamba_num_groups",
}
_COUNTED: Mapping[str, str] = {
    "linear_attention_layers": "linear_attention",
    "sparse_attention_layers": "minimax_m3_sparse",
    "sliding_attention_layers": SLIDING,
}


def _counted(raw: Mapping[str, object], name: str) -> list[str]:
    """Return one name a layer: those of the other kind, then the full ones."""
    other, full = raw.get(name), raw.get("full_attention_layers")
    if type(other) is not int or type(full) is not int or not 0 <= other <= MAX_LAYERS:
        raise Missing(
            "{field} is missing beside {other}", field="full_attention_layers", other=name
        )
    if not 0 <= full <= MAX_LAYERS:
        raise Conflict("{field} is no number of layers", field="full_attention_layers")
    return [_COUNTED[name]] * other + [FULL] * full


def _table_layers(fields: Fields) -> list[Layer]:
    count = fields.layers(*_LAYERS)
    attention = fields.part("attention")
    if attention is not None:
        kind = attention.text("type")
        if kind == "mla":
            return [_latent(attention, "kvLoraRank", "qkRopeHeadDim")] * count
        if kind != "full":
            raise Unsupported(
                "{field} is {value}; the table does not give all that such layers keep",
                field=attention.at("type"),
                value=shown(kind),
            )
    if fields.says("kv_lora_rank"):
        fields.seen(*_WIDTH, *_KV_HEADS)
        return [_latent(fields, "kv_lora_rank", "qk_rope_head_dim", "qk_pos_emb_head_dim")] * count
    _, as_heads = dialect(fields.raw) or ("", False)
    shape = _shape(fields, as_heads=as_heads)
    full = Layer(states=(shape.full(),))
    kinds = _kinds(fields, count)
    if SLIDING not in kinds:
        return [full] * count
    window = fields.integer("sliding_window", "sliding_window_size", high=MAX_TOKENS)
    narrow = Layer(states=(sliding(shape, window),))
    return [narrow if kind == SLIDING else full for kind in kinds]


def _latent(fields: Fields, rank: str, *rope: str) -> Layer:
    return Layer(
        states=(LatentAttention(latent_dim=fields.dim(rank), rope_dim=fields.dim(*rope, low=0)),)
    )


def _shape(fields: Fields, *, as_heads: bool) -> HeadShape:
    kv_heads = fields.integer_or_none(*_KV_HEADS, high=MAX_HEADS)
    if kv_heads is None and not as_heads:
        raise fields.missing(_KV_HEADS[0])
    heads = fields.integer_or_none(*_HEADS, high=MAX_HEADS)
    if kv_heads is None:
        if heads is None:
            raise fields.missing(_HEADS[0])
        fields.assume(
            "kv_heads_as_heads",
            "{field} is not given: {model_type} then has as many KV heads as heads, {value}",
            field=_KV_HEADS[0],
            model_type=Note("", "the table"),
            value=heads,
        )
        kv_heads = heads
    elif heads is not None:
        must_divide(heads, kv_heads, fields.at(fields.key(*_KV_HEADS) or _KV_HEADS[0]), "KV heads")
    width = fields.integer_or_none(*_WIDTH, high=MAX_DIM)
    if width is None:
        if heads is None:
            raise fields.missing(_WIDTH[0])
        hidden = fields.dim(*_HIDDEN)
        width = must_divide(hidden, heads, fields.at(fields.key(*_HEADS) or _HEADS[0]), "heads")
        fields.assume(
            "width_as_share",
            "no width of a head is given; it is taken to be {hidden} over {heads}, {value}",
            hidden=hidden,
            heads=heads,
            value=width,
        )
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _kinds(fields: Fields, count: int) -> list[str]:
    """Return which layers slide; a window that names none of them is refused."""
    marks = fields.integers("sliding_window_indices", length=count, high=1)
    if marks is not None:
        return [SLIDING if mark else FULL for mark in marks]
    for name in ("sliding_window", "sliding_window_size", "window_size"):
        if not fields.says(name):
            continue
        if fields.says("sliding_window_pattern"):
            kinds = every(1, "sliding_window_pattern")(fields, count, None)
            fields.seen("full_attention_layers", "sliding_attention_layers")
            return kinds
        if fields.says("sliding_attention_layers"):
            return _count_checked(fields, count)
        raise Unsupported(
            "{field} is {value}, and nothing says which layers it bounds",
            field=fields.at(name),
            value=shown(fields.value(name)),
        )
    return [FULL] * count


def _count_checked(fields: Fields, count: int) -> list[str]:
    slides = fields.integer("sliding_attention_layers", low=0, high=MAX_LAYERS)
    full = fields.integer("full_attention_layers", low=0, high=MAX_LAYERS)
    if slides + full != count:
        raise Conflict(
            "{field} is {slides}, and with {full} full layers that is not {count}",
            field=fields.at("sliding_attention_layers"),
            slides=slides,
            full=full,
            count=count,
        )
    fields.assume(
        "layer_order",
        "the table counts {slides} sliding and {full} full layers and not their order, which "
        "changes no total",
        slides=slides,
        full=full,
    )
    return [SLIDING] * slides + [FULL] * full


FAMILIES: tuple[Family, ...] = (
    Family(
        name="table",
        model_types=(TABLE,),
        layers=_table_layers,
        reads=_READS,
        source="the field names of each project: litgpt config.py, Megatron-Core "
        "transformer_config.py, GenZ default_models.py, grok-1 run.py",
    ),
)
