"""Live state over time: peaks, means and areas, by hand and against a sum over every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import timeline as timeline_module
from app.domain.errors import Conflict, OutOfRange, WrongType
from app.domain.timeline import FixedDuration, LiveMeter, ServiceModel, Timeline, TokenRates

S = 10**9
Arrivals = list[tuple[int, int, int]]


def line_of(
    arrivals: Arrivals,
    service: ServiceModel,
    *,
    bins: int = 500,
    growth_steps: int = 16,
) -> Timeline:
    """Return the line of (arrival, input, output), a byte a token."""
    meter = LiveMeter(lambda tokens: tokens, service, bins=bins, growth_steps=growth_steps)
    for arrival in arrivals:
        meter.add(*arrival)
    return meter.timeline()


def test_one_request_by_hand() -> None:
    """100 tokens prefill for 1 s; 4 more, two a second, are each held from its beginning."""
    line = line_of([(7 * S, 100, 4)], TokenRates(decode_tokens_per_s=2, prefill_tokens_per_s=100))
    assert (line.start_ns, line.end_ns) == (7 * S, 10 * S)
    assert (line.peak_bytes, line.peak_at_ns, line.peak_requests) == (104, 9_500_000_000, 1)
    # 1 s of 100, then half a second each of 101, 102, 103 and 104.
    assert line.byte_ns == 305 * S
    assert line.mean_bytes == 101


def test_two_requests_overlap() -> None:
    """For 10 s each, 4 s apart: 6 s of both."""
    line = line_of([(0, 10, 0), (4 * S, 20, 0)], FixedDuration(duration_ns=10 * S))
    assert (line.peak_bytes, line.peak_at_ns, line.peak_requests) == (30, 4 * S, 2)
    assert line.end_ns == 14 * S
    assert line.byte_ns == 300 * S


def test_a_request_ends_before_another_begins_at_the_same_moment() -> None:
    """What is released at a time is free for what arrives at that time."""
    line = line_of([(0, 10, 0), (S, 20, 0)], FixedDuration(duration_ns=S))
    assert (line.peak_bytes, line.peak_requests) == (20, 1)


def test_fewer_growth_steps_never_show_less() -> None:
    """One step holds the whole answer from the beginning of decoding."""
    service = TokenRates(decode_tokens_per_s=1)
    fine = line_of([(0, 10, 8)], service, growth_steps=8)
    coarse = line_of([(0, 10, 8)], service, growth_steps=1)
    assert fine.byte_ns == sum(range(11, 19)) * S
    assert coarse.byte_ns == 18 * 8 * S
    assert fine.peak_bytes == coarse.peak_bytes == 18


def test_nothing_is_served_in_no_time() -> None:
    """A request without prefill time and without output lives for a nanosecond."""
    line = line_of([(5, 10, 0)], TokenRates(decode_tokens_per_s=1))
    assert (line.start_ns, line.end_ns, line.byte_ns, line.peak_bytes) == (5, 6, 10, 10)
    assert line.bins[0].mean_bytes == 10


def test_no_request_no_line() -> None:
    """Without requests there are no bins and nothing ever lived."""
    line = line_of([], FixedDuration(duration_ns=1))
    assert (line.bins, line.peak_bytes, line.byte_ns, line.mean_bytes) == ((), 0, 0, 0)


def test_bins_double_until_all_time_fits() -> None:
    """3 s in at most 4 bins take 1.024 s each: a millisecond doubled ten times."""
    line = line_of([(0, 5, 0), (2 * S, 7, 0)], FixedDuration(duration_ns=S), bins=4)
    assert line.bin_ns == 1_024_000_000
    assert list(line.rows()) == [
        (0, 5, 4, 1),
        (1_024_000_000, 7, 0, 1),
        (2_048_000_000, 7, 7, 1),
    ]
    assert len(line.HEADER) == 4


def test_what_is_taken_for_granted_is_said() -> None:
    """The service, that nobody waits, and how growth is drawn."""
    services: list[ServiceModel] = [
        TokenRates(decode_tokens_per_s=30),
        TokenRates(decode_tokens_per_s=30, prefill_tokens_per_s=8000),
        FixedDuration(duration_ns=S),
        FixedDuration(duration_ns=30 * S),
        FixedDuration(duration_ns=1_500_000_020),
    ]
    texts = []
    for service in services:
        notes = line_of([(0, 1, 1)], service).assumptions
        assert [note.code for note in notes][1:] == ["served_at_once", "growth_steps"]
        texts.append(notes[0].text)
    assert texts == [
        "Each request decodes 30 tokens a second; a prompt takes no time.",
        "Each request prefills 8000 and decodes 30 tokens a second.",
        "Each request takes 1 s, whatever its length.",
        "Each request takes 30 s, whatever its length.",
        "Each request takes 1.50000002 s, whatever its length.",
    ]


small_arrivals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 9)), max_size=12
).map(sorted)


@given(small_arrivals, st.integers(1, 9), st.integers(2, 7), st.integers(1, 3))
def test_the_line_equals_a_sum_over_every_moment(
    arrivals: Arrivals, steps: int, bins: int, ns_per_token: int
) -> None:
    """Area and peaks equal what adding up each request at each nanosecond gives."""
    service = TokenRates(decode_tokens_per_s=10**9 // ns_per_token)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_module, "_FIRST_BIN_NS", 1)
        line = line_of(arrivals, service, bins=bins, growth_steps=steps)
    level: dict[int, int] = {}
    live: dict[int, int] = {}
    for arrival, prompt, answer in arrivals:
        duration = max(1, service.decode_ns(answer))
        cuts = min(steps, answer)
        for offset in range(duration):
            begun = sum(step * duration // cuts <= offset for step in range(cuts))
            held = prompt + (-(-begun * answer // cuts) if cuts else 0)
            level[arrival + offset] = level.get(arrival + offset, 0) + held
            live[arrival + offset] = live.get(arrival + offset, 0) + 1
    assert line.byte_ns == sum(level.values())
    assert line.peak_bytes == max(level.values(), default=0)
    assert line.peak_requests == max(live.values(), default=0)
    if line.peak_bytes:
        assert line.peak_at_ns == min(at for at, held in level.items() if held == line.peak_bytes)
    for each in line.bins:
        times = range(each.start_ns, min(each.start_ns + line.bin_ns, line.end_ns))
        inside = [level.get(at, 0) for at in times]
        assert each.peak_bytes == max(inside)
        assert each.mean_bytes == sum(inside) // len(inside)
        assert each.peak_requests == max(live.get(at, 0) for at in times)


def test_time_does_not_go_back() -> None:
    """An arrival before the one before it is refused."""
    meter = LiveMeter(lambda tokens: tokens, FixedDuration(duration_ns=1))
    meter.add(5, 1, 1)
    meter.add(5, 1, 1)
    with pytest.raises(Conflict, match="arrival_ns"):
        meter.add(4, 1, 1)


def test_live_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service so slow that everything is live at once is refused, not held."""
    monkeypatch.setattr(timeline_module, "MAX_LIVE_REQUESTS", 2)
    meter = LiveMeter(lambda tokens: tokens, FixedDuration(duration_ns=10))
    meter.add(0, 1, 1)
    meter.add(1, 1, 1)
    with pytest.raises(OutOfRange, match="more than 2 requests"):
        meter.add(2, 1, 1)


@pytest.mark.parametrize(
    ("arrival", "field"),
    [
        ((-(10**22) - 1, 1, 1), "arrival_ns"),
        ((0, -1, 1), "input_tokens"),
        ((0, 1, 10**9 + 1), "output_tokens"),
    ],
)
def test_an_arrival_is_bounded(arrival: tuple[int, int, int], field: str) -> None:
    """Times and lengths out of bounds are refused by name."""
    meter = LiveMeter(lambda tokens: tokens, FixedDuration(duration_ns=1))
    with pytest.raises(OutOfRange, match=field):
        meter.add(*arrival)


def test_settings_are_bounded() -> None:
    """Rates, durations, bins and steps out of bounds are refused by name."""
    with pytest.raises(OutOfRange, match="decode_tokens_per_s"):
        TokenRates(decode_tokens_per_s=0)
    with pytest.raises(OutOfRange, match="prefill_tokens_per_s"):
        TokenRates(decode_tokens_per_s=1, prefill_tokens_per_s=0)
    with pytest.raises(OutOfRange, match="duration_ns"):
        FixedDuration(duration_ns=0)
    with pytest.raises(WrongType, match="duration_ns"):
        FixedDuration(duration_ns=1.5)  # type: ignore[arg-type]
    for bins, steps in ((1, 1), (10_001, 1), (2, 0), (2, 1001)):
        with pytest.raises(OutOfRange):
            line_of([], FixedDuration(duration_ns=1), bins=bins, growth_steps=steps)
