"""A model that is not a GGUF, seen as llama.cpp would hold it: from its layers and its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.domain.errors import Unsupported
from app.domain.notes import Note
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
)
from app.engines.head_split import language_model_of
from app.readers.gguf_families import Memory
from app.readers.gguf_geometry import CacheGeometry
from app.readers.latent_heads import latent_heads

NAME = "such layers"

# Tensors that hold a recurrent layer's last inputs; all others hold what they added up to.
_TAIL_WORDS = ("conv", "shift")


def _refused(template: str) -> Unsupported:
    return Unsupported("{field}: llama.cpp's cache for {what} is known from a GGUF header only",
                       field="model", what=Note("", template))  # fmt: skip


class _View:
    """The columns of the geometry, filled layer by layer."""

    def __init__(self) -> None:
        self.kv_heads: list[int] = []
        self.k_dims: list[int] = []
        self.v_dims: list[int] = []
        self.attention: list[bool] = []
        self.owned: list[bool] = []
        self.recurrent: list[bool] = []
        self.windowed: list[bool] = []
        self.windows: set[int] = set()
        self.index_dims: list[int] = []
        self.state_rows: set[tuple[int, int]] = set()
        self.latent_parts: set[tuple[int, int]] = set()
        self.chunked = False
        self.plain = False

    def add(self, layer: Layer) -> None:
        kept = [state for state in layer.states if not isinstance(state, Recurrent)]
        recurrent = [state for state in layer.states if isinstance(state, Recurrent)]
        if len(kept) > 1 or len(recurrent) > 1:
            raise _refused("layers that keep several states")
        self.recurrent.append(bool(recurrent))
        for state in recurrent:
            self.state_rows.add(_rows(state))
        self._add_attention(kept[0] if kept else None)

    def _add_attention(self, state: State | None) -> None:
        heads, k_dim, v_dim, window, index = 0, 0, 0, 0, 0
        if isinstance(state, FullAttention | SlidingWindow | ChunkedAttention):
            heads, k_dim, v_dim = state.kv_heads, state.k_dim, state.v_dim
            self.plain = True
            if isinstance(state, FullAttention):
                index = state.index_dim
            elif isinstance(state, SlidingWindow):
                window = state.window
            else:
                window, self.chunked = state.chunk, True
        elif isinstance(state, LatentAttention):
            if state.tokens_per_entry > 1:
                raise _refused("compressed entries")
            heads, index, window = 1, state.index_dim, state.window or 0
            k_dim, v_dim = state.latent_dim + state.rope_dim, state.latent_dim
            self.latent_parts.add((state.latent_dim, state.rope_dim))
        elif isinstance(state, CrossAttention):
            raise _refused("cross-attention")
        self.kv_heads.append(heads)
        self.k_dims.append(k_dim)
        self.v_dims.append(v_dim)
        self.attention.append(state is not None)
        self.owned.append(not isinstance(state, Shared))
        self.windowed.append(window > 0)
        self.index_dims.append(index)
        if window:
            self.windows.add(window)

    def check(self) -> None:
        """Refuse what one llama.cpp model cannot hold: it has one window, one latent, one state."""
        if len(self.windows) > 1:
            raise _refused("windows of different lengths")
        if len(self.state_rows) > 1:
            raise _refused("recurrent states of different sizes")
        if self.latent_parts and self.plain:
            raise _refused("latent beside plain attention")
        if len({dim for dim in self.index_dims if dim}) > 1:
            raise _refused("index keys of different widths")

    def memory(self) -> Memory:
        if any(self.recurrent):
            return Memory.HYBRID if any(self.attention) else Memory.RECURRENT
        if any(self.index_dims):
            return Memory.DSA if self.latent_parts else Memory.MSA
        return Memory.ATTENTION


def _rows(state: Recurrent) -> tuple[int, int]:
    """Return the elements of the tail and of the state of a recurrent layer."""
    tails = [t.elements for t in state.tensors if any(word in t.name for word in _TAIL_WORDS)]
    return sum(tails), sum(tensor.elements for tensor in state.tensors) - sum(tails)


def geometry_of(state: ModelState) -> CacheGeometry:
    """Return a model's layers as llama.cpp would hold them.

    Raises:
        Unsupported: for layers whose cache is known from a GGUF header only.

    """
    view = _View()
    for layer in state.layers:
        view.add(layer)
    view.check()
    latent_dim, rope_dim = max(view.latent_parts, default=(0, 0))
    row_r, row_s = max(view.state_rows, default=(0, 0))
    memory = view.memory()
    return CacheGeometry(
        architecture=NAME,
        memory=memory,
        layers=state.num_layers,
        draft_layers=0,
        kv_heads=tuple(view.kv_heads),
        k_dims=tuple(view.k_dims),
        v_dims=tuple(view.v_dims),
        # A layer that keeps nothing still has a place in the cache of a model without recurrence.
        attention=tuple(view.attention) if any(view.recurrent) else (True,) * state.num_layers,
        owned=tuple(view.owned),
        recurrent=tuple(view.recurrent),
        windowed=tuple(view.windowed),
        window=max(view.windows, default=0),
        chunked=view.chunked,
        latent=bool(view.latent_parts),
        latent_dim=latent_dim,
        rope_dim=rope_dim,
        index_dim=max(view.index_dims, default=0),
        index_layers=tuple(dim > 0 for dim in view.index_dims),
        index_values=memory is Memory.MSA,
        compress_ratios=(0,) * state.num_layers,
        state_row_r=row_r,
        state_row_s=row_s,
        rolls_back=bool(row_s or row_r),
        assumptions=(
            Note(
                "as_llama_cpp_would",
                "no GGUF was given: the layers are cached as llama.cpp caches such layers,"
                " and a recurrent model is taken to support roll-back states",
            ),
        ),
    )


# What the converter takes for the trained context, first come first served (convert_hf_to_gguf.py).
_LENGTHS = (
    "max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length",
    "model_max_length",
)  # fmt: skip


def with_trained_context(geometry: CacheGeometry, config: Mapping[str, object]) -> CacheGeometry:
    """Return the geometry with the trained context that a file converted from the config names."""
    text = language_model_of(config)
    given = (text.get(name) for name in _LENGTHS)
    tokens = next((value for value in given if type(value) is int and value > 0), None)
    if tokens is None:
        return geometry
    return replace(
        geometry,
        context_tokens=tokens,
        assumptions=(
            *geometry.assumptions,
            Note(
                "trained_context",
                "the context is the longest that the config names, {tokens} tokens",
                {"tokens": tokens},
            ),
        ),
    )


def heads_of(geometry: CacheGeometry, config: Mapping[str, object]) -> CacheGeometry | None:
    """Return the geometry of a file that lists the heads of its latents, as all did at first.

    Before compressed attention was cached as such (15 April 2025, #12801), and with a file made
    before that day ever after, every head's keys and values are kept. None where the config does
    not say the heads, or other layers stand beside the latents.
    """
    found = latent_heads(config)
    if found is None or not geometry.latent or geometry.memory is not Memory.ATTENTION:
        return None
    if geometry.window or not all(geometry.owned):
        return None
    every = geometry.layers
    return replace(
        geometry,
        kv_heads=(found.heads,) * every,
        k_dims=(found.k_dim,) * every,
        v_dims=(found.v_dim,) * every,
        latent=False,
        assumptions=(
            *geometry.assumptions,
            Note(
                "latents_as_heads",
                "the file is of the days before compressed attention was cached as such: keys and"
                " values of all {heads} heads are kept",
                {"heads": found.heads},
            ),
        ),
    )
