"""The page of the pool, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_the_slider_moves_through_the_steps(watched: Watched, base_url: str) -> None:
    """Arrow keys on the slider swap the step and keep it in the address."""
    page = watched.page
    page.goto(f"{base_url}/pool")
    expect(page.locator("#what")).to_contain_text("1. allocate a 1..8 21 22")
    slider = page.get_by_label("Event on show")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#what")).to_contain_text("2. allocate b")
    expect(page.locator(".cells .cell-held").first).to_contain_text("1 ×2")
    expect(page).to_have_url(f"{base_url}/pool?scenario=share_and_diverge&step=2")
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator("#what")).to_contain_text("7. free b")
    expect(page.locator(".cells .cell-cached")).to_have_count(4)
    page.wait_for_load_state("networkidle")
    page.reload()
    expect(page.locator("#what")).to_contain_text("7. free b")
    expect(page.get_by_label("Event on show")).to_have_value("7")
    page.get_by_role("link", name="Previous event").click()
    expect(page.locator("#what")).to_contain_text("6. lookup")
    expect(page.get_by_label("Event on show")).to_have_value("6")
    expect(page.locator("#previous")).to_be_focused()


def test_events_are_edited(watched: Watched, base_url: str) -> None:
    """Events typed into the field are played; a mistake names its line and changes nothing."""
    page = watched.page
    page.goto(f"{base_url}/pool")
    page.get_by_label("Events, one a line").fill("allocate a 1..4\nfork a b\nappend b 5")
    expect(page.locator("#hint-events")).to_contain_text("3 events")
    page.get_by_label("Policy").select_option("textbook")
    expect(page.locator("#queue li")).to_have_count(9)
    # A click would leave while the chart, scrolled into sight on the way, is still being loaded.
    page.locator("#chart-pool").scroll_into_view_if_needed()
    expect(page.locator("#chart-pool .main-svg").first).to_be_visible(timeout=15_000)
    page.get_by_role("link", name="3", exact=True).click()
    expect(page.locator("#what")).to_contain_text("3. append b 5")
    page.wait_for_load_state("networkidle")
    page.get_by_label("Events, one a line").fill("allocate a 1..4\nfree b")
    expect(page.locator("#error-events")).to_contain_text("Line 2")
    expect(page.locator("#what")).to_contain_text("3. append b 5")
    page.wait_for_load_state("networkidle")
    watched.complaints.clear()
    page.reload()
    expect(page.get_by_label("Events, one a line")).to_have_value("allocate a 1..4\nfree b")
    expect(page.get_by_label("Policy")).to_have_value("textbook")
    expect(page.locator("#error-events")).to_contain_text("Line 2")
    # The page itself has the status of a mistake, which Chromium notes.
    assert [line for line in watched.complaints if "422" not in line] == []
    watched.complaints.clear()


def test_the_stories_are_one_click_each(watched: Watched, base_url: str) -> None:
    """Every story loads its events and its pool."""
    page = watched.page
    page.goto(f"{base_url}/pool")
    links = page.locator("#stories a")
    expect(links).to_have_count(5)
    page.wait_for_load_state("networkidle")
    links.nth(4).click()
    expect(page.get_by_label("Blocks in the pool")).to_have_value("7")
    expect(page.locator("#hint-events")).to_contain_text("9 events")
    expect(page.locator("table tbody tr", has_text="Refused, and nothing is taken")).to_have_count(
        1
    )


def test_the_chart_is_drawn(watched: Watched, base_url: str) -> None:
    """The chart of blocks over events appears where it is scrolled into sight."""
    page = watched.page
    page.goto(f"{base_url}/pool?scenario=beam_of_four&policy=textbook")
    page.locator("#chart-pool").scroll_into_view_if_needed()
    expect(page.locator("#chart-pool .main-svg").first).to_be_visible(timeout=15_000)


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """Links go from event to event, and the form is a plain GET."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/pool")
    page.get_by_role("link", name="Next event").click()
    expect(page.locator("#what")).to_contain_text("2. allocate b")
    page.locator("#block_size").fill("2")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#what")).to_contain_text("2. allocate b")
    expect(page.locator("#tables tbody tr").first).to_contain_text("1, 2, 3, 4, 5")
    context.close()
