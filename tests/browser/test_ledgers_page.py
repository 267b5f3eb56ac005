"""The first page, as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_totals_and_the_address(watched: Watched, base_url: str) -> None:
    """Lengths typed into the field change the three totals; the address reloads to the same."""
    page = watched.page
    page.goto(base_url)
    expect(page.locator("#effective")).to_have_text("10 MiB")
    page.get_by_label("Lengths of the requests").fill("1024, 3072")
    expect(page.locator("#effective")).to_have_text("512 MiB")
    expect(page.locator("#padded")).to_have_text("768 MiB")
    expect(page.locator("#paged")).to_have_text("512 MiB")
    expect(page).to_have_url(
        f"{base_url}/?model=meta-llama%2FLlama-3.1-8B&kv=fp16&lengths=1024%2C+3072"
    )
    page.reload()
    expect(page.locator("#padded")).to_have_text("768 MiB")
    expect(page.get_by_label("Lengths of the requests")).to_have_value("1024, 3072")


def test_numbers_and_config(watched: Watched, base_url: str) -> None:
    """A model by its numbers and by a pasted config gives the same as the catalogue's."""
    page = watched.page
    page.goto(base_url)
    page.get_by_label("By its numbers").check()
    page.get_by_label("KV heads").fill("32")
    expect(page.locator("#effective")).to_have_text("40 MiB")
    page.get_by_label("From a config.json").check()
    config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "hidden_size": 4096, "vocab_size": 128256,
              "intermediate_size": 14336}  # fmt: skip
    page.locator("#config").fill(json.dumps(config))
    expect(page.locator("#effective")).to_have_text("10 MiB")


def test_a_mistake_is_shown_and_the_rest_stays(watched: Watched, base_url: str) -> None:
    """A mistake is named in words; the figures before it stay in sight."""
    page = watched.page
    page.goto(base_url)
    page.get_by_label("Lengths of the requests").fill("17, oops")
    expect(page.locator("#error-lengths")).to_contain_text("'oops'")
    expect(page.locator("#effective")).to_have_text("10 MiB")
    page.get_by_label("Lengths of the requests").fill("17")
    expect(page.locator("#error-lengths")).to_have_count(0)


def test_a_dropped_file(watched: Watched, base_url: str, tmp_path: Path) -> None:
    """A CSV of lengths becomes the text of the field and the totals."""
    path = tmp_path / "lengths.csv"
    path.write_text("request,length\na,1024\nb,3072\n")
    page = watched.page
    page.goto(base_url)
    page.locator("#file").set_input_files(path)
    expect(page.locator("#padded")).to_have_text("768 MiB")
    expect(page.get_by_label("Lengths of the requests")).to_have_value("1024, 3072")


def test_the_language_switch_keeps_the_calculation(watched: Watched, base_url: str) -> None:
    """The switch changes the words and keeps the numbers; the choice is remembered."""
    page = watched.page
    page.goto(f"{base_url}/?lengths=1024,3072")
    page.get_by_role("link", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.get_by_role("heading", name="有效状态", exact=True)).to_be_visible()
    expect(page.locator("#padded")).to_have_text("768 MiB")
    page.goto(base_url)
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")


def test_charts_are_drawn_without_moving_the_page(watched: Watched, base_url: str) -> None:
    """The charts appear in reserved places: no layout shift, and their table is there."""
    page = watched.page
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver(l => l.getEntries().forEach("
        "e => { if (!e.hadRecentInput) window.shift += e.value; }))"
        ".observe({type: 'layout-shift', buffered: true});"
    )
    page.goto(base_url)
    page.locator("#chart-ledgers").scroll_into_view_if_needed()
    expect(page.locator("#chart-ledgers .main-svg").first).to_be_visible(timeout=15_000)
    expect(page.locator("#chart-requests .main-svg").first).to_be_visible(timeout=15_000)
    assert page.evaluate("window.shift") < 0.01
    expect(page.locator("table tbody tr")).to_have_count(3)


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET: a button, the same figures, no script needed."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(base_url)
    page.locator("#lengths").fill("1024, 3072")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#padded")).to_have_text("768 MiB")
    context.close()


def test_keyboard_alone(watched: Watched, base_url: str) -> None:
    """Everything is reached by Tab; a figure is copied with Enter."""
    page = watched.page
    page.goto(base_url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.locator("#effective button").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Lengths of the requests")).to_be_enabled()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(base_url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
