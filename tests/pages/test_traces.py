"""The page of request logs: figures, downloads, examples, and how far it is."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import re
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from app.main import create_app
from app.pages import traces as page_module
from app.pages.example_traces import EXAMPLE_TRACES
from app.pages.traces_view import time_text
from app.readers.traces import Progress, TraceCancelled
from tests.api.test_traces import AZURE, MOONCAKE

STREAM = {"accept": "application/x-ndjson"}
NUMBERS = {"source": "numbers", "layers": "32", "kv_heads": "8", "head_dim": "128"}


def post(client: TestClient, log: bytes | None, name: str = "log.jsonl", **fields: str) -> str:
    """Return the page for a log that was sent as a whole."""
    files = None if log is None else {"file": (name, log)}
    return client.post("/traces", files=files, data={**NUMBERS, **fields}).text


def lines(client: TestClient, log: bytes | None, **fields: str) -> list[dict[str, Any]]:
    """Return the lines that the page's script is sent."""
    files = None if log is None else {"file": ("log.jsonl", log)}
    answer = client.post("/traces", files=files, data={**NUMBERS, **fields}, headers=STREAM)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["cache-control"] == "no-store"
    return [json.loads(line) for line in answer.text.splitlines()]


def downloads(page: str) -> dict[str, str]:
    """Return the files that a page carries in its links."""
    links = re.findall(r'<a href="data:[^,]*;base64,([^"]+)" download="([^"]+)"', page)
    return {name: base64.b64decode(text).decode() for text, name in links}


def test_before_any_log(client: TestClient) -> None:
    """The form states its limit and offers examples; there is no answer yet."""
    page = client.get("/traces")
    assert page.status_code == 200
    assert 'data-max-bytes="67108864"' in page.text
    assert "At most 64 MiB here" in page.text
    assert "/traces?example=conversations" in page.text
    assert 'id="live"' not in page.text


def test_a_log_without_javascript(client: TestClient) -> None:
    """A sent log is answered by the whole page: 320 MiB of unique blocks, 37.5 % reuse."""
    page = post(client, MOONCAKE, duration_ms="1000", pool="128 MiB")
    assert 'data-copy="425721856"' in page
    assert 'data-copy="335544320"' in page
    assert "37.5 %" in page
    assert "5 unique of 8 logical blocks." in page
    assert "A pool of 128 MiB holds 2 of the log's blocks and hits 25 %." in page
    assert "log.jsonl · JSON lines, hash ids · 3 requests · arrivals over 40.0 ms" in page
    assert "-F &#39;model={&#34;layers&#34;: 32" in page
    assert "traces log.jsonl --layers 32 --kv-heads 8 --head-dim 128" in page
    assert "--duration-ms 1000 --pool &#39;128 MiB&#39;" in page
    assert "--prefill" not in page


def test_downloads_carry_the_same_answer(client: TestClient) -> None:
    """Curve, time line and JSON are in the page's own links, as the API gives them."""
    kept = downloads(post(client, MOONCAKE, duration_ms="1000"))
    assert list(kept) == ["hit-rate.csv", "live-state.csv", "trace.json"]
    curve = list(csv.reader(io.StringIO(kept["hit-rate.csv"])))
    assert curve[0] == [
        "capacity_blocks", "capacity_bytes", "engine_blocks", "hit_blocks", "logical_blocks",
    ]  # fmt: skip
    assert curve[1:] == [
        ["0", "0", "0", "0", "8"], ["1", "67108864", "32", "2", "8"],
        ["2", "134217728", "64", "2", "8"], ["3", "201326592", "96", "3", "8"],
    ]  # fmt: skip
    live = list(csv.reader(io.StringIO(kept["live-state.csv"])))
    assert live[0] == ["start_ns", "peak_bytes", "mean_bytes", "peak_requests"]
    assert max(int(row[1]) for row in live[1:]) == 425_721_856
    answer = client.post(
        "/api/v1/traces", files={"file": ("log", MOONCAKE)},
        data={"model": '{"layers": 32, "kv_heads": 8, "head_dim": 128}', "kv_dtype": "fp16",
              "duration_ms": "1000"},
    )  # fmt: skip
    assert json.loads(kept["trace.json"]) == answer.json()


def test_a_log_without_blocks(client: TestClient) -> None:
    """What a log does not tell is said in words, and has no table."""
    page = post(client, AZURE)
    assert "it says nothing of what repeats" in page
    assert 'id="levels"' not in page
    assert list(downloads(page)) == ["live-state.csv", "trace.json"]


def test_a_log_without_times(client: TestClient) -> None:
    """Token ids without times have blocks and no live state."""
    page = post(client, b"[1, 2, 3]\n[1, 2, 4]\n", block_size="2")
    assert "The log tells no arrival times." in page
    assert "1 unique of 2 logical blocks. A block has 2 tokens." in page
    assert 'id="timeline"' not in page


def test_a_log_that_leaves_its_block_size_open(client: TestClient) -> None:
    """Without a block size capacities are in blocks, on the page and in its chart."""
    log = b'{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [7]}\n' * 2
    page = post(client, log)
    assert "Reached with 1 block; a larger pool hits no more." in page
    assert "Capacity of the pool, blocks" in page
    assert "Capacity, B" not in page


@pytest.mark.parametrize("example", sorted(EXAMPLE_TRACES))
def test_examples(example: str, client: TestClient) -> None:
    """An example is one click: its address has the figures, its file is what they are of."""
    page = client.get("/traces", params={"example": example, **NUMBERS})
    assert page.status_code == 200
    assert 'id="live"' in page.text
    assert f'name="example" value="{example}"' in page.text
    content = client.get(f"/traces/{EXAMPLE_TRACES[example].file_name}").content
    again = json.loads(downloads(post(client, content))["trace.json"])
    assert json.loads(downloads(page.text)["trace.json"]) == again
    assert again["requests"] == 400


def test_unknown_examples(client: TestClient) -> None:
    """Another name is no example and no file."""
    assert 'id="live"' not in client.get("/traces?example=nothing").text
    assert client.get("/traces/nothing.csv").status_code == 404


@pytest.mark.parametrize(
    ("log", "fields", "field", "words"),
    [
        (None, {}, "file", "Choose a log first"),
        (MOONCAKE + b"oops\n", {}, "file", "line 4 is not JSON"),
        (MOONCAKE, {"layers": "none"}, "layers", "must be a whole number"),
        (MOONCAKE, {"block_size": "0"}, "block_size", "at least 1"),
        (MOONCAKE, {"pool": "much"}, "pool", "must be an amount"),
        (MOONCAKE, {"time_unit": "weeks"}, "time_unit", "should be"),
        (MOONCAKE, {"decode_tokens_per_s": ""}, "prefill_tokens_per_s", "needs decode"),
        (MOONCAKE, {"source": "config", "config": "{"}, "config", "not JSON"),
        (MOONCAKE, {"source": "catalogue", "model": "no/body"}, "model", "no/body"),
    ],
)
def test_mistakes(
    log: bytes | None, fields: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A mistake stands at its field; the script is sent the sentences alone, as its last line."""
    files = None if log is None else {"file": ("log", log)}
    whole = client.post("/traces", files=files, data={**NUMBERS, **fields})
    assert whole.status_code == 422
    part = lines(client, log, **fields)[-1]
    for text in (whole.text, part["html"]):
        sentence = re.search(rf'id="error-{field}">([^<]*)<', text)
        assert sentence is not None
        assert words in sentence[1]
    assert part["put"] == "hints"
    assert "address" not in part


def test_the_answer_comes_in_lines(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is told how far the log has been read, then the answer and its address."""
    monkeypatch.setattr(page_module, "TELL_SECONDS", 0)
    log = AZURE + b"2023-11-16 18:17:05,100,10\n" * 30_000
    *told, answer = lines(client, log, pool="1 GiB")
    reading = [line for line in told if "total" in line]
    assert reading
    assert {line["total"] for line in reading} == {len(log)}
    assert [line["done"] for line in reading] == sorted(line["done"] for line in reading)
    assert re.fullmatch(r"[0-9.]+ .?i?B of 791.12 KiB read, [0-9\u202f]+ requests",
                        reading[-1]["text"])  # fmt: skip
    assert (answer["put"], 'id="live"' in answer["html"]) == ("answer", True)
    assert answer["html"].lstrip().startswith('<section id="answer"')
    assert answer["address"] == (
        "/traces?source=numbers&layers=32&kv_heads=8&head_dim=128&kv=fp16&pool=1+GiB"
    )


def test_an_example_keeps_its_address(client: TestClient) -> None:
    """Without a file the example of the form is measured again, and the address names it."""
    answer = lines(client, None, example="completions", duration_ms="30000")[-1]
    assert answer["address"].startswith("/traces?example=completions&source=numbers")
    again = client.get(answer["address"]).text
    shown = re.search(r'id="live"[^>]*>\s*<button type="button" data-copy="(\d+)"', answer["html"])
    assert shown is not None
    assert f'data-copy="{shown[1]}"' in again
    assert "Each request takes 30 s, whatever its length." in again


def test_a_config_too_long_for_an_address(client: TestClient) -> None:
    """A calculation that no address can hold is answered, and has none."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2,
              "hidden_size": 64, "note": "x" * 9000}  # fmt: skip
    answer = lines(client, MOONCAKE, source="config", config=json.dumps(config))[-1]
    assert answer["address"] == "/traces"


def test_what_is_sent_is_escaped(client: TestClient) -> None:
    """A script in a file's name or a field comes back as text."""
    attack = '"><script>alert(1)</script>'
    page = post(client, MOONCAKE, attack, pool=attack)
    assert "<script>alert" not in page
    assert "<script>alert" not in post(client, MOONCAKE, attack)


@pytest.mark.parametrize(
    ("ns", "like", "text"),
    [(0, None, "0.0 ms"), (40_000_000, None, "40.0 ms"), (1_999_000_000, None, "1999.0 ms"),
     (2_000_000_000, None, "2.0 s"), (7_200_000_000_000, None, "2.0 h"),
     (200_000 * 10**9, None, "2.3 d"), (30 * 10**9, 7_200_000_000_000, "0.0 h"),
     (180 * 10**9, 7_200_000_000_000, "0.1 h")],
)  # fmt: skip
def test_times_in_words(ns: int, like: int | None, text: str) -> None:
    """A time is in the largest unit of which it has two, rounded half up to a tenth."""
    assert time_text(ns, like) == text


def test_cancelling_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the browser stops reading, what runs for it ends and nothing is kept."""
    running, ended = threading.Event(), threading.Event()

    def endless(*_: object, progress: Progress, **__: object) -> None:
        try:
            while True:
                progress(1, 1)
                running.set()
        except TraceCancelled:
            ended.set()
            raise

    monkeypatch.setattr(page_module, "compute_traces", endless)
    monkeypatch.setattr(page_module, "TELL_SECONDS", 0.01)
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    headers = [(b"content-type", b"multipart/form-data; boundary=b"),
               (b"accept", b"application/x-ndjson")]  # fmt: skip
    received = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        message = next(received, None)
        if message is None:
            await asyncio.to_thread(running.wait, 5)
            return {"type": "http.disconnect"}
        return message

    async def send(_: Message) -> None:
        pass

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "POST",
        "path": "/traces", "raw_path": b"/traces", "query_string": b"", "headers": headers,
        "scheme": "http", "server": ("test", 80), "client": ("test", 1), "root_path": "",
        "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(create_app()(scope, receive, send), 20))
    assert ended.wait(5)


def test_a_caller_that_leaves_gets_no_error(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole page's answer to nobody is 499, not a defect of the server."""

    def gone(*_: object, **__: object) -> None:
        raise TraceCancelled

    monkeypatch.setattr(page_module, "compute_traces", gone)
    assert client.post("/traces", files={"file": ("a", b"x")}).status_code == 499
