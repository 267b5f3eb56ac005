"""What all calculator pages do alike when a field holds a mistake."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

pytestmark = pytest.mark.enable_socket
FRAGMENT = {"HX-Request": "true"}

MISTAKES = [
    ("/", {"lengths": "17, -1"}, "lengths"),
    ("/", {"source": "numbers", "layers": "many", "lengths": "1"}, "layers"),
    ("/", {"source": "config", "config": '{"a": 1, "a": 2}'}, "config"),
    ("/", {"source": "numbers", "layers": "", "lengths": "1"}, "layers"),
    ("/sharing", {"source": "numbers", "kv_heads": ""}, "kv_heads"),
    ("/engines", {"source": "numbers", "head_dim": ""}, "head_dim"),
    ("/fragmentation", {"source": "numbers", "layers": ""}, "layers"),
    ("/cost", {"source": "numbers", "layers": ""}, "layers"),
    ("/fit", {"source": "numbers", "layers": ""}, "layers"),
    ("/parallel", {"source": "numbers", "layers": ""}, "layers"),
    ("/sharing", {"groups": "512 -> x"}, "groups"),
    ("/hashes", {"a": "1 2 x"}, "a"),
    ("/pool", {"events": "allocate a 1..4\njuggle a"}, "events"),
    ("/pool", {"events": "allocate a 1..4\nfree b", "num_blocks": "9"}, "events"),
    ("/pool", {"num_blocks": "few"}, "num_blocks"),
    ("/pool", {"version": "99"}, "version"),
    ("/parallel", {"tensor_parallel": "0"}, "tensor_parallel"),
    ("/fit", {"device": "abacus"}, "device"),
    ("/compare", {"c1": "model=nobody/nothing", "c2": "model=Qwen/Qwen3-8B"}, "c1"),
    ("/engines", {"budget": "much"}, "budget"),
    ("/fragmentation", {"lengths": "17 x"}, "lengths"),
    ("/cost", {"prompt_tokens": "some"}, "prompt_tokens"),
    ("/attention", {"query": "x"}, "query"),
    ("/models/inspect", {"config": "{"}, "config"),
]


@pytest.mark.parametrize(("path", "fields", "field"), MISTAKES)
def test_the_address_holds_a_mistake_too(
    path: str, fields: dict[str, str], field: str, client: TestClient
) -> None:
    """A reload shows what was typed, with the same sentence about the same field."""
    part: Any = client.get(f"{path}?{urlencode(fields)}", headers=FRAGMENT)
    assert part.status_code == 200
    assert part.headers["HX-Retarget"] == "#hints"
    sentence = part.text.partition(f'id="error-{field}">')[2].partition("</p>")[0]
    assert sentence
    again: Any = client.get(part.headers["HX-Replace-Url"])
    assert again.status_code == 422
    assert f'id="error-{field}">{sentence}</p>' in again.text


def test_a_mistake_too_long_for_an_address_leaves_it(client: TestClient) -> None:
    """The address stays that of the figures in sight."""
    part: Any = client.post("/", data={"lengths": "1, " * 4000 + "x"}, headers=FRAGMENT)
    assert part.headers["HX-Retarget"] == "#hints"
    assert "HX-Replace-Url" not in part.headers


@pytest.mark.parametrize("path", ["/", "/fragmentation", "/parallel"])
def test_what_is_too_long_for_an_address_offers_none(path: str, client: TestClient) -> None:
    """No link, download or page turn leads to another calculation, or to a server's refusal."""
    fields = {"lengths": " ".join(["17", "31"] * 2000)}
    part: Any = client.post(path, data=fields, headers=FRAGMENT)
    assert "Too long for an address" in part.text
    assert "/export/" not in part.text
    assert "data-copy-link" not in part.text
    short: Any = client.post(path, data={"lengths": "17 31"}, headers=FRAGMENT)
    assert "/export/" in short.text
    assert "Too long for an address" not in short.text
