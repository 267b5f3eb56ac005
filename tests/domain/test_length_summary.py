"""Exact percentiles of lengths, and the block size that a log's numbers tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import length_summary
from app.domain.block_tokens import BlockTokens
from app.domain.errors import OutOfRange
from app.domain.length_summary import PERMILLES, LengthCounter, summarise_lengths


def test_percentiles_are_lengths_that_occur() -> None:
    """Of 1..10 the median is 5, the 90th percentile 9 and the 99th 10, by nearest rank."""
    summary = summarise_lengths(dict.fromkeys(range(1, 11), 1))
    assert dict(summary.percentiles) == {
        10: 1,
        50: 1,
        100: 1,
        250: 3,
        500: 5,
        750: 8,
        900: 9,
        950: 10,
        990: 10,
        999: 10,
    }
    assert (summary.requests, summary.total_tokens, summary.mean_tokens) == (10, 55, 5)
    assert (summary.shortest_tokens, summary.longest_tokens) == (1, 10)
    rows = list(summary.rows())
    assert (rows[0], rows[5], rows[10], rows[11]) == (
        ("0", 1),
        ("50", 5),
        ("99.9", 10),
        ("100", 10),
    )
    assert len(summary.HEADER) == 2


def test_nothing_has_no_percentiles() -> None:
    """Without requests everything is 0, and a count of 0 is no request."""
    for counts in ({}, {5: 0}):
        summary = summarise_lengths(counts)
        assert (summary.requests, summary.mean_tokens, summary.percentiles) == (0, 0, ())
        assert list(summary.rows()) == [("0", 0), ("100", 0)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200))
def test_a_percentile_is_the_nearest_rank(lengths: list[int]) -> None:
    """The p-th percentile is the element at rank ceil(p * n) of the sorted lengths."""
    counter = LengthCounter()
    for length in lengths:
        counter.add(length, "tokens")
    in_order = sorted(lengths)
    expected = tuple((p, in_order[-(-p * len(lengths) // 1000) - 1]) for p in PERMILLES)
    assert counter.summary().percentiles == expected


def test_lengths_and_their_variety_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length out of bounds is refused, and so are more different ones than are kept."""
    monkeypatch.setattr(length_summary, "MAX_DISTINCT_LENGTHS", 2)
    counter = LengthCounter()
    for length in (5, 5, 6):
        counter.add(length, "tokens")
    with pytest.raises(OutOfRange, match="more than 2 different"):
        counter.add(7, "tokens")
    for length in (-1, 10**9 + 1):
        with pytest.raises(OutOfRange, match="tokens"):
            counter.add(length, "tokens")


@pytest.mark.parametrize(
    ("requests", "known"),
    [
        ([], None),
        # The first two lines of Mooncake's synthetic log: only 512 is a power of two in 509..514.
        ([(40160, 79), (36640, 72)], 512),
        # ⌈t/b⌉ with b = 10: 10 tokens are one block, 11 two.
        ([(10, 1), (11, 2), (20, 2)], 10),
        # ⌊t/b⌋ with b = 16: 15 tokens have no block, 16 one.
        ([(15, 0), (16, 1), (31, 1)], 16),
        ([(521, 32)], 16),
        # One block of at most 100 tokens may have any size from 100 on.
        ([(100, 1)], None),
        ([(0, 0)], None),
        # 24 alone fits, and it is no power of two.
        ([(24, 1), (25, 2), (48, 2), (49, 3)], 24),
        # ⌈20/b⌉ = 2 allows 16 and ⌊20/b⌋ = 2 allows 8.
        ([(20, 2)], None),
        # Neither 22..31 nor 17..21 has a power of two.
        ([(64, 3)], None),
        # No size gives 100 tokens one block and 50 tokens two.
        ([(100, 1), (50, 2)], None),
        ([(0, 1)], None),
    ],
)
def test_a_log_tells_its_block_size(requests: list[tuple[int, int]], known: int | None) -> None:
    """The size is known where one remains, or one power of two, and else left open."""
    sizes = BlockTokens()
    for tokens, blocks in requests:
        sizes.add(tokens, blocks)
    assert sizes.known == known


@given(
    st.integers(1, 600),
    st.integers(0, 1),
    st.lists(st.integers(0, 20_000), min_size=1, max_size=40),
)
def test_the_true_block_size_is_never_excluded(
    size: int, with_tail: int, lengths: list[int]
) -> None:
    """Whichever rule a log follows, its block size is allowed, and what is known is allowed."""
    sizes = BlockTokens()
    for tokens in lengths:
        sizes.add(tokens, -(-tokens // size) if with_tail else tokens // size)
    assert sizes.allows(size)
    assert sizes.known is None or sizes.allows(sizes.known)


def test_another_block_size_is_not_allowed() -> None:
    """1000 tokens in 10 blocks are no blocks of 16."""
    sizes = BlockTokens()
    sizes.add(1000, 10)
    assert sizes.allows(100)
    assert not sizes.allows(16)
