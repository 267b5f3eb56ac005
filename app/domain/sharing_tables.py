"""The block tables of sequences with common prefixes, block by block, where they can be listed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from app.domain.prefix_tree import Node, PrefixTree

MAX_LISTED_SEQUENCES = 4_096
MAX_TABLE_ENTRIES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTables:
    """One row of block ids per sequence, how many rows hold each block, and how full it is.

    Ids count from 0 in the order in which the rows, read in turn, first name them.
    """

    rows: tuple[tuple[int, ...], ...]
    ref_counts: dict[int, int]
    filled: dict[int, int]

    @property
    def blocks_by_holders(self) -> dict[int, int]:
        """Return how many blocks have each number of holders, the fewest holders first."""
        return dict(sorted(Counter(self.ref_counts.values()).items()))


class _Listing:
    """Rows under construction: each instance of a node adds the blocks that end in it."""

    def __init__(self, tree: PrefixTree, block_size: int, *, shares_tails: bool) -> None:
        self.nodes = tree.nodes
        self.size = block_size
        self.shares_tails = shares_tails
        self.children: list[list[int]] = [[] for _ in tree.nodes]
        for index, node in enumerate(tree.nodes[1:], start=1):
            self.children[node.parent].append(index)
        self.blocks = 0
        self.fill: dict[int, int] = {}
        self.rows: list[tuple[int, tuple[int, ...]]] = []

    def new_block(self, positions: int) -> int:
        """Return the id of a new block that holds so many positions."""
        self.fill[self.blocks] = positions
        self.blocks += 1
        return self.blocks - 1

    def visit(self) -> None:
        """Walk every instance of every node, the first child first."""
        todo: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        while todo:
            index, before = todo.pop()
            node = self.nodes[index]
            added = node.end // self.size - node.start // self.size
            row = before + tuple(self.new_block(self.size) for _ in range(added))
            self._end_here(node, row)
            for child in reversed(self.children[index]):
                todo.extend([(child, row)] * (self.nodes[child].copies // node.copies))

    def _end_here(self, node: Node, row: tuple[int, ...]) -> None:
        """Enter the rows of the sequences that end here, each with its last, partly full block."""
        rest = node.end % self.size
        numbers = node.numbers or [0] * node.ending
        tail: tuple[int, ...] = ()
        for number in numbers:
            if rest and not (tail and self.shares_tails):
                tail = (self.new_block(rest),)
            self.rows.append((number, row + tail))


def tables_of(tree: PrefixTree, block_size: int, *, shares_tails: bool) -> SharedTables | None:
    """Return the tables, or None when there are too many sequences or entries to list."""
    entries = sum(node.copies * node.ending * -(-node.end // block_size) for node in tree.nodes)
    if tree.sequences > MAX_LISTED_SEQUENCES or entries > MAX_TABLE_ENTRIES:
        return None
    listing = _Listing(tree, block_size, shares_tails=shares_tails)
    listing.visit()
    rows = listing.rows
    if tree.numbered:
        rows = sorted(rows)
    ids: dict[int, int] = {}
    for _, row in rows:
        for block in row:
            ids.setdefault(block, len(ids))
    renamed = tuple(tuple(ids[block] for block in row) for _, row in rows)
    return SharedTables(
        rows=renamed,
        ref_counts=dict(sorted(Counter(block for row in renamed for block in row).items())),
        filled={new: listing.fill[old] for old, new in ids.items()},
    )
