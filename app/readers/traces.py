"""Request logs as a stream of requests: bounded memory, progress, and errors with their line.

Nothing is half-counted: an error ends the stream, and with it the report that was being made of it.

    with open(path, "rb") as file:
        report = read_report(TraceReader(chunks_of(file), progress=show), TraceMeter(...))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import IO, Protocol

from app.domain.block_tokens import BlockTokens
from app.domain.notes import Note
from app.domain.traces import TraceMeter, TraceReport, TraceRequest
from app.readers.trace_errors import TraceMistake
from app.readers.trace_formats import TraceForm, TraceOptions, form_of
from app.readers.trace_lines import MAX_LINE_BYTES, numbered_lines

__all__ = [
    "MAX_LINE_BYTES",
    "Progress",
    "TraceCancelled",
    "TraceMistake",
    "TraceOptions",
    "TraceReader",
    "TraceSource",
    "chunks_of",
    "read_report",
]

CHUNK_BYTES = 256 * 1024

# Told of the bytes and the requests read so far, every mebibyte at the latest.
Progress = Callable[[int, int], None]


class TraceCancelled(Exception):
    """Raised by a progress callback to stop: it goes through the reader, and nothing is kept."""


def chunks_of(file: IO[bytes], chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield a file's bytes in order."""
    while chunk := file.read(chunk_bytes):
        yield chunk


class TraceSource(Protocol):
    """What gives the requests of a log, to be iterated once; the rest is final after the first.

    `form` names how the log is written, `notes` say what was taken for granted in reading it, and
    `block_tokens` is how many tokens its blocks have, where they were made from token ids.
    """

    form: str
    notes: tuple[Note, ...]
    block_tokens: int | None

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests; raise TraceMistake for a log that cannot be read."""


def read_report(
    source: TraceSource, meter: TraceMeter, *, block_tokens: int | None = None
) -> TraceReport:
    """Return the report of a whole log, with the reader's assumptions before the meter's.

    `block_tokens` says how many tokens one of the log's blocks has; without it the log must tell.

    Raises:
        TraceMistake: from the reader, or at the first line that the given block size contradicts.
        OutOfRange: for a block size out of bounds, or more to hold than the meter was made for.
        TraceCancelled: or whatever else a progress callback raises.

    """
    given = BlockTokens()
    for number, request in enumerate(source, start=1):
        meter.add(request)
        if block_tokens is None or source.block_tokens or request.blocks is None:
            continue
        given.add(request.input_tokens, len(request.blocks))
        if not given.allows(block_tokens):
            raise TraceMistake(
                "line {line}: with {block_tokens} tokens to a block, {tokens} tokens are not the "
                "{blocks} blocks that it names",
                line=request.line or number,
                block_tokens=block_tokens,
                tokens=request.input_tokens,
                blocks=len(request.blocks),
            )
    report = meter.report(block_tokens=source.block_tokens or block_tokens)
    return replace(report, assumptions=(*source.notes, *report.assumptions))


def no_progress(read_bytes: int, requests: int) -> None:
    """Tell nobody."""


class TraceReader:
    """The requests of a log of lines: JSON or CSV, told apart by its first character."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        options: TraceOptions | None = None,
        *,
        progress: Progress = no_progress,
    ) -> None:
        self.form = ""
        self.notes: tuple[Note, ...] = ()
        self.block_tokens: int | None = None
        self.read_bytes = 0
        self.requests = 0
        self._chunks = chunks
        self._options = options or TraceOptions()
        self._progress = progress

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests.

        Raises:
            TraceMistake: for a line that cannot be read, a time before the one before it, or a log
                without requests.

        """
        form: TraceForm | None = None
        order = ArrivalOrder()
        line = 0
        for line, text in numbered_lines(self._chunks, self._read):
            if form is None:
                form, is_request = form_of(line, text, self._options)
                self.form = form.name
                if not is_request:
                    continue
            request = form.request(line, text)
            order.check(line, request)
            if not self.requests:
                self.notes, self.block_tokens = tuple(form.notes), form.block_tokens
            self.requests += 1
            yield request
        if not self.requests:
            raise TraceMistake("line {line}: the log ends without a request", line=max(1, line))
        self._progress(self.read_bytes, self.requests)

    def _read(self, count: int) -> None:
        self.read_bytes += count
        self._progress(self.read_bytes, self.requests)


class ArrivalOrder:
    """Refuses a log whose time goes back: what it says of any moment would be wrong."""

    def __init__(self) -> None:
        self._last_ns: int | None = None

    def check(self, line: int, request: TraceRequest) -> None:
        """Compare a request's arrival with the one before it.

        Raises:
            TraceMistake: when it is earlier.

        """
        arrival_ns = request.arrival_ns
        if arrival_ns is None:
            return
        if self._last_ns is not None and arrival_ns < self._last_ns:
            raise TraceMistake(
                "line {line}: time goes back by {value} ns; sort the log by its times",
                line=line,
                value=self._last_ns - arrival_ns,
            )
        self._last_ns = arrival_ns
