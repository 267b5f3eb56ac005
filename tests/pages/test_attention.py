"""`/attention`: the worked question, typed and drawn numbers, experiments, mistakes in words."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

import pytest
from starlette.testclient import TestClient

from app.api.attention_schemas import Experiment
from app.api.lab_runs import RUNS
from app.demo.backends import DEVICES as LAB_DEVICES
from app.demo.backends import is_torch_installed
from app.demo.lab import EXPERIMENTS
from app.demo.quantise import LAB_DTYPES as LAB_FORMATS
from app.pages.attention import DEVICES, EXAMPLES, EXPERIMENT_TITLES, LAB_DTYPES, typed_fields

HTMX = {"hx-request": "true", "hx-request-type": "partial"}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/attention?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def figure(text: str, name: str) -> str:
    """Return what stands under a figure's id."""
    return text.partition(f'id="{name}">')[2].partition("<")[0]


def test_the_worked_question_stands_there(client: TestClient) -> None:
    """Without a query the page shows 3, 4 without the history, and half and half."""
    text = page(client)
    assert figure(text, "output") == "3"
    assert figure(text, "without-history") == "4"
    assert "equal to the last bit" in text
    assert "Σ a·v = 0.5 × 2 + 0.5 × 4 = 3" in text
    assert text.count('<td class="number">0.5</td>') == 2
    assert "Computed by" in text


def test_torch_s_absence_is_said(client: TestClient) -> None:
    """Where torch is not installed the page says so, and where it is it does not."""
    assert ("torch is not installed here" in page(client)) is not is_torch_installed()


def test_the_device_and_the_format_can_be_chosen(client: TestClient) -> None:
    """A format rounds what is kept; the page says in which and where it was computed."""
    text = page(client, past_values="2.1", dtype="fp8", device="numpy")
    assert "Computed by numpy on cpu." in text
    assert "as fp8" in text
    assert '<td class="vector">2</td>' in text
    text = page(client, past_values="2.1", dtype="fp32")
    assert '<td class="vector">2.1</td>' in text


def test_several_queries_show_every_weight(client: TestClient) -> None:
    """Two new tokens see the cache and themselves; the mask hides the second from the first."""
    text = page(
        client, query="0\n0", new_key="0\n0", new_value="4\n6", device="numpy", dtype="fp32"
    )
    assert figure(text, "output") == "3 | 4"
    assert 'id="weights"' in text
    assert "out of sight" not in text
    windowed = page(client, query="0\n0", new_key="0\n0", new_value="4\n6", window="1")
    assert figure(windowed, "output") == "4 | 6"
    assert windowed.count("out of sight") == 2


def test_drawn_numbers_come_by_seed_and_can_be_edited(client: TestClient) -> None:
    """A seed gives the same page again; the link to edit it gives the same output typed."""
    query = {"numbers": "drawn", "past_tokens": 3, "width": 2, "seed": 7, "device": "numpy"}
    text = page(client, **query)
    output = figure(text, "output")
    assert output == figure(page(client, **query), "output")
    assert output != figure(page(client, **{**query, "seed": 8}), "output")
    edit = text.partition("Edit these numbers")[0].rpartition('href="/attention?')[2]
    typed = parse_qs(edit.partition('"')[0].replace("&amp;", "&"))
    assert len(typed["past_keys"][0].split()) == 6
    edited = page(client, **{name: value[0] for name, value in typed.items()})
    assert figure(edited, "output") == output


def test_numbers_too_many_for_a_link_have_none(client: TestClient) -> None:
    """A thousand drawn numbers are shown and exported, not put into an address."""
    text = page(client, numbers="drawn", past_tokens=64, new_tokens=40, width=16)
    assert "Edit these numbers" not in text
    assert "4 more positions" in text


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"query": ""}, "query", "query must have at least 1"),
        ({"query": "x"}, "query", "&#39;x&#39;"),
        ({"query": "1e999"}, "query", "finite"),
        ({"past_keys": "1 2"}, "past_keys", "1 elements"),
        ({"past_keys": ""}, "past_values", "as many rows"),
        ({"new_value": "1 2"}, "new_value", "1 elements"),
        ({"window": "0"}, "window", "at least 1"),
        ({"window": "x"}, "window", "whole number"),
        ({"dtype": "fp3"}, "dtype", "fp3"),
        ({"device": "abacus"}, "device", "abacus"),
        ({"numbers": "drawn", "width": "17"}, "width", "16"),
        ({"numbers": "drawn", "seed": "-1"}, "seed", "between"),
        ({"query": "<script>"}, "query", "&lt;script&gt;"),
    ],
)
def test_a_mistake_stands_in_words_at_its_field(
    query: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A whole page with a mistake is 422, names the field, and repeats nothing unescaped."""
    answer = client.get(f"/attention?{urlencode(query)}")
    assert answer.status_code == 422
    found = answer.text.partition(f'id="error-{field}">')[2].partition("</p>")[0]
    assert words in found
    assert "<script>alert" not in answer.text
    partial = client.get(f"/attention?{urlencode(query)}", headers=HTMX)
    assert partial.status_code == 200
    assert partial.headers["hx-retarget"] == "#hints"


def test_the_address_is_short_and_gives_the_same(client: TestClient) -> None:
    """What is as it was at first is left out of the address."""
    answer = client.get("/attention?query=1&past_keys=0&dtype=fp32&width=4", headers=HTMX)
    assert answer.headers["hx-replace-url"] == "/attention?query=1"


def test_every_experiment_is_one_click_away(client: TestClient) -> None:
    """Nine buttons, in the lab's order, with the lab's own titles."""
    text = page(client)
    assert list(EXPERIMENT_TITLES) == list(EXPERIMENTS)
    assert len(EXPERIMENT_TITLES) == 9
    for code in EXPERIMENTS:
        assert f'name="experiment" value="{code}"' in text


@pytest.mark.parametrize("code", EXPERIMENTS)
def test_an_experiment_has_its_table_its_chart_and_its_sentence(
    code: Experiment, client: TestClient
) -> None:
    """Each shows its statement, a table of its figures and at least one chart."""
    text = page(client, experiment=code, tokens=16, device="numpy")
    assert EXPERIMENT_TITLES[code] in text
    assert 'id="statement"' in text
    assert 'id="figures"' in text
    assert 'id="chart-experiment-1"' in text
    assert "seed 0, 16 tokens" in text
    charts = text.count('id="chart-experiment-')
    assert charts == (3 if code == "eviction_compared" else 1)


def test_what_an_experiment_shows(client: TestClient) -> None:
    """Pages in any order are equal: the table says yes; K moved alone is not."""
    text = page(client, experiment="rows_permuted", tokens=16, device="numpy")
    rows = text.partition('id="figures"')[2]
    assert ">no<" in rows
    pages = page(client, experiment="pages_in_any_order", tokens=16, device="numpy")
    assert pages.partition('id="figures"')[2].count(">yes<") >= 3
    assert "9 of 9 layouts" in pages


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"experiment": "nothing"}, "nothing"),
        ({"experiment": "left_padding", "tokens": "3"}, "at least 4"),
        ({"experiment": "left_padding", "tokens": "x"}, "whole number"),
        ({"experiment": "left_padding", "seed": "-1"}, "at least 0"),
    ],
)
def test_an_experiment_s_mistake_leaves_the_answer(
    query: dict[str, str], words: str, client: TestClient
) -> None:
    """A mistake of an experiment stands beside its buttons, under the answer as it was."""
    text = page(client, **query)
    assert words in text.partition('id="error-experiment"')[2].partition("</p>")[0]
    assert figure(text, "output") == "3"


def test_a_busy_lab_is_said(client: TestClient) -> None:
    """While another run has the lab the page answers the question and says that it is busy."""
    with RUNS.start("measured", device="numpy", seed=0):
        text = page(client, experiment="history_dropped")
    assert "The lab is busy" in text.partition('id="error-experiment"')[2]
    assert figure(text, "output") == "3"


def test_exports(client: TestClient) -> None:
    """The CSV has a row for each query and position, the JSON is the API's own answer."""
    rows = client.get("/export/attention.csv?query=0").text.splitlines()
    assert rows == ["query,position,score,weight", "0,0,0.0,0.5", "0,1,0.0,0.5"]
    masked = client.get("/export/attention.csv?window=1").text.splitlines()
    assert masked[1] == "0,0,,0.0"
    answer = client.get("/export/attention.json").json()
    body = {"query": [0], "past_keys": [[0]], "past_values": [[2]], "new_key": [0],
            "new_value": [4]}  # fmt: skip
    assert answer == client.post("/api/v1/attention", json=body).json()
    for kind in ("csv", "json"):
        refused = client.get(f"/export/attention.{kind}?query=x")
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["query", "query"]


def test_the_examples_are_good(client: TestClient) -> None:
    """Every example is a page without a mistake."""
    assert len(EXAMPLES) >= 4
    for example in EXAMPLES:
        assert client.get(f"/attention?{example.query}").status_code == 200


def test_the_form_offers_what_the_lab_has() -> None:
    """Formats and devices, listed so as not to load NumPy, are the lab's own."""
    assert LAB_DTYPES == LAB_FORMATS
    assert DEVICES == LAB_DEVICES
    assert typed_fields({})["dtype"] in LAB_FORMATS
