"""Three ways to lay out one workload: reserved at the maximum, padded, paged; waste and room.

Before paging, an engine gave each request one contiguous piece. Its size had to be known before the
answer was: the maximum length ("Orca (Max)" in the PagedAttention paper, arXiv:2309.06180, section
3.1), or, for a batch whose lengths are known, that of the longest. Paging gives blocks as they are
needed, and loses less than one block a request.

Everything here is internal waste: room that a request holds and does not fill. The gaps between
pieces of different sizes (external fragmentation) depend on the order of frees and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.formats import KvFormats
from app.domain.ledgers import MAX_TOTAL_BYTES, ledgers
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.per_token import omissions
from app.domain.request_bytes import Groups, effective_bytes, paged_bytes, reserved_bytes
from app.domain.state import MAX_TOKENS, ModelState

STRATEGIES = ("reserved", "padded", "paged", "effective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to lay the workload out.

    `strategy` is `reserved` (every request a piece of the maximum length), `padded` (of the longest
    request's), `paged` (whole blocks) or `effective` (nothing but state: the bound of all).
    `admitted_requests` is how many fit into the memory, the workload's requests taken in their
    order, over and over; None where nothing is held and any number fits.
    """

    HEADER: ClassVar[tuple[str, ...]] = (
        "strategy",
        "allocated_bytes",
        "waste_bytes",
        "admitted_requests",
    )

    strategy: str
    allocated_bytes: int
    waste_bytes: int
    admitted_requests: int | None

    def row(self) -> tuple[str, int, int, int | str]:
        """Return the layout as a row under HEADER; no bound is an empty cell."""
        admitted = "" if self.admitted_requests is None else self.admitted_requests
        return (self.strategy, self.allocated_bytes, self.waste_bytes, admitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """One workload, laid out in each way, and what the same memory admits in each."""

    max_length_tokens: int
    block_size: int
    memory_bytes: int
    requests: int
    layouts: tuple[Layout, ...]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    def layout(self, strategy: str) -> Layout:
        """Return the layout of one of STRATEGIES."""
        return self.layouts[STRATEGIES.index(strategy)]


def fragmentation(
    model: ModelState,
    formats: KvFormats,
    lengths: RequestLengths,
    *,
    max_length_tokens: int,
    block_size: int,
    memory_bytes: int | None = None,
) -> Fragmentation:
    """Return the layouts of `lengths`; without `memory_bytes`, the memory is what reserving takes.

    Two requests of 1024 and 3072 tokens at 131072 B/token, reserved at 4096, take 1 GiB; padded
    768 MiB, paged 512 MiB. In that GiB paging runs 4 of them.

    Raises:
        OutOfRange: for a maximum below the longest request, a memory or a block size out of
            bounds, or totals beyond MAX_TOTAL_BYTES.
        Unsupported: when a row does not divide into the format's blocks.

    """
    checked_int(max_length_tokens, "max_length_tokens", low=0, high=MAX_TOKENS)
    if max_length_tokens < lengths.longest:
        raise OutOfRange(
            "{field} must be at least the longest request's {low}, got {value}",
            field="max_length_tokens",
            low=lengths.longest,
            value=max_length_tokens,
        )
    base = ledgers(model, formats, lengths, block_size)
    groups = base.shape.groups
    each = reserved_bytes(groups, max_length_tokens)
    reserved = each * lengths.requests
    if reserved > MAX_TOTAL_BYTES:
        raise OutOfRange(
            "{field}: reserving {value} B is over the bound of 8 PiB",
            field="max_length_tokens",
            value=reserved,
        )
    if memory_bytes is None:
        memory_bytes = reserved
    checked_int(memory_bytes, "memory_bytes", low=0, high=MAX_TOTAL_BYTES)
    runs = tuple(_runs(lengths))
    own = lru_cache(maxsize=None)(lambda tokens: effective_bytes(groups, tokens))
    blocks = lru_cache(maxsize=None)(lambda tokens: paged_bytes(groups, tokens, block_size))
    admitted = (
        memory_bytes // each if each and lengths.requests else None,
        _admitted_padded(runs, groups, base.padded_bytes, memory_bytes),
        _admitted_in_order(runs, blocks, base.paged_bytes, lengths.requests, memory_bytes),
        _admitted_in_order(runs, own, base.effective_bytes, lengths.requests, memory_bytes),
    )
    allocated = (reserved, base.padded_bytes, base.paged_bytes, base.effective_bytes)
    return Fragmentation(
        max_length_tokens=max_length_tokens,
        block_size=block_size,
        memory_bytes=memory_bytes,
        requests=lengths.requests,
        layouts=tuple(
            Layout(
                strategy=strategy,
                allocated_bytes=total,
                waste_bytes=total - base.effective_bytes,
                admitted_requests=count,
            )
            for strategy, total, count in zip(STRATEGIES, allocated, admitted, strict=True)
        ),
        assumptions=(*base.assumptions, *_assumptions()),
        not_counted=(
            *omissions(formats),
            Note(
                "external_fragmentation",
                "Gaps between contiguous pieces of different sizes are not counted.",
            ),
        ),
    )


def _assumptions() -> tuple[Note, ...]:
    return (
        Note(
            "admission_in_order",
            "Requests are admitted in their order, the workload over and over, each at its full"
            " length; the first that does not fit stops it.",
        ),
        Note(
            "padded_to_admitted",
            "A padded batch is as long as the longest request admitted to it.",
        ),
    )


def _runs(lengths: RequestLengths) -> Iterator[tuple[int, int]]:
    for item in lengths.runs:
        yield (item, 1) if isinstance(item, int) else item


def _admitted_in_order(
    runs: tuple[tuple[int, int], ...],
    cost: Callable[[int], int],
    all_bytes: int,
    all_requests: int,
    memory_bytes: int,
) -> int | None:
    """Return how many requests fit, each taking its own bytes; `all_bytes` is one whole round."""
    if not all_bytes:
        return None
    rounds, left = divmod(memory_bytes, all_bytes)
    admitted = rounds * all_requests
    # What is left is less than a round takes, so that one of its runs does not fit.
    at = 0
    while True:
        length, count = runs[at]
        each = cost(length)
        fits = min(count, left // each) if each else count
        admitted += fits
        if fits < count:
            return admitted
        left -= fits * each
        at += 1


def _admitted_padded(
    runs: tuple[tuple[int, int], ...],
    groups: Groups,
    all_bytes: int,
    memory_bytes: int,
) -> int | None:
    """Return how many requests fit, each as large as the batch's largest, layer by layer."""
    if not all_bytes:
        return None
    most = [0] * len(groups)
    fixed = each = admitted = 0
    for length, count in runs:
        if length:
            fixed = sum(group.fixed_bytes for group in groups)
        most = [
            max(kept, group.state.kept_tokens(length))
            for kept, group in zip(most, groups, strict=True)
        ]
        each = fixed + sum(
            kept * group.position_bytes for kept, group in zip(most, groups, strict=True)
        )
        if each * (admitted + count) > memory_bytes:
            # The batch grows by those that still fit, or, if this length is too much, not at all.
            return max(admitted, memory_bytes // each)
        admitted += count
    # From the second round on nothing gets longer.
    return memory_bytes // each
