"""The page of engines shows the API's figures; the address is the comparison."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.engines.vllm.spending import REASONS
from app.pages.engines import EXAMPLES
from app.pages.engines_view import SPENT

GEMMA = {"model": "google/gemma-3-27b-it", "kv": "bf16", "context": "131072"}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/engines?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def row(text: str, engine: str) -> str:
    """Return the table's row of an engine."""
    return text.partition(f'id="row-{engine}"')[2].partition("</tr>")[0]


def test_each_engine_has_its_row(client: TestClient) -> None:
    """Tokens, requests at once, bytes at three lengths, fixed part and slope of each engine."""
    text = page(client, **GEMMA)
    vllm = row(text, "vllm")
    for figure in ("0.33.0", "291\u202f658", "2.23", "19\u202f301\u202f662\u202f720",
                   "8\u202f564\u202f244\u202f480", "81\u202f920"):  # fmt: skip
        assert figure in vllm
    assert "66\u202f571\u202f993\u202f088" in row(text, "tensorrt_llm")
    assert "11\u202f173\u202f199\u202f872" in row(text, "need")
    assert "llama.cpp serves 3.00 such requests at once, TensorRT-LLM 0.65." in text


def test_what_is_spent_is_said(client: TestClient) -> None:
    """Beyond the need: how much, and on what."""
    text = page(client, **GEMMA)
    assert "6.51 GiB: tokens in flight, and the block in which a window may begin" in text
    assert "51.59 GiB: windowed layers kept at full length" in text


def test_every_kind_of_spending_has_its_words() -> None:
    """The page has words of its own for each code that an engine's plan may give."""
    assert set(REASONS) <= set(SPENT)
    own = {"padding_cells", "window_cells", "rollback_states", "left_out", "wider_rows"}
    assert own | {"kept_smaller", "full_windows", "pages_and_states"} <= set(SPENT)


def test_engines_that_refuse_say_why(client: TestClient) -> None:
    """A format that an engine lacks, and a request that does not fit, are said in its place."""
    text = page(client, model="meta-llama/Llama-3.1-8B", kv="q8_0")
    assert "this engine has no cache in q8_0" in row(text, "vllm")
    stopped = page(client, model="meta-llama/Llama-3.1-405B", kv="bf16")
    assert 'id="stopped-vllm"' in stopped
    assert "the longest that fits is 83200 tokens" in stopped
    assert 'id="stopped-sglang"' not in stopped


def test_three_lengths_of_one_s_own(client: TestClient) -> None:
    """The lengths that are typed are the columns, in order."""
    text = page(client, model="meta-llama/Llama-3.1-8B", lengths="8k, 1k, 128k")
    head = text.partition('id="held"')[2].partition("</thead>")[0]
    places = [head.index(f">{length}<") for length in ("1\u202f024", "8\u202f192", "131\u202f072")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"budget": "much"}, "budget"),
        ({"budget": "0"}, "budget"),
        ({"context": "1k, 2k"}, "context"),
        ({"context": "0"}, "context"),
        ({"context": "999999999"}, "context"),
        ({"lengths": "1k, 2k, 3k, 4k"}, "lengths"),
        ({"lengths": "oops"}, "lengths"),
        ({"model": "<b>"}, "model"),
        ({"source": "config", "config": "{"}, "config"),
        ({"kv": "fp17"}, "kv_dtype"),
    ],
)
def test_mistakes_become_sentences(client: TestClient, query: dict[str, str], field: str) -> None:
    """A mistake is a sentence with its field's name, escaped; htmx gets it with status 200."""
    address = f"/engines?{urlencode(query)}"
    answer = client.get(address)
    assert answer.status_code == 422
    assert f'id="error-{field}"' in answer.text
    assert "<b>" not in answer.text
    part = client.get(address, headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert part.headers["HX-Retarget"] == "#hints"


def test_the_canonical_address(client: TestClient) -> None:
    """A partial answer, by POST as the form sends it, tells the shortest address."""
    fields = {**GEMMA, "budget": "40 GiB", "lengths": ""}
    part = client.post("/engines", data=fields, headers={"HX-Request": "true"})
    assert part.headers["HX-Replace-Url"] == (
        "/engines?model=google%2Fgemma-3-27b-it&kv=bf16&context=131072"
    )
    assert 'id="held"' in part.text


def test_exports(client: TestClient) -> None:
    """JSON is the API's answer; CSV has one row an engine; mistakes are refused."""
    query = urlencode({**GEMMA, "lengths": "1k,8k"})
    asked = client.post(
        "/api/v1/engines/side-by-side",
        json={"model": {"id": "google/gemma-3-27b-it"}, "kv_dtype": "bf16",
              "available_bytes": 42_949_672_960, "context_tokens": 131_072,
              "lengths": [1_024, 8_192]},
    ).json()  # fmt: skip
    assert client.get(f"/export/engines.json?{query}").json() == asked
    rows = client.get(f"/export/engines.csv?{query}").text.splitlines()
    assert rows[0].startswith("engine,version,tokens,concurrency,request_bytes")
    assert rows[0].endswith("bytes_at_1024,bytes_at_8192,refusal")
    assert rows[1].startswith("vllm,0.33.0,291658,")
    assert len(rows) == 6
    for kind in ("json", "csv"):
        assert client.get(f"/export/engines.{kind}?budget=much").status_code == 422


def test_commands_are_the_same_question(client: TestClient) -> None:
    """The page's commands name the model, the memory and the length."""
    text = page(client, **GEMMA)
    assert "/api/v1/engines/side-by-side" in text
    assert "app plan all --model google/gemma-3-27b-it --kv-dtype bf16" in text
    assert "app plan vllm" in text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda item: item.text.template[:24])
def test_examples(example: object, client: TestClient) -> None:
    """Each example answers."""
    answer = client.get(f"/engines?{example.query}")  # type: ignore[attr-defined]
    assert answer.status_code == 200
    assert 'id="held"' in answer.text
