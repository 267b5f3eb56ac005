"""`/attention`: one head over a cache, by hand or drawn, and the lab's experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api.attention import attention_answer, compute_attention, start_experiment
from app.api.attention_schemas import DEFAULT_LAB_TOKENS, AttentionRequest, ExperimentRequest
from app.api.lab_runs import collected
from app.demo.budget import LabBusy, RunStopped
from app.domain.errors import DomainError, Unknown, shown
from app.domain.notes import Note
from app.pages.model_form import integer
from app.pages.page_parts import answer_page, csv_download, curl, json_download, refused
from app.pages.problems import Problems, problems_of
from app.readers.number_rows import read_rows, rows_text
from app.web.language import language_of
from app.web.marks import mark

if TYPE_CHECKING:
    from app.pages.attention_view import AttentionView, ExperimentView

router = APIRouter(include_in_schema=False)

ADDRESS = "/attention"
TEMPLATE = "attention.html"
LAB_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")
DEVICES = ("auto", "numpy", "cpu", "cuda", "mps")
TYPED = ("query", "past_keys", "past_values", "new_key", "new_value")
DRAWN = ("past_tokens", "new_tokens", "width")
# Longer texts make addresses that servers on the way refuse.
LONGEST_LINK = 6000

_DEFAULTS = {
    "numbers": "typed",
    "query": "0", "past_keys": "0", "past_values": "2", "new_key": "0", "new_value": "4",
    "window": "", "dtype": "fp32", "device": "auto",
    "seed": "0", "past_tokens": "8", "new_tokens": "1", "width": "4",
    "tokens": str(DEFAULT_LAB_TOKENS),
}  # fmt: skip
_FORM_FIELDS = (*_DEFAULTS, "queries", "new_keys", "new_values", "experiment", "length_tokens")
# Where the request calls a field otherwise than the form.
_AS_TYPED = {"queries": "query", "new_keys": "new_key", "new_values": "new_value",
             "length_tokens": "tokens"}  # fmt: skip

EXPERIMENT_TITLES: Mapping[str, str] = {
    "history_dropped": mark("History dropped"),
    "rows_permuted": mark("Rows in another order"),
    "window_narrowed": mark("A sliding window"),
    "step_against_recompute": mark("Cached step against full recompute"),
    "pages_in_any_order": mark("Through pages, in any order"),
    "sequences_mixed": mark("Two sequences mixed up"),
    "left_padding": mark("Padding on the left"),
    "error_by_length": mark("Lower precision, by length"),
    "eviction_compared": mark("Eviction at equal memory"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query="",
        text=Note("", "A zero query over 2 and 4: half and half, 3; without the history 4"),
    ),
    Example(
        query=urlencode({"query": "10000", "past_keys": "1", "new_key": "1"}),
        text=Note("", "Scores of ten thousand do not overflow: the maximum is taken off first"),
    ),
    Example(
        query=urlencode(
            {"query": "1 0\n0 1", "past_keys": "1 0\n0 1\n1 1", "past_values": "1\n2\n3",
             "new_key": "1 0\n0 1", "new_value": "4\n5", "window": "3"}
        ),
        text=Note("", "Two new tokens under a triangular mask and a window of 3"),
    ),
    Example(
        query=urlencode({"numbers": "drawn", "past_tokens": "24", "width": "8", "dtype": "int4"}),
        text=Note("", "Twenty-four drawn positions kept as int4: how far the output moves"),
    ),
    Example(
        query=urlencode({"experiment": "eviction_compared"}),
        text=Note("", "Eviction at equal memory: which rule errs least depends on the question"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of an experiment that was asked for: a result, or why there is none."""

    result: Any | None = None
    note: Note | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPage:
    """Everything that the template of `/attention` may name."""

    fields: Mapping[str, str]
    problems: Problems
    view: AttentionView | None
    edit_query: str | None
    experiments: Mapping[str, str]
    asked_experiment: str
    experiment: ExperimentView | None
    experiment_note: Note | None
    is_torch_here: bool
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    examples: tuple[Example, ...]
    curl: str
    query: str


def typed_fields(query: Mapping[str, str]) -> dict[str, str]:
    """Return the form's fields as text, with the worked question where nothing is given."""
    return {name: query.get(name, default).strip() for name, default in _DEFAULTS.items()}


def attention_page(
    query: Mapping[str, str], language: str, ran: Ran | None = None
) -> AttentionPage:
    """Return the page's context; blocks while the lab answers."""
    from app.demo.backends import is_torch_installed
    from app.pages.attention_view import attention_view, experiment_view

    fields = typed_fields(query)
    problems: dict[str, Note] = {}
    view: AttentionView | None = None
    body: dict[str, Any] = {}
    edit_query: str | None = None
    try:
        body = attention_body(fields)
        answer = compute_attention(AttentionRequest.model_validate(body))
        view = attention_view(answer, language)
        edit_query = _edit_query(fields, body)
    except (DomainError, ValidationError) as error:
        problems |= _problems(error)
    except (LabBusy, RunStopped) as stop:
        problems["lab"] = stop.note
    result = None if ran is None else ran.result
    return AttentionPage(
        fields=fields,
        problems=problems,
        view=view,
        edit_query=edit_query,
        experiments=EXPERIMENT_TITLES,
        asked_experiment=query.get("experiment", ""),
        experiment=None if result is None else experiment_view(result, language),
        experiment_note=None if ran is None else ran.note,
        is_torch_here=is_torch_installed(),
        dtypes=LAB_DTYPES,
        devices=DEVICES,
        examples=EXAMPLES,
        curl=curl("attention", body),
        query=canonical(fields, query.get("experiment", "")),
    )


def attention_body(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the request that the form says, as the API takes it.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    body = _drawn_body(fields) if fields["numbers"] == "drawn" else _typed_body(fields)
    if fields["window"]:
        body["window"] = integer("window", fields["window"])
    body["dtype"] = fields["dtype"]
    if fields["device"] != "auto":
        body["device"] = fields["device"]
    return body


def _typed_body(fields: Mapping[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name in TYPED:
        rows = [[_plain(value) for value in row] for row in read_rows(fields[name], name)]
        if name.startswith("past_"):
            body[name] = rows
        elif len(rows) <= 1:
            body[name] = rows[0] if rows else []
        else:
            body["queries" if name == "query" else f"{name}s"] = rows
    return body


def _drawn_body(fields: Mapping[str, str]) -> dict[str, Any]:
    from app.demo.lab import draw_question

    sizes = {name: integer(name, fields[name]) for name in DRAWN}
    drawn = draw_question(seed=integer("seed", fields["seed"]), **sizes)
    return {
        "queries": drawn.queries,
        "past_keys": drawn.past_keys,
        "past_values": drawn.past_values,
        "new_keys": drawn.new_keys,
        "new_values": drawn.new_values,
    }


def _plain(value: float) -> float:
    """Return a whole number as an integer, for it reads better in a command."""
    return int(value) if value.is_integer() else value


def _edit_query(fields: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """Return the address under which drawn numbers can be edited, if it is not too long."""
    if fields["numbers"] != "drawn":
        return None
    names = {"query": "queries", "new_key": "new_keys", "new_value": "new_values"}
    typed = {name: rows_text(body[names.get(name, name)]) for name in TYPED}
    query = canonical({**fields, **typed, "numbers": "typed"}, "")
    return query if len(query) <= LONGEST_LINK else None


def canonical(fields: Mapping[str, str], experiment: str) -> str:
    """Return the shortest query string that gives the same page."""
    unused = TYPED if fields["numbers"] == "drawn" else DRAWN
    kept = [
        (name, text)
        for name, text in fields.items()
        if name not in unused and text != _DEFAULTS[name]
    ]
    if experiment:
        kept.append(("experiment", experiment))
    return urlencode(kept)


def _problems(error: DomainError | ValidationError) -> dict[str, Note]:
    found = problems_of(error, _FORM_FIELDS, "query")
    return {_AS_TYPED.get(field, field): note for field, note in found.items()}


async def _ran(request: Request) -> Ran | None:
    """Run the experiment that a query asks for, until its caller goes away."""
    code = request.query_params.get("experiment", "")
    if not code:
        return None
    fields = typed_fields(request.query_params)
    try:
        if code not in EXPERIMENT_TITLES:
            raise Unknown("{field} {value} is not known; known are {known}", field="experiment",
                          value=shown(code), known=", ".join(EXPERIMENT_TITLES))  # fmt: skip
        body: dict[str, Any] = {
            "experiment": code,
            "seed": integer("seed", fields["seed"]),
            "length_tokens": integer("tokens", fields["tokens"]),
        }
        if fields["device"] != "auto":
            body["device"] = fields["device"]
        run = start_experiment(ExperimentRequest.model_validate(body))
        (result,) = await collected(request, run)
    except (DomainError, ValidationError) as error:
        return Ran(note=next(iter(_problems(error).values())))
    except (LabBusy, RunStopped) as stop:
        return Ran(note=stop.note)
    return Ran(result=result)


@router.get(ADDRESS, response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    ran = await _ran(request)
    page = await anyio.to_thread.run_sync(
        attention_page, request.query_params, language_of(request), ran
    )
    return answer_page(request, TEMPLATE, page, ADDRESS)


@router.get("/export/attention.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        body = attention_body(typed_fields(request.query_params))
        answer = compute_attention(AttentionRequest.model_validate(body))
    except (DomainError, ValidationError) as error:
        return refused(_problems(error))
    return json_download("attention.json", attention_answer(answer))


@router.get("/export/attention.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer a row for each query and position: what it saw there and how much it weighed."""
    try:
        body = attention_body(typed_fields(request.query_params))
        answer = compute_attention(AttentionRequest.model_validate(body))
    except (DomainError, ValidationError) as error:
        return refused(_problems(error))
    rows = [
        (query, position, "" if score is None else score, weight)
        for query, (scores, weights) in enumerate(zip(answer.scores, answer.weights, strict=True))
        for position, (score, weight) in enumerate(zip(scores, weights, strict=True))
    ]
    return csv_download("attention.csv", ("query", "position", "score", "weight"), rows)
