"""The tensors that a Transformers cache holds, and how each kind of cache layer grows.

A cache is a list of layers, one class each (Transformers 5.24 cache_utils.py): grown by
concatenation, cut to a window, allocated whole, or of constant size. A layer here is one or more
parts; each part says which tensors it holds after a run. `bytes` is what the tensor's elements
take; `storage_bytes` what stays allocated for it, which is more where the tensor is a view of
something larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

ELEMENT_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1,
    "float8_e4m3fn": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A prefill of `prompt_tokens` in one forward pass, then `decode_steps` passes of one token.

    `static_tokens` is the length of a static cache, None for one that grows. `encoder_tokens` is
    what the cross-attention sees. `dtype` is the model's own.
    """

    batch: int
    prompt_tokens: int
    decode_steps: int
    dtype: str
    static_tokens: int | None = None
    encoder_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Return the positions that have gone through the model."""
        return self.prompt_tokens + self.decode_steps

    def after_prefill(self) -> Run:
        """Return the same run before its first decode step."""
        return replace(self, decode_steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """One tensor of a cache layer; one that aliases another takes no bytes of its own."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    storage_bytes: int
    alias_of: str | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of its elements."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


def held(
    name: str,
    role: str,
    shape: tuple[int, ...],
    dtype: str,
    *,
    stored: tuple[int, ...] | None = None,
    alias_of: str | None = None,
) -> HeldTensor:
    """Return a tensor; `stored` is the shape of what it is a view of, its own when not given."""
    elements = prod(shape if stored is None else stored)
    return HeldTensor(
        name=name,
        role=role,
        shape=shape,
        dtype=dtype,
        storage_bytes=elements * ELEMENT_BYTES[dtype],
        alias_of=alias_of,
    )


class Part(Protocol):
    """What a cache layer is made of."""

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the tensors held after the run."""
        ...

    def growth_peak_bytes(self, run: Run) -> int:
        """Return what one more token takes for a moment beside what is held."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """Keys and values [batch, heads, positions, width], whole or cut to a window.

    `extra_tokens` are positions that the model puts before the prompt (CPM-Ant's prompt slots).
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    key_role: str = "key"
    value_role: str = "value"
    extra_tokens: int = 0

    def positions(self, run: Run) -> tuple[int, int]:
        """Return how many positions are kept, and how many the kept ones are a view of.

        A sliding layer concatenates, then keeps the last window − 1 as a view: after a prefill the
        whole prompt stays allocated, from the first decode step on `window` positions. With a
        window of 1 the slice `[-0:]` keeps everything.
        """
        tokens = run.tokens + self.extra_tokens
        if run.static_tokens is not None:
            length = run.static_tokens
            length = length if self.window is None else min(length, self.window)
            return length, length
        if self.window is None or self.window == 1:
            return tokens, tokens
        kept = min(tokens, self.window - 1)
        return kept, min(tokens, self.window) if run.decode_steps else tokens

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the keys and the values."""
        kept, stored = self.positions(run)
        return tuple(
            held(
                name,
                role,
                (run.batch, self.kv_heads, kept, width),
                run.dtype,
                stored=(run.batch, self.kv_heads, stored, width),
            )
            for name, role, width in (
                ("keys", self.key_role, self.k_dim),
                ("values", self.value_role, self.v_dim),
            )
        )

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the copy that concatenation makes: K is copied while the old K lives, then V.

        A sliding layer makes both copies before it lets go of the old ones. A static cache writes
        in place.
        """
        if run.static_tokens is not None:
            return 0
        row = run.batch * self.kv_heads * ELEMENT_BYTES[run.dtype]
        longer = self.positions(run)[0] + 1
        if self.window is not None:
            return row * longer * (self.k_dim + self.v_dim)
        return row * max(longer * self.k_dim, self.k_dim + longer * self.v_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKeys:
    """The one-head index key of each position: [batch, positions, width], or with a head axis."""

    dim: int
    name: str = "indexer_keys"
    head_axis: bool = False
    dtype: str | None = None

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the index keys; they are never cut to a window."""
        length = run.tokens if run.static_tokens is None else run.static_tokens
        head = (1,) if self.head_axis else ()
        shape = (run.batch, *head, length, self.dim)
        return (held(self.name, "index_key", shape, self.dtype or run.dtype),)

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the longer copy that concatenation makes."""
        if run.static_tokens is not None:
            return 0
        return run.batch * (run.tokens + 1) * self.dim * ELEMENT_BYTES[self.dtype or run.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """A tensor of constant size, [batch, *shape], in the model's dtype where none is named.

    `stored_shape` is what it is a view of from the first decode step on.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str | None = None
    stored_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Recurrent and convolution states: allocated once and written in place."""

    rows: tuple[StateRow, ...]

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return the states, the same after any number of tokens."""
        return tuple(
            held(
                row.name,
                row.role,
                (run.batch, *row.shape),
                row.dtype or run.dtype,
                stored=self._stored(row, run),
            )
            for row in self.rows
        )

    @staticmethod
    def _stored(row: StateRow, run: Run) -> tuple[int, ...] | None:
        if row.stored_shape is None or run.decode_steps == 0:
            return None
        return (run.batch, *row.stored_shape)

    def growth_peak_bytes(self, run: Run) -> int:  # noqa: ARG002 - the same question to every part
        """Return 0: updated in place."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderKeyValue:
    """Keys and values of the encoder's positions, written once.

    A static cross cache is built with the decoder's layer types, so a window cuts its allocation.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    key_role: str = "cross_key"
    value_role: str = "cross_value"

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return them; nothing when the model is run without an encoder."""
        length = run.encoder_tokens
        if length is None:
            return ()
        if run.static_tokens is not None and self.window is not None:
            length = min(length, self.window)
        return tuple(
            held(name, role, (run.batch, self.kv_heads, length, width), run.dtype)
            for name, role, width in (
                ("keys", self.key_role, self.k_dim),
                ("values", self.value_role, self.v_dim),
            )
        )

    def growth_peak_bytes(self, run: Run) -> int:  # noqa: ARG002 - the same question to every part
        """Return 0: it never grows."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayer:
    """One entry of the cache's list; `index` is the model's layer that writes it."""

    index: int
    kind: str
    parts: tuple[Part, ...] = ()

    @property
    def has_encoder(self) -> bool:
        """Return whether it keeps an encoder's positions."""
        return any(isinstance(part, EncoderKeyValue) for part in self.parts)

    def held(self, run: Run) -> tuple[HeldTensor, ...]:
        """Return all its tensors after the run."""
        return tuple(tensor for part in self.parts for tensor in part.held(run))

    def growth_peak_bytes(self, run: Run) -> int:
        """Return the largest copy that one more token makes; parts are updated one by one."""
        return max((part.growth_peak_bytes(run) for part in self.parts), default=0)
