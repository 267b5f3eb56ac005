"""The page of a log: its lines beside their figures, and nothing of it in an address."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.engines import logs
from app.engines.logs import explain, open_log
from app.pages.example_logs import EXAMPLE_LOGS
from app.pages.explain_view import FIGURES
from app.pages.render import with_whole_flags
from app.web.assets import ROOT
from tests.engines.logs import test_log_other_measured as others
from tests.engines.logs import test_log_vllm_measured as ours

LOG = "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens"
LLAMA = "meta-llama/Llama-3.1-8B"


def post(client: TestClient, *, fragment: bool = False, language: str = "en", **fields: Any) -> Any:
    """Return the page for a log that is sent."""
    headers = {"Accept-Language": language} | ({"HX-Request": "true"} if fragment else {})
    return client.post("/explain", data=fields, headers=headers)


def plain(text: str) -> str:
    """Return a page's words."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def test_the_form_alone(client: TestClient) -> None:
    """Without a log there is no answer and no mistake."""
    text = client.get("/explain").text
    assert '<textarea id="log"' in text
    assert 'id="figures"' not in text
    assert 'class="error"' not in text


def test_lines_stand_beside_their_figures(client: TestClient) -> None:
    """Each line with its number, then figure, printed, computed, verdict and why."""
    answer = post(client, log=LOG, model=LLAMA)
    assert answer.status_code == 200
    words = plain(answer.text)
    assert "2 GPU KV cache size: 327,680 tokens" in words
    assert "tokens held 327,680 tokens 327,680 tokens" in words
    assert "agrees 2 disagrees 0 not checked 0" in words
    assert "20,480 blocks of 16 tokens each" in words
    assert "5.00x requests of the full length instead of 2.50x" in words


def test_figures_in_chinese(client: TestClient) -> None:
    """Cells and workings are said in the page's language, and the API's answer stays English."""
    text = post(client, language="zh", log=LOG, model=LLAMA).text
    words = plain(text)
    assert "327,680 个 token 327,680 个 token" in words
    assert "一个请求：8,192 个块" in words or "一个请求：8192 个块" in words
    (shown,) = re.findall(r'<pre id="json">(.*?)</pre>', text, re.DOTALL)
    assert json.loads(html.unescape(shown))["figures"][1]["printed"] == "327,680 tokens"
    wrong = LOG.replace("327,680", "300,000")
    disagrees = plain(post(client, language="zh", log=wrong, model=LLAMA).text)
    assert "-27,632 个 token" in disagrees


def test_releases_in_chinese(client: TestClient) -> None:
    """Which releases print a line's form is said in the page's language."""
    log = 'memory.required.kv="1.0 GiB" --ctx-size 8192 --parallel 1'
    text = plain(post(client, language="zh", log=log, model=LLAMA).text)
    assert "版本为 0.29 及更早" in text


def test_numbers_of_a_cell_are_grouped_alike(client: TestClient) -> None:
    """What the decimals leave open is written with commas, as the figures beside it are."""
    text = plain(post(client, log=LOG, model=LLAMA).text)
    assert "the decimals leave 42,944,304,251 … 42,955,041,669 open" in text


def test_no_line_ends_inside_a_flag(client: TestClient) -> None:
    """A flag in a sentence is kept on one line; what is pasted is escaped all the same."""
    text = post(client, log=LOG + " --gpu-memory-<b>", model=LLAMA, want_concurrency="4").text
    flag = '<span class="flag">--kv-cache-dtype</span> fp8'
    assert f"<dt><code>{flag}</code></dt>" in text
    assert with_whole_flags("<b> --a-b 1, a--b") == (
        '&lt;b&gt; <span class="flag">--a-b</span> 1, a--b'
    )
    assert ".flag { white-space: nowrap; }" in (ROOT / "static/app.css").read_text()


def test_examples_stand_after_the_answer(client: TestClient) -> None:
    """Between the form and the answer there is nothing; the examples come last."""
    text = post(client, log=LOG, model=LLAMA).text
    places = [text.index(part) for part in ("</form>", 'id="answer"', 'id="figures"', "?example=")]
    assert places == sorted(places)
    assert "This tab keeps the text until it is closed" in text


def test_a_figure_that_disagrees(client: TestClient) -> None:
    """The verdict, the difference and the count at the top say so; nothing bears the memory out."""
    words = plain(post(client, log=LOG.replace("327,680", "300,000"), model=LLAMA).text)
    assert "agrees 0 disagrees 1 not checked 1" in words
    assert "difference -27,632 tokens" in words


def test_without_a_model_candidates_are_offered(client: TestClient) -> None:
    """The page asks for the model, and offers those of that size; one of them answers."""
    first = post(client, log=LOG)
    assert "the log names no model" in first.text
    assert f'name="candidate" value="{LLAMA}"' in first.text
    chosen = post(client, fragment=True, log=LOG, candidate=LLAMA)
    assert 'hx-swap-oob="true"' in chosen.text
    assert f'value="{LLAMA}"' in chosen.text
    assert "agrees 2 disagrees 0" in plain(chosen.text)
    assert "hx-swap-oob" not in post(client, log=LOG, candidate=LLAMA).text


def test_nothing_of_the_log_is_in_the_address(client: TestClient) -> None:
    """The address has the fields, not the log; that of an example names the example."""
    part = post(client, fragment=True, log=LOG, model=LLAMA, settings="max_num_seqs=8")
    assert part.headers["HX-Replace-Url"] == (
        "/explain?model=meta-llama%2FLlama-3.1-8B&settings=max_num_seqs%3D8"
    )
    example = EXAMPLE_LOGS["sglang"]
    part = post(client, fragment=True, log=example.log, model=example.model)
    assert part.headers["HX-Replace-Url"].startswith("/explain?example=sglang&")


def test_a_file_goes_before_the_box(client: TestClient) -> None:
    """A file that is sent is the log, whatever stands in the box."""
    answer = client.post(
        "/explain", data={"log": "something else", "model": LLAMA},
        files={"file": ("start.log", LOG.encode() + b"\n\xff\xfe", "text/plain")},
    )  # fmt: skip
    assert "agrees 2 disagrees 0" in plain(answer.text)


def test_a_config_in_place_of_a_name(client: TestClient) -> None:
    """A pasted config is the model."""
    config = (
        '{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,'
        ' "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"}'
    )
    assert "agrees 2 disagrees 0" in plain(post(client, log=LOG, config=config).text)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"settings": "word"}, "settings", "flags or name=value"),
        ({"settings": "nope=1"}, "settings", "nope is not a setting"),
        ({"settings": "max_model_len=x"}, "settings", "max_model_len must be"),
        ({"config": "{"}, "config", "not JSON"),
        (
            {"config": '{"model_type": "llama", "num_hidden_layers": -1}'},
            "config",
            "config.num_hidden_layers must be between 1 and 10000, got -1",
        ),
        ({"engine": "nope"}, "engine", "Input should be"),
        ({"want_context": "long"}, "want_context", ""),
        ({"want_context": "1k, 2k"}, "want_context", "one number"),
        ({"want_context": "99999999999"}, "want_context", "between 1 and 2147483647"),
        ({"want_concurrency": "9999999"}, "want_concurrency", "between 1 and 1048576"),
        ({"want_concurrency": "0"}, "want_concurrency", "between 1 and"),
    ],
)
def test_mistakes_become_sentences(
    client: TestClient, fields: dict[str, Any], field: str, words: str
) -> None:
    """A mistake is a sentence at its field, and the log stays in the box."""
    answer = post(client, log=LOG, model=LLAMA, **fields)
    assert answer.status_code == 422
    (error,) = re.findall(rf'id="error-{field}">(.*?)</p>', answer.text)
    assert words in html.unescape(error)
    assert "GPU KV cache size: 327,680 tokens</textarea>" in answer.text
    part = post(client, fragment=True, log=LOG, model=LLAMA, **fields)
    assert (part.status_code, part.headers["HX-Retarget"]) == (200, "#hints")


def test_what_is_pasted_is_escaped(client: TestClient) -> None:
    """Markup in a log is text wherever it is shown."""
    log = "<script>alert(1)</script> GPU KV cache size: 327,680 tokens <b>"
    text = post(client, log=log, model=LLAMA).text
    assert "<script>alert" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;alert" in text


def test_an_unknown_engine_is_said(client: TestClient) -> None:
    """A log of no known engine has a word of what is known, and no table."""
    text = post(client, log="hello").text
    assert "no line has the form of an engine that is known here" in text
    assert 'id="figures"' not in text


def test_the_same_elsewhere(client: TestClient) -> None:
    """Commands for the API and the command line have the fields, and a file for the log."""
    answer = post(client, log=LOG, model=LLAMA, settings="tensor_parallel_size=1", engine="vllm")
    text = html.unescape(answer.text)
    assert "/api/v1/engines/explain" in text
    assert "app explain start.log --model meta-llama/Llama-3.1-8B" in text
    assert "--settings tensor_parallel_size=1 --engine vllm" in text


def test_the_answer_is_the_api_s(client: TestClient) -> None:
    """The JSON on the page is the API's answer to the same log."""
    text = post(client, log=LOG, model=LLAMA).text
    (shown,) = re.findall(r'<pre id="json">(.*?)</pre>', text, re.DOTALL)
    asked = client.post("/api/v1/engines/explain", json={"log": LOG, "model": {"id": LLAMA}})
    assert json.loads(html.unescape(shown)) == asked.json()


@pytest.mark.parametrize("key", EXAMPLE_LOGS)
def test_examples(key: str, client: TestClient) -> None:
    """Each example answers with no figure that disagrees, and says where it was asked."""
    answer = client.get(f"/explain?example={key}")
    assert answer.status_code == 200
    assert "disagrees 0" in plain(answer.text)
    assert EXAMPLE_LOGS[key].source_url in html.unescape(answer.text)


_MAKERS = {"figure", "verdict", "_size", "_sum", "_once", "LogFigure"}


def test_every_figure_has_a_name_on_the_page() -> None:
    """Whatever figure is made of a log, the page has a word for it."""
    made = set()
    for path in sorted((Path(logs.__file__).parent).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in _MAKERS:
                texts = [
                    item.value
                    for item in call.args[:3]
                    if isinstance(item, ast.Constant) and isinstance(item.value, str)
                ]
                made |= set(texts[:1])  # what follows its name is what was printed
    assert len(made) > 20
    assert {name for name in made if " " not in name} - set(FIGURES) == set()


def test_figures_of_public_logs_have_names() -> None:
    """Also those whose names are looked up are among the page's words."""
    names = {
        figure.name
        for case in (*ours.CASES, *others.CASES)
        for figure in explain(open_log("\n".join(case["log_lines"])), None, {}).figures
    }
    assert len(names) > 20
    assert names <= set(FIGURES)
