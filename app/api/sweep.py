"""`/sweep`: one calculation over many contexts, devices, formats and tensor ranks.

What does not change along the contexts is computed once for each device, format and split. Up to
MAX_POINTS are answered at once; more come as a stream of lines, with how many are done in between.
A stream is computed a short turn at a time, in few threads: it never holds the others up, and ends
with the turn in which its reader goes away.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict, Field, PrivateAttr

from app.api import schemas as s
from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.fit import assumptions_of, left_out
from app.api.fit_schemas import DeviceId, FitRequest, Tokens
from app.api.model_input import read_model
from app.api.parallel_schemas import Ranks
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.capacity import largest_concurrency
from app.domain.errors import DomainError, OutOfRange

if TYPE_CHECKING:
    from app.api.fit_compute import FitParts

router = APIRouter(tags=["fit"], responses=REFUSED, route_class=JsonRoute)
MAX_POINTS = 10_000
MAX_STREAMED = 1_000_000
# Contexts named in one body, which is checked before anything is answered.
MAX_CONTEXTS = 100_000
# Splits, formats and devices are set up one by one, at about a millisecond each.
MAX_SETUPS = 2000
# Setting up a device, a format and a split costs about as much as so many contexts.
SETUP_POINTS = 25
# Contexts and setups, times different layers, that are answered at once: all that is within the
# bounds above for any model that exists, whose layers differ some 120 times at most.
MAX_WORK = 6_500_000
CHUNK = 1000
# After so many points other threads get a turn.
TURN = 50
# A streamed sweep asks for its next turn after so many points or seconds.
CHUNK_SECONDS = 0.25
# Each keeps one core busy, and no request may have to wait long for the interpreter.
THREADS = 2

T = TypeVar("T")
_limiters: list[anyio.CapacityLimiter] = []


class SweepRequest(s.Strict):
    """A calculation, and the values over which it is repeated; an empty list keeps its own."""

    base: FitRequest
    context_tokens: Annotated[list[Tokens], Field(max_length=MAX_CONTEXTS)] = Field(
        default_factory=list
    )
    devices: Annotated[list[DeviceId], Field(max_length=400)] = Field(default_factory=list)
    kv_dtypes: Annotated[list[s.FormatName], Field(max_length=40)] = Field(default_factory=list)
    tensor_parallel: Annotated[list[Ranks], Field(max_length=40)] = Field(default_factory=list)

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "base": {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16",
                             "device": "h100-sxm-80"},
                    "context_tokens": [1024, 8192, 65536],
                    "kv_dtypes": ["bf16", "fp8"],
                }
            ]
        }
    )  # fmt: skip


class SweepPoint(Answer):
    """One point; with `error` there is no answer for it, and it says why."""

    device: str | None
    kv_dtype: str | None
    tensor_parallel: int
    context_tokens: int | None
    request_bytes: int | None = None
    kv_bytes_available: int | None = None
    max_concurrency: int | None = None
    max_concurrency_high: int | None = None
    error: str | None = None
    _refusal: DomainError | None = PrivateAttr(default=None)

    def refused(self, error: DomainError) -> SweepPoint:
        """Return the point with a refusal in place of its figures."""
        point = self.model_copy(update={"error": str(error)})
        point._refusal = error  # noqa: SLF001 - its own class
        return point

    @property
    def refusal(self) -> DomainError | None:
        """Return why there is no answer, for pages to say in their language."""
        return self._refusal


class SweepAnswer(Answer):
    """All points, in the order device, format, tensor ranks, context."""

    points: list[SweepPoint]
    formula: str
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


def count_points(request: SweepRequest, bound: int) -> int:
    """Return how many points a request asks for; refuse more than the bound."""
    setups = _setups(request)
    points = setups * max(len(request.context_tokens), 1)
    for field, value, high in (("devices", setups, MAX_SETUPS), ("context_tokens", points, bound)):
        if value > high:
            raise OutOfRange("{field}: {value} combinations, at most {high} in one request",
                             field=field, value=value, high=high)  # fmt: skip
    return points


def _setups(request: SweepRequest) -> int:
    lists = (request.devices, request.kv_dtypes, request.tensor_parallel)
    return prod(max(len(values), 1) for values in lists)


def takes_long(request: SweepRequest) -> bool:
    """Return whether a sweep is for a stream alone, which ends when its reader leaves."""
    points = count_points(request, MAX_STREAMED)
    try:
        layers = len(read_model(request.base.model).state.runs)
    except DomainError:
        layers = 1  # every point says so
    return points > MAX_POINTS or layers * (points + _setups(request) * SETUP_POINTS) > MAX_WORK


def points_of(request: SweepRequest) -> Iterator[SweepPoint]:
    """Yield every point; a combination that has no answer says why instead."""
    for device in (*request.devices,) or (request.base.device,):
        for dtype in (*request.kv_dtypes,) or (None,):
            for tensor in request.tensor_parallel or [request.base.tensor_parallel]:
                yield from _combination(request, device, dtype, tensor)


def _combination(
    request: SweepRequest, device: str | None, dtype: str | None, tensor: int
) -> Iterator[SweepPoint]:
    from app.api.fit_compute import compute_fit

    contexts = (*request.context_tokens,) or (request.base.context_tokens,)
    update: dict[str, Any] = {"device": device, "tensor_parallel": tensor}
    if dtype is not None:
        update |= {"kv_dtype": dtype, "element_bytes": None}
    if request.devices:
        update["memory_bytes"] = None
    name = dtype or (request.base.kv_dtype if isinstance(request.base.kv_dtype, str) else None)
    where = {"device": device, "kv_dtype": name, "tensor_parallel": tensor}
    try:
        parts = compute_fit(request.base.model_copy(update=update))
    except DomainError as error:
        for tokens in contexts:
            yield SweepPoint(**where, context_tokens=tokens).refused(error)
        return
    least, most = rooms_of(parts)
    room = max(parts.answer.room, 0)
    for index, asked in enumerate(contexts):
        if index % TURN == 0:
            time.sleep(0)
        tokens = asked or parts.answer.load.tokens
        yield SweepPoint(
            **where,
            context_tokens=tokens,
            request_bytes=max(demand(tokens) for demand in parts.demands),
            kv_bytes_available=room,
            max_concurrency=largest_concurrency(parts.demands, least, tokens),
            max_concurrency_high=largest_concurrency(parts.demands, most, tokens),
        )


def rooms_of(parts: FitParts) -> tuple[list[int], list[int]]:
    """Return what requests may have on each stage, at least and at most."""
    rooms = parts.budget.rooms()
    least, most = [room.least for room in rooms], [room.most for room in rooms]
    if parts.usable is not None:
        least = [use(room) for use, room in zip(parts.usable, least, strict=True)]
        most = [use(room) for use, room in zip(parts.usable, most, strict=True)]
    return least, most


def answer_sweep(request: SweepRequest) -> SweepAnswer:
    """Return the answer of `/sweep`."""
    from app.api.fit_compute import compute_fit

    points_asked = count_points(request, MAX_POINTS)
    if takes_long(request):
        raise OutOfRange("{field}: {points} points of so many different layers are more than is "
                         "answered at once; /sweep/stream takes them",
                         field="context_tokens", points=points_asked)  # fmt: skip
    points = list(points_of(request))
    try:
        parts = compute_fit(request.base)
    except DomainError:
        return SweepAnswer(points=points, formula=FORMULA, assumptions=[], not_counted=[])
    return SweepAnswer(
        points=points,
        formula=FORMULA,
        assumptions=notes_answer(assumptions_of(parts)),
        not_counted=notes_answer(left_out(parts)),
    )


FORMULA = "max_concurrency = ⌊room ÷ request_bytes⌋ on the rank where it is smallest"


@router.post("/sweep", summary="One calculation over many contexts, devices and formats")
def sweep_call(request: SweepRequest) -> SweepAnswer:
    """Return up to 10,000 points; for more, ask /sweep/stream."""
    return answer_sweep(request)


class LinesOfJson(StreamingResponse):
    """One JSON object a line, as they come."""

    media_type = "application/x-ndjson"


@router.post(
    "/sweep/stream",
    summary="The same as lines of JSON, with progress",
    response_model=None,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
)
def sweep_stream(request: SweepRequest) -> LinesOfJson:
    """Return points as they come, one JSON object a line; every thousandth line is progress."""
    total = count_points(request, MAX_STREAMED)
    return LinesOfJson(_lines(request, total))


async def _lines(request: SweepRequest, total: int) -> AsyncGenerator[str]:
    done = 0
    texts = (point.model_dump_json(exclude_none=True) for point in points_of(request))
    async for chunk in in_turns(texts):
        lines = []
        for text in chunk:
            lines.append(text)
            done += 1
            if done % CHUNK == 0:
                lines.append(json.dumps({"done": done, "total": total}))
        yield "\n".join(lines) + "\n"
    yield json.dumps({"done": total, "total": total}) + "\n"


async def in_turns(items: Iterator[T]) -> AsyncGenerator[list[T]]:
    """Yield what an iterator yields, in lists that are each computed in a thread.

    Sweeps share few threads and take turns in them. Whoever stops reading stops the computation:
    what a closed stream still computes is at most the list of its last turn.
    """
    if not _limiters:
        _limiters.append(anyio.CapacityLimiter(THREADS))
    while chunk := await anyio.to_thread.run_sync(_turn, items, limiter=_limiters[0]):
        yield chunk


def _turn(items: Iterator[T]) -> list[T]:
    until = time.monotonic() + CHUNK_SECONDS
    found: list[T] = []
    for item in items:
        found.append(item)
        if len(found) == CHUNK or time.monotonic() > until:
            break
    return found
