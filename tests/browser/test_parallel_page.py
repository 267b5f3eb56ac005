"""The page of ranks, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_ranks_and_the_address(watched: Watched, base_url: str) -> None:
    """More tensor ranks than heads double the total; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/parallel?model=meta-llama/Llama-3.1-8B&kv=bf16")
    expect(page.locator("#total")).to_have_text("16 GiB")
    page.get_by_label("Tensor parallel").fill("16")
    expect(page.locator("#total")).to_have_text("32 GiB")
    expect(page.locator("#replicated")).to_have_text("16 GiB")
    page.reload()
    expect(page.locator("#total")).to_have_text("32 GiB")
    page.get_by_label("Tensor parallel").fill("7")
    expect(page.locator("#error-tensor_parallel")).to_contain_text("7")
    expect(page.locator("#total")).to_have_text("32 GiB")


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/parallel?tensor_parallel=16")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
