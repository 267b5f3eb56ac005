"""Models of the Hub in requests: fetched where that is enabled, else refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from app.api import schemas as s
from app.api.model_input import read_model
from app.domain.errors import Unsupported
from app.main import create_app
from app.settings import Settings
from app.web.observability import LOG
from tests.hub.fake_hub import COMMIT, GOOD_TOKEN, Served, fake_hub

pytestmark = pytest.mark.enable_socket
FORMAT = {"kv_dtype": "bf16"}


@pytest.fixture(scope="module")
def hub() -> Iterator[Served]:
    """Return a server that answers as the Hub does."""
    with fake_hub() as served:
        yield served


def settings_for(hub: Served) -> Settings:
    """Return settings that read from it, with nothing kept."""
    return Settings(
        hub_enabled=True,
        hub_endpoint=hub.url,
        hub_allow_private=True,
        hub_cache_bytes=0,
        hub_timeout_s=0.5,
    )


@pytest.fixture(scope="module")
def enabled(hub: Served) -> Iterator[TestClient]:
    """Return a client of an application that may read from the Hub."""
    app = create_app(settings_for(hub))
    with TestClient(app, raise_server_exceptions=False) as started:
        yield started


def per_token(client: TestClient, model: dict[str, Any], **more: Any) -> httpx.Response:
    """Ask what a token costs in that model."""
    answer: Any = client.post("/api/v1/per-token", json={"model": model, **FORMAT}, **more)
    found: httpx.Response = answer
    return found


def test_a_model_by_id(enabled: TestClient) -> None:
    """32 layers of 8 heads × 128 in bf16, and the answer says which commit it is about."""
    answer = per_token(enabled, {"hub": "org/plain"})
    assert answer.status_code == 200
    assert answer.json()["bytes_per_token"] == 131_072
    notes = {note["code"]: note["text"] for note in answer.json()["assumptions"]}
    assert notes["hub_config"] == f"The config is that of org/plain on the Hub, at {COMMIT}."


@pytest.mark.parametrize(
    "model", [{"hub": "{url}/org/plain/tree/v1"}, {"hub": "org/plain", "revision": "v1"}]
)
def test_a_model_by_address_or_revision(
    model: dict[str, str], enabled: TestClient, hub: Served
) -> None:
    """A pasted address and a revision are both understood."""
    model = {key: text.replace("{url}", hub.url) for key, text in model.items()}
    assert per_token(enabled, model).status_code == 200
    assert hub.paths[-1] == "/org/plain/resolve/v1/config.json"


@pytest.mark.parametrize("way", ["header", "field"])
def test_a_token_by_header_or_field(
    way: str, enabled: TestClient, hub: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Either opens a gated model; neither the answer nor the log repeats it."""
    LOG.addHandler(caplog.handler)
    model = {"hub": "org/gated"}
    if way == "header":
        answer = per_token(enabled, model, headers={"X-Hub-Token": GOOD_TOKEN})
    else:
        answer = per_token(enabled, model | {"token": GOOD_TOKEN})
    assert answer.status_code == 200
    assert hub.requests[-1][1]["authorization"] == f"Bearer {GOOD_TOKEN}"
    assert GOOD_TOKEN not in answer.text
    LOG.removeHandler(caplog.handler)
    assert '"route": "/api/v1/per-token"' in caplog.text
    assert GOOD_TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("model", "loc", "kind"),
    [
        ({"hub": "org/absent"}, ["body", "model", "hub"], "unknown"),
        ({"hub": "org/gated"}, ["body", "model", "hub"], "unsupported"),
        ({"hub": "org/silent"}, ["body", "model", "hub"], "unavailable"),
        ({"hub": "org/html"}, ["body", "model", "hub"], "malformed"),
        ({"hub": "not an id"}, ["body", "model", "hub"], "malformed"),
        ({"hub": "http://169.254.169.254/a/b"}, ["body", "model", "hub"], "unsupported"),
        ({"hub": "org/plain", "revision": "absent"}, ["body", "model", "revision"], "unknown"),
        ({"hub": "org/plain", "revision": 3}, ["body", "model", "revision"], "string_type"),
        ({"hub": "org/plain", "token": 3}, ["body", "model", "token"], "string_type"),
        ({"hub": 3}, ["body", "model", "hub"], "string_type"),
        ({"hub": ""}, ["body", "model", "hub"], "malformed"),
        ({"hub": "org/plain", "config": {"model_type": "llama"}}, ["body", "model", "hub"],
         "conflict"),
        ({"hub": "org/plain", "other": 1}, ["body", "model", "other"], "extra_forbidden"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_name(
    model: dict[str, Any], loc: list[str], kind: str, enabled: TestClient
) -> None:
    """A Hub that says no, or says nothing, is no fault of this server: 422 with the field."""
    answer = per_token(enabled, model)
    assert answer.status_code == 422, answer.text
    problem = answer.json()["detail"][0]
    assert (problem["loc"], problem["type"]) == (loc, kind)


def test_it_is_refused_where_it_is_off(client: TestClient) -> None:
    """The sentence says what to do instead."""
    answer = per_token(client, {"hub": "org/plain"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "model", "hub"]
    assert "paste the config.json" in answer.json()["detail"][0]["msg"]


def test_the_word_alone_does_nothing(client: TestClient) -> None:
    """A body that merely holds the word is answered as ever, broken ones included."""
    good = {"layers": 1, "kv_heads": 1, "head_dim": 1}
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1,
              "hidden_size": 8, "hub": "a/b"}  # fmt: skip
    for model in (good, {"config": config}):
        assert per_token(client, model).status_code == 200
    for body in (b'{"hub"', b'["hub"]', b'{"model": {"hub": [[[[["hub"]]]]]}}'):
        answer = client.post(
            "/api/v1/per-token", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422


def test_only_so_many_in_one_request(enabled: TestClient, hub: Served) -> None:
    """A request cannot send this server to the Hub a hundred times."""
    hub.requests.clear()
    body = {"models": [{"hub": "org/plain"}] * 5, "deep": {"a": {"b": {"c": {"hub": "x"}}}}}
    answer = enabled.post("/api/v1/per-token", json=body)
    assert answer.status_code == 422
    assert "at most 4" in answer.json()["detail"][0]["msg"]
    assert hub.requests == []


def test_a_slow_hub_keeps_nobody_else_waiting(hub: Served) -> None:
    """While one request waits for the Hub, another is answered."""

    async def both() -> tuple[float, int]:
        transport = httpx.ASGITransport(app=create_app(settings_for(hub)))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            loop = asyncio.get_running_loop()
            slow = asyncio.create_task(
                client.post("/api/v1/per-token", json={"model": {"hub": "org/silent"}})
            )
            await asyncio.sleep(0.05)
            started = loop.time()
            await client.get("/healthz")
            waited = loop.time() - started
            return waited, (await slow).status_code

    waited, status = asyncio.run(both())
    assert status == 422
    assert waited < 0.3


def test_outside_a_request_the_config_is_fetched_then(
    hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line has no route before it, so reading the model fetches it."""
    monkeypatch.setattr("app.settings.settings", lambda: settings_for(hub))
    reading = read_model(s.HubModel(hub="org/plain"))
    assert reading.state.num_layers == 32
    gated = s.HubModel.model_validate({"hub": "org/gated", "token": GOOD_TOKEN})
    assert read_model(gated).state.num_layers == 32


def test_never_inside_the_loop() -> None:
    """Where a fetch would stop every other request, it is refused."""

    async def read() -> None:
        with pytest.raises(Unsupported, match="cannot stand there"):
            read_model(s.HubModel(hub="org/plain"))

    asyncio.run(read())


def test_a_kept_answer_needs_no_hub(hub: Served, tmp_path: Path) -> None:
    """With a cache the second request of the same model asks nobody."""
    config = settings_for(hub).model_copy(
        update={"hub_cache_bytes": 2**20, "hub_cache_dir": str(tmp_path)}
    )
    with TestClient(create_app(config), raise_server_exceptions=False) as client:
        per_token(client, {"hub": "org/plain"})
        hub.requests.clear()
        assert per_token(client, {"hub": "org/plain"}).status_code == 200
    assert hub.requests == []
