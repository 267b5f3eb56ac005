"""`/explain`: a start-up log, pasted or dropped, figure by figure against the engine's own rules.

The log never goes into an address, and nothing of it is kept once the answer is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from app.api.engines_schemas import (
    MAX_LOG_CHARACTERS,
    MAX_WANTED_REQUESTS,
    MAX_WANTED_TOKENS,
    ExplainRequest,
)
from app.api.explain import NOT_COUNTED, compute_explain
from app.api.model_input import pasted_model
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.pages import page_parts
from app.pages.model_form import offered_models, parsed_config
from app.pages.problems import Problems, problems_of
from app.pages.render import wants_fragment
from app.readers.one_length import parse_length

if TYPE_CHECKING:
    from app.pages.example_logs import ExampleLog
    from app.pages.explain_view import ExplainView

router = APIRouter(include_in_schema=False)

# Characters of three bytes fill the bound of a log's characters.
_MOST_BYTES = 3 * MAX_LOG_CHARACTERS
_FIELDS = ("model", "config", "engine", "settings", "want_context", "want_concurrency")
# A field of the request has another name in the form.
_FORM_NAMES = {"want_context_tokens": "want_context"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainPage:
    """Everything that the template of `/explain` may name."""

    log: str
    fields: Mapping[str, str]
    problems: Problems
    view: ExplainView | None
    engines: Mapping[str, str]
    offered: list[str]
    examples: Mapping[str, ExampleLog]
    example: str
    not_counted: tuple[Note, ...]
    query: str


def explain_page(query: Mapping[str, str], log: str, *, is_fragment: bool = False) -> ExplainPage:
    """Return the page's context; without a log, what the fields hold and no answer."""
    from app.pages.example_logs import EXAMPLE_LOGS
    from app.pages.explain_view import ENGINE_TITLES, explain_view

    fields = _fields(query)
    example = next((key for key, item in EXAMPLE_LOGS.items() if _same(item.log, log)), "")
    problems: dict[str, Note] = {}
    view: ExplainView | None = None
    if log.strip():
        try:
            body = _body(fields, log)
            found = compute_explain(ExplainRequest.model_validate(body))
            chosen = fields["model"] if is_fragment and query.get("candidate") else ""
            view = explain_view(found, body, fields, chosen)
        except (DomainError, ValidationError) as error:
            problems |= _problems(error)
    kept = [("example", example)] if example else []
    return ExplainPage(
        log=log,
        fields=fields,
        problems=problems,
        view=view,
        engines=ENGINE_TITLES,
        offered=offered_models(),
        examples=EXAMPLE_LOGS,
        example=example,
        not_counted=NOT_COUNTED,
        query=urlencode(
            [*kept, *((name, text) for name, text in fields.items() if text and name != "config")]
        ),
    )


def _same(one: str, other: str) -> bool:
    return one.split() == other[: 4 * len(one)].split()


def _fields(query: Mapping[str, str]) -> dict[str, str]:
    """Return every field's text; a candidate that was chosen is the model."""
    fields = {name: query.get(name, "").strip() for name in _FIELDS}
    if query.get("candidate"):
        fields |= {"model": query["candidate"].strip(), "config": ""}
    return fields


def _body(fields: Mapping[str, str], log: str) -> dict[str, Any]:
    """Return the request as the API takes it.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    from app.readers.settings_text import parse_settings

    body: dict[str, Any] = {"log": log}
    if fields["config"]:
        body["model"] = pasted_model(parsed_config(fields["config"]))
    elif fields["model"]:
        body["model"] = {"id": fields["model"]}
    if fields["settings"]:
        body["settings"] = parse_settings(fields["settings"])
    if fields["engine"]:
        body["engine"] = fields["engine"]
    if fields["want_context"]:
        body["want_context_tokens"] = parse_length(
            fields["want_context"], field="want_context", high=MAX_WANTED_TOKENS
        )
    if fields["want_concurrency"]:
        body["want_concurrency"] = parse_length(
            fields["want_concurrency"], field="want_concurrency", high=MAX_WANTED_REQUESTS
        )
    return body


def _problems(error: DomainError | ValidationError) -> Problems:
    found = problems_of(error, ("log", *_FIELDS, *_FORM_NAMES), "model")
    named = {}
    for field, note in found.items():
        own = _FORM_NAMES.get(field, field)
        # Inside a pasted file the sentence names the file's own field already.
        said = note.params.get("field", field)
        name: object = own if said == field else said
        if isinstance(error, DomainError) and own == "settings":
            name = error.field[-1]  # the field of the form holds many settings
        named[own] = Note(note.code, note.template, {**note.params, "field": name})
    return named


@router.get("/explain", response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the form, with an example's figures where the address names one."""
    from app.pages.example_logs import EXAMPLE_LOGS

    query = dict(request.query_params)
    example = EXAMPLE_LOGS.get(query.get("example", ""))
    log = ""
    if example is not None:
        log = example.log
        own = {name: getattr(example, name) for name in _FIELDS if hasattr(example, name)}
        # What the address says besides goes before what the example comes with.
        query = {**own, **{name: text for name, text in query.items() if text}}
    page = await run_in_threadpool(explain_page, query, log)
    return page_parts.answer_page(request, "explain.html", page, "/explain")


@router.post("/explain", response_class=HTMLResponse)
async def explain(request: Request) -> HTMLResponse:
    """Answer a log that was pasted, or a file in its place."""
    async with request.form(max_files=1, max_part_size=_MOST_BYTES) as form:
        query = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        log = query.pop("log", "")
        file = form.get("file")
        if isinstance(file, UploadFile) and file.filename:
            log = (await file.read(_MOST_BYTES)).decode("utf-8", "replace")
    page = await run_in_threadpool(
        explain_page, query, log, is_fragment=wants_fragment(request)
    )  # fmt: skip
    return page_parts.answer_page(request, "explain.html", page, "/explain")
