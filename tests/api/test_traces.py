"""`/traces`: logs of every form, worked values, and refusals that name the line."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from fastapi import Request
from pyarrow import parquet
from starlette.formparsers import MultiPartParser
from starlette.testclient import TestClient

from app.api import traces as traces_module
from app.api.traces_compute import TraceBounds
from app.api.watched_runs import WatchedRun, result_for
from app.main import create_app
from app.readers.traces import Progress, TraceCancelled
from app.settings import Settings

LLAMA = json.dumps({"layers": 32, "kv_heads": 8, "head_dim": 128})
# 1300, 513 and 1400 tokens in blocks of 512; all of them begin with block 0, two with 0 and 1.
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 1300, "output_length": 6, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 40, "input_length": 513, "output_length": 4, "hash_ids": [0, 3]}\n'
    b'{"timestamp": 40, "input_length": 1400, "output_length": 1, "hash_ids": [0, 1, 4]}\n'
)
AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    b"2023-11-16 18:17:03.9799600,4808,10\n"
    b"2023-11-16 18:17:04.0319600,3180,8\n"
)
TOKENS = b"[1, 2, 3, 4]\n[9, 2, 3, 4]\n[1, 2, 3, 4, 5]\n"


def post(client: TestClient, log: bytes, status: int = 200, /, **fields: object) -> dict[str, Any]:
    """Return the answer to a log, sent as a form."""
    data = {name: str(value) for name, value in fields.items()}
    answer = client.post("/api/v1/traces", files={"file": ("log", log)}, data=data)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def problem(client: TestClient, log: bytes, **fields: object) -> dict[str, Any]:
    """Return the first problem of a log that is refused."""
    found: dict[str, Any] = post(client, log, 422, **fields)["detail"][0]
    return found


def test_block_ids(client: TestClient) -> None:
    """Eight references to five blocks; a pool of one block hits block 0 twice, of three all 3."""
    answer = post(
        client, MOONCAKE, model=LLAMA, kv_dtype="fp16", duration_ms=1000,
        pool_bytes=2 * 67_108_864 + 5,
    )  # fmt: skip
    blocks = answer["blocks"]
    assert (blocks["logical_blocks"], blocks["unique_blocks"], blocks["hit_blocks"]) == (8, 5, 3)
    assert (blocks["block_tokens"], blocks["block_bytes"]) == (512, 67_108_864)
    assert (blocks["unique_bytes"], blocks["unique_text"]) == (5 * 67_108_864, "320 MiB")
    assert (blocks["hit_rate"], blocks["enough_blocks"]) == (0.375, 3)
    points = [
        (each["capacity_blocks"], each["capacity_bytes"], each["engine_blocks"], each["hit_blocks"])
        for each in blocks["curve"]
    ]
    assert points == [
        (0, 0, 0, 0), (1, 67_108_864, 32, 2), (2, 134_217_728, 64, 2), (3, 201_326_592, 96, 3),
    ]  # fmt: skip
    levels = {each["percent_of_reuse"]: each["capacity_blocks"] for each in blocks["levels"]}
    assert levels == {50: 1, 75: 3, 90: 3, 95: 3, 99: 3, 100: 3}
    assert (blocks["pool"]["capacity_blocks"], blocks["pool"]["hit_blocks"]) == (2, 2)
    assert answer["formula"].startswith("512 tokens × (2 × 32 layers")
    assert {note["code"] for note in answer["assumptions"]} >= {
        "block_tokens_inferred", "time_unit", "lru_pool", "service_duration", "live_in_blocks",
        "engine_block_smaller",
    }  # fmt: skip
    assert "weights" in {note["code"] for note in answer["not_counted"]}


def test_live_state(client: TestClient) -> None:
    """1312, 528 and 1408 positions in blocks of 16 are live at once, from 40 ms on."""
    live = post(client, MOONCAKE, model=LLAMA, kv_dtype="fp16", duration_ms=1000)["live"]
    assert live["peak_bytes"] == 3248 * 131_072
    assert (live["peak_from_ns"], live["peak_requests"]) == (40_000_000, 3)
    assert live["duration_ns"] == 1_040_000_000
    # 1000 ms of each, over 1040 ms.
    assert live["mean_bytes"] == 3248 * 131_072 * 1000 // 1040
    assert max(each["peak_bytes"] for each in live["bins"]) == live["peak_bytes"]


def test_rates(client: TestClient) -> None:
    """10 tokens a second prefilled and 2 decoded: the last of three ends after 140.54 s."""
    live = post(
        client, MOONCAKE, model=LLAMA, prefill_tokens_per_s=10, decode_tokens_per_s=2
    )["live"]  # fmt: skip
    assert live["duration_ns"] == 140_540_000_000


def test_dates_and_counts(client: TestClient) -> None:
    """A log without block ids has lengths and live state; of reuse nothing is said."""
    answer = post(client, AZURE, model=LLAMA)
    assert (answer["form"], answer["requests"], answer["blocks"]) == ("CSV", 2, None)
    assert answer["first_arrival_ns"] == 1_700_158_623_979_960_000
    assert answer["last_arrival_ns"] - answer["first_arrival_ns"] == 52_000_000
    assert answer["inputs"]["total_tokens"] == 7988
    assert answer["inputs"]["percentiles"][0] == {"percentile": "0", "tokens": 3180}
    assert answer["outputs"]["mean_tokens"] == 9
    assert answer["lengths"]["percentiles"][-1] == {"percentile": "100", "tokens": 4818}
    assert answer["formula"].endswith("= 131072 B/token")
    assert answer["live"]["peak_requests"] == 2


def test_token_ids(client: TestClient) -> None:
    """Blocks of 2: A and B share nothing, C has both of A's; an end of one token has no block."""
    answer = post(client, TOKENS, model=LLAMA, block_size=2)
    blocks = answer["blocks"]
    assert (blocks["logical_blocks"], blocks["unique_blocks"], blocks["hit_blocks"]) == (6, 4, 2)
    assert (blocks["block_tokens"], blocks["block_bytes"]) == (2, 262_144)
    assert answer["live"] is None


def test_without_a_model(client: TestClient) -> None:
    """Lengths and blocks need no model; nothing is said in bytes."""
    answer = post(client, MOONCAKE)
    assert (answer["live"], answer["formula"], answer["not_counted"]) == (None, "", [])
    assert answer["blocks"]["block_bytes"] is answer["blocks"]["unique_bytes"] is None
    assert answer["blocks"]["curve"][1] == {
        "capacity_blocks": 1, "capacity_bytes": None, "capacity_text": None, "engine_blocks": 32,
        "hit_blocks": 2, "hit_rate": 0.25,
    }  # fmt: skip


def test_unknown_block_size(client: TestClient) -> None:
    """A log that leaves its block size open is told in blocks; a given size gives bytes."""
    log = b'{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [7]}\n'
    open_size = post(client, log, model=LLAMA)["blocks"]
    assert (open_size["block_tokens"], open_size["block_bytes"]) == (None, None)
    assert open_size["curve"] == [
        {"capacity_blocks": 0, "capacity_bytes": None, "capacity_text": None,
         "engine_blocks": None, "hit_blocks": 0, "hit_rate": 0.0}
    ]  # fmt: skip
    given = post(client, log, model=LLAMA, kv_dtype="fp16", block_tokens=64)["blocks"]
    assert given["block_bytes"] == 64 * 131_072


def test_a_model_that_keeps_no_positions(client: TestClient) -> None:
    """A recurrent model's prefixes are not kept in blocks: no bytes, and a note why."""
    model = json.dumps({"layer_states": [{"kind": "recurrent", "state_bytes": 1000}]})
    answer = post(client, MOONCAKE, model=model, kv_dtype="fp16", pool_bytes=10**9)
    assert answer["blocks"]["block_bytes"] is answer["blocks"]["pool"] is None
    assert answer["live"]["peak_bytes"] == 3000
    assert "cached_recurrent" in {note["code"] for note in answer["assumptions"]}


def test_a_large_pool_of_tiny_blocks(client: TestClient) -> None:
    """A pool far beyond the log has all of its reuse."""
    model = json.dumps({"layers": 1, "kv_heads": 1, "head_dim": 1})
    blocks = post(client, MOONCAKE, model=model, element_bytes=1, pool_bytes=2**53)["blocks"]
    assert blocks["pool"]["hit_blocks"] == 3


def test_formats_of_keys_and_values(client: TestClient) -> None:
    """A pair of formats comes as JSON text, as elsewhere."""
    pair = json.dumps({"k": "fp16", "v": "fp8"})
    answer = post(client, MOONCAKE, model=LLAMA, kv_dtype=pair)
    assert answer["blocks"]["block_bytes"] == 67_108_864 * 3 // 4


def columns() -> bytes:
    """Return the first log as a Parquet file."""
    rows = [json.loads(line) for line in MOONCAKE.splitlines()]
    out = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def test_parquet(client: TestClient) -> None:
    """A Parquet file gives what its lines give; its times are seconds unless that is said."""
    answer = post(client, columns(), model=LLAMA, kv_dtype="fp16", time_unit="ms", duration_ms=1000)
    lines = post(client, MOONCAKE, model=LLAMA, kv_dtype="fp16", duration_ms=1000)
    assert answer["form"] == "Parquet, hash ids"
    assert (answer["blocks"], answer["live"]) == (lines["blocks"], lines["live"])


@pytest.mark.parametrize(
    ("log", "line", "words"),
    [
        (b"", 1, "without a request"),
        (b"hello\n", 1, "no timestamp"),
        (MOONCAKE + b"{}\n", 4, "input_length is missing"),
        (MOONCAKE + MOONCAKE, 4, "time goes back"),
        (MOONCAKE + b'{"timestamp": 50, "input_length": -1, "output_length": 1, "hash_ids": []}', 4,
         "from 0 to"),
        (MOONCAKE + b"\x00\xff\n", 4, "binary"),
        (b"\x1f\x8b\x08" + b"\x00" * 20, 1, "gzip"),
        (AZURE + b"2023-11-16 18:17:05,1\n", 4, "2 cells"),
    ],
)  # fmt: skip
def test_bad_lines(log: bytes, line: int, words: str, client: TestClient) -> None:
    """A log that cannot be read is refused at its line, and nothing of it is told."""
    found = problem(client, log, model=LLAMA)
    assert found["loc"] == ["body", "file", line]
    assert f"line {line}" in found["msg"]
    assert words in found["msg"]


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"model": "{"}, ["model"]),
        ({"model": "5"}, ["model"]),
        ({"model": '{"layers": 0, "kv_heads": 1, "head_dim": 1}'}, ["model", "layers"]),
        ({"model": '{"id": "nobody/nothing"}'}, ["model", "id"]),
        ({"model": LLAMA, "kv_dtype": "fp17"}, ["kv_dtype"]),
        ({"model": LLAMA, "kv_dtype": "{oops"}, ["kv_dtype"]),
        ({"model": LLAMA, "kv_dtype": "fp16", "element_bytes": 2}, ["element_bytes"]),
        ({"block_size": 0}, ["block_size"]),
        ({"block_tokens": 2**20 + 1}, ["block_tokens"]),
        ({"time_unit": "days"}, ["time_unit"]),
        ({"bins": 1}, ["bins"]),
        ({"curve_points": 3}, ["curve_points"]),
        ({"duration_ms": 5, "decode_tokens_per_s": 5}, ["duration_ms"]),
        ({"prefill_tokens_per_s": 5}, ["prefill_tokens_per_s"]),
        ({"decode_tokens_per_s": 0}, ["decode_tokens_per_s"]),
        ({"pool_bytes": -1}, ["pool_bytes"]),
    ],
)
def test_bad_fields(fields: dict[str, object], loc: list[str], client: TestClient) -> None:
    """A field that is wrong is named before the log is read."""
    assert problem(client, b"not read", **fields)["loc"] == ["body", *loc]


def test_no_file(client: TestClient) -> None:
    """A form without a file is refused, and so is what is no form."""
    answer = client.post("/api/v1/traces", data={"model": LLAMA})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "file"]
    headers = {"content-type": "multipart/form-data"}
    broken = client.post("/api/v1/traces", content=b"x", headers=headers)
    assert broken.status_code == 400
    assert broken.json()["detail"][0]["loc"] == ["body"]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (TraceBounds(requests=2, references=99, unique_blocks=99), "more than 2 requests"),
        (TraceBounds(requests=99, references=7, unique_blocks=99), "or 7 block ids"),
        (TraceBounds(requests=99, references=99, unique_blocks=4), "more than 4 distinct blocks"),
    ],
)
def test_bounds_of_an_upload(
    bounds: TraceBounds, words: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little room a log takes, it stands for a bounded number of requests and blocks."""
    monkeypatch.setattr(traces_module, "UPLOAD_BOUNDS", bounds)
    found = problem(client, columns(), time_unit="ms")
    assert found["loc"] == ["body", "file"]
    assert words in found["msg"]


def many_rows(size: int) -> bytes:
    """Return a log of about so many bytes."""
    row = b"2023-11-16 18:17:05,100,10\n"
    return AZURE + row * (size // len(row))


def test_the_bound_of_an_upload_is_its_own() -> None:
    """A log may be larger than a JSON body, up to the bound of uploads."""
    with TestClient(create_app(Settings(max_body_bytes=4096, max_upload_bytes=16_384))) as own:
        assert post(own, many_rows(10_000))["requests"] > 300
        large = own.post("/api/v1/traces", files={"file": ("log", many_rows(20_000))})
        assert large.status_code == 413


def test_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload of megabytes is read where no temporary file can be made."""

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(MultiPartParser, "spool_max_size", MultiPartParser.spool_max_size)
    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with TestClient(create_app()) as own:
        assert post(own, many_rows(3_000_000), model=LLAMA)["requests"] > 100_000


def endless(seen: threading.Event, ended: threading.Event) -> Any:
    """Return a computation that ends only when its callback stops it."""

    def compute(progress: Progress) -> None:
        try:
            while True:
                progress(1, 2)
                seen.set()
        except TraceCancelled:
            ended.set()
            raise

    return compute


def test_nobody_waits_any_more() -> None:
    """When the caller goes away the thread ends, and so does the request."""
    seen, ended = threading.Event(), threading.Event()

    async def receive() -> dict[str, Any]:
        await asyncio.to_thread(seen.wait, 5)
        return {"type": "http.disconnect"}

    async def ask() -> None:
        request = Request({"type": "http"}, receive=receive)
        run: WatchedRun[None] = WatchedRun(endless(seen, ended))
        # `is_disconnected` looks only for what is there already.
        await asyncio.to_thread(seen.wait, 5)
        request._is_disconnected = True
        with pytest.raises(TraceCancelled):
            await result_for(request, run)
        assert (run.started, run.read_bytes, run.requests) == (True, 1, 2)

    asyncio.run(ask())
    assert ended.wait(5)


def test_a_caller_that_leaves_gets_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to nobody is 499, not a defect of the server."""

    def gone(*_: object, **__: object) -> Iterator[None]:
        raise TraceCancelled

    monkeypatch.setattr(traces_module, "compute_traces", gone)
    with TestClient(create_app()) as own:
        assert own.post("/api/v1/traces", files={"file": ("log", b"x")}).status_code == 499
