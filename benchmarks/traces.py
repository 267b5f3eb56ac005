"""The whole hit curve beside single LRU runs, and ten million references in a stream.

1. On a log of the shape of Mooncake's conversation trace (12,031 requests, 288,500 references to
   182,790 blocks) the curve of every capacity must cost less than three runs of a plain LRU at
   single capacities. All of it is CPU time of this process, best of several rounds, the two sides
   in turn within one round.
2. Ten million references as JSON lines go through reader and meter in a process of their own, which
   prints its progress. A shorter stream with few distinct blocks shows that memory follows those.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from app.domain.reuse import reuse_curve
from app.domain.timeline import TokenRates
from app.domain.traces import TraceMeter
from app.readers.traces import TraceReader, read_report

ROUNDS = 7
REQUESTS, REFERENCES, DISTINCT = 12_031, 288_500, 182_790
CAPACITIES = (1_000, 20_000, 50_000)
# Distinct blocks that each request brings, and references in all.
STREAMS = ((15, 10_000_000), (1, 2_000_000))
MIB = 2**20

Log = list[list[int]]


def _spread(weights: list[float], total: int) -> list[int]:
    """Return whole numbers of at least 1 in about these proportions, with exactly this sum."""
    scale = total / sum(weights)
    numbers = [max(1, int(weight * scale)) for weight in weights]
    at = 0
    while (missing := total - sum(numbers)) != 0:
        step = 1 if missing > 0 else -1
        for _ in range(abs(missing)):
            if numbers[at % len(numbers)] + step >= 1:
                numbers[at % len(numbers)] += step
            at += 1
    return numbers


def conversation_log() -> Log:
    """Return a log of the trace's shape: conversations that go on, under one system prompt.

    A request goes on from an earlier one, mostly a recent one, and repeats all of it or a part; or
    it begins anew with the first block that all share.
    """
    chance = random.Random(1)
    fresh = _spread([chance.lognormvariate(2.2, 1.0) for _ in range(REQUESTS)], DISTINCT)
    left = REFERENCES - DISTINCT
    log: Log = []
    next_block = 0
    for number, new in enumerate(fresh):
        parent: list[int] = []
        kept = 0
        if log and chance.random() < 0.55:
            parent = log[-1 - min(len(log) - 1, int(chance.expovariate(1 / 400)))]
            mean = left / (REQUESTS - number) / 0.55
            whole = chance.random() < 0.5
            kept = len(parent) if whole else max(1, int(mean * chance.uniform(0.5, 1.6)))
        elif log:
            parent, kept = log[0], 1
        kept = min(kept, len(parent), left)
        left -= kept
        log.append(parent[:kept] + list(range(next_block, next_block + new)))
        next_block += new
    return log


def plain_lru(log: Log, capacity: int) -> int:
    """Return the hits of one ordered-dictionary LRU, block by block."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks in log:
        for block in blocks:
            if block in cache:
                cache.move_to_end(block)
                hits += 1
            else:
                cache[block] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return hits


def compare() -> float:
    """Print and return the cost of the curve in plain LRU runs at three capacities."""
    log = conversation_log()
    shape = (len(log), sum(map(len, log)), len({block for blocks in log for block in blocks}))
    if shape != (REQUESTS, REFERENCES, DISTINCT):
        sys.exit(f"the synthetic log has another shape: {shape}")
    curve_s = plain_s = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        curve = reuse_curve(log)
        between = time.process_time()
        for capacity in CAPACITIES:
            plain_lru(log, capacity)
        curve_s = min(curve_s, between - begun)
        plain_s = min(plain_s, time.process_time() - between)
    print(
        f"every capacity at once: {curve_s * 1e3:.0f} ms CPU; three plain LRU runs:"
        f" {plain_s * 1e3:.0f} ms; ratio {curve_s / plain_s:.2f} (must stay below 1);"
        f" {curve.most_hits} of {curve.logical_blocks} hit from {curve.enough_blocks} blocks on"
    )
    return curve_s / plain_s


def stream_lines(fresh_blocks: int, references_in_all: int) -> Iterator[bytes]:
    """Yield JSON lines of about so many references, so many new blocks a request."""
    chance = random.Random(3)
    recent: list[list[int]] = []
    next_block = references = turn = 0
    while references < references_in_all:
        parent = recent[chance.randrange(len(recent))] if recent else []
        kept = len(parent) if len(parent) < 60 else 3
        blocks = parent[:kept] + list(range(next_block, next_block + fresh_blocks))
        next_block += fresh_blocks
        references += len(blocks)
        turn += 1
        yield b'{"timestamp": %d, "input_length": %d, "output_length": 100, "hash_ids": %s}\n' % (
            turn * 100,
            512 * len(blocks),
            json.dumps(blocks).encode(),
        )
        if len(recent) < 20_000:
            recent.append(blocks)
        else:
            recent[chance.randrange(20_000)] = blocks


def peak_kib() -> int:
    """Return the most memory that this process has had; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def stream(fresh_blocks: int, references: int) -> None:
    """Read a stream of so many references, with progress; meant for a process of its own."""
    idle_kib = peak_kib()
    begun = time.process_time()
    told = 0

    def progress(read_bytes: int, requests: int) -> None:
        nonlocal told
        if read_bytes - told >= 16 * MIB:
            told = read_bytes
            print(f"  {read_bytes // MIB} MiB, {requests} requests", flush=True)

    report = read_report(
        TraceReader(stream_lines(fresh_blocks, references), progress=progress),
        TraceMeter(
            bytes_of_tokens=lambda tokens: 131_072 * tokens,
            service=TokenRates(decode_tokens_per_s=50, prefill_tokens_per_s=10_000),
        ),
    )
    took_s = time.process_time() - begun
    grown_mib = (peak_kib() - idle_kib) / 1024
    curve = report.curve
    if curve is None:
        sys.exit("the stream named no blocks")
    print(
        f"{curve.logical_blocks} references to {curve.unique_blocks} blocks in {report.requests}"
        f" requests: {took_s:.1f} s CPU with making the lines, {grown_mib:.0f} MiB more memory,"
        f" {grown_mib * MIB / curve.unique_blocks:.0f} B a distinct block,"
        f" {grown_mib * MIB / curve.logical_blocks:.0f} B a reference"
    )


def main() -> None:
    """Compare, then stream; fail where the curve costs more than it may."""
    ratio = compare()
    for fresh_blocks, references in STREAMS:
        words = ["-m", "benchmarks.traces", str(fresh_blocks), str(references)]
        subprocess.run([sys.executable, *words], check=True, timeout=900)
    if ratio >= 1:
        sys.exit("the whole curve must cost less than three single runs")


if __name__ == "__main__":
    stream(int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 1 else main()
