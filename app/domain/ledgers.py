"""The three ledgers: what is effective, what padding would take, what paging allocates.

They differ only in the positions they count for each request: its own, the longest's, its blocks'.
For L equal layers of full attention they reduce to c·ΣT, c·B·max T and c·b·Σ⌈T/b⌉ with
c = 2·L·H_kv·d·s; every other kind of state follows its own rule:

- padded: every request takes, in each layer, what the request that holds most takes there;
- paged: each layer holds whole blocks of its positions; a constant state is not paged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.formats import KvFormats, StateGroup
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.per_token import Shape, omissions, shape_of
from app.domain.state import CrossAttention, ModelState
from app.domain.units import PIB
from app.domain.working import Working

MAX_BLOCK_SIZE = 1_048_576
# Above 2^53 bytes a reader that keeps numbers as doubles (JavaScript) would lose the last digits.
MAX_TOTAL_BYTES = 8 * PIB


# Positions, blocks, effective bytes and paged bytes of one request.
RequestCost = tuple[int, int, int, int]


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
    costs: Mapping[int, RequestCost]
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
        padded = self.padded_bytes_per_request
        for index, length in self.lengths.page(offset, limit):
            kept, blocks, effective, paged = self.costs[length]
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
    kept = blocks = effective = paged = 0
    costs = _costs(shape.groups, lengths.counts, block_size)
    for length, count in lengths.counts.items():
        own_kept, own_blocks, own_effective, own_paged = costs[length]
        kept += own_kept * count
        blocks += own_blocks * count
        effective += own_effective * count
        paged += own_paged * count
    widest, padded_each = _padded(shape.groups, lengths)
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
        costs=costs,
        block_size=block_size,
        effective_tokens=kept,
        padded_tokens=widest * lengths.requests,
        paged_tokens=blocks * block_size,
        effective_bytes=effective,
        padded_bytes=padded,
        paged_bytes=paged,
        blocks=blocks,
        waste_bound_tokens=bound,
        padded_bytes_per_request=padded_each,
        as_if_full_bytes=_as_if_full(shape, lengths.tokens),
        workings=_workings(shape, lengths, block_size, (effective, padded, paged), (kept, blocks)),
        assumptions=_assumptions(shape, block_size),
        not_counted=omissions(formats),
    )


def _is_token_paged(group: StateGroup) -> bool:
    """Return whether the group's positions are the sequence's own (not an encoder's)."""
    return bool(group.position_bytes) and not isinstance(group.state, CrossAttention)


def _costs(
    groups: tuple[StateGroup, ...], lengths: Iterable[int], block_size: int
) -> dict[int, RequestCost]:
    """Return what a request of each length costs."""
    paged_groups = [
        (group.state.kept_tokens, group.position_bytes, _is_token_paged(group))
        for group in groups
        if group.position_bytes
    ]
    fixed = sum(group.fixed_bytes for group in groups)
    costs: dict[int, RequestCost] = {}
    for length in lengths:
        most = 0
        effective = paged = fixed if length else 0
        for kept_tokens, size, is_own in paged_groups:
            kept = kept_tokens(length)
            effective += kept * size
            paged += -(-kept // block_size) * block_size * size
            if is_own and kept > most:
                most = kept
        costs[length] = (most, -(-most // block_size), effective, paged)
    return costs


def _padded(groups: tuple[StateGroup, ...], lengths: RequestLengths) -> tuple[int, int]:
    """Return (positions, bytes) of a request padded, layer by layer, to the one that holds most."""
    if not lengths.non_empty:
        return 0, 0
    most = total = 0
    for group in groups:
        kept = max(group.state.kept_tokens(length) for length in lengths.counts)
        total += kept * group.position_bytes + group.fixed_bytes
        if kept > most and _is_token_paged(group):
            most = kept
    return most, total


def _as_if_full(shape: Shape, tokens: int) -> int:
    """Return what a formula would say that keeps every position in every layer with positions."""
    return tokens * sum(g.position_bytes for g in shape.groups if _is_token_paged(g))


def _workings(
    shape: Shape,
    lengths: RequestLengths,
    block_size: int,
    totals: tuple[int, int, int],
    counted: tuple[int, int],
) -> dict[str, Working]:
    effective, padded, paged = totals
    kept, blocks = counted
    plain = not shape.window_bytes and not shape.fixed_bytes and shape.growth_tokens == 1
    slope = f"{shape.bytes_per_token} B/token"
    if plain:
        numbers = (
            f"{slope} × {kept} tokens = {effective} B",
            f"{slope} × {lengths.requests} requests × {lengths.longest} tokens = {padded} B",
            f"{slope} × {block_size} tokens × {blocks} blocks = {paged} B",
        )
    else:
        each = "Σ over requests and layers of positions held × bytes of a position"
        numbers = (
            f"{each} + fixed parts = {effective} B",
            f"{lengths.requests} requests × {_ratio(padded, lengths.requests)} B = {padded} B",
            f"{each}, in whole blocks of {block_size} = {paged} B",
        )
    rows = (
        ("effective_bytes", "c × ΣT", effective, "positions that hold state"),
        ("padded_bytes", "c × B × max T", padded, "a rectangle as long as the longest request"),
        ("paged_bytes", "c × b × Σ⌈T / b⌉", paged, "PagedAttention, arXiv:2309.06180, section 4"),
    )
    return {
        name: Working(symbols=symbols, numbers=text, result=result, unit="B", source=source)
        for (name, symbols, result, source), text in zip(rows, numbers, strict=True)
    }


def _ratio(total: int, requests: int) -> int:
    return total // requests if requests else 0


def _assumptions(shape: Shape, block_size: int) -> tuple[Note, ...]:
    notes = [
        Note("no_sharing", "No block is shared between requests."),
        Note("one_device", "Everything lies on one device; ranks are not divided here."),
        Note("forwarded", "A length counts tokens that have gone through the model."),
    ]
    kinds = {group.state.kind for group in shape.groups}
    if kinds == {"full_attention"}:
        notes.insert(0, Note("full_attention", "Every layer attends to every earlier position."))
    if kinds & {"sliding_window", "chunked_attention"}:
        notes.append(
            Note(
                "window_blocks",
                "A windowed layer is given the fewest blocks of {block_size} that hold its "
                "positions; blocks aligned to the sequence can take one more.",
                {"block_size": block_size},
            )
        )
    if "recurrent" in kinds:
        notes.append(
            Note("recurrent_not_paged", "A recurrent state is held whole, not paged by tokens.")
        )
    return tuple(notes)
