"""How long a request's body may pause: a client that stops sending is told so and let go."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAUSE_SECONDS = 30
TOO_SLOW = b'{"detail":[{"loc":["body"],"msg":"The body stopped coming.","type":"timeout"}]}'


class Patience:
    """Answers 408 when a body pauses too long; a client that left needs no answer."""

    def __init__(self, app: ASGIApp, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.app = app
        self.pause_seconds = pause_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_whole = False
        has_begun = False

        async def patient() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()
            # Not wait_for, which makes a task of its own for every message before Python 3.12.
            async with asyncio.timeout(self.pause_seconds):
                message = await receive()
            is_whole = not message.get("more_body", False)
            return message

        async def watch(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, patient, watch)
        except ClientDisconnect:
            return
        except TimeoutError:
            if is_whole or has_begun:
                raise
            head = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 408, "headers": head})
            await send({"type": "http.response.body", "body": TOO_SLOW})
