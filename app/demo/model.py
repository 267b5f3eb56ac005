"""A small decoder with seeded weights, on which the lab's whole-model experiments run.

Layers of grouped attention and a two-matrix MLP around a residual stream, without positions or
vocabulary: enough to let an error of one layer's cache travel through the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.demo.backends import Array, Backend
from app.demo.budget import Budget
from app.demo.caches import Cache, ContiguousCache, RowShape
from app.demo.masks import causal
from app.demo.quantise import Floats
from app.domain.checks import checked_int
from app.domain.errors import Conflict

MAX_MODEL_LAYERS = 16
MAX_MODEL_WIDTH = 1024
MAX_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of the small decoder."""

    layers: int = 4
    hidden: int = 64
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128

    def __post_init__(self) -> None:
        checked_int(self.layers, "layers", low=1, high=MAX_MODEL_LAYERS)
        for name in ("hidden", "query_heads", "kv_heads", "head_dim", "intermediate"):
            checked_int(getattr(self, name), name, low=1, high=MAX_MODEL_WIDTH)
        if self.query_heads % self.kv_heads:
            raise Conflict(
                "{field}: {value} do not divide over {kv_heads} KV heads",
                field="query_heads",
                value=self.query_heads,
                kv_heads=self.kv_heads,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerWeights:
    query: Array
    key: Array
    value: Array
    output: Array
    up: Array
    down: Array


class SmallModel:
    """Seeded weights on a backend; the same seed gives the same weights on every backend."""

    def __init__(self, backend: Backend, shape: ModelShape, *, seed: int) -> None:
        self.backend = backend
        self.shape = shape
        rng = np.random.default_rng(checked_int(seed, "seed", low=0, high=MAX_SEED))
        self._layers = [self._draw_layer(rng) for _ in range(shape.layers)]

    def inputs(self, tokens: int, *, seed: int) -> Floats:
        """Return seeded embeddings [tokens, hidden]."""
        rng = np.random.default_rng([seed, tokens])
        return rng.standard_normal((tokens, self.shape.hidden), dtype=np.float32)

    def new_caches(self, capacity: int, formats: Sequence[str]) -> list[ContiguousCache]:
        """Return one empty cache for each layer, in the format given for it."""
        width = self.shape.head_dim
        row = RowShape(heads=self.shape.kv_heads, key_width=width, value_width=width)
        return [
            ContiguousCache(self.backend, capacity=capacity, row=row, dtype=dtype)
            for dtype in formats
        ]

    def forward(self, rows: Array, caches: Sequence[Cache], budget: Budget) -> Array:
        """Put new rows [N, hidden] through all layers, appending to the caches; return [N, hidden].

        Raises:
            RunStopped: between layers, when the budget says so.

        """
        for weights, layer_cache in zip(self._layers, caches, strict=True):
            budget.check()
            rows = rows + self._attend(weights, self.backend.normalise(rows), layer_cache)
            inner = self.backend.linear(self.backend.normalise(rows), weights.up)
            rows = rows + self.backend.linear(self.backend.rectify(inner), weights.down)
        return rows

    def _attend(self, weights: _LayerWeights, rows: Array, layer_cache: Cache) -> Array:
        shape, backend = self.shape, self.backend
        past, new = layer_cache.length, int(rows.shape[0])

        def heads(matrix: Array, count: int) -> Array:
            return backend.linear(rows, matrix).reshape(new, count, shape.head_dim).swapaxes(0, 1)

        layer_cache.append(heads(weights.key, shape.kv_heads), heads(weights.value, shape.kv_heads))
        keys, values = layer_cache.read()
        queries = heads(weights.query, shape.query_heads)[None]
        mixed = backend.attend(queries, keys, values, causal(past, new)).outputs
        joined = mixed[0].swapaxes(0, 1).reshape(new, shape.query_heads * shape.head_dim)
        return backend.linear(joined, weights.output)

    def _draw_layer(self, rng: np.random.Generator) -> _LayerWeights:
        shape = self.shape
        queries, keys = shape.query_heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def matrix(rows: int, columns: int) -> Array:
            drawn = rng.standard_normal((rows, columns), dtype=np.float32)
            return self.backend.put(drawn / np.float32(np.sqrt(rows)))

        return _LayerWeights(
            query=matrix(shape.hidden, queries),
            key=matrix(shape.hidden, keys),
            value=matrix(shape.hidden, keys),
            output=matrix(queries, shape.hidden),
            up=matrix(shape.hidden, shape.intermediate),
            down=matrix(shape.intermediate, shape.hidden),
        )
