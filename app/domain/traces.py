"""A log of requests in one pass: lengths, blocks and their reuse, live state over time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from app.domain.block_tokens import BlockTokens
from app.domain.checks import checked_int
from app.domain.hit_curve import HitCurve
from app.domain.length_summary import LengthCounter, LengthSummary
from app.domain.notes import Note
from app.domain.reuse import MAX_UNIQUE_BLOCKS, ReuseMeter
from app.domain.timeline import LiveMeter, ServiceModel, Timeline

MAX_BLOCK_TOKENS = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One line of a log. What a log does not say is None: no arrival time, no blocks.

    `line` is where the log has it, for what is said of the log.
    """

    input_tokens: int
    output_tokens: int
    arrival_ns: int | None = None
    blocks: tuple[Hashable, ...] | None = None
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What a log comes to.

    `curve` is None for a log that names no blocks, `timeline` for one without arrival times or
    where no model was given. `block_tokens` is None where neither the log nor the caller tells.
    `lengths` are of input and output together.
    """

    inputs: LengthSummary
    outputs: LengthSummary
    lengths: LengthSummary
    first_arrival_ns: int | None
    last_arrival_ns: int | None
    curve: HitCurve | None
    block_tokens: int | None
    timeline: Timeline | None
    assumptions: tuple[Note, ...]

    @property
    def requests(self) -> int:
        """Return how many requests the log has."""
        return self.inputs.requests


class TraceMeter:
    """Takes the requests of a log in order; the report is of all or, after an error, of none."""

    def __init__(
        self,
        *,
        bytes_of_tokens: Callable[[int], int] | None = None,
        service: ServiceModel | None = None,
        bins: int = 500,
        max_unique_blocks: int = MAX_UNIQUE_BLOCKS,
    ) -> None:
        """Start empty.

        Args:
            bytes_of_tokens: what a sequence of so many tokens keeps, for live state over time.
            service: how long a request lives; needed for live state too.
            bins: how finely time is cut.
            max_unique_blocks: the bound on memory: about 150 bytes for each distinct block.

        Raises:
            OutOfRange: for a number out of bounds.

        """
        self._block_tokens = BlockTokens()
        self._inputs, self._outputs, self._lengths = (LengthCounter() for _ in range(3))
        self._reuse = ReuseMeter(max_unique_blocks=max_unique_blocks)
        self._live = (
            LiveMeter(bytes_of_tokens, service, bins=bins)
            if bytes_of_tokens is not None and service is not None
            else None
        )
        self._names_blocks = False
        self._taken = 0
        self._disagrees_at: int | None = None
        self._first_arrival_ns: int | None = None
        self._last_arrival_ns: int | None = None

    def add(self, request: TraceRequest) -> None:
        """Take the next request.

        Raises:
            OutOfRange, Conflict: from the meters; what was taken is then of no use.

        """
        self._taken += 1
        self._inputs.add(request.input_tokens, "input_tokens")
        self._outputs.add(request.output_tokens, "output_tokens")
        self._lengths.add(request.input_tokens + request.output_tokens, "tokens")
        if request.blocks is not None:
            self._names_blocks = True
            self._block_tokens.add(request.input_tokens, len(request.blocks))
            if self._disagrees_at is None and self._block_tokens.disagrees:
                self._disagrees_at = request.line or self._taken
            self._reuse.add(request.blocks)
        if request.arrival_ns is not None:
            if self._first_arrival_ns is None:
                self._first_arrival_ns = request.arrival_ns
            self._last_arrival_ns = request.arrival_ns
            if self._live is not None:
                self._live.add(request.arrival_ns, request.input_tokens, request.output_tokens)

    def report(self, *, block_tokens: int | None = None) -> TraceReport:
        """Return what the requests come to. Nothing can be added after that.

        `block_tokens` is how many tokens one of the log's blocks has; without it the log must tell.

        Raises:
            OutOfRange: for a block size outside 1..MAX_BLOCK_TOKENS.

        """
        if block_tokens is not None:
            checked_int(block_tokens, "block_tokens", low=1, high=MAX_BLOCK_TOKENS)
        has_arrivals = self._first_arrival_ns is not None
        timeline = self._live.timeline() if self._live is not None and has_arrivals else None
        return TraceReport(
            inputs=self._inputs.summary(),
            outputs=self._outputs.summary(),
            lengths=self._lengths.summary(),
            first_arrival_ns=self._first_arrival_ns,
            last_arrival_ns=self._last_arrival_ns,
            curve=self._reuse.curve() if self._names_blocks else None,
            block_tokens=(block_tokens or self._block_tokens.known) if self._names_blocks else None,
            timeline=timeline,
            assumptions=(
                *(self._block_notes(block_tokens) if self._names_blocks else ()),
                *(timeline.assumptions if timeline is not None else ()),
            ),
        )

    def _block_notes(self, given: int | None) -> Iterable[Note]:
        yield Note(
            "lru_pool",
            "The pool evicts the block that was used longest ago, the end of a prefix before its"
            " beginning; requests come one after another, and a hit ends at the first block that"
            " is missing.",
        )
        yield Note(
            "prompt_blocks_only",
            "Only the blocks that the log names are counted: what is generated fills no pool, and"
            " that a wholly cached prompt computes its last position again is not subtracted.",
        )
        known = self._block_tokens.known
        if given is None and known is not None:
            yield Note(
                "block_tokens_inferred",
                "A block is {block_tokens} tokens: the only size, or the only power of two, that"
                " gives every request as many blocks as it names.",
                {"block_tokens": known},
            )
        elif given is None and self._disagrees_at is not None:
            yield Note(
                "block_counts_disagree",
                "Prompt lengths and numbers of blocks disagree: up to line {line} no block size"
                " gives every request as many blocks as it names. Capacities are in blocks only.",
                {"line": self._disagrees_at},
            )
        elif given is None:
            yield Note(
                "block_tokens_unknown",
                "The log leaves open how many tokens a block has, so that its capacities are in"
                " blocks only.",
            )
        elif not self._block_tokens.allows(given):
            yield Note(
                "block_tokens_contradicted",
                "With {block_tokens} tokens to a block some requests would have another number of"
                " blocks than the log names.",
                {"block_tokens": given},
            )
