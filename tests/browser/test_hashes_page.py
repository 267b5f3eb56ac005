"""The page of hashes, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser


def test_typing_moves_the_break(watched: Watched, base_url: str) -> None:
    """Another token moves the place where the chain breaks; the address reloads to the same."""
    page = watched.page
    page.goto(f"{base_url}/hashes")
    expect(page.locator("#breaks")).to_contain_text("The chain breaks at block 0.")
    page.locator("#b").fill("1 2 3 9")
    expect(page.locator("#breaks")).to_contain_text(
        "breaks at block 1. Another token at position 3"
    )
    expect(page.locator("#matched")).to_have_text("1")
    page.locator("#b_salt").fill("mine")
    expect(page.locator("#breaks")).to_contain_text("breaks at block 0. Another salt")
    page.reload()
    expect(page.locator("#b_salt")).to_have_value("mine")
    expect(page.locator("#matched")).to_have_text("0")


@pytest.mark.parametrize(
    ("link", "matched"),
    [
        ("The same last block under another parent", "0"),
        ("The same tokens under another adapter", "0"),
        ("A longer prompt matches two full blocks", "2"),
    ],
)
def test_the_counter_examples_are_one_click_each(
    link: str, matched: str, watched: Watched, base_url: str
) -> None:
    """Each of the three is loaded by its link."""
    page = watched.page
    page.goto(f"{base_url}/hashes")
    page.get_by_role("link", name=link).click()
    expect(page.locator("#matched")).to_have_text(matched)


def test_the_schemes_have_their_own_fields(watched: Watched, base_url: str) -> None:
    """The engine's scheme shows its settings and hides the textbook's identity."""
    page = watched.page
    page.goto(f"{base_url}/hashes")
    expect(page.locator("#a_tokenizer")).to_be_visible()
    expect(page.locator("#algorithm")).to_be_hidden()
    page.get_by_label("vLLM's own").check()
    expect(page.locator("#a_tokenizer")).to_be_hidden()
    page.locator("#algorithm").select_option("xxhash")
    expect(page.locator("#error-hash_seed")).to_contain_text("PYTHONHASHSEED")
    page.locator("#hash_seed").fill("0")
    expect(page.locator("#error-hash_seed")).to_have_count(0)
    page.get_by_label("plain text").check()
    expect(page.locator("#hint-prompts")).to_contain_text("First: 4 tokens")


def test_a_hash_is_copied_whole(browser: Browser, base_url: str) -> None:
    """A click on a shortened hash copies all 64 digits."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{base_url}/hashes")
    button = page.locator("tbody button.digest").first
    button.click()
    expect(page.locator("#said")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == button.get_attribute("data-copy")
    assert len(copied) == 64
    context.close()


def test_without_javascript(browser: Browser, base_url: str) -> None:
    """The form is a plain GET: a button, the same answer, no script needed."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/hashes")
    page.locator("#b").fill("1..5")
    page.get_by_role("button", name="Calculate").click()
    expect(page.locator("#matched")).to_have_text("2")
    context.close()
