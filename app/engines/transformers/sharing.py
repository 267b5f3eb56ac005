"""Layers that read what another one keeps, and other facts that tell layers apart.

Transformers 5.24: kv_sharing_modes, indexer_types and no_rope_layers of models/<type>/.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.errors import Conflict
from app.domain.state import MAX_LAYERS
from app.engines.transformers.kinds import LayerKind
from app.readers.hf_config.fields import Fields

_LAST_LAYERS_SHARE = frozenset(
    {"diffusion_gemma_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text"}
)
_SHARED_INDEX = frozenset(
    {"glm5_next_text", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text"}
)


def with_sharing(fields: Fields, layers: list[LayerKind]) -> list[LayerKind]:
    """Return the layers with what they read of others."""
    kind, count = fields.model_type, len(layers)
    keys = index = [False] * count
    rotates, ngrams = [True] * count, [False] * count
    if kind in _LAST_LAYERS_SHARE:
        shared = fields.integer("num_kv_shared_layers", low=0, high=count, otherwise=0)
        keys = [position >= count - shared for position in range(count)]
    if kind == "mistral_large4_text":
        sources = _exactly(fields, "kv_source_layers", count)
        keys = [sources is not None and sources[i] != i for i in range(count)]
        rotates = _rotating(fields, count)
    if kind in _SHARED_INDEX:
        index = _borrowing(fields, count)
    if kind == "qwen4_exp_text":
        numbered = set(fields.integers("ple_layer_ids", high=MAX_LAYERS) or ())
        ngrams = [position + 1 in numbered for position in range(count)]
    if not (any(keys) or any(index) or any(ngrams)) and all(rotates):
        return layers
    return [
        replace(layer, reads_keys=k, reads_index=i, rotates=r, ngrams=n)
        for layer, k, i, r, n in zip(layers, keys, index, rotates, ngrams, strict=True)
    ]


def _exactly(fields: Fields, name: str, count: int) -> list[int] | None:
    values = fields.integers(name, high=MAX_LAYERS)
    if values is not None and len(values) != count:
        raise Conflict(
            "{field} has {entries} entries for {layers} layers",
            field=fields.at(name),
            entries=len(values),
            layers=count,
        )
    return values


def _rotating(fields: Fields, count: int) -> list[bool]:
    """Return which layers rotate; `no_rope_layers` has a 1 for those that do."""
    given = _exactly(fields, "no_rope_layers", count)
    if given is not None:
        return [bool(flag) for flag in given]
    each = fields.integer("no_rope_layer_interval", high=MAX_LAYERS, otherwise=4)
    return [bool((position + 1) % each) for position in range(count)]


def _borrowing(fields: Fields, count: int) -> list[bool]:
    """Return which layers use the index of an earlier one ("shared")."""
    words = fields.words("indexer_types")
    if words is None and fields.model_type.startswith("hy_v4"):
        return [not (position == 0 or (position - 1) % 4 == 0) for position in range(count)]
    if words is None:
        pattern = fields.value("index_topk_pattern")
        if isinstance(pattern, str):
            words = ["shared" if letter == "S" else "full" for letter in pattern[:MAX_LAYERS]]
        else:
            words = fields.words("index_topk_pattern")
    if words is None:
        each = max(fields.integer("index_topk_freq", low=0, high=MAX_LAYERS, otherwise=1), 1)
        offset = fields.integer("index_skip_topk_offset", low=0, high=MAX_LAYERS, otherwise=2)
        return [max(position - offset + 1, 0) % each != 0 for position in range(count)]
    if len(words) < count:
        raise Conflict(
            "{field} has {entries} entries for {layers} layers",
            field=fields.at("indexer_types"),
            entries=len(words),
            layers=count,
        )
    return [word == "shared" for word in words[:count]]
