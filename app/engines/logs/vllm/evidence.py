"""The figures of a vLLM log that bound the pool, and which numbers of blocks would print each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import Printed, count, decimal
from app.engines.vllm import VllmPlan
from app.engines.vllm.versions import Release, release

# vLLM rounds GiB to two decimals and, since 0.14, drops zeros at the end.
GIB_DECIMALS = 2
_MOST_BLOCKS = 2**40
# From here on a number of blocks stands for no bound at all.
UNBOUNDED = 2**39
# A start stops at its first refusal: a paste of more starts than this is read no further.
MOST_REFUSALS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A printed memory for the cache, of one rank."""

    found: Found
    printed: Printed

    @property
    def bytes(self) -> tuple[int, int]:
        """The least and largest bytes that print so."""
        return self.printed.bytes("GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A refusal: the length asked for, what was needed against what there was, and its estimate.

    `estimate` is the length that the same error says would fit: (line, tokens).
    """

    found: Found
    length: int
    needed: Printed
    available: Printed | None
    estimate: tuple[Found, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Every figure that a plan can be held against. `blocks` is (line, number, CPU blocks).

    `memory_ranks` is how many ranks printed their memory; `shows_ranks` that lines name several
    tensor ranks.
    """

    memories: tuple[Memory, ...] = ()
    tokens: tuple[tuple[Found, int], ...] = ()
    concurrencies: tuple[tuple[Found, int, Printed], ...] = ()
    blocks: tuple[tuple[Found, int, int | None], ...] = ()
    refused: tuple[Refused, ...] = ()
    too_long: tuple[tuple[Found, int, int], ...] = ()
    memory_bytes: int | None = None
    memory_ranks: int = 0
    shows_ranks: bool = False

    @property
    def of_pool(self) -> Evidence:
        """The same without lines that only a larger rank's memory gives: each may print its own.

        Workers did until 0.11, and engines of data parallelism still do; the pool is the smallest.
        """
        least: dict[int, tuple[Found, int, Printed]] = {}
        for row in self.concurrencies:
            now = least.setdefault(row[1], row)
            if row[2].value < now[2].value:
                least[row[1]] = row
        tokens = min(self.tokens, key=lambda pair: pair[1], default=None)
        return replace(
            self,
            tokens=() if tokens is None else (tokens,),
            concurrencies=tuple(least.values()),
        )

    @property
    def has_several_memories(self) -> bool:
        """Whether ranks printed different memories."""
        return len({memory.printed.text for memory in self.memories}) > 1

    @property
    def smallest(self) -> Memory | None:
        """The least memory that any rank printed."""
        return min(self.memories, key=lambda memory: memory.printed.value, default=None)

    @property
    def sized(self) -> bool:
        """Whether any line says how large the pool became."""
        return bool(self.tokens or self.concurrencies or self.blocks or self.too_long)


def evidence_of(reads: Reads, memory_bytes: int | None) -> Evidence:
    """Return the figures of the lines; equal lines of several ranks count once."""
    ranks = [found.line.rank for code in MEMORIES for found in reads.get(code, ())]
    return Evidence(
        memory_ranks=len(ranks) if None in ranks else len(set(ranks)),
        memories=tuple(_memories(reads)),
        tokens=_unique((f, count(f.groups[1] or "")) for f in reads.get("tokens", ()))
        or _unique((f, count(f.groups[0] or "")) for f in reads.get("pool_loose", ())),
        concurrencies=tuple(_concurrencies(reads)),
        blocks=tuple(_blocks(reads)),
        refused=tuple(_refused(reads)),
        too_long=tuple(
            (found, int(found.groups[0] or 0), int(found.groups[1] or 0))
            for found in _once(reads.get("too_long", ()))
        ),
        memory_bytes=memory_bytes,
    )


def _once(found: object) -> list[Found]:
    seen: dict[tuple[str | None, ...], Found] = {}
    for item in found:  # type: ignore[attr-defined]
        seen.setdefault(item.groups, item)
    return list(seen.values())


def _unique(pairs: object) -> tuple[tuple[Found, int], ...]:
    seen: dict[int, Found] = {}
    for found, value in pairs:  # type: ignore[attr-defined]
        if value:
            seen.setdefault(value, found)
    return tuple((found, value) for value, found in seen.items())


# Lines that print a memory for the cache, and which of their figures it is.
MEMORIES = {"available": 0, "rest": 0, "profile_results": 1}


def _memories(reads: Reads) -> list[Memory]:
    memories: list[Memory] = []
    seen: set[tuple[str, str | None]] = set()
    sources = [
        (found, found.groups[group])
        for code, group in MEMORIES.items()
        for found in reads.get(code, ())
    ]
    if not sources:
        sources = [(found, found.groups[0]) for found in reads.get("budget_loose", ())]
    for found, text in sources:
        printed = decimal(text or "", least_decimals=GIB_DECIMALS)
        if printed is None or (printed.text, found.line.rank) in seen:
            continue
        seen.add((printed.text, found.line.rank))
        memories.append(Memory(found=found, printed=printed))
    return memories


def concurrency_rows(reads: Reads) -> list[tuple[Found, int, Printed]]:
    """Return every concurrency line, also those that say the same: (line, length, printed)."""
    sources = [(f, f.groups[0], f.groups[1], 1) for f in reads.get("concurrency", ())]
    if not sources:
        sources += [(f, f.groups[1], f.groups[0], 1) for f in reads.get("concurrency_at", ())]
    if not sources:
        sources += [(f, f.groups[0], f.groups[1], 1024) for f in reads.get("concurrency_loose", ())]
    rows = []
    for found, length_text, text, scale in sources:
        length, printed = count(length_text or ""), decimal(text or "")
        if length and printed is not None and printed.value > 0:
            rows.append((found, length * scale, printed))
    return rows


def _concurrencies(reads: Reads) -> list[tuple[Found, int, Printed]]:
    seen: dict[tuple[int, str], tuple[Found, int, Printed]] = {}
    for row in concurrency_rows(reads):
        seen.setdefault((row[1], row[2].text), row)
    return list(seen.values())


def _blocks(reads: Reads) -> list[tuple[Found, int, int | None]]:
    rows: list[tuple[Found, int, int | None]] = [
        (found, int(found.groups[1] or 0), int(found.groups[2] or 0))
        for found in reads.get("blocks", ())
    ]
    for code in ("gpu_blocks", "num_blocks"):
        rows += [(found, int(found.groups[0] or 0), None) for found in reads.get(code, ())]
    seen: dict[tuple[int, int | None], tuple[Found, int, int | None]] = {}
    for row in rows:
        if row[1]:
            seen.setdefault((row[1], row[2]), row)
    return list(seen.values())


def _refused(reads: Reads) -> list[Refused]:
    rows: list[Refused] = []
    for found in _once(reads.get("needed", ())):
        length, text, _, available, _ = found.groups
        needed = decimal(text or "", least_decimals=GIB_DECIMALS)
        if needed is not None and int(length or 0):
            there = None
            if available is not None:
                there = decimal(available, least_decimals=GIB_DECIMALS)
            rows.append(
                Refused(found=found, length=int(length or 0), needed=needed, available=there)
            )
    for found in _once(reads.get("needed_alone", ())):
        text, length_text = found.groups
        needed = decimal(text or "", least_decimals=GIB_DECIMALS)
        length_tokens = count(length_text or "")
        if needed is not None and length_tokens:
            rows.append(Refused(found=found, length=length_tokens, needed=needed, available=None))
    return _with_estimates(rows, reads.get("estimated", ()))[:MOST_REFUSALS]


def _with_estimates(rows: list[Refused], estimates: Sequence[Found]) -> list[Refused]:
    """Give each refusal the estimate of its own error: that of its line, else the next one's."""
    numbers = sorted({row.found.line.number for row in rows})
    own: dict[int, tuple[Found, int]] = {}
    for found in estimates:
        at = bisect_right(numbers, found.line.number)
        tokens = count(found.groups[0] or "")
        if at and tokens:
            own.setdefault(numbers[at - 1], (found, tokens))
    return [replace(row, estimate=own.get(row.found.line.number)) for row in rows]


# Which numbers of blocks print a figure: every figure grows with them, so each leaves an interval.

Span = tuple[int, int]
ANY: Span = (1, _MOST_BLOCKS)
NONE: Span = (1, 0)


def intersect(*spans: Span) -> Span:
    """Return what all spans have in common; empty where the first end is above the second."""
    return max(low for low, _ in spans), min(high for _, high in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintRule:
    """How a plan's release prints the pool: its groups, smallest block, and a request's blocks."""

    release: Release
    groups: int
    smallest_block: int
    request_blocks: int
    length: int
    context_ranks: int

    def tokens(self, blocks: int) -> int:
        """Return the tokens line for a pool of so many blocks, in the engine's own arithmetic."""
        if not self.release.has_groups:
            return blocks * self.smallest_block
        if self.release.prints_concurrency_tokens:
            return int(blocks / self.request_blocks * self.length)
        tokens = blocks // self.groups * self.smallest_block
        return tokens * self.context_ranks if self.release.shards_context else tokens

    def concurrency(self, blocks: int) -> Fraction:
        """Return the concurrency for a pool of so many blocks."""
        if not self.release.has_groups:
            return Fraction(blocks * self.smallest_block, self.length)
        return Fraction(blocks, self.request_blocks)

    def blocks_of_tokens(self, tokens: int) -> Span:
        """Return the blocks that print so many tokens."""
        low, high = 0, _MOST_BLOCKS
        first = self._least(tokens, low, high)
        if self.tokens(first) != tokens:
            return NONE
        return first, self._least(tokens + 1, first, high) - 1

    def around(self, tokens: int) -> tuple[int, int]:
        """Return the nearest figures below and above one that no number of blocks prints."""
        first = self._least(tokens, 0, _MOST_BLOCKS)
        return self.tokens(max(first - 1, 0)), self.tokens(first)

    def _least(self, tokens: int, low: int, high: int) -> int:
        """Return the least blocks that print at least so many tokens; the line never falls."""
        while low < high:
            middle = (low + high) // 2
            if self.tokens(middle) >= tokens:
                high = middle
            else:
                low = middle + 1
        return low

    def blocks_of_concurrency(self, printed: Printed) -> Span:
        """Return the blocks that print this concurrency."""
        unit = self.concurrency(1)
        low, high = printed.low / unit, printed.high / unit
        return -(-low.numerator // low.denominator), high.numerator // high.denominator


def print_rule(plan: VllmPlan, settings: Mapping[str, object]) -> PrintRule:
    """Return how the release of a plan prints its pool."""
    ranks = settings.get("decode_context_parallel_size", 1)
    return PrintRule(
        release=release(plan.version),
        groups=max(len(plan.worker_groups), 1),
        smallest_block=min((group.spec.block_size for group in plan.worker_groups), default=1),
        request_blocks=plan.blocks_per_request or 1,
        length=plan.max_model_len,
        context_ranks=ranks if isinstance(ranks, int) else 1,
    )


def blocks_of_memory(plan: VllmPlan, low: int, high: int) -> Span:
    """Return the blocks of the smallest stage's pool for memory between two bounds."""
    units = [rank.bytes_per_block for rank in plan.ranks if rank.bytes_per_block]
    if not units:
        return ANY
    widest = max(units)
    return max(low, 0) // widest, max(high, 0) // widest
