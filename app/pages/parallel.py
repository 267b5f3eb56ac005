"""`/parallel`: who holds what under tensor, pipeline and context parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api.parallel import ParallelParts, RankAnswer, compute_parallel, parallel_answer
from app.api.parallel_schemas import ParallelRequest
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.pages import figures, page_parts
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
from app.readers.lengths import ParsedLengths, parse_lengths
from app.web.language import language_of, translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.domain.parallel import Rank

router = APIRouter(include_in_schema=False)

# The words for a figure's basis, as the templates translate them.
BASES = (mark("computed"), mark("measured"), mark("given"), mark("assumed"))

# More ranks than a page can show legibly; the API and the exports have them all.
MAX_COLUMNS = 64
MAX_STAGES_SHOWN = 32
MAX_ROWS = 128
DEGREES = (
    "tensor_parallel", "pipeline_parallel", "decode_context_parallel", "data_parallel",
    "expert_parallel",
)  # fmt: skip
_DEFAULTS = {"lengths": "131072", "block_size": "16", "layers_per_stage": "", "weights": "",
             **dict.fromkeys(DEGREES, "1"), "tensor_parallel": "8"}  # fmt: skip
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
        query=urlencode({"model": "deepseek-ai/DeepSeek-V3", "kv": "bf16", "tensor_parallel": 8}),
        text=Note("", "DeepSeek V3 on eight ranks: a latent is copied, not divided"),
    ),
    Example(
        query=urlencode(
            {"model": "deepseek-ai/DeepSeek-V3", "kv": "bf16", "tensor_parallel": 8,
             "decode_context_parallel": 8}
        ),
        text=Note("", "The same with context parallelism 8: each position on one rank"),
    ),
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-405B", "kv": "bf16",
                         "tensor_parallel": 16}),
        text=Note("", "Llama 3.1 405B on sixteen ranks: eight heads, each held twice"),
    ),
    Example(
        query=urlencode(
            {"source": "numbers", "layers": 48, "kv_heads": 4, "head_dim": 128, "kv": "bf16",
             "lengths": "262144", "tensor_parallel": 1, "pipeline_parallel": 2,
             "layers_per_stage": "16, 32"}
        ),
        text=Note("", "Two stages of 16 and 32 layers: the first one needs 8 GiB, not 24"),
    ),
    Example(
        query=urlencode(
            {"model": "Qwen/Qwen3-Coder-480B-A35B-Instruct", "kv": "bf16", "lengths": "262144",
             "tensor_parallel": 1, "data_parallel": 8}
        ),
        text=Note("", "Data parallelism 8: every replica keeps 62 GiB for one long request"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a tensor rank of a stage holds, in words."""

    heads: Note
    is_copy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One row of the grid."""

    index: int
    first_layer: int
    last_layer: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelView:
    """An answer, as the page shows it."""

    parts: ParallelParts
    columns: int
    hidden_columns: int
    grid: tuple[StageRow, ...]
    hidden_stages: int
    rows: tuple[Rank, ...]
    weights: tuple[int, ...]
    chart: figures.Figure
    assumed: tuple[Note, ...]
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPage:
    """Everything that the template of `/parallel` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    problems: Problems
    parsed: ParsedLengths | None
    view: ParallelView | None
    offered: list[str]
    formats: list[str]
    examples: tuple[Example, ...]
    query: str


def parallel_page(query: Mapping[str, str], language: str) -> ParallelPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    form = model_form(query)
    typed = {name: query.get(name, default).strip() for name, default in _DEFAULTS.items()}
    problems: dict[str, Note] = {}
    parsed: ParsedLengths | None = None
    view: ParallelView | None = None
    try:
        parsed = parse_lengths(typed["lengths"])
        body = _body(form, typed, parsed)
        view = _view(ParallelRequest.model_validate(body), body, language)
    except (DomainError, ValidationError) as error:
        otherwise = "config" if form.source == "config" else "model"
        problems |= problems_of(error, _FORM_FIELDS, otherwise)
    return ParallelPage(
        form=form,
        fields=typed,
        problems=problems,
        parsed=parsed,
        view=view,
        offered=offered_models(),
        formats=format_names(),
        examples=EXAMPLES,
        query=_canonical(form, typed),
    )


def _body(form: ModelForm, typed: Mapping[str, str], parsed: ParsedLengths) -> dict[str, Any]:
    body = model_body(form)
    body["lengths"] = [{"length": length, "count": count} for length, count in parsed.runs]
    if all(count == 1 for _, count in parsed.runs):
        body["lengths"] = [length for length, _ in parsed.runs]
    body["block_size"] = integer("block_size", typed["block_size"])
    for name in DEGREES:
        value = integer(name, typed[name] or "1")
        if value != 1:
            body[name] = value
    if typed["layers_per_stage"]:
        parts = typed["layers_per_stage"].replace(",", " ").split()
        body["layers_per_stage"] = [integer("layers_per_stage", part) for part in parts]
    if typed["weights"]:
        body["weights"] = {"format": typed["weights"]}
    return body


def _canonical(form: ModelForm, typed: Mapping[str, str]) -> str:
    kept = model_query(form)
    kept += [(name, " ".join(text.split())) for name, text in typed.items()
             if text != _DEFAULTS[name]]  # fmt: skip
    return urlencode(kept)


def _view(request: ParallelRequest, body: dict[str, Any], language: str) -> ParallelView:
    parts = compute_parallel(request)
    answer = parts.answer
    columns = min(answer.degrees.tensor, MAX_COLUMNS)
    weights = parts.weights
    return ParallelView(
        parts=parts,
        columns=columns,
        hidden_columns=answer.degrees.tensor - columns,
        grid=_grid(parts, columns),
        hidden_stages=max(0, len(answer.stages) - MAX_STAGES_SHOWN),
        rows=answer.ranks[:MAX_ROWS],
        weights=() if weights is None else weights.stage_bytes,
        chart=_chart(answer.ranks[:MAX_COLUMNS], language),
        assumed=parts.assumptions,
        curl=page_parts.curl("parallel", body),
        command=_command(body),
    )


def _grid(parts: ParallelParts, columns: int) -> tuple[StageRow, ...]:
    answer = parts.answer
    tensor = answer.degrees.tensor
    rows = []
    for stage in range(min(len(answer.stages), MAX_STAGES_SHOWN)):
        own = answer.ranks[stage * tensor : stage * tensor + columns]
        rows.append(
            StageRow(
                index=stage,
                first_layer=own[0].first_layer,
                last_layer=own[0].last_layer,
                cells=tuple(_cell(rank, answer.degrees.decode_context) for rank in own),
            )
        )
    return tuple(rows)


def _cell(rank: Rank, context: int) -> Cell:
    """Return a cell's words: its heads, the copy of them, or its share of the positions."""
    if not rank.kv_heads:
        return Cell(heads=Note("", "no heads"), is_copy=False)
    first, last = rank.kv_heads[0], rank.kv_heads[-1]
    params: dict[str, object] = {"first": first, "last": last}
    if context > 1:
        place: dict[str, object] = {
            "place": rank.tensor_rank % context,
            "context": context,
            "head": first,
        }
        return Cell(
            heads=Note("", "head {head}, positions {place} of every {context}", place),
            is_copy=rank.copies > 1,
        )
    if rank.copies > 1:
        params |= {"copy": rank.tensor_rank % rank.copies + 1, "copies": rank.copies}
        return Cell(heads=Note("", "head {first}, copy {copy} of {copies}", params), is_copy=True)
    if first == last:
        return Cell(heads=Note("", "head {first}", params), is_copy=False)
    return Cell(heads=Note("", "heads {first}–{last}", params), is_copy=False)


def _chart(ranks: tuple[Rank, ...], language: str) -> figures.Figure:
    say = translations(language).gettext
    mib = 2**20
    state = [rank.effective_bytes / mib for rank in ranks]
    waste = [(rank.paged_bytes - rank.effective_bytes) / mib for rank in ranks]
    return figures.bars(
        [f"{rank.pipeline_rank}·{rank.tensor_rank}" for rank in ranks],
        [(say("State"), "effective", state, False), (say("Paging waste"), "paging", waste, True)],
        x_title=say("Stage · tensor rank"),
        y_title="MiB",
    )


def _command(body: Mapping[str, Any]) -> str:
    runs = [
        f"{item['count']}x{item['length']}" if isinstance(item, dict) else str(item)
        for item in body["lengths"]
    ]
    return page_parts.command(
        "parallel",
        **page_parts.model_options(body),
        lengths=",".join(runs),
        block_size=body["block_size"],
        **{name: body.get(name) for name in DEGREES},
        layers_per_stage=",".join(map(str, body.get("layers_per_stage", ()))),
        weights=body.get("weights", {}).get("format"),
    )


# A `def` handler: thousands of ranks take longer than the loop may be held.
@router.api_route("/parallel", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: page_parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = parallel_page(query, language_of(request))
    return page_parts.answer_page(request, "parallel.html", page, "/parallel")


def _parts(query: Mapping[str, str]) -> ParallelParts:
    typed = {name: query.get(name, default).strip() for name, default in _DEFAULTS.items()}
    body = _body(model_form(query), typed, parse_lengths(typed["lengths"]))
    return compute_parallel(ParallelRequest.model_validate(body))


@router.get("/export/parallel.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        answer = parallel_answer(_parts(request.query_params))
    except (DomainError, ValidationError) as error:
        return page_parts.refused(problems_of(error, _FORM_FIELDS, "model"))
    return page_parts.json_download("ranks.json", answer)


@router.get("/export/parallel.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the ranks as CSV; heads are numbers between spaces, all else is a number."""
    try:
        answer = parallel_answer(_parts(request.query_params))
    except (DomainError, ValidationError) as error:
        return page_parts.refused(problems_of(error, _FORM_FIELDS, "model"))
    names = [name for name in RankAnswer.model_fields if name not in {"layers", "kv_heads"}]
    rows = (
        [*rank.layers, " ".join(map(str, rank.kv_heads)), *(getattr(rank, name) for name in names)]
        for rank in answer.ranks
    )
    return page_parts.csv_download(
        "ranks.csv", ("first_layer", "last_layer", "kv_heads", *names), rows
    )
