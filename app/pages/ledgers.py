"""`/`: the three ledgers of a set of requests. The address is the calculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from app.api import schemas as s
from app.api.answers import ledgers_answer
from app.api.compute import ModelAndFormats, compute_ledgers
from app.domain.errors import DomainError, Missing, OutOfRange
from app.domain.ledgers import Ledgers, RequestRow
from app.domain.notes import Note
from app.pages import figures
from app.pages import page_parts as parts
from app.pages.model_form import (
    ModelForm,
    format_names,
    integer,
    model_body,
    model_form,
    model_query,
    offered_models,
)
from app.pages.problems import Problems, problems_of
from app.pages.render import LONGEST_QUERY, render
from app.readers.lengths import MAX_FILE_BYTES, ParsedLengths, parse_lengths, read_lengths_file
from app.web.language import language_of, translations

router = APIRouter(include_in_schema=False)

EXAMPLE_LENGTHS = "17, 31, 32"
ROWS_SHOWN = 25
BARS_SHOWN = 60
MAX_EXPORTED_ROWS = 1_000_000
_FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config",
    "kv_dtype", "lengths", "block_size",
)  # fmt: skip


_QUERY_FIELDS = frozenset(
    {"source", "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv", "v",
     "lengths", "block_size", "offset", "lang", "file"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A calculation that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "lengths": "1024, 3072"}),
        text=Note("", "Two requests of 1024 and 3072: padding adds a half"),
    ),
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "lengths": "500×2048, 20×32k"}),
        text=Note("", "500 short requests and 20 long ones"),
    ),
    Example(
        query=urlencode(
            {"source": "numbers", "layers": 32, "kv_heads": 32, "head_dim": 128,
             "lengths": "64×4096"}
        ),
        text=Note("", "Batch 64 of 4096 with 32 KV heads: 128 GiB, sixteen times batch 4"),
    ),
    Example(
        query=urlencode({"model": "google/gemma-3-27b-it", "lengths": "128k", "kv": "bf16"}),
        text=Note("", "Sliding windows: one request of 128k on Gemma 3 27B"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersView:
    """An answer, as the page shows it."""

    given: ModelAndFormats
    answer: Ledgers
    rows: list[RequestRow]
    offset: int
    next_offset: int | None
    previous_offset: int | None
    chart: figures.Figure
    requests_chart: figures.Figure
    model_line: str
    misleading: Note | None
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersPage:
    """Everything that the template of `/` may name."""

    form: ModelForm
    lengths: str
    block_size: str
    problems: Problems
    parsed: ParsedLengths | None
    view: LedgersView | None
    offered: list[str]
    formats: list[str]
    examples: tuple[Example, ...]
    query: str
    notes: tuple[Note, ...]
    suggestions: list[str]


def ledgers_page(query: Mapping[str, str], language: str) -> LedgersPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    form = model_form(query)
    lengths = query.get("lengths", EXAMPLE_LENGTHS)
    block_size = query.get("block_size", "16").strip()
    problems: dict[str, Note] = {}
    parsed: ParsedLengths | None = None
    view: LedgersView | None = None
    try:
        parsed = parse_lengths(lengths)
    except DomainError as error:
        problems |= problems_of(error, _FORM_FIELDS, "lengths")
    try:
        body = _body(form, block_size, parsed, query.get("offset", "0"))
        request = s.LedgersRequest.model_validate(body)
        if not problems:
            view = _view(request, body, language)
    except (DomainError, ValidationError) as error:
        otherwise = "config" if form.source == "config" else "model"
        problems |= problems_of(error, _FORM_FIELDS, otherwise)
    canonical = _canonical(form, lengths, block_size)
    unread = sorted(set(query) - _QUERY_FIELDS)
    notes = [Note("unread", "Not a field of this page, so not read: {names}",
                  {"names": ", ".join(unread)[:200]})] if unread else []  # fmt: skip
    wanted = form.source == "catalogue" and "model" in problems
    return LedgersPage(
        form=form,
        lengths=lengths,
        block_size=block_size,
        problems=problems,
        parsed=parsed,
        view=view,
        offered=offered_models(),
        formats=format_names(),
        examples=EXAMPLES,
        query=canonical,
        notes=tuple(notes),
        suggestions=offered_models(form.model, limit=5) if wanted else [],
    )


def _body(
    form: ModelForm, block_size: str, parsed: ParsedLengths | None, offset: str
) -> dict[str, Any]:
    body = model_body(form)
    body["block_size"] = integer("block_size", block_size)
    runs = parsed.runs if parsed else ()
    if all(count == 1 for _, count in runs):
        body["lengths"] = [length for length, _ in runs]
    else:
        body["lengths"] = [{"length": length, "count": count} for length, count in runs]
    body["offset"] = integer("offset", offset or "0")
    body["limit"] = ROWS_SHOWN
    return body


def _canonical(form: ModelForm, lengths: str, block_size: str) -> str:
    kept = [*model_query(form), ("lengths", " ".join(lengths.split()))]
    if block_size != "16":
        kept.append(("block_size", block_size))
    return urlencode(kept)


def _view(request: s.LedgersRequest, body: dict[str, Any], language: str) -> LedgersView:
    given, answer = compute_ledgers(request)
    shown = {key: value for key, value in body.items() if key not in {"offset", "limit"}}
    after = request.offset + ROWS_SHOWN
    return LedgersView(
        given=given,
        answer=answer,
        rows=list(answer.rows(request.offset, ROWS_SHOWN)),
        offset=request.offset,
        next_offset=after if after < answer.lengths.requests else None,
        previous_offset=max(0, request.offset - ROWS_SHOWN) if request.offset else None,
        chart=_ledgers_chart(answer, language),
        requests_chart=_requests_chart(answer, language),
        model_line=parts.model_line(given, language),
        misleading=_misleading(answer),
        curl=parts.curl("ledgers", shown),
        command=_command(shown),
    )


def _misleading(answer: Ledgers) -> Note | None:
    """Return a sentence where counting every position in every layer would mislead."""
    naive = answer.as_if_full_bytes
    if naive <= answer.effective_bytes or not answer.effective_bytes:
        return None
    times = naive * 10 // answer.effective_bytes
    return Note(
        "plain_formula",
        "The plain formula, every layer keeping every position, would say {naive} B: "
        "{times} times what this model keeps.",
        {"naive": f"{naive:,}", "times": f"{times // 10}.{times % 10}"},
    )


def _ledgers_chart(answer: Ledgers, language: str) -> figures.Figure:
    say = translations(language).gettext
    unit, size = figures.unit_of(max(answer.padded_bytes, answer.paged_bytes))
    state = [answer.effective_bytes / size] * 3
    return figures.bars(
        [say("Effective"), say("Padded"), say("Paged")],
        [
            (say("State"), "effective", state, False),
            (say("Padding waste"), "padding", [0, answer.padding_waste_bytes / size, 0], True),
            (say("Paging waste"), "paging", [0, 0, answer.tail_waste_bytes / size], True),
        ],
        y_title=unit,
    )


def _requests_chart(answer: Ledgers, language: str) -> figures.Figure:
    say = translations(language).gettext
    rows = list(answer.rows(0, BARS_SHOWN))
    unit, size = figures.unit_of(max((row.paged_bytes for row in rows), default=0))
    return figures.bars(
        [row.index + 1 for row in rows],
        [
            (say("State"), "effective", [row.effective_bytes / size for row in rows], False),
            (
                say("Paging waste"),
                "paging",
                [(row.paged_bytes - row.effective_bytes) / size for row in rows],
                True,
            ),
        ],
        x_title=say("Request"),
        y_title=unit,
    )


def _command(body: Mapping[str, Any]) -> str:
    runs = [
        f"{item['count']}x{item['length']}" if isinstance(item, dict) else str(item)
        for item in body["lengths"]
    ]
    return parts.command(
        "ledgers",
        **parts.model_options(body),
        lengths=",".join(runs),
        block_size=body["block_size"],
    )


@router.api_route("/", methods=["GET", "POST"], response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = ledgers_page(await parts.asked(request), language_of(request))
    return parts.answer_page(request, "ledgers.html", page, "/")


@router.get("/lengths")
async def lengths_address() -> RedirectResponse:
    """Lead whoever reloads the address of a file's upload back to the page."""
    return RedirectResponse("/", status_code=303)


@router.post("/lengths", response_class=HTMLResponse)
async def lengths_file(request: Request) -> HTMLResponse:
    """Answer the page with the lengths of a dropped file in their field, all else kept."""
    form = await request.form(max_files=1, max_part_size=parts.MAX_FIELD_BYTES)
    query = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile):
            raise Missing("{field} is missing", field="file")
        if (file.size or 0) > MAX_FILE_BYTES:
            raise OutOfRange("{field} must be at most {high} bytes", field="file",
                             high=MAX_FILE_BYTES)  # fmt: skip
        parsed = read_lengths_file(file.filename or "", await file.read())
    except DomainError as error:
        page = ledgers_page(query, language_of(request))
        problems = problems_of(error, ("lengths",), "lengths")
        page = replace(page, problems=problems, view=None)
    else:
        query["lengths"] = ", ".join(
            str(length) if count == 1 else f"{count}×{length}" for length, count in parsed.runs
        )
        page = ledgers_page(query, language_of(request))
        page = replace(page, notes=(*page.notes, *parsed.notes))
    fits = len(page.query) <= LONGEST_QUERY
    headers = {"HX-Push-Url": f"/?{page.query}" if fits and not page.problems else "/"}
    return render(request, "ledgers.html", page, headers=headers)


def _checked(query: Mapping[str, str]) -> s.LedgersRequest:
    form = model_form(query)
    parsed = parse_lengths(query.get("lengths", EXAMPLE_LENGTHS))
    body = _body(form, query.get("block_size", "16").strip(), parsed, "0")
    body["limit"] = s.MAX_PAGE
    return s.LedgersRequest.model_validate(body)


@router.get("/export/ledgers.json", response_model=None)
async def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        given, answer = compute_ledgers(_checked(request.query_params))
    except (DomainError, ValidationError) as error:
        return parts.refused(problems_of(error, _FORM_FIELDS, "model"))
    told = ledgers_answer(given.reading, answer, 0, s.MAX_PAGE, given.assumed)
    return parts.json_download("ledgers.json", told)


@router.get("/export/ledgers.csv", response_model=None)
async def export_csv(request: Request) -> Response:
    """Answer the page's rows as CSV; every cell is a number."""
    try:
        _, answer = compute_ledgers(_checked(request.query_params))
        if answer.lengths.requests > MAX_EXPORTED_ROWS:
            raise OutOfRange(
                "{field}: {value} requests are more than the {high} rows of a file",
                field="lengths",
                value=answer.lengths.requests,
                high=MAX_EXPORTED_ROWS,
            )
    except (DomainError, ValidationError) as error:
        return parts.refused(problems_of(error, _FORM_FIELDS, "model"))
    names = [name for name in RequestRow.__dataclass_fields__ if name != "index"]
    rows = (
        [row.index + 1, *(getattr(row, name) for name in names)]
        for row in answer.rows(0, answer.lengths.requests)
    )
    return parts.csv_download("ledgers.csv", ["request", *names], rows)


@router.get("/models/options", response_class=HTMLResponse)
async def model_options(request: Request) -> HTMLResponse:
    """Answer the ids to offer for what is typed into a model field."""
    typed = request.query_params.get("model", "")[:200]
    page = OptionsPage(offered=offered_models(typed))
    return render(request, "model_fields.html", page, fragment="options")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsPage:
    """The ids offered for what is typed."""

    offered: list[str]
