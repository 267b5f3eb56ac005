"""Models named on the Hub: their configs are fetched, in a thread, before a request is answered.

After that such a model is a pasted config like any other, so no computation waits for a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.requests import Request

from app.api import schemas as s
from app.domain.errors import Conflict, DomainError, OutOfRange, Unsupported
from app.settings import Settings

if TYPE_CHECKING:
    from app.hub import HubConfig

TOKEN_HEADER = "x-hub-token"  # noqa: S105 - the name of a header
# What is looked for before anything is decoded: most bodies do not have it.
_MARK = b'"hub"'
MAX_HUB_MODELS = 4
_MAX_DEPTH = 4
_MAX_ENTRIES = 64
# A slow Hub must not take all the threads that a worker has.
_THREADS = 8
_limiters: list[anyio.CapacityLimiter] = []


def hub_threads() -> anyio.CapacityLimiter:
    """Return the limit that all reads from the Hub share, made inside the running loop."""
    if not _limiters:
        _limiters.append(anyio.CapacityLimiter(_THREADS))
    return _limiters[0]


async def resolve_hub_models(request: Request) -> None:
    """Put the config into each model of a JSON body that is named on the Hub.

    Raises:
        DomainError: naming the model's field in the body, where the config cannot be had.

    """
    if _MARK not in await request.body():
        return
    try:
        body = await request.json()
    except ValueError:
        return  # the framework says so in its own shape
    found = list(_hub_models(body, ()))
    if len(found) > MAX_HUB_MODELS:
        raise OutOfRange("{field}: at most {high} models of the Hub in one request",
                         field="hub", high=MAX_HUB_MODELS)  # fmt: skip
    header = request.headers.get(TOKEN_HEADER)
    for path, model in found:
        try:
            await _resolve(model, request.app.state.settings, header)
        except DomainError as error:
            raise error.under(*path) from None


def _hub_models(
    value: object, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yield the objects of a body that name a model on the Hub; pasted files are not searched."""
    if len(path) > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        if isinstance(value.get("hub"), str):
            yield path, value
            return
        for key, item in list(value.items())[:_MAX_ENTRIES]:
            if key not in ("config", "gguf"):
                yield from _hub_models(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:_MAX_ENTRIES]):
            if isinstance(item, dict):
                yield from _hub_models(item, (*path, index))


async def _resolve(model: dict[str, Any], settings: Settings, header: str | None) -> None:
    if "config" in model:
        raise Conflict("{field} and a pasted config are two models: give one", field="hub")
    revision, token = model.get("revision"), model.get("token") or header
    if not isinstance(revision, str | None) or not isinstance(token, str | None):
        return  # the schema refuses it by name
    model.pop("token", None)
    found = await anyio.to_thread.run_sync(
        read_from_hub, settings, model["hub"], revision, token, limiter=hub_threads()
    )
    model |= {
        "config": found.config,
        "hub": found.address.repo,
        "revision": found.commit or found.address.revision,
    }


def read_from_hub(
    settings: Settings, text: str, revision: str | None, token: str | None
) -> HubConfig:
    """Return the config that an id or address names; blocks until it is there.

    Raises:
        DomainError: where it cannot be had, or this server does not read from the Hub.

    """
    from app.hub import fetch_config, hub_access, read_hub_address

    access = hub_access(settings).with_token(token)
    return fetch_config(access, read_hub_address(access, text, revision))


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def fetched(model: s.HubModel, settings: Settings) -> s.HubModel:
    """Return the model with its config, fetching it where that has not been done; blocks.

    Raises:
        DomainError: as `read_from_hub`, and where other requests would have to wait for it.

    """
    if model.config:
        return model
    if _in_a_loop():
        raise Unsupported("{field}: a model of the Hub cannot stand there; name it in model",
                          field="hub")  # fmt: skip
    token = model.token.get_secret_value() if model.token else None
    found = read_from_hub(settings, model.hub, model.revision, token)
    return model.model_copy(
        update={
            "config": found.config,
            "hub": found.address.repo,
            "revision": found.commit or found.address.revision,
        }
    )
