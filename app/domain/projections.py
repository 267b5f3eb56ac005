"""The matrices that a token passes through beside attention, and their multiply–accumulates.

A matrix of m × n costs one token m · n multiply–accumulates and is read once by a pass, so its
number of weights is both. What a configuration does not say is left out, and said to be.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import Conflict, Missing, OutOfRange
from app.domain.state import (
    MAX_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
)

MAX_VOCABULARY = 2**26
MAX_INTERMEDIATE = 2**26
MAX_MLP_MATRICES = 3

# One number for all layers, or one for each.
PerLayer = int | tuple[int, ...]
AttentionState = FullAttention | SlidingWindow | ChunkedAttention | LatentAttention | CrossAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentProjections:
    """Widths of the matrices around a latent layer (MLA; DeepSeek-V2, arXiv:2405.04434).

    A head's query and key have `nope_dim` elements without position (beside the state's rope part)
    and its value `v_dim`. `query_rank` is the width through which queries are compressed, 0 where
    they are projected directly.
    """

    nope_dim: int
    v_dim: int
    query_rank: int = 0

    def __post_init__(self) -> None:
        checked_int(self.nope_dim, "nope_dim", low=0, high=MAX_DIM)
        checked_int(self.v_dim, "v_dim", low=1, high=MAX_DIM)
        checked_int(self.query_rank, "query_rank", low=0, high=MAX_DIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionShape:
    """Sizes of a decoder around its caches; None where the source does not say.

    `intermediate_size` is the width that one token uses: with experts, those it is sent to times
    their width, shared ones added. `mlp_matrices` is 3 with a gate and 2 without. `experts` are
    those that the router scores. Per-layer numbers are a tuple in layer order.
    """

    hidden_size: int | None = None
    query_heads: PerLayer | None = None
    intermediate_size: PerLayer | None = None
    vocab_size: int | None = None
    mlp_matrices: int = 3
    experts: PerLayer = 0
    latent: LatentProjections | None = None

    def __post_init__(self) -> None:
        if self.hidden_size is not None:
            checked_int(self.hidden_size, "hidden_size", low=1, high=MAX_DIM)
        if self.vocab_size is not None:
            checked_int(self.vocab_size, "vocab_size", low=1, high=MAX_VOCABULARY)
        checked_int(self.mlp_matrices, "mlp_matrices", low=2, high=MAX_MLP_MATRICES)
        _check_per_layer(self.query_heads, "query_heads", high=MAX_HEADS)
        _check_per_layer(self.intermediate_size, "intermediate_size", high=MAX_INTERMEDIATE)
        _check_per_layer(self.experts, "experts", high=MAX_HEADS)

    def check_layers(self, num_layers: int) -> None:
        """Refuse per-layer numbers that are not one for each layer of the model."""
        for name in ("query_heads", "intermediate_size", "experts"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != num_layers:
                raise Conflict(
                    "{field} must have one entry for each of the {layers} layers, got {value}",
                    field=name,
                    layers=num_layers,
                    value=len(value),
                )

    def query_heads_of(self, index: int, state: AttentionState) -> int:
        """Return the query heads of layer `index`; those of its cache where nothing was said.

        Raises:
            Missing: for a latent layer, whose one cached head says nothing about its queries.
            Conflict: when query heads do not divide into groups over the KV heads.

        """
        heads = _of_layer(self.query_heads, index)
        if isinstance(state, LatentAttention):
            if heads is None:
                raise Missing("{field} is required for latent attention", field="query_heads")
            return heads
        if heads is None:
            return state.kv_heads
        if heads == 0 or heads % state.kv_heads:
            raise Conflict(
                "{field}: {value} do not divide over the {kv_heads} KV heads of layer {layer}",
                field="query_heads",
                value=heads,
                kv_heads=state.kv_heads,
                layer=index,
            )
        return heads

    def mlp_weights(self, index: int) -> int:
        """Return the weights of layer `index` that one token uses outside attention."""
        if self.hidden_size is None:
            return 0
        width = _of_layer(self.intermediate_size, index) or 0
        router = _of_layer(self.experts, index) or 0
        return self.hidden_size * (self.mlp_matrices * width + router)

    def logits_weights(self) -> int:
        """Return the weights of the matrix that turns the last position into logits."""
        return (self.hidden_size or 0) * (self.vocab_size or 0)

    def token_weights(
        self, state: AttentionState, heads: int, *, owns_cache: bool, asks: bool = True
    ) -> int:
        """Return the attention matrices' weights that each decoded position passes.

        `owns_cache` is False for a layer that reads another's cache: it has queries and an output,
        but no keys and values. `asks` is False for a latent state that is read by queries already
        counted. Cross-attention's keys and values are `encoder_weights`.
        """
        hidden = self.hidden_size or 0
        if isinstance(state, LatentAttention):
            return self._latent_weights(state, heads, owns_cache=owns_cache, asks=asks)
        own = owns_cache and not isinstance(state, CrossAttention)
        return hidden * (heads + (state.kv_heads if own else 0)) * (state.k_dim + state.v_dim)

    def encoder_weights(self, state: CrossAttention) -> int:
        """Return the weights that each encoder position passes to become a key and a value."""
        return (self.hidden_size or 0) * state.kv_heads * (state.k_dim + state.v_dim)

    def _latent_weights(
        self, state: LatentAttention, heads: int, *, owns_cache: bool, asks: bool
    ) -> int:
        """Return the compression, and with the queries their matrices, expansions and output."""
        if self.hidden_size is None or self.latent is None:
            return 0
        hidden, parts = self.hidden_size, self.latent
        compress = hidden * (state.latent_dim + state.rope_dim) if owns_cache else 0
        if not asks:
            return compress
        query_width = heads * (parts.nope_dim + state.rope_dim)
        if parts.query_rank:
            query = (hidden + query_width) * parts.query_rank
        else:
            query = hidden * query_width
        expand = state.latent_dim * heads * (parts.nope_dim + parts.v_dim)
        return compress + query + expand + heads * parts.v_dim * hidden


def _of_layer(value: PerLayer | None, index: int) -> int | None:
    return value[index] if isinstance(value, tuple) else value


def _check_per_layer(value: PerLayer | None, field: str, *, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, tuple):
        checked_int(value, field, low=0, high=high)
        return
    if len(value) > MAX_LAYERS:
        raise OutOfRange(
            "{field} must have at most {high} entries, got {value}",
            field=field,
            high=MAX_LAYERS,
            value=len(value),
        )
    for index, item in enumerate(value):
        checked_int(item, (field, index), low=0, high=high)
