"""The page of measured cases."""

from __future__ import annotations

import csv
import io

import pytest
from starlette.testclient import TestClient

from app.accuracy.run import AccuracyRun, process_run


@pytest.fixture(autouse=True, scope="module")
def asked() -> None:
    """Have every case asked before a page is looked at."""
    run = process_run()
    run.start()
    assert run.wait(200)


def test_the_page(client: TestClient) -> None:
    """Counts, kinds of cases, fifty cases with their figures, and no progress any more."""
    page = client.get("/accuracy").text
    assert 'id="progress"' not in page
    assert "0 not reproduced" in page
    assert page.count("<tbody>") == 51
    assert "17\u202f179\u202f869\u202f184" in page


def test_filters(client: TestClient) -> None:
    """Each is in the address and reloads to the same."""
    page = client.get("/accuracy?suite=yardstick&q=gemma").text
    assert page.count("11\u202f173\u202f199\u202f872") == 6
    assert '<option value="yardstick" selected>' in page
    explained = client.get("/accuracy?outcome=explained").text
    assert "prints nowhere" in explained
    assert "No case passes" in client.get("/accuracy?engine=nobody").text


def test_values_that_are_not_offered_are_passed_over(client: TestClient) -> None:
    """A stale address shows everything that it can."""
    for query in ("suite=gone", "outcome=perfect", "offset=-1", "offset=x"):
        assert client.get(f"/accuracy?{query}").text.count("<tbody>") == 51


def test_a_fragment_and_its_address(client: TestClient) -> None:
    """What htmx asks for is the changing part, and the address is the shortest."""
    answer = client.get(
        "/accuracy?q=&engine=sglang&family=&suite=&outcome=", headers={"HX-Request": "true"}
    )
    assert "<html" not in answer.text
    assert answer.headers["HX-Replace-Url"] == "/accuracy?engine=sglang"


def test_pages(client: TestClient) -> None:
    """Next and previous keep the filters."""
    page = client.get("/accuracy?suite=vllm_releases&offset=50").text
    assert 'href="/accuracy?suite=vllm_releases&amp;offset=100"' in page
    assert 'href="/accuracy?suite=vllm_releases"' in page


def test_markup_in_a_search_stays_text(client: TestClient) -> None:
    """What is searched for is escaped."""
    assert "<script>x" not in client.get("/accuracy?q=<script>x").text


def test_csv(client: TestClient) -> None:
    """A line for each figure, and no cell that a spreadsheet takes for a formula."""
    text = client.get("/export/accuracy.csv?suite=transformers_released&q=yi-1.5").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["figure"] for row in rows] == ["cache", "tensors alike"]
    assert rows[0]["measured"] == rows[0]["computed"] == "589889536"
    assert rows[0]["difference"] == "0"


def test_while_cases_are_asked_the_page_looks_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows how far it is, asks again after a second, and then offers all filters."""
    run = AccuracyRun(lambda: ())
    monkeypatch.setattr(run, "start", lambda: None)
    monkeypatch.setattr("app.accuracy.run.process_run", lambda: run)
    page = client.get("/accuracy?engine=vllm").text
    assert "0 of 0 cases" in page
    assert 'hx-get="/accuracy?engine=vllm&amp;look=1"' in page
    look = client.get("/accuracy?engine=vllm&look=1", headers={"HX-Request": "true"})
    assert "hx-swap-oob" not in look.text
    assert look.headers["HX-Replace-Url"] == "/accuracy?engine=vllm"
    assert '<input type="hidden" name="look" value="1" form="ask">' in page
    run._finished.set()
    look = client.get("/accuracy?engine=vllm&look=1", headers={"HX-Request": "true"})
    assert 'id="progress"' not in look.text
    for name in ("engine", "family", "suite"):
        assert f'<select id="{name}" name="{name}" hx-swap-oob="true">' in look.text
    assert "hx-swap-oob" not in client.get("/accuracy?engine=vllm&look=1").text
