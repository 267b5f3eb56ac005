"""Weights of a request: as given, or from what the model's own config says, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StrictInt

from app.api import schemas as s
from app.domain.capacity import Basis
from app.domain.errors import (
    Conflict,
    DomainError,
    Missing,
    Unknown,
    Unsupported,
    shown,
)
from app.domain.notes import Note
from app.domain.rank_shares import Degrees

if TYPE_CHECKING:
    from app.domain.weights import ModelWeights

MAX_WEIGHT_BYTES = 2**50
_ELEMENT_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8}
WeightBytes = Annotated[StrictInt, Field(ge=0, le=MAX_WEIGHT_BYTES)]


class WeightsInput(s.Strict):
    """Weights: of the whole model, of one rank, a count of parameters, or another format."""

    bytes: WeightBytes | None = Field(default=None, description="Of the whole model.")
    bytes_per_rank: WeightBytes | None = Field(
        default=None, description="On each rank, as an engine's log says it."
    )
    parameters: Annotated[StrictInt, Field(ge=1, le=MAX_WEIGHT_BYTES)] | None = None
    format: s.FormatName | None = Field(
        default=None, description="As if stored so: bf16, fp8, fp8_block, awq_int4, mxfp4 …"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """The weights on a rank of each stage; `exact` where they follow the tensors' own shapes."""

    stage_bytes: tuple[int, ...]
    total_bytes: int
    basis: Basis
    exact: bool
    notes: tuple[Note, ...]


def rank_weights(
    given: WeightsInput | None,
    model: s.ModelInput,
    degrees: Degrees,
    stages: tuple[int, ...],
    expert_parallel: int = 1,
) -> RankWeights:
    """Return what one rank of each stage holds of the weights.

    Raises:
        Missing: when nothing says how large they are.
        Conflict: for two ways of saying it, or tensors that do not divide over the ranks.
        Unknown: for a format that is not known.

    """
    found = _rank_weights(given or WeightsInput(), model, degrees, stages, expert_parallel)
    if expert_parallel > 1 and not found.exact:
        note = Note("experts_unused", "Expert parallel {ranks} changes nothing: what the weights "
                    "of each expert are is not known.", {"ranks": expert_parallel})  # fmt: skip
        return replace(found, notes=(*found.notes, note))
    return found


def _rank_weights(
    given: WeightsInput,
    model: s.ModelInput,
    degrees: Degrees,
    stages: tuple[int, ...],
    expert_parallel: int,
) -> RankWeights:
    ways = [given.bytes, given.bytes_per_rank, given.parameters]
    if sum(way is not None for way in ways) > 1:
        raise Conflict("{field}: give one of bytes, bytes_per_rank and parameters", field="weights")
    if given.bytes_per_rank is not None:
        return RankWeights(
            stage_bytes=(given.bytes_per_rank,) * len(stages),
            total_bytes=given.bytes_per_rank * degrees.ranks,
            basis=Basis.MEASURED,
            exact=True,
            notes=(),
        )
    if given.bytes is not None:
        return _evenly(given.bytes, degrees, stages, Basis.GIVEN)
    if given.parameters is not None:
        bits = _ELEMENT_BITS.get(given.format or "bf16")
        if bits is None:
            raise Conflict(
                "{field}: a count of parameters is stored in one of {known}; for another format "
                "give bytes",
                field=("weights", "format"),
                known=", ".join(_ELEMENT_BITS),
            )
        return _evenly(given.parameters * bits // 8, degrees, stages, Basis.GIVEN)
    return _of_model(given, model, degrees, stages, expert_parallel)


def _evenly(
    total: int, degrees: Degrees, stages: tuple[int, ...], basis: Basis, *more: Note
) -> RankWeights:
    """Return weights dealt out by layers over stages and evenly over tensor ranks."""
    layers = sum(stages)
    rows = tuple(-(-total * stage // (layers * degrees.tensor)) for stage in stages)
    even = Note("weights_evenly", "Weights are taken to divide evenly over layers and ranks.")
    return RankWeights(
        stage_bytes=rows,
        total_bytes=total,
        basis=basis,
        exact=False,
        notes=(*more, *(() if degrees.ranks == 1 else (even,))),
    )


def _of_model(
    given: WeightsInput,
    model: s.ModelInput,
    degrees: Degrees,
    stages: tuple[int, ...],
    expert_parallel: int,
) -> RankWeights:
    from app.domain.weight_formats import WEIGHT_FORMATS

    if given.format is not None and given.format not in WEIGHT_FORMATS:
        raise Unknown(
            "{field} {value} is not a known weight format; known are {known}",
            field=("weights", "format"),
            value=shown(given.format),
            known=", ".join(WEIGHT_FORMATS),
        )
    weights, listed = _weights_of(model, given.format)
    if weights is None:
        bits = _ELEMENT_BITS.get(given.format or "bf16", 16)
        note = Note(
            "weights_listed",
            "The shapes are not known: the catalogue's {parameters} parameters at {bits} bits.",
            {"parameters": listed, "bits": bits},
        )
        return _evenly(listed * bits // 8, degrees, stages, Basis.COMPUTED, note)
    total = weights.size_bytes()
    if weights.num_layers != sum(stages):
        return _evenly(total, degrees, stages, Basis.COMPUTED)
    try:
        rows = _by_shapes(weights, degrees, stages, expert_parallel)
    except Unsupported as error:
        # An engine pads what its format cannot cut; how far is the engine's own affair.
        note = Note("weights_not_cut", "The format does not divide so ({why}).",
                    {"why": error.note})  # fmt: skip
        return _evenly(total, degrees, stages, Basis.COMPUTED, note)
    return RankWeights(
        stage_bytes=rows,
        total_bytes=total,
        basis=Basis.COMPUTED,
        exact=True,
        notes=(*weights.notes, *_of_experts(weights, expert_parallel)),
    )


def _of_experts(weights: ModelWeights, ranks: int) -> tuple[Note, ...]:
    """Return what dealing out experts over so many ranks does not do."""
    if ranks == 1:
        return ()
    experts = {line.copies for block in weights.chosen() for line in block.lines
               if line.by_expert}  # fmt: skip
    if not experts:
        return (Note("no_experts", "Expert parallel {ranks} changes nothing: the model has no "
                     "experts.", {"ranks": ranks}),)  # fmt: skip
    uneven = sorted(count for count in experts if count % ranks)
    return tuple(
        Note("uneven_experts", "{experts} experts do not divide over {ranks} ranks: the fullest "
             "rank is counted.", {"experts": count, "ranks": ranks})
        for count in uneven
    )  # fmt: skip


def _by_shapes(
    weights: ModelWeights, degrees: Degrees, stages: tuple[int, ...], expert_parallel: int
) -> tuple[int, ...]:
    """Return what one rank of each stage holds, tensor by tensor."""
    return weights.stages_bytes(stages, tensor_ranks=degrees.tensor, expert_ranks=expert_parallel)


def _weights_of(model: s.ModelInput, stored: str | None) -> tuple[ModelWeights | None, int]:
    """Return a model's weights, or None and the parameters that the catalogue lists."""
    if isinstance(model, s.CatalogueModel):
        return _of_catalogue(model.id, stored)
    if isinstance(model, s.ConfigModel):
        from app.readers.weights import read_weights

        try:
            found = read_weights(model.config)
        except DomainError as error:
            raise error.under("model", "config") from None
        return _stored(found, stored), 0
    raise Missing(
        "{field} is missing: a model given by its layers does not say how large its weights are",
        field="weights",
    )


@lru_cache(maxsize=64)
def _of_catalogue(model_id: str, stored: str | None) -> tuple[ModelWeights | None, int]:
    from app.catalog import models
    from app.readers.weights import read_weights

    entry = models.entry(model_id)
    try:
        return _stored(read_weights(entry["config"]), stored), 0
    except DomainError:
        listed = entry["parameters"]
        if listed is None or not 1 <= listed <= MAX_WEIGHT_BYTES:
            raise Missing(
                "{field} is missing: the catalogue knows neither the shapes nor the number of "
                "parameters of {model}",
                field="weights",
                model=shown(model_id),
            ) from None
        return None, int(listed)


def _stored(weights: ModelWeights, stored: str | None) -> ModelWeights:
    """Return weights as they are, or as if in another format, whose name was checked before."""
    from app.domain.weight_formats import WEIGHT_FORMATS

    return weights if stored is None else weights.quantised(WEIGHT_FORMATS[stored])
