"""Slow bodies, clients that leave, HEAD, and pages that are not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from app.web.methods import HeadAsGet
from app.web.patience import Patience


async def reader(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, then answer its length."""
    assert scope["type"] == "http"
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message["body"]
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def ask(next_message: Callable[[], Awaitable[Message]]) -> list[Message]:
    """Return what is sent to a client whose messages come from `next_message`."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(Patience(reader, pause_seconds=0.05)(scope, next_message, send))
    return sent


def test_a_body_that_stops_coming_is_answered() -> None:
    """After a pause in the middle of a body the client is told 408 and let go."""
    parts = iter([{"type": "http.request", "body": b"half", "more_body": True}])

    async def next_message() -> Message:
        for message in parts:
            return message
        await asyncio.sleep(10)
        raise AssertionError

    assert [item.get("status") for item in ask(next_message)] == [408, None]


def test_a_client_that_leaves_gets_nothing() -> None:
    """A client that goes away in the middle of its body ends the request in silence."""

    async def next_message() -> Message:
        return {"type": "http.disconnect"}

    assert ask(next_message) == []


def test_a_whole_body_passes() -> None:
    """A body that comes in one piece is read as it is."""

    async def next_message() -> Message:
        return {"type": "http.request", "body": b"whole", "more_body": False}

    assert ask(next_message)[1]["body"] == b"5"


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/v1/models", "/openapi.json"])
def test_head_is_get_without_a_body(path: str, client: TestClient) -> None:
    """HEAD answers what GET answers, the body left out."""
    answer = client.head(path)
    assert answer.status_code == 200
    assert answer.content == b""


def test_head_sends_no_byte_of_the_body() -> None:
    """The application is asked with GET; what it sends as a body does not reach the wire."""
    methods: list[str] = []
    sent: list[Message] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        methods.append(scope["method"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await send({"type": "http.response.body", "body": b"whole"})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(HeadAsGet(app)({"type": "http", "method": "HEAD"}, receive, send))
    assert methods == ["GET"]
    assert [message.get("body") for message in sent] == [None, b"", b""]


def test_a_browser_sees_a_page_where_there_is_none(client: TestClient) -> None:
    """A browser gets words and the way back; a tool gets JSON."""
    page = client.get("/nothing", headers={"accept": "text/html"})
    assert page.status_code == 404
    assert "There is no such page" in page.text
    assert client.get("/nothing").json() == {"detail": "Not Found"}
    assert client.get("/api/v1/nothing", headers={"accept": "text/html"}).json()
