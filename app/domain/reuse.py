"""Exact LRU hits of a request log for every pool capacity at once, in one pass.

The rule of the pool, as prefix-caching engines keep it (vLLM v1: a lookup walks a prompt's blocks
until the first one that is not cached; a request's blocks are freed last block first, so that the
end of a prefix is always evicted before its beginning):

1. Requests come one after another; each is over before the next is looked up.
2. A lookup sees the pool as the earlier requests left it. The hits are the request's leading blocks
   up to, and without, the first that is not there.
3. Then all blocks of the request become the most recent ones, the first block the most recent of
   all. A pool of C blocks keeps the C most recent and has evicted the rest; of a request of more
   than C blocks it keeps the first C.

Pool C therefore holds the top C of one stack that is the same for every C (Mattson et al. 1970,
"Evaluation techniques for storage hierarchies"). A block at depth d of the stack, counted from 1,
is in the pools with C >= d, and as prefixes hit from the front, a reference hits where C is at
least the deepest depth among the request's blocks up to this one. A block that occurs twice in one
request stands at its first place, and both references read the same depth.

How it is kept: the stack is a list of segments, each the blocks that one request was the last to
name. Where a hash names a block together with all before it, a request takes whole leading parts
of segments, so that what costs time is the few segments a request meets, not its blocks: comparing
and slicing sequences is done by the interpreter at once. Logs whose ids are not chained are
counted exactly too, block by block. Memory grows with distinct blocks and segments that still hold
one, never with references.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import ne

from app.domain.checks import checked_int
from app.domain.errors import OutOfRange
from app.domain.hit_curve import HitCurve, curve_of_changes

# Finding a block inside a segment is a linear search, so that a segment must not be long.
_SEGMENT_BLOCKS = 256
# Live blocks are summed over groups of 64 segments, and over groups of 64 such groups.
_SHIFT = 6
_SHIFT_TWICE = 2 * _SHIFT
_SPENT_SEGMENTS = 1 << 16

MAX_UNIQUE_BLOCKS = 1 << 40


class ReuseMeter:
    """Takes requests one by one; `curve` may be asked at any time."""

    def __init__(self, *, max_unique_blocks: int = MAX_UNIQUE_BLOCKS) -> None:
        """Start with an empty pool; `max_unique_blocks` bounds the memory.

        Raises:
            WrongType, OutOfRange: for a bound outside 1..MAX_UNIQUE_BLOCKS.

        """
        self._max_unique_blocks = checked_int(
            max_unique_blocks, "max_unique_blocks", low=1, high=MAX_UNIQUE_BLOCKS
        )
        # Which segment a block lives in; the newest segment is the last, its first block the most
        # recent one.
        self._owners: dict[Hashable, int] = {}
        self._segments: list[tuple[Hashable, ...]] = []
        # How many blocks live in each segment, in each 64 segments, in each 64 times 64.
        self._live: list[int] = []
        self._live_of_64: list[int] = []
        self._live_of_4096: list[int] = []
        self._spent_segments = 0
        self._changes: defaultdict[int, int] = defaultdict(int)
        self._requests = 0
        self._references = 0
        self._repeated = 0

    @property
    def requests(self) -> int:
        """Return how many requests were taken."""
        return self._requests

    @property
    def logical_blocks(self) -> int:
        """Return how many blocks the requests named."""
        return self._references

    @property
    def unique_blocks(self) -> int:
        """Return how many different blocks the requests named."""
        return len(self._owners)

    def add(self, blocks: Iterable[Hashable]) -> None:
        """Take the next request: its blocks in the order of its tokens.

        Raises:
            OutOfRange: when there are more distinct blocks than the meter was made for.

        """
        path = tuple(blocks)
        self._requests += 1
        self._references += len(path)
        newest = len(self._segments)
        entries = dict.fromkeys(path, newest)
        owners = list(map(self._owners.get, path))
        unknown = owners.count(None)
        known = len(path) - unknown
        self._repeated += known
        regular = len(entries) == len(path)
        if known and regular:
            regular = (not unknown or owners.index(None) == known) and self._take(
                path, owners, known
            )
        if not regular:
            self._take_one_by_one(path, owners)
            path = tuple(entries)
        if len(path) <= _SEGMENT_BLOCKS:
            self._owners.update(entries)
            self._append(path)
        else:
            self._append_in_parts(path)
        if len(self._owners) > self._max_unique_blocks:
            raise OutOfRange(
                "{field}: more than {high} distinct blocks",
                field="blocks",
                high=self._max_unique_blocks,
            )
        if self._spent_segments > max(_SPENT_SEGMENTS, len(self._segments) // 2):
            self._renumber()

    def curve(self) -> HitCurve:
        """Return the hits of every capacity for the requests taken so far."""
        capacities, hits = curve_of_changes(self._changes)
        return HitCurve(
            requests=self._requests,
            logical_blocks=self._references,
            unique_blocks=len(self._owners),
            repeated_blocks=self._repeated,
            capacities=capacities,
            hits=hits,
        )

    def _take(self, path: tuple[Hashable, ...], owners: list[int | None], known: int) -> bool:
        """Count and remove the first `known` blocks if they are leading parts of segments.

        They are if each part is of an older segment than the one before it; else nothing changes.
        """
        takes: list[tuple[int, int]] = []
        segments = self._segments
        start, newer = 0, len(segments)
        while start < known:
            segment = owners[start]
            if segment is None or segment >= newer:
                return False
            blocks = segments[segment]
            stop = start + len(blocks)
            stop = min(stop, known)
            wanted = path[start:stop]
            if blocks[: stop - start] != wanted:
                stop = start + list(map(ne, blocks, wanted)).index(True)
                if stop == start:
                    return False
            takes.append((segment, stop - start))
            start = stop
            newer = segment
        changes, taken = self._changes, 0
        for segment, count in takes:
            # What this request has taken so far lay above, in newer segments.
            depth = taken + self._newer_than(segment) + 1
            changes[depth] += 1
            changes[depth + count] -= 1
            self._shrink(segment, segments[segment][count:], count)
            taken += count
        return True

    def _take_one_by_one(self, path: tuple[Hashable, ...], owners: list[int | None]) -> None:
        """Count and remove the blocks of a request wherever they lie."""
        deepest = 0
        for block, segment in zip(path, owners, strict=True):
            if segment is None:
                break
            depth = self._newer_than(segment) + self._segments[segment].index(block) + 1
            deepest = max(deepest, depth)
            self._changes[deepest] += 1
            self._changes[deepest + 1] -= 1
        for block, segment in dict(zip(path, owners, strict=True)).items():
            if segment is not None:
                blocks = self._segments[segment]
                place = blocks.index(block)
                self._shrink(segment, blocks[:place] + blocks[place + 1 :], 1)

    def _newer_than(self, segment: int) -> int:
        """Return how many blocks live in the segments after this one."""
        of_64 = (segment >> _SHIFT) + 1
        of_4096 = (segment >> _SHIFT_TWICE) + 1
        return (
            sum(self._live[segment + 1 : of_64 << _SHIFT])
            + sum(self._live_of_64[of_64 : of_4096 << _SHIFT])
            + sum(self._live_of_4096[of_4096:])
        )

    def _shrink(self, segment: int, blocks: tuple[Hashable, ...], removed: int) -> None:
        self._segments[segment] = blocks
        self._live[segment] -= removed
        self._live_of_64[segment >> _SHIFT] -= removed
        self._live_of_4096[segment >> _SHIFT_TWICE] -= removed
        if not blocks:
            self._spent_segments += 1

    def _append(self, blocks: tuple[Hashable, ...]) -> None:
        segment, count = len(self._segments), len(blocks)
        self._segments.append(blocks)
        self._live.append(count)
        if segment % (1 << _SHIFT):
            self._live_of_64[-1] += count
        else:
            self._live_of_64.append(count)
        if segment % (1 << _SHIFT_TWICE):
            self._live_of_4096[-1] += count
        else:
            self._live_of_4096.append(count)
        if not blocks:
            self._spent_segments += 1

    def _append_in_parts(self, path: tuple[Hashable, ...]) -> None:
        """Append a long request as several segments, its end first: its beginning is the newest."""
        for start in range(
            (len(path) - 1) // _SEGMENT_BLOCKS * _SEGMENT_BLOCKS, -1, -_SEGMENT_BLOCKS
        ):
            part = path[start : start + _SEGMENT_BLOCKS]
            self._owners.update(dict.fromkeys(part, len(self._segments)))
            self._append(part)

    def _renumber(self) -> None:
        """Forget the segments that hold nothing any more."""
        segments = [blocks for blocks in self._segments if blocks]
        self._segments, self._live, self._live_of_64, self._live_of_4096 = [], [], [], []
        self._spent_segments = 0
        for blocks in segments:
            self._owners.update(dict.fromkeys(blocks, len(self._segments)))
            self._append(blocks)
