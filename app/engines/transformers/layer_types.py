"""Which kind of cache layer each decoder layer gets, and its window.

Transformers 5.24 (cache_utils.py, get_layer_types_and_kwargs): `layer_types` decides when the class
has or computes one; otherwise an integer `sliding_window`, then `attention_chunk_size`, makes every
layer sliding, even for a class whose attention ignores it. The patterns are those of each class's
__post_init__.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.domain.errors import Conflict, Missing, Unsupported, shown
from app.domain.state import MAX_TOKENS
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
from app.engines.transformers.patterns import PATTERNS
from app.engines.transformers.sharing import with_sharing
from app.engines.transformers.windows import own_integers, window_of
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


def layer_kinds(fields: Fields, layers: int) -> list[LayerKind]:
    """Return what each of the decoder's layers is.

    Raises:
        Conflict: when `layer_types` has another length than the model.
        Missing: for a sliding layer without a window.
        Unsupported: for a kind of layer that Transformers has no cache for.

    """
    kinds = _stated(fields, layers)
    if kinds is None:
        pattern = PATTERNS.get(fields.model_type)
        kinds = None if pattern is None else pattern(fields, layers)
    own = own_integers(fields)
    sizes = _Sizes(
        window=window_of(fields),
        chunk=fields.integer_or_none("attention_chunk_size", low=0, high=MAX_TOKENS),
    )
    if kinds is None:
        bare = [_by_window(sizes, own.get(index, ())) for index in range(layers)]
    else:
        bare = [
            LayerKind(kind=kind, window=_window(fields, kind, sizes, own.get(index, ())))
            for index, kind in enumerate(_finish(fields, kinds))
        ]
    return with_sharing(fields, [replace(k, own=own.get(i, ())) for i, k in enumerate(bare)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    window: int | None
    chunk: int | None


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


def _by_window(sizes: _Sizes, own: tuple[tuple[str, int | None], ...]) -> LayerKind:
    window = dict(own).get("sliding_window", sizes.window)
    if window is None:
        window = dict(own).get("attention_chunk_size", sizes.chunk)
    return LayerKind(kind=FULL) if window is None else LayerKind(kind=SLIDING, window=window)


def _window(
    fields: Fields, kind: str, sizes: _Sizes, own: tuple[tuple[str, int | None], ...]
) -> int | None:
    """Return the window of a layer that slides, None for another."""
    if kind not in _WINDOWED:
        return None
    name = "attention_chunk_size" if kind == CHUNKED else "sliding_window"
    window = dict(own).get(name, sizes.chunk if kind == CHUNKED else sizes.window)
    if window is None:
        raise Missing("{field} is missing, and layer_types names layers that slide",
                      field=fields.at(name))  # fmt: skip
    return window


# Classes whose layer_types is a property of other fields, whatever the file says under that name.
_COMPUTED = frozenset({"bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2",
                       "recurrent_gemma"})  # fmt: skip
_CUT_TO_LAYERS = frozenset({"deepseek_v4", "step3p5"})

# What a class does to the list once it has one.
_FORCED_LAST = frozenset({"diffusion_gemma_text", "gemma4_text",
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
