"""What one layer asks of vLLM's block pool: one frozen class per kind, each answering for its size.

The rules are those of vLLM 0.33.0 v1/kv_cache_interface.py: bytes of one page (`block_size` tokens
in one layer), blocks that a request may hold at most, and which layers may stand in one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, prod
from typing import ClassVar, Self

ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """What bounds one request: the longest it may be, and what may be in flight meanwhile.

    `in_flight_tokens` are scheduled and not yet settled: batched tokens times concurrent batches.
    """

    max_model_len: int
    in_flight_tokens: int
    encoder_tokens: int = 0
    decode_context_parallel: int = 1

    def at(self, max_model_len: int) -> RequestBounds:
        """Return the same bounds for another maximum length."""
        return replace(self, max_model_len=max_model_len)


def ceil_div(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `value`."""
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Base of all kinds: `block_size` tokens of one layer make a page.

    `dcp_sharded`: decode context parallelism divides this cache's positions over ranks.
    `is_draft`: a speculative layer owns it; equality, and so grouping, does not see that.
    """

    kind: ClassVar[str]
    block_size: int
    dcp_sharded: bool = False
    is_draft: bool = field(default=False, compare=False)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        raise NotImplementedError

    @property
    def unpadded_page_bytes(self) -> int:
        """Bytes of one page that hold state."""
        return self.page_bytes

    @property
    def block_stride_bytes(self) -> int:
        """Bytes from one page to the next where each layer has a region of its own."""
        return self.page_bytes

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Return the most blocks that one request may hold."""
        raise NotImplementedError

    def has_slots_of(self, other: LayerSpec) -> bool:
        """Say whether the other always needs the same slots, so that one block table serves both.

        Block sizes and context sharding are compared by the caller.
        """
        return type(other) is type(self)

    def merged_with(self, other: LayerSpec) -> LayerSpec | None:
        """Return the one spec of a group of both, or None if they cannot stand for each other."""
        return self if self == other else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec(LayerSpec):
    """Keys and values of `kv_heads` heads on this rank, k_dim + v_dim elements of `dtype` each.

    `state_bytes` replaces (k_dim + v_dim) elements where a backend packs them with their scales;
    `head_slots` replaces kv_heads where it keeps keys and values apart. `tokens_per_state` above 1
    compresses tokens into one stored state, below 1 stores several for each. Only `distinct_ranks`
    tensor ranks hold something of their own, others a copy; equality does not see it.
    """

    dcp_sharded: bool = True
    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str
    quant_mode: str = "NONE"
    head_slots: int | None = None
    state_bytes: int | None = None
    tokens_per_state: Fraction = Fraction(1)
    page_bytes_padded: int | None = None
    max_tp_shards: int | None = None
    cache_dtype: str | None = None
    distinct_ranks: int | None = field(default=None, compare=False)
    stride_multiple_bytes: int = 1
    kernel_block_limit: int | None = None

    @property
    def unpadded_page_bytes(self) -> int:
        """Head slots, times states in a block, times bytes of a state."""
        slots = self.kv_heads if self.head_slots is None else self.head_slots
        state = self.state_bytes
        if state is None:
            state = (self.k_dim + self.v_dim) * ELEMENT_BYTES[self.dtype]
        each = self.tokens_per_state
        return slots * (self.block_size * each.denominator // each.numerator) * state

    @property
    def page_bytes(self) -> int:
        """The padded size where one was set."""
        if self.page_bytes_padded is not None:
            return self.page_bytes_padded
        return self.unpadded_page_bytes

    @property
    def block_stride_bytes(self) -> int:
        """The page, rounded up to what the kernels want a stride to divide by."""
        multiple = self.stride_multiple_bytes
        if self.kernel_block_limit is not None:
            kernel_block = gcd(self.kernel_block_limit, self.block_size)
            if kernel_block != self.block_size:
                multiple = replace(self, block_size=kernel_block).page_bytes
        return round_up(self.page_bytes, multiple)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSpec(AttentionSpec):
    """Every position; a window or a chunk is recorded where only the allocation is full."""

    kind: ClassVar[str] = "full_attention"
    window: int | None = None
    chunk: int | None = None

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Blocks of the whole request, or of this rank's share of it."""
        tokens = bounds.max_model_len
        if self.dcp_sharded:
            tokens = ceil_div(tokens, bounds.decode_context_parallel)
        return ceil_div(tokens, self.block_size)

    def has_slots_of(self, other: LayerSpec) -> bool:
        """All full kinds, latent ones too, hold the same positions."""
        return isinstance(other, FullSpec)

    def merged_with(self, other: LayerSpec) -> LayerSpec | None:
        """Full layers merge across recorded windows, if one window (or chunk) remains."""
        if type(self) is not FullSpec or type(other) is not FullSpec:
            return self if self == other else None
        window = _one_of(self.window, other.window)
        chunk = _one_of(self.chunk, other.chunk)
        bare = replace(self, window=None, chunk=None)
        if bare != replace(other, window=None, chunk=None):
            return None
        if window < 0 or chunk < 0 or (window and chunk):
            return None
        return replace(self, window=window or None, chunk=chunk or None)


def _one_of(first: int | None, second: int | None) -> int:
    """Return the value the two agree on (0 if neither has one), or -1 if they differ."""
    if first is None or second is None:
        return first or second or 0
    return first if first == second else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentWindowSpec(FullSpec):
    """Prompt wholly visible, generated tokens by a window (R-SWA); sized as full attention."""

    kind: ClassVar[str] = "rswa"
    rswa_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSpec(FullSpec):
    """Full attention with fixed sink tokens; sized as full attention."""

    kind: ClassVar[str] = "sink_full_attention"
    sink_len: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec(FullSpec):
    """One latent vector a state, no values of its own, the same on every tensor rank.

    `alignment`: the page is rounded up to a multiple of it (DeepSeek-V4).
    """

    kind: ClassVar[str] = "mla_attention"
    kv_heads: int = 1
    v_dim: int = 0
    cache_role: str = "sparse"
    is_index_leader: bool = False
    alignment: int | None = None
    topk_width: int | None = None

    @property
    def page_bytes(self) -> int:
        """The state, padded as set, or aligned."""
        return _aligned(self, self.alignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStateSpec(MlaSpec):
    """Hidden states kept for a client that wants them; grouped apart."""

    kind: ClassVar[str] = "hidden_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingSpec(AttentionSpec):
    """The last `window` positions, and the tokens in flight, since blocks are freed when settled.

    `extra_retained_tokens` stay behind the window for drafters of several modules.
    """

    kind: ClassVar[str] = "sliding_window"
    window: int
    extra_retained_tokens: int = 0

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Window - 1 earlier tokens and those in flight, in blocks, plus one.

        The window may begin inside a block: with 4-token blocks, [..CD][EF..] holds 4 tokens in 2.
        """
        held = self.window - 1 + self.extra_retained_tokens + bounds.in_flight_tokens
        return ceil_div(min(held, bounds.max_model_len), self.block_size) + 1

    def has_slots_of(self, other: LayerSpec) -> bool:
        """Windows of one width."""
        return isinstance(other, SlidingSpec) and other.window == self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingMlaSpec(SlidingSpec):
    """A latent kept by a window; also the ring of raw states that a compressor still needs."""

    kind: ClassVar[str] = "sliding_window_mla"
    kv_heads: int = 1
    v_dim: int = 0
    alignment: int | None = None

    @property
    def page_bytes(self) -> int:
        """The state, padded as set, or aligned."""
        return _aligned(self, self.alignment)

    def has_slots_of(self, other: LayerSpec) -> bool:
        """Latent windows of one width."""
        return isinstance(other, SlidingMlaSpec) and other.window == self.window


def _aligned(spec: AttentionSpec, alignment: int | None) -> int:
    if spec.page_bytes_padded is not None:
        return spec.page_bytes_padded
    size = spec.unpadded_page_bytes
    return size if alignment is None else round_up(size, alignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedSpec(AttentionSpec):
    """Positions of the current chunk and the tokens in flight; chunks begin with a block."""

    kind: ClassVar[str] = "chunked_local_attention"
    chunk: int

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """One chunk and what is in flight, never more than the request."""
        held = min(self.chunk + bounds.in_flight_tokens, bounds.max_model_len)
        return ceil_div(held, self.block_size)

    def has_slots_of(self, other: LayerSpec) -> bool:
        """Chunks of one length."""
        return isinstance(other, ChunkedSpec) and other.chunk == self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossSpec(AttentionSpec):
    """The encoder's positions, at the most that the scheduler lets in (not the model's own)."""

    kind: ClassVar[str] = "cross_attention"

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Blocks of the encoder's tokens."""
        return ceil_div(bounds.encoder_tokens, self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSpec(AttentionSpec):
    """One block a request: raw keys of the group of tokens that is still being compressed."""

    kind: ClassVar[str] = "circular_buffer"

    def blocks_per_request(self, bounds: RequestBounds) -> int:  # noqa: ARG002 - as every kind
        """One, for the request's whole life."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(LayerSpec):
    """States of constant size; the page does not depend on the block size.

    `cache_mode`: `none` keeps the running state, `align` a second one at block boundaries for
    prefix caching, `all` one for every block (0.16 to 0.31). Each speculative token keeps one more.
    """

    kind: ClassVar[str] = "mamba"
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    mamba_type: str = "mamba2"
    page_bytes_padded: int | None = None
    cache_mode: str = "none"
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    checkpoint_alignment: int | None = None
    tp_replicated: bool = False

    @property
    def unpadded_page_bytes(self) -> int:
        """Bytes of the states."""
        return sum(
            prod(shape) * ELEMENT_BYTES[dtype]
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    @property
    def page_bytes(self) -> int:
        """The states, or the attention page they were padded to."""
        if self.page_bytes_padded is not None:
            return self.page_bytes_padded
        return self.unpadded_page_bytes

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Running state, aligned state, checkpoints, and one a speculative token."""
        if self.cache_mode == "all":
            whole = ceil_div(bounds.max_model_len, self.block_size)
            return whole + self.speculative_blocks
        if self.cache_mode == "align":
            return 2 + self.speculative_blocks + self.checkpoint_blocks
        return 1 + self.speculative_blocks

    def has_slots_of(self, other: LayerSpec) -> bool:
        """States that are paged, sharded and checkpointed alike."""
        return (
            isinstance(other, MambaSpec)
            and other.page_bytes == self.page_bytes
            and other.speculative_blocks == self.speculative_blocks
            and other.checkpoint_blocks == self.checkpoint_blocks
            and other.checkpoint_alignment == self.checkpoint_alignment
            and other.tp_replicated == self.tp_replicated
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSpec(LayerSpec):
    """Layers that need the same slots but differ in bytes: one group, its page their sum."""

    kind: ClassVar[str] = "uniform_type"
    members: tuple[tuple[str, LayerSpec], ...]

    @classmethod
    def of(cls, members: Mapping[str, LayerSpec]) -> Self:
        """Return the group of these layers (their block size and sharding are the first's)."""
        first = next(iter(members.values()))
        return cls(
            block_size=first.block_size,
            dcp_sharded=first.dcp_sharded,
            members=tuple(members.items()),
        )

    @property
    def page_bytes(self) -> int:
        """Sum of the members' pages."""
        return sum(spec.page_bytes for _, spec in self.members)

    @property
    def unpadded_page_bytes(self) -> int:
        """Sum of the members' states."""
        return sum(spec.unpadded_page_bytes for _, spec in self.members)

    def blocks_per_request(self, bounds: RequestBounds) -> int:
        """Return the most that any member needs."""
        distinct = {id(spec): spec for _, spec in self.members}.values()
        return max(spec.blocks_per_request(bounds) for spec in distinct)
