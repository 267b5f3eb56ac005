"""The exercises and the glossary, as a person uses them."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_an_exercise_is_answered_and_checked(watched: Watched, base_url: str) -> None:
    """Figures and ticks are judged, remarks and the working shown; the address has the answer."""
    page = watched.page
    page.goto(f"{base_url}/learn?kind=hand_attention")
    page.get_by_label("output with the history").fill("4")
    page.get_by_label("weight of each position").fill("1/2")
    page.locator('input[name="omission"]').first.check()
    page.get_by_role("button", name="Check, and show the working").click()
    expect(page.locator("#judged-figures")).to_contain_text("the step reads its whole history")
    expect(page.locator("#working li").first).to_contain_text("scores")
    expect(page.get_by_label("output with the history")).to_have_value("4")
    page.reload()
    expect(page.locator("#judged-figures")).to_contain_text("the step reads its whole history")
    expect(page.locator('input[name="omission"]').first).to_be_checked()


def test_the_next_numbers_are_others(watched: Watched, base_url: str) -> None:
    """The link draws the next seed; a typed seed draws its own."""
    page = watched.page
    page.goto(f"{base_url}/learn")
    given = page.locator("#given").inner_text()
    page.locator("#next").click()
    expect(page).to_have_url(f"{base_url}/learn?kind=capacity_whole&seed=1")
    assert page.locator("#given").inner_text() != given
    page.get_by_label("Seed").fill("0")
    page.get_by_role("button", name="Draw").click()
    expect(page.locator("#given")).to_contain_text("1024, 3072")
    page.get_by_role("link", name="Shared blocks count once").click()
    expect(page.get_by_role("heading", name="Shared blocks count once")).to_be_visible()


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """An answer is a plain GET: the judgement comes with the page."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/learn")
    page.get_by_label("effective bytes").fill("512 MiB")
    page.get_by_role("button", name="Check, and show the working").click()
    expect(page.locator("#judged-figures tbody tr").nth(1)).to_contain_text("right")
    expect(page.locator("#working li").first).to_be_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["/glossary", "/glossary?lang=zh", "/learn?kind=unique_blocks&check=1&omission=weights"]
)
def test_axe_finds_nothing(path: str, scheme: str, browser: Browser, base_url: str) -> None:
    """The words and a judged answer have no violation, wide and on a phone."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 740})  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(base_url + path)
    found = Axe().run(page)
    summary = [(item["id"], len(item["nodes"])) for item in found.response["violations"]]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
    assert summary == []
