"""`/models`: the catalogue, searched, filtered, sorted, two of its entries side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from app.api.catalogue import (
    Kind,
    ModelSummary,
    SortKey,
    in_order,
    matching,
    size_of,
    summary,
)
from app.catalog import models
from app.domain.dtypes import dtype_named
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.pages import figures
from app.pages.page_parts import KIND_NAMES, answer_page, command, csv_download, curl_get
from app.pages.problems import Problems
from app.web.language import language_of
from app.web.marks import mark

if TYPE_CHECKING:
    from app.pages.model_view import ModelView

router = APIRouter(include_in_schema=False)

ROWS_SHOWN = 50
MAX_PICKED = 2
_PICKED_DTYPE = "bf16"
LONGEST_QUERY = 200
_BILLION = 10**9
# Sizes by which people choose a device: what fits a laptop, one card, a node, a rack.
SIZES: Mapping[str, tuple[str, int, int | None]] = {
    "1": (mark("under 1 billion"), 1, _BILLION - 1),
    "4": (mark("1 to 4 billion"), _BILLION, 4 * _BILLION - 1),
    "15": (mark("4 to 15 billion"), 4 * _BILLION, 15 * _BILLION - 1),
    "80": (mark("15 to 80 billion"), 15 * _BILLION, 80 * _BILLION - 1),
    "300": (mark("80 to 300 billion"), 80 * _BILLION, 300 * _BILLION - 1),
    "more": (mark("300 billion and more"), 300 * _BILLION, None),
}
COLUMNS: tuple[tuple[SortKey, str], ...] = (
    ("id", mark("Model")),
    ("parameters", mark("Parameters")),
    ("layers", mark("Layers")),
    ("bytes_per_token", mark("A token")),
    ("window_bytes", mark("Windows")),
    ("fixed_bytes", mark("Fixed")),
    ("max_context_tokens", mark("Context")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's head: a link that sorts by it, or turns the order round."""

    key: str
    label: str
    query: str
    sorted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One entry of the list, and the address with it among those compared."""

    summary: ModelSummary
    size: int | None
    pick_query: str
    is_picked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """An entry chosen for comparison; `view` is None where it is not read."""

    summary: ModelSummary
    size: int | None
    view: ModelView | None
    drop_query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A search that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(query="kind=recurrent", text=Note("", "Hybrids: a state beside attention")),
    Example(query="kind=latent_attention", text=Note("", "Latent attention: DeepSeek, Kimi, GLM")),
    Example(
        query="pick=google%2Fgemma-3-27b-it&pick=Qwen%2FQwen3-32B",
        text=Note("", "Gemma 3 27B beside Qwen3 32B"),
    ),
    Example(
        query="sort=bytes_per_token&order=desc",
        text=Note("", "The most bytes a token first"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPage:
    """Everything that the template of /models may name."""

    problems: Problems
    query: str
    q: str
    family: str
    kind: str
    size: str
    read: str
    sort: str
    order: str
    families: tuple[tuple[str, int], ...]
    kinds: Mapping[str, str]
    letters: Mapping[str, str]
    sizes: Mapping[str, tuple[str, int, int | None]]
    columns: tuple[Column, ...]
    rows: tuple[ModelRow, ...]
    total: int
    all_models: int
    read_models: int
    offset: int
    next_query: str | None
    previous_query: str | None
    picked: tuple[Picked, ...]
    compared: tuple[tuple[int, tuple[int, ...]], ...]
    picked_chart: figures.Figure | None
    examples: tuple[Example, ...]
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The query string of the page, each value one of those offered."""

    q: str
    family: str
    kind: str
    size: str
    read: str
    sort: SortKey
    order: str
    offset: int
    picks: tuple[str, ...]

    def query(self, **changes: object) -> str:
        """Return the shortest query string of this, with some values changed."""
        values: dict[str, object] = {
            "q": self.q, "family": self.family, "kind": self.kind, "size": self.size,
            "read": self.read, "sort": self.sort, "order": self.order, "offset": self.offset,
            "pick": self.picks, **changes,
        }  # fmt: skip
        plain = {"sort": "id", "order": "asc", "offset": 0}
        kept: list[tuple[str, object]] = [
            (key, value)
            for key, value in values.items()
            if key != "pick" and value and value != plain.get(key)
        ]
        picks = values["pick"]
        kept += [("pick", pick) for pick in picks] if isinstance(picks, tuple) else []
        return urlencode(kept)


def _asked(request: Request) -> _Asked:
    query = request.query_params
    sort = query.get("sort", "id")
    known = models.index()
    picks = [pick for pick in dict.fromkeys(query.getlist("pick")) if pick in known]
    offset = query.get("offset", "0")
    return _Asked(
        q=" ".join(query.get("q", "").split())[:LONGEST_QUERY],
        family=query.get("family", "") if query.get("family") in dict(_families()) else "",
        kind=query.get("kind", "") if query.get("kind") in get_args(Kind) else "",
        size=query.get("size", "") if query.get("size") in SIZES else "",
        read=query.get("read", "") if query.get("read") in {"yes", "no"} else "",
        sort=sort if sort in get_args(SortKey) else "id",  # type: ignore[arg-type]
        order="desc" if query.get("order") == "desc" else "asc",
        offset=int(offset) if offset.isascii() and offset.isdigit() and len(offset) < 7 else 0,  # noqa: PLR2004
        # The last two that were chosen, so that a third takes the place of the first.
        picks=tuple(picks[-MAX_PICKED:]),
    )


@lru_cache(maxsize=1)
def _families() -> tuple[tuple[str, int], ...]:
    """Return the model types of the catalogue with how many entries each has, most first."""
    counts: dict[str, int] = {}
    for row in models.index().values():
        if row["model_type"]:
            counts[row["model_type"]] = counts.get(row["model_type"], 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def models_page(request: Request, language: str) -> ModelsPage:
    """Return the page's context for a request; what is not offered is passed over."""
    from app.pages.model_view import LETTERS

    asked = _asked(request)
    found = _found(asked)
    after = asked.offset + ROWS_SHOWN
    before = max(0, asked.offset - ROWS_SHOWN)
    picked = tuple(_picked(pick, asked, language) for pick in asked.picks)
    index = models.index()
    return ModelsPage(
        problems={},
        query=asked.query(),
        q=asked.q,
        family=asked.family,
        kind=asked.kind,
        size=asked.size,
        read=asked.read,
        sort=asked.sort,
        order=asked.order,
        families=_families(),
        kinds={kind: KIND_NAMES[kind] for kind in get_args(Kind)},
        letters=LETTERS,
        sizes=SIZES,
        columns=_columns(asked),
        rows=tuple(_row(row, asked) for row in found[asked.offset : after]),
        total=len(found),
        all_models=len(index),
        read_models=sum(row["readable"] for row in index.values()),
        offset=asked.offset,
        next_query=asked.query(offset=after) if after < len(found) else None,
        previous_query=asked.query(offset=before) if asked.offset else None,
        picked=picked,
        compared=_compared(picked),
        picked_chart=_picked_chart(picked, language),
        examples=EXAMPLES,
        curl=_curl(asked),
        command=_command(asked),
    )


def _bounds(asked: _Asked) -> tuple[int, int | None]:
    return SIZES[asked.size][1:] if asked.size else (0, None)


def _found(asked: _Asked) -> list[Mapping[str, Any]]:
    low, high = _bounds(asked)
    rows = matching(
        asked.q,
        family=asked.family,
        kind=asked.kind,
        readable={"yes": True, "no": False}.get(asked.read),
        min_parameters=low,
        max_parameters=high,
    )
    return in_order(rows, asked.sort, descending=asked.order == "desc")


def _row(row: Mapping[str, object], asked: _Asked) -> ModelRow:
    line = summary(row)
    others = tuple(pick for pick in asked.picks if pick != line.id)
    return ModelRow(
        summary=line,
        size=size_of(row),
        pick_query=asked.query(pick=(*others, line.id)[-MAX_PICKED:]),
        is_picked=line.id in asked.picks,
    )


def _columns(asked: _Asked) -> tuple[Column, ...]:
    found = []
    for key, label in COLUMNS:
        own = asked.sort == key
        # A figure is first asked for its largest, a name for its first letter.
        first = "asc" if key == "id" else "desc"
        order = ("desc" if asked.order == "asc" else "asc") if own else first
        state = {"asc": "ascending", "desc": "descending"}[asked.order] if own else "none"
        query = asked.query(sort=key, order=order, offset=0)
        found.append(Column(key=key, label=label, query=query, sorted=state))
    return tuple(found)


def _picked(model_id: str, asked: _Asked, language: str) -> Picked:
    from app.pages.model_view import model_view

    row = models.index()[model_id]
    view = None
    if row["readable"]:
        reading = models.read_entry(model_id)
        view = model_view(
            reading, KvFormats.same(dtype_named(_PICKED_DTYPE)), language, name=model_id
        )
    others = tuple(pick for pick in asked.picks if pick != model_id)
    return Picked(
        summary=summary(row), size=size_of(row), view=view, drop_query=asked.query(pick=others)
    )


def _compared(picked: tuple[Picked, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (tokens, bytes of each entry) at every context length."""
    tables = [item.view.contexts for item in picked if item.view is not None]
    return tuple(
        (rows[0].tokens, tuple(row.total_bytes for row in rows))
        for rows in zip(*tables, strict=True)
    )


def _picked_chart(picked: tuple[Picked, ...], language: str) -> figures.Figure | None:
    from app.pages.model_view import context_chart

    drawn = [(item.view.name, item.view.contexts) for item in picked if item.view is not None]
    if len(drawn) < MAX_PICKED:
        return None
    return context_chart(drawn, language)


def _curl(asked: _Asked) -> str:
    """Return what asks the API for the pair that is compared, else for the list."""
    if len(asked.picks) == MAX_PICKED:
        return "\n".join(curl_get(f"models/{quote(pick)}") for pick in asked.picks)
    low, high = _bounds(asked)
    values: list[tuple[str, object]] = [("q", asked.q), ("family", asked.family),
                                        ("kind", asked.kind)]  # fmt: skip
    if asked.read:
        values.append(("readable", "true" if asked.read == "yes" else "false"))
    values += [("min_parameters", low), ("max_parameters", high)]
    if asked.sort != "id":
        values.append(("sort", asked.sort))
    if asked.order == "desc":
        values.append(("descending", "true"))
    query = urlencode([(key, value) for key, value in values if value])
    return curl_get("models", query)


def _command(asked: _Asked) -> str:
    if len(asked.picks) == MAX_PICKED:
        return "\n".join(
            command("per-token", model=pick, kv_dtype=_PICKED_DTYPE) for pick in asked.picks
        )
    low, high = _bounds(asked)
    return command(
        "models",
        *asked.q.split(),
        family=asked.family,
        kind=asked.kind,
        readable=asked.read == "yes",
        not_readable=asked.read == "no",
        min_parameters=low or None,
        max_parameters=high,
        sort="" if asked.sort == "id" else asked.sort,
        descending=asked.order == "desc",
    )


@router.get("/models", response_class=HTMLResponse)
async def show_models(request: Request) -> HTMLResponse:
    """Answer the catalogue's page, or only its changing part when htmx asks."""
    page = models_page(request, language_of(request))
    return answer_page(request, "models.html", page, "/models")


@router.get("/export/models.csv", response_model=None)
async def export_models(request: Request) -> Response:
    """Answer every entry that the page's filters let through, as CSV."""
    rows = _found(_asked(request))
    names = list(ModelSummary.model_fields)
    lines = (summary(row) for row in rows)
    return csv_download(
        "models.csv", names, ([_text(getattr(line, name)) for name in names] for line in lines)
    )


def _text(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value
