"""The page of what fits shows the API's figures; the address is the calculation."""

from __future__ import annotations

import html
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

LLAMA = {"model": "meta-llama/Llama-3.1-8B", "kv": "bf16", "device": "h100-sxm-80",
         "utilisation": "0.9"}  # fmt: skip
BODY = {"model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "bf16", "device": "h100-sxm-80",
        "utilisation": 0.9, "context_tokens": 8192, "concurrency": 16}  # fmt: skip


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/fit?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_page_shows_the_api_s_figures(client: TestClient) -> None:
    """Verdict, lines and figures are those of the API."""
    text = page(client, **LLAMA)
    answer = client.post("/api/v1/fit", json=BODY).json()
    assert answer["verdict"] in text
    assert f"{answer['max_concurrency']} – {answer['max_concurrency_high']}" in text
    for line in answer["lines"]:
        assert f"{line['high_bytes']:,}".replace(",", "\u202f") in text
        assert html.escape(line["note"]).replace("&#x27;", "&#39;") in text
    assert f'data-copy="{answer["kv_bytes_available"]}"' in text


def test_a_load_that_does_not_fit_shows_what_would_help(client: TestClient) -> None:
    """The changes, the fewest devices and the stages have their tables."""
    text = page(client, model="meta-llama/Llama-3.1-70B", kv="bf16", tensor_parallel=2,
                pipeline_parallel=2, context_tokens=131_072, concurrency=8)  # fmt: skip
    assert "It does not fit" in text
    assert "Changes, the least first" in text
    assert "no fewer" in text
    assert "<caption>Stages</caption>" in text


@pytest.mark.parametrize("version", ["0.6.6", "0.7.3", "0.9.2", "0.11.0"])
@pytest.mark.parametrize("kv", ["fp16", "bf16"])
def test_older_engines_take_16_bits(client: TestClient, version: str, kv: str) -> None:
    """The form's own format is planned in a release that has no name for it."""
    text = page(client, **{**LLAMA, "device": "rtx-3090", "context_tokens": 29_000, "kv": kv,
                           "concurrency": 1}, engine="vllm", engine_version=version)  # fmt: skip
    assert "is not a format" not in text
    assert ("--dtype float16" in text) is (kv == "fp16")


def test_a_room_below_zero(client: TestClient) -> None:
    """Where lines take more than there is, the page says how much lacks, surely or perhaps."""
    surely = page(client, **LLAMA, state="-2 GiB")
    assert f'data-copy="-{2**31}" title="-{2**31} B">−2 GiB</button>' in " ".join(surely.split())
    assert "Below 0: so much is lacking" in surely
    perhaps = page(client, **LLAMA, measured_weights="69 GiB")
    assert "Below 0, as it may be" in perhaps
    assert 'id="lacking"' not in page(client, **LLAMA)


def test_what_may_be_used_needs_a_memory(client: TestClient) -> None:
    """The share is stated of a memory that is known, not of a figure that stands in its place."""
    assert "Of the memory 71.26 GiB – 71.27 GiB may be used." in page(client, **LLAMA)
    without = page(client, **{**LLAMA, "device": ""}, state="4 GiB")
    assert 'id="usable"' not in without


def test_more_fields(client: TestClient) -> None:
    """Log figures, mixed lengths, tiers, weights and replicas are read from the address."""
    text = page(
        client, **LLAMA, lengths="90×512, 10×8192", percentile="99%", host_memory="64 GiB",
        host_bandwidth="25 GB/s", disk_memory="2 TB", disk_bandwidth="7GB/s", disk_shared=1,
        transfer_bandwidth="50 GB/s", weights="fp8", activations="1 GiB", data_parallel=2,
        reserve="1 GiB", eager=1, engine="vllm", engine_version="0.20.1", block_size=16,
    )  # fmt: skip
    for words in ("drawn at random", "Host memory", "From prefill to decode", "2 replicas hold",
                  "Kept free", "measured on a running server", "--enforce-eager"):  # fmt: skip
        assert words in text
    given = page(client, **LLAMA, memory="24 GB", weights="16GB", state="4 GiB")
    assert "Room for the state, as measured" in given


def test_a_model_that_does_not_grow(client: TestClient) -> None:
    """A recurrent model takes any length, and the page says so."""
    assert "nothing in this model grows" in page(client, model="state-spaces/mamba-2.8b-hf",
                                                 concurrency=1)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"device": "abacus"}, "device"),
        ({"device": ""}, "device"),
        ({"utilisation": "1.5"}, "utilisation"),
        ({"utilisation": "most"}, "utilisation"),
        ({"memory": "much"}, "memory"),
        ({"context_tokens": "0"}, "context_tokens"),
        ({"concurrency": "x"}, "concurrency"),
        ({"tensor_parallel": "7"}, "tensor_parallel"),
        ({"layers_per_stage": "a", "pipeline_parallel": "2"}, "layers_per_stage"),
        ({"lengths": "oops"}, "lengths"),
        ({"lengths": "1", "percentile": "10"}, "percentile"),
        ({"host_memory": "1 GiB"}, "host_bandwidth"),
        ({"weights": "fp17"}, "weights"),
        ({"state": "lots"}, "state"),
        ({"engine": "<i>"}, "engine"),
    ],
)
def test_mistakes_become_sentences(client: TestClient, query: dict[str, str], field: str) -> None:
    """A mistake is a sentence at its field; exports refuse with the same."""
    address = urlencode({**LLAMA, **query})
    answer = client.get(f"/fit?{address}")
    assert answer.status_code == 422
    assert "<i>" not in answer.text
    assert 'class="error"' in answer.text
    for kind in ("json", "csv"):
        refused = client.get(f"/export/fit.{kind}?{address}")
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["query", field]


def test_exports(client: TestClient) -> None:
    """JSON is the API's answer with advice; CSV has one row a line."""
    query = urlencode(LLAMA)
    exported = client.get(f"/export/fit.json?{query}").json()
    asked = {**BODY, "batch_tokens": 8192, "max_sequences": 256, "advise": True}
    assert exported == client.post("/api/v1/fit", json=asked).json()
    rows = client.get(f"/export/fit.csv?{query}").text.splitlines()
    assert rows[0] == "line,low_bytes,high_bytes,basis,note"
    assert rows[2].startswith("weights,16060522496,16060522496,computed,")


def test_the_canonical_address(client: TestClient) -> None:
    """A partial answer tells htmx the shortest address of the calculation."""
    part = client.get(f"/fit?{urlencode({**LLAMA, 'concurrency': 16})}",
                      headers={"HX-Request": "true"})  # fmt: skip
    assert part.headers["HX-Replace-Url"] == (
        "/fit?model=meta-llama%2FLlama-3.1-8B&kv=bf16&utilisation=0.9"
    )
