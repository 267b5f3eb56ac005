"""The page of reserving, padding and paging, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_layouts_and_the_address(watched: Watched, base_url: str) -> None:
    """Lengths and memory change the figures; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/fragmentation")
    expect(page.locator("#reserved")).to_have_text("1 GiB")
    page.get_by_label("Lengths of the requests").fill("64x250")
    page.get_by_label("Maximum length").fill("2048")
    expect(page.locator("#reserved")).to_have_text("16 GiB")
    expect(page.locator("#paged")).to_have_text("2 GiB")
    page.get_by_label("Memory, if set").fill("8 GiB")
    expect(page.locator(".notice")).to_have_text(
        "In 8 GiB, reserving runs 32 requests of this workload, paging 256."
    )
    page.locator("#chart-admitted").scroll_into_view_if_needed()
    expect(page.locator("#chart-admitted .main-svg").first).to_be_visible(timeout=15_000)
    expect(page.locator("#chart-layouts .main-svg").first).to_be_visible(timeout=15_000)
    page.reload()
    expect(page.locator("#reserved")).to_have_text("16 GiB")
    expect(page.get_by_label("Memory, if set")).to_have_value("8 GiB")


def test_a_mistake_is_shown_and_the_rest_stays(watched: Watched, base_url: str) -> None:
    """A maximum below the longest request is named; the figures before it stay."""
    page = watched.page
    page.goto(f"{base_url}/fragmentation")
    page.get_by_label("Maximum length").fill("2000")
    expect(page.locator("#error-max_length_tokens")).to_contain_text("3072")
    expect(page.locator("#reserved")).to_have_text("1 GiB")


def test_from_the_ledgers(watched: Watched, base_url: str) -> None:
    """The first page leads here with its own model and lengths."""
    page = watched.page
    page.goto(f"{base_url}/?lengths=8x5000")
    page.get_by_role("link", name="Beside reserving a maximum length").click()
    expect(page.get_by_label("Maximum length")).to_have_value("8192")
    expect(page.locator("#reserved")).to_have_text("8 GiB")


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET with a button."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/fragmentation")
    page.locator("#lengths").fill("64x250")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#paged")).to_have_text("2 GiB")
    context.close()
