"""What one layer keeps for one sequence. A model is a tuple of layers; every ledger asks them.

The set of kinds is closed: full attention, sliding window, chunked attention, latent attention,
recurrent, cross-attention, shared. A layer may keep several states (attention beside a state-space
state, raw windows beside compressed entries). A new architecture is a reader, not a kind.

Each state answers three questions, and nothing else is asked of it:

- `kept_tokens(n)`: how many positions it holds once n tokens have gone through the model;
- `bytes_per_position(formats)`: what one held position takes;
- `fixed_bytes()`: what a non-empty sequence takes whatever its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

from app.domain.checks import checked_int
from app.domain.dtypes import DType
from app.domain.errors import Conflict, OutOfRange

MAX_LAYERS = 10_000
MAX_HEADS = 65_536
MAX_DIM = 1_048_576
MAX_TOKENS = 10**9
MAX_STATE_TENSORS = 64
MAX_STATE_BYTES = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """The formats in which a layer keeps its keys and its values."""

    key: DType
    value: DType


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Keys and values of every position (MHA, GQA, MQA): kv_heads × (k_dim + v_dim) elements each.

    `index_dim` counts the one-head index key that a sparse layer keeps beside them.
    """

    kind: ClassVar[str] = "full_attention"
    kv_heads: int
    k_dim: int
    v_dim: int
    index_dim: int = 0

    def __post_init__(self) -> None:
        _check_heads(self)
        checked_int(self.index_dim, "index_dim", low=0, high=MAX_DIM)

    def kept_tokens(self, tokens: int) -> int:
        """Return all of them."""
        return tokens

    def bytes_per_position(self, formats: KvFormat) -> int:
        """Return the bytes of one position, in the formats of this layer."""
        return _pair_bytes(self, formats) + _index_bytes(self.index_dim, formats)

    def fixed_bytes(self) -> int:
        """Return 0: everything here goes with the positions."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Keys and values of the last `window` − 1 positions: what the next query can still see.

    A window of w lets a query see itself and w − 1 earlier positions, so w − 1 must be kept.
    """

    kind: ClassVar[str] = "sliding_window"
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int

    def __post_init__(self) -> None:
        _check_heads(self)
        checked_int(self.window, "window", low=1, high=MAX_TOKENS)

    def kept_tokens(self, tokens: int) -> int:
        """Return the positions still in sight of the next query."""
        return min(tokens, self.window - 1)

    def bytes_per_position(self, formats: KvFormat) -> int:
        """Return the bytes of one position, in the formats of this layer."""
        return _pair_bytes(self, formats)

    def fixed_bytes(self) -> int:
        """Return 0: everything here goes with the positions."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedAttention:
    """Keys and values since the last chunk boundary; a query never looks across one (Llama 4)."""

    kind: ClassVar[str] = "chunked_attention"
    kv_heads: int
    k_dim: int
    v_dim: int
    chunk: int

    def __post_init__(self) -> None:
        _check_heads(self)
        checked_int(self.chunk, "chunk", low=1, high=MAX_TOKENS)

    def kept_tokens(self, tokens: int) -> int:
        """Return the positions since the last boundary; none when the next token opens a chunk."""
        return tokens % self.chunk

    def bytes_per_position(self, formats: KvFormat) -> int:
        """Return the bytes of one position, in the formats of this layer."""
        return _pair_bytes(self, formats)

    def fixed_bytes(self) -> int:
        """Return 0: everything here goes with the positions."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """One compressed vector for all heads (MLA): latent_dim + rope_dim elements a position.

    It has one head, so tensor ranks copy it and never split it. Sparse variants add an index key of
    `index_dim` elements (kept in `index_format` when that differs from the layer's own format). A
    `window` bounds it as in a sliding layer; `tokens_per_entry` > 1 keeps one entry for so many
    tokens once they are complete (the compressed forms of DeepSeek-V4).
    """

    kind: ClassVar[str] = "latent_attention"
    latent_dim: int
    rope_dim: int
    index_dim: int = 0
    index_format: DType | None = None
    window: int | None = None
    tokens_per_entry: int = 1

    def __post_init__(self) -> None:
        for name in ("latent_dim", "rope_dim", "index_dim"):
            checked_int(getattr(self, name), name, low=0, high=MAX_DIM)
        if self.latent_dim + self.rope_dim + self.index_dim == 0:
            raise OutOfRange("{field} must be at least 1 in a layer without index keys",
                             field="latent_dim")  # fmt: skip
        if self.window is not None:
            checked_int(self.window, "window", low=1, high=MAX_TOKENS)
        checked_int(self.tokens_per_entry, "tokens_per_entry", low=1, high=MAX_TOKENS)

    def kept_tokens(self, tokens: int) -> int:
        """Return the entries held: positions, or complete groups of them."""
        entries = tokens // self.tokens_per_entry
        return entries if self.window is None else min(entries, self.window - 1)

    def bytes_per_position(self, formats: KvFormat) -> int:
        """Return the bytes of one entry; latent, rope part and index key are rows of their own."""
        own = formats.key
        index = self.index_format or own
        rows = own.bytes_for(self.latent_dim) + own.bytes_for(self.rope_dim)
        return rows + index.bytes_for(self.index_dim)

    def fixed_bytes(self) -> int:
        """Return 0: everything here goes with the positions."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a recurrent layer for one sequence: its shape, and the format it is kept in.

    `split_axis` is the axis that tensor ranks divide, or None when every rank keeps it whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    split_axis: int | None = None

    def __post_init__(self) -> None:
        for axis, size in enumerate(self.shape):
            checked_int(size, (self.name, axis), low=0, high=MAX_STATE_BYTES)
        if self.split_axis is not None and not 0 <= self.split_axis < len(self.shape):
            raise OutOfRange("{field} names an axis that the shape lacks", field="split_axis")
        if self.elements > MAX_STATE_BYTES:
            raise OutOfRange(
                "{field} has more than {high} elements", field=self.name, high=MAX_STATE_BYTES
            )

    @property
    def elements(self) -> int:
        """Return the number of elements of one sequence."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of one sequence."""
        return self.dtype.bytes_for(self.elements, field=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A state of constant size: state-space, gated delta, short convolution, RWKV.

    Its formats are its own (often fp32) whatever the format of keys and values.
    """

    kind: ClassVar[str] = "recurrent"
    tensors: tuple[StateTensor, ...]

    def __post_init__(self) -> None:
        checked_int(len(self.tensors), "tensors", low=1, high=MAX_STATE_TENSORS)

    def kept_tokens(self, tokens: int) -> int:  # noqa: ARG002 - the same question to every kind
        """Return 0: no position is kept, only what they added up to."""
        return 0

    def bytes_per_position(self, formats: KvFormat) -> int:  # noqa: ARG002 - as above
        """Return 0: one more token adds nothing."""
        return 0

    def fixed_bytes(self) -> int:
        """Return the bytes of all its tensors for one sequence."""
        return sum(tensor.size_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Keys and values of the encoder's positions, written once, whatever the decoder's length."""

    kind: ClassVar[str] = "cross_attention"
    kv_heads: int
    k_dim: int
    v_dim: int
    encoder_tokens: int

    def __post_init__(self) -> None:
        _check_heads(self)
        checked_int(self.encoder_tokens, "encoder_tokens", low=0, high=MAX_TOKENS)

    def kept_tokens(self, tokens: int) -> int:
        """Return the encoder's positions for a sequence that has begun, none before."""
        return self.encoder_tokens if tokens else 0

    def bytes_per_position(self, formats: KvFormat) -> int:
        """Return the bytes of one encoder position, in the formats of this layer."""
        return _pair_bytes(self, formats)

    def fixed_bytes(self) -> int:
        """Return 0: everything here goes with the encoder's positions."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Nothing of its own: the layer reads what layer `with_layer` keeps."""

    kind: ClassVar[str] = "shared"
    with_layer: int

    def __post_init__(self) -> None:
        checked_int(self.with_layer, "with_layer", low=0, high=MAX_LAYERS)

    def kept_tokens(self, tokens: int) -> int:  # noqa: ARG002 - the same question to every kind
        """Return 0."""
        return 0

    def bytes_per_position(self, formats: KvFormat) -> int:  # noqa: ARG002 - as above
        """Return 0."""
        return 0

    def fixed_bytes(self) -> int:
        """Return 0."""
        return 0


State = (
    FullAttention
    | SlidingWindow
    | ChunkedAttention
    | LatentAttention
    | Recurrent
    | CrossAttention
    | Shared
)
Heads = FullAttention | SlidingWindow | ChunkedAttention | CrossAttention
STATE_KINDS: tuple[type[State], ...] = (
    FullAttention,
    SlidingWindow,
    ChunkedAttention,
    LatentAttention,
    Recurrent,
    CrossAttention,
    Shared,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """All that one layer keeps; empty for a layer that keeps nothing (an MLP or expert layer)."""

    states: tuple[State, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """`count` consecutive layers that keep the same."""

    layer: Layer
    count: int

    def __post_init__(self) -> None:
        checked_int(self.count, "count", low=1, high=MAX_LAYERS)


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """What a model keeps for one sequence: its layers in order, as runs of equal ones."""

    runs: tuple[LayerRun, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise OutOfRange("{field} must name at least one layer", field="layers")
        if self.num_layers > MAX_LAYERS:
            raise OutOfRange("{field} must be at most {high}, got {value}",
                             field="layers", high=MAX_LAYERS, value=self.num_layers)  # fmt: skip
        first = 0
        for run in self.runs:
            for state in run.layer.states:
                if isinstance(state, Shared):
                    self._check_shared(state.with_layer, first, run.count)
            first += run.count

    def _check_shared(self, with_layer: int, first: int, count: int) -> None:
        if with_layer >= self.num_layers:
            raise OutOfRange(
                "{field} names layer {value} of a model of {layers} layers",
                field="with_layer",
                value=with_layer,
                layers=self.num_layers,
            )
        if first <= with_layer < first + count:
            raise Conflict(
                "{field}: layer {layer} cannot share with itself",
                field="with_layer",
                layer=with_layer,
            )

    @classmethod
    def of_layers(cls, layers: list[Layer] | tuple[Layer, ...]) -> ModelState:
        """Return the model of these layers, equal neighbours joined into runs."""
        runs: list[LayerRun] = []
        for layer in layers:
            if runs and runs[-1].layer == layer:
                runs[-1] = LayerRun(layer=layer, count=runs[-1].count + 1)
            else:
                runs.append(LayerRun(layer=layer, count=1))
        return cls(runs=tuple(runs))

    @classmethod
    def uniform(
        cls, *, layers: int, kv_heads: int, head_dim: int, v_head_dim: int | None = None
    ) -> ModelState:
        """Return `layers` equal layers of full attention."""
        state = FullAttention(
            kv_heads=kv_heads, k_dim=head_dim, v_dim=head_dim if v_head_dim is None else v_head_dim
        )
        checked_int(layers, "layers", low=1, high=MAX_LAYERS)
        return cls(runs=(LayerRun(layer=Layer(states=(state,)), count=layers),))

    @cached_property
    def num_layers(self) -> int:
        """Return how many layers there are, counting those that keep nothing."""
        return sum(run.count for run in self.runs)

    @property
    def layers(self) -> Iterator[Layer]:
        """Yield the layers one by one, in order."""
        for run in self.runs:
            for _ in range(run.count):
                yield run.layer

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of state that occur."""
        return frozenset(state.kind for run in self.runs for state in run.layer.states)


def _check_heads(state: Heads) -> None:
    checked_int(state.kv_heads, "kv_heads", low=1, high=MAX_HEADS)
    checked_int(state.k_dim, "k_dim", low=0, high=MAX_DIM)
    checked_int(state.v_dim, "v_dim", low=0, high=MAX_DIM)
    if state.k_dim + state.v_dim == 0:
        raise OutOfRange("{field} must be at least 1 where v_dim is 0", field="k_dim")


def _pair_bytes(state: Heads, formats: KvFormat) -> int:
    """Return the bytes of one position's row of keys and row of values."""
    key = formats.key.bytes_for(state.kv_heads * state.k_dim)
    return key + formats.value.bytes_for(state.kv_heads * state.v_dim)


def _index_bytes(index_dim: int, formats: KvFormat) -> int:
    return formats.key.bytes_for(index_dim) if index_dim else 0
