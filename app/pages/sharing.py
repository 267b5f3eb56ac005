"""`/sharing`: block tables over common prefixes, and who holds each block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api import sharing_schemas as s
from app.api.sharing import ComputedSharing, compute_sharing, groups_body, sharing_answer
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.prefix_tree import MAX_ALL_TOKENS, MAX_SEQUENCES
from app.domain.sharing import POLICIES, Sharing
from app.domain.sharing_tables import SharedTables
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
from app.readers.token_ids import parse_sequences
from app.web.language import language_of, translations

router = APIRouter(include_in_schema=False)

GIVEN = ("groups", "sequences", "samples")
EXAMPLE_GROUPS = "32 -> 1, 1"
EXAMPLE_SEQUENCES = "1 2 3 4\n9 2 3 4\n1 2 3 4 5"
ROWS_SHOWN = 50
# A run of so many neighbouring blocks with equal holders is drawn as one cell.
SHORTEST_RUN = 6
CELLS_SHOWN = 64
_SAMPLE_FIELDS = {"prompt_tokens": "1000", "samples": "4", "own_tokens": "50"}
_FORM_FIELDS = (
    "model", "layers", "kv_heads", "head_dim", "v_head_dim", "config", "kv_dtype",
    "groups", "sequences", *_SAMPLE_FIELDS, "block_size", "policy", "offset",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A calculation that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"groups": EXAMPLE_GROUPS}),
        text=Note("", "Two requests share 32 tokens and have one of their own: 4 blocks, not 6"),
    ),
    Example(
        query=urlencode({"groups": "512 -> 40 x 200 -> 3 x 60"}),
        text=Note("", "A system prompt of 512, 40 users with 200 each, 3 answers of 60 for each"),
    ),
    Example(
        query=urlencode(
            {"given": "sequences", "sequences": EXAMPLE_SEQUENCES, "block_size": "2"}
        ),
        text=Note("", "Token ids: the same last block after another first token is not shared"),
    ),
    Example(
        query=urlencode(
            {"given": "samples", "prompt_tokens": "3000", "samples": "8", "own_tokens": "500",
             "model": "google/gemma-3-27b-it"}
        ),
        text=Note("", "Eight samples of one prompt on Gemma 3 27B, whose windows have moved on"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One table entry, or a run of them: how many tables hold each, and how full the last is."""

    first: int
    last: int
    count: int
    holders: int
    filled: int
    shade: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence's table; `more` entries are not drawn."""

    number: int
    blocks: int
    cells: list[Cell]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingView:
    """An answer, as the page shows it."""

    computed: ComputedSharing
    policies: list[Sharing]
    rows: list[Row]
    offset: int
    next_offset: int | None
    previous_offset: int | None
    columns: int
    rest_bytes: tuple[int, int]
    chart: figures.Figure
    bytes_chart: figures.Figure
    model_line: str
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPage:
    """Everything that the template of `/sharing` may name."""

    form: ModelForm
    given: str
    groups: str
    sequences: str
    samples: dict[str, str]
    block_size: str
    policy: str
    problems: Problems
    view: SharingView | None
    offered: list[str]
    formats: list[str]
    kinds: Mapping[str, str]
    examples: tuple[Example, ...]
    query: str


def _fields(query: Mapping[str, str]) -> SharingPage:
    """Return the page before any answer: what its fields hold."""
    given = query.get("given", "")
    policy = query.get("policy", "")
    return SharingPage(
        form=model_form(query),
        given=given if given in GIVEN else "groups",
        groups=query.get("groups", EXAMPLE_GROUPS),
        sequences=query.get("sequences", EXAMPLE_SEQUENCES),
        samples={name: query.get(name, usual).strip() for name, usual in _SAMPLE_FIELDS.items()},
        block_size=query.get("block_size", "16").strip(),
        policy=policy if policy in POLICIES else "",
        problems={},
        view=None,
        offered=offered_models(),
        formats=format_names(),
        kinds=parts.KIND_NAMES,
        examples=EXAMPLES,
        query="",
    )


def sharing_page(query: Mapping[str, str], language: str) -> SharingPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    page = _fields(query)
    page = replace(page, query=_canonical(page))
    try:
        body = _body(page)
        request = s.SharingRequest.model_validate(body)
        offset = max(integer("offset", query.get("offset") or "0"), 0)
        return replace(page, view=_view(page, request, body, offset, language))
    except (DomainError, ValidationError) as error:
        return replace(page, problems=_problems(page, error))


def _problems(page: SharingPage, error: DomainError | ValidationError) -> Problems:
    otherwise = "config" if page.form.source == "config" else "model"
    return problems_of(error, _FORM_FIELDS, otherwise)


def _body(page: SharingPage) -> dict[str, Any]:
    """Return the API's body for what the fields hold.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    from app.readers.prefix_groups import parse_groups

    body = model_body(page.form)
    body["block_size"] = integer("block_size", page.block_size)
    if page.given == "groups":
        body["groups"] = groups_body(parse_groups(page.groups))
    elif page.given == "sequences":
        body["sequences"] = parse_sequences(
            page.sequences, most_sequences=MAX_SEQUENCES, most_tokens=MAX_ALL_TOKENS
        )
    else:
        body["samples"] = {name: integer(name, text) for name, text in page.samples.items()}
    if page.policy:
        body["policy"] = page.policy
    return body


def _canonical(page: SharingPage) -> str:
    kept = model_query(page.form)
    if page.given == "groups":
        kept.append(("groups", "; ".join(" ".join(page.groups.split()).split("; "))))
    elif page.given == "sequences":
        lines = (" ".join(line.split()) for line in page.sequences.splitlines())
        kept += [("given", "sequences"), ("sequences", "\n".join(line for line in lines if line))]
    else:
        kept += [("given", "samples"), *page.samples.items()]
    if page.block_size != "16":
        kept.append(("block_size", page.block_size))
    if page.policy:
        kept.append(("policy", page.policy))
    return urlencode(kept)


def _view(
    page: SharingPage, request: s.SharingRequest, body: dict[str, Any], offset: int, language: str
) -> SharingView:
    computed = compute_sharing(request)
    answer = computed.sharing
    other = next(policy for policy in POLICIES if policy != answer.policy)
    beside = compute_sharing(request.model_copy(update={"policy": other})).sharing
    count = 0 if answer.tables is None else len(answer.tables.rows)
    rows = _rows(answer.tables, offset)
    after = offset + ROWS_SHOWN
    return SharingView(
        computed=computed,
        policies=sorted((answer, beside), key=lambda item: POLICIES.index(item.policy)),
        rows=rows,
        columns=max((len(row.cells) + bool(row.more) for row in rows), default=1) or 1,
        offset=offset,
        next_offset=after if after < count else None,
        previous_offset=max(0, offset - ROWS_SHOWN) if offset else None,
        rest_bytes=(
            answer.logical_bytes - answer.unshared_effective_bytes,
            answer.paged_bytes - answer.effective_bytes,
        ),
        chart=_blocks_chart(answer, language),
        bytes_chart=_bytes_chart(answer, language),
        model_line=parts.model_line(computed.given, language),
        curl=parts.curl("sharing", body),
        command=_command(page, body),
    )


def _shade(holders: int) -> int:
    """Return how dark a block is drawn: for one holder, two, up to eight, and more."""
    return sum(holders >= least for least in (2, 3, 9))


def _cells(tables: SharedTables, row: tuple[int, ...]) -> list[Cell]:
    """Return a row's cells: long runs of blocks that are alike as one, the others one by one."""
    cells: list[Cell] = []
    start = 0
    while start < len(row):
        holders = tables.ref_counts[row[start]]
        end = start + 1
        while (
            end < len(row)
            and row[end] == row[end - 1] + 1
            and tables.ref_counts[row[end]] == holders
            and tables.filled[row[end]] == tables.filled[row[start]]
        ):
            end += 1
        end = end if end - start >= SHORTEST_RUN else start + 1
        cells.append(
            Cell(
                first=row[start],
                last=row[end - 1],
                count=end - start,
                holders=holders,
                filled=tables.filled[row[start]],
                shade=_shade(holders),
            )
        )
        start = end
    return cells


def _rows(tables: SharedTables | None, offset: int) -> list[Row]:
    if tables is None:
        return []
    return [
        Row(
            number=number,
            blocks=len(row),
            cells=(cells := _cells(tables, row))[:CELLS_SHOWN],
            more=sum(cell.count for cell in cells[CELLS_SHOWN:]),
        )
        for number, row in enumerate(tables.rows[offset : offset + ROWS_SHOWN], start=offset + 1)
    ]


def _blocks_chart(answer: Sharing, language: str) -> figures.Figure:
    say = translations(language).gettext
    names = [say("Table entries"), say("Unique blocks")]
    if answer.tables is None:
        counts = [answer.logical_blocks, answer.unique_blocks]
        return figures.bars(
            names, [(say("Blocks"), "paging", counts, False)], y_title=say("Blocks")
        )
    held = answer.tables.blocks_by_holders
    alone = held.get(1, 0)
    shared = [answer.logical_blocks - alone, answer.unique_blocks - alone]
    return figures.bars(
        names,
        [
            (say("Held by one sequence"), "fixed", [alone, alone], False),
            (say("Held by several"), "paging", shared, True),
        ],
        y_title=say("Blocks"),
    )


def _bytes_chart(answer: Sharing, language: str) -> figures.Figure:
    say = translations(language).gettext
    state = [answer.unshared_effective_bytes, answer.effective_bytes]
    whole = [answer.logical_bytes, answer.paged_bytes]
    return figures.bars(
        [say("Without sharing"), say("With sharing")],
        [
            (say("State"), "effective", [part / MIB for part in state], False),
            (
                say("Empty places and second copies"),
                "paging",
                [(total - part) / MIB for total, part in zip(whole, state, strict=True)],
                True,
            ),
        ],
        y_title="MiB",
    )


def _command(page: SharingPage, body: dict[str, Any]) -> str:
    given: dict[str, object] = {"groups": page.groups} if page.given == "groups" else {}
    if page.given == "sequences":
        given = {"sequences": "; ".join(page.sequences.split("\n"))}
    elif page.given == "samples":
        given = dict(page.samples)
    return parts.command(
        "sharing",
        **parts.model_options(body),
        **given,
        block_size=body["block_size"],
        policy=page.policy,
    )


@router.api_route("/sharing", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = sharing_page(query, language_of(request))
    return parts.answer_page(request, "sharing.html", page, "/sharing")


def _checked(query: Mapping[str, str]) -> ComputedSharing:
    return compute_sharing(s.SharingRequest.model_validate(_body(_fields(query))))


@router.get("/export/sharing.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, as a download."""
    try:
        computed = _checked(request.query_params)
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(_fields(request.query_params), error))
    return parts.json_download("sharing.json", sharing_answer(computed))


@router.get("/export/sharing.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the block tables as CSV, one line an entry; none where they are too many to list."""
    try:
        tables = _checked(request.query_params).sharing.tables
    except (DomainError, ValidationError) as error:
        return parts.refused(_problems(_fields(request.query_params), error))
    rows = () if tables is None else tables.rows
    return parts.csv_download(
        "sharing.csv",
        ["sequence", "entry", "block", "holders", "filled_tokens"],
        (
            (number, entry, block, tables.ref_counts[block], tables.filled[block])
            for number, row in enumerate(rows, start=1)
            for entry, block in enumerate(row)
            if tables is not None
        ),
    )
