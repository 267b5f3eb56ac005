"""A plain decoder's cache: one cache layer for each of its layers."""

from __future__ import annotations

from app.domain.state import MAX_DIM, MAX_HEADS, MAX_TOKENS
from app.engines.transformers.attention import attention_parts, split_width
from app.engines.transformers.cache import CacheLayer, IndexKeys, Part
from app.engines.transformers.kinds import (
    CHUNKED,
    CSA,
    DUMMY,
    FULL,
    HCA,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    REFERENCE,
    SLIDING,
    SPARSE,
    LayerKind,
)
from app.engines.transformers.layer_types import layer_kinds
from app.engines.transformers.odd import Compressor, Compressors, ReferenceWindow, SharedWindow
from app.engines.transformers.states import states_of
from app.readers.hf_config.fields import Fields, is_mapping

# What the cache layer's class is called in an answer.
NAMES = {
    FULL: "full_attention",
    SLIDING: "sliding_attention",
    CHUNKED: "sliding_attention",
    INDEXED: "indexed_attention",
    LINEAR: "linear_attention",
    DUMMY: "none(dummy)",
    HYBRID: "hybrid",
    HYBRID_SLIDING: "hybrid_sliding",
    CSA: "DeepseekV4CSACache",
    HCA: "DeepseekV4HCACache",
    SPARSE: "MiniMaxM3VLSparseCacheLayer",
    REFERENCE: "UnlimitedOcrDynamicReferenceSlidingWindowLayer",
}


def decoder(fields: Fields, layers: int | None = None) -> list[CacheLayer]:
    """Return one cache layer for each decoder layer; equal ones share their parts."""
    count = fields.layers() if layers is None else layers
    return as_layers(fields, layer_kinds(fields, count))


def as_layers(fields: Fields, kinds: list[LayerKind]) -> list[CacheLayer]:
    """Return the cache layers of decoder layers of those kinds."""
    made = {kind: _parts(fields, kind) for kind in dict.fromkeys(kinds)}
    return [
        CacheLayer(index=index, kind=NAMES[kind.kind if made[kind] else DUMMY], parts=made[kind])
        for index, kind in enumerate(kinds)
    ]


def _parts(fields: Fields, kind: LayerKind) -> tuple[Part, ...]:
    if kind.kind == DUMMY:
        return ()
    if kind.kind == LINEAR:
        return (states_of(fields, kind),)
    if kind.kind in (CSA, HCA):
        return _compressed(fields, kind.kind)
    if kind.kind == REFERENCE:
        return (_reference(fields, kind),)
    parts = attention_parts(fields, kind)
    if kind.kind == SPARSE:
        parts = (*parts, _sparse_index(fields))
    if kind.kind in (HYBRID, HYBRID_SLIDING):
        parts = (*parts, states_of(fields, kind))
    return parts


def _sparse_index(fields: Fields) -> IndexKeys:
    """Return MiniMax-M3's index keys, which have an axis of one head."""
    width = fields.dim("index_head_dim")
    nested = fields.value("sparse_attention_config")
    if is_mapping(nested) and "sparse_index_dim" in nested:
        path = fields.at("sparse_attention_config")
        own = Fields(raw=nested, model_type=fields.model_type, path=path)
        width = own.integer("sparse_index_dim", high=MAX_DIM)
    return IndexKeys(dim=width, name="idx_keys", head_axis=True)


def _reference(fields: Fields, kind: LayerKind) -> ReferenceWindow:
    heads = fields.integer_or_none("num_key_value_heads", high=MAX_HEADS) or fields.heads()
    width = fields.integer_or_none("head_dim", high=MAX_DIM) or split_width(fields)
    return ReferenceWindow(kv_heads=heads, width=width, window=kind.window or 0)


def _compressed(fields: Fields, kind: str) -> tuple[Part, ...]:
    """Return DeepSeek-V4's compressed layer: K = V in a window, and its compressors."""
    width = fields.dim("head_dim")
    rate = _rate(fields, kind)
    window = fields.integer("sliding_window", high=MAX_TOKENS)
    overlap = kind == CSA
    each = [Compressor(name="compressor", width=width, rate=rate, overlap=overlap)]
    if overlap:
        index_width = fields.dim("index_head_dim")
        each.append(Compressor(name="indexer", width=index_width, rate=rate, overlap=True))
    return SharedWindow(width=width, window=window), Compressors(each=tuple(each))


def _rate(fields: Fields, kind: str) -> int:
    legacy = fields.integer_or_none(
        "compress_rate_csa" if kind == CSA else "compress_rate_hca", high=MAX_TOKENS
    )
    if legacy is not None:
        return legacy
    rates = fields.value("compress_rates")
    if is_mapping(rates):
        own = Fields(raw=rates, model_type=fields.model_type, path=fields.at("compress_rates"))
        return own.integer(kind, high=MAX_TOKENS)
    return 4 if kind == CSA else 128
