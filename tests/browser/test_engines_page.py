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


def test_on_a_phone_a_row_is_a_card(browser: Browser, base_url: str) -> None:
    """At 360 pixels every figure is in sight with its name, and captions are whole."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/engines?model=google/gemma-3-27b-it&kv=bf16&context=131072")
    for cell in page.locator("#row-vllm td, #held caption, #spent caption").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    last = page.locator("#row-vllm td").last
    assert last.evaluate("cell => getComputedStyle(cell, '::before').content") == (
        '"Both hold from, tokens"'
    )
    expect(page.locator("#held thead")).to_be_hidden()
    context.close()


def test_the_legend_is_below_the_plot(browser: Browser, base_url: str) -> None:
    """However narrow the screen, names of engines do not lie on the bars or the lines."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{base_url}/engines?model=google/gemma-3-27b-it&kv=bf16&context=131072")
    for name in ("chart-spent", "chart-lengths"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        legend = page.locator(f"#{name} .legend").first
        expect(legend).to_be_visible()
        plot = page.locator(f"#{name} .plotbg, #{name} .gridlayer").first.bounding_box()
        box = legend.bounding_box()
        assert plot is not None
        assert box is not None
        assert box["y"] >= plot["y"] + plot["height"]
    context.close()


def test_ranks_are_asked_under_more_settings(watched: Watched, base_url: str) -> None:
    """Folded at first; a change answers at once and is kept by the address."""
    page = watched.page
    page.goto(f"{base_url}/engines?model=meta-llama/Llama-3.1-8B&kv=bf16")
    expect(page.get_by_label("Tensor parallel")).to_be_hidden()
    page.get_by_text("More settings").click()
    page.get_by_label("Tensor parallel").fill("2")
    expect(page.locator("#row-vllm")).to_contain_text("655\u202f360")
    expect(page.locator("#remarks-llama_cpp")).to_contain_text("no setting for tensor_parallel")
    page.reload()
    expect(page.get_by_label("Tensor parallel")).to_have_value("2")
    expect(page.locator("#row-vllm")).to_contain_text("655\u202f360")
