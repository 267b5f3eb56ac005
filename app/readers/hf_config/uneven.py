"""Decoders whose sliding layers have other heads than their full ones, or index keys in some."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.state import MAX_DIM, MAX_HEADS, MAX_TOKENS, Layer
from app.readers.hf_config.attention import HeadShape, grouped, per_layer
from app.readers.hf_config.draft import draft_count, like_the_last
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import (
    FULL,
    SLIDING,
    layer_kinds,
    nowhere,
    state_of,
    window_size,
)

SPARSE = "minimax_m3_sparse"


# MiMo-V2-Flash


def _mimo_layers(fields: Fields) -> list[Layer]:
    """Return MiMo-V2's layers: values narrower than keys; sliding layers have heads of their own.

    Transformers doubles the KV heads there; released files say `swa_num_key_value_heads`, which
    is the same number.
    """
    count = fields.layers()
    window = _mimo_window(fields)
    full = _mimo_heads(fields, "", None)
    narrow = _mimo_heads(fields, "swa_", full)
    kinds = layer_kinds(fields, count, _mimo_pattern, window)
    fields.seen("hybrid_layer_pattern", "attention_chunk_size", "hybrid_block_size")
    made = {
        kind: Layer(states=(state_of(fields, kind, full if kind == FULL else narrow, window),))
        for kind in set(kinds)
    }
    return [made[kind] for kind in kinds]


def _mimo_window(fields: Fields) -> int | None:
    """Return the window: `sliding_window_size` counts the positions before the query's own.

    The reference code (SGLang) attends to so many earlier positions and the query itself.
    """
    size = fields.integer_or_none("sliding_window_size", high=MAX_TOKENS - 1)
    if size is not None:
        fields.seen("sliding_window")
        return size + 1
    return window_size(fields)


def _mimo_heads(fields: Fields, prefix: str, full: HeadShape | None) -> HeadShape:
    """Return the heads of full layers, or with a prefix those of sliding ones."""
    if full is None:
        shape = grouped(fields)
        return HeadShape(
            kv_heads=shape.kv_heads,
            k_dim=shape.k_dim,
            v_dim=fields.integer("v_head_dim", high=MAX_DIM, otherwise=128),
        )
    heads = fields.integer_or_none(prefix + "num_key_value_heads", high=MAX_HEADS)
    if heads is None:
        heads = 2 * full.kv_heads
        fields.assume(
            "swa_kv_heads",
            "sliding layers of {model_type} have twice the KV heads of full ones, {value}",
            model_type=fields.model_type,
            value=heads,
        )
    width = fields.integer_or_none(prefix + "head_dim", high=MAX_DIM)
    value = fields.integer_or_none(prefix + "v_head_dim", high=MAX_DIM)
    return HeadShape(kv_heads=heads, k_dim=width or full.k_dim, v_dim=value or full.v_dim)


def _mimo_pattern(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
    """Return `hybrid_layer_pattern` (1 slides), else full in the first and every sixth layer."""
    given = fields.integers("hybrid_layer_pattern", length=layers, high=1)
    if given is not None:
        return [SLIDING if slides else FULL for slides in given]
    fields.assume(
        "layer_pattern",
        "the file does not say which layers have a window; {model_type} has full attention in "
        "the first layer and in every sixth",
        model_type=fields.model_type,
    )
    return [FULL if index == 0 or not (index + 1) % 6 else SLIDING for index in range(layers)]


# Step-3.7


def _step_layers(fields: Fields) -> list[Layer]:
    """Return Step-3.7's layers; the file's lists may run on into the draft layers."""
    return _step_all(fields)[: fields.layers()]


def _step_draft(fields: Fields) -> list[Layer]:
    return _step_all(fields)[fields.layers() :]


def _step_all(fields: Fields) -> list[Layer]:
    own = fields.layers()
    given = fields.items("layer_types")
    count = own + draft_count(fields)
    listed = own if given is None or len(given) == own else count
    window = window_size(fields)
    kinds = layer_kinds(fields, listed, nowhere, window)
    shape = grouped(fields)
    narrow = _step_sliding(fields, shape)
    per_layer(fields, own)
    made = {
        kind: Layer(states=(state_of(fields, kind, shape if kind == FULL else narrow, window),))
        for kind in set(kinds)
    }
    layers = [made[kind] for kind in kinds]
    return layers + [layers[-1]] * (count - listed)


def _step_sliding(fields: Fields, shape: HeadShape) -> HeadShape:
    """Return the heads of sliding layers, which `attention_other_setting` may give."""
    other = fields.part("attention_other_setting")
    fields.seen("num_sliding_attention_heads", "num_attention_heads")
    if other is None:
        return shape
    heads = other.integer_or_none(
        "num_attention_groups", "num_key_value_heads", low=1, high=MAX_HEADS
    )
    width = other.integer_or_none("head_dim", low=1, high=MAX_DIM)
    return HeadShape(
        kv_heads=heads or shape.kv_heads, k_dim=width or shape.k_dim, v_dim=width or shape.v_dim
    )


# MiniMax-M3


def _m3_layers(fields: Fields) -> list[Layer]:
    """Return MiniMax-M3's layers: sparse ones keep a one-head index key beside keys and values."""
    count = fields.layers()
    shape = grouped(fields)
    sparse = fields.part("sparse_attention_config")
    words: Mapping[str, str] = {FULL: FULL, SPARSE: SPARSE}
    kinds = layer_kinds(
        fields, count, lambda *_: _m3_kinds(fields, sparse, count), None, words=words
    )
    made = {FULL: Layer(states=(shape.full(),))}
    if SPARSE in kinds:
        named = sparse is not None and sparse.says("sparse_index_dim")
        width = (
            sparse.dim("sparse_index_dim")
            if named and sparse is not None
            else fields.dim("index_head_dim")
        )
        made[SPARSE] = Layer(states=(shape.full(index_dim=width),))
    return [made[kind] for kind in kinds]


def _m3_kinds(fields: Fields, sparse: Fields | None, count: int) -> list[str]:
    marks = sparse.integers("sparse_attention_freq", length=count, high=1) if sparse else None
    if marks is None:
        return nowhere(fields, count, None)
    if sparse is not None and not sparse.flag("use_sparse_attention", otherwise=True):
        return [FULL] * count
    return [SPARSE if mark else FULL for mark in marks]


FAMILIES: tuple[Family, ...] = (
    Family(
        name="mimo_v2",
        model_types=("mimo_v2_flash",),
        layers=_mimo_layers,
        reads=frozenset({"swa_num_attention_heads", "add_swa_attention_sink_bias"}),
        source="Transformers 5.24 models/mimo_v2_flash",
    ),
    Family(
        name="step3p7",
        model_types=("step3p5",),
        layers=_step_layers,
        draft=_step_draft,
        aliases={"num_key_value_heads": "num_attention_groups"},
        reads=frozenset({"mtp_layer_types", "use_head_wise_attn_gate"}),
        source="Transformers 5.24 models/step3p7/configuration_step3p7.py",
    ),
    Family(
        name="minimax_m3",
        model_types=("minimax_m3_vl_text",),
        layers=_m3_layers,
        draft=like_the_last(_m3_layers),
        reads=frozenset({
            "index_block_size", "index_topk_blocks", "index_local_blocks", "index_head_dim",
        }),
        source="Transformers 5.24 models/minimax_m3_vl/configuration_minimax_m3_vl.py",
    ),
)  # fmt: skip
