"""`/fit`: what fits on which devices, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from app.api.answers import Answer, Explained, notes_answer
from app.api.fit_schemas import DEFAULT_UTILISATION, FitRequest
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.api.schemas import CatalogueModel
from app.api.watched_runs import GONE_STATUS, WatchedRun, result_for
from app.domain.capacity import MAX_CONCURRENCY, Basis, Line
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.per_token import omissions, shape_of
from app.domain.state import MAX_TOKENS
from app.domain.units import bytes_text
from app.domain.working import Working
from app.readers.traces import Progress, TraceCancelled

if TYPE_CHECKING:
    from app.api.fit_advice import Change, Devices, Patience
    from app.api.fit_compute import FitParts
    from app.domain.offload import Offload

router = APIRouter(tags=["fit"], responses=REFUSED, route_class=JsonRoute)
_COUNTED = frozenset({"weights", "activations", "communication", "cuda_graphs"})


class LineAnswer(Answer):
    """One line of the deciding rank's memory; low and high differ where it is assumed."""

    name: str
    low_bytes: int
    high_bytes: int
    text: str
    basis: str
    note: str


class StageAnswer(Answer):
    """One pipeline stage, on each of its tensor ranks."""

    pipeline_rank: int
    layers: int
    weights_bytes: int
    kv_bytes_available: int
    kv_bytes_available_high: int
    request_bytes: int
    max_concurrency: int


class DrawnAnswer(Answer):
    """Requests of drawn lengths: how many fit."""

    percentile: float
    by_longest: int = Field(description="Every request the longest: exact.")
    at_percentile: int = Field(description="Memory suffices at least so often: a bound.")
    by_mean: int = Field(description="By the mean: exact, and exceeded half of the time.")
    method: str


class ChangeAnswer(Answer):
    """One change, what it buys and what it costs."""

    field: str
    value: int | float | str
    fits: bool | None
    max_concurrency: int
    max_context_tokens: int
    buys: str
    costs: str


class DevicesAnswer(Answer):
    """The fewest devices of a replica."""

    devices: int
    tensor_parallel: int
    pipeline_parallel: int


class OffloadAnswer(Answer):
    """One tier beyond the device, or a transfer; the time is a bound, not a promise."""

    name: str
    requests: int
    tokens: int
    moved_bytes_per_request: int
    moved_bytes_text: str
    least_nanoseconds: int


class FitAnswer(Explained):
    """What fits. Figures without `_high` count assumed lines at their high end."""

    fits: bool | None = Field(description="null: an assumed line decides.")
    verdict: str
    deciding_line: str
    deciding_rank: int
    context_tokens: int
    concurrency: int
    max_concurrency: int
    max_concurrency_high: int
    total_concurrency: int = Field(description="Of all replicas.")
    max_context_tokens: int
    max_context_tokens_high: int
    context_unbounded: bool = Field(description="No length is too long: nothing grows.")
    kv_bytes_available: int
    kv_bytes_available_high: int
    kv_bytes_available_text: str
    kv_bytes_lacking: int = Field(
        description="What other lines take beyond what may be used, at their high end."
    )
    request_bytes: int
    needed_bytes: int
    usable_bytes: int
    usable_bytes_high: int
    devices: int
    lines: list[LineAnswer]
    stages: list[StageAnswer]
    drawn: DrawnAnswer | None
    fewest_devices: DevicesAnswer | None
    changes: list[ChangeAnswer]
    smallest_change: ChangeAnswer | None
    offload: list[OffloadAnswer]
    transfer: OffloadAnswer | None
    engine_command: str | None


def lines_of(parts: FitParts) -> tuple[Line, ...]:
    """Return every line of the deciding rank, memory first and the load's state last."""
    from app.api.fit_compute import state_lines

    rows = [parts.budget.memory]
    if parts.weights is not None:
        amount = parts.weights.stage_bytes[parts.answer.rank]
        note = Note("weights_on_rank", "Of {total} in all.",
                    {"total": bytes_text(parts.weights.total_bytes)})  # fmt: skip
        rows.append(Line(name="weights", low_bytes=amount, high_bytes=amount,
                         basis=parts.weights.basis, note=note))  # fmt: skip
    if parts.budget.state is None:
        rows += parts.budget.lines
    else:
        rows.append(parts.budget.state)
    return (*rows, *state_lines(parts))


def offloads(request: FitRequest, parts: FitParts) -> tuple[Offload, ...]:
    """Return what each tier holds and moves of requests of the context length."""
    from app.domain.offload import Tier, offload

    each = _every_rank(parts, parts.answer.load.tokens)
    return tuple(
        offload(
            Tier(
                name=tier.name,
                capacity_bytes=tier.capacity_bytes,
                bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s,
                shared=tier.shared,
            ),
            each,
            parts.answer.load.tokens,
        )
        for tier in request.tiers
    )


def transfer_of(request: FitRequest, parts: FitParts) -> Offload | None:
    """Return what moving a prefix to another server takes."""
    from app.domain.offload import Tier, offload

    asked = request.transfer
    if asked is None:
        return None
    tokens = asked.tokens or parts.answer.load.tokens
    link = Tier(name="transfer", capacity_bytes=0, shared=asked.shared,
                bandwidth_bytes_per_s=asked.bandwidth_bytes_per_s)  # fmt: skip
    return offload(link, _every_rank(parts, tokens), tokens)


def _every_rank(parts: FitParts, tokens: int) -> tuple[int, ...]:
    return tuple(demand(tokens) for demand in parts.demands for _ in range(parts.degrees.tensor))


def command_of(request: FitRequest, parts: FitParts) -> str | None:
    """Return vLLM's command line for the settings; None for a model or format without one."""
    from app.api.fit_engine import vllm_settings
    from app.engines.vllm.command import serve_command

    if not isinstance(request.model, CatalogueModel):
        return None
    try:
        settings = vllm_settings(request, parts.given)
    except DomainError:
        return None
    name = settings["kv_cache_dtype"]
    return serve_command(
        request.model.id,
        {
            "tensor-parallel-size": request.tensor_parallel,
            "pipeline-parallel-size": request.pipeline_parallel,
            "decode-context-parallel-size": request.decode_context_parallel,
            "data-parallel-size": request.data_parallel,
            "enable-expert-parallel": request.expert_parallel > 1,
            "dtype": settings.get("dtype"),
            "kv-cache-dtype": name if name == "fp8" else "auto",
            "block-size": request.block_size,
            "max-model-len": parts.answer.load.tokens,
            "max-num-batched-tokens": request.batch_tokens,
            "max-num-seqs": request.max_sequences,
            "gpu-memory-utilization": request.utilisation or DEFAULT_UTILISATION,
            # What lacks is no size of a pool.
            "kv-cache-memory-bytes": None
            if (request.measured.state or 0) < 0
            else request.measured.state,
            "enforce-eager": not request.cuda_graphs,
        },
    )


def workings_of(parts: FitParts) -> dict[str, Working]:
    """Return how the largest concurrency and the room came about."""
    answer = parts.answer
    rank = answer.stages[answer.rank]
    room = f"{answer.room} B"
    each = answer.request_bytes
    return {
        **shape_of(parts.given.reading.state, parts.given.formats).workings,
        "kv_bytes_available": Working(
            symbols="⌈memory × utilisation⌉ − weights − every other line",
            numbers=f"{answer.usable} B − {rank.weights} B − "
            f"{sum(line.high_bytes for line in answer.lines)} B = {room}"
            if parts.budget.state is None
            else f"as given: {room}",
            result=answer.room,
            unit="B",
            source="the deciding rank; assumed lines at their high end",
        ),
        "max_concurrency": Working(
            symbols="⌊room ÷ bytes of a request⌋, on the rank where it is smallest",
            numbers=f"⌊max(0, {room}) ÷ {each} B⌋ = {answer.max_concurrency}"
            if answer.room < 0
            else f"⌊{room} ÷ {each} B⌋ = {answer.max_concurrency}",
            result=answer.max_concurrency,
            unit="requests",
            source="whole blocks of every layer; one more request does not fit",
        ),
    }


def assumptions_of(parts: FitParts) -> tuple[Note, ...]:
    """Return everything that was taken for granted."""
    own = [line.note for line in (parts.budget.memory, *parts.answer.lines)
           if line.basis is Basis.ASSUMED]  # fmt: skip
    if parts.budget.state is not None:
        own = []
    peak = Note("at_once", "All requests reach their full length at the same time.")
    reading = parts.given.reading
    return (*reading.assumptions, *parts.given.assumed, *parts.assumed, peak, *own)


def left_out(parts: FitParts) -> tuple[Note, ...]:
    """Return what no line counts."""
    notes = omissions(parts.given.formats)
    if parts.budget.state is not None:
        return notes
    return tuple(note for note in notes if note.code not in _COUNTED)


def answer_fit(request: FitRequest, patience: Patience | None = None) -> FitAnswer:
    """Return the answer of `/fit`."""
    from app.api.fit_compute import compute_fit

    return fit_answer(request, compute_fit(request), patience)


def fit_answer(request: FitRequest, parts: FitParts, patience: Patience | None = None) -> FitAnswer:
    """Return what fits as JSON shows it; advice as far as `patience` lasts."""
    from app.api.fit_advice import Patience, changes, fewest_devices

    answer = parts.answer
    patience = patience or Patience()
    is_asked = request.advise and answer.fits is not True
    tried = changes(request, parts, patience) if is_asked else ()
    fewest = fewest_devices(request, parts, patience) if request.advise else None
    moved = transfer_of(request, parts)
    workings = workings_of(parts)
    rows = [_change(change) for change in tried]
    return FitAnswer(
        fits=answer.fits,
        verdict=answer.verdict.text,
        deciding_line=answer.deciding_line,
        deciding_rank=answer.rank,
        context_tokens=answer.load.tokens,
        concurrency=answer.load.concurrency,
        max_concurrency=answer.max_concurrency,
        max_concurrency_high=answer.max_concurrency_at_most,
        total_concurrency=min(answer.max_concurrency * parts.degrees.data, MAX_CONCURRENCY),
        max_context_tokens=answer.max_context,
        max_context_tokens_high=answer.max_context_at_most,
        context_unbounded=answer.max_context == MAX_TOKENS,
        kv_bytes_available=max(answer.room, 0),
        kv_bytes_available_high=max(answer.room_at_most, 0),
        kv_bytes_available_text=bytes_text(max(answer.room, 0)),
        kv_bytes_lacking=max(-answer.room, 0),
        request_bytes=answer.request_bytes,
        needed_bytes=answer.needed_bytes,
        usable_bytes=answer.usable,
        usable_bytes_high=answer.usable_at_most,
        devices=parts.degrees.ranks * parts.degrees.data,
        lines=[_line(line) for line in lines_of(parts)],
        stages=[
            StageAnswer(
                pipeline_rank=index,
                layers=parts.stages[index],
                weights_bytes=stage.weights,
                kv_bytes_available=max(stage.room, 0),
                kv_bytes_available_high=max(stage.room_at_most, 0),
                request_bytes=stage.request_bytes,
                max_concurrency=stage.max_concurrency,
            )
            for index, stage in enumerate(answer.stages)
        ],
        drawn=_drawn(parts),
        fewest_devices=_devices(fewest),
        changes=rows,
        smallest_change=next((row for row in rows if row.fits), None),
        offload=[_offload(row) for row in offloads(request, parts)],
        transfer=None if moved is None else _offload(moved),
        engine_command=command_of(request, parts),
        formula=workings["max_concurrency"].numbers,
        workings=workings,
        assumptions=notes_answer((*assumptions_of(parts), *patience.notes)),
        not_counted=notes_answer(left_out(parts)),
    )


def usable_text(request: FitRequest, parts: FitParts) -> str | None:
    """Return how much of the memory may be used; None where nothing says how large it is."""
    if request.device is None and request.memory_bytes is None:
        return None
    return range_text(parts.answer.usable, parts.answer.usable_at_most)


def range_text(low: int, high: int) -> str:
    """Return one amount, or two with a dash."""
    if low == high:
        return bytes_text(low)
    return f"{bytes_text(low)} – {bytes_text(high)}"


def _line(line: Line) -> LineAnswer:
    return LineAnswer(
        name=line.name,
        low_bytes=line.low_bytes,
        high_bytes=line.high_bytes,
        text=range_text(line.low_bytes, line.high_bytes),
        basis=line.basis.value,
        note=line.note.text,
    )


DRAWN_METHOD = Note(
    "chernoff",
    "Independent draws; a Chernoff bound on their sum, so memory suffices at least so often.",
)


def _drawn(parts: FitParts) -> DrawnAnswer | None:
    drawn = parts.drawn
    if drawn is None:
        return None
    return DrawnAnswer(
        percentile=float(100 * drawn.percentile),
        by_longest=drawn.by_longest,
        at_percentile=drawn.at_percentile,
        by_mean=drawn.by_mean,
        method=DRAWN_METHOD.text,
    )


def _change(change: Change) -> ChangeAnswer:
    return ChangeAnswer(
        field=change.field,
        value=change.value,
        fits=change.fits,
        max_concurrency=change.max_concurrency,
        max_context_tokens=change.max_context,
        buys=change.buys.text,
        costs=change.costs.text,
    )


def _devices(found: Devices | None) -> DevicesAnswer | None:
    if found is None:
        return None
    return DevicesAnswer(
        devices=found.count, tensor_parallel=found.tensor, pipeline_parallel=found.pipeline
    )


def _offload(row: Offload) -> OffloadAnswer:
    return OffloadAnswer(
        name=row.tier.name,
        requests=row.requests,
        tokens=row.tokens,
        moved_bytes_per_request=row.moved_bytes,
        moved_bytes_text=bytes_text(row.moved_bytes),
        least_nanoseconds=row.least_nanoseconds,
    )


@router.post("/fit", summary="What fits: concurrency, context, devices", response_model=FitAnswer)
async def fit_call(request: FitRequest, caller: Request) -> FitAnswer | Response:
    """Return each memory line with its basis, what fits, and the line that decides."""
    from app.api.fit_advice import Patience

    if not request.advise:
        return await run_in_threadpool(answer_fit, request)

    def compute(progress: Progress) -> FitAnswer:
        return answer_fit(request, Patience(look=lambda: progress(0, 0)))

    # Advice asks many times over, and ends when nobody waits for it.
    try:
        return await result_for(caller, WatchedRun(compute))
    except TraceCancelled:
        return Response(status_code=GONE_STATUS)
