"""The inspection's page: pasted configs, uploads, models of the Hub, mistakes beside fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.pages.inspect import examples, said_lines
from app.readers.gguf import OmittedValue
from app.settings import Settings
from tests.hub.fake_hub import COMMIT, GOOD_TOKEN, Served, fake_hub
from tests.readers.test_model_files import gguf_bytes, index_bytes, safetensors_bytes

pytestmark = pytest.mark.enable_socket
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
FRAGMENT = {"HX-Request": "true"}


def paste(client: TestClient, config: object, **more: str) -> httpx.Response:
    """Return the page for a pasted config."""
    text = config if isinstance(config, str) else json.dumps(config)
    headers = {"HX-Request": "true"} if more.pop("fragment", "") else {}
    answer: Any = client.get(
        f"/models/inspect?{urlencode({'config': text, **more})}", headers=headers
    )
    found: httpx.Response = answer
    return found


def upload(client: TestClient, *files: tuple[str, bytes], **form: str) -> httpx.Response:
    """Return what an upload is answered with."""
    parts = [("file", file) for file in files]
    answer: Any = client.post(
        "/models/inspect", files=parts or None, data=form, follow_redirects=False
    )
    found: httpx.Response = answer
    return found


def test_the_empty_page(client: TestClient) -> None:
    """Without anything to read there are fields, examples, and no field of the Hub."""
    page = client.get("/models/inspect").text
    assert page.count("/models/inspect?config=") == 4
    assert 'name="hub"' not in page
    assert 'class="strip"' not in page


def test_a_pasted_config(client: TestClient) -> None:
    """Layers drawn, the split, a table over context lengths, weights, and all that was read."""
    page = paste(client, LLAMA).text
    assert page.count('<i class="kind-full_attention"') == 32
    assert 'data-copy="131072"' in page
    assert "137\u202f438\u202f953\u202f472" in page
    assert "8\u202f030\u202f261\u202f248" in page
    assert "num_key_value_heads" in page
    assert "KV in bf16" in page
    assert "family grouped" in page


def test_the_address_is_the_state(client: TestClient) -> None:
    """What htmx puts into the address gives the same page again, without what says nothing."""
    answer = paste(client, LLAMA | {"bos_token_id": 1}, kv="fp8", fragment="yes")
    address = answer.headers["HX-Replace-Url"]
    query = parse_qs(urlsplit(address).query)
    assert query["kv"] == ["fp8"]
    assert json.loads(query["config"][0])["num_key_value_heads"] == 8
    again = client.get(address)
    assert 'data-copy="65536"' in again.text


def test_every_example_is_read(client: TestClient) -> None:
    """Each example's address opens a drawn model."""
    assert len(examples()) == 4
    for example in examples():
        answer = client.get(f"/models/inspect?{example.query}")
        assert answer.status_code == 200
        assert 'class="strip"' in answer.text


def test_the_calculators_address(client: TestClient) -> None:
    """A config leads to the ledgers with that config; a GGUF with its layers by hand."""
    page = paste(client, LLAMA).text
    link = page.partition('<a href="/?')[2].partition('"')[0].replace("&amp;", "&")
    ledgers = client.get(f"/?{link}&lengths=1024")
    assert 'data-copy="134217728"' in ledgers.text
    page = upload(client, ("x.gguf", gguf_bytes())).text
    link = page.partition('<a href="/?')[2].partition('"')[0].replace("&amp;", "&")
    ledgers = client.get(f"/?{link}&lengths=1024")
    # 2 layers of 4 heads × 8, keys and values, 2 bytes.
    assert f'data-copy="{1024 * 2 * 2 * 4 * 8 * 2}"' in ledgers.text


def test_a_model_too_long_for_a_link_has_none(client: TestClient) -> None:
    """A config of many kilobytes is read, and not linked to."""
    long = LLAMA | {"remarks": "x" * 20_000}
    answer = upload(client, ("config.json", json.dumps(long).encode()))
    assert answer.status_code == 200
    assert "Calculate with this model" not in answer.text


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ("{", "config", "not JSON"),
        ("[1]", "config", "JSON object"),
        ('{"model_type": "llama", "a": {"b": 1, "b": 2}}', "config", "names &#39;b&#39; twice"),
        ('{"a": ' * 200 + "1" + "}" * 200, "config", "nested too deeply"),
        ({"model_type": "made_up", "num_hidden_layers": 1}, "config", "made_up"),
        (LLAMA | {"num_hidden_layers": "x"}, "config", "num_hidden_layers"),
    ],
)
def test_mistakes_of_a_config(config: object, field: str, words: str, client: TestClient) -> None:
    """Each is named beside its field; a fragment only touches the hints."""
    answer = paste(client, config)
    assert answer.status_code == 422
    problem = answer.text.partition(f'id="error-{field}">')[2].partition("</p>")[0]
    assert words in problem
    part = paste(client, config, fragment="yes")
    assert part.status_code == 200
    assert part.headers["HX-Retarget"] == "#hints"


@pytest.mark.parametrize(
    ("more", "field"), [({"kv": "fp17"}, "kv_dtype"), ({"encoder_tokens": "x"}, "encoder_tokens")]
)
def test_mistakes_of_other_fields(more: dict[str, str], field: str, client: TestClient) -> None:
    """A format and a length are refused by their own names."""
    answer = paste(client, LLAMA, **more)
    assert answer.status_code == 422
    assert f'id="error-{field}"' in answer.text


def test_markup_in_a_file_stays_text(client: TestClient) -> None:
    """Names and values of a config are escaped."""
    page = paste(client, LLAMA | {"_name_or_path": "<img src=x>", "<b>": "<i>bold</i>"}).text
    assert "<img src=x>" not in page
    assert "<i>bold</i>" not in page
    assert "&lt;i&gt;bold&lt;/i&gt;" in page


# Uploads


def test_a_small_config_becomes_an_address(client: TestClient) -> None:
    """A dropped config.json can be shared like a pasted one."""
    answer = upload(client, ("config.json", json.dumps(LLAMA).encode()), kv="fp8")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/models/inspect?config=")
    assert 'data-copy="65536"' in client.get(answer.headers["location"]).text


def test_a_gguf_and_safetensors(client: TestClient) -> None:
    """Binary headers are answered at once, weights by type included."""
    page = upload(client, ("x.gguf", gguf_bytes(vocabulary=100)))
    assert page.status_code == 200
    assert "100 × string" in page.text
    assert ">Q8_0</th>" in page.text
    alone = upload(client, ("m.safetensors", safetensors_bytes()))
    assert "do not say what layers keep" in alone.text
    assert ">BF16</th>" in alone.text


def test_a_config_with_its_header(client: TestClient) -> None:
    """Several files that belong together are one model."""
    page = upload(
        client,
        ("config.json", json.dumps(LLAMA).encode()),
        ("model.safetensors", safetensors_bytes()),
    ).text
    assert 'data-copy="131072"' in page
    assert "Weights, added up from headers" in page


def upload_part(client: TestClient, *files: tuple[str, bytes], **form: str) -> httpx.Response:
    """Return what the page's own script is answered with for files and the form's fields."""
    parts = [("file", file) for file in files] or [("file", ("", b""))]
    answer: Any = client.post("/models/inspect", files=parts, data=form, headers=FRAGMENT)
    found: httpx.Response = answer
    return found


def test_a_config_pasted_beside_a_header(client: TestClient) -> None:
    """Layers come of the config, weights of the header: 6 of BF16 are 12 bytes."""
    answer = upload_part(client, ("m.safetensors", safetensors_bytes()), config=json.dumps(LLAMA))
    assert answer.status_code == 200
    assert answer.text.lstrip().startswith('<section id="answer"')
    assert 'data-copy="131072"' in answer.text
    assert "Weights, added up from headers" in answer.text
    assert ">BF16</th>" in answer.text
    assert '<td class="number">12</td>' in answer.text
    assert "-F file=@config.json -F file=@m.safetensors" in answer.text
    assert "inspect config.json m.safetensors" in answer.text
    assert answer.text.count("Save the config as config.json first.") == 2
    assert "data-copy-link" not in answer.text
    # The address holds what it can: a reload finds the config again.
    kept = parse_qs(urlsplit(answer.headers["HX-Replace-Url"]).query)
    assert json.loads(kept["config"][0]) == LLAMA


def test_a_config_pasted_beside_an_index(client: TestClient) -> None:
    """The index declares a total of 36 bytes in its two shards."""
    page = upload(client, ("i.json", index_bytes("a", "b")), config=json.dumps(LLAMA)).text
    assert 'data-copy="131072"' in page
    assert "Weights, as the index declares" in page
    assert "36 (36 B)" in page


def test_a_config_pasted_beside_a_gguf_is_a_second_model(client: TestClient) -> None:
    """Both say what layers keep; nobody guesses which of the two counts."""
    answer = upload(client, ("x.gguf", gguf_bytes()), config=json.dumps(LLAMA))
    assert answer.status_code == 422
    problem = answer.text.partition('id="error-file">')[2].partition("</p>")[0]
    assert "give one of them" in problem


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config is not JSON"),
        (json.dumps(LLAMA | {"num_hidden_layers": "x"}), "config.num_hidden_layers"),
    ],
)
def test_mistakes_of_a_config_beside_a_file(config: str, words: str, client: TestClient) -> None:
    """They are the config's own, not the file's."""
    answer = upload_part(client, ("m.safetensors", safetensors_bytes()), config=config)
    assert answer.headers["HX-Retarget"] == "#hints"
    assert words in answer.text.partition('id="error-config">')[2].partition("</p>")[0]
    assert 'id="error-file"' not in answer.text


def test_an_encoder_s_length_beside_a_file(client: TestClient) -> None:
    """One out of bounds is refused by its own name."""
    answer = upload_part(
        client,
        ("m.safetensors", safetensors_bytes()),
        config=json.dumps(LLAMA),
        encoder_tokens="-1",
    )
    assert 'id="error-encoder_tokens"' in answer.text


def test_the_form_s_own_way_is_a_post(client: TestClient) -> None:
    """A config too long for an address is read; a short one's address is its state."""
    answer = upload_part(client, config=json.dumps(LLAMA), kv="fp8")
    assert 'data-copy="65536"' in answer.text
    assert 'data-copy="65536"' in client.get(answer.headers["HX-Replace-Url"]).text
    long = json.dumps(LLAMA | {"remarks": "x" * 1_500_000})
    answer = upload_part(client, config=long)
    assert 'data-copy="131072"' in answer.text
    assert answer.headers["HX-Replace-Url"] == "/models/inspect"
    whole = upload(client, config=long)
    assert whole.status_code == 200
    assert 'data-copy="131072"' in whole.text


def test_a_config_file_alone_is_led_to_its_address(client: TestClient) -> None:
    """The script's page is loaded anew, for its field of pasted text changes too."""
    answer = upload_part(client, ("config.json", b"\n" + json.dumps(LLAMA).encode()))
    assert answer.text == ""
    assert 'data-copy="131072"' in client.get(answer.headers["HX-Redirect"]).text


@pytest.mark.parametrize(
    "files", [[("x", b"nothing")], [("x.gguf", gguf_bytes()[:90])], [("a", b"\xff" * 30)]]
)
def test_uploads_that_cannot_be_read(files: list[tuple[str, bytes]], client: TestClient) -> None:
    """The page says what is wrong with the file."""
    answer = upload(client, *files)
    assert answer.status_code == 422
    assert 'id="error-file"' in answer.text


@pytest.mark.parametrize(
    ("file", "config", "sentence"),
    [
        (gguf_bytes()[:90], "", "file 在某个键内中断：给出了 90 字节，至少还需要 4 字节"),
        (gguf_bytes()[:101], "", "file 在&#39;llama.block_count&#39; 的值内中断："),
        (gguf_bytes()[:7], "", "file 在版本号内中断：给出了 7 字节，至少还需要 1 字节"),
        (b"\x09\0\0\0\0\0\0\0{", "", "file 在头部内中断：给出了 9 字节，至少还需要 8 字节"),
        (b"\x02\0\0\0\0\0\0\0{;", "", "file 在第 1 个字符处无法读取：此处应为一个字符串"),
        (
            b"",
            '{"a" 1}',
            "config 不是 JSON：此处应为冒号“:”：第 1 行第 6 列（第 5 个字符）",
        ),
        (b"", json.dumps({"general.architecture": "clip"}), "没有上下文的图像编码器"),
        (b"", json.dumps(LLAMA | {"num_key_value_heads": 5}), "不能平均分成这么多 KV head 数"),
    ],
)
def test_a_chinese_refusal_has_no_english_in_it(
    file: bytes, config: str, sentence: str, client: TestClient
) -> None:
    """The words within a sentence are translated with it."""
    files = [("file", ("x", file))]
    address = "/models/inspect?lang=zh"
    answer: Any = client.post(address, files=files, data={"config": config}, headers=FRAGMENT)
    client.cookies.clear()
    hints = answer.text.partition('<p class="error"')[2].partition("</p>")[0]
    assert sentence in hints


def test_a_config_file_with_a_key_twice(client: TestClient) -> None:
    """Its address holds it as it came, and shows the mistake beside the field."""
    data = json.dumps(LLAMA).encode()[:-1] + b', "num_hidden_layers": 3}'
    answer = upload(client, ("config.json", data))
    assert answer.status_code == 303
    page = client.get(answer.headers["location"])
    assert page.status_code == 422
    assert "config names &#39;num_hidden_layers&#39; twice" in page.text


def test_an_upload_without_a_file(client: TestClient) -> None:
    """A form sent empty goes back to the page."""
    answer = upload(client, kv="fp8")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/models/inspect?kv=fp8"


def test_long_files_are_listed_in_part() -> None:
    """Nested objects by their path, long values cut, omitted ones counted."""
    lines = said_lines(
        {"a": {"b": {"c": 1}, "d": [1, 2]}, "e": "x" * 400, "f": {}},
        {"tokens": OmittedValue(holds="string", length=9)},
    )
    assert lines[0] == ("a.b.c", "1")
    assert lines[1] == ("a.d", "[1, 2]")
    assert lines[2] == ("e", "x" * 300 + "…")
    assert lines[3:] == [("f", "{}"), ("tokens", "9 × string")]


def test_of_very_many_lines_the_rest_is_counted(client: TestClient) -> None:
    """400 lines are shown, the rest is said."""
    page = paste(client, LLAMA | {f"odd_{i}": i for i in range(500)}).text
    assert "more lines" in page


# The Hub


@pytest.fixture(scope="module")
def hub() -> Iterator[Served]:
    """Return a server that answers as the Hub does."""
    with fake_hub() as served:
        yield served


@pytest.fixture(scope="module")
def enabled(hub: Served) -> Iterator[TestClient]:
    """Return a client of an application that reads from it."""
    config = Settings(hub_enabled=True, hub_endpoint=hub.url, hub_allow_private=True,
                      hub_cache_bytes=0, hub_timeout_s=0.5)  # fmt: skip
    with TestClient(create_app(config), raise_server_exceptions=False) as started:
        yield started


def test_the_field_is_there_where_the_hub_is(enabled: TestClient) -> None:
    """Only where the operator enabled it; the field says which host is asked."""
    page = enabled.get("/models/inspect").text
    assert 'name="hub"' in page
    assert "127.0.0.1" in page


def test_a_model_of_the_hub(enabled: TestClient) -> None:
    """The address names the model; the page names the commit."""
    page = enabled.get("/models/inspect?hub=org/sharded").text
    assert COMMIT in page
    assert 'data-copy="131072"' in page
    assert "210\u202f040" in page


def test_sent_without_a_token_it_becomes_an_address(enabled: TestClient) -> None:
    """So that it can be shared."""
    answer = upload(enabled, hub="org/plain", revision="v1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/models/inspect?hub=org%2Fplain&revision=v1"


def test_a_token_is_sent_and_never_shown(enabled: TestClient, hub: Served) -> None:
    """It is in no address and in no answer."""
    answer = upload(enabled, hub="org/gated", token=GOOD_TOKEN)
    assert answer.status_code == 200
    assert GOOD_TOKEN not in answer.text
    assert "location" not in answer.headers
    assert hub.requests[-1][1]["authorization"] == f"Bearer {GOOD_TOKEN}"


def test_refusals_of_the_hub(enabled: TestClient) -> None:
    """A gated model and a missing one say so beside the field."""
    for model in ("org/gated", "org/absent", "not an id"):
        answer = enabled.get(f"/models/inspect?{urlencode({'hub': model})}")
        assert answer.status_code == 422
        assert 'id="error-hub"' in answer.text


def test_where_it_is_off(client: TestClient) -> None:
    """An address that names a model of the Hub is refused in words."""
    answer = client.get("/models/inspect?hub=org/plain")
    assert answer.status_code == 422
    assert "switched off" in answer.text


def test_a_file_and_a_model_of_the_hub_are_two(enabled: TestClient) -> None:
    """Nobody guesses which of the two counts."""
    answer = enabled.get(f"/models/inspect?{urlencode({'hub': 'org/plain', 'config': '{}'})}")
    assert answer.status_code == 422
    assert "give one of them" in answer.text


def test_a_pasted_config_s_commands_say_to_save_it(client: TestClient) -> None:
    """At the page's own address, and with the file that they read."""
    page = paste(client, LLAMA).text
    assert "curl -s http://testserver/api/v1/models/inspect -F file=@config.json" in page
    assert page.count("Save the config as config.json first.") == 2


@pytest.mark.parametrize("page", ["", "parallel", "fit", "sharing", "cost", "fragmentation"])
def test_wherever_a_command_reads_a_config_the_page_says_so(client: TestClient, page: str) -> None:
    """Only with a pasted config: a model of the catalogue has a name."""
    pasted = client.get(f"/{page}?{urlencode({'source': 'config', 'config': json.dumps(LLAMA)})}")
    assert pasted.text.count("Save the config as config.json first.") == 1
    assert "Save the config" not in client.get(f"/{page}").text
