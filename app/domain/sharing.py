"""What is physical when sequences share prefixes: unique blocks, and who holds each.

Sharing is a set of unique blocks, never the sum of the tables. Two rules are known:

- `full_blocks` (engines): a block is shared when it is full and everything before it is equal; a
  partly full last block is each sequence's own and computed again;
- `copy_on_write` (PagedAttention, arXiv 2309.06180, section 4.4): sequences that were forked share
  every block until they diverge in it, and then all but one copy it.

Every kind of state goes its own way: a window has dropped the blocks that every holder has passed,
and a recurrent state is one for each sequence, since it holds no positions that could be shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange, Unknown, shown
from app.domain.formats import KvFormats, StateGroup
from app.domain.ledgers import MAX_BLOCK_SIZE, MAX_TOTAL_BYTES
from app.domain.notes import Note
from app.domain.per_token import omissions, shape_of
from app.domain.prefix_tree import Node, PrefixTree
from app.domain.sharing_tables import SharedTables, tables_of
from app.domain.state import CrossAttention, LatentAttention, ModelState
from app.domain.working import Working

POLICIES = ("full_blocks", "copy_on_write")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCount:
    """Blocks and positions of one kind of layer: of every table, and each distinct one once."""

    logical_blocks: int
    unique_blocks: int
    logical_positions: int
    distinct_positions: int
    stored_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup:
    """What sharing comes to in the layers of one kind; a state without positions has no blocks."""

    kind: str
    layers: int
    logical_blocks: int
    unique_blocks: int
    logical_bytes: int
    paged_bytes: int
    effective_bytes: int
    unshared_effective_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Logical and physical blocks of sequences with common prefixes, and the bytes each way.

    Blocks and tokens are those of a layer that keeps every position; bytes count every layer.
    `effective_tokens` has each shared prefix once, `stored_tokens` what the unique blocks hold
    (a position can stand in several), `copy_on_write_blocks` how many blocks were copied.
    """

    policy: str
    block_size: int
    sequences: int
    logical_blocks: int
    unique_blocks: int
    logical_tokens: int
    effective_tokens: int
    stored_tokens: int
    copy_on_write_blocks: int
    logical_bytes: int
    paged_bytes: int
    effective_bytes: int
    unshared_effective_bytes: int
    groups: tuple[SharedGroup, ...]
    tables: SharedTables | None
    workings: dict[str, Working]
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]

    @property
    def saved_blocks(self) -> int:
        """Return how many blocks sharing saves against a table of one's own for every sequence."""
        return self.logical_blocks - self.unique_blocks

    @property
    def saved_bytes(self) -> int:
        """Return how many bytes sharing saves against blocks of one's own for every sequence."""
        return self.logical_bytes - self.paged_bytes

    @property
    def duplicate_tokens(self) -> int:
        """Return the positions that stand in more than one block: copied, or computed again."""
        return self.stored_tokens - self.effective_tokens

    @property
    def tail_waste_tokens(self) -> int:
        """Return the empty positions of the unique blocks."""
        return self.unique_blocks * self.block_size - self.stored_tokens


def count_blocks(
    tree: PrefixTree,
    block_size: int,
    *,
    shares_tails: bool,
    kept_tokens: Callable[[int], int] = int,
    tokens_per_entry: int = 1,
) -> BlockCount:
    """Count the blocks that layers of one kind hold, in closed form over the tree.

    A sequence of T tokens has T // `tokens_per_entry` entries and holds the last `kept_tokens(T)`
    of them. A block or position is held as long as the shortest sequence with it still sees it,
    because the shortest has moved on least.
    """
    size = block_size
    logical = unique = positions = distinct = stored = 0
    # Nodes whose last, partly full block is held: a fork without an entry of its own adds none.
    tails: dict[int, int] = {}
    for index, node in enumerate(tree.nodes):
        start, end = node.start // tokens_per_entry, node.end // tokens_per_entry
        if node.leaves:
            first = node.shortest // tokens_per_entry - kept_tokens(node.shortest)
            distinct += node.copies * max(end - max(start, first), 0)
            full = max(end // size - max(start // size, first // size), 0)
            unique += node.copies * full
            stored += node.copies * full * size
        kept = kept_tokens(node.end)
        if not node.ending or not kept:
            continue
        holders = node.copies * node.ending
        positions += holders * kept
        logical += holders * (-(-end // size) - (end - kept) // size)
        if end % size:
            owner = _content_node(tree.nodes, index, tokens_per_entry) if shares_tails else index
            tails[owner] = tree.nodes[owner].copies if shares_tails else holders
    for owner, holders in tails.items():
        unique += holders
        stored += holders * (tree.nodes[owner].end // tokens_per_entry % size)
    return BlockCount(
        logical_blocks=logical,
        unique_blocks=unique,
        logical_positions=positions,
        distinct_positions=distinct,
        stored_positions=stored,
    )


def _content_node(nodes: tuple[Node, ...], index: int, tokens_per_entry: int) -> int:
    """Return the node, here or above, in which the last entry lies."""
    while nodes[index].end // tokens_per_entry == nodes[index].start // tokens_per_entry:
        index = nodes[index].parent
    return index


def _copied_blocks(tree: PrefixTree, block_size: int, unique_blocks: int) -> int:
    """Return how many blocks were copied on write.

    Each distinct position that begins a block began one physical block; every other unique block
    is a copy that was made when sequences diverged inside it.
    """
    begun = sum(
        node.copies * (-(-node.end // block_size) - -(-node.start // block_size))
        for node in tree.nodes
    )
    return unique_blocks - begun


def _shared_group(
    group: StateGroup, tree: PrefixTree, block_size: int, *, shares_tails: bool
) -> SharedGroup:
    state, each = group.state, group.position_bytes
    begun = sum(node.copies * node.ending for node in tree.nodes if node.end)
    if isinstance(state, CrossAttention):
        blocks = begun * -(-state.encoder_tokens // block_size)
        held = begun * state.encoder_tokens * each
        whole = blocks * block_size * each
        return SharedGroup(
            kind=state.kind,
            layers=group.count,
            logical_blocks=blocks,
            unique_blocks=blocks,
            logical_bytes=whole,
            paged_bytes=whole,
            effective_bytes=held,
            unshared_effective_bytes=held,
        )
    count = count_blocks(
        tree,
        block_size,
        shares_tails=shares_tails,
        kept_tokens=state.kept_tokens,
        tokens_per_entry=state.tokens_per_entry if isinstance(state, LatentAttention) else 1,
    )
    fixed = begun * group.fixed_bytes
    return SharedGroup(
        kind=state.kind,
        layers=group.count,
        logical_blocks=count.logical_blocks,
        unique_blocks=count.unique_blocks,
        logical_bytes=count.logical_blocks * block_size * each + fixed,
        paged_bytes=count.unique_blocks * block_size * each + fixed,
        effective_bytes=count.distinct_positions * each + fixed,
        unshared_effective_bytes=count.logical_positions * each + fixed,
    )


def sharing(
    tree: PrefixTree,
    block_size: int,
    model: ModelState,
    formats: KvFormats,
    *,
    policy: str | None = None,
) -> Sharing:
    """Return what sequences share, in blocks and in bytes of a model.

    `policy` None means `full_blocks` for lists of token ids, where sharing is found by hash, and
    `copy_on_write` for groups, which are forks of one request. Tables are left out when there are
    too many entries to list; counts and bytes are exact all the same.

    Raises:
        Unknown: for another policy.
        OutOfRange: for a block size out of bounds, or a total beyond MAX_TOTAL_BYTES.
        Unsupported: when a row does not divide into the format's blocks.

    """
    checked_int(block_size, "block_size", low=1, high=MAX_BLOCK_SIZE)
    chosen = policy or ("full_blocks" if tree.numbered else "copy_on_write")
    if chosen not in POLICIES:
        raise Unknown(
            "{field} must be one of {known}, got {value}",
            field="policy",
            known=", ".join(POLICIES),
            value=shown(policy),
        )
    forks = chosen == "copy_on_write"
    whole = count_blocks(tree, block_size, shares_tails=forks)
    shape = shape_of(model, formats)
    groups = tuple(
        _shared_group(group, tree, block_size, shares_tails=forks) for group in shape.groups
    )
    logical = sum(group.logical_bytes for group in groups)
    if logical > MAX_TOTAL_BYTES:
        raise OutOfRange(
            "{field}: the total of {value} B is over the bound of 8 PiB",
            field="sequences" if tree.numbered else "groups",
            value=logical,
        )
    tables = tables_of(tree, block_size, shares_tails=forks)
    return Sharing(
        policy=chosen,
        block_size=block_size,
        sequences=tree.sequences,
        logical_blocks=whole.logical_blocks,
        unique_blocks=whole.unique_blocks,
        logical_tokens=whole.logical_positions,
        effective_tokens=whole.distinct_positions,
        stored_tokens=whole.stored_positions,
        copy_on_write_blocks=(
            _copied_blocks(tree, block_size, whole.unique_blocks) if forks else 0
        ),
        logical_bytes=logical,
        paged_bytes=sum(group.paged_bytes for group in groups),
        effective_bytes=sum(group.effective_bytes for group in groups),
        unshared_effective_bytes=sum(group.unshared_effective_bytes for group in groups),
        groups=groups,
        tables=tables,
        workings=_workings(groups, whole, block_size, shape.bytes_per_token),
        assumptions=_assumptions(
            model, chosen, given=policy is not None, listed=tables is not None
        ),
        not_counted=omissions(formats),
    )


def _workings(
    groups: tuple[SharedGroup, ...], whole: BlockCount, block_size: int, slope: int
) -> dict[str, Working]:
    """Return how each total came about: in one product for equal layers, else kind by kind."""
    plain = {group.kind for group in groups} <= {"full_attention"}
    per_block = f"{slope} B/token × {block_size} tokens"
    rows = (
        (
            "logical_bytes",
            "c × b × Σ table entries",
            f"{per_block} × {whole.logical_blocks} table entries",
            "a table of one's own for every sequence",
        ),
        (
            "paged_bytes",
            "c × b × |set of blocks|",
            f"{per_block} × {whole.unique_blocks} unique blocks",
            "PagedAttention, arXiv:2309.06180, section 4.4",
        ),
        (
            "effective_bytes",
            "c × (shared prefixes once + every suffix)",
            f"{slope} B/token × {whole.distinct_positions} positions",
            "positions with a prefix of their own",
        ),
    )
    workings: dict[str, Working] = {}
    for name, symbols, product, source in rows:
        total = sum(getattr(group, name) for group in groups)
        terms = " + ".join(f"{getattr(group, name)} B {group.kind}" for group in groups)
        workings[name] = Working(
            symbols=symbols,
            numbers=f"{product if plain else terms or '0 B'} = {total} B",
            result=total,
            unit="B",
            source=source,
        )
    return workings


_POLICY_NOTES = {
    "full_blocks": Note(
        "sharing_full_blocks",
        "Only full blocks are shared, as in engines: a partly full last block is each sequence's "
        "own, and its positions are computed again.",
    ),
    "copy_on_write": Note(
        "sharing_copy_on_write",
        "Sequences with a common prefix are forks of one another: they share every block until "
        "they diverge in it, then all but one copy it.",
    ),
}
_CHOSEN_NOTES = {
    "full_blocks": Note(
        "sharing_found_by_hash",
        "Sequences given as token ids share what a lookup by hash finds; that is full blocks.",
    ),
    "copy_on_write": Note(
        "sharing_by_fork", "Groups are taken for forks of one request; branches share no token."
    ),
}
_KIND_NOTES = {
    "sliding_window": Note(
        "sharing_windows",
        "A windowed layer holds the blocks, aligned to the sequence, in which some sequence still "
        "sees a position.",
    ),
    "chunked_attention": Note(
        "sharing_chunks",
        "A chunked layer holds the blocks since the last chunk boundary of the shortest sequence "
        "with them.",
    ),
    "recurrent": Note(
        "sharing_recurrent",
        "A recurrent state is one for each sequence: it holds no positions that could be shared.",
    ),
    "cross_attention": Note(
        "sharing_cross",
        "Each sequence keeps its own encoder positions, also where one input was forked.",
    ),
}
_ENTRIES_NOTE = Note(
    "sharing_entries",
    "A layer that keeps one entry for several tokens shares an entry whose tokens are all shared.",
)
_NOT_LISTED = Note(
    "sharing_not_listed",
    "There are too many sequences or table entries to list; the counts are exact.",
)


def _assumptions(model: ModelState, policy: str, *, given: bool, listed: bool) -> tuple[Note, ...]:
    notes = [_POLICY_NOTES[policy]]
    if not given:
        notes.append(_CHOSEN_NOTES[policy])
    notes += [note for kind, note in _KIND_NOTES.items() if kind in model.kinds]
    states = [state for run in model.runs for state in run.layer.states]
    if any(isinstance(state, LatentAttention) and state.tokens_per_entry > 1 for state in states):
        notes.append(_ENTRIES_NOTE)
    notes.append(Note("forwarded", "A sequence counts tokens that have gone through the model."))
    if not listed:
        notes.append(_NOT_LISTED)
    return tuple(notes)
