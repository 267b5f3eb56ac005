"""The page of a log, as a person uses it."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser

LOG = "Available KV cache memory: 40.00 GiB\nGPU KV cache size: 327,680 tokens\n"


def test_a_paste_is_explained(watched: Watched, base_url: str) -> None:
    """Pasting asks for the model; a candidate is one click; the address never has the log."""
    page = watched.page
    page.goto(f"{base_url}/explain")
    page.locator("#log").fill(LOG)
    candidate = page.locator("#candidates").get_by_role("button", name="meta-llama/Llama-3.1-8B")
    candidate.click()
    expect(page.locator("#verdicts")).to_contain_text("agrees 2")
    expect(page.locator("#model")).to_have_value("meta-llama/Llama-3.1-8B")
    assert "327" not in page.url
    page.locator("#log").fill(LOG.replace("327,680", "300,000"))
    expect(page.locator("#verdicts")).to_contain_text("disagrees 1")
    page.get_by_label("Settings that the log does not show").fill("word")
    expect(page.locator("#error-settings")).to_contain_text("word")
    expect(page.locator("#verdicts")).to_contain_text("disagrees 1")


def test_a_file_goes_into_the_box(watched: Watched, base_url: str) -> None:
    """A chosen file's text stands in the box and is explained."""
    page = watched.page
    page.goto(f"{base_url}/explain?model=meta-llama/Llama-3.1-8B")
    page.locator("#file").set_input_files(
        {"name": "start.log", "mimeType": "text/plain", "buffer": LOG.encode()}
    )
    expect(page.locator("#log")).to_have_value(LOG)
    expect(page.locator("#verdicts")).to_contain_text("agrees 2")


def test_an_example_is_one_click(watched: Watched, base_url: str) -> None:
    """An example fills the form, and its address loads again to the same."""
    page = watched.page
    page.goto(f"{base_url}/explain")
    page.get_by_role("link", name="75,840 tokens").click()
    expect(page.locator("#verdicts")).to_contain_text("agrees 4")
    page.reload()
    expect(page.locator("#verdicts")).to_contain_text("agrees 4")


def test_without_scripts(browser: Browser, base_url: str) -> None:
    """The form works as a plain form: paste, press the button, read."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/explain?model=meta-llama/Llama-3.1-8B")
    page.locator("#log").fill(LOG)
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#verdicts")).to_contain_text("agrees 2")
    expect(page.locator("#log")).to_have_value(LOG)
    context.close()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen, however long a line is."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/explain?example=stages")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()


def test_on_a_phone_the_verdict_is_in_sight(browser: Browser, base_url: str) -> None:
    """At 360 pixels each figure is a card: name and verdict on one line, all else below."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/explain?example=stages")
    rows = page.locator("#figures tr.agrees, #figures tr.unchecked").all()
    assert len(rows) == 3
    for row in rows:
        places = {}
        for part in ("td.name:not(.verdict)", "td.verdict", "td.what >> nth=1", "td.why"):
            box = row.locator(part).bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 360
            places[part] = box["y"]
        assert places["td.verdict"] < places["td.what >> nth=1"] < places["td.why"]
    caption = page.locator("#figures caption").bounding_box()
    assert caption is not None
    assert caption["x"] + caption["width"] <= 360
    context.close()


def test_a_reload_keeps_the_log_in_this_tab_alone(
    watched: Watched, browser: Browser, base_url: str
) -> None:
    """After a reload the text and its figures are there again; another visitor has an empty box."""
    page = watched.page
    page.goto(f"{base_url}/explain?model=meta-llama/Llama-3.1-8B")
    page.locator("#log").fill(LOG)
    expect(page.locator("#verdicts")).to_contain_text("agrees 2")
    page.reload()
    expect(page.locator("#log")).to_have_value(LOG)
    expect(page.locator("#verdicts")).to_contain_text("agrees 2")
    page.get_by_role("link", name="中文").click()
    expect(page.locator("#log")).to_have_value(LOG)
    page.goto(f"{base_url}/explain")
    expect(page.locator("#log")).to_have_value("")
    context = browser.new_context()
    other = context.new_page()
    other.goto(f"{base_url}/explain")
    other.reload()
    expect(other.locator("#log")).to_have_value("")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_an_answer(scheme: str, browser: Browser, base_url: str) -> None:
    """Verdicts, lines and changes are as accessible as the form, in both themes."""
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{base_url}/explain?example=stages")
    found = Axe().run(page)
    context.close()
    assert [item["id"] for item in found.response["violations"]] == []
