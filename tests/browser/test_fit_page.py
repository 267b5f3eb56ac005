"""The page of what fits, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_what_fits_and_the_address(watched: Watched, base_url: str) -> None:
    """A log's room for the state takes the ranges away; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/fit?model=meta-llama/Llama-3.1-405B&kv=bf16&tensor_parallel=8")
    expect(page.locator("#verdict")).to_contain_text("weights alone")
    page.get_by_text("Figures of a log").click()
    page.get_by_role("textbox", name="Room for the state").fill("4.77 GiB")
    page.get_by_label("Concurrency", exact=True).fill("1")
    expect(page.locator("#context-fits")).to_have_text("79\u202f392")
    page.reload()
    expect(page.locator("#context-fits")).to_have_text("79\u202f392")
    page.locator("#utilisation").fill("1.5")
    expect(page.locator("#error-utilisation")).to_be_visible()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/fit?tensor_parallel=2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
