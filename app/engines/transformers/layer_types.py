"""Which kind of cache layer each decoder layer gets, and its window.

Transformers 5.24 (cache_utils.py, get_layer_types_and_kwargs): `layer_types` decides when the class
has or computes one; otherwise an integer `sliding_window`, then `attention_chunk_size`, makes every
layer sliding, even for a class whose attention ignores it. The patterns are those of each class's
__post_init__.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.errors import Conflict, Missing, Unsupported, shown
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
)
from app.engines.transformers.patterns import PATTERNS
from app.engines.transformers.windows import WINDOWS, layer_integer
from app.readers.hf_config.fields import Fields

_LEGACY = {
    "mamba": LINEAR,
    "attention": FULL,
    "deepseek_sparse_attention": INDEXED,
    "qwen_sparse_attention": INDEXED,
    "conv": LINEAR,
    "moe": DUMMY,
    "mlp": DUMMY,
}
_KNOWN = frozenset(
    {FULL, SLIDING, CHUNKED, INDEXED, LINEAR, DUMMY, HYBRID, HYBRID_SLIDING, CSA, HCA, SPARSE,
     REFERENCE}
)  # fmt: skip
_WINDOWED = frozenset({SLIDING, CHUNKED, HYBRID_SLIDING, REFERENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """The kind of one layer, and its window where it has one."""

    kind: str
    window: int | None = None


def layer_kinds(fields: Fields, layers: int) -> list[LayerKind]:
    """Return the kind of each of the decoder's layers.

    Raises:
        Conflict: when `layer_types` has another length than the model.
        Missing: for a sliding layer without a window.
        Unsupported: for a kind of layer that Transformers has no cache for.

    """
    kinds = _stated(fields, layers)
    if kinds is None:
        pattern = PATTERNS.get(fields.model_type)
        kinds = None if pattern is None else pattern(fields, layers)
    if kinds is None:
        return [_by_window(fields, index) for index in range(layers)]
    kinds = _finish(fields, kinds)
    return [
        LayerKind(kind=kind, window=_window(fields, kind, index) if kind in _WINDOWED else None)
        for index, kind in enumerate(kinds)
    ]


def _stated(fields: Fields, layers: int) -> list[str] | None:
    """Return `layer_types` (or `layers_block_type`) of the file, in today's names."""
    if fields.model_type in _COMPUTED:
        return None
    words = fields.words("layer_types", "layers_block_type")
    if words is None:
        return None
    kinds = [_LEGACY.get(word, word) for word in words]
    for index, kind in enumerate(kinds):
        if kind not in _KNOWN:
            raise Unsupported("{field} {value} has no cache layer in Transformers 5.24",
                              field=fields.at("layer_types", index), value=shown(kind))  # fmt: skip
    if fields.model_type in _CUT_TO_LAYERS:
        kinds = kinds[:layers]
    if len(kinds) != layers:
        raise Conflict("{field} has {count} entries for {layers} layers",
                       field=fields.at("layer_types"), count=len(kinds), layers=layers)  # fmt: skip
    return kinds


def _by_window(fields: Fields, index: int) -> LayerKind:
    window = layer_integer(fields, "sliding_window", index)
    if window is None:
        window = layer_integer(fields, "attention_chunk_size", index)
    return LayerKind(kind=FULL) if window is None else LayerKind(kind=SLIDING, window=window)


def _window(fields: Fields, kind: str, index: int) -> int:
    """Return the window of a sliding or chunked layer, as its class sets it."""
    name = "attention_chunk_size" if kind == CHUNKED else "sliding_window"
    special = WINDOWS.get(fields.model_type)
    if special is not None and kind != CHUNKED:
        window = special(fields)
    else:
        window = layer_integer(fields, name, index)
    if window is None:
        raise Missing("{field} is missing, and layer {layer} slides",
                      field=fields.at(name), layer=index)  # fmt: skip
    return window


# Classes whose layer_types is a property of other fields, whatever the file says under that name.
_COMPUTED = frozenset({"bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2",
                       "recurrent_gemma"})  # fmt: skip
_CUT_TO_LAYERS = frozenset({"deepseek_v4", "step3p5"})

# What a class does to the list once it has one.
_FORCED_LAST = frozenset({"diffusion_gemma_text", "embedding_gemma2_text", "gemma4_text",
                          "gemma4_unified_text"})  # fmt: skip
_INDEXED_FOR_FULL = frozenset({"glm5_next_text", "qwen4_exp_text"})


def _finish(fields: Fields, kinds: list[str]) -> list[str]:
    if fields.model_type in _FORCED_LAST and kinds:
        kinds = [*kinds[:-1], FULL]
    if fields.model_type in _INDEXED_FOR_FULL:
        kinds = [INDEXED if kind == FULL else kind for kind in kinds]
    if fields.model_type == "dots3_note_text":
        kinds = _dots3_indexed(fields, kinds)
    return kinds


def _dots3_indexed(fields: Fields, kinds: list[str]) -> list[str]:
    """Full layers of dots3 are indexed ones unless `use_dsa` is off; a saved file says which."""
    if "use_dsa" in fields.raw and fields.value("use_dsa") is not None:
        uses = fields.flag("use_dsa")
    elif fields.has("per_layer_config"):
        return kinds
    else:
        uses = True
    old, new = (FULL, INDEXED) if uses else (INDEXED, FULL)
    return [new if kind == old else kind for kind in kinds]
