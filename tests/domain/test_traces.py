"""A whole log in one report."""

from __future__ import annotations

import pytest

from app.domain.errors import OutOfRange
from app.domain.timeline import FixedDuration
from app.domain.traces import TraceMeter, TraceReport, TraceRequest


def report_of(
    *requests: TraceRequest, meter: TraceMeter | None = None, block_tokens: int | None = None
) -> TraceReport:
    """Return the report of some requests."""
    meter = meter or TraceMeter()
    for request in requests:
        meter.add(request)
    return meter.report(block_tokens=block_tokens)


def codes(report: TraceReport) -> list[str]:
    """Return what a report takes for granted, by code."""
    return [note.code for note in report.assumptions]


FIRST = TraceRequest(input_tokens=20, output_tokens=3, arrival_ns=5, blocks=(1, 2))
SECOND = TraceRequest(input_tokens=33, output_tokens=0, arrival_ns=9, blocks=(1, 3, 4))


def test_a_log_with_everything() -> None:
    """Lengths, reuse and live state of two requests, by hand."""
    meter = TraceMeter(
        bytes_of_tokens=lambda tokens: 2 * tokens, service=FixedDuration(duration_ns=10)
    )
    report = report_of(FIRST, SECOND, meter=meter)
    assert (report.requests, report.inputs.total_tokens, report.outputs.total_tokens) == (2, 53, 3)
    assert (report.lengths.shortest_tokens, report.lengths.longest_tokens) == (23, 33)
    assert (report.first_arrival_ns, report.last_arrival_ns) == (5, 9)
    assert report.curve is not None
    assert (report.curve.logical_blocks, report.curve.unique_blocks) == (5, 4)
    assert report.curve.most_hits == 1
    assert report.timeline is not None
    assert report.timeline.peak_bytes == 2 * (23 + 33)
    assert report.block_tokens == 16
    assert codes(report) == [
        "lru_pool",
        "prompt_blocks_only",
        "block_tokens_inferred",
        "service_duration",
        "served_at_once",
        "growth_steps",
    ]


def test_a_log_of_lengths_alone() -> None:
    """Without blocks there is no curve, without times or model no line."""
    report = report_of(TraceRequest(input_tokens=7, output_tokens=1))
    assert (report.curve, report.timeline, report.block_tokens) == (None, None, None)
    assert report.first_arrival_ns is None
    assert report.assumptions == ()
    meter = TraceMeter(bytes_of_tokens=lambda tokens: tokens, service=FixedDuration(duration_ns=1))
    assert report_of(TraceRequest(input_tokens=7, output_tokens=1), meter=meter).timeline is None
    assert (
        report_of(FIRST, meter=TraceMeter(bytes_of_tokens=lambda tokens: tokens)).timeline is None
    )


def test_a_given_block_size_is_held_against_the_log() -> None:
    """A size that the log allows is taken; another is taken too, and doubted."""
    assert codes(report_of(FIRST, block_tokens=16))[2:] == []
    doubted = report_of(FIRST, block_tokens=4)
    assert doubted.block_tokens == 4
    assert codes(doubted)[2:] == ["block_tokens_contradicted"]
    unclear = report_of(TraceRequest(input_tokens=7, output_tokens=1, blocks=(1,)))
    assert unclear.block_tokens is None
    assert codes(unclear)[2:] == ["block_tokens_unknown"]


def test_bounds_are_those_of_the_parts() -> None:
    """Too many distinct blocks, and a block size out of bounds, are refused."""
    with pytest.raises(OutOfRange, match="distinct blocks"):
        report_of(FIRST, SECOND, meter=TraceMeter(max_unique_blocks=3))
    for size in (0, 2**20 + 1):
        with pytest.raises(OutOfRange, match="block_tokens"):
            report_of(FIRST, block_tokens=size)


def test_a_log_whose_counts_disagree_says_from_where() -> None:
    """512 tokens in one block and 16 in four: no block size gives both, whatever the rule."""
    first = TraceRequest(input_tokens=512, output_tokens=1, blocks=(1,), line=1)
    other = TraceRequest(input_tokens=16, output_tokens=1, blocks=(1, 2, 3, 4), line=3)
    report = report_of(first, other, other)
    assert report.block_tokens is None
    (note,) = report.assumptions[2:]
    assert (note.code, note.params) == ("block_counts_disagree", {"line": 3})
    unnumbered = TraceRequest(input_tokens=16, output_tokens=1, blocks=(1, 2, 3, 4))
    assert report_of(first, unnumbered).assumptions[-1].params == {"line": 2}
