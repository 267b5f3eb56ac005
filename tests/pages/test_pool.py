"""The page of the pool shows every step; the address holds the events and the step."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.domain.pool_scenarios import SCENARIOS, PoolScenario
from app.domain.pool_simulation import simulate

HTMX = {"hx-request": "true", "hx-request-type": "partial"}
CELL = re.compile(r'<li class="cell-(\w+)( changed)?"><b>(\d+)</b>')


def page(client: TestClient, **query: object) -> str:
    """Return the page for a query."""
    answer = client.get(f"/pool?{urlencode(query)}")
    assert answer.status_code == 200, answer.text
    return answer.text


def cells(text: str) -> dict[int, str]:
    """Return each drawn block's state."""
    return {int(block): state for state, _, block in CELL.findall(text)}


def queue(text: str) -> list[int]:
    """Return the free queue on show."""
    return [int(item) for item in re.findall(r"<li>(\d+)</li>", text.partition('id="queue"')[2])]


@pytest.mark.parametrize("policy", ["engine", "textbook"])
@pytest.mark.parametrize("story", SCENARIOS, ids=lambda story: story.name)
def test_every_step_of_every_story(story: PoolScenario, policy: str, client: TestClient) -> None:
    """The cells, the queue and the reasons of each step are the simulation's own."""
    played = simulate(story.num_blocks, story.block_size, story.events, policy=policy)
    assert len(played.steps) == len(story.events)
    for step in played.steps[:: max(len(played.steps) // 6, 1)]:
        text = page(client, scenario=story.name, policy=policy, step=step.index + 1)
        drawn = cells(text)
        held = {block for block, state in drawn.items() if state == "held"}
        assert held == set(step.ref_counts)
        cached = {block for block, state in drawn.items() if state == "cached"}
        assert len(cached) == step.cached_free_blocks
        assert len(drawn) == story.num_blocks
        assert queue(text) == list(step.free_queue)
        assert f"<strong>{step.index + 1}.</strong>" in text


def test_the_first_page_shows_the_first_event(client: TestClient) -> None:
    """Three blocks are new, block 0 is the placeholder, the rest is free."""
    text = page(client)
    assert cells(text)[0] == "null"
    assert text.count("<small>new</small>") == 3
    assert queue(text) == [4, 5, 6, 7, 8, 9]
    assert "Two requests share the two full blocks" in text
    assert 'max="7" value="1"' in text


def test_before_the_first_event(client: TestClient) -> None:
    """At step 0 every block is free; the textbook has no placeholder."""
    text = page(client, step=0)
    assert "Before the first event" in text
    assert queue(text) == list(range(1, 10))
    assert queue(page(client, step=0, policy="textbook")) == list(range(10))
    assert 'id="next"' in text
    assert 'id="previous"' not in text


def test_a_step_beyond_the_last_is_the_last(client: TestClient) -> None:
    """The slider's bounds are the events'."""
    text = page(client, step=99)
    assert "<strong>7.</strong>" in text
    assert 'id="next"' not in text
    assert "<strong>" not in page(client, events="", step=5).partition('id="what"')[2][:200]


def test_three_things_that_are_not_one(client: TestClient) -> None:
    """Computing saved, hit rate and memory stand apart: 8 positions, 42.1 %, five blocks."""
    text = page(client)
    for name, value in (("hit", "8"), ("rate", "42.1 %"), ("peak", "5")):
        assert text.partition(f'id="{name}">')[2].startswith(value)
    assert "8 of 19 positions that admitted requests asked for" in text


def test_long_things_are_cut_short(client: TestClient) -> None:
    """Of 600 blocks 512 are drawn, of 300 events 200, of 100 entries 64, of 100 hashes all."""
    events = "allocate a 1..200\nfree a\nallocate b 1..400 \n" + "lookup 1 2 3\n" * 250
    text = page(client, events=events, num_blocks=600, block_size=2, step=3)
    assert len(cells(text)) == 512
    assert "and 88 more" in text
    assert "and 136 more" in text.partition('id="tables"')[2]
    assert "and 72 more" in text.partition("What a lookup finds now")[2]
    assert "1–200 / 253" in text
    assert "offset=200" in text
    rest = page(client, events=events, num_blocks=600, block_size=2, offset=200)
    assert "201–253 / 253" in rest
    assert "offset=0" in rest
    wide = page(client, num_blocks=600).partition('id="queue"')[2].partition("</ol>")[0]
    assert "and 84 more" in wide


def test_the_slider_swaps_one_step(client: TestClient) -> None:
    """A change by htmx gets the step and its address; others are sent to the page."""
    query = urlencode({"scenario": "fully_matched", "step": 3})
    partial = client.get(f"/pool/step?{query}", headers=HTMX)
    assert partial.text.lstrip().startswith('<div id="shown">')
    assert partial.headers["hx-replace-url"] == f"/pool?{query}"
    plain = client.get(f"/pool/step?{query}", follow_redirects=False)
    assert (plain.status_code, plain.headers["location"]) == (303, f"/pool?{query}")
    wrong = client.get("/pool/step?events=zap", headers=HTMX)
    assert wrong.headers["hx-retarget"] == "#hints"


@pytest.mark.parametrize(
    ("query", "address"),
    [
        ({}, "scenario=share_and_diverge"),
        ({"scenario": "one_block_too_few", "step": "2"}, "scenario=one_block_too_few&step=2"),
        ({"num_blocks": "12", "block_size": "2", "policy": "textbook"},
         "scenario=share_and_diverge&num_blocks=12&block_size=2&policy=textbook"),
        ({"events": "free a\r\n# nothing\r\nreset", "step": "1", "window": "4"}, None),
        ({"events": " reset ", "num_blocks": "4", "block_size": "2", "caching": "off"},
         "events=reset&num_blocks=4&block_size=2&caching=off"),
    ],
)  # fmt: skip
def test_the_address_is_short(
    query: dict[str, str], address: str | None, client: TestClient
) -> None:
    """A story goes by its name; what is as usual is left out; a mistake keeps the old address."""
    partial = client.get(f"/pool?{urlencode(query)}", headers=HTMX)
    if address is None:
        assert partial.headers["hx-retarget"] == "#hints"
        return
    assert partial.headers["hx-replace-url"] == f"/pool?{address}"
    again = client.get(f"/pool?{address}", headers=HTMX)
    assert again.text == partial.text


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"events": "reset\n\nfree <b>"}, "events", "Line 3: request '&lt;b&gt;' is not there"),
        ({"events": "zap"}, "events", "events, line 1: an event begins with"),
        ({"events": "allocate a 1\nevict 99"}, "events", "Line 2: "),
        ({"events": "allocate " + "a" * 70 + " 1"}, "events", "Line 1: "),
        ({"num_blocks": "1"}, "num_blocks", "at least 2"),
        ({"num_blocks": "many"}, "num_blocks", "whole number"),
        ({"block_size": ""}, "block_size", "whole number"),
        ({"window": "3", "policy": "textbook"}, "window", "engine"),
        ({"window": "0"}, "window", "at least 1"),
        ({"version": "0.1"}, "version", "0.8.0"),
        ({"step": "x"}, "step", "whole number"),
        ({"offset": "x"}, "offset", "whole number"),
    ],
)
def test_mistakes_name_the_line_or_the_field(
    query: dict[str, str], field: str, words: str, client: TestClient
) -> None:
    """A page with a mistake is 422 with its sentence; exports refuse the same."""
    answer = client.get(f"/pool?{urlencode(query)}")
    assert answer.status_code == 422
    assert words in answer.text.partition(f'id="error-{field}"')[2][:400].replace("&#39;", "'")
    for kind in ("csv", "json"):
        export = client.get(f"/export/pool.{kind}?{urlencode(query)}")
        assert export.status_code == (200 if field in {"step", "offset"} else 422)


def test_settings_go_to_the_call_and_the_command(client: TestClient) -> None:
    """Caching off, a window, a release and what a full pool does reach API and command."""
    text = page(client, caching="off", window="4", version="0.27.0", when_full="refuse",
                policy="nonsense")  # fmt: skip
    curl = text.partition('id="curl"')[2].partition("</pre>")[0]
    for words in ("caching&#34;: false", "window&#34;: 4", "0.27.0", "refuse"):
        assert words in curl
    command = text.partition('id="command"')[2].partition("</pre>")[0]
    assert "--scenario share_and_diverge" in command
    assert "--no-caching --window 4 --version 0.27.0" in command
    typed = page(client, events="reset")
    assert "--events reset" in typed.partition('id="command"')[2]


def test_exports_are_the_same_answer(client: TestClient) -> None:
    """JSON has the API's steps; CSV a line for each event, with no cell taken for a formula."""
    exported = client.get("/export/pool.json?scenario=fully_matched").json()
    assert [step["hit_tokens"] for step in exported["steps"]] == [0, 0, 8, 0, 12, 0]
    lines = client.get("/export/pool.csv?scenario=fully_matched").text.splitlines()
    assert lines[0].startswith("event,line,accepted,hit_tokens")
    assert lines[3].startswith("3,allocate again 1..12,True,8,12,4,3,4,1 2,4,")
    assert len(lines) == 7
    preempted = client.get(
        "/export/pool.csv?" + urlencode({"events": "allocate =a 1\npreempt", "num_blocks": 4})
    ).text
    assert "'=a" in preempted.splitlines()[2]
    copied = client.get("/export/pool.csv?scenario=beam_of_four&policy=textbook").text
    assert "2>3" in copied


def test_a_token_id_at_fault_is_told_with_its_line(client: TestClient) -> None:
    """The sentence beside the events names the line, as for every other mistake in them."""
    answer = client.get("/pool", params={"events": "allocate a 1..4\nappend a x"})
    assert answer.status_code == 422
    assert "events, line 2: &#39;x&#39; at character 1 is no token id" in answer.text
