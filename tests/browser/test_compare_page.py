"""The page of comparisons, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_comparison(watched: Watched, base_url: str) -> None:
    """A third calculation becomes a third column; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/compare")
    expect(page.locator("#answer table").first.locator("thead th")).to_have_count(4)
    page.get_by_label("Calculation 3").fill("model=meta-llama/Llama-3.1-8B&kv=fp8")
    expect(page.locator("#answer table").first.locator("thead th")).to_have_count(5)
    page.reload()
    expect(page.locator("#answer table").first.locator("thead th")).to_have_count(5)


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/compare")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
