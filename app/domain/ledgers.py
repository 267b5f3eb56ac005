"""The three ledgers: what is effective, what padding would take, what paging allocates.

They differ only in the positions they count for each request: its own, the longest's, its blocks'.
For L equal layers of full attention they reduce to c·ΣT, c·B·max T and c·b·Σ⌈T/b⌉ with
c = 2·L·H_kv·d·s; every other kind of state follows its own rule:

- padded: every request takes, in each layer, what the request that holds most takes there;
- paged: each layer holds whole blocks of its positions; a constant state is not paged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.formats import KvFormats, StateGroup
from app.domain.ledger_working import GroupPositions, ledger_assumptions, ledger_workings
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.per_token import Shape, omissions, shape_of
from app.domain.state import CrossAttention, ModelState
from app.domain.units import PIB
from app.domain.working import Working

MAX_BLOCK_SIZE = 1_048_576
# Different lengths times different states of a model: about a second of counting.
MAX_STEPS = 2_000_000
# Above 2^53 bytes a reader that keeps numbers as doubles (JavaScript) would lose the last digits.
MAX_TOTAL_BYTES = 8 * PIB


# Not frozen: freezing triples the cost of making a row, and an answer may have thousands.
@dataclass(slots=True)
class RequestRow:
    """One request in the three ledgers."""

    index: int
    length: int
    effective_bytes: int
    padded_bytes: int
    paged_bytes: int
    blocks: int
    tail_waste_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """The three ledgers of a set of requests, with their working.

    Tokens count the positions of the layers that hold most of them; bytes count every layer.
    """

    shape: Shape
    lengths: RequestLengths
    block_size: int
    effective_tokens: int
    padded_tokens: int
    paged_tokens: int
    effective_bytes: int
    padded_bytes: int
    paged_bytes: int
    blocks: int
    waste_bound_tokens: int
    padded_bytes_per_request: int
    as_if_full_bytes: int
    workings: dict[str, Working]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    @property
    def tail_waste_tokens(self) -> int:
        """Return the empty positions at the ends of last blocks."""
        return self.paged_tokens - self.effective_tokens

    @property
    def tail_waste_bytes(self) -> int:
        """Return what paging allocates beyond what holds state."""
        return self.paged_bytes - self.effective_bytes

    @property
    def padding_waste_bytes(self) -> int:
        """Return what padding would take beyond what holds state."""
        return self.padded_bytes - self.effective_bytes

    def rows(self, offset: int, limit: int) -> Iterator[RequestRow]:
        """Yield a page of the requests, in their given order."""
        page = list(self.lengths.page(offset, limit))
        lengths = sorted({length for _, length in page})
        costs = dict(
            zip(lengths, _request_costs(self.shape.groups, lengths, self.block_size), strict=True)
        )
        padded = self.padded_bytes_per_request
        for index, length in page:
            kept, blocks, effective, paged = costs[length]
            yield RequestRow(
                index, length, effective, padded, paged, blocks, blocks * self.block_size - kept
            )


def ledgers(
    model: ModelState, formats: KvFormats, lengths: RequestLengths, block_size: int
) -> Ledgers:
    """Return the three ledgers of `lengths` requests of a model.

    Raises:
        OutOfRange: for a block size outside 1..MAX_BLOCK_SIZE or a total beyond MAX_TOTAL_BYTES.
        Unsupported: when a row does not divide into the format's blocks.

    """
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_SIZE)
    shape = shape_of(model, formats)
    totals = _counted(shape.groups, lengths, block_size)
    effective, paged = totals.effective_bytes, totals.paged_bytes
    widest, padded_each = _padded(shape.groups, totals.held, lengths)
    padded = padded_each * lengths.requests
    for total in (effective, padded, paged):
        if total > MAX_TOTAL_BYTES:
            raise OutOfRange("{field}: the total of {value} B is over the bound of 8 PiB",
                             field="lengths", value=total)  # fmt: skip
    pages = any(_is_token_paged(group) for group in shape.groups)
    bound = lengths.non_empty * (block_size - 1) if pages else 0
    return Ledgers(
        shape=shape,
        lengths=lengths,
        block_size=block_size,
        effective_tokens=totals.kept,
        padded_tokens=widest * lengths.requests,
        paged_tokens=totals.blocks * block_size,
        effective_bytes=effective,
        padded_bytes=padded,
        paged_bytes=paged,
        blocks=totals.blocks,
        waste_bound_tokens=bound,
        padded_bytes_per_request=padded_each,
        as_if_full_bytes=_as_if_full(shape, lengths.tokens),
        workings=ledger_workings(
            shape, totals.held, lengths, block_size, (effective, padded, paged), totals.blocks
        ),
        assumptions=ledger_assumptions(shape, block_size),
        not_counted=omissions(formats),
    )


def _is_token_paged(group: StateGroup) -> bool:
    """Return whether the group's positions are the sequence's own (not an encoder's)."""
    return bool(group.position_bytes) and not isinstance(group.state, CrossAttention)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """What all requests hold: in the layers that hold most, in bytes, and group by group."""

    kept: int
    blocks: int
    effective_bytes: int
    paged_bytes: int
    held: tuple[GroupPositions, ...]


def _counted(groups: tuple[StateGroup, ...], lengths: RequestLengths, block_size: int) -> _Totals:
    """Return the sums over all requests.

    Raises:
        OutOfRange: when different lengths times different states are more than MAX_STEPS.

    """
    paged_groups = [group for group in groups if group.position_bytes]
    counts = lengths.counts
    if len(paged_groups) * len(counts) > MAX_STEPS:
        raise OutOfRange(
            "{field}: {lengths} different lengths in {states} different states are more than "
            "{high} steps of counting",
            field="lengths",
            lengths=len(counts),
            states=len(paged_groups),
            high=MAX_STEPS,
        )
    times = tuple(counts.values())
    most: list[int] = []
    held: list[GroupPositions] = []
    effective = paged = sum(group.fixed_bytes for group in groups) * lengths.non_empty
    for group in paged_groups:
        kept = list(map(group.state.kept_tokens, counts))
        if _is_token_paged(group):
            most = list(map(max, most, kept)) if most else kept
        item = GroupPositions(
            group=group,
            kept=_times(kept, times),
            longest=max(kept, default=0),
            blocks=_times(_blocks(kept, block_size), times),
        )
        effective += item.kept * group.position_bytes
        paged += item.blocks * block_size * group.position_bytes
        held.append(item)
    return _Totals(
        kept=_times(most, times),
        blocks=_times(_blocks(most, block_size), times),
        effective_bytes=effective,
        paged_bytes=paged,
        held=tuple(held),
    )


def _times(values: Sequence[int], counts: Sequence[int]) -> int:
    """Return the sum of values, each as often as its count says."""
    return sum(map(mul, values, counts))


def _blocks(positions: Sequence[int], block_size: int) -> list[int]:
    """Return the blocks that hold each number of positions."""
    return [-(-kept // block_size) for kept in positions]


def _request_costs(
    groups: tuple[StateGroup, ...], lengths: Sequence[int], block_size: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield positions, blocks, effective bytes and paged bytes of one request of each length."""
    fixed = sum(group.fixed_bytes for group in groups)
    most = [0] * len(lengths)
    effective = [fixed if length else 0 for length in lengths]
    paged = list(effective)
    for group in groups:
        size = group.position_bytes
        if not size:
            continue
        kept = list(map(group.state.kept_tokens, lengths))
        blocks = _blocks(kept, block_size)
        block_bytes = block_size * size
        effective = [total + own * size for total, own in zip(effective, kept, strict=True)]
        paged = [total + own * block_bytes for total, own in zip(paged, blocks, strict=True)]
        if _is_token_paged(group):
            most = list(map(max, most, kept))
    return zip(most, _blocks(most, block_size), effective, paged, strict=True)


def _padded(
    groups: tuple[StateGroup, ...], held: tuple[GroupPositions, ...], lengths: RequestLengths
) -> tuple[int, int]:
    """Return (positions, bytes) of a request padded, layer by layer, to the one that holds most."""
    if not lengths.non_empty:
        return 0, 0
    total = sum(item.longest * item.group.position_bytes for item in held)
    total += sum(group.fixed_bytes for group in groups)
    most = max((item.longest for item in held if _is_token_paged(item.group)), default=0)
    return most, total


def _as_if_full(shape: Shape, tokens: int) -> int:
    """Return what a formula would say that keeps every position in every layer with positions."""
    return tokens * sum(g.position_bytes for g in shape.groups if _is_token_paged(g))
