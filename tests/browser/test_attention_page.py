"""The page of attention, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_output_and_the_address(watched: Watched, base_url: str) -> None:
    """A new value changes the output at once; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/attention")
    expect(page.locator("#output")).to_have_text("3")
    expect(page.locator("#without-history")).to_have_text("4")
    page.get_by_label("New value").fill("8")
    expect(page.locator("#output")).to_have_text("5")
    expect(page).to_have_url(f"{base_url}/attention?new_value=8")
    page.reload()
    expect(page.locator("#output")).to_have_text("5")
    expect(page.locator("#positions tbody tr")).to_have_count(2)


def test_numbers_are_drawn_and_then_edited(watched: Watched, base_url: str) -> None:
    """Drawn numbers hide the typed ones; their link turns them into typed ones."""
    page = watched.page
    page.goto(f"{base_url}/attention")
    expect(page.get_by_label("Cached positions")).to_be_hidden()
    page.get_by_label("drawn by a seed").check()
    expect(page.get_by_label("Cached keys")).to_be_hidden()
    page.get_by_label("Cached positions").fill("3")
    expect(page.locator("#positions tbody tr")).to_have_count(4)
    output = page.locator("#output").inner_text()
    page.get_by_role("link", name="Edit these numbers").click()
    expect(page.get_by_label("Cached keys")).to_be_visible()
    expect(page.locator("#output")).to_have_text(output)


def test_an_experiment_is_one_click(watched: Watched, base_url: str) -> None:
    """A click shows its sentence, table and charts and keeps it in the address."""
    page = watched.page
    page.goto(f"{base_url}/attention")
    page.get_by_role("button", name="Eviction at equal memory").click()
    expect(page.locator("#statement")).to_contain_text("Capacity says how many positions fit")
    expect(page.locator("#figures tbody tr")).to_have_count(9)
    page.locator("#chart-experiment-3").scroll_into_view_if_needed()
    expect(page.locator("#chart-experiment-3 .main-svg").first).to_be_visible(timeout=15_000)
    expect(page).to_have_url(f"{base_url}/attention?experiment=eviction_compared")
    expect(page.locator("#output")).to_have_text("3")
    page.get_by_role("button", name="Rows in another order").click()
    expect(page.locator("#statement")).to_contain_text("K moved without its V")
    page.reload()
    expect(page.locator("#statement")).to_contain_text("K moved without its V")


def test_a_mistake_is_shown_and_the_rest_stays(watched: Watched, base_url: str) -> None:
    """A mistake is named in words; the figures before it stay in sight."""
    page = watched.page
    page.goto(f"{base_url}/attention")
    page.get_by_label("Query", exact=True).fill("1 oops")
    expect(page.locator("#error-query")).to_contain_text("'oops'")
    expect(page.locator("#output")).to_have_text("3")
    page.get_by_label("Query", exact=True).fill("0")
    expect(page.locator("#error-query")).to_have_count(0)


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET, and so is an experiment's button."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/attention")
    page.locator("#new_value").fill("8")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#output")).to_have_text("5")
    page.get_by_role("button", name="History dropped").click()
    expect(page.locator("#statement")).to_contain_text("instead of 3")
    expect(page.locator("#output")).to_have_text("5")
    context.close()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen, whatever is drawn."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/attention?numbers=drawn&past_tokens=24&width=16&new_tokens=3"
              "&experiment=error_by_length")  # fmt: skip
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
