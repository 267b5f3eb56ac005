"""Prefix hits of a request log against the capacity of the pool, exact at every capacity."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from app.domain.checks import checked_int

MAX_CAPACITY_BLOCKS = 10**15
MAX_BLOCK_BYTES = 2**50
MAX_SAMPLES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPoint:
    """The hits of a pool of `capacity_blocks`; the rate is `hit_blocks / logical_blocks`."""

    capacity_blocks: int
    hit_blocks: int
    logical_blocks: int

    @property
    def hit_rate(self) -> float:
        """Return the share of all references that hit, 0.0 for an empty log (for display)."""
        return self.hit_blocks / self.logical_blocks if self.logical_blocks else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HitCurve:
    """How many block references hit, for every capacity at once.

    `capacities` and `hits` are the curve's corners, both rising from (0, 0): between two of them
    the hits grow by the same whole number with each block, and after the last one not at all.

    `repeated_blocks` counts the references to a block that an earlier request named too. The last
    corner's hits fall short of it where a log names such a block behind one never seen, which no
    log of chained hashes does.
    """

    HEADER: ClassVar[tuple[str, ...]] = (
        "capacity_blocks",
        "capacity_bytes",
        "hit_blocks",
        "logical_blocks",
    )

    requests: int
    logical_blocks: int
    unique_blocks: int
    repeated_blocks: int
    capacities: Sequence[int]
    hits: Sequence[int]

    @property
    def most_hits(self) -> int:
        """Return the hits of a pool without bound: the log's own reuse."""
        return self.hits[-1]

    @property
    def enough_blocks(self) -> int:
        """Return the smallest capacity at which no more hits are to be had."""
        return self.capacities[-1]

    def at(self, capacity_blocks: int) -> HitPoint:
        """Return the hits of one pool.

        Raises:
            OutOfRange: for a negative capacity or one above MAX_CAPACITY_BLOCKS.

        """
        checked_int(capacity_blocks, "capacity_blocks", low=0, high=MAX_CAPACITY_BLOCKS)
        right = bisect_right(self.capacities, capacity_blocks)
        hits = self.hits[right - 1]
        if right < len(self.capacities):
            width = self.capacities[right] - self.capacities[right - 1]
            rise = self.hits[right] - hits
            hits += rise // width * (capacity_blocks - self.capacities[right - 1])
        return self._point(capacity_blocks, hits)

    def smallest_with(self, hit_blocks: int) -> HitPoint:
        """Return the smallest pool with at least so many hits.

        Raises:
            OutOfRange: for a negative number, or more hits than there are.

        """
        checked_int(hit_blocks, "hit_blocks", low=0, high=self.most_hits)
        right = bisect_left(self.hits, hit_blocks)
        if right == 0:
            return self._point(0, 0)
        width = self.capacities[right] - self.capacities[right - 1]
        per_block = (self.hits[right] - self.hits[right - 1]) // width
        missing = hit_blocks - self.hits[right - 1]
        return self.at(self.capacities[right - 1] + -(-missing // per_block))

    def sample(self, limit: int = 200) -> tuple[HitPoint, ...]:
        """Return at most `limit` points, each of them exact, first and last corner included.

        All corners where they are few; else half of the points at equal steps of hits, which
        follow the curve where it rises, and half at growing capacities, for a logarithmic axis.

        Raises:
            OutOfRange: for a limit outside 4..MAX_SAMPLES.

        """
        checked_int(limit, "limit", low=4, high=MAX_SAMPLES)
        if len(self.capacities) <= limit:
            return tuple(map(self._point, self.capacities, self.hits))
        steps = limit // 2 - 1
        last = self.enough_blocks
        levels = {self.smallest_with(self.most_hits * i // steps) for i in range(steps + 1)}
        # Powers need no exactness here: whatever the capacity, its hits are exact.
        widths = {round(last ** (i / steps)) for i in range(steps + 1)} | {0, last}
        points = levels | {self.at(width) for width in widths}
        return tuple(sorted(points, key=lambda point: point.capacity_blocks))

    def rows(self, limit: int = 200, block_bytes: int | None = None) -> Iterator[tuple[int, ...]]:
        """Yield a sample as rows under HEADER; without `block_bytes` the bytes are 0.

        Raises:
            OutOfRange: as `sample` does, or for a negative size.

        """
        each = 0 if block_bytes is None else block_bytes
        checked_int(each, "block_bytes", low=0, high=MAX_BLOCK_BYTES)
        for point in self.sample(limit):
            width = point.capacity_blocks
            yield (width, width * each, point.hit_blocks, point.logical_blocks)

    def _point(self, capacity_blocks: int, hit_blocks: int) -> HitPoint:
        return HitPoint(
            capacity_blocks=capacity_blocks,
            hit_blocks=hit_blocks,
            logical_blocks=self.logical_blocks,
        )


def curve_of_changes(changes: dict[int, int]) -> tuple[list[int], list[int]]:
    """Return the corners of a curve from the changes of its slope.

    `changes[d]` is by how much the hits won by the d-th block of the pool exceed those won by the
    block before it, so that three references at distances 2, 3 and 4 are {2: 1, 5: -1}.
    """
    capacities, hits = [0], [0]
    slope = 0
    for distance in sorted(changes):
        if not changes[distance]:
            continue
        if distance - 1 > capacities[-1]:
            hits.append(hits[-1] + slope * (distance - 1 - capacities[-1]))
            capacities.append(distance - 1)
        slope += changes[distance]
    return capacities, hits
