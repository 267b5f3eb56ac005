"""`/cost`: what a cache saves in work and what it has to be read for, counted and measured."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api.cost import compute_cost, cost_answer
from app.api.cost_schemas import CostRequest
from app.api.lab_runs import BUSY_STATUS, RUN_SECONDS, RUNS, as_they_come, collected, started
from app.catalog.devices import devices
from app.demo.budget import LabBusy, RunStopped
from app.demo.process import LabRun
from app.domain.errors import DomainError, Malformed, shown
from app.domain.notes import Note
from app.pages.model_form import (
    ModelForm,
    format_names,
    integer,
    model_body,
    model_form,
    model_query,
    offered_models,
)
from app.pages.page_parts import (
    answer_page,
    command,
    csv_download,
    curl,
    json_download,
    model_line,
    model_options,
    refused,
)
from app.pages.problems import Problems, problems_of
from app.pages.render import render
from app.pages.streams import Line, stream, wants_stream
from app.readers.amounts import parse_bytes
from app.web.language import language_of, translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.pages.cost_view import CostView, MeasuredView

router = APIRouter(include_in_schema=False)

ADDRESS = "/cost"
TEMPLATE = "cost.html"
SHAPE = ("hidden_size", "query_heads", "intermediate_size", "vocab_size")
LAB_DEVICES = ("auto", "numpy", "cpu", "cuda", "mps")
# Charts are drawn anew as points come, but not so often that nothing is seen.
REDRAW_SECONDS = 0.3

_DEFAULTS = {
    "prompt_tokens": "1024", "output_tokens": "128", "weights": "", "device": "h100-sxm-80",
    "bandwidth": "", "batch": "1", "decode_tokens": "", **dict.fromkeys(SHAPE, ""),
}  # fmt: skip
_FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype", *_DEFAULTS,
    "bandwidth_bytes_per_s",
)  # fmt: skip
_AS_TYPED = {"bandwidth_bytes_per_s": "bandwidth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A calculation that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "prompt_tokens": 1024,
                         "output_tokens": 128}),
        text=Note("", "Llama 3.1 8B, 1024 in and 128 out: a hundredth of the work"),
    ),
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.3-70B-Instruct", "kv": "bf16",
                         "prompt_tokens": 100_000, "output_tokens": 1000, "batch": 8}),
        text=Note("", "Llama 3.3 70B at 100,000 tokens: the state read outgrows the weights"),
    ),
    Example(
        query=urlencode({"model": "deepseek-ai/DeepSeek-V3", "kv": "bf16",
                         "prompt_tokens": 32_768, "output_tokens": 512}),
        text=Note("", "DeepSeek V3: a latent is small to read and dear to attend with"),
    ),
    Example(
        query=urlencode({"model": "google/gemma-3-27b-it", "kv": "bf16",
                         "prompt_tokens": 131_072, "output_tokens": 256}),
        text=Note("", "Gemma 3 27B: windows read no more than they see"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a field."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPage:
    """Everything that the template of `/cost` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    problems: Problems
    view: CostView | None
    model_line: str
    measured: MeasuredView
    lab_devices: tuple[str, ...]
    offered: list[str]
    formats: list[str]
    weight_formats: tuple[str, ...]
    devices: tuple[Choice, ...]
    examples: tuple[Example, ...]
    curl: str
    command: str
    query: str


@lru_cache(maxsize=1)
def device_choices() -> tuple[Choice, ...]:
    """Return the devices whose bandwidth is known."""
    rows = devices().values()
    return tuple(Choice(row["id"], row["name"]) for row in rows if row["bandwidth_gb_s"])


def cost_page(
    query: Mapping[str, str], language: str, measured: MeasuredView | None = None
) -> CostPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    from app.domain.weight_formats import WEIGHT_FORMATS
    from app.pages.cost_view import cost_view, measured_view

    form = model_form(query)
    fields = {name: query.get(name, default).strip() for name, default in _DEFAULTS.items()}
    problems: dict[str, Note] = {}
    view: CostView | None = None
    line = said = typed = ""
    try:
        body = cost_body(form, fields)
        parts = compute_cost(CostRequest.model_validate(body))
        view = cost_view(parts, language)
        line = model_line(parts.work.given, language)
        said, typed = curl("cost", body), _command(body, fields)
    except (DomainError, ValidationError) as error:
        problems |= _problems(error, form)
    return CostPage(
        form=form,
        fields=fields,
        problems=problems,
        view=view,
        model_line=line,
        measured=measured or measured_view((), (), language),
        lab_devices=LAB_DEVICES,
        offered=offered_models(),
        formats=format_names(),
        weight_formats=tuple(WEIGHT_FORMATS),
        devices=device_choices(),
        examples=EXAMPLES,
        curl=said,
        command=typed,
        query=_canonical(form, fields),
    )


def cost_body(form: ModelForm, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the request that the form says, as the API takes it.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    body = model_body(form)
    for name in ("prompt_tokens", "output_tokens", "batch"):
        body[name] = integer(name, fields[name])
    if fields["decode_tokens"]:
        body["decode_tokens"] = integer("decode_tokens", fields["decode_tokens"])
    if fields["weights"]:
        body["weights"] = {"format": fields["weights"]}
    if fields["bandwidth"]:
        body["bandwidth_bytes_per_s"] = _bandwidth(fields["bandwidth"])
    elif fields["device"]:
        body["device"] = fields["device"]
    if form.source == "numbers":
        shape = {name: integer(name, fields[name]) for name in SHAPE if fields[name]}
        if shape:
            body["shape"] = shape
    return body


def _bandwidth(text: str) -> int:
    rate = text.casefold().removesuffix("/s").strip()
    if not rate:
        raise Malformed("{field} must be a rate such as 3350 GB/s, got {value}",
                        field="bandwidth", value=shown(text))  # fmt: skip
    return parse_bytes(rate, field="bandwidth")


def _command(body: Mapping[str, Any], fields: Mapping[str, str]) -> str:
    options = {name: body.get(name) for name in ("prompt_tokens", "output_tokens", "decode_tokens",
                                                 "device")}  # fmt: skip
    shape = body.get("shape", {})
    return command("cost", **model_options(body), **options, batch=body["batch"],
                   weights=fields["weights"], bandwidth=fields["bandwidth"], **shape)  # fmt: skip


def _canonical(form: ModelForm, fields: Mapping[str, str]) -> str:
    kept = model_query(form)
    kept += [
        (name, text)
        for name, text in fields.items()
        if text != _DEFAULTS[name] and (name not in SHAPE or form.source == "numbers")
    ]
    return urlencode(kept)


def _problems(error: DomainError | ValidationError, form: ModelForm) -> dict[str, Note]:
    otherwise = "config" if form.source == "config" else "model"
    found = problems_of(error, _FORM_FIELDS, otherwise)
    return {_AS_TYPED.get(field, field): note for field, note in found.items()}


def _checked(query: Mapping[str, str]) -> CostRequest:
    form = model_form(query)
    fields = {name: query.get(name, default).strip() for name, default in _DEFAULTS.items()}
    return CostRequest.model_validate(cost_body(form, fields))


@router.get(ADDRESS, response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = cost_page(request.query_params, language_of(request))
    return answer_page(request, TEMPLATE, page, ADDRESS)


def _start(device: str) -> LabRun:
    """Start to measure; raises LabBusy while another run has the lab."""
    chosen = None if device == "auto" else device
    return RUNS.start("measured", seconds=RUN_SECONDS, device=chosen, seed=0)


@router.post("/cost/measured", response_class=HTMLResponse, response_model=None)
async def measured(
    request: Request, lab_device: Annotated[str, Form(max_length=40)] = "auto"
) -> Response:
    """Measure both ways: point by point to the page's script, else the page with all of them."""
    from app.pages.cost_view import measured_view

    language = language_of(request)
    if wants_stream(request):
        return stream(_lines(request, lab_device, language))
    status = 200
    try:
        *points, orders = await collected(request, await started(lambda: _start(lab_device)))
        view = measured_view(points, orders, language, device=lab_device)
    except LabBusy as busy:
        status = BUSY_STATUS
        view = measured_view((), (), language, note=busy.note, device=lab_device)
    except (DomainError, RunStopped) as error:
        status = 422
        view = measured_view((), (), language, note=_why(error), device=lab_device)
    page = cost_page(request.query_params, language, view)
    return render(request, TEMPLATE, page, status=status)


def _why(error: DomainError | LabBusy | RunStopped) -> Note:
    """Return the sentence of a refusal or a stop."""
    if isinstance(error, DomainError):
        return error.note
    return error.note


async def _lines(request: Request, device: str, language: str) -> AsyncGenerator[Line]:
    """Yield how far it is with each point, the table and charts as they grow, then the orders."""
    from app.pages.cost_view import measured_view

    def put(view: MeasuredView) -> Line:
        page = cost_page({}, language, view)
        html = bytes(render(request, TEMPLATE, page, fragment="measured").body).decode()
        return {"put": "measured", "html": html}

    say = translations(language).gettext
    points: list[Any] = []
    drawn_at = 0.0
    try:
        async for result in as_they_come(await started(lambda: _start(device))):
            if isinstance(result, tuple):
                yield put(measured_view(points, result, language, device=device))
                return
            points.append(result)
            yield {
                "done": result.done,
                "total": result.total,
                "text": say(mark("{done} of {total} points")).format(
                    done=result.done, total=result.total
                ),
            }
            if time.monotonic() - drawn_at > REDRAW_SECONDS:
                drawn_at = time.monotonic()
                yield put(measured_view(points, (), language, device=device))
    except (DomainError, LabBusy, RunStopped) as error:
        yield put(measured_view(points, (), language, note=_why(error), device=device))


@router.get("/export/cost.json", response_model=None)
async def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        parts = compute_cost(_checked(request.query_params))
    except (DomainError, ValidationError) as error:
        return refused(_problems(error, model_form(request.query_params)))
    return json_download("cost.json", cost_answer(parts))


@router.get("/export/cost.csv", response_model=None)
async def export_csv(request: Request) -> Response:
    """Answer the growth table as CSV; every cell is a number."""
    try:
        parts = compute_cost(_checked(request.query_params))
    except (DomainError, ValidationError) as error:
        return refused(_problems(error, model_form(request.query_params)))
    rows = [point.model_dump() for point in cost_answer(parts).curve]
    return csv_download("cost.csv", list(rows[0]), [list(row.values()) for row in rows])
