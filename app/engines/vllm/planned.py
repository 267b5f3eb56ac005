"""What a plan answers: groups, ranks, figures of the pool, and the bytes of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from app.domain.checks import checked_int
from app.domain.notes import Note
from app.engines.vllm.blocks import BlockGrowth
from app.engines.vllm.specs import RequestBounds
from app.engines.vllm.spending import RequestBytes, Spent, request_bytes
from app.engines.vllm.types import Group, Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One cache group: `layers` share a block table of blocks of `block_size` tokens.

    `page_size_bytes` is one block in one layer (in all layers, for a group of mixed pages).
    """

    kind: str
    layers: int
    block_size: int
    page_size_bytes: int
    blocks_per_request: int
    kv_heads: int | None
    k_dim: int | None
    v_dim: int | None
    window: int | None
    layer_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRank:
    """One pipeline stage; each of its tensor ranks holds the same bytes.

    `own_blocks` is what its memory would give; the pool is the smallest stage's. None where the
    plan was made without bytes. `unused_bytes` are 0 where blocks set by hand exceed the memory.
    `estimated_max_model_len` is the longest request that its own check would let through, None
    where it lets the plan's through.
    """

    pipeline_rank: int
    tensor_ranks: int
    first_layer: int
    last_layer: int
    caches: int
    bytes_per_block: int
    available_bytes: int | None
    own_blocks: int | None
    allocated_bytes: int | None
    unused_bytes: int | None
    needed_bytes: int
    estimated_max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlan:
    """The engine's view of one model: pool, printed figures, and where the bytes of a request go.

    Figures of the pool are None where no bytes were given, or where the engine would refuse to
    start (`refused`; its error is the last printed line, and `estimated_max_model_len` what would
    fit). `max_concurrency` is exact. `request` is one request of `max_model_len` tokens on one rank
    of the first stage; `replicated_bytes` what it takes on all that stage's ranks together because
    heads or latents are copied. `layer_specs` are each stage's caches by name. `max_sequences`
    bounds the sequences where each needs a block for its state. `block_growth` says why the block
    is longer than the kernels ask, where states made it so.
    """

    version: str
    kv_cache_dtype: str
    block_size: int
    max_model_len: int
    groups: tuple[PlannedGroup, ...]
    ranks: tuple[PlannedRank, ...]
    blocks_per_request: int | None
    num_gpu_blocks: int | None
    max_concurrency: Fraction | None
    max_concurrency_text: str | None
    kv_cache_tokens: int | None
    needed_bytes: int
    estimated_max_model_len: int | None
    refused: bool
    printed: tuple[str, ...]
    request: RequestBytes
    replicated_bytes: int
    max_sequences: int | None
    formulas: tuple[str, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]
    layer_specs: tuple[Layers, ...] = field(repr=False)
    worker_groups: tuple[Group, ...] = field(repr=False)
    bounds: RequestBounds = field(repr=False)
    encoder_need: int | None = field(repr=False)
    block_growth: BlockGrowth | None = None

    @property
    def formula(self) -> str:
        """The line that gives the number of blocks, or of a request's where no bytes were given."""
        return self.formulas[-1]

    @property
    def longest_that_starts(self) -> int | None:
        """The longest request that every stage lets through; None where this one's passes.

        The engine's own estimate is that of the first stage that refuses, and another may hold
        less.
        """
        lengths = [rank.estimated_max_model_len for rank in self.ranks]
        return min((length for length in lengths if length is not None), default=None)

    @property
    def spent(self) -> tuple[Spent, ...]:
        """What a request of the maximum length takes beyond the model's need, by reason."""
        return self.request.spent

    def request_bytes(self, length: int) -> RequestBytes:
        """Return what one request of `length` tokens takes on one rank of the first stage.

        Raises:
            OutOfRange: for a length outside 1..max_model_len.

        """
        checked_int(length, "length", low=1, high=self.max_model_len)
        unit = self.ranks[0].bytes_per_block
        return request_bytes(self.worker_groups, unit, self.bounds.at(length), self.encoder_need)
