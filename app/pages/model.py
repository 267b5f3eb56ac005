"""`/models/{id}`: one entry of the catalogue, its layers and tensors drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.api.catalogue import ModelSummary, model_answer, size_of, summary
from app.api.model_shapes import WeightsAnswer, weights_of_config
from app.catalog import models
from app.domain.dtypes import dtype_named
from app.domain.errors import DomainError, Unknown
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.per_token import omissions
from app.pages.model_form import format_names, integer
from app.pages.page_parts import answer_page, command, curl_get, json_download
from app.pages.problems import Problems, problems_of
from app.pages.render import render, wants_fragment
from app.web.language import language_of

if TYPE_CHECKING:
    from app.pages.model_view import ModelView

router = APIRouter(include_in_schema=False)

LONGEST_ID = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """Everything that the template of one entry may name."""

    problems: Problems
    query: str
    id: str
    summary: ModelSummary
    size: int | None
    source_what: str
    source_url: str
    note: str
    parameters_source: str
    agreeing_sources: int
    differing_sources: int
    kv: str
    encoder_tokens: str
    has_encoder: bool
    formats: list[str]
    view: ModelView | None
    weights: WeightsAnswer | None
    assumptions: tuple[Note, ...]
    notes: tuple[Note, ...]
    not_counted: tuple[Note, ...]
    address: str
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPage:
    """An id that the catalogue lacks, and those that are near."""

    problems: Problems
    id: str
    near: tuple[str, ...]


def model_page(model_id: str, query: Mapping[str, str], language: str) -> ModelPage:
    """Return one entry's page; raises Unknown for an id that the catalogue lacks."""
    from app.pages.model_view import model_view

    entry = models.entry(model_id)
    row = models.index()[entry["id"]]
    kv, encoder = query.get("kv", "bf16").strip(), query.get("encoder_tokens", "").strip()
    problems: dict[str, Note] = {}
    view = None
    has_encoder = bool(encoder)
    assumptions: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    not_counted: tuple[Note, ...] = ()
    try:
        formats = KvFormats.same(dtype_named(kv, field="kv"))
        tokens = integer("encoder_tokens", encoder) if encoder else None
        if row["readable"] or tokens is not None:
            reading = models.read_entry(entry["id"], encoder_tokens=tokens)
            view = model_view(reading, formats, language, name=entry["id"])
            assumptions, notes = reading.assumptions, reading.notes
            not_counted = omissions(formats)
            has_encoder = has_encoder or "cross_attention" in reading.state.kinds
    except DomainError as error:
        problems |= problems_of(error, ("kv", "encoder_tokens"), "kv")
    has_encoder = has_encoder or row.get("field") == "encoder_tokens"
    kept = [("kv", kv)] if kv != "bf16" else []
    kept += [("encoder_tokens", encoder)] if encoder else []
    return ModelPage(
        problems=problems,
        query=urlencode(kept),
        id=entry["id"],
        summary=summary(row),
        size=size_of(row),
        source_what=entry["source"]["what"],
        source_url=entry["source"]["url"],
        note=entry["note"],
        parameters_source=entry["parameters_source"],
        agreeing_sources=entry["agreeing_sources"],
        differing_sources=entry["differing_sources"],
        kv=kv,
        encoder_tokens=encoder,
        has_encoder=has_encoder,
        formats=format_names(),
        view=view,
        weights=weights_of_config(entry["config"])[0],
        assumptions=assumptions,
        notes=notes,
        not_counted=not_counted,
        address=f"/models/{quote(entry['id'])}",
        curl=curl_get(
            f"models/{quote(entry['id'])}",
            urlencode([({"kv": "kv_dtype"}.get(name, name), text) for name, text in kept]),
        ),
        command=command("per-token", model=entry["id"], kv_dtype=kv),
    )


def near_ids(model_id: str, limit: int = 8) -> tuple[str, ...]:
    """Return ids that hold the words of one that is not there."""
    words = [word for word in model_id.casefold().replace("/", " ").split() if word]
    found = [
        known
        for known in models.model_ids()
        if words and all(word in known.casefold() for word in words[-1:])
    ]
    return tuple(found[:limit])


@router.get("/export/model.json", response_model=None)
async def export_model(request: Request) -> Response:
    """Answer the API's own answer for one entry, as a download."""
    query = request.query_params
    encoder = query.get("encoder_tokens", "").strip()
    try:
        tokens = integer("encoder_tokens", encoder) if encoder else None
        answer = model_answer(query.get("id", "")[:LONGEST_ID], query.get("kv", "bf16"), tokens)
    except DomainError as error:
        page = MissingPage(problems=problems_of(error, ("id",), "id"), id="", near=())
        return render(request, "model_missing.html", page, status=422)
    return json_download("model.json", answer)


@router.get("/models/{model_id:path}", response_class=HTMLResponse)
async def show_model(request: Request, model_id: str) -> HTMLResponse:
    """Answer one entry's page; for an unknown id, those that are near it."""
    try:
        page = model_page(model_id[:LONGEST_ID], request.query_params, language_of(request))
    except Unknown as error:
        near = near_ids(model_id[:LONGEST_ID])
        missing = MissingPage(
            problems=problems_of(error, ("id",), "id"), id=model_id[:LONGEST_ID], near=near
        )
        return render(request, "model_missing.html", missing, status=404)
    if not wants_fragment(request):
        return render(request, "model.html", page, status=422 if page.problems else 200)
    return answer_page(request, "model.html", page, page.address)
