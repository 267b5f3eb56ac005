"""The catalogue's pages: the list, two side by side, one entry drawn."""

from __future__ import annotations

import csv
import io
import re

import pytest
from starlette.testclient import TestClient

from app.domain.dtypes import dtype_named
from app.domain.formats import KvFormats
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
    State,
    StateTensor,
)
from app.pages.model_view import model_view, span_text, tensors_of, tokens_text
from app.readers.reading import ModelReading

BF16 = dtype_named("bf16")
BOTH = KvFormat(key=BF16, value=BF16)
GEMMA, NEXT = "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct"


def get(client: TestClient, path: str, **headers: str) -> str:
    """Return a page that is there."""
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, path
    return answer.text


def ids(page: str) -> list[str]:
    """Return the ids of the list's rows."""
    table = page.partition('<table id="models">')[2].partition("</table>")[0]
    return re.findall(r'<th scope="row"><a href="/models/[^"]*">([^<]*)</a>', table)


# The list


def test_the_list(client: TestClient) -> None:
    """Fifty rows of 572, with the next page's address."""
    page = get(client, "/models")
    assert len(ids(page)) == 50
    assert "572 models" in page
    assert 'href="/models?offset=50"' in page
    second = ids(get(client, "/models?offset=50"))
    assert second
    assert not set(second) & set(ids(page))


@pytest.mark.parametrize(
    ("query", "there"),
    [
        ("q=gemma+27b", GEMMA),
        ("kind=recurrent&q=next", NEXT),
        ("family=gemma3", GEMMA),
        ("size=80&q=gemma-3-27b-it", GEMMA),
        ("size=more&q=deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ],
)
def test_filters(query: str, there: str, client: TestClient) -> None:
    """Words, kind, family and size, each in the address."""
    page = get(client, f"/models?{query}")
    assert there in ids(page)
    assert len(ids(page)) < 50


def test_what_is_not_read_says_why(client: TestClient) -> None:
    """Each unread entry shows the field and the reason."""
    page = get(client, "/models?read=no")
    assert ids(page)
    assert page.count("not read:") == len(ids(page))
    assert not set(ids(page)) & set(ids(get(client, "/models?read=yes")))


def test_order(client: TestClient) -> None:
    """A head sorts by its column, the same head again turns the order round."""
    page = get(client, "/models?sort=parameters&order=desc")
    assert 'aria-sort="descending"' in page
    assert 'href="/models?sort=parameters"' in page
    assert ids(page)[0] != ids(get(client, "/models?sort=parameters"))[0]


def test_what_is_not_offered_is_passed_over(client: TestClient) -> None:
    """A stale or made-up value of a filter shows everything, never an error."""
    for query in ("sort=weight", "kind=magic", "size=0", "family=none", "read=perhaps",
                  "offset=-5", "offset=99999999", "order=up", "pick=nobody/nothing"):  # fmt: skip
        assert "572 models" in get(client, f"/models?{query}")


def test_nothing_found(client: TestClient) -> None:
    """A search that nothing passes says what to do, and is escaped."""
    page = get(client, "/models?q=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "No model passes" in page
    assert "<script>alert" not in page
    assert 'value="&lt;script&gt;alert(1)&lt;/script&gt;"' in page


def test_a_fragment_is_only_the_answer(client: TestClient) -> None:
    """What htmx asks for is the changing part, and the address is the shortest."""
    answer = client.get("/models?q=gemma&kind=&size=", headers={"HX-Request": "true"})
    assert "<html" not in answer.text
    assert answer.headers["HX-Replace-Url"] == "/models?q=gemma"


# Two side by side


def test_two_side_by_side(client: TestClient) -> None:
    """Both are drawn, with a table over context lengths; the choice is in the address."""
    page = get(client, f"/models?pick={GEMMA}&pick={NEXT}&q=gemma")
    pair = page.partition('<table id="pair">')[2].partition("</table>")[0]
    assert "11\u202f173\u202f199\u202f872" in pair
    assert "3\u202f298\u202f492\u202f416" in pair
    assert 'id="chart-pair"' in page
    assert page.count('name="pick"') == 2
    assert "chosen" in page


def test_a_third_takes_the_place_of_the_first(client: TestClient) -> None:
    """No more than two are compared."""
    page = get(client, f"/models?pick={GEMMA}&pick={NEXT}&pick=openai/gpt-oss-20b")
    assert page.count('name="pick"') == 2
    assert f'name="pick" value="{GEMMA}"' not in page


def test_one_alone_waits_for_another(client: TestClient) -> None:
    """With one chosen the page says what to do next; an unread one says why it is not drawn."""
    assert "Choose another" in get(client, f"/models?pick={GEMMA}")
    unread = ids(get(client, "/models?read=no"))[0]
    page = get(client, f"/models?pick={unread}&pick={GEMMA}")
    assert "This entry is not read" in page
    assert 'id="chart-pair"' not in page


def test_csv(client: TestClient) -> None:
    """Every entry that passes the filters, a line each."""
    text = client.get("/export/models.csv?q=gemma+27b").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert GEMMA in {row["id"] for row in rows}
    row = next(row for row in rows if row["id"] == GEMMA)
    assert row["window_bytes"] == "435781632"
    assert row["kinds"] == "full_attention sliding_window"


# One entry


def test_one_entry(client: TestClient) -> None:
    """Strip, split, tensors, table, source, and the address of the calculator."""
    page = get(client, f"/models/{GEMMA}")
    assert page.count('<i class="kind-sliding_window"') == 52
    assert page.count('<i class="kind-full_attention"') == 10
    assert 'aria-label="62 layers: 52 × sliding window, 10 × full attention"' in page
    assert "K [B, 16, L, 128] bf16" in page
    assert "K [B, 16, ≤ 1023, 128] bf16" in page
    assert "0–4, 6–10, … 54–58, 60–61" in page
    assert 'data-copy="81920"' in page
    assert 'data-copy="435781632"' in page
    assert "86\u202f335\u202f127\u202f552" in page
    assert "6.1 times" in page
    assert f'href="/?model={GEMMA}&amp;kv=bf16"' in page
    assert "&#34;layer_states&#34;" in page


def test_another_format(client: TestClient) -> None:
    """The format is in the address and changes every figure."""
    page = get(client, f"/models/{GEMMA}?kv=fp8")
    assert 'data-copy="40960"' in page
    answer = client.get(f"/models/{GEMMA}?kv=fp8", headers={"HX-Request": "true"})
    assert answer.headers["HX-Replace-Url"] == f"/models/{GEMMA}?kv=fp8"


def test_a_mistake_beside_its_field(client: TestClient) -> None:
    """A format that is none, or a length that is none, is named; the page is still there."""
    for query, field in (("kv=fp17", "kv"), ("encoder_tokens=x", "encoder_tokens")):
        answer = client.get(f"/models/{GEMMA}?{query}")
        assert answer.status_code == 422
        assert f'id="error-{field}"' in answer.text


def test_an_entry_with_an_encoder(client: TestClient) -> None:
    """Where there is an encoder its length can be given; elsewhere the field is not shown."""
    page = get(client, "/models/facebook/bart-large?encoder_tokens=1000")
    assert 'value="1000"' in page
    assert "K [B, 16, 1000, 64] bf16" in page
    assert 'name="encoder_tokens"' not in get(client, f"/models/{GEMMA}")


def test_an_entry_that_is_not_read(client: TestClient) -> None:
    """It says so, with its field, and still shows where its config is public."""
    unread = ids(get(client, "/models?read=no"))[0]
    page = get(client, f"/models/{unread}")
    assert 'id="unread"' in page
    assert 'rel="noreferrer"' in page
    assert 'class="strip"' not in page


def test_an_unknown_id_offers_what_is_near(client: TestClient) -> None:
    """404 with ids that hold its last word, escaped."""
    answer = client.get("/models/nobody/gemma-3-27b-it")
    assert answer.status_code == 404
    assert f'href="/models/{GEMMA}"' in answer.text
    assert "<b>" not in client.get("/models/%3Cb%3E").text
    assert client.get("/models//").status_code == 404


def test_ids_do_not_swallow_the_other_pages(client: TestClient) -> None:
    """The ids offered and the inspection keep their addresses."""
    assert "<option" in client.get("/models/options?model=gemma").text
    assert "Read a model" in get(client, "/models/inspect")


def test_json(client: TestClient) -> None:
    """The API's own answer as a download; a bad one is refused."""
    answer = client.get(f"/export/model.json?id={GEMMA}&kv=fp8")
    api = client.get(f"/api/v1/models/{GEMMA}?kv_dtype=fp8")
    assert answer.json() == api.json()
    assert client.get("/export/model.json?id=nobody/nothing").status_code == 422


# How a model is drawn


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([(0, 32)], "0–31"),
        ([(0, 1), (1, 2), (5, 1)], "0–2, 5"),
        ([(i, 1) for i in range(1, 32, 2)], "1, 3, … 31"),
        ([(0, 1), (2, 1), (4, 1)], "0, 2, 4"),
        ([(0, 5), (6, 5), (12, 5), (18, 5), (24, 2)], "0–4, 6–10, … 18–22, 24–25"),
        ([(3, 1), (9, 2), (20, 1)], "3, 9–10, 20"),
    ],
)
def test_layers_in_words(spans: list[tuple[int, int]], text: str) -> None:
    """Neighbours are joined, and long regular rows are cut."""
    assert span_text(spans) == text


@pytest.mark.parametrize(
    ("state", "tensors"),
    [
        (FullAttention(kv_heads=8, k_dim=192, v_dim=128),
         ("K [B, 8, L, 192] bf16", "V [B, 8, L, 128] bf16")),
        (FullAttention(kv_heads=1, k_dim=64, v_dim=0, index_dim=128),
         ("K [B, 1, L, 64] bf16", "I [B, L, 128] bf16")),
        (SlidingWindow(kv_heads=2, k_dim=4, v_dim=4, window=9),
         ("K [B, 2, ≤ 8, 4] bf16", "V [B, 2, ≤ 8, 4] bf16")),
        (ChunkedAttention(kv_heads=2, k_dim=4, v_dim=4, chunk=9),
         ("K [B, 2, ≤ 8, 4] bf16", "V [B, 2, ≤ 8, 4] bf16")),
        (CrossAttention(kv_heads=2, k_dim=4, v_dim=4, encoder_tokens=1500),
         ("K [B, 2, 1500, 4] bf16", "V [B, 2, 1500, 4] bf16")),
        (LatentAttention(latent_dim=512, rope_dim=64, index_dim=128,
                         index_format=dtype_named("fp8")),
         ("C [B, L, 512 + 64] bf16", "I [B, L, 128] fp8")),
        (LatentAttention(latent_dim=8, rope_dim=0, window=5), ("C [B, ≤ 4, 8 + 0] bf16",)),
        (LatentAttention(latent_dim=0, rope_dim=0, index_dim=8, tokens_per_entry=4),
         ("I [B, L / 4, 8] bf16",)),
        (Recurrent(tensors=(StateTensor(name="conv", shape=(3, 8), dtype=BF16),)),
         ("conv [B, 3, 8] bf16",)),
        (Shared(with_layer=7), ("→ 7",)),
    ],
)  # fmt: skip
def test_tensors_of_each_kind(state: State, tensors: tuple[str, ...]) -> None:
    """Shapes as a framework would print them."""
    assert tensors_of(state, BOTH) == tensors


def test_layers_that_keep_nothing_and_layers_that_keep_two() -> None:
    """An empty layer is a dash; a layer of two states shows both."""
    full = FullAttention(kv_heads=1, k_dim=8, v_dim=8)
    state = Recurrent(tensors=(StateTensor(name="s", shape=(4,), dtype=BF16),))
    model = ModelState.of_layers(
        [Layer(states=(full, state)), Layer(states=()), Layer(states=(full,))]
    )
    view = model_view(ModelReading(state=model, family="x"), KvFormats.same(BF16), "en")
    assert [cell.kinds for cell in view.cells] == [
        (("full_attention", "F"), ("recurrent", "R")), (("none", "–"),), (("full_attention", "F"),),
    ]  # fmt: skip
    assert [(group.kind, group.layers) for group in view.groups] == [
        ("full_attention", "0, 2"), ("recurrent", "0"), ("none", "1"),
    ]  # fmt: skip
    assert "Fixed part" in [trace["name"] for trace in view.chart["data"]]


@pytest.mark.parametrize(
    ("tokens", "text"), [(1024, "1k"), (131_072, "128k"), (1_048_576, "1M"), (1000, "1000")]
)
def test_lengths_in_words(tokens: int, text: str) -> None:
    """Powers of two have their usual names."""
    assert tokens_text(tokens) == text


def test_the_commands_name_the_pair_that_is_compared(client: TestClient) -> None:
    """With two chosen, both commands ask for these two, at the page's own address."""
    pair = "pick=google%2Fgemma-3-27b-it&pick=Qwen%2FQwen3-32B"
    page = client.get(f"/models?{pair}").text
    for name in ("google/gemma-3-27b-it", "Qwen/Qwen3-32B"):
        assert f"http://testserver/api/v1/models/{name}" in page
        assert f"per-token --model {name} --kv-dtype bf16" in page
    alone = client.get("/models?q=qwen3+32b&kind=full_attention").text
    assert "http://testserver/api/v1/models?q=qwen3+32b&amp;kind=full_attention" in alone
    assert "models qwen3 32b --kind full_attention" in alone


def test_the_commands_have_every_filter(client: TestClient) -> None:
    """Family, size, what is read and the order are asked of the API and of the command alike."""
    page = client.get("/models?family=gemma3&size=15&read=yes&sort=layers&order=desc").text
    asked = ("family=gemma3&amp;readable=true&amp;min_parameters=4000000000"
             "&amp;max_parameters=14999999999&amp;sort=layers&amp;descending=true")  # fmt: skip
    assert f"http://testserver/api/v1/models?{asked}" in page
    assert ("models --family gemma3 --readable --min-parameters 4000000000 "
            "--max-parameters 14999999999 --sort layers --descending<") in page  # fmt: skip
    unread = client.get("/models?size=1&read=no").text
    assert "models --not-readable --min-parameters 1 --max-parameters 999999999<" in unread


def test_an_entry_s_command_has_the_format_that_was_chosen(client: TestClient) -> None:
    """What is asked of the API is what the page shows."""
    page = client.get("/models/Qwen/Qwen3-32B?kv=fp8_e4m3").text
    assert "http://testserver/api/v1/models/Qwen/Qwen3-32B?kv_dtype=fp8_e4m3" in page
    assert "per-token --model Qwen/Qwen3-32B --kv-dtype fp8_e4m3" in page


def test_a_chunked_layer_s_table_says_that_it_shows_the_most(client: TestClient) -> None:
    """Llama 4 at 131,072 tokens, where its chunks have just been dropped: not less than before."""
    page = client.get("/models/meta-llama/Llama-4-Scout-17B-16E").text
    assert "fullest on the way" in page
    assert "fullest on the way" not in client.get("/models/Qwen/Qwen3-32B").text
