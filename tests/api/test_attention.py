"""`/attention` and its experiments: the worked values, the refusals by field, the limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import anyio
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from app.api import attention_schemas
from app.api.attention import MAX_NUMBERS
from app.api.lab_runs import RUNS, collected
from app.demo import model as demo_model
from app.demo import results
from app.demo.backends import is_torch_installed
from app.demo.budget import RunStopped
from app.demo.lab import EXPERIMENTS
from app.demo.quantise import LAB_DTYPES
from app.domain.attention import MAX_POSITIONS

WORKED: dict[str, Any] = {
    "query": [0], "past_keys": [[0]], "past_values": [[2]], "new_key": [0], "new_value": [4],
}  # fmt: skip
needs_torch = pytest.mark.skipif(not is_torch_installed(), reason="torch is not installed")


def ask(client: TestClient, **changes: object) -> dict[str, Any]:
    """Return the answer to the worked question with fields changed or, where None, left out."""
    body = {key: value for key, value in {**WORKED, **changes}.items() if value is not None}
    answer = client.post("/api/v1/attention", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(autouse=True, scope="module")
def ended() -> Iterator[None]:
    """End the processes that these tests started."""
    yield
    RUNS.end()


@pytest.mark.parametrize("dtype", LAB_DTYPES)
def test_the_worked_question(dtype: str, client: TestClient) -> None:
    """Half and half, output 3, without its history 4, at every format."""
    answer = ask(client, dtype=dtype, device="numpy")
    assert answer["output"] == [3]
    assert answer["weights"] == [0.5, 0.5]
    assert answer["scores"] == [0, 0]
    assert (answer["keys"], answer["values"]) == ([[0], [0]], [[2], [4]])
    assert answer["without_history"] == {
        "output": [4], "is_bit_equal": False, "max_abs_difference": 1,
    }  # fmt: skip
    assert answer["recomputed"] == {"output": [3], "is_bit_equal": True, "max_abs_difference": 0}
    assert answer["reference"]["output"] == [3]
    assert (answer["dtype"], answer["backend"], answer["device"]) == (dtype, "numpy", "cpu")
    assert answer["formula"] == "Σ a·v = 0.5 × 2 + 0.5 × 4 = 3"
    assert [note["code"] for note in answer["assumptions"]] == ["one_head", "cache_format"]
    assert answer["not_counted"]


@pytest.mark.torch
@needs_torch
def test_torch_answers_where_it_is_installed(client: TestClient) -> None:
    """With torch the device `cpu` is torch's, and the worked question has the same answer."""
    answer = ask(client, device="cpu")
    assert (answer["backend"], answer["device"], answer["output"]) == ("torch", "cpu", [3])


@pytest.mark.skipif(is_torch_installed(), reason="torch is installed")
def test_without_torch_an_absent_device_is_refused(client: TestClient) -> None:
    """`cpu` is NumPy's, and `cuda` is refused rather than replaced."""
    assert ask(client, device="cpu")["backend"] == "numpy"
    answer = client.post("/api/v1/attention", json={**WORKED, "device": "cuda"})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "device"]
    assert "torch" in answer.json()["detail"][0]["msg"]


def test_ten_thousand_does_not_overflow(client: TestClient) -> None:
    """Scores of ten thousand still weigh equal keys alike."""
    assert ask(client, query=[10_000], past_keys=[[1]], new_key=[1])["output"] == [3]


def test_several_queries_keep_their_outer_list(client: TestClient) -> None:
    """The plural form answers a row for each query; what a query may not see has no score."""
    answer = ask(
        client,
        query=None, queries=[[0], [0]],
        new_key=None, new_keys=[[0], [0]],
        new_value=None, new_values=[[4], [6]],
        window=2,
        device="numpy",
    )  # fmt: skip
    assert answer["output"] == [[3], [5]]
    assert answer["scores"] == [[0, 0, None], [None, 0, 0]]
    assert answer["weights"] == [[0.5, 0.5, 0], [0, 0.5, 0.5]]
    assert answer["assumptions"][-1]["code"] == "windowed"


def test_a_question_without_a_past(client: TestClient) -> None:
    """With nothing cached the new value is the answer, and long sums are cut in the formula."""
    assert ask(client, past_keys=[], past_values=[])["output"] == [4]
    long = ask(client, past_keys=[[0]] * 15, past_values=[[2]] * 15)
    assert long["formula"].count("×") == 8
    assert "…" in long["formula"]


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"query": []}, ["query"]),
        ({"query": None}, ["query"]),
        ({"query": "0"}, ["query"]),
        ({"query": [True]}, ["query", 0]),
        ({"query": ["0"]}, ["query", 0]),
        ({"query": [None]}, ["query", 0]),
        ({"query": [10**400]}, ["query", 0]),
        ({"query": [1.1e15]}, ["query", 0]),
        ({"query": [0] * 513}, ["query"]),
        ({"queries": [[0]]}, ["queries"]),
        ({"past_keys": []}, ["past_values"]),
        ({"past_keys": [[0], [0]]}, ["past_values"]),
        ({"past_keys": [[0, 1]]}, ["past_keys", 0]),
        ({"past_keys": [[]]}, ["past_keys", 0]),
        ({"past_keys": [0]}, ["past_keys", 0]),
        ({"past_keys": [[0]] * (MAX_POSITIONS + 1)}, ["past_keys"]),
        ({"past_keys": [[0] * 129] * 509, "query": [0] * 129}, ["past_keys"]),
        ({"new_value": [1, 2]}, ["new_value"]),
        ({"new_value": []}, ["new_value"]),
        ({"new_key": None}, ["new_key"]),
        ({"window": 0}, ["window"]),
        ({"window": 1.5}, ["window"]),
        ({"dtype": "fp3"}, ["dtype"]),
        ({"dtype": 3}, ["dtype"]),
        ({"dtype": "fp16", "new_value": [70_000]}, ["new_value", 0]),
        ({"device": "abacus"}, ["device"]),
        ({"surprise": 1}, ["surprise"]),
    ],
)
def test_refusals_name_their_field(
    changes: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """A spoiled question is refused at the field that is at fault."""
    body = {key: value for key, value in {**WORKED, **changes}.items() if value is not None}
    answer = client.post("/api/v1/attention", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_what_is_no_number_is_refused(number: str, client: TestClient) -> None:
    """NaN and infinities are refused before anything is computed, and never a 500."""
    raw = json.dumps(WORKED).replace('"query": [0]', f'"query": [{number}]')
    assert number in raw
    answer = client.post(
        "/api/v1/attention", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422


def test_a_body_of_megabytes_is_refused(client: TestClient) -> None:
    """A body beyond what the largest question needs is not even decoded."""
    raw = json.dumps({**WORKED, "past_keys": [[0.125] * 512] * 1024})
    assert len(raw) > 3 * 2**20
    answer = client.post(
        "/api/v1/attention", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_the_largest_question_is_answered(client: TestClient) -> None:
    """Every field at its bound is answered, exactly where it can be: equal values come out."""
    rows = MAX_NUMBERS // 512
    answer = ask(
        client,
        query=[0] * 512, past_keys=[[1] * 512] * rows, past_values=[[2] * 512] * rows,
        new_key=[1] * 512, new_value=[2] * 512,
        device="numpy",
    )  # fmt: skip
    assert answer["output"] == pytest.approx([2] * 512, abs=1e-5)
    assert len(answer["keys"]) == rows + 1


@pytest.mark.parametrize("code", EXPERIMENTS)
def test_every_experiment_answers(code: str, client: TestClient) -> None:
    """Each has a table whose figures stand under its columns, and a sentence."""
    body = {"experiment": code, "length_tokens": 16, "seed": 1, "device": "numpy"}
    answer = client.post("/api/v1/attention/experiments", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["experiment"], found["backend"], found["seed"]) == (code, "numpy", 1)
    assert found["rows"]
    assert {len(row["figures"]) for row in found["rows"]} == {len(found["columns"])}
    assert all(len(line["x"]) == len(line["y"]) for line in found["series"])
    assert found["statement"]
    assert "{" not in found["statement"] + found["title"]


def test_history_dropped_shows_three_and_four(client: TestClient) -> None:
    """The worked case stands in the experiment's first row: 3 becomes 4."""
    answer = client.post(
        "/api/v1/attention/experiments", json={"experiment": "history_dropped"}
    ).json()
    assert answer["rows"][0]["figures"] == [3, 4, 1]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, "experiment"),
        ({"experiment": "nothing"}, "experiment"),
        ({"experiment": "history_dropped", "length_tokens": 3}, "length_tokens"),
        ({"experiment": "history_dropped", "length_tokens": 1025}, "length_tokens"),
        ({"experiment": "history_dropped", "seed": -1}, "seed"),
        ({"experiment": "history_dropped", "seed": 2**32}, "seed"),
        ({"experiment": "history_dropped", "device": "abacus"}, "device"),
    ],
)
def test_experiments_are_bounded(body: dict[str, Any], loc: str, client: TestClient) -> None:
    """An experiment outside its bounds is refused by field."""
    answer = client.post("/api/v1/attention/experiments", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", loc]


def test_a_second_run_is_told_that_the_lab_is_busy(client: TestClient) -> None:
    """While a run has the lab another is refused with 429 and when to try again; answers go on."""
    body = {"experiment": "history_dropped"}
    with RUNS.start("measured", device="numpy", seed=0):
        answer = client.post("/api/v1/attention/experiments", json=body)
        assert ask(client)["output"] == [3]
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["detail"][0]["type"] == "lab_busy"
    assert client.post("/api/v1/attention/experiments", json=body).status_code == 200


def test_a_run_over_its_time_is_a_refusal(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped answers 422 with how long it was given."""
    monkeypatch.setattr("app.api.attention.RUN_SECONDS", 0.001)
    body = {"experiment": "step_against_recompute", "length_tokens": 128}
    answer = client.post("/api/v1/attention/experiments", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == [
        {"loc": ["body"], "msg": "The run was stopped after 0.001 seconds.", "type": "over_time"}
    ]


def test_a_run_ends_when_its_caller_goes_away() -> None:
    """A disconnect while a run is under way ends its process and frees its place."""
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await anyio.sleep(0.05)
        return {"type": "http.disconnect"}

    run = RUNS.start("measured", device="numpy", seed=0, seconds=60)
    request = Request({"type": "http"}, receive)
    with pytest.raises(RunStopped) as caught:
        anyio.run(collected, request, run)
    assert caught.value.note.code == "cancelled"
    RUNS.start("measured", device="numpy", seed=0).close()


def test_the_schema_has_the_lab_s_own_bounds() -> None:
    """Bounds and names that the schema repeats, so as not to load NumPy, are the lab's."""
    assert get_args(attention_schemas.Experiment) == tuple(EXPERIMENTS)
    for name in ("MIN_LAB_TOKENS", "MAX_LAB_TOKENS", "DEFAULT_LAB_TOKENS"):
        assert getattr(attention_schemas, name) == getattr(results, name)
    assert attention_schemas.MAX_SEED == demo_model.MAX_SEED
