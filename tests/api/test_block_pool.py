"""`/block-pool`: each event's tables, counts, queue and reasons; refusals by field."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.api.block_pool import event_body
from app.cli import app as cli
from app.domain.pool_scenarios import SCENARIOS, PoolScenario

ALLOCATE = {"op": "allocate", "request": "a", "tokens": [1, 2, 3, 4, 5]}
SHARE: dict[str, Any] = {
    "num_blocks": 8,
    "block_size": 2,
    "events": [
        ALLOCATE,
        {"op": "allocate", "request": "b", "tokens": [1, 2, 9]},
        {"op": "free", "request": "a"},
        {"op": "lookup", "tokens": [1, 2, 3, 4, 7]},
    ],
}


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    """Return the answer to the base with these fields."""
    answer = client.post("/api/v1/block-pool", json=SHARE | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_each_event_says_what_it_did(client: TestClient) -> None:
    """Two requests share a block; after one ends, its cached blocks are free and still found."""
    got = ask(client)
    first, second, third, fourth = got["steps"]
    assert first["block_tables"] == {"a": [1, 2, 3]}
    assert first["free_queue"] == [4, 5, 6, 7]
    assert (first["computed_tokens"], first["filled_tokens"]) == (5, {"1": 2, "2": 2, "3": 1})
    assert second["block_tables"] == {"a": [1, 2, 3], "b": [1, 4]}
    assert second["ref_counts"] == {"1": 2, "2": 1, "3": 1, "4": 1}
    assert (second["hits"], second["hit_tokens"], second["saved_blocks"]) == ([1], 2, 1)
    assert third["free_queue"] == [3, 5, 6, 7, 2]
    assert third["states"] == {"b": "running"}
    assert (third["freed"], third["cached_free_blocks"]) == ([3, 2], 1)
    assert set(third["cached"]) == {"1", "2"}
    assert (fourth["hits"], fourth["hit_tokens"], fourth["admitted_tokens"]) == ([1, 2], 4, 0)
    assert [reason["code"] for reason in third["reasons"]][-1] == "pool_still_held"
    assert got["totals"] == {
        "hit_tokens": 2, "admitted_tokens": 8, "computed_tokens": 6, "evictions": 0, "copies": 0,
        "refusals": 0, "preemptions": 0, "peak_used_blocks": 4,
    }  # fmt: skip
    assert (got["usable_blocks"], got["policy"], got["when_full"]) == (7, "engine", "preempt")
    assert got["assumptions"]
    assert got["not_counted"]


def test_forks_copy_on_write_in_the_textbook(client: TestClient) -> None:
    """A fork takes the whole table; the first to write the shared last block copies it."""
    events = [
        ALLOCATE,
        {"op": "fork", "request": "a", "children": ["b"]},
        {"op": "append", "request": "a", "tokens": [6]},
        {"op": "append", "request": "b", "tokens": [7]},
    ]
    got = ask(client, events=events, policy="textbook")
    assert got["steps"][1]["block_tables"] == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert got["steps"][2]["copies"] == [{"source": 2, "target": 3}]
    assert got["steps"][3]["copies"] == []
    assert got["totals"]["copies"] == 1


def test_a_full_pool_refuses_or_preempts(client: TestClient) -> None:
    """Three usable blocks: a new request is refused, a running one makes the last give way."""
    events = [
        {"op": "allocate", "request": "a", "tokens": [1, 2]},
        {"op": "allocate", "request": "b", "tokens": [3, 4, 5]},
        {"op": "allocate", "request": "c", "tokens": [6]},
        {"op": "append", "request": "a", "tokens": [7]},
    ]
    full = ask(client, num_blocks=4, events=events)
    assert [step["accepted"] for step in full["steps"]] == [True, True, False, True]
    assert full["steps"][3]["preempted"] == ["b"]
    assert full["steps"][3]["states"] == {"a": "running", "b": "preempted", "c": "waiting"}
    refusing = ask(client, num_blocks=4, events=events, when_full="refuse")
    assert [step["accepted"] for step in refusing["steps"]] == [True, True, False, False]
    assert refusing["totals"]["refusals"] == 2


def test_caching_window_and_version(client: TestClient) -> None:
    """Without caching nothing is hit; a window gives blocks back; an older queue is followed."""
    assert ask(client, caching=False)["totals"]["hit_tokens"] == 0
    grown = [{"op": "append", "request": "a", "tokens": tokens} for tokens in ([3, 4], [5, 6])]
    passed = ask(client, window=2, events=[ALLOCATE | {"tokens": [1, 2]}, *grown])
    assert passed["steps"][-1]["block_tables"]["a"][0] == 0
    older = ask(client, version="0.20.0")
    assert older["steps"][2]["free_queue"] == [5, 6, 7, 3, 2]
    assert "pool_older_queue" in {note["code"] for note in older["assumptions"]}


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"num_blocks": 1}, ["num_blocks"]),
        ({"num_blocks": 2049}, ["num_blocks"]),
        ({"num_blocks": None}, ["num_blocks"]),
        ({"block_size": 0}, ["block_size"]),
        ({"policy": "both"}, ["policy"]),
        ({"when_full": "wait"}, ["when_full"]),
        ({"version": "0.7.0"}, ["version"]),
        ({"window": 2, "policy": "textbook"}, ["window"]),
        ({"caching": 1}, ["caching"]),
        ({"events": [{"op": "zap"}]}, ["events", 0, "op"]),
        ({"events": [{"op": "free"}]}, ["events", 0, "request"]),
        ({"events": [{"op": "free", "request": "q"}]}, ["events", 0, "request"]),
        ({"events": [ALLOCATE, ALLOCATE]}, ["events", 1, "request"]),
        ({"events": [{"op": "allocate", "request": "a"}]}, ["events", 0, "tokens"]),
        ({"events": [{"op": "reset", "request": "q"}]}, ["events", 0, "request"]),
        ({"events": [{"op": "free", "request": "q", "tokens": [1]}]}, ["events", 0, "tokens"]),
        ({"events": [{"op": "append", "request": "q", "tokens": [1], "salt": "x"}]},
         ["events", 0, "salt"]),
        ({"events": [{"op": "fork", "request": "q", "children": []}]}, ["events", 0, "children"]),
        ({"events": [{"op": "evict", "blocks": [99]}]}, ["events", 0, "blocks", 0]),
        ({"events": [ALLOCATE | {"tokens": [-1]}]}, ["events", 0, "tokens", 0]),
        ({"events": [ALLOCATE | {"request": "é" * 40}]}, ["events", 0, "request"]),
        ({"events": [{"op": "preempt"}] * 1001}, ["events"]),
        ({"events": [{"op": "reset"}] * 500, "num_blocks": 2048}, ["events", 244]),
        ({"surprise": 1}, ["surprise"]),
    ],
)  # fmt: skip
def test_refusals_name_their_field(
    fields: dict[str, Any], loc: list[str | int], client: TestClient
) -> None:
    """A spoiled body is refused with 422 at the field that is at fault."""
    answer = client.post("/api/v1/block-pool", json=SHARE | fields)
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"][0]["loc"] == ["body", *loc]


@pytest.mark.parametrize("story", SCENARIOS, ids=lambda story: story.name)
def test_the_stories_go_through_the_command_line(story: PoolScenario, client: TestClient) -> None:
    """`pool --scenario … --json` prints exactly what the API answers to the story's events."""
    options = ["--scenario", story.name, "--policy", "textbook"]
    done = CliRunner().invoke(cli, ["pool", *options, "--json"])
    assert done.exit_code == 0, done.output
    body = {"num_blocks": story.num_blocks, "block_size": story.block_size, "policy": "textbook",
            "events": [event_body(event) for event in story.events]}  # fmt: skip
    answer = client.post("/api/v1/block-pool", json=body)
    assert done.stdout.strip() == answer.text
    told = CliRunner().invoke(cli, ["pool", *options]).stdout
    assert f"{len(story.events)}. " in told
    assert f"{answer.json()['totals']['computed_tokens']} computed" in told


def test_typed_events_on_the_command_line(client: TestClient) -> None:
    """Events come as text or from standard input; the settings go through."""
    text = "allocate a 1..5\nallocate b 1 2 9 salt=x\nevict 1\nfree a"
    events = [
        ALLOCATE,
        {"op": "allocate", "request": "b", "tokens": [1, 2, 9], "salt": "x"},
        {"op": "evict", "blocks": [1]},
        {"op": "free", "request": "a"},
    ]
    answer = client.post(
        "/api/v1/block-pool",
        json={"num_blocks": 8, "block_size": 2, "events": events, "when_full": "refuse",
              "caching": False, "version": "0.27.0", "window": 9},
    )  # fmt: skip
    common = ["pool", "--num-blocks=8", "--block-size=2", "--when-full=refuse", "--no-caching",
              "--version=0.27.0", "--window=9", "--json"]  # fmt: skip
    for options in (["--events", text], ["--events-file", "-"]):
        done = CliRunner().invoke(cli, [*common, *options], input=text)
        assert done.stdout.strip() == answer.text
    defaults = CliRunner().invoke(cli, ["pool", "--num-blocks=8", "--events", text, "--json"])
    assert '"block_size":16' in defaults.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "one of --events"),
        (["--events", "reset", "--scenario", "x"], "one of --events"),
        (["--scenario", "x"], "share_and_diverge, fully_matched"),
        (["--events", "reset"], "--num-blocks is missing"),
        (["--events", "zap", "--num-blocks", "4"], "line 1"),
        (["--events", "free a", "--num-blocks", "4"], "'a' is not there"),
        (["--events", "reset", "--num-blocks", "4", "--policy", "x"], "policy"),
    ],
)
def test_the_command_line_says_what_is_wrong(options: list[str], words: str) -> None:
    """Bad input ends with one line and exit code 2."""
    done = CliRunner().invoke(cli, ["pool", *options])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
