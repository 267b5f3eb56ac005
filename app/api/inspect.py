"""`POST /models/inspect`: all that a config or the first bytes of a model's files say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, File, Form, Request, Response, UploadFile
from pydantic import Field

from app.api.answers import (
    Answer,
    Explained,
    LayerAnswer,
    NoteAnswer,
    layer_answers,
    notes_answer,
)
from app.api.hub_models import TOKEN_HEADER, hub_threads
from app.api.model_input import formats_of
from app.api.model_shapes import (
    ContextAnswer,
    WeightsAnswer,
    contexts_answer,
    kv_dtype_name,
    weights_of_config,
    weights_of_files,
)
from app.api.problems import REFUSED
from app.api.state_rows import layer_state_rows
from app.domain.errors import Conflict, DomainError, Missing
from app.domain.formats import KvFormats
from app.domain.notes import Note
from app.domain.per_token import Shape, omissions, shape_of
from app.domain.state import MAX_TOKENS
from app.domain.units import bytes_text
from app.readers.headers import MAX_FILES
from app.settings import Settings

if TYPE_CHECKING:
    from app.readers.model_files import ModelFiles

router = APIRouter(tags=["catalogue"], responses=REFUSED)

# Each may take the memory and the second that a header of many megabytes needs.
_THREADS = 2
_limiters: list[anyio.CapacityLimiter] = []


class FileAnswer(Answer):
    """One file: what it is, and all that was read in it."""

    name: str
    format: str = Field(description="config, gguf, safetensors or safetensors_index")
    given_bytes: int
    says: dict[str, Any] = Field(description="The config, or the header's own key-values.")
    omitted: dict[str, str] = Field(description="Values too long to keep: what, and how many.")


class HubSource(Answer):
    """Where on the Hub a config was read."""

    repo: str
    commit: str | None
    url: str


class InspectAnswer(Explained):
    """What layers keep, over context lengths, and what the weights take.

    Figures of the state are null where no file says what layers keep (a safetensors header names
    tensors, not layers).
    """

    name: str
    family: str | None
    dtype: str | None
    kv_dtype: str | None
    max_context_tokens: int | None
    files: list[FileAnswer]
    hub: HubSource | None
    layer_states: list[dict[str, Any]]
    layers: list[LayerAnswer]
    draft_layers: int
    bytes_per_token: int | None
    growth_bytes: int | None
    growth_tokens: int | None = Field(description="growth_bytes are added by so many tokens.")
    fixed_bytes_per_sequence: int | None
    window_bytes_per_sequence: int | None
    contexts: list[ContextAnswer]
    weights: WeightsAnswer | None
    notes: list[NoteAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was read, as domain values, for pages as for the API."""

    files: ModelFiles
    formats: KvFormats | None
    shape: Shape | None
    weights: WeightsAnswer | None
    hub: HubSource | None
    assumptions: tuple[Note, ...]
    notes: tuple[Note, ...]
    not_counted: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to inspect: files as (name, first bytes), or a model of the Hub."""

    files: Sequence[tuple[str, bytes]] = ()
    hub: str = ""
    revision: str = ""
    token: str | None = field(default=None, repr=False)
    kv_dtype: str = ""
    encoder_tokens: int | None = None


def inspect(asked: Asked, settings: Settings) -> Inspection:
    """Return all that the files, or the Hub's, say; blocks.

    Raises:
        DomainError: naming the field, as seen from the request's form.

    """
    if asked.hub:
        if asked.files:
            raise Conflict(
                "{field}: a file and a model of the Hub are two; give one of them",
                field="file",
            )
        return _inspect_hub(asked, settings)
    if not asked.files:
        raise Missing("{field} is missing: a config.json, a GGUF or a safetensors file",
                      field="file")  # fmt: skip
    return _inspection(_read(asked.files, asked), asked, "file")


def _read(files: Sequence[tuple[str, bytes]], asked: Asked, at: str = "file") -> ModelFiles:
    from app.readers.model_files import read_model_files

    try:
        return read_model_files(files, encoder_tokens=asked.encoder_tokens)
    except DomainError as error:
        if error.field[:1] in ((at,), ("encoder_tokens",)):
            raise
        raise error.under(at) from None


def _inspection(
    files: ModelFiles,
    asked: Asked,
    at: str,
    *,
    weights: WeightsAnswer | None = None,
    hub: HubSource | None = None,
    more_notes: Sequence[Note] = (),
) -> Inspection:
    reading = files.reading
    notes = [*files.notes, *more_notes]
    if weights is None and files.weights is not None:
        weights = weights_of_files(files.weights)
    if weights is None and files.config is not None:
        weights, why = weights_of_config(files.config)
        notes += why
    formats, shape, assumed = None, None, []
    if reading is not None:
        try:
            formats, taken = formats_of(asked.kv_dtype or None, None, reading)
            shape = shape_of(reading.state, formats)
        except DomainError as error:
            raise (error if error.field[:1] == ("kv_dtype",) else error.under(at)) from None
        assumed = [*reading.assumptions, *taken]
        notes += reading.notes
    return Inspection(
        files=files,
        formats=formats,
        shape=shape,
        weights=weights,
        hub=hub,
        assumptions=tuple(assumed),
        notes=tuple(notes),
        not_counted=() if formats is None else omissions(formats),
    )


def _inspect_hub(asked: Asked, settings: Settings) -> Inspection:
    """Return what a model's config on the Hub says, with the headers of its weights.

    An address of a GGUF or safetensors file is read as that file.
    """
    from app.hub import (
        fetch_config,
        fetch_header,
        fetch_weights,
        hub_access,
        read_hub_address,
    )

    access = hub_access(settings).with_token(asked.token)
    address = read_hub_address(access, asked.hub, asked.revision)
    if address.file is not None and address.file.casefold().endswith((".gguf", ".safetensors")):
        name, data = fetch_header(access, address)
        return _inspection(_read([(name, data)], asked, "hub"), asked, "hub")
    found = fetch_config(access, address)
    source = HubSource(repo=found.address.repo, commit=found.commit, url=found.url)
    notes: list[Note] = []
    weights = None
    try:
        stored = fetch_weights(access, found)
        weights = None if stored is None else weights_of_files(stored)
    except DomainError as error:
        notes.append(
            Note("headers_not_read", "The headers of the weights were not read: {why}",
                 {"why": error.note})
        )  # fmt: skip
    from pydantic_core import to_json

    files = _read([("config.json", to_json(found.config))], asked, "hub")
    return _inspection(files, asked, "hub", weights=weights, hub=source, more_notes=notes)


def inspect_answer(found: Inspection) -> InspectAnswer:
    """Return an inspection as JSON shows it."""
    reading, shape, formats = found.files.reading, found.shape, found.formats
    return InspectAnswer(
        name="" if reading is None else reading.name,
        family=None if reading is None else reading.family,
        dtype=None if reading is None else reading.dtype,
        kv_dtype=kv_dtype_name(formats),
        max_context_tokens=None if reading is None else reading.max_context_tokens,
        files=[
            FileAnswer(
                name=file.name,
                format=file.format,
                given_bytes=file.given_bytes,
                says=dict(file.says),
                omitted={key: f"{v.length} × {v.holds}" for key, v in file.omitted.items()},
            )
            for file in found.files.files
        ],
        hub=found.hub,
        layer_states=[] if reading is None else layer_state_rows(reading.state),
        layers=[] if reading is None or formats is None else layer_answers(reading.state, formats),
        draft_layers=0 if reading is None else len(reading.draft_layers),
        bytes_per_token=None if shape is None else shape.bytes_per_token,
        growth_bytes=None if shape is None else shape.growth_bytes,
        growth_tokens=None if shape is None else shape.growth_tokens,
        fixed_bytes_per_sequence=None if shape is None else shape.fixed_bytes,
        window_bytes_per_sequence=None if shape is None else shape.window_bytes,
        contexts=[]
        if reading is None or formats is None
        else contexts_answer(reading.state, formats),
        weights=found.weights,
        notes=notes_answer(found.notes),
        formula=_formula(found),
        workings={} if shape is None else shape.workings,
        assumptions=notes_answer(found.assumptions),
        not_counted=notes_answer(found.not_counted),
    )


def _formula(found: Inspection) -> str:
    if found.shape is not None:
        return found.shape.workings["bytes_per_token"].numbers
    weights = found.weights
    if weights is None or weights.bytes is None:
        return ""
    terms = [f"{total.bytes} B {total.type}" for total in weights.by_type[:8]]
    more = ["…"] if len(weights.by_type) > len(terms) else []
    return f"{' + '.join([*terms, *more]) or bytes_text(weights.bytes)} = {weights.bytes} B"


def inspect_threads() -> anyio.CapacityLimiter:
    """Return the limit on inspections at a time, made inside the running loop."""
    if not _limiters:
        _limiters.append(anyio.CapacityLimiter(_THREADS))
    return _limiters[0]


async def inspect_in_thread(asked: Asked, settings: Settings) -> Inspection:
    """Return `inspect`'s answer without holding up other requests."""
    limiter = hub_threads() if asked.hub else inspect_threads()
    return await anyio.to_thread.run_sync(inspect, asked, settings, limiter=limiter)


@router.post(
    "/models/inspect",
    summary="What a config, GGUF or safetensors file says of a model",
    response_model=InspectAnswer,
)
async def post_inspect(
    *,
    request: Request,
    file: Annotated[
        list[UploadFile] | None,
        File(
            max_length=MAX_FILES,
            description="A config.json, a GGUF's or safetensors file's first megabytes, an index "
            "of shards; or a config with the headers that belong to it.",
        ),
    ] = None,
    config: Annotated[str, Form(description="A config.json, pasted.")] = "",
    hub: Annotated[
        str, Form(max_length=1000, description="A model of the Hub, where that is enabled.")
    ] = "",
    revision: Annotated[str, Form(max_length=200)] = "",
    kv_dtype: Annotated[str, Form(max_length=40, description="Of keys and values.")] = "",
    encoder_tokens: Annotated[int | None, Form(ge=0, le=MAX_TOKENS)] = None,
) -> Response:
    """Return every layer by kind, fixed part, windows and slope, and the weights by type."""
    files = [(item.filename or "", await item.read()) for item in file or ()]
    if config.strip():
        files.append(("config.json", config.encode()))
    asked = Asked(
        files=files,
        hub=hub.strip(),
        revision=revision.strip(),
        token=request.headers.get(TOKEN_HEADER),
        kv_dtype=kv_dtype.strip(),
        encoder_tokens=encoder_tokens,
    )
    found = await inspect_in_thread(asked, request.app.state.settings)
    text = await anyio.to_thread.run_sync(
        lambda: inspect_answer(found).model_dump_json(), limiter=inspect_threads()
    )
    return Response(text, media_type="application/json")
