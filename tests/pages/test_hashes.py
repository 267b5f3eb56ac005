"""The page of hashes shows two chains side by side; the address is the calculation."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from starlette.testclient import TestClient

from app.pages.hash_examples import EXAMPLES
from app.pages.hashes import USUAL_IDENTITY

HTMX = {"hx-request": "true", "hx-request-type": "partial"}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/hashes?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def told(text: str, name: str) -> str:
    """Return what stands in an element of the page."""
    return text.partition(f'id="{name}"')[2].partition(">")[2].partition("</p>")[0]


@pytest.mark.parametrize(
    ("place", "matched", "hit", "words"),
    [
        (0, "0", "0", "The chain breaks at block 0. Another token at position 0: 1 here, 9 there."),
        (1, "0", "0", "Another adapter: none here, sql there."),
        (2, "2", "4", "The chain breaks at block 2."),
        (3, "0", "0", "Another salt: none here, tenant-7 there."),
        (4, "1", "16", "Another image, or in another place: cat.png @ 4 here, dog.png @ 4 there."),
        (5, "2", "32", "Another token at position 39: 75 here, 98 there."),
    ],
)
def test_each_example_shows_one_rule(
    place: int, matched: str, hit: str, words: str, client: TestClient
) -> None:
    """Where the chain of each example breaks, why, and what the second prompt would find."""
    text = page(client, **dict(parse_qsl(EXAMPLES[place].query)))
    assert (told(text, "matched"), told(text, "hit")) == (matched, hit)
    assert words in told(text, "breaks")


def test_the_hashes_are_the_apis(client: TestClient) -> None:
    """Each hash can be copied whole, and equals what the API answers."""
    text = page(client, a="1..4", b="1..5")
    body = {"tokens": [1, 2, 3, 4], "block_size": 2, "identity": USUAL_IDENTITY}
    for digest in client.post("/api/v1/prefix-hashes", json=body).json()["hashes"]:
        assert text.count(f'data-copy="{digest}"') == 2
        assert f">{digest[:16]}…</button>" in text
    assert '<td class="mono">5</td>' in text
    assert "no hash" in text


def test_one_prompt_alone(client: TestClient) -> None:
    """Without a second prompt the chain is shown and nothing is compared."""
    text = page(client, a="1..4", b="")
    assert 'id="matched"' not in text
    assert text.count('class="digest"') == 2
    assert "No full block, so no hash." in page(client, a="1", b=" ")


def test_chains_that_do_not_break(client: TestClient) -> None:
    """Equal prompts match in every block, and the last block is computed all the same."""
    text = page(client, a="1..4", b="1..4")
    assert "The chain does not break" in told(text, "breaks")
    assert told(text, "hit") == "2"


def test_long_chains_come_in_pages(client: TestClient) -> None:
    """Of 150 blocks a hundred are shown; of a long block the first tokens."""
    text = page(client, a="1..300", b="1..300")
    assert text.count('class="shade-1"') == 100
    assert "offset=100" in text
    rest = page(client, a="1..300", b="1..300", offset=100)
    assert rest.count('class="shade-1"') == 50
    assert "offset=0" in rest
    assert '<td class="mono">1..8 …</td>' in page(client, a="1..32", b="", block_size=16)
    ahead = page(client, scheme="vllm", a="1..4", b="", lookahead_tokens=3)
    assert "--lookahead-tokens 3" in ahead


def test_text_is_read_as_bytes(client: TestClient) -> None:
    """Plain text is its bytes in UTF-8, and the page says that no tokenizer was asked."""
    text = page(client, read="text", a="é", b="")
    assert '<td class="mono">195 169</td>' in text
    assert "(no tokenizer" in text


def test_the_engines_settings(client: TestClient) -> None:
    """Seed, release, adapter and salt reach the engine's scheme and the command."""
    text = page(
        client, scheme="vllm", algorithm="xxhash", hash_seed="7", version="0.30.0", a="1..4", b="",
        a_lora="sql", a_lora_path="/sql", a_cache_salt="s", a_media="cat @ 0 + 1",
    )  # fmt: skip
    body = {"scheme": "vllm", "algorithm": "xxhash", "hash_seed": "7", "version": "0.30.0",
            "tokens": [1, 2, 3, 4], "block_size": 2, "lora": {"name": "sql", "path": "/sql"},
            "cache_salt": "s",
            "multimodal": [{"identifier": "cat", "offset": 0, "length": 1}]}  # fmt: skip
    first = client.post("/api/v1/prefix-hashes", json=body).json()["hashes"][0]
    assert f'data-copy="{first}"' in text
    command = text.partition('id="command"')[2].replace("&#39;", "'")
    for words in ("--lora sql", "--media 'cat @ 0 + 1'", "--version 0.30.0", "--hash-seed 7"):
        assert words in command


@pytest.mark.parametrize(
    "query",
    [dict(parse_qsl(example.query)) for example in EXAMPLES]
    + [{"a": "1..4", "b": "", "a_adapter": "", "b_dtype": "fp8"}]
    + [{"scheme": "nonsense", "read": "nonsense", "scheme2": "x"}],
)
def test_the_canonical_address_opens_to_the_same(query: dict[str, str], client: TestClient) -> None:
    """A change by htmx answers the section and the short address that reloads to it."""
    partial = client.get(f"/hashes?{urlencode(query)}", headers=HTMX)
    assert partial.text.lstrip().startswith("<section")
    again = client.get(partial.headers["hx-replace-url"])
    assert partial.text.partition("<tbody>")[2].partition("</tbody>")[0] in again.text


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"a": "1 <b>"}, "a", "&lt;b&gt;"),
        ({"b": "x"}, "b", "'x'"),
        ({"block_size": "x"}, "block_size", "whole number"),
        ({"block_size": "0"}, "block_size", "at least 1"),
        ({"scheme": "vllm", "algorithm": "xxhash"}, "hash_seed", "is missing"),
        ({"scheme": "vllm", "version": "0.1"}, "version", "0.10.2"),
        ({"scheme": "vllm", "lookahead_tokens": "99"}, "lookahead_tokens", "at most 64"),
        ({"scheme": "vllm", "a_lora": "sql"}, "a_lora_path", "is missing: since 0.31"),
        ({"scheme": "vllm", "b_lora": "sql"}, "b_lora_path", "b_lora_path is missing"),
        ({"scheme": "vllm", "a_media": "cat"}, "a_media", "is no item"),
        ({"scheme": "vllm", "b_media": "cat @ 9 + 1"}, "b_media", "between 0 and 3"),
        ({"a_salt": "x" * 5000}, "a_salt", "at most 4096"),
        ({"b_model": "é" * 4000}, "b_model", "at most 4096"),
        ({"scheme": "vllm", "a": "1..100000", "block_size": "1"}, "block_size", "blocks to hash"),
        ({"offset": "x"}, "offset", "whole number"),
    ],
)
def test_mistakes_are_named(
    query: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A page with a mistake is 422 with its sentence; exports refuse the same."""
    answer = client.get(f"/hashes?{urlencode(query)}")
    assert answer.status_code == 422
    text = answer.text.partition(f'id="error-{field}"')[2][:400].replace("&#39;", "'")
    assert words in text
    partial = client.get(f"/hashes?{urlencode(query)}", headers=HTMX)
    assert partial.headers["hx-retarget"] == "#hints"
    for kind in ("csv", "json"):
        export = client.get(f"/export/hashes.{kind}?{urlencode(query)}")
        if field != "offset":
            assert export.status_code == 422
            assert export.json()["detail"][0]["loc"] == ["query", field]


def test_exports_are_the_same_answer(client: TestClient) -> None:
    """JSON is the API's answer; CSV has a line for each block, with its reasons."""
    query = urlencode({"a": "1..4", "b": "9 2 3 4"})
    exported = client.get(f"/export/hashes.json?{query}").json()
    assert exported["comparison"]["breaks_at"] == 0
    lines = client.get(f"/export/hashes.csv?{query}").text.splitlines()
    assert lines[0] == "block,first_hash,second_hash,matches,reasons"
    assert lines[1].startswith(f"0,{exported['hashes'][0]},")
    assert lines[1].endswith('False,"Another token at position 0: 1 here, 9 there."')
    assert len(lines) == 3
