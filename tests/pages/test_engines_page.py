"""The page of engines shows the API's figures; the address is the comparison."""

from __future__ import annotations

import html
import re
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
                   "8\u202f564\u202f244\u202f480", "81\u202f920", "17\u202f407"):  # fmt: skip
        assert figure in vllm
    assert "66\u202f571\u202f993\u202f088" in row(text, "tensorrt_llm")
    assert "11\u202f173\u202f199\u202f872" in row(text, "need")
    assert "llama.cpp serves 3.00 such requests at once, TensorRT-LLM 0.65." in text


def test_what_an_engine_counts_itself_stands_under_the_table(client: TestClient) -> None:
    """Tokens held are defined once; what an engine counts otherwise is said in its words."""
    text = page(client, **GEMMA)
    assert "Tokens held: requests at once times the longest request" in text
    assert "393\u202f216" in row(text, "llama_cpp")
    (said,) = re.findall(r'id="remarks-llama_cpp">(.*?)</p>', text)
    assert said == (
        "llama.cpp: it holds whole contexts only; made as a single context, n_ctx could be up to"
        " 516096"
    )
    assert 'id="remarks-vllm"' not in text
    mistral = page(client, model="mistralai/Mistral-7B-v0.1", kv="bf16")
    assert "1\u202f073\u202f741\u202f824" not in mistral
    assert (
        "1073741824" not in row(mistral, "llama_cpp") + mistral.partition("remarks-llama")[2][:99]
    )


def test_ranks_and_a_version(client: TestClient) -> None:
    """Ranks go to every engine that has them; those without say so; the address keeps them."""
    fields = {"model": "meta-llama/Llama-3.1-8B", "kv": "bf16", "tensor_parallel": "2",
              "data_parallel": "1", "decode_context_parallel": "",
              "vllm_version": "0.11.0"}  # fmt: skip
    text = page(client, **fields)
    assert "65\u202f536" in row(text, "vllm")
    assert "0.11.0" in row(text, "vllm")
    assert "65\u202f536" in row(text, "sglang")
    assert "131\u202f072" in row(text, "llama_cpp")
    assert "llama.cpp has no setting for tensor_parallel" in text
    assert '<details id="more-settings" open>' in text
    assert "Both together" in html.unescape(text)
    assert "app plan vllm --model meta-llama/Llama-3.1-8B --kv-dtype bf16" in text
    assert "--tensor-parallel 2 --setting version=0.11.0" in text
    assert "--setting vllm.version=0.11.0" in text
    part = client.post("/engines", data=fields, headers={"HX-Request": "true"})
    assert "tensor_parallel=2" in part.headers["HX-Replace-Url"]
    assert "vllm_version=0.11.0" in part.headers["HX-Replace-Url"]
    assert '<details id="more-settings">' in page(client, model="meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"context": "99999999999"},
         "context must be between 1 and 4194304, got '99999999999'"),
        ({"context": "long"}, "context must be one number, such as 131072 or 128k, got 'long'"),
        ({"tensor_parallel": "0"}, "tensor_parallel must be at least 1, got 0"),
        ({"pipeline_parallel": "two"}, "pipeline_parallel must be a whole number, got 'two'"),
        ({"vllm_version": "9.9.9"}, "vllm_version '9.9.9' is not a known vLLM release"),
    ],
)  # fmt: skip
def test_mistakes_name_their_field_and_the_bound(
    client: TestClient, query: dict[str, str], sentence: str
) -> None:
    """A sentence says which field, and what it may be."""
    answer = client.get(f"/engines?{urlencode(query)}")
    assert answer.status_code == 422
    assert sentence in html.unescape(answer.text)


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", ""),
        ("openai/whisper-large-v3", ""),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8", "is taken to have the layers of meta-llama/Llama"),
    ],
)
def test_models_by_the_names_that_logs_have(client: TestClient, model: str, note: str) -> None:
    """Whatever name the explanation of a log knows is known here too, and guesses are said."""
    text = page(client, model=model, kv="bf16")
    assert 'id="held"' in text
    assert note in text
    asked = {"log": "GPU KV cache size: 75,840 tokens", "model": {"id": model}}
    explained = client.post("/api/v1/engines/explain", json=asked)
    assert explained.json()["model"] is not None


def test_workings_in_chinese(client: TestClient) -> None:
    """The lines of a working are said in the page's language."""
    text = client.get(
        "/engines?model=meta-llama/Llama-3.1-8B&kv=bf16", headers={"Accept-Language": "zh"}
    ).text
    assert "一个请求" in text
    assert "a request:" not in text


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
    assert rows[0].endswith("bytes_at_1024,bytes_at_8192,refusal,remarks")
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
