"""Refusals as FastAPI's own 422 shape: `{"detail": [{"loc", "msg", "type"}]}`, never the input.

The framework's handler echoes the rejected input, which cannot be encoded when it is NaN or 1e400;
this one leaves it out, so that no request can turn a refusal into a 500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from app.domain.errors import DomainError

# Names that a union puts into `loc` to say which member it tried; they are not fields of the body.
_UNION_TAGS = {
    "model": frozenset({"uniform", "id", "config", "layer_states", "gguf", "hub"}),
    "lengths": frozenset({"list", "counts"}),
}
_ROW_KINDS = frozenset(
    {
        "full_attention",
        "sliding_window",
        "chunked_attention",
        "latent_attention",
        "recurrent",
        "cross_attention",
        "shared",
        "none",
    }
)
MAX_PROBLEMS = 20


class Problem(BaseModel):
    """One thing that is wrong, and where."""

    loc: list[str | int]
    msg: str
    type: str


class Problems(BaseModel):
    """What a refused request gets back."""

    detail: list[Problem]


REFUSED: dict[int | str, dict[str, Any]] = {
    400: {"model": Problems, "description": "The body could not be decoded."},
    # The framework refuses by the announced length before any route is asked, in plain text; a body
    # that turns out too long while it is read ends in the framework's own JSON.
    413: {
        "description": "The body is over the bound.",
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/json": {"schema": {"type": "object"}},
        },
    },
    422: {"model": Problems, "description": "Refused: each entry names the field and the bound."},
}


def clean_loc(loc: Sequence[str | int]) -> list[str | int]:
    """Return a location without the names of union members."""
    cleaned: list[str | int] = []
    skip: frozenset[str] = frozenset()
    for part in loc:
        if isinstance(part, str) and part in skip:
            skip = frozenset()
            continue
        if isinstance(part, str) and part.startswith(("list[", "constrained-", "function-", "as:")):
            continue
        skip = frozenset()
        if isinstance(part, str) and part in _UNION_TAGS:
            skip = _UNION_TAGS[part]
        elif isinstance(part, int) and cleaned and cleaned[-1] == "layer_states":
            skip = _ROW_KINDS
        cleaned.append(part)
    return cleaned


def problems_of(error: RequestValidationError | ValidationError, *prefix: str) -> Problems:
    """Return a validation error as problems, bounded in number."""
    return Problems(
        detail=[
            Problem(loc=[*prefix, *clean_loc(item["loc"])], msg=item["msg"], type=item["type"])
            if item["type"] != "json_invalid"
            else Problem(loc=["body"], msg=_undecodable(item), type="json_invalid")
            for item in error.errors()[:MAX_PROBLEMS]
        ]
    )


def _undecodable(item: Mapping[str, Any]) -> str:
    """Return why a body is no JSON; the framework keeps the decoder's own words apart."""
    why = item.get("ctx", {}).get("error")
    return f"{item['msg']}: {why}" if why else str(item["msg"])


def problem_of(error: DomainError, *prefix: str) -> Problems:
    """Return a refusal of the domain as a problem."""
    return Problems(detail=[Problem(loc=[*prefix, *error.field], msg=str(error), type=error.code)])


# What the framework refuses before a call is reached: where, and as what.
_HTTP_PROBLEMS = {400: ("body", "undecodable"), 404: ("path", "unknown")}


async def http_problem(request: Request, error: HTTPException) -> Response:
    """Answer what the framework refuses; under /api/ in the shape that the schema says."""
    at = _HTTP_PROBLEMS.get(error.status_code)
    if at is None or not isinstance(error.detail, str) or not request.url.path.startswith("/api/"):
        return await http_exception_handler(request, error)
    found = Problem(loc=[at[0]], msg=error.detail, type=at[1])
    return JSONResponse(Problems(detail=[found]).model_dump(), status_code=error.status_code)


def install(app: FastAPI) -> None:
    """Let `app` answer refusals in this module's shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse(problems_of(error).model_dump(), status_code=422)

    @app.exception_handler(DomainError)
    async def refused(_: Request, error: DomainError) -> JSONResponse:
        return JSONResponse(problem_of(error, "body").model_dump(), status_code=422)
