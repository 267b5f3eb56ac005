"""The page of measured cases, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_cases_are_asked_and_filtered(watched: Watched, base_url: str) -> None:
    """The page shows how far it is until all are asked; filters change the table and address."""
    page = watched.page
    page.goto(f"{base_url}/accuracy")
    expect(page.locator("#summary")).to_contain_text("0 not reproduced", timeout=200_000)
    expect(page.locator("#progress")).to_have_count(0, timeout=200_000)
    for name in ("Engine", "Family", "Kind of case"):
        assert page.get_by_label(name, exact=True).locator("option").count() > 4, name
    page.get_by_label("Kind of case").select_option("yardstick")
    expect(page.locator("#cases")).to_contain_text("Cases 1–8 / 8")
    expect(page).to_have_url(f"{base_url}/accuracy?suite=yardstick")
    page.get_by_label("Search").fill("gemma wrapper")
    expect(page.locator("#cases")).to_contain_text("Cases 1–1 / 1")
    expect(page.locator("#cases")).to_contain_text("11\u202f173\u202f199\u202f872")
    page.reload()
    expect(page.locator("#cases")).to_contain_text("Cases 1–1 / 1")


def test_what_is_not_reproduced_says_why(watched: Watched, base_url: str) -> None:
    """The example leads to the cases with a reason."""
    page = watched.page
    page.goto(f"{base_url}/accuracy")
    expect(page.locator("#progress")).to_have_count(0, timeout=200_000)
    page.get_by_role("link", name="What is not reproduced, and why").click()
    expect(page.locator("#cases")).to_contain_text("the engine stopped")


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen; tables scroll inside."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/accuracy?suite=vllm_model_plans")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
