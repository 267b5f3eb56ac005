"""State that is live over time: arrivals from a log, durations from a service model, exact sums.

Time is whole nanoseconds. Each request is served as soon as it arrives, whatever else runs, and
shares nothing: the line says what arrivals ask for, not what a full pool would delay. A request
holds the state of its prompt from its arrival; while it decodes its state grows in at most
`growth_steps` equal steps, each counted at its end's size from its beginning, so that the line is
never below the truth; when its last token is out everything is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import ClassVar, Protocol

from app.domain.checks import checked_int
from app.domain.errors import Conflict, OutOfRange
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS

NS_PER_S = 10**9
MAX_RATE_TOKENS_PER_S = 10**9
MAX_DURATION_NS = 10**9 * NS_PER_S
MAX_TIME_NS = 10**22
MAX_BINS = 10_000
MAX_GROWTH_STEPS = 1_000
MAX_LIVE_REQUESTS = 1_000_000
# Bins begin a millisecond wide, so that after doubling their width still reads in seconds.
_FIRST_BIN_NS = 10**6


class ServiceModel(Protocol):
    """How long a request's prompt and its answer take."""

    def prefill_ns(self, input_tokens: int) -> int:
        """Return the time from arrival to the first token of the answer."""

    def decode_ns(self, output_tokens: int) -> int:
        """Return the time from there to the last token."""

    @property
    def assumption(self) -> Note:
        """Return what is taken for granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRates:
    """Every request prefills and decodes at its own constant rate, whatever else runs.

    Without `prefill_tokens_per_s` a prompt takes no time.
    """

    decode_tokens_per_s: int
    prefill_tokens_per_s: int | None = None

    def __post_init__(self) -> None:
        for field in ("decode_tokens_per_s", "prefill_tokens_per_s"):
            rate = getattr(self, field)
            if rate is not None or field.startswith("decode"):
                checked_int(rate, field, low=1, high=MAX_RATE_TOKENS_PER_S)

    def prefill_ns(self, input_tokens: int) -> int:
        """Return the time of a prompt, rounded up to whole nanoseconds."""
        if self.prefill_tokens_per_s is None:
            return 0
        return -(-input_tokens * NS_PER_S // self.prefill_tokens_per_s)

    def decode_ns(self, output_tokens: int) -> int:
        """Return the time of an answer, rounded up to whole nanoseconds."""
        return -(-output_tokens * NS_PER_S // self.decode_tokens_per_s)

    @property
    def assumption(self) -> Note:
        """Return the rates as a sentence."""
        if self.prefill_tokens_per_s is None:
            return Note(
                "service_rates",
                "Each request decodes {decode} tokens a second; a prompt takes no time.",
                {"decode": self.decode_tokens_per_s},
            )
        return Note(
            "service_rates",
            "Each request prefills {prefill} and decodes {decode} tokens a second.",
            {"prefill": self.prefill_tokens_per_s, "decode": self.decode_tokens_per_s},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDuration:
    """Every request takes the same time, all of it decoding."""

    duration_ns: int

    def __post_init__(self) -> None:
        checked_int(self.duration_ns, "duration_ns", low=1, high=MAX_DURATION_NS)

    def prefill_ns(self, input_tokens: int) -> int:  # noqa: ARG002 - the protocol's signature
        """Return 0: a prompt takes no time of its own."""
        return 0

    def decode_ns(self, output_tokens: int) -> int:  # noqa: ARG002 - the protocol's signature
        """Return the duration."""
        return self.duration_ns

    @property
    def assumption(self) -> Note:
        """Return the duration as a sentence, in seconds with all their decimals."""
        whole, rest = divmod(self.duration_ns, NS_PER_S)
        seconds = f"{whole}.{rest:09d}".rstrip("0").removesuffix(".")
        return Note(
            "service_duration",
            "Each request takes {seconds} s, whatever its length.",
            {"seconds": seconds},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBin:
    """One stretch of time: the most that was live in it at once, and the mean, rounded down."""

    start_ns: int
    peak_bytes: int
    mean_bytes: int
    peak_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Live state from the first arrival to the last release, in bins of equal width.

    Peaks are exact within the bins and over all; `byte_ns` is the exact area under the line, so
    that over `end_ns - start_ns` it gives the mean.
    """

    HEADER: ClassVar[tuple[str, ...]] = ("start_ns", "peak_bytes", "mean_bytes", "peak_requests")

    start_ns: int
    end_ns: int
    bin_ns: int
    bins: tuple[TimelineBin, ...]
    peak_bytes: int
    peak_at_ns: int
    peak_requests: int
    byte_ns: int
    assumptions: tuple[Note, ...]

    @property
    def mean_bytes(self) -> int:
        """Return the mean over all time, rounded down; 0 where nothing lived."""
        return self.byte_ns // max(1, self.end_ns - self.start_ns)

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Yield the bins as rows under HEADER."""
        for each in self.bins:
            yield (each.start_ns, each.peak_bytes, each.mean_bytes, each.peak_requests)


class LiveMeter:
    """Takes requests in order of arrival; memory holds the live ones and a fixed number of bins."""

    def __init__(
        self,
        bytes_of_tokens: Callable[[int], int],
        service: ServiceModel,
        *,
        bins: int = 500,
        growth_steps: int = 8,
    ) -> None:
        """Start empty; `bytes_of_tokens` says what a sequence of so many tokens keeps.

        Raises:
            OutOfRange: for bins outside 2..MAX_BINS or steps outside 1..MAX_GROWTH_STEPS.

        """
        self._bins = checked_int(bins, "bins", low=2, high=MAX_BINS)
        self._steps = checked_int(growth_steps, "growth_steps", low=1, high=MAX_GROWTH_STEPS)
        self._bytes_of_tokens = lru_cache(maxsize=1 << 16)(bytes_of_tokens)
        self._service = service
        self._line = _Line(self._bins)
        # (time of the next change, number of the request, steps done, bytes held, its life): the
        # number makes the order total.
        self._changes: list[tuple[int, int, int, int, _Life]] = []
        self._taken = 0

    def add(self, arrival_ns: int, input_tokens: int, output_tokens: int) -> None:
        """Take the next arrival.

        Raises:
            OutOfRange: for a time or length out of bounds, or too many requests live at once.
            Conflict: for an arrival before the one before it.

        """
        checked_int(arrival_ns, "arrival_ns", low=-MAX_TIME_NS, high=MAX_TIME_NS)
        checked_int(input_tokens, "input_tokens", low=0, high=MAX_TOKENS)
        checked_int(output_tokens, "output_tokens", low=0, high=MAX_TOKENS)
        if self._taken and arrival_ns < self._line.now_ns:
            raise Conflict("{field} must not go back in time", field="arrival_ns")
        prefill_ns = self._service.prefill_ns(input_tokens)
        decode_ns = self._service.decode_ns(output_tokens)
        life = _Life(
            prompt_tokens=input_tokens,
            answer_tokens=output_tokens,
            decode_from_ns=arrival_ns + prefill_ns,
            # Nothing is served in no time at all, or it would be nowhere on the line.
            decode_ns=decode_ns if prefill_ns else max(1, decode_ns),
            steps=min(self._steps, output_tokens),
        )
        self._release_until(arrival_ns)
        self._line.move_to(arrival_ns)
        held_bytes = self._bytes_of_tokens(input_tokens)
        self._line.change(held_bytes, 1)
        heappush(self._changes, (life.change_ns(0), self._taken, 0, held_bytes, life))
        self._taken += 1
        if len(self._changes) > MAX_LIVE_REQUESTS:
            raise OutOfRange(
                "{field}: more than {high} requests are live at once; is the service that slow?",
                field="service",
                high=MAX_LIVE_REQUESTS,
            )

    def timeline(self) -> Timeline:
        """Let the last requests end, and return the line. Nothing can be added after that."""
        self._release_until(None)
        return self._line.timeline(
            (
                self._service.assumption,
                Note(
                    "served_at_once",
                    "Every request is served as soon as it arrives, and none shares a block.",
                ),
                Note(
                    "growth_steps",
                    "An answer's state grows in at most {steps} steps, each counted from its"
                    " beginning: the line is never below the truth.",
                    {"steps": self._steps},
                ),
            )
        )

    def _release_until(self, until_ns: int | None) -> None:
        """Let everything happen that is due, at one time before the arrival at that time."""
        changes, line = self._changes, self._line
        limit_ns = inf if until_ns is None else until_ns
        while changes and changes[0][0] <= limit_ns:
            at_ns, number, done, held_bytes, life = changes[0]
            line.move_to(at_ns)
            if done == life.steps:
                heappop(changes)
                line.change(-held_bytes, -1)
                continue
            done += 1
            grown_bytes = self._bytes_of_tokens(life.tokens_after(done))
            line.change(grown_bytes - held_bytes, 0)
            heapreplace(changes, (life.change_ns(done), number, done, grown_bytes, life))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """One request: its growth steps begin at equal distances within its decoding."""

    prompt_tokens: int
    answer_tokens: int
    decode_from_ns: int
    decode_ns: int
    steps: int

    def change_ns(self, done: int) -> int:
        """Return when the next step begins after `done` of them, or when the request ends."""
        if done == self.steps:
            return self.decode_from_ns + self.decode_ns
        return self.decode_from_ns + done * self.decode_ns // self.steps

    def tokens_after(self, done: int) -> int:
        """Return the tokens held once `done` steps have begun."""
        grown = -(-done * self.answer_tokens // self.steps) if self.steps else 0
        return self.prompt_tokens + grown


class _Line:
    """A level over time, kept as peaks and areas of equal bins that double when time runs out."""

    def __init__(self, bins: int) -> None:
        self._count = bins
        self._width = _FIRST_BIN_NS
        self._areas = [0] * bins
        self._peaks = [0] * bins
        self._most_requests = [0] * bins
        self._start_ns: int | None = None
        self.now_ns = 0
        self._level = 0
        self._requests = 0
        self._peak = (0, 0)

    def change(self, by_bytes: int, by_requests: int) -> None:
        self._level += by_bytes
        self._requests += by_requests

    def move_to(self, until_ns: int) -> None:
        """Hold the level until then."""
        if self._start_ns is None:
            self._start_ns = self.now_ns = until_ns
        if until_ns > self.now_ns and self._level > self._peak[0]:
            self._peak = (self._level, self.now_ns)
        while until_ns - self._start_ns > self._width * self._count:
            self._double()
        while self.now_ns < until_ns:
            index = (self.now_ns - self._start_ns) // self._width
            end_ns = min(until_ns, self._start_ns + (index + 1) * self._width)
            self._areas[index] += self._level * (end_ns - self.now_ns)
            self._peaks[index] = max(self._peaks[index], self._level)
            self._most_requests[index] = max(self._most_requests[index], self._requests)
            self.now_ns = end_ns

    def _double(self) -> None:
        self._width *= 2
        empty = [0] * (self._count - (self._count + 1) // 2)
        for values, merge in (
            (self._areas, sum),
            (self._peaks, max),
            (self._most_requests, max),
        ):
            values[:] = [merge(values[i : i + 2]) for i in range(0, self._count, 2)] + empty

    def timeline(self, assumptions: tuple[Note, ...]) -> Timeline:
        start = self._start_ns or 0
        used = -(-(self.now_ns - start) // self._width)
        return Timeline(
            start_ns=start,
            end_ns=self.now_ns,
            bin_ns=self._width,
            bins=tuple(
                TimelineBin(
                    start_ns=start + index * self._width,
                    peak_bytes=self._peaks[index],
                    mean_bytes=self._areas[index]
                    // min(self._width, self.now_ns - start - index * self._width),
                    peak_requests=self._most_requests[index],
                )
                for index in range(used)
            ),
            peak_bytes=self._peak[0],
            peak_at_ns=self._peak[1],
            peak_requests=max(self._most_requests),
            byte_ns=sum(self._areas),
            assumptions=assumptions,
        )
