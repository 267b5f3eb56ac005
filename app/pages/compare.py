"""`/compare`: two to six calculations side by side, and one of them swept over many values."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel, ValidationError

from app.api.compare import (
    FEWEST,
    MOST,
    ComparedRow,
    CompareRequest,
    answer_compare,
    compare_rows,
    compute_compare,
    model_name,
)
from app.api.fit import command_of
from app.api.fit_schemas import FitRequest
from app.api.sweep import MAX_POINTS, SweepPoint, SweepRequest, answer_sweep, in_turns, points_of
from app.domain.errors import DomainError, OutOfRange, WrongType, shown
from app.domain.fit import LINE_LABELS
from app.domain.notes import Note
from app.pages import page_parts, tables
from app.pages.fit_form import FORM_FIELDS, request_of
from app.pages.problems import Path, Problems, problems_of
from app.pages.render import LONGEST_QUERY, number_text, render
from app.pages.streams import Line, stream, wants_stream
from app.pages.sweep_view import (
    FIELD_OF,
    SWEPT,
    Sample,
    SweepView,
    sweep_request,
    sweep_view,
)
from app.web.language import language_of, translations
from app.web.marks import mark

router = APIRouter(include_in_schema=False)

SLOTS = tuple(f"c{index}" for index in range(1, MOST + 1))
TEMPLATE = "compare.html"
ADDRESS = "/compare"
LONGEST_CALCULATION = 4000
# How often the page is told how far a sweep is.
TELL_SECONDS = 0.2
_KNOWN_FIELDS = frozenset(FORM_FIELDS) | {"kv"}
_LLAMA = "model=meta-llama/Llama-3.1-70B&kv=bf16&tensor_parallel=4&context_tokens=32768"
_GPT_OSS = (
    "model=openai/gpt-oss-120b&kv=bf16&device=h100-sxm-80&context_tokens=131072&concurrency=1"
    "&engine=vllm&engine_version=0.11.0&measured_weights=65.97 GiB"
)
_DEFAULTS = {
    "c1": f"{_LLAMA}&device=h100-sxm-80",
    "c2": f"{_LLAMA}&device=h200-141",
    "contexts": "1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A comparison that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"c1": "model=deepseek-ai/DeepSeek-V3&kv=bf16&tensor_parallel=8&"
                               "device=h200-141",
                         "c2": "model=deepseek-ai/DeepSeek-V3&kv=bf16&tensor_parallel=8&"
                               "decode_context_parallel=8&device=h200-141"}),
        text=Note("", "DeepSeek V3 on eight ranks, with and without context parallelism"),
    ),
    Example(
        query=urlencode({"c1": "model=meta-llama/Llama-3.1-8B&kv=bf16&device=rtx-4090",
                         "c2": "model=meta-llama/Llama-3.1-8B&kv=fp8&device=rtx-4090",
                         "c3": "model=meta-llama/Llama-3.1-8B&kv=bf16&device=rtx-4090&weights=fp8",
                         "kv_dtypes": "bf16, fp8"}),
        text=Note("", "A 24 GB card: a narrower cache, or narrower weights?"),
    ),
    Example(
        query=urlencode({"c1": f"{_GPT_OSS}&utilisation=0.9&state=-2.14 GiB",
                         "c2": f"{_GPT_OSS}&utilisation=0.95&batch_tokens=1024&state=1.71 GiB",
                         "contexts": "1k, 8k, 32k, 128k"}),
        text=Note("", "gpt-oss-120b on one 80 GB device: 2.14 GiB are lacking, or 1.71 GiB left"),
    ),
    Example(
        query=urlencode({"c1": _DEFAULTS["c1"], "c2": _DEFAULTS["c2"],
                         "devices": "a100-sxm-80, h100-sxm-80, h200-141"}),
        text=Note("", "Llama 3.1 70B on three devices against the length of the context"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One calculation of the comparison."""

    slot: str
    name: str
    query: str
    engine_command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """An answer, as the page shows it."""

    columns: tuple[Column, ...]
    rows: tuple[ComparedRow, ...]
    swept: SweepRequest
    sweep: SweepView
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage:
    """Everything that the template of `/compare` may name.

    `at_once`: a sweep of many points starts when the page opens, as its address says.
    """

    slots: tuple[tuple[str, str], ...]
    fields: Mapping[str, str]
    problems: Problems
    view: CompareView | None
    line_labels: Mapping[str, Note]
    limit: int
    workbooks: bool
    at_once: bool
    examples: tuple[Example, ...]
    query: str


def compare_page(query: Mapping[str, str], language: str) -> ComparePage:
    """Return the page's context for a query string; mistakes become sentences."""
    typed = _typed(query)
    problems: Problems = {}
    view: CompareView | None = None
    try:
        view = _view(typed, language)
    except (DomainError, ValidationError) as error:
        problems = _problems(error)
    return ComparePage(
        slots=tuple((slot, typed[slot]) for slot in SLOTS),
        fields=typed,
        problems=problems,
        view=view,
        line_labels=LINE_LABELS,
        limit=MAX_POINTS,
        workbooks=tables.has_workbooks(),
        at_once=query.get("all") == "1",
        examples=EXAMPLES,
        query=urlencode([(name, text) for name, text in typed.items() if text]),
    )


def _problems(error: DomainError | ValidationError) -> Problems:
    def place(path: Path) -> Path:
        return [FIELD_OF.get(part, part) if isinstance(part, str) else part for part in path]

    return problems_of(error, (*SLOTS, *SWEPT), "c1", place=place)


def _typed(query: Mapping[str, str]) -> dict[str, str]:
    """Return every field's text; the first example where nothing is given."""
    defaults = {} if any(query.get(slot) for slot in SLOTS) else _DEFAULTS
    texts = {name: query.get(name, defaults.get(name, "")) for name in (*SLOTS, *SWEPT)}
    # Control characters mean nothing here and are not repeated.
    return {
        name: "".join(char for char in text if char.isprintable() or char.isspace()).strip()
        for name, text in texts.items()
    }


def _query_of(slot: str, text: str) -> dict[str, str]:
    """Return the fields of an address of /fit, or of its query alone.

    Raises:
        WrongType: for another page's address, or a text that names no field of /fit.

    """
    address, sign, query = text.rpartition("?")
    own = dict(parse_qsl(query, keep_blank_values=True))
    is_fit = not sign or urlsplit(address).path.rstrip("/").endswith("/fit")
    if not is_fit or not _KNOWN_FIELDS.intersection(own):
        raise WrongType("{field} must be an address of /fit or its query, such as "
                        "model=…&device=…, got {value}", field=slot, value=shown(text))  # fmt: skip
    return own


def _requests(typed: Mapping[str, str]) -> list[tuple[str, FitRequest, dict[str, Any]]]:
    """Return the calculations that are given, by slot."""
    found = []
    for slot in SLOTS:
        text = typed[slot]
        if not text:
            continue
        if len(text) > LONGEST_CALCULATION:
            raise OutOfRange("{field} must be at most {high} characters", field=slot,
                             high=LONGEST_CALCULATION)  # fmt: skip
        own = _query_of(slot, text)
        try:
            request, body = request_of(own)
        except DomainError as error:
            raise error.under(slot) from None
        except ValidationError as error:
            note = next(iter(problems_of(error, FORM_FIELDS, "model").values()))
            raise OutOfRange("{field}: {why}", field=slot, why=note.text) from None
        found.append((slot, request, body))
    if len(found) < FEWEST:
        raise OutOfRange("{field} is missing: a comparison needs two calculations",
                         field=SLOTS[len(found)])  # fmt: skip
    return found


def _view(typed: Mapping[str, str], language: str) -> CompareView:
    given = _requests(typed)
    try:
        computed = compute_compare([request for _, request, _ in given])
    except DomainError as error:
        # The field's path begins with the place of the calculation: name its slot instead.
        place = next(part for part in error.field if isinstance(part, int))
        raise OutOfRange("{field}: {why}", field=given[place][0], why=str(error)) from None
    swept = sweep_request(typed, given[0][1])
    bodies = [body for _, _, body in given]
    return CompareView(
        columns=tuple(
            Column(
                slot=slot.removeprefix("c"),
                name=model_name(request),
                query=typed[slot].rpartition("?")[2],
                engine_command=command_of(request, parts),
            )
            for (slot, request, _), (_, parts) in zip(given, computed, strict=True)
        ),
        rows=tuple(compare_rows(computed)),
        swept=swept,
        sweep=sweep_view(swept, language),
        curl=page_parts.curl("compare", {"calculations": bodies}),
        command=page_parts.command("compare", *(typed[slot] for slot, _, _ in given)),
    )


# A `def` handler: a sweep of thousands of points must not hold the loop.
@router.api_route("/compare", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: page_parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = compare_page(query, language_of(request))
    return page_parts.answer_page(request, TEMPLATE, page, ADDRESS)


@router.post("/compare/sweep", response_model=None)
async def sweep_all(request: Request, query: page_parts.Asked) -> Response:
    """Answer a sweep of any number of points to the page's script, with progress.

    Without the script there is no progress to show: the page says how many points it holds.
    """
    language = language_of(request)
    page = await run_in_threadpool(compare_page, query, language)
    if wants_stream(request):
        return stream(_lines(request, page, language))
    fits = len(page.query) <= LONGEST_QUERY
    return RedirectResponse(f"{ADDRESS}?{page.query}" if fits else ADDRESS, status_code=303)


async def _lines(request: Request, page: ComparePage, language: str) -> AsyncGenerator[Line]:
    """Yield how far the sweep is, then its chart and table, or what is wrong with it."""
    if page.view is None:
        yield _put(request, "hints", page)
        return
    say = translations(language).gettext
    sample = Sample(page.view.swept)
    told_at = 0.0
    async for chunk in in_turns(sample.taken(points_of(page.view.swept))):
        if time.monotonic() - told_at > TELL_SECONDS:
            told_at = time.monotonic()
            yield {
                "done": chunk[-1],
                "total": sample.total,
                "text": say(mark("{done} of {total} points")).format(
                    done=number_text(chunk[-1]), total=number_text(sample.total)
                ),
            }
    done = replace(page, view=replace(page.view, sweep=sample.view(language)))
    line = _put(request, "sweep", done)
    if len(page.query) <= LONGEST_QUERY:
        line["address"] = f"{ADDRESS}?{page.query}&all=1"
    yield line


def _put(request: Request, block: str, page: ComparePage) -> dict[str, Any]:
    html = bytes(render(request, TEMPLATE, page, fragment=block).body).decode()
    return {"put": block, "html": html}


Table = tuple[list[str], list[list[object]]]
Download = Callable[[str, Sequence[object], Sequence[Sequence[object]]], Response]
_DOWNLOADS: dict[str, Download] = {
    "csv": lambda name, header, rows: page_parts.csv_download(name, [str(h) for h in header], rows),
    "md": tables.markdown_download,
    "xlsx": tables.workbook_download,
}


@router.get("/export/compare.{kind}", response_model=None)
def export_compare(request: Request, kind: str) -> Response:
    """Answer the comparison as JSON, CSV, Markdown or a workbook."""

    def table() -> tuple[Table, BaseModel]:
        given = _requests(_typed(request.query_params))
        asked = CompareRequest(calculations=[own for _, own, _ in given])
        answer = answer_compare(asked)
        header = ["", *(f"{slot.removeprefix('c')}: {model_name(own)}" for slot, own, _ in given),
                  "differs"]  # fmt: skip
        rows: list[list[object]] = [
            [row.name, *row.values, "yes" if row.differs else ""] for row in answer.rows
        ]
        return (header, rows), answer

    return _export("compare", kind, table)


@router.get("/export/sweep.{kind}", response_model=None)
def export_sweep(request: Request, kind: str) -> Response:
    """Answer the sweep as JSON, Markdown or a workbook, or as CSV of any number of points."""
    header = list(SweepPoint.model_fields)

    def table() -> tuple[Table, BaseModel]:
        answer = answer_sweep(_swept(request.query_params))
        rows = [[getattr(point, name) for name in header] for point in answer.points]
        return (header, rows), answer

    if kind != "csv":
        return _export("sweep", kind, table)
    try:
        asked = _swept(request.query_params)
    except (DomainError, ValidationError) as error:
        return page_parts.refused(_problems(error))
    return StreamingResponse(
        _csv_parts(header, asked),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="sweep.csv"'},
    )


def _swept(query: Mapping[str, str]) -> SweepRequest:
    typed = _typed(query)
    return sweep_request(typed, _requests(typed)[0][1])


async def _csv_parts(header: Sequence[str], asked: SweepRequest) -> AsyncGenerator[str]:
    yield page_parts.csv_text(header, ())
    rows = (
        page_parts.csv_rows([[getattr(point, name) for name in header]])
        for point in points_of(asked)
    )
    async for chunk in in_turns(rows):
        yield "".join(chunk)


def _export(name: str, kind: str, table: Callable[[], tuple[Table, BaseModel]]) -> Response:
    try:
        if kind != "json" and kind not in _DOWNLOADS:
            raise OutOfRange("{field} must be json, csv, md or xlsx", field="format")
        (header, rows), answer = table()
        if kind == "json":
            return page_parts.json_download(f"{name}.json", answer)
        return _DOWNLOADS[kind](f"{name}.{kind}", header, rows)
    except (DomainError, ValidationError) as error:
        return page_parts.refused(_problems(error))
