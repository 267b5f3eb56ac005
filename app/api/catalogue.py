"""`/models` and `/models/{id}`: the catalogue, with the source of each entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from app.api.answers import Answer, LayerAnswer, NoteAnswer, layer_answers, notes_answer
from app.api.problems import REFUSED, Problems, problem_of
from app.api.state_rows import layer_state_rows
from app.catalog import models
from app.domain.dtypes import dtype_named
from app.domain.errors import Unknown
from app.domain.formats import KvFormats
from app.domain.per_token import shape_of

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


class ModelSummary(Answer):
    """One line of the catalogue; figures are at 16 bits an element."""

    id: str
    model_type: str
    parameters: int | None
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
    formula: str
    assumptions: list[NoteAnswer]
    notes: list[NoteAnswer]
    config: dict[str, Any]


def summary(row: Mapping[str, Any]) -> ModelSummary:
    """Return one line of the catalogue from its row in the index."""
    return ModelSummary(**{key: row[key] for key in ModelSummary.model_fields if key in row})


def matching(
    q: str = "", *, family: str = "", kind: str = "", readable: bool | None = None
) -> list[Mapping[str, Any]]:
    """Return the rows of the index that contain every word of `q` and pass the filters."""
    words = q.casefold().split()
    return [
        row
        for row in models.index().values()
        if all(word in row["id"].casefold() or word in row["model_type"] for word in words)
        and (not family or family in (row["model_type"], row.get("family")))
        and (not kind or kind in row.get("kinds", ()))
        and (readable is None or row["readable"] == readable)
    ]


@router.get("/models", summary="The bundled models", responses={422: REFUSED[422]})
async def list_models(
    *,
    q: Annotated[str, Query(max_length=200, description="Words of the id.")] = "",
    family: Annotated[str, Query(max_length=100)] = "",
    kind: Annotated[Kind | None, Query(description="A kind of state that occurs.")] = None,
    readable: bool | None = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ModelList:
    """Return a page of the catalogue, in the order of ids."""
    found = matching(q, family=family, kind=kind or "", readable=readable)
    page = found[offset : offset + limit]
    return ModelList(total=len(found), offset=offset, models=[summary(row) for row in page])


def model_answer(model_id: str) -> ModelAnswer:
    """Return one entry; raises Unknown for an id that the catalogue lacks."""
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
            formula="",
            assumptions=[],
            notes=[],
            **shared,
        )
    reading = models.read_entry(entry["id"])
    formats = KvFormats.same(dtype_named("bf16"))
    return ModelAnswer(
        summary=line,
        layer_states=layer_state_rows(reading.state),
        layers=layer_answers(reading.state, formats),
        draft_layers=len(reading.draft_layers),
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
async def get_model(model_id: Annotated[str, Path(max_length=200)]) -> ModelAnswer | Response:
    """Return one entry: its source, what each layer keeps at 16 bits, what was assumed."""
    try:
        return model_answer(model_id)
    except Unknown as error:
        return JSONResponse(problem_of(error, "path").model_dump(), status_code=404)
