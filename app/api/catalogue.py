"""`/models` and `/models/{id}`: the catalogue, with the source of each entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from app.api.answers import Answer, LayerAnswer, NoteAnswer, layer_answers, notes_answer
from app.api.model_shapes import (
    ContextAnswer,
    WeightsAnswer,
    contexts_answer,
    kv_dtype_name,
    weights_of_config,
)
from app.api.problems import REFUSED, Problems, problem_of
from app.api.state_rows import layer_state_rows
from app.catalog import models
from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError, Unknown
from app.domain.formats import KvFormats
from app.domain.per_token import shape_of
from app.domain.state import MAX_TOKENS

router = APIRouter(tags=["catalogue"])

Kind = Literal[
    "full_attention",
    "sliding_window",
    "chunked_attention",
    "latent_attention",
    "recurrent",
    "cross_attention",
    "shared",
]


SortKey = Literal[
    "id",
    "parameters",
    "layers",
    "bytes_per_token",
    "window_bytes",
    "fixed_bytes",
    "max_context_tokens",
]
MAX_PARAMETERS = 10**15


class ModelSummary(Answer):
    """One line of the catalogue; figures are at 16 bits an element."""

    id: str
    model_type: str
    parameters: int | None = Field(description="As its publisher, or the Hub, lists it.")
    counted_parameters: int | None = Field(
        default=None, description="As the config's own shapes amount to."
    )
    confidence: str
    readable: bool
    family: str | None = None
    layers: int | None = None
    kinds: list[str] = Field(default_factory=list)
    bytes_per_token: int | None = None
    fixed_bytes: int | None = None
    window_bytes: int | None = None
    max_context_tokens: int | None = None
    assumed: int = Field(default=0, description="How many things the reading took for granted.")
    field: str | None = Field(default=None, description="Of an entry not read: the field at fault.")
    reason: str | None = None


class ModelList(Answer):
    """A page of the catalogue."""

    total: int
    offset: int
    models: list[ModelSummary]


class SourceAnswer(Answer):
    """Where a fact is public."""

    what: str
    url: str


class ModelAnswer(Answer):
    """One entry: what each layer keeps, or why it cannot be read."""

    summary: ModelSummary
    source: SourceAnswer
    note: str
    parameters_source: str
    agreeing_sources: int
    differing_sources: int
    layer_states: list[dict[str, Any]]
    layers: list[LayerAnswer]
    draft_layers: int
    kv_dtype: str | None
    contexts: list[ContextAnswer]
    weights: WeightsAnswer | None = Field(description="As the config's shapes amount to.")
    formula: str
    assumptions: list[NoteAnswer]
    notes: list[NoteAnswer]
    config: dict[str, Any]


def summary(row: Mapping[str, Any]) -> ModelSummary:
    """Return one line of the catalogue from its row in the index."""
    return ModelSummary(**{key: row[key] for key in ModelSummary.model_fields if key in row})


def size_of(row: Mapping[str, Any]) -> int | None:
    """Return how many parameters an entry has: as listed, else as counted from its config."""
    size: int | None = row["parameters"] or row.get("counted_parameters")
    return size


def matching(
    q: str = "",
    *,
    family: str = "",
    kind: str = "",
    readable: bool | None = None,
    min_parameters: int = 0,
    max_parameters: int | None = None,
) -> list[Mapping[str, Any]]:
    """Return the rows of the index that contain every word of `q` and pass the filters.

    With a bound on parameters an entry of unknown size does not pass.
    """
    words = q.casefold().split()
    bounded = min_parameters > 0 or max_parameters is not None
    high = MAX_PARAMETERS if max_parameters is None else max_parameters
    return [
        row
        for row in models.index().values()
        if all(word in row["id"].casefold() or word in row["model_type"] for word in words)
        and (not family or family in (row["model_type"], row.get("family")))
        and (not kind or kind in row.get("kinds", ()))
        and (readable is None or row["readable"] == readable)
        and (not bounded or min_parameters <= (size_of(row) or -1) <= high)
    ]


def in_order(
    rows: list[Mapping[str, Any]], sort: SortKey, *, descending: bool = False
) -> list[Mapping[str, Any]]:
    """Return rows sorted by one of their figures; those that lack it come last."""
    if sort == "id":
        return sorted(rows, key=lambda row: row["id"].casefold(), reverse=descending)
    known = [(_figure(row, sort), row) for row in rows]
    have = sorted(
        ((value, row) for value, row in known if value is not None),
        key=lambda pair: pair[0],
        reverse=descending,
    )
    return [row for _, row in have] + [row for value, row in known if value is None]


def _figure(row: Mapping[str, Any], sort: SortKey) -> int | None:
    value: int | None = size_of(row) if sort == "parameters" else row.get(sort)
    return value


class ModelsRequest(BaseModel):
    """Which entries of the catalogue are asked for, in which order."""

    q: str = Field(default="", max_length=200, description="Words of the id.")
    family: str = Field(default="", max_length=100, description="A model type.")
    kind: Kind | None = Field(default=None, description="A kind of state that occurs.")
    readable: bool | None = None
    min_parameters: int = Field(default=0, ge=0, le=MAX_PARAMETERS)
    max_parameters: int | None = Field(default=None, ge=0, le=MAX_PARAMETERS)
    sort: SortKey = "id"
    descending: bool = False
    offset: int = Field(default=0, ge=0, le=1_000_000)
    limit: int = Field(default=100, ge=1, le=1000)


def answer_models(asked: ModelsRequest) -> ModelList:
    """Return a page of the entries that pass the filters."""
    rows = matching(
        asked.q,
        family=asked.family,
        kind=asked.kind or "",
        readable=asked.readable,
        min_parameters=asked.min_parameters,
        max_parameters=asked.max_parameters,
    )
    found = in_order(rows, asked.sort, descending=asked.descending)
    page = found[asked.offset : asked.offset + asked.limit]
    return ModelList(total=len(found), offset=asked.offset, models=[summary(row) for row in page])


@router.get("/models", summary="The bundled models", responses={422: REFUSED[422]})
async def list_models(asked: Annotated[ModelsRequest, Query()]) -> ModelList:
    """Return a page of the catalogue, in the order of ids unless asked for another."""
    return answer_models(asked)


def model_answer(
    model_id: str, kv_dtype: str = "bf16", encoder_tokens: int | None = None
) -> ModelAnswer:
    """Return one entry.

    Raises:
        Unknown: for an id that the catalogue lacks, or a format that is not known.
        DomainError: for an encoder's length that the model has no use for, or a row that does not
            divide into the format's blocks.

    """
    formats = KvFormats.same(dtype_named(kv_dtype, field="kv_dtype"))
    entry = models.entry(model_id)
    shared = {
        "source": SourceAnswer(**entry["source"]),
        "note": entry["note"],
        "parameters_source": entry["parameters_source"],
        "agreeing_sources": entry["agreeing_sources"],
        "differing_sources": entry["differing_sources"],
        "config": entry["config"],
    }
    line = summary(models.summary_of(entry))
    if not line.readable:
        return ModelAnswer(
            summary=line,
            layer_states=[],
            layers=[],
            draft_layers=0,
            kv_dtype=None,
            contexts=[],
            weights=weights_of_config(entry["config"])[0],
            formula="",
            assumptions=[],
            notes=[],
            **shared,
        )
    reading = models.read_entry(entry["id"], encoder_tokens=encoder_tokens)
    return ModelAnswer(
        summary=line,
        layer_states=layer_state_rows(reading.state),
        layers=layer_answers(reading.state, formats),
        draft_layers=len(reading.draft_layers),
        kv_dtype=kv_dtype_name(formats),
        contexts=contexts_answer(reading.state, formats),
        weights=weights_of_config(entry["config"])[0],
        formula=shape_of(reading.state, formats).workings["bytes_per_token"].numbers,
        assumptions=notes_answer(reading.assumptions),
        notes=notes_answer(reading.notes),
        **shared,
    )


@router.get(
    "/models/{model_id:path}",
    summary="One bundled model",
    response_model=ModelAnswer,
    responses={
        404: {"model": Problems, "description": "Not in the catalogue."},
        422: REFUSED[422],
    },
)
async def get_model(
    model_id: Annotated[str, Path(max_length=200)],
    kv_dtype: Annotated[str, Query(max_length=40, description="Of keys and values.")] = "bf16",
    encoder_tokens: Annotated[
        int | None, Query(ge=0, le=MAX_TOKENS, description="Length of the encoder's side.")
    ] = None,
) -> ModelAnswer | Response:
    """Return one entry: its source, what each layer keeps, and what was assumed."""
    try:
        return model_answer(model_id, kv_dtype, encoder_tokens)
    except DomainError as error:
        missing = isinstance(error, Unknown) and error.field[-1:] == ("id",)
        where = "path" if missing else "query"
        status = 404 if missing else 422
        return JSONResponse(problem_of(error, where).model_dump(), status_code=status)
