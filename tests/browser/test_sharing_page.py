"""The page of sharing, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_changes_the_blocks_and_the_address(watched: Watched, base_url: str) -> None:
    """Sizes typed into the field change figures and tables; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/sharing")
    expect(page.locator("#logical")).to_have_text("12 MiB")
    expect(page.locator("#paged")).to_have_text("8 MiB")
    page.locator("#groups").fill("512 -> 40 x 200 -> 3 x 60")
    expect(page.locator("#paged")).to_have_text("2.17 GiB")
    expect(page.locator("table.blocks tbody tr")).to_have_count(50)
    expect(page.locator("table.blocks tbody tr").first).to_contain_text("0–31 ×120")
    page.wait_for_load_state("networkidle")
    page.reload()
    expect(page.locator("#groups")).to_have_value("512 -> 40 x 200 -> 3 x 60")
    expect(page.locator("#paged")).to_have_text("2.17 GiB")


def test_the_kinds_of_input_and_the_rule(watched: Watched, base_url: str) -> None:
    """Token ids and samples have their own fields; the rule of sharing can be chosen."""
    page = watched.page
    page.goto(f"{base_url}/sharing?block_size=2")
    page.get_by_label("By their token ids").check()
    expect(page.locator("#groups")).to_be_hidden()
    expect(page.locator("#hint-sequences")).to_contain_text("3 sequences, 13 positions")
    page.locator("#sequences").fill("1 2 3\n1 2 3")
    expect(page.locator("table.blocks tbody tr").nth(1)).to_contain_text("0 ×2")
    expect(page.locator("table.blocks tbody tr").nth(1)).to_contain_text("2 ×1 1/2")
    page.get_by_label("What is shared").select_option("copy_on_write")
    expect(page.locator("table.blocks tbody tr").nth(1)).to_contain_text("1 ×2 1/2")
    page.get_by_label("Samples or beams of one prompt").check()
    page.get_by_label("Samples or beams", exact=True).fill("8")
    expect(page.locator("#hint-sequences")).to_contain_text("8 sequences")


def test_a_mistake_keeps_the_last_good_figures(watched: Watched, base_url: str) -> None:
    """What is not understood is named; the figures before it stay in sight."""
    page = watched.page
    page.goto(f"{base_url}/sharing")
    page.locator("#groups").fill("32 -> one")
    expect(page.locator("#error-groups")).to_contain_text("'one' is not understood")
    expect(page.locator("#paged")).to_have_text("8 MiB")
    page.locator("#groups").fill("32 -> 1")
    expect(page.locator("#error-groups")).to_have_count(0)
    expect(page.locator("#paged")).to_have_text("6 MiB")


def test_charts_are_drawn(watched: Watched, base_url: str) -> None:
    """Both charts appear where they are scrolled into sight."""
    page = watched.page
    page.goto(f"{base_url}/sharing")
    for name in ("chart-blocks", "chart-bytes"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        expect(page.locator(f"#{name} .main-svg").first).to_be_visible(timeout=15_000)


@pytest.mark.parametrize(
    "address", ["/sharing?groups=512+->+40+x+200", "/hashes", "/pool?scenario=beam_of_four"]
)
def test_a_phone_has_no_sideways_scroll(address: str, browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}{address}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET: a button, the same figures, no script needed."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/sharing")
    page.locator("#groups").fill("20 -> 1, 1")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#paged")).to_have_text("6 MiB")
    context.close()
