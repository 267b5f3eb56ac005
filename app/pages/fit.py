"""`/fit`: what fits on which devices, and the line that decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import ValidationError

from app.api.fit import (
    DRAWN_METHOD,
    answer_fit,
    assumptions_of,
    command_of,
    left_out,
    lines_of,
    offloads,
    transfer_of,
    usable_text,
    workings_of,
)
from app.api.fit_schemas import FitRequest
from app.catalog.devices import devices
from app.domain.capacity import Line
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.state import MAX_TOKENS
from app.domain.working import Working
from app.pages import figures, page_parts
from app.pages.fit_form import FORM_FIELDS, fit_body, fit_query, request_of, typed_fields
from app.pages.model_form import ModelForm, format_names, model_form, offered_models
from app.pages.problems import Problems, problems_of
from app.web.language import language_of, translations
from app.web.marks import mark

if TYPE_CHECKING:
    from app.api.fit_advice import Change, Devices
    from app.api.fit_compute import FitParts
    from app.domain.offload import Offload

router = APIRouter(include_in_schema=False)

MAX_BARS = 64
LINE_NAMES: Mapping[str, str] = {
    "memory": mark("Memory of the device"),
    "weights": mark("Weights"),
    "activations": mark("Activations of the largest batch"),
    "framework": mark("Framework and device context"),
    "communication": mark("Communication buffers"),
    "cuda_graphs": mark("CUDA graphs"),
    "reserve": mark("Kept free"),
    "state": mark("Room for the state, as measured"),
    "kv": mark("Keys and values of the load"),
    "recurrent_states": mark("Recurrent states of the load"),
}
CHANGE_NAMES: Mapping[str, str] = {
    "utilisation": mark("Utilisation"),
    "batch_tokens": mark("Tokens in a batch"),
    "kv_dtype": mark("KV type"),
    "context_tokens": mark("Context length"),
    "concurrency": mark("Concurrency"),
    "tensor_parallel": mark("Tensor parallel"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A calculation that can be loaded with a click."""

    query: str
    text: Note


EXAMPLES = (
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-70B", "kv": "bf16", "device": "h100-sxm-80",
                         "tensor_parallel": 4, "context_tokens": 131072, "concurrency": 8}),
        text=Note("", "Llama 3.1 70B: eight long requests on four 80 GB devices, or on how many?"),
    ),
    Example(
        query=urlencode({"model": "openai/gpt-oss-120b", "kv": "bf16", "device": "h100-sxm-80",
                         "utilisation": "0.95", "context_tokens": 131072, "concurrency": 1,
                         "batch_tokens": 1024, "engine": "vllm", "engine_version": "0.11.0",
                         "measured_weights": "65.97 GiB", "state": "1.71 GiB"}),
        text=Note("", "gpt-oss-120b on one 80 GB device: 1.71 GiB left, 4.54 GiB needed"),
    ),
    Example(
        query=urlencode({"model": "meta-llama/Llama-3.1-8B", "kv": "bf16", "device": "rtx-4090",
                         "context_tokens": 8192, "concurrency": 4,
                         "lengths": "90×512, 9×4096, 1×8192"}),
        text=Note("", "Llama 3.1 8B on a 24 GB card: how many users of mixed lengths?"),
    ),
    Example(
        query=urlencode({"model": "mistralai/Mistral-Small-4-119B-2603", "kv": "bf16",
                         "context_tokens": 1048576, "concurrency": 1, "state": "17.3855 GiB"}),
        text=Note("", "A million tokens in 17.39 GiB of a latent cache: 810,208 fit"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FitView:
    """An answer, as the page shows it."""

    request: FitRequest
    parts: FitParts
    lines: tuple[Line, ...]
    usable: str | None
    unbounded: bool
    workings: dict[str, Working]
    changes: tuple[Change, ...]
    fewest: Devices | None
    offloads: tuple[Offload, ...]
    transfer: Offload | None
    drawn_method: Note
    assumed: tuple[Note, ...]
    not_counted: tuple[Note, ...]
    chart: figures.Figure
    model_line: str
    engine_command: str | None
    curl: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOption:
    """One device to choose."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPage:
    """Everything that the template of `/fit` may name."""

    form: ModelForm
    fields: Mapping[str, str]
    problems: Problems
    view: FitView | None
    offered: list[str]
    formats: list[str]
    devices: tuple[DeviceOption, ...]
    line_names: Mapping[str, str]
    change_names: Mapping[str, str]
    examples: tuple[Example, ...]
    query: str


def device_options() -> tuple[DeviceOption, ...]:
    """Return the devices to choose from."""
    return tuple(DeviceOption(id=row["id"], name=row["name"]) for row in devices().values())


def fit_page(query: Mapping[str, str], language: str) -> FitPage:
    """Return the page's context for a query string; mistakes become sentences beside fields."""
    form, typed = model_form(query), typed_fields(query)
    problems: Problems = {}
    view: FitView | None = None
    try:
        body = fit_body(form, typed)
        view = _view(FitRequest.model_validate(body), body, language)
    except (DomainError, ValidationError) as error:
        problems = problems_of(error, FORM_FIELDS, "config" if form.source == "config" else "model")
    return FitPage(
        form=form,
        fields=typed,
        problems=problems,
        view=view,
        offered=offered_models(),
        formats=format_names(),
        devices=device_options(),
        line_names=LINE_NAMES,
        change_names=CHANGE_NAMES,
        examples=EXAMPLES,
        query=fit_query(form, typed),
    )


def _view(request: FitRequest, body: dict[str, Any], language: str) -> FitView:
    from app.api.fit_advice import Patience, changes, fewest_devices
    from app.api.fit_compute import compute_fit

    parts = compute_fit(request)
    patience = Patience()
    tried = () if parts.answer.fits else changes(request, parts, patience)
    fewest = fewest_devices(request, parts, patience)
    return FitView(
        request=request,
        parts=parts,
        lines=lines_of(parts),
        usable=usable_text(request, parts),
        unbounded=parts.answer.max_context == MAX_TOKENS,
        workings=workings_of(parts),
        changes=tried,
        fewest=fewest,
        offloads=offloads(request, parts),
        transfer=transfer_of(request, parts),
        drawn_method=DRAWN_METHOD,
        assumed=(*assumptions_of(parts), *patience.notes),
        not_counted=left_out(parts),
        chart=_chart(parts, language),
        model_line=page_parts.model_line(parts.given, language),
        engine_command=command_of(request, parts),
        curl=page_parts.curl("fit", body),
        command=_command(body),
    )


def _chart(parts: FitParts, language: str) -> figures.Figure:
    """Return each stage's memory: weights, assumed lines, the load's state, what is left."""
    say = translations(language).gettext
    gib = 2**30
    answer = parts.answer
    stages = answer.stages[:MAX_BARS]
    load = [stage.request_bytes * answer.load.concurrency for stage in stages]
    left = [max(stage.room - own, 0) for stage, own in zip(stages, load, strict=True)]
    series = [(say("State of the load"), "effective", [own / gib for own in load], False),
              (say("Left"), "window", [own / gib for own in left], False)]  # fmt: skip
    if parts.budget.state is None:
        low = sum(line.low_bytes for line in answer.lines) / gib
        high = sum(line.high_bytes for line in answer.lines) / gib
        series = [
            (say("Weights"), "fixed", [stage.weights / gib for stage in stages], False),
            (say("Other lines, at least"), "paging", [low] * len(stages), False),
            (say("Other lines, at most"), "padding", [high - low] * len(stages), True),
            *series,
        ]
    return figures.bars([str(index) for index in range(len(stages))], series,
                        x_title=say("Stage"), y_title="GiB")  # fmt: skip


def _command(body: Mapping[str, Any]) -> str:
    options: dict[str, Any] = {
        **page_parts.model_options(body),
        "device": body.get("device"),
        "memory": body.get("memory_bytes"),
        "utilisation": body.get("utilisation"),
        "context": body.get("context_tokens"),
        "concurrency": body.get("concurrency"),
        "batch-tokens": body.get("batch_tokens"),
        "engine": body.get("engine"),
        "engine_version": body.get("engine_version"),
        "max_sequences": body.get("max_sequences"),
        "reserve": body.get("reserve_bytes"),
        "eager": body.get("cuda_graphs") is False,
        "block-size": body.get("block_size"),
        **{name: body.get(name) for name in ("tensor_parallel", "pipeline_parallel",
                                             "decode_context_parallel", "data_parallel",
                                             "expert_parallel")},
        "layers_per_stage": ",".join(map(str, body.get("layers_per_stage", ()))),
        "weights": next(iter(body.get("weights", {}).values()), None),
        "advise": True,
    }  # fmt: skip
    words = [page_parts.command("fit", **options)]
    words += [f"--measured {name}={value}" for name, value in body.get("measured", {}).items()]
    if "lengths" in body:
        runs = ",".join(f"{item['count']}x{item['length']}" for item in body["lengths"])
        words.append(f"--lengths {runs} --percentile {body['percentile']:g}")
    return " ".join(words)


# A `def` handler: advice asks many times over, which must not hold the loop.
@router.api_route("/fit", methods=["GET", "POST"], response_class=HTMLResponse)
def show(request: Request, query: page_parts.Asked) -> HTMLResponse:
    """Answer the page, or only its changing part when htmx asks."""
    page = fit_page(query, language_of(request))
    return page_parts.answer_page(request, "fit.html", page, "/fit")


@router.get("/export/fit.json", response_model=None)
def export_json(request: Request) -> Response:
    """Answer the API's own answer for the page's query, advice included, as a download."""
    try:
        asked, _ = request_of(request.query_params)
        answer = answer_fit(asked.model_copy(update={"advise": True}))
    except (DomainError, ValidationError) as error:
        return page_parts.refused(problems_of(error, FORM_FIELDS, "model"))
    return page_parts.json_download("fit.json", answer)


@router.get("/export/fit.csv", response_model=None)
def export_csv(request: Request) -> Response:
    """Answer the lines as CSV."""
    try:
        asked, _ = request_of(request.query_params)
        answer = answer_fit(asked)
    except (DomainError, ValidationError) as error:
        return page_parts.refused(problems_of(error, FORM_FIELDS, "model"))
    rows = [(line.name, line.low_bytes, line.high_bytes, line.basis, line.note)
            for line in answer.lines]  # fmt: skip
    return page_parts.csv_download("fit.csv", ("line", "low_bytes", "high_bytes", "basis", "note"),
                                   rows)  # fmt: skip
