"""The page of comparisons, as a person uses it."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
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


LLAMA = "model=meta-llama/Llama-3.1-8B&device=h100-sxm-80"
LARGE = {"c1": f"{LLAMA}&kv=bf16", "c2": f"{LLAMA}&kv=fp8", "contexts": "1..20000"}
LARGER = {**LARGE, "contexts": "1..100000", "kv_dtypes": "bf16, fp8, fp32, int8"}


def test_a_large_sweep_is_computed_on_request(watched: Watched, base_url: str) -> None:
    """Its table and chart come when asked for, and the new address brings them back by itself."""
    page = watched.page
    page.goto(f"{base_url}/compare?{urlencode(LARGE)}")
    expect(page.locator("#sweep table")).to_have_count(0)
    page.get_by_role("button", name="Compute all points").click()
    expect(page.locator("#thinned")).to_contain_text("200 of 20\u202f000 points")
    expect(page.locator("#sweep tbody tr")).to_have_count(200)
    expect(page.locator("[data-panel]")).to_be_hidden()
    page.locator("#chart-sweep").scroll_into_view_if_needed()
    expect(page.locator("#chart-sweep .main-svg").first).to_be_visible()
    assert page.url == f"{base_url}/compare?{urlencode(LARGE)}&all=1"
    assert Axe().run(page).response["violations"] == []
    page.reload()
    expect(page.locator("#sweep tbody tr")).to_have_count(200)


def test_a_large_sweep_is_cancelled_or_overtaken(watched: Watched, base_url: str) -> None:
    """Cancel ends it; so does another question, whose answer it does not overwrite."""
    page = watched.page
    page.goto(f"{base_url}/compare?{urlencode(LARGER)}")
    page.get_by_role("button", name="Compute all points").click()
    expect(page.locator("[data-at]")).to_have_text(re.compile("[1-9][0-9\u202f]* of 400\u202f000"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("[data-at]")).to_have_text("Cancelled: nothing was kept")
    expect(page.locator("#sweep table")).to_have_count(0)
    page.get_by_role("button", name="Compute all points").click()
    expect(page.locator("progress")).to_be_visible()
    with page.expect_event("requestfailed", lambda it: it.url.endswith("/compare/sweep")):
        page.get_by_label("Context lengths").fill("1k, 8k")
    expect(page.locator("#sweep tbody tr")).to_have_count(8)
    expect(page.locator("#sweep-all")).to_have_count(0)


def test_without_javascript_the_limit_is_said(browser: Browser, base_url: str) -> None:
    """No button that would do nothing, but a sentence and a CSV of all points."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/compare?{urlencode(LARGE)}")
    expect(page.locator("#sweep-all noscript p")).to_be_visible()
    expect(page.get_by_role("button", name="Compute all points")).to_be_hidden()
    expect(page.get_by_role("link", name="CSV of all points")).to_be_visible()
    context.close()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/compare")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
