"""The page of comparisons, and tables as files."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.api.sweep import SweepRequest, points_of
from app.domain.errors import Unsupported
from app.pages import tables
from app.pages.sweep_view import Sample, ratios, spread

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
        ({"c1": A, "c2": B, "contexts": "200000×1"}, "contexts"),
        ({"c1": A, "c2": B, "contexts": "1..100001"}, "contexts"),
        ({"c1": A, "c2": B, "contexts": "0"}, "contexts"),
        ({"c1": A, "c2": B, "contexts": "1..100000", "tensor_ranks": "1 " * 11}, "contexts"),
        ({"c1": A, "c2": B, "devices": "l4 " * 401}, "devices"),
        ({"c1": A, "c2": B, "devices": "l4 " * 300, "kv_dtypes": "fp8 " * 10}, "devices"),
        ({"c1": A, "c2": B, "tensor_ranks": "1, banana"}, "tensor_ranks"),
        ({"c1": A, "c2": B, "tensor_ranks": "²"}, "tensor_ranks"),
        ({"c1": A, "c2": B, "tensor_ranks": "-1"}, "tensor_ranks"),
        ({"c1": A, "c2": B, "tensor_ranks": "9" * 5000}, "tensor_ranks"),
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


LARGE = {"c1": A, "c2": B, "contexts": "1..6000", "kv_dtypes": "bf16, fp8"}


def swept(client: TestClient, fields: dict[str, str], language: str = "en") -> list[dict[str, Any]]:
    """Return the lines that the page's script gets of a sweep."""
    headers = {"Accept": "application/x-ndjson", "Accept-Language": language}
    answer = client.post("/compare/sweep", data=fields, headers=headers)
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_large_sweep_waits_to_be_asked_for(client: TestClient) -> None:
    """Above 10,000 points the comparison is shown, and how many points there would be."""
    text = client.get(f"/compare?{urlencode(LARGE)}").text
    assert "The sweep has 12\u202f000 points. Up to 10\u202f000 are computed as you type" in text
    assert "Without scripts this page shows up to 10\u202f000 points" in text
    assert "The sweep&#39;s points" not in text
    assert "CSV of all points" in text
    assert "/export/sweep.json" not in text
    assert 'method="post" data-stream>' in text
    assert '<input type="hidden" name="contexts" value="1..6000">' in text
    at_once = client.get(f"/compare?{urlencode({**LARGE, 'all': '1'})}").text
    assert 'method="post" data-stream="now">' in at_once
    small = client.get(f"/compare?{urlencode({**LARGE, 'contexts': '1..5000', 'all': '1'})}").text
    assert "data-stream" not in small


def test_a_large_sweep_comes_with_progress(client: TestClient) -> None:
    """Lines say how far it is; the last is the chart and an even sample, and where it is found."""
    *told, last = swept(client, LARGE)
    assert told
    assert all(0 < line["done"] <= line["total"] == 12_000 for line in told)
    assert told[0]["text"].endswith(" of 12\u202f000 points")
    assert last["put"] == "sweep"
    assert "200 of 12\u202f000 points, evenly spread. The CSV has all of them." in last["html"]
    assert last["html"].count("<tr><td>h100-sxm-80</td>") == 200
    assert last["html"].count("<tr><td>h100-sxm-80</td><td>bf16</td>") == 100
    assert "6\u202f000</td>" in last["html"]
    assert last["address"] == f"/compare?{urlencode(LARGE)}&all=1"
    assert "均匀抽取" in swept(client, LARGE, "zh")[-1]["html"]


def test_a_small_sweep_may_be_asked_for_as_well(client: TestClient) -> None:
    """Whatever its size a sweep is answered; nothing is left out of a small one."""
    (*_, last) = swept(client, {**LARGE, "contexts": "1k, 8k"})
    assert "evenly spread" not in last["html"]
    assert last["html"].count("<tr><td>h100-sxm-80</td>") == 4


def test_a_mistake_in_a_large_sweep_is_a_sentence(client: TestClient) -> None:
    """The script puts it beside the last figures."""
    (line,) = swept(client, {**LARGE, "devices": "l4 " * 401})
    assert line["put"] == "hints"
    assert 'id="error-devices"' in line["html"]


@pytest.mark.parametrize(
    ("contexts", "to"),
    [("1..6000", f"/compare?{urlencode(LARGE)}"), ("1024 " * 2000, "/compare")],
)
def test_without_the_script_the_page_says_its_limit(
    client: TestClient, contexts: str, to: str
) -> None:
    """A form sent without it leads to the page; too long an address is not made."""
    answer = client.post(
        "/compare/sweep", data={**LARGE, "contexts": contexts}, follow_redirects=False
    )
    assert answer.status_code == 303
    assert answer.headers["location"] == to


def test_the_csv_has_all_points(client: TestClient) -> None:
    """A row for each point beyond what is answered at once; what is refused is refused first."""
    answer = client.get(f"/export/sweep.csv?{urlencode(LARGE)}")
    header, *rows = answer.text.splitlines()
    assert header.startswith("device,kv_dtype,tensor_parallel,context_tokens,request_bytes")
    assert len(rows) == 12_000
    assert rows[0].startswith("h100-sxm-80,bf16,1,1,2097152,")
    assert rows[-1].startswith("h100-sxm-80,fp8,1,6000,")
    assert answer.headers["content-disposition"] == 'attachment; filename="sweep.csv"'
    assert client.get(f"/export/sweep.json?{urlencode(LARGE)}").status_code == 422
    bad = client.get(f"/export/sweep.csv?{urlencode({**LARGE, 'tensor_ranks': 'x'})}")
    assert bad.json()["detail"][0]["loc"] == ["query", "tensor_ranks"]


def test_formats_at_one_context_are_bars(client: TestClient) -> None:
    """Without a range of contexts the chart compares the combinations themselves."""
    query = urlencode({"c1": A, "c2": B, "kv_dtypes": "bf16, fp8, q4_0"})
    text = client.get(f"/compare?{query}").text
    assert "Requests that fit, by device, KV type and tensor ranks" in text
    assert '"type": "bar"' in text
    assert '"x": ["bf16", "fp8", "q4_0"]' in text
    both = client.get(f"/compare?{query}&tensor_ranks=1,2").text
    assert '"x": ["bf16 \\u00b7 TP1", "bf16 \\u00b7 TP2", "fp8 \\u00b7 TP1",' in both
    alone = client.get(f"/compare?{urlencode({'c1': A, 'c2': B, 'contexts': '8k'})}").text
    assert '"x": ["h100-sxm-80 \\u00b7 bf16 \\u00b7 TP1"]' in alone


def test_a_refused_point_is_said_in_the_page_s_language(client: TestClient) -> None:
    """The sentence of a point without an answer is translated like any other."""
    query = urlencode({"c1": A, "c2": B, "devices": "abacus"})
    text = client.get(f"/compare?{query}", headers={"Accept-Language": "zh"}).text
    assert "abacus&#39; 不在" in text
    assert "is not among" not in text


@pytest.mark.parametrize(("language", "label"), [("en", "State of the load"), ("zh", "负载的状态")])
def test_the_line_that_decides_has_its_name(client: TestClient, language: str, label: str) -> None:
    """A line is called what people call it, not what JSON does."""
    text = client.get(
        f"/compare?{urlencode({'c1': A, 'c2': B})}", headers={"Accept-Language": language}
    ).text
    assert text.count(f'<td class="number">{label}</td>') == 2
    assert '<td class="number">state</td>' not in text


@pytest.mark.parametrize(
    ("of", "wanted", "numbers"),
    [
        (3, 5, {0, 1, 2}),
        (5, 5, {0, 1, 2, 3, 4}),
        (9, 3, {0, 4, 8}),
        (10, 4, {0, 3, 6, 9}),
        (10, 1, {0}),
        (100_000, 2, {0, 99_999}),
    ],
)
def test_a_sample_is_even(of: int, wanted: int, numbers: set[int]) -> None:
    """The first and the last are in it, and steps between differ by one at most."""
    assert spread(of, wanted) == numbers


def test_marks_of_a_logarithmic_axis() -> None:
    """They are dense at first, below the bound, and never more than wanted."""
    assert ratios(1024, 10) == {0, 1, 3, 7, 15, 31, 63, 127, 255, 511}
    assert ratios(1, 10) == {0}


@pytest.mark.parametrize(
    ("contexts", "devices", "rows"),
    [
        (1, 1, (1, 1)),
        (20, 10, (20, 10)),
        (21, 10, (20, 10)),
        (5000, 2, (100, 2)),
        (3, 300, (3, 66)),
        (50, 300, (8, 25)),
    ],
)
def test_a_sample_has_contexts_of_every_kept_combination(
    contexts: int, devices: int, rows: tuple[int, int]
) -> None:
    """So many contexts of so many combinations, each combination with the same ones."""
    base = {"model": {"layers": 1, "kv_heads": 1, "head_dim": 1}, "measured": {"state": 10**6},
            "kv_dtype": "fp16"}  # fmt: skip
    request = SweepRequest.model_validate(
        {"base": base, "context_tokens": list(range(1, contexts + 1)), "tensor_parallel": [1],
         "kv_dtypes": ["fp8"] * min(devices, 20), "devices": ["l4"] * -(-devices // 20)}
    )  # fmt: skip
    sample = Sample(request)
    for done in sample.taken(points_of(request)):
        assert 0 < done <= sample.total
    view = sample.view("en")
    lengths = [point.context_tokens for point in view.points]
    assert len(lengths) == rows[0] * rows[1]
    assert sorted(set(lengths)) == sorted(lengths[: rows[0]])  # type: ignore[type-var]
    assert view.points_in_all == sample.total == contexts * devices
    assert view.drawable == devices
    assert view.drawn == min(devices, 24 if contexts == 1 else 5)


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
