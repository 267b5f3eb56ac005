"""The page of engines, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_rows_and_the_address(watched: Watched, base_url: str) -> None:
    """Half the memory holds half the tokens; the address reloads to the same; a mistake stays."""
    page = watched.page
    page.goto(f"{base_url}/engines?model=meta-llama/Llama-3.1-8B&kv=bf16")
    expect(page.locator("#row-vllm")).to_contain_text("327\u202f680")
    page.get_by_label("Memory for the cache").fill("20 GiB")
    expect(page.locator("#row-vllm")).to_contain_text("163\u202f840")
    page.reload()
    expect(page.locator("#row-vllm")).to_contain_text("163\u202f840")
    page.get_by_label("Memory for the cache").fill("much")
    expect(page.locator("#error-budget")).to_contain_text("much")
    expect(page.locator("#row-vllm")).to_contain_text("163\u202f840")


def test_charts_are_drawn(watched: Watched, base_url: str) -> None:
    """Both charts appear once they are in sight."""
    page = watched.page
    page.goto(f"{base_url}/engines?model=google/gemma-3-27b-it&kv=bf16&context=131072")
    for name in ("chart-spent", "chart-lengths"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        expect(page.locator(f"#{name} .main-svg").first).to_be_visible()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/engines")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
