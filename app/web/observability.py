"""One JSON line a request, with its id, and never what it asked: no query, no body, no address."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import time
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID_HEADER = b"x-request-id"
# An id that a proxy gave is kept if it can do no harm in a log.
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


LOG = logging.getLogger("kv_ledger.access")


def configure_logging(level: str) -> None:
    """Send structured lines to standard error.

    The standard library writes them: a logging framework took a fifth of the start-up time.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers[:] = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper())


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
            level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
            if LOG.isEnabledFor(level):
                LOG.log(level, "%s", _line(scope, status, started, request_id))


def _line(scope: Scope, status: int, started: float, request_id: bytes) -> str:
    return json.dumps(
        {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "request",
            "method": scope["method"],
            "route": route_of(scope),
            "status": status,
            "ms": round((time.perf_counter() - started) * 1000, 1),
            "request_id": request_id.decode(),
            "worker": os.getpid(),
        }
    )
