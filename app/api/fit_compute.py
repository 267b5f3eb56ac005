"""From a checked request of `/fit` to what fits: memory, weights and demands put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from app.api import schemas as s
from app.api.compute import ModelAndFormats, model_and_formats
from app.api.fit_engine import check_format, format_notes, vllm_settings
from app.api.fit_schemas import DEFAULT_UTILISATION, FitRequest
from app.api.model_input import read_lengths
from app.api.parallel import degrees_of
from app.api.weights_input import RankWeights, WeightsInput, rank_weights
from app.domain.assumed_lines import activations, communication, framework, graphs
from app.domain.capacity import MAX_BYTES, Basis, Budget, Demand, Line, StateDemand, fits
from app.domain.errors import Conflict, DomainError, Missing, OutOfRange, shown
from app.domain.fit import Fit, Load, Usable, fit, given_line
from app.domain.notes import Note
from app.domain.parallel import MAX_SUMS
from app.domain.percentile import DrawnConcurrency, drawn_concurrency
from app.domain.rank_demands import rank_demands
from app.domain.rank_shares import Degrees, stage_layers
from app.domain.state import ModelState
from app.readers.model_widths import read_widths

if TYPE_CHECKING:
    from app.engines.vllm.demand import VllmDemand

DEFAULT_BLOCK = 16
DEFAULT_CONTEXT = 8192
# Costs of drawn lengths are rounded up to so many steps: the bound stays a bound, and stays cheap.
COST_STEPS = 256
# Each stage's bound takes some ten milliseconds.
MAX_DIFFERENT_STAGES = 16
# An engine's refusal names its own setting; the request's field is called otherwise.
_REQUEST_NAMES = {
    "version": "engine_version",
    "kv_cache_dtype": "kv_dtype",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "decode_context_parallel_size": "decode_context_parallel",
    "data_parallel_size": "data_parallel",
    "max_num_batched_tokens": "batch_tokens",
    "max_num_seqs": "max_sequences",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitParts:
    """A request's answer as domain values."""

    given: ModelAndFormats
    degrees: Degrees
    stages: tuple[int, ...]
    budget: Budget
    demands: tuple[Demand, ...]
    usable: tuple[Usable, ...] | None
    weights: RankWeights | None
    answer: Fit
    drawn: DrawnConcurrency | None
    assumed: tuple[Note, ...]


def compute_fit(request: FitRequest) -> FitParts:
    """Return what fits; raises a DomainError that names the field."""
    given = model_and_formats(request)
    degrees = degrees_of(request)
    stages = stage_layers(given.reading.state.num_layers, degrees.pipeline,
                          degrees.layers_per_stage)  # fmt: skip
    _check_count(request, degrees)
    notes: list[Note] = []
    if request.engine == "none" and request.engine_version is not None:
        notes.append(Note("version_unused", "Release {version} changes nothing: no engine is "
                          "asked for.", {"version": shown(request.engine_version)}))  # fmt: skip
    demands, usable = _demands(request, given, degrees)
    notes += format_notes(request, given)
    weights = _weights(request, degrees, stages)
    budget = _budget(request, degrees, stages, weights, notes)
    load = _load(request, given, notes)
    answer = fit(budget, demands, load, usable)
    if answer.needed_bytes > MAX_BYTES:
        raise OutOfRange("{field}: the load of {value} B on a rank is over the bound of 8 PiB",
                         field="concurrency", value=answer.needed_bytes)  # fmt: skip
    return FitParts(
        given=given,
        degrees=degrees,
        stages=stages,
        budget=budget,
        demands=demands,
        usable=usable,
        weights=weights,
        answer=answer,
        drawn=_drawn(request, demands, budget, usable),
        assumed=(*notes, *_own_limit(given, answer), *(weights.notes if weights else ())),
    )


def fits_surely(request: FitRequest) -> bool:
    """Return whether the load fits for certain: what `compute_fit` says, and nothing more of it.

    Raises:
        DomainError: as `compute_fit` does.

    """
    given = model_and_formats(request)
    degrees = degrees_of(request)
    stages = stage_layers(given.reading.state.num_layers, degrees.pipeline,
                          degrees.layers_per_stage)  # fmt: skip
    _check_count(request, degrees)
    # Weights first: where they alone are too large, nothing else needs to be asked.
    budget = _budget(request, degrees, stages, _weights(request, degrees, stages), [])
    rooms = [room.least for room in budget.rooms()]
    if min(rooms) < 0:
        return False
    demands, usable = _demands(request, given, degrees)
    if usable is not None:
        rooms = [use(room) for use, room in zip(usable, rooms, strict=True)]
    load = _load(request, given, [])
    return fits(demands, rooms, load.tokens, load.concurrency)


def least_state(request: FitRequest, parts: FitParts) -> int:
    """Return what the load takes at least on all ranks together, however they are split.

    Ranks hold together no less than one copy of the state. An engine's own plan may pad a single
    device's groups further than those of several, so nothing is said of it.
    """
    if request.engine != "none":
        return 0
    block = request.block_size or DEFAULT_BLOCK
    try:
        whole = rank_demands(parts.given.reading.state, parts.given.formats, Degrees(), block)
    except DomainError:
        return 0
    load = parts.answer.load
    return load.concurrency * sum(demand(load.tokens) for demand in whole)


def _own_limit(given: ModelAndFormats, answer: Fit) -> tuple[Note, ...]:
    """Return a sentence where memory holds more than the model was made for."""
    own = given.reading.max_context_tokens
    if own is None or answer.max_context <= own:
        return ()
    return (Note("own_limit", "Memory holds longer contexts than the {tokens} tokens that the "
                 "model's config allows.", {"tokens": own}),)  # fmt: skip


def _check_count(request: FitRequest, degrees: Degrees) -> None:
    needed = degrees.ranks * degrees.data
    if request.count is not None and needed > request.count:
        raise Conflict("{field} {value}: the ranks and replicas need {needed} devices",
                       field="count", value=request.count, needed=needed)  # fmt: skip


def _load(request: FitRequest, given: ModelAndFormats, notes: list[Note]) -> Load:
    tokens = request.context_tokens
    if tokens is None:
        tokens = given.reading.max_context_tokens or DEFAULT_CONTEXT
        notes.append(Note("context_assumed", "No context length was given: {tokens} tokens.",
                          {"tokens": tokens}))  # fmt: skip
    return Load(tokens=tokens, concurrency=request.concurrency or 1)


def _weights(request: FitRequest, degrees: Degrees, stages: tuple[int, ...]) -> RankWeights | None:
    """Return the weights; None where the room for the state is given and they are not known."""
    measured = request.measured
    given = request.weights
    if measured.weights is not None:
        if given is not None:
            raise Conflict("{field}: weights are given and measured; give one", field="weights")
        given = WeightsInput(bytes_per_rank=measured.weights)
    try:
        return rank_weights(given, request.model, degrees, stages, request.expert_parallel)
    except DomainError:
        if measured.state is None or given is not None:
            raise
        return None


def _budget(
    request: FitRequest,
    degrees: Degrees,
    stages: tuple[int, ...],
    weights: RankWeights | None,
    notes: list[Note],
) -> Budget:
    measured = request.measured
    utilisation = request.utilisation
    if utilisation is None:
        utilisation = DEFAULT_UTILISATION
        if measured.state is None:
            notes.append(Note("utilisation_assumed", "No utilisation was given: {value} is taken.",
                              {"value": DEFAULT_UTILISATION}))  # fmt: skip
    return Budget(
        memory=_memory(request),
        utilisation=Fraction(str(utilisation)),
        weights=(0,) * len(stages) if weights is None else weights.stage_bytes,
        lines=_lines(request, degrees),
        state=None if measured.state is None else given_line("state", measured.state),
    )


def _memory(request: FitRequest) -> Line:
    if request.device is not None and request.memory_bytes is not None:
        raise Conflict("{field} and memory_bytes both say how large a device is: give one",
                       field="device")  # fmt: skip
    if request.device is not None:
        from app.catalog.device_memory import memory_line
        from app.catalog.devices import device

        return memory_line(device(request.device))
    amount = request.memory_bytes
    if amount is None:
        amount = request.measured.state
        amount = None if amount is None else max(amount, 0)
    if amount is None:
        raise Missing("{field} is missing: name a device, or give memory_bytes or measured.state",
                      field="device")  # fmt: skip
    note = Note("memory_given", "As given.")
    return Line(name="memory", low_bytes=amount, high_bytes=amount, basis=Basis.GIVEN, note=note)


def _lines(request: FitRequest, degrees: Degrees) -> tuple[Line, ...]:
    """Return every line but the weights and the state; a measured figure takes a line's place."""
    widths = read_widths(model_config(request.model) or {})
    lines = [
        activations(widths, request.batch_tokens, request.max_sequences, degrees.tensor),
        framework(),
        communication(degrees.ranks),
    ]
    if request.cuda_graphs:
        lines.append(graphs())
    known = {
        name: getattr(request.measured, name)
        for name in ("activations", "framework", "communication", "cuda_graphs")
    }
    rows = [
        line if known[line.name] is None else given_line(line.name, known[line.name])
        for line in lines
    ]
    if request.reserve_bytes:
        note = Note("reserve", "Kept free, as asked.")
        amount = request.reserve_bytes
        rows.append(Line(name="reserve", low_bytes=amount, high_bytes=amount, basis=Basis.GIVEN,
                         note=note))  # fmt: skip
    return tuple(rows)


def model_config(model: s.ModelInput) -> Mapping[str, Any] | None:
    """Return the config.json of a model that has one."""
    if isinstance(model, s.ConfigModel):
        return model.config
    if isinstance(model, s.CatalogueModel):
        from app.catalog.models import entry

        found: Mapping[str, Any] = entry(model.id)["config"]
        return found
    return None


def _demands(
    request: FitRequest, given: ModelAndFormats, degrees: Degrees
) -> tuple[tuple[Demand, ...], tuple[Usable, ...] | None]:
    state = given.reading.state
    if request.engine == "none":
        block = request.block_size or DEFAULT_BLOCK
        return rank_demands(state, given.formats, degrees, block), None
    try:
        settings = tuple(
            (name, value)
            for name, value in vllm_settings(request, given).items()
            if value is not None
        )
        if isinstance(request.model, s.CatalogueModel):
            planned = _of_catalogue(request.model.id, state, settings)
        else:
            planned = _planned(model_config(request.model) or {}, state, settings)
    except DomainError as error:
        name = _REQUEST_NAMES.get(str(error.field[0])) if len(error.field) == 1 else None
        if name is None:
            raise
        error.field = ()
        raise error.under(name) from None
    check_format(request, given, planned[0].plan)
    return planned, tuple(demand.usable for demand in planned)


_Settings = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=64)
def _of_catalogue(model_id: str, state: ModelState, settings: _Settings) -> tuple[VllmDemand, ...]:
    """Return the demands of a catalogue's model; people ask about one many times over."""
    return _planned(model_config(s.CatalogueModel(id=model_id)) or {}, state, settings)


def _planned(
    config: Mapping[str, Any], state: ModelState, settings: _Settings
) -> tuple[VllmDemand, ...]:
    from app.engines.vllm.demand import vllm_demands

    return vllm_demands(config, state, dict(settings))


def _drawn(
    request: FitRequest,
    demands: tuple[Demand, ...],
    budget: Budget,
    usable: tuple[Usable, ...] | None,
) -> DrawnConcurrency | None:
    """Return how many requests of drawn lengths fit on the rank where the fewest do."""
    if request.lengths is None:
        return None
    counts = read_lengths(request.lengths).counts
    percentile = Fraction(str(request.percentile)) / 100
    have = [room.least for room in budget.rooms()]
    if usable is not None:
        have = [use(room) for use, room in zip(usable, have, strict=True)]
    # Stages that are alike have one answer between them.
    different = {
        (demand if isinstance(demand, StateDemand) else id(demand), room): demand
        for demand, room in zip(demands, have, strict=True)
    }
    sums = len(counts) * len(different)
    if len(different) > MAX_DIFFERENT_STAGES or sums > MAX_SUMS:
        raise OutOfRange(
            "{field}: {lengths} different lengths on {stages} different stages are too many sums",
            field="lengths",
            lengths=len(counts),
            stages=len(different),
        )
    found = [
        drawn_concurrency(_costs(demand, counts), room, percentile)
        for (_, room), demand in different.items()
    ]
    return min(found, key=lambda row: (row.at_percentile, row.by_mean))


def _costs(demand: Demand, counts: Mapping[int, int]) -> dict[int, int]:
    """Return how often each cost occurs; many different ones are rounded up to a few steps."""
    costs: dict[int, int] = {}
    for length, count in counts.items():
        cost = demand(length)
        costs[cost] = costs.get(cost, 0) + count
    if len(costs) <= COST_STEPS:
        return costs
    step = -(-max(costs) // COST_STEPS)
    coarse: dict[int, int] = {}
    for cost, count in costs.items():
        rounded = min(-(-cost // step) * step, max(costs))
        coarse[rounded] = coarse.get(rounded, 0) + count
    return coarse


def state_lines(parts: FitParts) -> tuple[Line, ...]:
    """Return what the load's state takes on the deciding rank: positions, and constant states."""
    answer = parts.answer
    demand = parts.demands[answer.rank]
    fixed = 0
    if isinstance(demand, StateDemand):
        fixed = sum(group.fixed_bytes for group in (*demand.plain, *demand.interleaved))
    fixed *= answer.load.concurrency
    asked: dict[str, object] = {
        "concurrency": answer.load.concurrency,
        "tokens": answer.load.tokens,
    }
    positions = Note(
        "kv_line", "{concurrency} requests of {tokens} tokens, in whole blocks.", asked
    )
    rows = [("kv", answer.needed_bytes - fixed, positions)]
    if fixed:
        states = Note("recurrent_line", "One state a request, whatever its length.")
        rows.append(("recurrent_states", fixed, states))
    return tuple(
        Line(name=name, low_bytes=amount, high_bytes=amount, basis=Basis.COMPUTED, note=note)
        for name, amount, note in rows
    )
