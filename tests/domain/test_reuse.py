"""Hits of an LRU pool for every capacity at once, against pools simulated one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import reuse
from app.domain.errors import OutOfRange, WrongType
from app.domain.hit_curve import HitCurve, HitPoint
from app.domain.reuse import ReuseMeter

Log = Sequence[Sequence[Hashable]]


def reuse_curve(requests: Iterable[Iterable[Hashable]]) -> HitCurve:
    """Return the hits of every capacity for a log of requests, each the blocks it names in order.

    With blocks a, b, c and the requests ab, ac, ab: the second hits a at depth 1; then the stack
    is a c b, so that the third hits a at depth 1 and b at depth 3. A pool of 1 or 2 has 2 hits, a
    pool of 3 has 3.
    """
    meter = ReuseMeter()
    for blocks in requests:
        meter.add(blocks)
    return meter.curve()


def hits_of_one_pool(log: Log, capacity: int) -> int:
    """Simulate one pool by its rule: an ordered list of what is cached, most recent first."""
    cached: list[Hashable] = []
    hits = 0
    for blocks in log:
        before = set(cached)
        for block in blocks:
            if block not in before:
                break
            hits += 1
        named = list(dict.fromkeys(blocks))
        rest = [block for block in cached if block not in named]
        cached = (named + rest)[:capacity]
    return hits


def hits_of_an_engine(log: Log, capacity: int) -> int:
    """Simulate blocks as an engine allocates them, for requests that fit into the pool.

    A queue of free blocks: a hit takes its block out of it, a miss takes the block at its head and
    forgets what that held; when a request is over its blocks go to the tail, the last one first.
    """
    free: OrderedDict[int, Hashable] = OrderedDict((block, None) for block in range(capacity))
    cached: dict[Hashable, int] = {}
    hits = 0
    for names in log:
        held: list[tuple[int, Hashable]] = []
        for name in names:
            if name not in cached:
                break
            held.append((cached[name], name))
            del free[cached[name]]
        hits += len(held)
        for name in names[len(held) :]:
            block, forgotten = free.popitem(last=False)
            cached.pop(forgotten, None)
            cached[name] = block
            held.append((block, name))
        for block, name in reversed(held):
            free[block] = name
    return hits


any_log = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=25)


@st.composite
def chained_logs(draw: st.DrawFn) -> list[list[int]]:
    """Draw logs in which a block's id tells all blocks before it, as chained hashes do."""
    paths: list[list[int]] = [[]]
    log: list[list[int]] = []
    next_block = 0
    for _ in range(draw(st.integers(0, 25))):
        parent = draw(st.sampled_from(paths))
        kept = draw(st.integers(0, len(parent)))
        new = draw(st.integers(0, 5))
        path = parent[:kept] + list(range(next_block, next_block + new))
        next_block += new
        paths.append(path)
        log.append(path)
    return log


def unique(log: Log) -> set[Hashable]:
    """Return the blocks a log names."""
    return {block for blocks in log for block in blocks}


def test_a_small_log_by_hand() -> None:
    """After ab and ac the stack is a, c, b: ab then hits a at depth 1 and b at depth 3."""
    curve = reuse_curve(["ab", "ac", "ab"])
    assert [curve.at(capacity).hit_blocks for capacity in range(5)] == [0, 2, 2, 3, 3]
    assert (curve.requests, curve.logical_blocks, curve.unique_blocks) == (3, 6, 3)
    assert (curve.repeated_blocks, curve.most_hits, curve.enough_blocks) == (3, 3, 3)


def test_a_hit_ends_at_the_first_missing_block() -> None:
    """Blocks behind one never seen are no hits, however large the pool."""
    curve = reuse_curve([[1, 2, 3], [1, 9, 3], [1, 2, 3]])
    # The second hits 1 alone. Then the stack is 1 9 3 2: the third hits 1 at depth 1, 2 at depth 4,
    # and 3, though it lies at depth 3, only behind 2.
    assert [curve.at(capacity).hit_blocks for capacity in range(6)] == [0, 2, 2, 2, 4, 4]
    assert (curve.most_hits, curve.repeated_blocks) == (4, 5)


def test_a_request_longer_than_the_pool_keeps_its_beginning() -> None:
    """A pool of two keeps the first two of five blocks, since a prefix is evicted from its end."""
    assert reuse_curve(["abcde", "abcde"]).at(2).hit_blocks == 2


def test_a_block_named_twice_reads_one_depth() -> None:
    """Both references of a request to one block see the pool before the request."""
    curve = reuse_curve(["aa", "ba", "aba"])
    assert [curve.at(capacity).hit_blocks for capacity in range(4)] == [0, 0, 3, 3]
    assert curve.repeated_blocks == 4


@pytest.mark.parametrize(
    ("log", "numbers"),
    [([], (0, 0, 0, 0)), ([[]], (1, 0, 0, 0)), (["a"], (1, 1, 1, 0)), (["a", "b"], (2, 2, 2, 0))],
)
def test_a_log_without_reuse_has_no_hits(log: Log, numbers: tuple[int, int, int, int]) -> None:
    """Nothing repeated, nothing hit, at any capacity."""
    curve = reuse_curve(log)
    found = (curve.requests, curve.logical_blocks, curve.unique_blocks, curve.repeated_blocks)
    assert found == numbers
    assert [curve.at(capacity).hit_blocks for capacity in (0, 1, 10**15)] == [0, 0, 0]
    assert curve.sample() == (HitPoint(capacity_blocks=0, hit_blocks=0, logical_blocks=numbers[1]),)
    assert curve.at(1).hit_rate == 0.0


@given(any_log)
def test_every_capacity_equals_its_own_pool(log: list[list[int]]) -> None:
    """The curve equals a simulation of each single pool, chained ids or not."""
    curve = reuse_curve(log)
    for capacity in range(len(unique(log)) + 2):
        assert curve.at(capacity).hit_blocks == hits_of_one_pool(log, capacity)


@given(chained_logs())
def test_every_capacity_equals_its_own_pool_with_chained_ids(log: list[list[int]]) -> None:
    """The curve equals a simulation of each single pool on logs of chained hashes."""
    curve = reuse_curve(log)
    for capacity in range(len(unique(log)) + 2):
        assert curve.at(capacity).hit_blocks == hits_of_one_pool(log, capacity)


@given(chained_logs(), st.integers(0, 10))
def test_an_engines_queue_of_free_blocks_gives_the_same_hits(
    log: list[list[int]], spare: int
) -> None:
    """Where every request fits, a queue of free blocks hits what the stack says."""
    capacity = max(map(len, log), default=0) + spare
    assert reuse_curve(log).at(capacity).hit_blocks == hits_of_an_engine(log, capacity)


@given(any_log)
def test_more_capacity_never_hits_less(log: list[list[int]]) -> None:
    """The hit rate does not fall as capacity grows, and all hits are had at the last corner."""
    curve = reuse_curve(log)
    hits = [curve.at(capacity).hit_blocks for capacity in range(len(unique(log)) + 3)]
    assert hits == sorted(hits)
    assert hits[-1] == curve.most_hits == curve.at(curve.enough_blocks).hit_blocks
    assert curve.enough_blocks == 0 or curve.at(curve.enough_blocks - 1).hit_blocks < hits[-1]


@given(chained_logs())
def test_a_pool_without_bound_gives_the_logs_own_reuse(log: list[list[int]]) -> None:
    """With chained ids, every reference but the first to each block hits."""
    curve = reuse_curve(log)
    assert curve.logical_blocks == sum(map(len, log))
    assert curve.unique_blocks == len(unique(log)) <= curve.logical_blocks
    assert curve.most_hits == curve.logical_blocks - curve.unique_blocks == curve.repeated_blocks


@given(any_log)
def test_repeated_blocks_are_those_an_earlier_request_named(log: list[list[int]]) -> None:
    """A repeated reference is to a block of an earlier request, hit or not."""
    seen: set[int] = set()
    repeated = 0
    for blocks in log:
        repeated += sum(block in seen for block in blocks)
        seen.update(blocks)
    assert reuse_curve(log).repeated_blocks == repeated


@given(st.one_of(any_log, chained_logs()), st.integers(1, 4))
def test_segments_of_any_length_and_renumbering_change_nothing(
    log: list[list[int]], segment_blocks: int
) -> None:
    """How the stack is cut and when its spent parts are forgotten is not seen in the result."""
    expected = reuse_curve(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "_SEGMENT_BLOCKS", segment_blocks)
        patch.setattr(reuse, "_SPENT_SEGMENTS", 0)
        patch.setattr(reuse, "_SHIFT", 1)
        patch.setattr(reuse, "_SHIFT_TWICE", 2)
        assert reuse_curve(log) == expected


def test_long_requests_and_many_segments() -> None:
    """Requests over several segments, and groups of groups of segments, count exactly."""
    log: list[list[int]] = [list(range(1000))]
    log += [[10_000 + i] for i in range(5000)]
    log += [list(range(1000)), list(range(600))]
    curve = reuse_curve(log)
    # The long request lies under 5,000 blocks, then on top of all.
    assert curve.at(5000).hit_blocks == 600
    assert curve.at(5001).hit_blocks == 601
    assert curve.at(5999).hit_blocks == 1599
    assert curve.at(6000).hit_blocks == curve.most_hits == 1600
    assert curve.at(599).hit_blocks == 599


def test_memory_follows_distinct_blocks_not_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming the same blocks for ever keeps as many segments as hold a block, not more."""
    monkeypatch.setattr(reuse, "_SPENT_SEGMENTS", 100)
    meter = ReuseMeter()
    for turn in range(10_000):
        meter.add((turn % 3,))
        assert len(meter._segments) <= 104
    assert (meter.requests, meter.logical_blocks, meter.unique_blocks) == (10_000, 10_000, 3)
    assert meter.curve().at(3).hit_blocks == 9997
    assert meter.curve().at(2).hit_blocks == 0


def test_distinct_blocks_are_bounded() -> None:
    """A meter refuses more distinct blocks than it was made for."""
    meter = ReuseMeter(max_unique_blocks=3)
    meter.add("abc")
    meter.add("abc")
    with pytest.raises(OutOfRange, match="more than 3 distinct"):
        meter.add("d")
    with pytest.raises(OutOfRange):
        ReuseMeter(max_unique_blocks=0)
    with pytest.raises(WrongType):
        ReuseMeter(max_unique_blocks=True)


@given(any_log, st.data())
def test_the_smallest_pool_with_some_hits(log: list[list[int]], data: st.DataObject) -> None:
    """One block fewer would hit less than was asked for."""
    curve = reuse_curve(log)
    wanted = data.draw(st.integers(0, curve.most_hits))
    point = curve.smallest_with(wanted)
    assert point == curve.at(point.capacity_blocks)
    assert point.hit_blocks >= wanted
    if point.capacity_blocks:
        assert curve.at(point.capacity_blocks - 1).hit_blocks < wanted


def long_curve() -> HitCurve:
    """Return a curve of 301 corners: the blocks 2, 4, … 300 win 1, 2, … 150 hits, others none."""
    corners, hits = [0], [0]
    for step in range(1, 151):
        corners += [2 * step - 1, 2 * step]
        hits += [hits[-1], hits[-1] + step]
    return HitCurve(
        requests=1,
        logical_blocks=20_000,
        unique_blocks=300,
        repeated_blocks=hits[-1],
        capacities=corners,
        hits=hits,
    )


@pytest.mark.parametrize("limit", [4, 10, 50, 200])
def test_a_sample_is_exact_at_every_point(limit: int) -> None:
    """Fewer points than corners: each is on the curve, and both ends are among them."""
    curve = long_curve()
    points = curve.sample(limit)
    assert 2 <= len(points) <= limit
    assert [point.capacity_blocks for point in (points[0], points[-1])] == [0, 300]
    assert points[-1].hit_blocks == 11_325
    assert all(point == curve.at(point.capacity_blocks) for point in points)
    capacities = [point.capacity_blocks for point in points]
    assert capacities == sorted(set(capacities))


def test_a_sample_with_room_is_the_whole_curve() -> None:
    """With enough points, the corners themselves are given."""
    curve = long_curve()
    assert len(curve.sample(1000)) == len(curve.capacities) == 301


def test_rows_name_capacities_in_blocks_and_bytes() -> None:
    """Each row is a point of the sample, its capacity times the bytes of a block beside it."""
    curve = reuse_curve(["ab", "ac", "ab"])
    assert list(curve.rows(block_bytes=512)) == [
        (0, 0, 0, 6),
        (1, 512, 2, 6),
        (2, 1024, 2, 6),
        (3, 1536, 3, 6),
    ]
    assert [row[1] for row in curve.rows()] == [0, 0, 0, 0]
    assert len(curve.HEADER) == 4
    with pytest.raises(OutOfRange, match="block_bytes"):
        list(curve.rows(block_bytes=-1))


def test_a_hit_rate_is_hits_over_references() -> None:
    """3 of 6 references hit."""
    assert reuse_curve(["ab", "ac", "ab"]).at(3).hit_rate == 0.5


@pytest.mark.parametrize("capacity", [-1, 10**15 + 1])
def test_a_capacity_is_bounded(capacity: int) -> None:
    """A capacity is neither negative nor beyond any machine."""
    with pytest.raises(OutOfRange, match="capacity_blocks"):
        reuse_curve(["a"]).at(capacity)


def test_questions_are_bounded() -> None:
    """More hits than there are, or a sample of next to nothing, is refused."""
    curve = reuse_curve(["a", "a"])
    with pytest.raises(OutOfRange, match="hit_blocks"):
        curve.smallest_with(2)
    for limit in (3, 100_001):
        with pytest.raises(OutOfRange, match="limit"):
            curve.sample(limit)


@given(st.lists(st.lists(st.sampled_from([b"a", "a", 1, (1, 2)]), max_size=4), max_size=8))
def test_any_hashable_names_a_block(log: Iterable[list[Hashable]]) -> None:
    """Ids are compared, never computed with."""
    names: dict[Hashable, int] = {}
    log = list(log)
    renamed = [[names.setdefault(block, len(names)) for block in blocks] for blocks in log]
    assert reuse_curve(log) == reuse_curve(renamed)
