"""`/models/inspect`: paste or drop what says what a model is, and see what its layers keep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import UploadFile

from app.api.inspect import Asked, Inspection, inspect_in_thread
from app.api.model_shapes import kv_dtype_name
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.pages.model_form import (
    MAX_CONFIG_CHARACTERS,
    format_names,
    integer,
    parsed_config,
    short_config,
)
from app.pages.page_parts import MAX_FIELD_BYTES, answer_page, command
from app.pages.problems import Problems, problems_of
from app.pages.render import LONGEST_QUERY, OWN_ADDRESS, render, wants_fragment
from app.settings import Settings
from app.web.language import language_of
from app.web.marks import mark

if TYPE_CHECKING:
    from app.pages.model_view import ModelView
    from app.readers.gguf import OmittedValue
    from app.readers.model_files import ReadFile

router = APIRouter(include_in_schema=False)

# What a link can hold without trouble on its way; a longer config is read, and not linked.
LONGEST_LINKED = 12_000
MAX_LISTED = 400
_LONGEST_SHOWN = 300
_FIELDS = ("config", "kv_dtype", "encoder_tokens", "hub", "revision", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A config that can be loaded with a click."""

    query: str
    text: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One file: its name and kind, and what it says, line by line."""

    name: str
    kind: str
    given_bytes: int
    lines: tuple[tuple[str, str], ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectView:
    """What was read, as the page shows it; `view` is None where no file speaks of layers."""

    found: Inspection
    view: ModelView | None
    name: str
    family: str
    kv_dtype: str
    said: tuple[Said, ...]
    ledgers_query: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectPage:
    """Everything that the template of /models/inspect may name."""

    problems: Problems
    query: str
    has_link: bool
    config: str
    kv: str
    encoder_tokens: str
    hub: str
    revision: str
    hub_enabled: bool
    hub_host: str
    formats: list[str]
    max_upload_bytes: int
    examples: tuple[Example, ...]
    view: InspectView | None
    curl: str
    command: str


KIND_OF_FILE: Mapping[str, str] = {
    "config": mark("a config.json"),
    "gguf": mark("a GGUF header"),
    "safetensors": mark("a safetensors header"),
    "safetensors_index": mark("an index of safetensors files"),
}


@lru_cache(maxsize=1)
def examples() -> tuple[Example, ...]:
    """Return configs of four kinds from the catalogue, whole."""
    from app.catalog import models

    texts = (
        ("google/gemma-3-27b-it", mark("Gemma 3 27B: windows in five of six layers")),
        ("deepseek-ai/DeepSeek-V3", mark("DeepSeek-V3: one latent vector for all heads")),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", mark("Qwen3-Next 80B: states beside attention")),
        ("openai/gpt-oss-20b", mark("gpt-oss 20B: every second layer in a window of 128")),
    )
    return tuple(
        Example(
            query=urlencode({"config": short_config(json.dumps(models.entry(name)["config"]))}),
            text=Note("", text),
        )
        for name, text in texts
    )


def _asked(form: Mapping[str, str], files: Sequence[tuple[str, bytes]], token: str | None) -> Asked:
    """Return what the form asks for.

    Raises:
        DomainError: for a field whose text cannot be read.

    """
    encoder_tokens = form.get("encoder_tokens", "").strip()
    encoder = integer("encoder_tokens", encoder_tokens) if encoder_tokens else None
    config = form.get("config", "").strip()
    given = list(files)
    if config:
        parsed_config(config)  # says what is wrong beside its own field
        pasted = ("config.json", config.encode())
        if files:
            _check_pasted(pasted, encoder)
        given.append(pasted)
    return Asked(
        files=given,
        hub=form.get("hub", "").strip(),
        revision=form.get("revision", "").strip(),
        token=token,
        kv_dtype=form.get("kv", "").strip(),
        encoder_tokens=encoder,
    )


def _check_pasted(pasted: tuple[str, bytes], encoder_tokens: int | None) -> None:
    """Read a pasted config alone, so that its mistakes are not taken for those of a file beside it.

    Raises:
        DomainError: for what the config says or lacks, as a field of `config`.

    """
    from app.readers.model_files import read_model_files

    try:
        read_model_files([pasted], encoder_tokens=encoder_tokens)
    except DomainError as error:
        raise (error if error.field[0] == "encoder_tokens" else error.under("config")) from None


async def inspect_page(
    form: Mapping[str, str],
    files: Sequence[tuple[str, bytes]],
    token: str | None,
    settings: Settings,
    language: str,
) -> InspectPage:
    """Return the page's context; mistakes become sentences beside fields."""
    problems: dict[str, Note] = {}
    view: InspectView | None = None
    config = form.get("config", "").strip()
    pasted = ("config.json",) if config or not files else ()
    names = (*pasted, *(name for name, _ in files))
    is_asked = bool(files or config or form.get("hub", "").strip())
    if is_asked:
        try:
            asked = _asked(form, files, token)
            found = await inspect_in_thread(asked, settings)
            view = _view(found, form, language, from_files=bool(files))
        except DomainError as error:
            otherwise = "file" if files else "hub" if form.get("hub", "").strip() else "config"
            known = (*_FIELDS, "file") if files else _FIELDS
            problems |= problems_of(error, known, otherwise)
    query = _canonical(form)
    return InspectPage(
        problems=problems,
        query=query,
        has_link=not files and len(query) <= LONGEST_QUERY,
        config=config,
        kv=form.get("kv", "").strip(),
        encoder_tokens=form.get("encoder_tokens", "").strip(),
        hub=form.get("hub", "").strip(),
        revision=form.get("revision", "").strip(),
        hub_enabled=settings.hub_enabled,
        hub_host=_hub_host(settings),
        formats=format_names(),
        max_upload_bytes=settings.max_upload_bytes,
        examples=examples(),
        view=view,
        curl=_curl(form, names),
        command=_command(form, names),
    )


def _view(
    found: Inspection, form: Mapping[str, str], language: str, *, from_files: bool
) -> InspectView:
    from app.pages.model_view import model_view

    reading = found.files.reading
    view = None
    if reading is not None and found.formats is not None:
        view = model_view(reading, found.formats, language)
    return InspectView(
        found=found,
        view=view,
        name="" if reading is None else reading.name,
        family="" if reading is None else reading.family,
        kv_dtype=kv_dtype_name(found.formats) or "",
        said=tuple(_said(file) for file in found.files.files),
        ledgers_query=_ledgers_query(found, form, view, from_files=from_files),
    )


def _said(file: ReadFile) -> Said:
    lines = said_lines(file.says, file.omitted)
    return Said(
        name=file.name,
        kind=KIND_OF_FILE[file.format],
        given_bytes=file.given_bytes,
        lines=tuple(lines[:MAX_LISTED]),
        more=max(0, len(lines) - MAX_LISTED),
    )


def said_lines(
    says: Mapping[str, object], omitted: Mapping[str, OmittedValue]
) -> list[tuple[str, str]]:
    """Return what a file says as (name, value) lines, nested objects by their path."""
    lines: list[tuple[str, str]] = []
    left = list(reversed(list(says.items())))
    while left:
        name, value = left.pop()
        if isinstance(value, dict) and value:
            left += [(f"{name}.{key}", item) for key, item in reversed(list(value.items()))]
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append((name, text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"))
    lines += [(name, f"{value.length} × {value.holds}") for name, value in omitted.items()]
    return lines


def _ledgers_query(
    found: Inspection, form: Mapping[str, str], view: ModelView | None, *, from_files: bool
) -> str | None:
    """Return the calculator's address with this model: its config, else its layers by hand."""
    if view is None:
        return None
    text = short_config(form.get("config", "")) if not from_files else ""
    if not text and found.hub is None and found.files.config is not None:
        text = short_config(json.dumps(dict(found.files.config)))
    text = text or view.layer_states
    query = urlencode({"source": "config", "config": text, "kv": kv_dtype_name(found.formats)})
    return query if len(query) <= LONGEST_LINKED else None


def _canonical(form: Mapping[str, str]) -> str:
    kept = [(name, form.get(name, "").strip()) for name in ("kv", "encoder_tokens", "hub",
                                                            "revision")]  # fmt: skip
    config = form.get("config", "").strip()
    if config:
        kept.insert(0, ("config", short_config(config)))
    return urlencode([(name, text) for name, text in kept if text])


def _hub_host(settings: Settings) -> str:
    from app.hub import endpoint_of

    return urlsplit(endpoint_of(settings)).hostname or ""


def _curl(form: Mapping[str, str], names: Sequence[str]) -> str:
    hub, kv = form.get("hub", "").strip(), form.get("kv", "").strip()
    fields = [f"hub={hub}"] if hub else [f"file=@{name}" for name in names]
    fields += [f"revision={form['revision'].strip()}"] if form.get("revision", "").strip() else []
    fields += [f"kv_dtype={kv}"] if kv else []
    sent = " ".join(f"-F {shlex.quote(field)}" for field in fields)
    return f"curl -s {OWN_ADDRESS}/api/v1/models/inspect {sent}"


def _command(form: Mapping[str, str], names: Sequence[str]) -> str:
    hub, revision = form.get("hub", "").strip(), form.get("revision", "").strip()
    files = () if hub else names
    kv, encoder = form.get("kv", "").strip(), form.get("encoder_tokens", "").strip()
    return command(
        "inspect", *files, hub=hub, revision=revision, kv_dtype=kv, encoder_tokens=encoder
    )


@router.get("/models/inspect", response_class=HTMLResponse)
async def show(request: Request) -> HTMLResponse:
    """Answer the page for a pasted config, or a model of the Hub; the address is its state."""
    page = await inspect_page(
        request.query_params, (), None, request.app.state.settings, language_of(request)
    )
    return answer_page(request, "inspect.html", page, "/models/inspect")


@router.post("/models/inspect", response_class=HTMLResponse, response_model=None)
async def read_upload(request: Request) -> Response:
    """Answer the page for uploaded files, with a config pasted beside them or without.

    A small config file alone becomes an address, so that it can be shared like a pasted one. A
    model of the Hub comes this way when its token must not stand in an address.
    """
    async with request.form(max_part_size=MAX_FIELD_BYTES) as sent:
        form = {name: value for name, value in sent.multi_items() if isinstance(value, str)}
        files = [
            (item.filename, await item.read())
            for item in sent.getlist("file")
            if isinstance(item, UploadFile) and item.filename
        ]
    token = form.pop("token", "").strip()
    alone = _address_of_config(form, files)
    if alone is not None:
        if wants_fragment(request):  # the config's own field changes too, so the page is loaded
            return Response(headers={"HX-Redirect": alone})
        return RedirectResponse(alone, status_code=303)
    is_text = not files and not token
    if is_text and not wants_fragment(request):
        query = _canonical(form)
        if len(query) <= LONGEST_LINKED:
            return RedirectResponse(f"/models/inspect?{query}", status_code=303)
    page = await inspect_page(
        form, files, token or None, request.app.state.settings, language_of(request)
    )
    if is_text or wants_fragment(request):
        return answer_page(request, "inspect.html", page, "/models/inspect")
    if page.problems and request.headers.get("hx-request") == "true":
        headers = {"HX-Retarget": "#hints", "HX-Reswap": "outerHTML", "HX-Push-Url": "false"}
        return render(request, "inspect.html", page, fragment="hints", headers=headers)
    return render(request, "inspect.html", page, status=422 if page.problems else 200)


def _address_of_config(form: Mapping[str, str], files: Sequence[tuple[str, bytes]]) -> str | None:
    """Return the page's address with an uploaded config, where that is all and short enough."""
    if len(files) != 1 or form.get("config", "").strip():
        return None
    data = files[0][1].lstrip()
    if not data.startswith(b"{") or len(data) > MAX_CONFIG_CHARACTERS or b'"weight_map"' in data:
        return None
    text = data.decode("utf-8", "replace")
    query = _canonical({**form, "hub": "", "config": text})
    return f"/models/inspect?{query}" if len(query) <= LONGEST_LINKED else None
