"""`/compare`: two to six calculations side by side, with what differs marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from app.api.answers import Answer
from app.api.fit import FitAnswer, fit_answer, lines_of, range_text, usable_text
from app.api.fit_schemas import DEFAULT_UTILISATION, FitRequest
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.api.schemas import CatalogueModel, Strict, UniformModel
from app.domain.errors import DomainError
from app.domain.per_token import shape_of
from app.domain.state import MAX_TOKENS
from app.web.marks import mark

if TYPE_CHECKING:
    from app.api.fit_compute import FitParts

router = APIRouter(tags=["fit"], responses=REFUSED, route_class=JsonRoute)
FEWEST, MOST = 2, 6


class CompareRequest(Strict):
    """Two to six requests of `/fit`."""

    calculations: Annotated[list[FitRequest], Field(min_length=FEWEST, max_length=MOST)]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "calculations": [
                        {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16",
                         "device": device, "context_tokens": 8192}
                        for device in ("rtx-4090", "h100-sxm-80")
                    ]
                }
            ]
        }
    )  # fmt: skip


class ComparedRow(Answer):
    """One property of every calculation, and whether it differs between them."""

    name: str
    label: str
    values: list[int | str | None]
    differs: bool


class CompareAnswer(Answer):
    """The calculations' own answers, and their properties row by row."""

    rows: list[ComparedRow]
    calculations: list[FitAnswer]


ROW_NAMES = {
    "model": mark("Model"),
    "kv_dtype": mark("KV type"),
    "device": mark("Device"),
    "ranks": mark("Tensor × stages × replicas"),
    "engine": mark("Engine"),
    "utilisation": mark("Utilisation"),
    "batch_tokens": mark("Tokens in a batch"),
    "context_tokens": mark("Context length, tokens"),
    "concurrency": mark("Concurrency"),
    "bytes_per_token": mark("A token, in one copy, B"),
    "usable": mark("Memory that may be used"),
    "weights": mark("Weights on the deciding rank"),
    "other_lines": mark("Other lines"),
    "room": mark("Room for the state"),
    "request_bytes": mark("A request on the deciding rank, B"),
    "max_concurrency": mark("Requests that fit for certain"),
    "max_concurrency_high": mark("Requests that fit at most"),
    "max_context_tokens": mark("Context that fits for certain"),
    "fits": mark("Does the load fit"),
    "deciding_line": mark("The line that decides"),
}


def properties(request: FitRequest, parts: FitParts) -> dict[str, int | str | None]:
    """Return what a comparison shows of one calculation, by the names of ROW_NAMES."""
    answer = parts.answer
    base = parts.given.formats.base
    lines = {line.name: line for line in lines_of(parts)}
    weights = lines.get("weights")
    others = () if parts.budget.state is not None else answer.lines
    low, high = sum(line.low_bytes for line in others), sum(line.high_bytes for line in others)
    return {
        "model": model_name(request),
        "kv_dtype": None if base is None else "/".join(dict.fromkeys((base.key.name,
                                                                      base.value.name))),
        "device": request.device or range_text(parts.budget.memory.low_bytes,
                                               parts.budget.memory.high_bytes),
        "ranks": f"{parts.degrees.tensor} × {parts.degrees.pipeline} × {parts.degrees.data}",
        "engine": request.engine,
        "utilisation": str(request.utilisation or DEFAULT_UTILISATION),
        "batch_tokens": request.batch_tokens,
        "context_tokens": answer.load.tokens,
        "concurrency": answer.load.concurrency,
        "bytes_per_token": shape_of(parts.given.reading.state, parts.given.formats).bytes_per_token,
        "usable": usable_text(request, parts),
        "weights": None if weights is None else range_text(weights.low_bytes, weights.high_bytes),
        "other_lines": range_text(low, high),
        "room": range_text(answer.room, answer.room_at_most),
        "request_bytes": answer.request_bytes,
        "max_concurrency": answer.max_concurrency,
        "max_concurrency_high": answer.max_concurrency_at_most,
        "max_context_tokens": None if answer.max_context == MAX_TOKENS else answer.max_context,
        "fits": {True: "yes", False: "no", None: "perhaps"}[answer.fits],
        "deciding_line": answer.deciding_line,
    }  # fmt: skip


def model_name(request: FitRequest) -> str:
    """Return a model's id, or its numbers, or how it was given."""
    model = request.model
    if isinstance(model, CatalogueModel):
        return model.id
    if isinstance(model, UniformModel):
        return f"{model.layers} × {model.kv_heads} × {model.head_dim}"
    return type(model).__name__.removesuffix("Model").lower()


def compare_rows(calculations: list[tuple[FitRequest, FitParts]]) -> list[ComparedRow]:
    """Return every property of every calculation, row by row."""
    columns = [properties(request, parts) for request, parts in calculations]
    rows = []
    for name, label in ROW_NAMES.items():
        values = [column[name] for column in columns]
        rows.append(ComparedRow(name=name, label=label, values=values,
                                differs=len(set(values)) > 1))  # fmt: skip
    return rows


def compute_compare(requests: list[FitRequest]) -> list[tuple[FitRequest, FitParts]]:
    """Return each calculation's parts; raises a DomainError that names the calculation."""
    from app.api.fit_compute import compute_fit

    found = []
    for index, request in enumerate(requests):
        try:
            found.append((request, compute_fit(request)))
        except DomainError as error:
            raise error.under("calculations", index) from None
    return found


def answer_compare(request: CompareRequest) -> CompareAnswer:
    """Return the answer of `/compare`."""
    from app.api.fit_advice import Patience

    calculations = compute_compare(request.calculations)
    patience = Patience()
    return CompareAnswer(
        rows=compare_rows(calculations),
        calculations=[fit_answer(own, parts, patience) for own, parts in calculations],
    )


@router.post("/compare", summary="Two to six calculations side by side")
def compare_call(request: CompareRequest) -> CompareAnswer:
    """Return the answers of `/fit` side by side, and which of their properties differ."""
    return answer_compare(request)
