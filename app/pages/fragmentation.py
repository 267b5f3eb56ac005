"""`/fragmentation`: one workload reserved at a maximum, padded and paged, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api.fragmentation import (
    ComputedFragmentation,
    compute_fragmentation,
    fragmentation_answer,
)
from app.api.fragmentation_schemas import FragmentationRequest
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.domain.units import MIB
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
from app.readers.amounts import parse_bytes
from app.readers.lengths import ParsedLengths, parse_lengths
from app.web.language import language_of, translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.domain.fragmentation import Fragmentation, Layout

router = APIRouter(include_in_schema=False)

NAMES: Mapping[str, str] = {
    "reserved": mark("Reserved at the maximum"),
    "padded": mark("Padded to the longest"),
    "paged": mark("Paged in blocks"),
    "effective": mark("State alone"),
}
_DEFAULTS = {"lengths": "1024, 3072", "max_length_tokens": "", "block_size": "16", "memory": ""}
USUAL_MAXIMUM = 4096
_FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype", *_DEFAULTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A calculation that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "lengths": "1024, 3072",
                         "max_length_tokens": "4096"}),
        text=Note("", "Requests of 1024 and 3072 with room for 4096: half of it stays empty"),
    ),
    Example(
        query=urlencode(
            {"model": "meta-llama/Llama-3.1-8B", "lengths": "500x300, 20x6000",
             "max_length_tokens": "131072", "memory": "40 GiB"}
        ),
        text=Note("", "Short requests under a maximum of 128k, in 40 GiB: two fit, or hundreds"),
    ),
    Example(
        query=urlencode(
            {"source": "numbers", "layers": "40", "kv_heads": "40", "head_dim": "128",
             "lengths": "64x250", "max_length_tokens": "2048", "memory": "12 GiB"}
        ),
        text=Note("", "A model of 2022 with 40 KV heads: 800 KiB a token, and a maximum of 2048"),
    ),
    Example(
        query=urlencode(
            {"model": "google/gemma-3-27b-it", "lengths": "8x2000, 2x60000",
             "max_length_tokens": "131072", "kv": "bf16"}
        ),
        text=Note("", "Gemma 3 27B: its windows hold their whole width already in short requests"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationView:
    """An answer, as the page shows it."""

    computed: ComputedFragmentation
    more_by_paging: tuple[int, int] | None
    chart: figures.Figure
    admitted_chart: figures.Figure
    model_line: str
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentationPage:
    """Everything that the template of `/fragmentation` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    problems: Problems
    parsed: ParsedLengths | None
    view: FragmentationView | None
    names: Mapping[str, str]
    offered: list[str]
    formats: list[str]
    examples: tuple[Example, ...]
    query: str


def _fields(query: Mapping[str, str]) -> FragmentationPage:
    """Return the page before any answer: what its fields hold."""
    form = model_form(query)
    typed = {name: query.get(name, usual).strip() for name, usual in _DEFAULTS.items()}
    kept = model_query(form)
    kept.append(("lengths", " ".join(typed["lengths"].split())))
    parsed = _parsed(typed["lengths"])
    if not typed["max_length_tokens"] and parsed is not None:
        typed["max_length_tokens"] = str(_maximum_for(parsed.longest_tokens))
    kept += [
        (name, text) for name, text in typed.items()
        if name != "lengths" and text != _DEFAULTS[name]
    ]  # fmt: skip
    return FragmentationPage(
        form=form,
        fields=typed,
        problems={},
        parsed=parsed,
        view=None,
        names=NAMES,
        offered=offered_models(),
        formats=format_names(),
        examples=EXAMPLES,
        query=urlencode(kept),
    )


def _parsed(text: str) -> ParsedLengths | None:
    """Return lengths as typed; None for what is no lengths, which is said elsewhere."""
    try:
        return parse_lengths(text)
    except DomainError:
        return None


def _maximum_for(longest_tokens: int) -> int:
    """Return a maximum to begin with: a power of two that the longest request fits."""
    return min(MAX_TOKENS, max(USUAL_MAXIMUM, 1 << max(0, longest_tokens - 1).bit_length()))


def fragmentation_page(query: Mapping[str, str], language: str) -> FragmentationPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    page = _fields(query)
    try:
        body = _body(page, parse_lengths(page.fields["lengths"]))
        computed = compute_fragmentation(FragmentationRequest.model_validate(body))
    except (DomainError, ValidationError) as error:
        return replace(page, problems=_problems(page, error))
    return replace(page, view=_view(page, computed, body, language))


def _problems(page: FragmentationPage, error: DomainError | ValidationError) -> Problems:
    otherwise = "config" if page.form.source == "config" else "model"
    return problems_of(error, _FORM_FIELDS, otherwise)


def _body(page: FragmentationPage, parsed: ParsedLengths) -> dict[str, Any]:
    """Return the API's body for what the fields hold.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    typed = page.fields
    body = model_body(page.form)
    if all(count == 1 for _, count in parsed.runs):
        body["lengths"] = [length for length, _ in parsed.runs]
    else:
        body["lengths"] = [{"length": length, "count": count} for length, count in parsed.runs]
    for name in ("max_length_tokens", "block_size"):
        body[name] = integer(name, typed[name])
    if typed["memory"]:
        body["memory_bytes"] = parse_bytes(typed["memory"], field="memory")
    return body


def _view(
    page: FragmentationPage, computed: ComputedFragmentation, body: dict[str, Any], language: str
) -> FragmentationView:
    answer = computed.answer
    reserved, paged = (answer.layout(name).admitted_requests for name in ("reserved", "paged"))
    runs = [f"{item['count']}x{item['length']}" if isinstance(item, dict) else str(item)
            for item in body["lengths"]]  # fmt: skip
    return FragmentationView(
        computed=computed,
        more_by_paging=None if reserved is None or paged is None else (reserved, paged),
        chart=_chart(answer, language),
        admitted_chart=_admitted_chart(answer, language),
        model_line=parts.model_line(computed.given, language),
        curl=parts.curl("fragmentation", body),
        command=parts.command(
            "fragmentation",
            **parts.model_options(body),
            lengths=",".join(runs),
            max_length=body["max_length_tokens"],
            block_size=body["block_size"],
            memory=page.fields["memory"],
        ),
    )


def _layouts(answer: Fragmentation, language: str) -> tuple[list[str], list[Layout]]:
    say = translations(language).gettext
    shown = [layout for layout in answer.layouts if layout.strategy != "effective"]
    return [say(NAMES[layout.strategy]) for layout in shown], shown


def _chart(answer: Fragmentation, language: str) -> figures.Figure:
    say = translations(language).gettext
    names, layouts = _layouts(answer, language)
    state = [(layout.allocated_bytes - layout.waste_bytes) / MIB for layout in layouts]
    waste = [layout.waste_bytes / MIB for layout in layouts]
    return figures.bars(
        names,
        [(say("State"), "effective", state, False), (say("Waste"), "padding", waste, True)],
        y_title="MiB",
    )


def _admitted_chart(answer: Fragmentation, language: str) -> figures.Figure:
    say = translations(language).gettext
    names, layouts = _layouts(answer, language)
    counts = [layout.admitted_requests or 0 for layout in layouts]
    title = say("Requests in the same memory")
    return figures.bars(names, [(title, "paging", counts, False)], y_title=say("Requests"))


@router.api_route("/fragmentation", methods=["GET", "POST"], response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    asked = await parts.asked(request)
    page = await run_in_threadpool(fragmentation_page, asked, language_of(request))
    return parts.answer_page(request, "fragmentation.html", page, "/fragmentation")


def _checked(query: Mapping[str, str]) -> ComputedFragmentation:
    page = _fields(query)
    body = _body(page, parse_lengths(page.fields["lengths"]))
    return compute_fragmentation(FragmentationRequest.model_validate(body))


@router.get("/export/fragmentation.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        computed = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(_fields(request.query_params), error))
    return parts.json_download("fragmentation.json", fragmentation_answer(computed))


@router.get("/export/fragmentation.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the layouts as CSV, one line each."""
    from app.domain.fragmentation import Layout

    try:
        computed = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(_fields(request.query_params), error))
    rows = (layout.row() for layout in computed.answer.layouts)
    return parts.csv_download("fragmentation.csv", Layout.HEADER, rows)
