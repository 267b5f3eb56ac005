"""Answers that come piece by piece, as `static/stream.js` shows them: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

MEDIA_TYPE = "application/x-ndjson"

# `done`, `total` and `text`; or `put`, an element's id, or `add`, with `html`; or `address`.
Line = Mapping[str, Any]


def wants_stream(request: Request) -> bool:
    """Return whether the page's script asks, which shows lines as they come."""
    return MEDIA_TYPE in request.headers.get("accept", "")


def stream(lines: AsyncGenerator[Line]) -> StreamingResponse:
    """Answer with lines; when the reader goes away `lines` is cancelled or closed."""

    async def encoded() -> AsyncIterator[bytes]:
        async with aclosing(lines):
            async for line in lines:
                yield json.dumps(line, ensure_ascii=False).encode() + b"\n"

    return StreamingResponse(
        encoded(),
        media_type=MEDIA_TYPE,
        # A proxy must not gather the lines, and no cache must keep them.
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept"},
    )
