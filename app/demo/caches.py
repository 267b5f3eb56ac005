"""Caches of one layer and one sequence: contiguous, and paged through a block table.

Both keep rows in one of the lab's formats and give them back as [1, heads, T, width]. A row is
encoded by itself, so the two give back the same values to the last bit, wherever a row lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.demo.backends import Array, Backend
from app.demo.quantise import Encoded
from app.domain.errors import OutOfRange


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """What one position keeps: a key and a value for each head."""

    heads: int
    key_width: int
    value_width: int


def _empty(backend: Backend, shape: tuple[int, ...], dtype: str) -> Encoded:
    return backend.encode(backend.put(np.zeros(shape, dtype=np.float32)), dtype)


class ContiguousCache:
    """Room for `capacity` positions in a row, reserved at once."""

    def __init__(self, backend: Backend, *, capacity: int, row: RowShape, dtype: str) -> None:
        self._backend = backend
        self._dtype = dtype
        self._capacity = capacity
        self._keys = _empty(backend, (row.heads, capacity, row.key_width), dtype)
        self._values = _empty(backend, (row.heads, capacity, row.value_width), dtype)
        self.length = 0

    def append(self, keys: Array, values: Array) -> None:
        """Add positions; keys and values are [heads, N, width].

        Raises:
            OutOfRange: when they do not fit.

        """
        end = self.length + int(keys.shape[1])
        if end > self._capacity:
            raise OutOfRange(
                "{field} is {value} positions, and the cache has room for {high}",
                field="length_tokens",
                value=end,
                high=self._capacity,
            )
        here = (slice(None), slice(self.length, end))
        self._keys.put(here, self._backend.encode(keys, self._dtype))
        self._values.put(here, self._backend.encode(values, self._dtype))
        self.length = end

    def rewind(self, length: int) -> None:
        """Forget the positions beyond `length`; their rows will be written over."""
        self.length = min(self.length, length)

    def read(self) -> tuple[Array, Array]:
        """Return all keys and values so far."""
        here = (slice(None), slice(0, self.length))
        keys = self._backend.decode(self._keys.at(here))
        values = self._backend.decode(self._values.at(here))
        return keys[None], values[None]

    @property
    def size_bytes(self) -> int:
        """Return the bytes reserved."""
        return self._keys.size_bytes + self._values.size_bytes


class PagePool:
    """Blocks of `block_size` positions that any sequence may hold, in any order."""

    def __init__(
        self, backend: Backend, *, blocks: int, block_size: int, row: RowShape, dtype: str
    ) -> None:
        self.backend = backend
        self.block_size = block_size
        self.dtype = dtype
        self.keys = _empty(backend, (blocks, block_size, row.heads, row.key_width), dtype)
        self.values = _empty(backend, (blocks, block_size, row.heads, row.value_width), dtype)


class PagedCache:
    """One sequence in a pool: its block table says which block holds which of its positions."""

    def __init__(self, pool: PagePool, block_table: Sequence[int]) -> None:
        self._pool = pool
        self._table = list(block_table)
        self.length = 0

    def append(self, keys: Array, values: Array) -> None:
        """Add positions one by one, each into its slot; keys and values are [heads, N, width].

        Raises:
            OutOfRange: when the block table has no block for a position.

        """
        pool = self._pool
        high = len(self._table) * pool.block_size
        for offset in range(int(keys.shape[1])):
            if self.length >= high:
                raise OutOfRange(
                    "{field} is {value} positions, and the cache has room for {high}",
                    field="length_tokens",
                    value=self.length + 1,
                    high=high,
                )
            block, slot = divmod(self.length, pool.block_size)
            here = (self._table[block], slot)
            pool.keys.put(here, pool.backend.encode(keys[:, offset], pool.dtype))
            pool.values.put(here, pool.backend.encode(values[:, offset], pool.dtype))
            self.length += 1

    def read(self) -> tuple[Array, Array]:
        """Return all keys and values so far, gathered through the block table."""
        return self._gather(self._pool.keys), self._gather(self._pool.values)

    def _gather(self, pool: Encoded) -> Array:
        backend = self._pool.backend
        used = -(-self.length // self._pool.block_size)
        blocks = backend.decode(pool.at(backend.index(self._table[:used])))
        rows = blocks.reshape(used * self._pool.block_size, *blocks.shape[2:])[: self.length]
        return rows.swapaxes(0, 1)[None]


Cache = ContiguousCache | PagedCache
