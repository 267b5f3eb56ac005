"""One JSON line a request, with its id, and never what it asked: no query, no body, no address."""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import time
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID_HEADER = b"x-request-id"
# An id that a proxy gave is kept if it can do no harm in a log.
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
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


def request_id_of(scope: Scope) -> bytes:
    """Return the id that came with a request, or a new one."""
    for name, value in scope["headers"]:
        if name == ID_HEADER and _GIVEN_ID.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(16).encode()


class AccessLog:
    """Gives each answer the request's id, and writes the line once it has been sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.log: Any = structlog.get_logger("access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and log its method, route, status and time."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500
        request_id = request_id_of(scope)

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (ID_HEADER, request_id)]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            quiet = scope["path"] in QUIET_PATHS
            (self.log.debug if quiet else self.log.info)(
                "request",
                method=scope["method"],
                route=route_of(scope),
                status=status,
                ms=round((time.perf_counter() - started) * 1000, 1),
                request_id=request_id.decode(),
                worker=os.getpid(),
            )
