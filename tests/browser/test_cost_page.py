"""The page of the cost, as a person uses it, and a measured run that streams and is cancelled."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_totals_and_the_address(watched: Watched, base_url: str) -> None:
    """A longer prompt costs more both ways; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/cost")
    expect(page.locator("#with-cache")).to_have_text("8.27 TMAC")
    page.get_by_label("Prompt, tokens").fill("4096")
    expect(page.locator("#cache-bytes")).to_have_text("527.88 MiB")
    expect(page).to_have_url(
        f"{base_url}/cost?model=meta-llama%2FLlama-3.1-8B&kv=fp16&prompt_tokens=4096"
    )
    page.reload()
    expect(page.locator("#cache-bytes")).to_have_text("527.88 MiB")


def test_the_bound_follows_device_batch_and_format(watched: Watched, base_url: str) -> None:
    """A device, a typed rate, a batch and a format of the weights each move the bound."""
    page = watched.page
    page.goto(f"{base_url}/cost")
    expect(page.locator("#bound")).to_have_text("221")
    page.get_by_label("Device", exact=True).select_option("h200-141")
    expect(page.locator("#bound")).to_have_text("316.6")
    page.get_by_label("or its bandwidth").fill("3350 GB/s")
    expect(page.locator("#bound")).to_have_text("221")
    page.get_by_label("Sequences in the batch").fill("64")
    expect(page.locator("#bound")).to_have_text("8\u202f693")
    page.get_by_label("Weights stored as").select_option("fp8")
    expect(page.locator("#bound")).not_to_have_text("8\u202f693")


def test_sizes_are_asked_for_with_numbers(watched: Watched, base_url: str) -> None:
    """By its numbers a model has no weights until the sizes around the cache are given."""
    page = watched.page
    page.goto(f"{base_url}/cost")
    expect(page.get_by_label("Hidden size")).to_be_hidden()
    page.get_by_label("By its numbers").check()
    expect(page.locator("#no-decode")).to_be_visible()
    page.get_by_label("Hidden size").fill("4096")
    expect(page.locator("#bound")).to_be_visible()


def test_a_measured_run_streams_and_ends(watched: Watched, base_url: str) -> None:
    """Points are counted as they come, and the table, the charts and the orders stay."""
    page = watched.page
    page.goto(f"{base_url}/cost")
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#measure progress")).to_be_visible()
    expect(page.locator("#measured .notice")).to_have_count(2, timeout=60_000)
    expect(page.locator("#measured-steps tbody tr")).to_have_count(14)
    expect(page.locator("#measure progress")).to_be_hidden()
    page.locator("#chart-measured-length").scroll_into_view_if_needed()
    expect(page.locator("#chart-measured-length .main-svg").first).to_be_visible(timeout=15_000)


def test_a_measured_run_is_cancelled(browser: Browser, base_url: str) -> None:
    """Cancel ends the run and says so; the lab is free again at once."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{base_url}/cost")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#measure [data-at]")).to_have_text("Cancelled; the points so far stay")
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#measured .notice")).to_have_count(2, timeout=60_000)
    context.close()


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET; a measured run is answered by the page when it is over."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/cost")
    page.locator("#prompt_tokens").fill("4096")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#cache-bytes")).to_have_text("527.88 MiB")
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#measured-steps tbody tr")).to_have_count(14, timeout=60_000)
    expect(page.locator("#cache-bytes")).to_have_text("527.88 MiB")
    context.close()


def test_a_phone_has_no_sideways_scroll(browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen: tables scroll inside."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/cost")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
