"""What a model needs, read from the key–values of its GGUF header.

The header is read as llama.cpp reads it (`gguf_geometry`); this module says what the model itself
must keep, which may be less than an engine does: a latent model needs its compressed vector even
when an old file makes llama.cpp cache every head. Recurrent states are fp32, as llama.cpp keeps
them whatever the format of keys and values (src/llama-memory-recurrent.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.dtypes import dtype_named
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from app.readers.gguf_families import FAMILIES, Memory
from app.readers.gguf_geometry import CSA_RATIO, HCA_RATIO, CacheGeometry, read_geometry
from app.readers.gguf_keys import keys_of
from app.readers.reading import ModelReading

_FP32 = dtype_named("fp32")
# A compressor looks back over two groups of tokens (DSV4_CSA_RATIO × 2 rows of two halves).
_CSA_STATE_ROWS = 2 * CSA_RATIO


def read_gguf_model(values: Mapping[str, object]) -> ModelReading:
    """Return what a GGUF header says of the model: its layers, its context, what was assumed.

    Raises:
        Missing, WrongType, OutOfRange, Conflict: naming the key that is absent or wrong.
        Unsupported: for an architecture whose memory is not known.

    """
    geometry = read_geometry(values)
    name = values.get("general.name")
    layers = [_layer(geometry, index) for index in range(geometry.layers)]
    return ModelReading(
        state=ModelState.of_layers(layers[: geometry.trunk_layers]),
        family=geometry.architecture,
        name=name if isinstance(name, str) else "",
        max_context_tokens=geometry.context_tokens,
        draft_layers=tuple(layers[geometry.trunk_layers :]),
        assumptions=geometry.assumptions,
        notes=_notes(geometry, values),
    )


def _notes(geometry: CacheGeometry, values: Mapping[str, object]) -> tuple[Note, ...]:
    notes = []
    if geometry.memory is Memory.NONE:
        notes.append(
            Note(
                "no_cache",
                "{architecture} reads its input at once and keeps no state between steps",
                {"architecture": geometry.architecture},
            )
        )
    keys = keys_of(values)
    if FAMILIES[geometry.architecture].latent and not geometry.latent:
        notes.append(
            Note(
                "latent_cached_by_heads",
                "the file lacks {key}: llama.cpp caches the keys and values of every head,"
                " more than the compressed vector that the model needs",
                {"key": keys.name("attention.key_length_mla")},
            )
        )
    return tuple(notes)


def _layer(geometry: CacheGeometry, index: int) -> Layer:
    states: list[State] = []
    if geometry.attention[index]:
        states += _attention(geometry, index)
    if geometry.recurrent[index]:
        states += _recurrent(geometry)
    return Layer(states=tuple(states))


def _recurrent(geometry: CacheGeometry) -> list[State]:
    rows = (("conv", geometry.state_row_r), ("state", geometry.state_row_s))
    tensors = tuple(
        StateTensor(name=name, shape=(size,), dtype=_FP32) for name, size in rows if size
    )
    return [Recurrent(tensors=tensors)] if tensors else []


def _attention(geometry: CacheGeometry, index: int) -> list[State]:
    if not geometry.owned[index]:
        return [Shared(with_layer=_shared_with(geometry, index))]
    if geometry.memory is Memory.DSV4:
        return _compressed(geometry, index)
    if _is_latent(geometry):
        return [_latent(geometry, index)]
    return _by_heads(geometry, index)


def _by_heads(geometry: CacheGeometry, index: int) -> list[State]:
    heads, k_dim, v_dim = geometry.kv_heads[index], geometry.k_dims[index], geometry.v_dims[index]
    if heads == 0 or k_dim + v_dim == 0:
        return []
    if geometry.windowed[index] and geometry.chunked:
        return [ChunkedAttention(kv_heads=heads, k_dim=k_dim, v_dim=v_dim, chunk=geometry.window)]
    if geometry.windowed[index]:
        return [SlidingWindow(kv_heads=heads, k_dim=k_dim, v_dim=v_dim, window=geometry.window)]
    index_dim = geometry.index_dim if geometry.index_layers[index] else 0
    return [FullAttention(kv_heads=heads, k_dim=k_dim, v_dim=v_dim, index_dim=index_dim)]


def _is_latent(geometry: CacheGeometry) -> bool:
    return FAMILIES[geometry.architecture].latent_model and geometry.latent_dim > 0


def _latent(geometry: CacheGeometry, index: int) -> LatentAttention:
    """Return the compressed vector of one layer.

    In a file made for it the key row is that vector, so its rope part is what the latent leaves of
    it (a windowed layer of dots3note has a row and a rank of its own); in an older file the two
    parts have keys of their own.
    """
    if geometry.latent:
        row = geometry.k_dims[index]
        rope = min(geometry.rope_dim, row)
        latent = row - rope
    else:
        latent, rope = geometry.latent_dim, geometry.rope_dim
    return LatentAttention(
        latent_dim=latent,
        rope_dim=rope,
        index_dim=geometry.index_dim if geometry.index_layers[index] else 0,
        window=geometry.window if geometry.windowed[index] else None,
    )


def _shared_with(geometry: CacheGeometry, index: int) -> int:
    """Return the layer whose cache is read: the last owner, or the last but one for a window.

    At least two layers own a cache where any is shared. Source: the `reuse` callback of
    `create_memory` in src/llama-model.cpp.
    """
    return sum(geometry.owned) - (2 if geometry.windowed[index] else 1)


def _compressed(geometry: CacheGeometry, index: int) -> list[State]:
    """Return what a layer of DeepSeek-V4 keeps: a raw window, compressed entries, their compressor.

    Source: src/llama-kv-cache-dsv4.cpp; one entry for 4 or for 128 tokens, index keys beside the
    former, and fp32 rows in which the tokens of the open group add up.
    """
    width, ratio = geometry.k_dims[index], geometry.compress_ratios[index]
    rope = min(geometry.rope_dim, width)
    states: list[State] = [
        LatentAttention(latent_dim=width - rope, rope_dim=rope, window=geometry.window)
    ]
    if ratio not in {CSA_RATIO, HCA_RATIO}:
        return states
    index_dim = geometry.index_dim if ratio == CSA_RATIO else 0
    states.append(
        LatentAttention(
            latent_dim=width - rope,
            rope_dim=rope,
            index_dim=index_dim,
            tokens_per_entry=ratio,
        )
    )
    if ratio == CSA_RATIO:
        shapes = {
            "compressor": (2, _CSA_STATE_ROWS, 2 * width),
            "index_compressor": (2, _CSA_STATE_ROWS, 2 * index_dim),
        }
    else:
        shapes = {"compressor": (2, HCA_RATIO, width)}
    tensors = tuple(
        StateTensor(name=name, shape=shape, dtype=_FP32) for name, shape in shapes.items()
    )
    states.append(Recurrent(tensors=tensors))
    return states
