"""How a JSON body is decoded: by pydantic-core's parser, strictly.

It refuses NaN and Infinity, bounds nesting, and reads a list of a million integers in about a third
of the time that the standard library takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from app.api.hub_models import resolve_hub_models
from app.domain.errors import shown
from app.readers.json_text import RepeatedKeyError, unique_object

# pydantic-core keeps the last of two values in silence. Up to this size, which no config that a
# person pastes reaches, a body is read once more for that; above it are lists that a program made.
MAX_BYTES_READ_TWICE = 2**18


class JsonRequest(Request):
    """A request whose JSON body is decoded by pydantic-core."""

    async def json(self) -> Any:
        """Return the decoded body.

        Raises:
            json.JSONDecodeError: which the framework answers with 422.

        """
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = from_json(body, allow_inf_nan=False)
                if len(body) <= MAX_BYTES_READ_TWICE:
                    json.loads(body, object_pairs_hook=unique_object)
            except RepeatedKeyError as error:
                why = f"{shown(error.key)} is named twice in one object"
                raise json.JSONDecodeError(why, "", 0) from None
            except ValueError as error:
                raise json.JSONDecodeError(_why(error), "", 0) from None
        return self._json


def _why(error: ValueError) -> str:
    """Return the decoder's complaint, which ends in the line and the column."""
    why = str(error)
    if why.startswith(("expected value", "invalid number")):
        why += "; NaN, Infinity and bare words are no JSON values"
    return why


class JsonRoute(APIRoute):
    """A route whose handler is given a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, fed with our request class."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            read = JsonRequest(request.scope, request.receive)
            await resolve_hub_models(read)
            return await handler(read)

        return handle
