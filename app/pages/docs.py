"""`/docs`: the JSON API described by its own schema; vendored, so it works offline."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.pages.render import render

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class DocsPage:
    """Nothing beyond what every page has."""


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """Answer the page that draws /openapi.json."""
    return render(request, "docs.html", DocsPage())
