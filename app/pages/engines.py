"""`/engines`: one model and one budget through every engine, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api.engines_compared import (
    DEFAULT_CONTEXT_TOKENS,
    NOT_COUNTED,
    RANK_FIELDS,
    SideBySideAnswer,
    answer_side_by_side,
    compute_side_by_side,
)
from app.api.engines_schemas import MAX_COMPARED_TOKENS, SideBySideRequest
from app.domain.errors import DomainError, OutOfRange
from app.domain.notes import Note
from app.pages import page_parts
from app.pages.model_form import (
    ModelForm,
    format_names,
    model_body,
    model_form,
    model_query,
    offered_models,
)
from app.pages.problems import Problems, problems_of
from app.readers.amounts import parse_bytes
from app.readers.lengths import parse_lengths
from app.readers.one_length import parse_length
from app.web.language import language_of

if TYPE_CHECKING:
    from app.pages.engines_view import EnginesView

router = APIRouter(include_in_schema=False)

MOST_LENGTHS = 3
_CURVE_POINTS = 9
_FEWEST_TOKENS = 256
_MOST_DIGITS = 20
_DEFAULTS = {"budget": "40 GiB", "context": "", "lengths": ""}
# Settings that few change: they stand folded under the others.
_MORE_DEFAULTS = {**dict.fromkeys(RANK_FIELDS, "1"), "vllm_version": ""}
_DEFAULTS |= _MORE_DEFAULTS
_FORM_FIELDS = ("model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype",
                *_DEFAULTS)  # fmt: skip
# A field of the request has another name in the form.
_FORM_NAMES = {"available_bytes": "budget", "context_tokens": "context", "version": "vllm_version"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A comparison that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "kv": "bf16"}),
        text=Note("", "Llama 3.1 8B: every layer alike, and all engines within a block"),
    ),
    Example(
        query=urlencode({"model": "google/gemma-3-27b-it", "kv": "bf16", "context": "131072"}),
        text=Note("", "Gemma 3 27B at 131,072 tokens: who frees what windows have passed"),
    ),
    Example(
        query=urlencode({"model": "openai/gpt-oss-120b", "kv": "bf16", "budget": "16 GiB",
                         "lengths": "1k, 8k, 128k"}),
        text=Note("", "gpt-oss 120B: every second layer sees 128 tokens"),
    ),
    Example(
        query=urlencode({"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "kv": "bf16"}),
        text=Note("", "Qwen3-Next 80B: what each engine keeps beside the states"),
    ),
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-405B", "kv": "bf16"}),
        text=Note("", "Llama 3.1 405B: which engines refuse a request that does not fit"),
    ),
    Example(
        query=urlencode({"model": "deepseek-ai/DeepSeek-V3", "kv": "bf16", "tensor_parallel": 8,
                         "decode_context_parallel": 8}),
        text=Note("", "DeepSeek-V3 on eight ranks: one latent that cannot be divided, except by"
                      " its positions"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesPage:
    """Everything that the template of `/engines` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    has_more: bool
    problems: Problems
    view: EnginesView | None
    offered: list[str]
    formats: list[str]
    examples: tuple[Example, ...]
    not_counted: tuple[Note, ...]
    query: str


def engines_page(query: Mapping[str, str], language: str) -> EnginesPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    form = _form(query)
    typed = {name: query.get(name, usual).strip() for name, usual in _DEFAULTS.items()}
    problems: dict[str, Note] = {}
    view: EnginesView | None = None
    try:
        view = _view(_body(form, typed), typed, language)
    except (DomainError, ValidationError) as error:
        problems |= _problems(form, error)
    return EnginesPage(
        form=form,
        fields=typed,
        has_more=any(typed[name] != usual for name, usual in _MORE_DEFAULTS.items()),
        problems=problems,
        view=view,
        offered=offered_models(),
        formats=format_names(),
        examples=EXAMPLES,
        not_counted=NOT_COUNTED,
        query=_canonical(form, typed),
    )


def _form(query: Mapping[str, str]) -> ModelForm:
    """Return the model's fields; most engines keep what most models do, bf16."""
    return model_form({"kv": "bf16", **query})


def _problems(form: ModelForm, error: DomainError | ValidationError) -> Problems:
    otherwise = "config" if form.source == "config" else "model"
    found = problems_of(error, (*_FORM_FIELDS, *_FORM_NAMES), otherwise)
    named = {}
    for field, note in found.items():
        own = _FORM_NAMES.get(field, field)
        named[own] = Note(note.code, note.template, {**note.params, "field": own})
    return named


def _body(form: ModelForm, typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the request as the API takes it.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    body = model_body(form)
    body["available_bytes"] = parse_bytes(typed["budget"], field="budget")
    if typed["context"]:
        body["context_tokens"] = parse_length(
            typed["context"], field="context", high=MAX_COMPARED_TOKENS
        )
    if typed["lengths"]:
        body["lengths"] = _lengths(typed["lengths"])
    body |= {name: _count(typed[name]) for name in RANK_FIELDS if typed[name] not in ("", "1")}
    if typed["vllm_version"]:
        body["settings"] = {"vllm": {"version": typed["vllm_version"]}}
    return body


def _count(text: str) -> int | str:
    """Return a number, or the text as it stands, which the schema then refuses."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else text


def _lengths(text: str) -> list[int]:
    found = sorted({length for length, _ in parse_lengths(text).runs})
    if not 1 <= len(found) <= MOST_LENGTHS:
        raise OutOfRange("{field} must be one to three lengths, such as 1k, 8k, 128k",
                         field="lengths")  # fmt: skip
    return found


def _view(body: Mapping[str, Any], typed: Mapping[str, str], language: str) -> EnginesView:
    from app.api.engine_models import engine_model
    from app.engines.side_by_side import RANKS, default_lengths
    from app.pages.engines_view import command_of, engines_view

    asked = SideBySideRequest.model_validate(body)
    context = asked.context_tokens
    if context is None:
        context = engine_model(asked.model).max_context_tokens or DEFAULT_CONTEXT_TOKENS
    shown = asked.lengths or list(default_lengths(context))
    more = asked.model_copy(update={"lengths": sorted({*shown, *_curve(context)})})
    found = compute_side_by_side(more)
    options = {
        **page_parts.model_options(body),
        "available": typed["budget"],
        "context": context if typed["context"] else None,
    }
    ranks = {name: body.get(name) for name in RANK_FIELDS}
    version = typed["vllm_version"]
    own = {"vllm": {"setting": f"version={version}" if version else None}}
    commands = {
        row.engine: command_of(
            row.engine,
            {**options, **{name: ranks[name] for name in RANKS[row.engine]},
             **own.get(row.engine, {})},
        )
        for row in found.rows
    }  # fmt: skip
    commands["all"] = command_of(
        "all",
        {**options, "lengths": ",".join(map(str, body.get("lengths", ()))), **ranks,
         "setting": f"vllm.version={version}" if version else None},
    )  # fmt: skip
    return engines_view(found, shown, language, page_parts.curl("engines/side-by-side", body),
                        commands)  # fmt: skip


def _curve(context_tokens: int) -> list[int]:
    """Return lengths for a smooth line: the longest halved until it is short."""
    points: list[int] = []
    length = context_tokens
    while length >= min(_FEWEST_TOKENS, context_tokens) and len(points) < _CURVE_POINTS:
        points.append(length)
        length //= 2
    return points


def _canonical(form: ModelForm, typed: Mapping[str, str]) -> str:
    kept = model_query(form)
    kept += [(name, " ".join(text.split())) for name, text in typed.items()
             if text != _DEFAULTS[name]]  # fmt: skip
    return urlencode(kept)


@router.api_route("/engines", methods=["GET", "POST"], response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    asked = await page_parts.asked(request)
    # Planning many unlike layers in five engines takes tens of milliseconds: not on the loop.
    page = await run_in_threadpool(engines_page, asked, language_of(request))
    return page_parts.answer_page(request, "engines.html", page, "/engines")


# `def` handlers, for the same reason.
def _answer(query: Mapping[str, str]) -> SideBySideAnswer:
    typed = {name: query.get(name, usual).strip() for name, usual in _DEFAULTS.items()}
    return answer_side_by_side(SideBySideRequest.model_validate(_body(_form(query), typed)))


@router.get("/export/engines.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        answer = _answer(request.query_params)
    except (DomainError, ValidationError) as error:
        return page_parts.refused(_problems(_form(request.query_params), error))
    return page_parts.json_download("engines.json", answer)


_COLUMNS = (
    "engine", "version", "tokens", "concurrency", "request_bytes", "need_bytes", "still_bytes",
    "slope_bytes", "slope_tokens", "holds_from_tokens",
)  # fmt: skip


@router.get("/export/engines.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the table as CSV: one row an engine, then a column for each length."""
    try:
        answer = _answer(request.query_params)
    except (DomainError, ValidationError) as error:
        return page_parts.refused(_problems(_form(request.query_params), error))
    lengths = [f"bytes_at_{item.length_tokens}" for item in answer.need]
    rows = []
    for row in answer.engines:
        sizes: list[object] = [item.bytes for item in row.lengths] or [None] * len(lengths)
        said = row.refusal or row.stopped
        values = [getattr(row, name) for name in _COLUMNS]
        remarks = "; ".join(note.text for note in row.remarks)
        rows.append([*values, *sizes, "" if said is None else said.text, remarks])
    return page_parts.csv_download("engines.csv", (*_COLUMNS, *lengths, "refusal", "remarks"), rows)
