"""What calculator pages have in common: how they answer, export, and say the same as a command."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel

from app.api.compute import ModelAndFormats
from app.domain.state import Heads, LatentAttention, SlidingWindow, State
from app.pages.problems import Problems
from app.pages.render import LONGEST_QUERY, OWN_ADDRESS, render, wants_fragment
from app.web.language import translations
from app.web.marks import mark

KIND_NAMES: Mapping[str, str] = {
    "full_attention": mark("full attention"),
    "sliding_window": mark("sliding window"),
    "chunked_attention": mark("chunked attention"),
    "latent_attention": mark("latent attention"),
    "recurrent": mark("recurrent state"),
    "cross_attention": mark("cross attention"),
    "shared": mark("another layer's"),
}

PROGRAM = ".venv/bin/python -m app"
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


MAX_FIELD_BYTES = 4 * 2**20


async def asked(request: Request) -> Mapping[str, str]:
    """Return a form's fields: from the address, or from the body of a change too long for one."""
    if request.method != "POST":
        return request.query_params
    form = await request.form(max_part_size=MAX_FIELD_BYTES)
    return {name: value for name, value in form.multi_items() if isinstance(value, str)}


# A page's parameter of this type holds its form, whichever way it came.
Asked = Annotated[Mapping[str, str], Depends(asked)]


class AnsweringPage(Protocol):
    """A page's context: what is wrong with it, and the address of the same calculation."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def problems(self) -> Problems:
        """Return one sentence for each field at fault."""

    @property
    def query(self) -> str:
        """Return the shortest query string that gives the same page."""


def answer_page(request: Request, template: str, page: AnsweringPage, address: str) -> HTMLResponse:
    """Answer a page, or only its changing part when htmx asks.

    Mistakes of a change go beside the last good figures, which stay in sight, while the address
    holds what the fields do, so that a reload finds it again. A whole page with mistakes has
    status 422.
    """
    if not wants_fragment(request):
        return render(request, template, page, status=422 if page.problems else 200)
    fits = len(page.query) <= LONGEST_QUERY
    headers = {"HX-Replace-Url": f"{address}?{page.query}"} if fits else {}
    if page.problems:
        headers |= {"HX-Retarget": "#hints", "HX-Reswap": "outerHTML"}
        return render(request, template, page, fragment="hints", headers=headers)
    headers = headers or {"HX-Replace-Url": address}
    return render(request, template, page, fragment="answer", headers=headers)


def refused(problems: Problems) -> JSONResponse:
    """Answer an export that has no answer, as the API would."""
    detail = [
        {"loc": ["query", field], "msg": note.text, "type": note.code}
        for field, note in problems.items()
    ]
    return JSONResponse({"detail": detail}, status_code=422)


def json_download(name: str, answer: BaseModel) -> Response:
    """Return the API's own answer as a file."""
    return Response(
        answer.model_dump_json(indent=1),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def csv_download(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return rows as a CSV file in which no cell is taken for a formula."""
    return Response(
        csv_text(header, rows),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV in which no cell is taken for a formula."""
    out = io.StringIO()
    csv.writer(out).writerow(header)
    return out.getvalue() + csv_rows(rows)


def csv_rows(rows: Iterable[Sequence[object]]) -> str:
    """Return rows without a header, for a file that is written piece by piece."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow([_cell(item) for item in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value


def curl(call: str, body: Mapping[str, Any]) -> str:
    """Return the command that asks the API the same; a page puts its own address in."""
    text = json.dumps(body, ensure_ascii=False)
    return (
        f"curl -s {OWN_ADDRESS}/api/v1/{call} -H 'content-type: application/json' "
        f"-d {shlex.quote(text)}"
    )


def curl_get(call: str, query: str = "") -> str:
    """Return the command that reads from the API what needs no body."""
    return f"curl -s '{OWN_ADDRESS}/api/v1/{call}{'?' + query if query else ''}'"


def command(name: str, *words: str, **options: object) -> str:
    """Return the command line that says the same; options without a value are left out."""
    parts = [PROGRAM, name, *(shlex.quote(word) for word in words)]
    for option, value in options.items():
        if value is None or value in ("", False):
            continue
        flag = f"--{option.replace('_', '-')}"
        parts.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return " ".join(parts)


def model_options(body: Mapping[str, Any]) -> dict[str, object]:
    """Return the options that name a request's model and formats on the command line."""
    model, dtype = body["model"], body["kv_dtype"]
    kv_dtype = dtype if isinstance(dtype, str) else f"{dtype['k']}/{dtype['v']}"
    if "id" in model:
        return {"model": model["id"], "kv_dtype": kv_dtype}
    if {"config", "layer_states", "gguf"} & model.keys():
        return {"config": "config.json", "kv_dtype": kv_dtype}
    return {**model, "kv_dtype": kv_dtype}


def model_line(given: ModelAndFormats, language: str) -> str:
    """Return what a model keeps, in one line: `32 layers · 32 × full attention, 8 × 128`."""
    say = translations(language).gettext
    kinds: dict[str, tuple[int, State]] = {}
    for run in given.reading.state.runs:
        for item in run.layer.states:
            count, first = kinds.get(item.kind, (0, item))
            kinds[item.kind] = (count + run.count, first)
    parts = [f"{count} × {say(KIND_NAMES[kind])}{_widths(first, say)}"
             for kind, (count, first) in kinds.items()]  # fmt: skip
    layers = say(mark("{count} layers")).format(count=given.reading.state.num_layers)
    return " · ".join([layers, *parts])


def _widths(state: State, say: Callable[[str], str]) -> str:
    """Return the heads and widths of a kind's first state, and its window."""
    if isinstance(state, LatentAttention):
        return f" ({state.latent_dim} + {state.rope_dim})"
    if not isinstance(state, Heads):
        return ""
    width = str(state.k_dim) if state.k_dim == state.v_dim else f"{state.k_dim}/{state.v_dim}"
    text = say(mark("{heads} KV heads, {width} wide")).format(heads=state.kv_heads, width=width)
    if isinstance(state, SlidingWindow):
        text += say(mark(", window {window}")).format(window=state.window)
    return f" ({text})"
