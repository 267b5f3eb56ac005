"""What a browser sees where there is no page; other clients get the API's own shape."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from app.api.problems import http_problem
from app.pages.render import render, wants_fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPage:
    """The status that a page could not do without."""

    status: int


def install(app: FastAPI) -> None:
    """Let `app` answer browsers in words."""

    @app.exception_handler(HTTPException)
    async def missing(request: Request, error: HTTPException) -> Response:
        from_browser = "text/html" in request.headers.get("accept", "")
        is_page = not request.url.path.startswith(("/api/", "/static/"))
        if from_browser and is_page and not wants_fragment(request):
            page = ProblemPage(status=error.status_code)
            return render(request, "problem.html", page, status=error.status_code)
        return await http_problem(request, error)
