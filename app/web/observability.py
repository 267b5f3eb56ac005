"""One JSON line a request, with its id, and never what it asked: no query, no body, no address."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import structlog
from asgi_correlation_id import correlation_id
from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


def configure_logging(level: str) -> None:
    """Send structured lines to standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def route_of(scope: Scope) -> str:
    """Return the template of the route that answered, with its prefix; never the path itself."""
    known = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    return str(getattr(known, "path", "(none)"))


class AccessLog:
    """Writes the line once an answer has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.log: Any = structlog.get_logger("access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and log its method, route, status and time."""
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
            self.log.info(
                "request",
                method=scope["method"],
                route=route_of(scope),
                status=status,
                ms=round((time.perf_counter() - started) * 1000, 1),
                request_id=correlation_id.get(),
                worker=os.getpid(),
            )
