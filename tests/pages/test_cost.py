"""`/cost`: totals both ways, growth, the decode step, mistakes in words, the measured panel."""

from __future__ import annotations

import json
import re
import threading
from typing import Any, Self
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.api.lab_runs import RUNS
from app.cli import app as cli
from app.demo.budget import RunStopped
from app.demo.measure import MeasuredPoint
from app.domain.notes import Note
from app.pages.cost import EXAMPLES, device_choices
from app.pages.streams import MEDIA_TYPE

HTMX = {"hx-request": "true", "hx-request-type": "partial"}
NUMBERS = {"source": "numbers", "layers": 32, "kv_heads": 8, "head_dim": 128}


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/cost?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_both_totals_and_the_memory(client: TestClient) -> None:
    """Llama 3.1 8B, 1024 in and 128 out: 8.27 against 991.47 T products, for 143.88 MiB."""
    text = page(client)
    assert 'data-copy="8274237718528"' in text
    assert 'data-copy="991471675113472"' in text
    assert ">8.27 TMAC<" in text
    assert "saves 99.2 % of the work" in text
    assert 'data-copy="150863872"' in text


def test_the_table_has_what_the_api_counts(client: TestClient) -> None:
    """Every figure of the last step stands in the table, and the factors under the growth."""
    body = {
        "model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "fp16",
        "prompt_tokens": 1024, "output_tokens": 128, "device": "h100-sxm-80",
    }  # fmt: skip
    answer = client.post("/api/v1/cost", json=body).json()
    text = page(client).replace("\u202f", "")
    work = answer["last_step"]["without_cache"]
    for name in ("projection_macs", "attention_macs", "logits_macs", "state_read_bytes"):
        assert f'<td class="number">{work[name]}</td>' in text
    for point in answer["curve"]:
        assert f'title="{point["run_attention_without_macs"]}"' in text
    assert "× 7.98" in text
    assert client.get("/export/cost.json").json() == answer


def test_the_decode_step(client: TestClient) -> None:
    """With a device there is a bound; with a typed rate the same; without either, intensity."""
    text = page(client, decode_tokens=4096)
    assert ">215.5<" in text
    assert "state 512 MiB" in text
    assert ">215.5<" in page(client, decode_tokens=4096, device="", bandwidth="3.35 TB/s")
    bare = page(client, decode_tokens=4096, device="")
    assert "Choose a device" in bare
    assert ">1.1<" in bare
    assert ">15\u202f991<" in page(client)


def test_a_model_by_its_numbers(client: TestClient) -> None:
    """Without sizes around the cache there is no bound, and the page says what to give."""
    text = page(client, **NUMBERS)
    assert 'id="no-decode"' in text
    assert 'id="bound"' not in text
    sized = page(client, **NUMBERS, hidden_size=4096, query_heads=32, intermediate_size=14336,
                 vocab_size=128_256)  # fmt: skip
    assert 'data-copy="8274237718528"' in sized
    assert "hidden_size" in sized.partition('id="command"')[2].replace("hidden-size", "hidden_size")


def test_weights_in_another_format_are_read_faster(client: TestClient) -> None:
    """In fp8 the same products read fewer bytes of weights, and the bound rises."""
    assert ">13.98 GiB<" in page(client)
    fp8 = page(client, weights="fp8")
    assert ">13.98 GiB<" not in fp8
    assert 'data-copy="8274237718528"' in fp8


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"prompt_tokens": "0"}, "prompt_tokens", "at least 1"),
        ({"prompt_tokens": "x"}, "prompt_tokens", "whole number"),
        ({"output_tokens": "10000001"}, "output_tokens", "at most"),
        ({"decode_tokens": "0"}, "decode_tokens", "at least 1"),
        ({"batch": "0"}, "batch", "at least 1"),
        ({"device": "abacus"}, "device", "abacus"),
        ({"bandwidth": "fast"}, "bandwidth", "fast"),
        ({"bandwidth": "/s"}, "bandwidth", "3350 GB/s"),
        ({"bandwidth": "0"}, "bandwidth", "at least 1"),
        ({"weights": "fp3"}, "weights", "fp3"),
        ({"model": "nobody/nothing"}, "model", "nobody/nothing"),
        ({**NUMBERS, "query_heads": "12"}, "query_heads", "do not divide"),
        ({"source": "config", "config": "{"}, "config", "JSON"),
    ],
)
def test_a_mistake_stands_in_words_at_its_field(
    query: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A whole page with a mistake is 422 and names the field; htmx gets the hints alone."""
    answer = client.get(f"/cost?{urlencode(query)}")
    assert answer.status_code == 422
    assert words in answer.text.partition(f'id="error-{field}">')[2].partition("</p>")[0]
    partial = client.get(f"/cost?{urlencode(query)}", headers=HTMX)
    assert partial.status_code == 200
    assert partial.headers["hx-retarget"] == "#hints"
    for kind in ("csv", "json"):
        refused = client.get(f"/export/cost.{kind}?{urlencode(query)}")
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["query", field]


def test_the_address_is_short(client: TestClient) -> None:
    """Sizes that belong to numbers are not carried along with a model of the catalogue."""
    query = urlencode({"prompt_tokens": 2048, "batch": 1, "hidden_size": 4096})
    answer = client.get(f"/cost?{query}", headers=HTMX)
    address = answer.headers["hx-replace-url"]
    assert address == "/cost?model=meta-llama%2FLlama-3.1-8B&kv=fp16&prompt_tokens=2048"


def test_the_growth_table_as_csv(client: TestClient) -> None:
    """A row a length, every cell a whole number."""
    rows = client.get("/export/cost.csv").text.splitlines()
    assert rows[0].startswith("length_tokens,step_attention_with_macs")
    assert len(rows) == 11
    assert all(cell.isdigit() for row in rows[1:] for cell in row.split(","))


def test_the_command_line_says_the_same(client: TestClient) -> None:
    """`--json` prints exactly what the API answers; the table names both ways."""
    options = ["cost", "--model", "meta-llama/Llama-3.1-8B", "--kv-dtype", "fp16",
               "--bandwidth", "3350GB/s"]  # fmt: skip
    body = {
        "model": {"id": "meta-llama/Llama-3.1-8B"}, "kv_dtype": "fp16",
        "prompt_tokens": 1024, "output_tokens": 128, "bandwidth_bytes_per_s": 3_350_000_000_000,
    }  # fmt: skip
    done = CliRunner().invoke(cli, [*options, "--json"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == client.post("/api/v1/cost", json=body).text
    table = CliRunner().invoke(cli, options).stdout
    assert "8274237718528 MAC with the cache" in table
    assert "at most 221 tokens a second" in table
    sized = CliRunner().invoke(
        cli, ["cost", "--layers=2", "--kv-heads=1", "--head-dim=4", "--hidden-size=8", "--json"]
    )
    assert json.loads(sized.stdout)["with_cache"]["projection_macs"] > 0


@pytest.mark.parametrize("options", [["--bandwidth", "fast"], ["--device", "abacus"]])
def test_a_mistake_on_the_command_line(options: list[str]) -> None:
    """Bad input ends with one line and exit code 2."""
    done = CliRunner().invoke(cli, ["cost", "--model", "meta-llama/Llama-3.1-8B", *options])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


def test_ticks_of_powers_need_no_superscripts(client: TestClient) -> None:
    """Charts over many powers of ten spell their exponents: the policy refuses inline styles."""
    text = page(client, prompt_tokens=10_000_000)
    islands = re.findall(r'<script type="application/json">(.*?)</script>', text)
    charts = [json.loads(island) for island in islands]
    powers = [chart for chart in charts if chart["layout"]["yaxis"].get("type") == "log"]
    assert len(powers) == 2
    for chart in powers:
        assert chart["layout"]["xaxis"]["exponentformat"] == "e"
        assert chart["layout"]["yaxis"]["exponentformat"] == "e"


def test_the_examples_are_good(client: TestClient) -> None:
    """Every example is a page without a mistake, and every device offered has a bandwidth."""
    assert len(EXAMPLES) >= 4
    for example in EXAMPLES:
        assert client.get(f"/cost?{example.query}").status_code == 200
    assert len(device_choices()) > 50
    for choice in device_choices()[::20]:
        assert client.get(f"/cost?device={choice.value}").status_code == 200


class StoppedRun:
    """A run that gives two points and is then over its time."""

    def __init__(self) -> None:
        self._left = [512, 1024]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MeasuredPoint:
        if not self._left:
            raise RunStopped(Note("over_time", "Over {seconds} seconds.", {"seconds": "20"}))
        length = self._left.pop(0)
        return MeasuredPoint(
            way="cached", length_tokens=length, seconds=length / 10**6, macs=1000 * length,
            backend="numpy", device="cpu", done=length // 512, total=14,
        )  # fmt: skip

    def close(self) -> None:
        """Do nothing: there is no process."""


def lines(client: TestClient, **data: str) -> list[dict[str, Any]]:
    """Return what the page's script is sent for a measured run."""
    answer = client.post("/cost/measured", data=data, headers={"accept": MEDIA_TYPE})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(MEDIA_TYPE)
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_measured_run_streams_its_points(client: TestClient) -> None:
    """Each point is told as it comes; the last line has the whole table, the charts, the orders."""
    told = lines(client, lab_device="numpy")
    counts = [line["done"] for line in told if "done" in line]
    assert counts == list(range(1, 15))
    assert told[0]["text"] == "1 of 14 points"
    assert sum("put" in line for line in told) >= 2
    last = told[-1]
    assert last["put"] == "measured"
    assert last["html"].count("<tr><td>") == 14
    assert "measured time grows as length to the power" in last["html"]
    assert "chart-measured-work" in last["html"]
    assert "Each point is the best of" in last["html"]


def test_a_run_over_its_time_keeps_its_points(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped says so, under the points that it has; the plain page has none."""
    monkeypatch.setattr("app.pages.cost._start", lambda _: StoppedRun())
    last = lines(client, lab_device="numpy")[-1]
    assert "Over 20 seconds." in last["html"]
    assert last["html"].count("<tr><td>") == 2
    assert '<td class="number">0.512</td>' in last["html"]
    answer = client.post("/cost/measured", data={"lab_device": "numpy"})
    assert answer.status_code == 422
    assert "Over 20 seconds." in answer.text


def test_a_run_has_its_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page gives a run the seconds that it says."""
    monkeypatch.setattr("app.pages.cost.RUN_SECONDS", 0.01)
    answer = client.post("/cost/measured", data={"lab_device": "numpy"})
    assert answer.status_code == 422
    assert "The run was stopped after 0.01 seconds." in answer.text


def test_without_a_script_the_page_has_all_points(client: TestClient) -> None:
    """A plain form is answered by the page, with the table, when the run is over."""
    answer = client.post("/cost/measured?prompt_tokens=7", data={"lab_device": "numpy"})
    assert answer.status_code == 200
    assert answer.text.partition('id="measured-steps"')[2].count("<tr><td>") == 14
    assert 'value="7"' in answer.text
    assert "Computed by numpy on cpu." in answer.text


def test_a_run_that_is_being_cancelled_has_a_moment_to_end(client: TestClient) -> None:
    """Whoever cancels and measures again at once is not told that the lab is busy."""
    left = RUNS.start("measured", device="numpy", seed=0)
    threading.Timer(0.3, left.close).start()
    told = lines(client, lab_device="numpy")
    assert "The lab is busy" not in told[-1]["html"]
    points = [line for line in told if "done" in line]
    assert points[-1]["done"] == points[-1]["total"]


def test_a_busy_lab_and_an_unknown_device_are_said(client: TestClient) -> None:
    """Busy is 429 and a sentence, to the script a sentence; so is a device that there is not."""
    with RUNS.start("measured", device="numpy", seed=0):
        answer = client.post("/cost/measured", data={"lab_device": "numpy"})
        told = lines(client, lab_device="numpy")
    assert answer.status_code == 429
    assert "The lab is busy" in answer.text
    assert len(told) == 1
    assert "The lab is busy" in told[0]["html"]
    unknown = client.post("/cost/measured", data={"lab_device": "abacus"})
    assert unknown.status_code == 422
    assert "abacus" in unknown.text.partition('id="error-measured"')[2]
    assert "abacus" in lines(client, lab_device="abacus")[0]["html"]
    assert client.post("/cost/measured", data={"lab_device": "x" * 41}).status_code == 422
