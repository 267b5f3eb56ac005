"""The page of comparisons, and tables as files."""

from __future__ import annotations

import io
import zipfile
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.domain.errors import Unsupported
from app.pages import tables

A = "model=meta-llama/Llama-3.1-8B&kv=bf16&utilisation=0.9"
B = "https://example.org/fit?model=meta-llama/Llama-3.1-8B&kv=fp8&utilisation=0.9"


def test_side_by_side(client: TestClient) -> None:
    """Differences are marked by a sign and in words; the sweep has its table."""
    answer = client.get(f"/compare?{urlencode({'c1': A, 'c2': B, 'contexts': '1k, 8k'})}")
    assert answer.status_code == 200
    assert '<tr class="unlike"><th scope="row">KV type</th>' in answer.text
    assert '<tr><th scope="row">Device</th>' in answer.text
    assert "2 points" in answer.text
    assert "vllm serve meta-llama/Llama-3.1-8B --kv-cache-dtype fp8" in answer.text


def test_the_first_visit_shows_an_example(client: TestClient) -> None:
    """Without a query two calculations are there."""
    assert "meta-llama/Llama-3.1-70B" in client.get("/compare").text


def test_a_point_without_an_answer_says_why(client: TestClient) -> None:
    """A split that the heads do not allow has its sentence in the table."""
    query = urlencode({"c1": A, "c2": B, "tensor_ranks": "1, 7", "devices": "l4"})
    assert "neither divides" in client.get(f"/compare?{query}").text


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"c1": A}, "c2"),
        ({"c1": A, "c2": "utilisation=most"}, "c2"),
        ({"c1": A, "c2": "utilisation=1.5"}, "c2"),
        ({"c1": A, "c2": "device=abacus"}, "c2"),
        ({"c1": A, "c2": B, "c4": "x" * 5000}, "c4"),
        ({"c1": A, "c2": B, "contexts": "oops"}, "contexts"),
        ({"c1": A, "c2": B, "contexts": "20000×1"}, "contexts"),
        ({"c1": A, "c2": B, "devices": "l4 " * 401}, "devices"),
    ],
)
def test_mistakes_become_sentences(client: TestClient, query: dict[str, str], field: str) -> None:
    """A mistake is named at its calculation or its list."""
    answer = client.get(f"/compare?{urlencode(query)}")
    assert answer.status_code == 422
    assert 'class="error"' in answer.text
    part = client.get(f"/compare?{urlencode(query)}", headers={"HX-Request": "true"})
    assert part.headers["HX-Retarget"] == "#hints"
    if field != "c1":
        assert f'id="error-{field}"' in answer.text


@pytest.mark.parametrize("name", ["compare", "sweep"])
def test_exports(client: TestClient, name: str) -> None:
    """JSON, CSV, Markdown and a workbook; any other kind is refused."""
    query = urlencode({"c1": A, "c2": B, "contexts": "1k, 8k"})
    assert client.get(f"/export/{name}.json?{query}").json()
    csv = client.get(f"/export/{name}.csv?{query}")
    assert csv.headers["content-type"].startswith("text/csv")
    assert len(csv.text.splitlines()) >= 3
    text = client.get(f"/export/{name}.md?{query}").text
    assert text.splitlines()[1].startswith("| ---")
    book = client.get(f"/export/{name}.xlsx?{query}")
    assert zipfile.ZipFile(io.BytesIO(book.content)).testzip() is None
    assert client.get(f"/export/{name}.pdf?{query}").status_code == 422


def test_the_sweep_of_the_api(client: TestClient) -> None:
    """The export of the sweep has a row for each length."""
    query = urlencode({"c1": A, "c2": B, "contexts": "1000..8000/1000"})
    assert len(client.get(f"/export/sweep.json?{query}").json()["points"]) == 8


def test_markdown() -> None:
    """Columns of numbers stand to the right; bars and ends of lines cannot break a row."""
    assert tables.markdown(["a", "b"], [["x|y", 1], ["p\nq", 22]]) == (
        "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n| p q | 22 |\n"
    )


def test_workbooks_hold_no_formula() -> None:
    """A cell that begins like a formula is text; numbers beyond 2^53 are text, too."""
    answer = tables.workbook_download(
        "x.xlsx", ["=a"], [["=1+1"], ["+2"], ["-3"], ["@x"], [5], [2**53 + 1], [None]]
    )
    book = zipfile.ZipFile(io.BytesIO(answer.body))
    strings = book.read("xl/sharedStrings.xml").decode()
    for text in ("'=a", "'=1+1", "'+2", "'-3", "'@x", "9007199254740993"):
        assert f">{text}<" in strings
    assert "<f>" not in book.read("xl/worksheets/sheet1.xml").decode()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed, a workbook is refused in a sentence."""
    monkeypatch.setattr(tables, "has_workbooks", lambda: False)
    with pytest.raises(Unsupported, match="xlsx"):
        tables.workbook_download("x.xlsx", [], [])


@pytest.mark.parametrize(
    "text", ["http://evil.example/x", "http://evil.example/x?model=a", "banana", "a=b", "/fit"]
)
def test_what_is_no_calculation_is_refused(client: TestClient, text: str) -> None:
    """A calculation is an address of /fit or its query; anything else is named beside its field."""
    good = "/fit?model=meta-llama/Llama-3.1-8B&kv=bf16"
    answer = client.get("/compare", params={"c1": good, "c2": text})
    assert answer.status_code == 422
    assert 'id="error-c2"' in answer.text
    assert "must be an address of /fit" in answer.text
    assert client.get("/compare", params={"c1": good, "c2": good}).status_code == 200


def test_control_characters_are_not_repeated(client: TestClient) -> None:
    """NUL and its like never come back in a page."""
    answer = client.get("/compare?c1=http://evil.example/x&c2=%00%07")
    assert answer.status_code == 422
    assert "\x00" not in answer.text
    assert "\x07" not in answer.text
