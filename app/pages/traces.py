"""`/traces`: a request log becomes lengths, live state over time, and hits against capacity."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from app.api.traces_compute import UPLOAD_BOUNDS, compute_traces
from app.api.traces_schemas import TracesRequest
from app.api.watched_runs import GONE_STATUS, WatchedRun, result_for
from app.domain.errors import DomainError, Missing
from app.domain.notes import Note
from app.domain.units import bytes_text
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
from app.pages.render import LONGEST_QUERY, OWN_ADDRESS, number_text, render
from app.pages.streams import Line, stream, wants_stream
from app.readers.amounts import parse_bytes
from app.readers.trace_times import UNITS_NS
from app.readers.traces import Progress, TraceCancelled, no_progress
from app.web.language import language_of, translations

if TYPE_CHECKING:
    from app.pages.example_traces import ExampleTrace
    from app.pages.traces_view import TracesView

router = APIRouter(include_in_schema=False)

TEMPLATE = "traces.html"
# How often the page is told how far a log has been read.
TELL_SECONDS = 0.3
_DEFAULTS = {
    "block_size": "16", "block_tokens": "", "time_unit": "", "prefill_tokens_per_s": "10000",
    "decode_tokens_per_s": "50", "duration_ms": "", "pool": "",
}  # fmt: skip
_FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype", "file",
    *_DEFAULTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log to read: a file that was sent, or an example."""

    name: str
    file: IO[bytes]
    size_bytes: int
    example: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesPage:
    """Everything that the template of `/traces` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    example: str
    problems: Problems
    view: TracesView | None
    offered: list[str]
    formats: list[str]
    units: tuple[str, ...]
    examples: Mapping[str, ExampleTrace]
    limit_bytes: int
    query: str


def traces_page(
    fields: Mapping[str, str],
    language: str,
    limit_bytes: int,
    log: Log | None,
    progress: Progress = no_progress,
) -> TracesPage:
    """Return the page's context; without a log, what the fields hold and no answer.

    Raises:
        TraceCancelled: from `progress`.

    """
    from app.pages.example_traces import EXAMPLE_TRACES
    from app.pages.traces_view import traces_view

    example = fields.get("example", "")
    page = TracesPage(
        form=model_form(fields),
        fields={name: fields.get(name, usual).strip() for name, usual in _DEFAULTS.items()},
        example=example if example in EXAMPLE_TRACES else "",
        problems={},
        view=None,
        offered=offered_models(),
        formats=format_names(),
        units=tuple(UNITS_NS),
        examples=EXAMPLE_TRACES,
        limit_bytes=limit_bytes,
        query="",
    )
    page = replace(page, query=_canonical(page, log.example if log is not None else ""))
    if log is None:
        return page
    try:
        body = _body(page)
        asked = TracesRequest.model_validate(body)
        computed = compute_traces(asked, log.file, progress=progress, bounds=UPLOAD_BOUNDS)
    except (DomainError, ValidationError) as error:
        return replace(page, problems=_problems(page, error))
    view = traces_view(
        computed, log.name, language,
        curl=_curl(body, log.name), command=_command(page, body, log.name),
    )  # fmt: skip
    return replace(page, view=view)


def _problems(page: TracesPage, error: DomainError | ValidationError) -> Problems:
    otherwise = "config" if page.form.source == "config" else "model"
    return problems_of(error, _FORM_FIELDS, otherwise)


def _body(page: TracesPage) -> dict[str, Any]:
    """Return the API's fields for what the form's hold; a duration stands instead of the rates.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    typed = page.fields
    body = model_body(page.form)
    rates = () if typed["duration_ms"] else ("prefill_tokens_per_s", "decode_tokens_per_s")
    for name in ("block_size", "block_tokens", "duration_ms", *rates):
        if typed[name]:
            body[name] = integer(name, typed[name])
    if typed["time_unit"]:
        body["time_unit"] = typed["time_unit"]
    if typed["pool"]:
        body["pool_bytes"] = parse_bytes(typed["pool"], field="pool")
    return body


def _canonical(page: TracesPage, example: str) -> str:
    kept = [("example", example)] if example else []
    kept += model_query(page.form)
    kept += [(name, text) for name, text in page.fields.items() if text != _DEFAULTS[name]]
    return urlencode(kept)


def _curl(body: Mapping[str, Any], file_name: str) -> str:
    words = [f"curl -s {OWN_ADDRESS}/api/v1/traces"]
    for name, value in body.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words.append(f"-F {shlex.quote(f'{name}={text}')}")
    return " ".join([*words, f"-F {shlex.quote(f'file=@{file_name}')}"])


def _command(page: TracesPage, body: Mapping[str, Any], file_name: str) -> str:
    given = {name: value for name, value in body.items() if name not in ("model", "kv_dtype")}
    given.pop("pool_bytes", None)
    options = {**parts.model_options(body), **given, "pool": page.fields["pool"]}
    return parts.command("traces", file_name, **options)


def _example_log(example: str) -> Log | None:
    from app.pages.example_traces import EXAMPLE_TRACES

    if example not in EXAMPLE_TRACES:
        return None
    content = EXAMPLE_TRACES[example].content()
    name = EXAMPLE_TRACES[example].file_name
    return Log(name=name, file=io.BytesIO(content), size_bytes=len(content), example=example)


def _limit(request: Request) -> int:
    limit: int = request.app.state.settings.max_upload_bytes
    return limit


# A `def` handler: an example takes a tenth of a second.
@router.get("/traces", response_class=HTMLResponse)
def show(request: Request) -> HTMLResponse:
    """Answer the form, with an example's figures where the address names one."""
    log = _example_log(request.query_params.get("example", ""))
    page = traces_page(request.query_params, language_of(request), _limit(request), log)
    return render(request, TEMPLATE, page, status=422 if page.problems else 200)


@router.get("/traces/{name}", response_model=None)
async def example_file(name: str) -> Response:
    """Answer an example log as a file, to see its form and to try the command line with."""
    from app.pages.example_traces import EXAMPLE_TRACES

    for example in EXAMPLE_TRACES.values():
        if example.file_name == name:
            return Response(
                example.content(),
                media_type="text/plain; charset=utf-8",
                headers={"Content-Disposition": f'attachment; filename="{name}"'},
            )
    raise HTTPException(status_code=404)


@router.post("/traces", response_class=HTMLResponse, response_model=None)
async def measure(request: Request) -> Response:
    """Answer the page for a log that was sent: piece by piece to the script, else as a whole."""
    form = await request.form(max_files=1, max_part_size=parts.MAX_FIELD_BYTES)
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    log = _example_log(fields.get("example", ""))
    sent = form.get("file")
    if isinstance(sent, UploadFile) and sent.filename:
        log = Log(name=sent.filename, file=sent.file, size_bytes=sent.size or 0)
    if wants_stream(request):
        return stream(_lines(request, form, fields, log))
    try:
        run = WatchedRun(lambda progress: _measured(request, fields, log, progress))
        page = await result_for(request, run)
    except TraceCancelled:
        return Response(status_code=GONE_STATUS)
    finally:
        await form.close()
    return render(request, TEMPLATE, page, status=422 if page.problems else 200)


def _measured(
    request: Request, fields: Mapping[str, str], log: Log | None, progress: Progress
) -> TracesPage:
    page = traces_page(fields, language_of(request), _limit(request), log, progress)
    if log is None:
        missing = Missing("Choose a log first, or take one of the examples", field="file")
        return replace(page, problems=_problems(page, missing))
    return page


async def _lines(
    request: Request, form: FormData, fields: Mapping[str, str], log: Log | None
) -> AsyncGenerator[Line]:
    """Yield how far the log has been read, then the answer or what is wrong with it."""

    def compute(progress: Progress) -> Line:
        page = _measured(request, fields, log, progress)
        block = "hints" if page.problems else "answer"
        html = bytes(render(request, TEMPLATE, page, fragment=block).body).decode()
        line: Line = {"put": block, "html": html}
        fits = len(page.query) <= LONGEST_QUERY
        address = f"/traces?{page.query}" if fits else "/traces"
        return line if page.problems else {**line, "address": address}

    run = WatchedRun(compute)
    say = translations(language_of(request)).gettext
    try:
        while not await run.wait(TELL_SECONDS):
            yield _progress_line(run, 0 if log is None else log.size_bytes, say)
        yield run.result()
    finally:
        run.cancel()
        await form.close()


def _progress_line(run: WatchedRun[Line], total: int, say: Any) -> Line:
    if not run.started:
        return {"text": say("Waiting for the logs before this one")}
    note = Note(
        "",
        "{read} of {total} read, {requests} requests",
        {
            "read": bytes_text(run.read_bytes),
            "total": bytes_text(total),
            "requests": number_text(run.requests),
        },
    )
    return {
        "done": run.read_bytes,
        "total": total,
        "text": say(note.template).format_map(note.params),
    }
