"""Sequences as a tree of common prefixes: what they share is stored, computed and counted once.

A tree comes from lists of token ids (what is equal from the start is shared), or from sizes alone:
groups of a prefix and its branches, each a number of own tokens or another group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from app.domain.checks import checked_int
from app.domain.errors import FieldPath, OutOfRange
from app.domain.hashing import checked_tokens

MAX_SEQUENCES = 4_096
MAX_SEQUENCE_TOKENS = 262_144
MAX_ALL_TOKENS = 1_000_000
MAX_GROUP_NODES = 10_000
MAX_DEPTH = 32
MAX_TREE_TOKENS = 10**9
MAX_LEAVES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixGroup:
    """So many requests (`count`) of one prefix each, with branches after it.

    A branch is a number of tokens of its own, or a group whose prefix goes on from here.
    """

    prefix_tokens: int
    branches: Sequence[Branch]
    count: int = 1


Branch: TypeAlias = "int | PrefixGroup"


@dataclass(slots=True)
class Node:
    """A stretch of positions start..end−1 that one set of sequences has in common; never empty.

    There are `copies` alike (equal sizes, different tokens). In each, `ending` sequences end, whose
    `numbers` are known where lists of tokens were given; in and below each end `leaves` of them,
    the shortest `shortest` long.
    """

    parent: int
    start: int
    end: int
    copies: int = 1
    ending: int = 0
    numbers: list[int] = field(default_factory=list)
    leaves: int = 0
    shortest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Nodes in an order where parents come first; node 0 is the empty root.

    `numbered` says that the tree comes from lists of tokens, so that its ends have numbers.
    """

    nodes: tuple[Node, ...]
    sequences: int
    numbered: bool


def _finished(nodes: list[Node], *, numbered: bool) -> PrefixTree:
    """Count, from the leaves up, what ends below each node."""
    for node in nodes:
        node.leaves = node.ending
        node.shortest = node.end if node.ending else MAX_TREE_TOKENS
    for node in reversed(nodes[1:]):
        parent = nodes[node.parent]
        parent.leaves += node.leaves * (node.copies // parent.copies)
        parent.shortest = min(parent.shortest, node.shortest)
    total = nodes[0].leaves
    if total > MAX_LEAVES:
        raise OutOfRange(
            "{field} make {value} sequences; at most {high} are counted",
            field="groups",
            value=total,
            high=MAX_LEAVES,
        )
    return PrefixTree(nodes=tuple(nodes), sequences=total, numbered=numbered)


def tree_of_groups(groups: Sequence[PrefixGroup]) -> PrefixTree:
    """Return the tree of nested groups, as sizes: different branches share no token.

    Raises:
        WrongType, OutOfRange: for sizes, counts, depths or numbers of branches out of bounds.

    """
    checked_int(len(groups), "groups", low=0, high=MAX_GROUP_NODES)
    nodes = [Node(-1, 0, 0)]
    # What is still to be entered, the next last.
    todo = [
        _Pending(group, 0, 1, 1, ("groups", index))
        for index, group in reversed(list(enumerate(groups)))
    ]
    entered = 0
    while todo:
        pending = todo.pop()
        branch, path = pending.branch, pending.path
        entered += 1
        if entered > MAX_GROUP_NODES:
            raise OutOfRange(
                "{field} have more than {high} branches in all",
                field="groups",
                high=MAX_GROUP_NODES,
            )
        if pending.depth > MAX_DEPTH:
            raise OutOfRange(
                "{field} may be nested {high} deep at most", field="groups", high=MAX_DEPTH
            )
        if not isinstance(branch, PrefixGroup):
            here, times = _grown(nodes, pending, branch, 1, path)
            nodes[here].ending += times
            continue
        checked_int(branch.count, (*path, "count"), low=1, high=MAX_LEAVES)
        checked_int(len(branch.branches), (*path, "branches"), low=1, high=MAX_GROUP_NODES)
        size_path = (*path, "prefix_tokens")
        here, times = _grown(nodes, pending, branch.prefix_tokens, branch.count, size_path)
        todo.extend(
            _Pending(child, here, times, pending.depth + 1, (*path, "branches", index))
            for index, child in reversed(list(enumerate(branch.branches)))
        )
    return _finished(nodes, numbered=False)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A branch to be entered `times` times below each copy of a node."""

    branch: Branch
    parent: int
    times: int
    depth: int
    path: FieldPath


def _grown(
    nodes: list[Node], pending: _Pending, tokens: int, count: int, path: FieldPath
) -> tuple[int, int]:
    """Enter so many tokens; return the node, and how many times what follows comes below it.

    Without a token of its own a branch is no stretch: what follows it follows its parent.
    """
    parent = nodes[pending.parent]
    checked_int(tokens, path, low=0, high=MAX_TREE_TOKENS)
    if parent.end + tokens > MAX_TREE_TOKENS:
        raise OutOfRange(
            "{field}: the prefix and its branch together are longer than {high} tokens",
            field=path,
            high=MAX_TREE_TOKENS,
        )
    times = pending.times * count
    if times * parent.copies > MAX_LEAVES:
        raise OutOfRange(
            "{field}: with all that branches before it, these are more than {high} sequences",
            field=path,
            high=MAX_LEAVES,
        )
    if not tokens:
        return pending.parent, times
    copies = parent.copies * times
    nodes.append(Node(pending.parent, parent.end, parent.end + tokens, copies))
    return len(nodes) - 1, 1


def samples_of(prompt_tokens: int, samples: int, own_tokens: int) -> tuple[PrefixGroup, ...]:
    """Return n samples (or beams) of one prompt that have each produced so many tokens.

    Raises:
        WrongType, OutOfRange: for another number of samples than 1..MAX_SEQUENCES.

    """
    checked_int(samples, "samples", low=1, high=MAX_SEQUENCES)
    return (PrefixGroup(prefix_tokens=prompt_tokens, branches=(own_tokens,) * samples),)


def _checked_sequences(sequences: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    checked_int(len(sequences), "sequences", low=0, high=MAX_SEQUENCES)
    total = 0
    for index, tokens in enumerate(sequences):
        total += len(tokens)
        if len(tokens) > MAX_SEQUENCE_TOKENS or total > MAX_ALL_TOKENS:
            raise OutOfRange(
                "{field} has too many tokens: at most {high} in one sequence, {total} in all",
                field=("sequences", index),
                high=MAX_SEQUENCE_TOKENS,
                total=MAX_ALL_TOKENS,
            )
    return [checked_tokens(tokens, ("sequences", index)) for index, tokens in enumerate(sequences)]


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return how many tokens two sequences have in common from the start."""
    least = min(len(first), len(second))
    if first[:least] == second[:least]:
        return least
    return next(at for at in range(least) if first[at] != second[at])


def tree_of_sequences(sequences: Sequence[Sequence[int]]) -> PrefixTree:
    """Return the tree of lists of token ids: equal prefixes are one stretch.

    Raises:
        WrongType, OutOfRange: for bad token ids or too many.

    """
    ids = _checked_sequences(sequences)
    # In sorted order, what two sequences share is least between neighbours on the way.
    order = sorted(range(len(ids)), key=ids.__getitem__)
    nodes = [Node(-1, 0, 0)]
    path = [0]
    before: tuple[int, ...] = ()
    for number in order:
        tokens = ids[number]
        shared = _common(before, tokens)
        while nodes[path[-1]].start >= shared and len(path) > 1:
            path.pop()
        if nodes[path[-1]].end > shared:
            _split(nodes, path, shared)
        if len(tokens) > nodes[path[-1]].end:
            nodes.append(Node(path[-1], nodes[path[-1]].end, len(tokens)))
            path.append(len(nodes) - 1)
        nodes[path[-1]].numbers.append(number)
        nodes[path[-1]].ending += 1
        before = tokens
    return _finished(_parents_first(nodes), numbered=True)


def _split(nodes: list[Node], path: list[int], at: int) -> None:
    """Cut the last node of the path in two, so that one of them ends at `at`."""
    low = path[-1]
    nodes.append(Node(nodes[low].parent, nodes[low].start, at))
    nodes[low].parent = len(nodes) - 1
    nodes[low].start = at
    path[-1] = len(nodes) - 1


def _parents_first(nodes: list[Node]) -> list[Node]:
    """Return the nodes in an order where every parent stands before its children."""
    order = sorted(range(len(nodes)), key=lambda index: (nodes[index].start, nodes[index].end))
    place = {index: position for position, index in enumerate(order)}
    for node in nodes[1:]:
        node.parent = place[node.parent]
    return [nodes[index] for index in order]
