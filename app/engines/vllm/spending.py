"""What a request of the maximum length takes beyond the model's need, and on what.

The parts add up: need + parts = what the pool hands out to one request on one worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from app.engines.vllm.specs import (
    AttentionSpec,
    ChunkedSpec,
    CrossSpec,
    FullSpec,
    LayerSpec,
    MambaSpec,
    RequestBounds,
    RingSpec,
    SlidingSpec,
    UniformSpec,
    ceil_div,
)
from app.engines.vllm.types import Group

REASONS = {
    "padding_layers": "empty places of groups with fewer layers than the widest",
    "page_padding": "pages padded to one size",
    "block_rounding": "the unused end of the last block",
    "window_reserve": "tokens in flight and the block in which a window may begin",
    "state_copies": "states kept at block boundaries and for speculation",
    "encoder_reserve": "encoder positions reserved at the scheduler's bound",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Bytes of one kind of overhead, for one request on one worker."""

    code: str
    size_bytes: int

    @property
    def reason(self) -> str:
        """What the bytes are spent on."""
        return REASONS[self.code]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBytes:
    """What one request takes on one worker: in all, and what of it does not grow any more.

    `slope_bytes_per_token` is the growth of one more token. Both hold from `holds_from_tokens` on,
    where every window is full with the tokens in flight behind it; a window that requests of this
    length never fill grows with them, and counts so.
    """

    total_bytes: int
    need_bytes: int
    fixed_bytes: int
    slope_bytes_per_token: Fraction
    spent: tuple[Spent, ...]
    holds_from_tokens: int = 1


def request_bytes(
    groups: tuple[Group, ...], unit_bytes: int, bounds: RequestBounds, encoder_need: int | None
) -> RequestBytes:
    """Return what one request of the bounds' length takes, and where it goes.

    `encoder_need` is how many encoder positions the model itself needs, where it says.
    """
    parts = dict.fromkeys(REASONS, 0)
    total = need = fixed = 0
    slope, holds_from = Fraction(0), 1
    for group in groups:
        blocks = group.spec.blocks_per_request(bounds)
        total += blocks * unit_bytes
        pages = 0
        for spec, count in group.counted_specs:
            pages += count * spec.block_stride_bytes
            padding = spec.block_stride_bytes - spec.unpadded_page_bytes
            parts["page_padding"] += count * blocks * padding
            held = blocks * spec.unpadded_page_bytes
            needed = min(held, _needed_bytes(spec, bounds, encoder_need))
            need += count * needed
            parts[_reason(spec)] += count * (held - needed)
        parts["padding_layers"] += blocks * (unit_bytes - pages)
        full_from = _full_from_tokens(group.spec, bounds)
        if full_from is None or full_from > bounds.max_model_len:
            shards = bounds.decode_context_parallel if group.spec.dcp_sharded else 1
            slope += Fraction(unit_bytes, group.spec.block_size * shards)
            fixed += unit_bytes * _more_than_tokens(group.spec)
        else:
            fixed += blocks * unit_bytes
            holds_from = max(holds_from, full_from)
    spent = tuple(Spent(code=code, size_bytes=size) for code, size in parts.items() if size)
    return RequestBytes(
        total_bytes=total,
        need_bytes=need,
        fixed_bytes=fixed,
        slope_bytes_per_token=slope,
        spent=spent,
        holds_from_tokens=holds_from,
    )


def _full_from_tokens(spec: LayerSpec, bounds: RequestBounds) -> int | None:
    """Return the length from which that layer's blocks grow no more; None where they always do."""
    if isinstance(spec, UniformSpec):
        members = [_full_from_tokens(member, bounds) for _, member in spec.members]
        ends = [length for length in members if length is not None]
        return max(ends) if len(ends) == len(members) else None
    if isinstance(spec, SlidingSpec):
        return spec.window - 1 + spec.extra_retained_tokens + bounds.in_flight_tokens
    if isinstance(spec, ChunkedSpec):
        return spec.chunk + bounds.in_flight_tokens
    if isinstance(spec, FullSpec) or (isinstance(spec, MambaSpec) and spec.cache_mode == "all"):
        return None
    return 1


def _more_than_tokens(spec: LayerSpec) -> int:
    """Return the blocks that come with any request of a growing layer: a window's odd one."""
    first = spec.members[0][1] if isinstance(spec, UniformSpec) else spec
    return int(isinstance(first, SlidingSpec))


def _reason(spec: LayerSpec) -> str:
    if isinstance(spec, MambaSpec):
        return "state_copies"
    if isinstance(spec, SlidingSpec | ChunkedSpec):
        return "window_reserve"
    if isinstance(spec, CrossSpec):
        return "encoder_reserve"
    return "block_rounding"


def _needed_bytes(spec: LayerSpec, bounds: RequestBounds, encoder_need: int | None) -> int:
    """Return what the model itself keeps in that layer for such a request, in vLLM's format."""
    if isinstance(spec, MambaSpec):
        return spec.unpadded_page_bytes
    if not isinstance(spec, AttentionSpec):
        raise TypeError(spec)
    tokens = bounds.max_model_len
    if isinstance(spec, SlidingSpec):
        tokens = min(tokens, spec.window - 1)
    elif isinstance(spec, ChunkedSpec):
        tokens = min(tokens, spec.chunk)
    elif isinstance(spec, CrossSpec):
        tokens = bounds.encoder_tokens if encoder_need is None else encoder_need
    elif isinstance(spec, RingSpec):
        tokens = spec.block_size
    elif spec.dcp_sharded:
        tokens = ceil_div(tokens, bounds.decode_context_parallel)
    return int(Fraction(tokens * spec.unpadded_page_bytes, spec.block_size))
