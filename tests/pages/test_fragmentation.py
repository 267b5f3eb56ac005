"""The page that lays one workload out in three ways."""

from __future__ import annotations

import csv
import io
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

TWO = {"lengths": "1024, 3072", "max_length_tokens": "4096"}


def test_two_requests(client: TestClient) -> None:
    """1 GiB reserved, 768 MiB padded, 512 MiB paged; paging runs four where reserving runs two."""
    page = client.get("/fragmentation", params=TWO).text
    for size in (1_073_741_824, 805_306_368, 536_870_912):
        assert f'data-copy="{size}"' in page
    assert "In 1 GiB, reserving runs 2 requests of this workload, paging 4." in page
    assert "2 × 536870912 B at 4096 tokens = 1073741824 B" in page
    assert "--lengths 1024,3072 --max-length 4096 --block-size 16" in page


@pytest.mark.parametrize(
    ("lengths", "maximum"), [("17", 4096), ("4097", 8192), ("8192", 8192), ("1000000000", 10**9)]
)
def test_a_maximum_to_begin_with(lengths: str, maximum: int, client: TestClient) -> None:
    """Without a maximum one is taken that the longest request fits."""
    page = client.get("/fragmentation", params={"lengths": lengths})
    assert page.status_code == 200
    assert f'name="max_length_tokens" inputmode="numeric" size="7" value="{maximum}"' in page.text


def test_nothing_to_hold(client: TestClient) -> None:
    """Requests of no tokens hold nothing: any number fits."""
    page = client.get("/fragmentation", params={"lengths": "0", "max_length_tokens": "0"}).text
    assert "any number" in page
    assert 'class="notice"' not in page


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"lengths": "oops"}, "lengths"),
        ({"lengths": "5000", "max_length_tokens": "4096"}, "max_length_tokens"),
        ({"max_length_tokens": "many"}, "max_length_tokens"),
        ({"block_size": "0"}, "block_size"),
        ({"memory": "some"}, "memory"),
        ({"source": "numbers", "layers": "0"}, "layers"),
        ({"source": "config", "config": "["}, "config"),
        ({"model": "no/body"}, "model"),
    ],
)
def test_mistakes(fields: dict[str, str], field: str, client: TestClient) -> None:
    """A mistake stands at its field, the last figures stay in sight, exports refuse it."""
    page = client.get("/fragmentation", params={**TWO, **fields})
    assert page.status_code == 422
    assert f'id="error-{field}"' in page.text
    part = client.post(
        "/fragmentation", data={**TWO, **fields}, headers={"hx-request": "true"}
    )  # fmt: skip
    assert part.headers["hx-retarget"] == "#hints"
    for kind in ("csv", "json"):
        export = client.get(f"/export/fragmentation.{kind}", params={**TWO, **fields})
        assert export.status_code == 422
        assert export.json()["detail"][0]["loc"] == ["query", field]


def test_the_address_is_the_calculation(client: TestClient) -> None:
    """A change answers its part and the address that gives the same whole."""
    part = client.post(
        "/fragmentation", data={**TWO, "memory": "40 GiB"}, headers={"hx-request": "true"}
    )
    address = part.headers["hx-replace-url"]
    query = urlencode({"model": "meta-llama/Llama-3.1-8B", "kv": "fp16", **TWO, "memory": "40 GiB"})
    assert address == f"/fragmentation?{query}"
    assert "paging 160." in part.text
    assert "paging 160." in client.get(address).text


def test_exports(client: TestClient) -> None:
    """The CSV has a line for each layout, the JSON is the API's own answer."""
    rows = list(csv.reader(io.StringIO(client.get("/export/fragmentation.csv", params=TWO).text)))
    assert rows == [
        ["strategy", "allocated_bytes", "waste_bytes", "admitted_requests"],
        ["reserved", "1073741824", "536870912", "2"],
        ["padded", "805306368", "268435456", "2"],
        ["paged", "536870912", "0", "4"],
        ["effective", "536870912", "0", "4"],
    ]
    body = {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "fp16",
            "lengths": [1024, 3072], "max_length_tokens": 4096}  # fmt: skip
    answer = client.post("/api/v1/fragmentation", json=body)
    assert client.get("/export/fragmentation.json", params=TWO).json() == answer.json()


def test_links_lead_here(client: TestClient) -> None:
    """The ledgers lead here with their own question, sharing and traces without."""
    assert "/fragmentation?model=meta-llama" in client.get("/").text
    for path in ("/sharing", "/traces"):
        assert 'href="/fragmentation"' in client.get(path).text


def test_what_is_typed_is_escaped(client: TestClient) -> None:
    """A script typed into any field comes back as text."""
    attack = '"><script>alert(1)</script>'
    for field in ("lengths", "max_length_tokens", "block_size", "memory", "model"):
        assert "<script>alert" not in client.get("/fragmentation", params={field: attack}).text
