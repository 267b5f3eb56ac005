"""The page of sharing shows the API's figures and tables; the address is the calculation."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from starlette.testclient import TestClient

from app.pages.sharing import EXAMPLES

HTMX = {"hx-request": "true", "hx-request-type": "partial"}
UNIFORM = {"source": "numbers", "layers": 32, "kv_heads": 8, "head_dim": 128, "kv": "fp16"}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/sharing?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def figure(text: str, name: str) -> str:
    """Return what stands in a figure of the page."""
    return text.partition(f'id="{name}"')[2][:300]


def test_the_first_example_shows_its_figures(client: TestClient) -> None:
    """8 MiB against 12 MiB, 34 positions, and which block who holds."""
    text = page(client, **UNIFORM)
    assert 'data-copy="12582912"' in figure(text, "logical")
    assert 'data-copy="8388608"' in figure(text, "paged")
    assert 'data-copy="4456448"' in figure(text, "effective")
    assert "4 unique blocks, 0 copied on write" in text
    assert "Memory saved: 4 MiB, 33.3 %; 2 blocks." in text
    assert "34 positions: each shared prefix once" in text
    assert '<td class="shade-1">0 <b>×2</b></td>' in text
    assert '<td class="shade-0">3 <b>×1</b> <small>1/16</small></td>' in text


def test_long_runs_are_one_cell_and_rows_come_in_pages(client: TestClient) -> None:
    """Of 120 sequences 50 are drawn; 32 blocks that all hold are one cell; the rest is linked."""
    nested = {"groups": "512 -> 40 x 200 -> 3 x 60"}
    text = page(client, **UNIFORM, **nested)
    assert "0–31 <b>×120</b> <small>32 blocks</small>" in text
    assert "120 sequences" in text
    assert text.count('<th scope="row" class="number">') == 50
    last = page(client, **UNIFORM, **nested, offset=100)
    assert last.count('<th scope="row" class="number">') == 20
    assert "offset=50" in last
    assert "offset=150" not in last


def test_cells_beyond_the_first_are_counted(client: TestClient) -> None:
    """Of 70 blocks that differ from their neighbours 64 are drawn, and six are counted."""
    lines = ["1..140"] + [f"1..{2 * n} 9999" for n in range(1, 70)]
    text = page(client, **UNIFORM, given="sequences", sequences="\n".join(lines), block_size=2)
    assert "and 6 more" in text


def test_either_rule_is_shown(client: TestClient) -> None:
    """Two ends of 20 tokens: two blocks copied on write, three when only full ones are shared."""
    text = page(client, **UNIFORM, groups="20 -> 0, 0")
    rules = text.partition("Under either rule")[2]
    assert "4 194 304" in text.replace("\u202f", " ")
    assert rules.index('<td class="number">3</td>') < rules.index('<td class="number">2</td>')
    assert "copied on write (textbook)" in rules
    forced = page(client, **UNIFORM, groups="20 -> 0, 0", policy="full_blocks")
    assert 'value="full_blocks" selected' in forced


def test_what_is_too_much_to_draw_is_counted(client: TestClient) -> None:
    """A million requests have figures and no table."""
    text = page(client, **UNIFORM, groups="1000000 x (16 -> 1)")
    assert "too many sequences or entries to draw" in text
    assert "2000000 table entries" in text
    assert "No sequences." in page(client, **UNIFORM, groups="")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.query[:30])
def test_the_examples_give_an_answer_and_their_own_address(
    example: object, client: TestClient
) -> None:
    """Each example opens, and its canonical address opens to the same figures."""
    query = dict(parse_qsl(example.query))  # type: ignore[attr-defined]
    text = page(client, **query)
    partial = client.get(f"/sharing?{urlencode(query)}", headers=HTMX)
    address = partial.headers["hx-replace-url"]
    assert partial.text.lstrip().startswith("<section")
    assert figure(client.get(address).text, "paged") == figure(text, "paged")


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"groups": "32 -> x"}, "groups", "stands where a size"),
        ({"groups": "0 x 5 -> 1"}, "groups", "at least 1"),
        ({"given": "sequences", "sequences": "1 <b>"}, "sequences", "&lt;b&gt;"),
        ({"given": "samples", "samples": "0"}, "samples", "at least 1"),
        ({"given": "samples", "samples": "x"}, "samples", "whole number"),
        ({"block_size": "0"}, "block_size", "at least 1"),
        ({"model": "nobody/nothing"}, "model", "nobody"),
        ({"source": "config", "config": "{"}, "config", "not JSON"),
        ({"kv": "fp17"}, "kv_dtype", "fp17"),
        ({"offset": "x"}, "offset", "whole number"),
    ],
)
def test_mistakes_stand_beside_their_field(
    query: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A page with a mistake is 422 with its sentence; a change by htmx goes to the hints."""
    answer = client.get(f"/sharing?{urlencode(query)}")
    assert answer.status_code == 422
    assert words in answer.text.partition(f'id="error-{field}"')[2][:300]
    partial = client.get(f"/sharing?{urlencode(query)}", headers=HTMX)
    assert partial.status_code == 200
    assert partial.headers["hx-retarget"] == "#hints"
    for kind in ("csv", "json"):
        export = client.get(f"/export/sharing.{kind}?{urlencode(query)}")
        if field != "offset":
            assert export.status_code == 422
            assert export.json()["detail"][0]["loc"] == ["query", field]


def test_exports_are_the_same_answer(client: TestClient) -> None:
    """JSON is the API's answer; CSV has a line for each table entry."""
    query = urlencode({**UNIFORM, "groups": "32 -> 1, 1"})
    exported = client.get(f"/export/sharing.json?{query}").json()
    body = {"model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
            "kv_dtype": "fp16", "groups": [{"prefix_tokens": 32, "branches": [1, 1]}]}  # fmt: skip
    assert exported == client.post("/api/v1/sharing", json=body).json()
    lines = client.get(f"/export/sharing.csv?{query}").text.splitlines()
    assert lines[0] == "sequence,entry,block,holders,filled_tokens"
    assert lines[1:] == ["1,0,0,2,16", "1,1,1,2,16", "1,2,2,1,1", "2,0,0,2,16", "2,1,1,2,16",
                         "2,2,3,1,1"]  # fmt: skip
    many = client.get("/export/sharing.csv?groups=1000000+x+16")
    assert many.text.splitlines() == lines[:1]


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ({"groups": "512 -> 40 x 200"}, "--groups '512 -> 40 x 200' --block-size 16"),
        ({"given": "sequences", "sequences": "1 2\n3"}, "--sequences '1 2; 3'"),
        ({"given": "samples"}, "--prompt-tokens 1000 --samples 4 --own-tokens 50"),
        ({"policy": "full_blocks", "v": "q8_0"}, "--kv-dtype fp16/q8_0"),
    ],
)
def test_the_same_on_the_command_line(
    query: dict[str, str], command: str, client: TestClient
) -> None:
    """The page says the command that gives the same."""
    text = page(client, **query).partition('id="command"')[2].replace("&#39;", "'")
    assert command in text.replace("&gt;", ">")
    assert "python -m app sharing --model meta-llama/Llama-3.1-8B" in text
