"""`/metrics` for Prometheus: how many requests of which route ended how, and how long they took.

Labels are route templates, never paths, so that a stranger's addresses do not become series.
"""

from __future__ import annotations

import os
import time

from fastapi import APIRouter, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
    multiprocess,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.observability import QUIET_PATHS, route_of

router = APIRouter(include_in_schema=False)

REQUESTS = Counter("http_requests", "Requests by route and status.", ("method", "route", "status"))
SECONDS = Histogram(
    "http_request_seconds",
    "Time from a request's arrival to its answer's end.",
    ("route",),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Metrics:
    """Counts each answered request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = route_of(scope)
            method = scope["method"] if scope["method"] in METHODS else "OTHER"
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(route).observe(time.perf_counter() - started)


@router.get("/metrics")
async def metrics() -> Response:
    """Answer all series; those of every worker where they share a folder."""
    registry = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
