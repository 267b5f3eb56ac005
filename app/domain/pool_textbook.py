"""The textbook's way with a pool: a fork shares every block, and writing a shared one copies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain import pool_notes as why
from app.domain.cache_groups import ceil_div
from app.domain.hashing import IDENTITY_FIELDS, IdentityPart, textbook_hash
from app.domain.pool import BlockKey, BlockPool
from app.domain.pool_events import PoolEvent
from app.domain.pool_simulator import Simulator, Trace


@dataclass(slots=True)
class _Request:
    tokens: list[int]
    identity: tuple[IdentityPart, ...]
    hashes: list[bytes]
    table: list[int]


def _identity_of(event: PoolEvent) -> tuple[IdentityPart, ...]:
    """Return the identity of a request: one model and tokenizer, its own adapter and salt."""
    own = {"adapter": event.adapter or "", "salt": event.salt or ""}
    return tuple(
        IdentityPart(kind=name, value=own.get(name, "one")) for name in sorted(IDENTITY_FIELDS)
    )


class TextbookSimulator(Simulator):
    """Tables with reference counts and copy on write; full blocks are also found by their hash."""

    def __init__(self, pool: BlockPool, block_size: int, *, preempts: bool) -> None:
        super().__init__(pool, block_size, preempts=preempts)
        self._requests: dict[str, _Request] = {}

    def table(self, request: str) -> tuple[int, ...]:
        """Return a request's table."""
        return tuple(self._requests[request].table)

    def length(self, request: str) -> int:
        """Return how many tokens a request has."""
        return len(self._requests[request].tokens)

    def allocate(self, trace: Trace, event: PoolEvent) -> None:
        """Enter a request and admit it, if its blocks fit."""
        held = _Request(list(event.tokens), _identity_of(event), [], [])
        self._rehash(held)
        self._requests[event.request] = held
        self._admit(trace, event.request)

    def _rehash(self, held: _Request) -> None:
        while (len(held.hashes) + 1) * self.block_size <= len(held.tokens):
            start = len(held.hashes) * self.block_size
            block = held.tokens[start : start + self.block_size]
            parent = held.hashes[-1] if held.hashes else b""
            held.hashes.append(textbook_hash(parent, block, held.identity))

    def _keys(self, held: _Request) -> list[BlockKey]:
        return [(name.hex(), 0) for name in held.hashes]

    def _found(self, held: _Request) -> tuple[int, ...]:
        return self.pool.find_prefix(self._keys(held)) if self.pool.caching else ()

    def _admit(self, trace: Trace, request: str) -> None:
        held = self._requests[request]
        total = len(held.tokens)
        hits = self._found(held)
        new = ceil_div(total, self.block_size) - len(hits)
        needed = new + sum(not self.pool.references(block) for block in hits)
        if needed > self.pool.free_blocks:
            trace.refuse(why.refused(needed, self.pool.free_blocks))
            return
        self.admit(request)
        revived = self.pool.touch(hits)
        held.table.extend(hits)
        covered = len(hits) * self.block_size
        trace.hits = (*trace.hits, *hits)
        trace.hit_tokens += covered
        trace.admitted_tokens += total
        if hits:
            trace.notes.append(why.hit(hits, covered, total))
        elif self.pool.caching:
            trace.notes.append(why.miss())
        if revived:
            trace.notes.append(why.revived(revived))
        if covered == total:
            trace.notes.append(why.last_recomputed())
        trace.computed_tokens += max(total - covered, 1)
        self._extend(trace, held, len(hits))

    def _extend(self, trace: Trace, held: _Request, named: int) -> None:
        """Take the blocks that the tokens need, and name those from `named` on that are full."""
        missing = ceil_div(len(held.tokens), self.block_size) - len(held.table)
        taken, lost = self.pool.allocate(missing)
        held.table.extend(taken)
        trace.took(taken, lost)
        if not self.pool.caching:
            return
        keys = self._keys(held)
        full = held.table[named : len(keys)]
        for index in range(named, len(keys)):
            self.pool.cache_full(held.table[index], keys[index], (index + 1) * self.block_size)
        if full:
            trace.notes.append(why.named(full))
        for index, block in enumerate(full, start=named):
            first = self.pool.holders_of(keys[index])[0]
            if first != block:
                trace.notes.append(why.duplicate(block, first))

    def grow(self, trace: Trace, request: str, tokens: Sequence[int]) -> int | None:
        """Write more tokens, after copying the last block if others hold it too."""
        held = self._requests[request]
        before = len(held.tokens)
        has_room = bool(before % self.block_size)
        tail = held.table[-1]
        holders = self.pool.references(tail)
        copies = has_room and holders > 1
        new = ceil_div(before + len(tokens), self.block_size) - len(held.table)
        needed = new + int(copies)
        if needed > self.pool.free_blocks:
            return needed
        if copies:
            (target,), lost = self.pool.allocate(1)
            trace.took((target,), lost)
            trace.notes.append(why.copied(tail, target, holders))
            trace.copies.append((tail, target))
            self.pool.release((tail,))
            held.table[-1] = target
        elif has_room:
            trace.notes.append(why.in_place(tail))
        named = len(held.hashes)
        held.tokens.extend(tokens)
        self._rehash(held)
        trace.computed_tokens += len(tokens)
        self._extend(trace, held, named)
        return None

    def keep_tokens(self, request: str, tokens: Sequence[int]) -> None:
        """Add tokens to a request that waits."""
        held = self._requests[request]
        held.tokens.extend(tokens)
        self._rehash(held)

    def fork(self, trace: Trace, parent: str, child: str) -> None:
        """Share every block of the parent, the partly filled last one included."""
        held = self._requests[parent]
        self._requests[child] = _Request(
            list(held.tokens), held.identity, list(held.hashes), list(held.table)
        )
        self.pool.touch(held.table)
        self.admit(child)
        trace.notes.append(why.shared(child, held.table))

    def look_up(self, trace: Trace, event: PoolEvent) -> None:
        """Say what tokens would find."""
        held = _Request(list(event.tokens), _identity_of(event), [], [])
        self._rehash(held)
        trace.hits = self._found(held)
        trace.hit_tokens = len(trace.hits) * self.block_size
        trace.notes.append(why.looked_up(trace.hits, trace.hit_tokens, len(held.tokens)))

    def resume(self, trace: Trace, request: str) -> None:
        """Try a waiting request again; what is still cached is hit."""
        self._admit(trace, request)

    def give_back(self, request: str, *, forget: bool) -> tuple[int, ...]:
        """Release a request's blocks, its tail first."""
        held = self._requests[request]
        freed = self.pool.release(reversed(held.table))
        held.table = []
        if forget:
            del self._requests[request]
        return freed
