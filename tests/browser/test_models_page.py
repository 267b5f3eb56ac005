"""The catalogue, one model and the inspection, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Watched
from tests.readers.test_model_files import gguf_bytes, safetensors_bytes

pytestmark = pytest.mark.browser

GEMMA = "google/gemma-3-27b-it"
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336,
    "vocab_size": 128256,
}  # fmt: skip


def test_searching_as_one_types(watched: Watched, base_url: str) -> None:
    """The list narrows with each word, the address follows, and reloading gives the same."""
    page = watched.page
    page.goto(f"{base_url}/models")
    expect(page.locator("#found")).to_contain_text("572 models")
    page.get_by_label("Search").fill("gemma-3-27b")
    expect(page.locator("#models").get_by_role("link", name=GEMMA, exact=True)).to_be_visible()
    expect(page).to_have_url(f"{base_url}/models?q=gemma-3-27b")
    page.get_by_label("Reading").select_option("yes")
    expect(page).to_have_url(f"{base_url}/models?q=gemma-3-27b&read=yes")
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("gemma-3-27b")
    expect(page.locator("#models tbody tr")).to_have_count(1)


def test_two_side_by_side(watched: Watched, base_url: str) -> None:
    """Two entries are chosen, compared, and kept while one searches on."""
    page = watched.page
    page.goto(f"{base_url}/models?q=gemma-3-27b-it")
    page.get_by_role("link", name=f"Compare {GEMMA}").click()
    expect(page.locator("#compared")).to_contain_text("Choose another")
    page.get_by_label("Search").fill("Qwen3-32B")
    page.get_by_role("link", name="Compare Qwen/Qwen3-32B", exact=True).click()
    expect(page.locator("#pair")).to_contain_text("11\u202f173\u202f199\u202f872")
    page.locator("#chart-pair").scroll_into_view_if_needed()
    expect(page.locator("#chart-pair .main-svg").first).to_be_visible(timeout=15_000)
    page.reload()
    expect(page.locator("#pair")).to_contain_text("11\u202f173\u202f199\u202f872")
    page.get_by_role("link", name="Take away").first.click()
    expect(page.locator("#pair")).to_have_count(0)


def test_sorting_by_a_head(watched: Watched, base_url: str) -> None:
    """A click on a head sorts, another turns the order round."""
    page = watched.page
    page.goto(f"{base_url}/models?kind=recurrent")
    head = page.locator("#models th").filter(has_text="Fixed")
    head.get_by_role("link").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("link").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page).to_have_url(f"{base_url}/models?kind=recurrent&sort=fixed_bytes")


def test_one_model(watched: Watched, base_url: str) -> None:
    """Drawn with its chart; another format changes the figures and the address."""
    page = watched.page
    page.goto(f"{base_url}/models/{GEMMA}")
    expect(page.locator("#slope")).to_have_text("80 KiB")
    expect(page.locator("#windows")).to_have_text("415.59 MiB")
    page.get_by_label("KV type").select_option("fp8")
    expect(page.locator("#slope")).to_have_text("40 KiB")
    expect(page).to_have_url(f"{base_url}/models/{GEMMA}?kv=fp8")
    page.locator("#chart-contexts").scroll_into_view_if_needed()
    expect(page.locator("#chart-contexts .main-svg").first).to_be_visible(timeout=15_000)
    page.get_by_role("link", name="Calculate with this model").click()
    expect(page.locator("#effective")).to_be_visible()
    expect(page.locator("#model")).to_have_value(GEMMA)


def test_pasting_a_config(watched: Watched, base_url: str) -> None:
    """Layers appear as soon as the config is whole; a mistake before that keeps to its place."""
    page = watched.page
    page.goto(f"{base_url}/models/inspect")
    page.get_by_label("config.json, pasted").fill('{"model_type": "llama"')
    expect(page.locator("#error-config")).to_contain_text("not JSON")
    page.get_by_label("config.json, pasted").fill(json.dumps(LLAMA))
    expect(page.locator(".strip i")).to_have_count(32)
    expect(page.locator("#slope")).to_have_text("128 KiB")
    page.get_by_label("KV type").select_option("q8_0")
    expect(page.locator("#slope")).to_have_text("68 KiB")
    page.reload()
    expect(page.locator("#slope")).to_have_text("68 KiB")


def test_dropping_files(watched: Watched, base_url: str, tmp_path: Path) -> None:
    """A config becomes an address; of a large GGUF or safetensors file only the head is sent."""
    page = watched.page
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    page.goto(f"{base_url}/models/inspect")
    page.locator("#file").set_input_files(config)
    expect(page.locator("#slope")).to_have_text("128 KiB")
    sent: list[int] = []
    page.on(
        "request",
        lambda request: (
            sent.append(int(request.headers.get("content-length", 0)))
            if request.method == "POST"
            else None
        ),
    )
    whole = tmp_path / "model.safetensors"
    whole.write_bytes(safetensors_bytes(elements=2**20, size=2**21) + bytes(2**21))
    page.locator("#file").set_input_files(whole)
    expect(page.locator("#weights")).to_contain_text("2\u202f097\u202f152")
    assert max(sent, default=0) < 100_000
    # The config that is still in its field says what layers keep.
    expect(page.locator("#slope")).to_have_text("128 KiB")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(gguf_bytes(vocabulary=200))
    page.locator("#file").set_input_files(gguf)
    expect(page.locator("#error-file")).to_contain_text("two of the files")
    page.get_by_label("config.json, pasted").fill("")
    expect(page.locator("#weights")).to_contain_text("Q8_0")
    expect(page.locator(".strip i")).to_have_count(2)


def test_a_config_pasted_after_a_file(watched: Watched, base_url: str, tmp_path: Path) -> None:
    """The file goes with every change of the text, until it is taken out; the focus stays."""
    page = watched.page
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(safetensors_bytes())
    page.goto(f"{base_url}/models/inspect")
    page.locator("#file").set_input_files(weights)
    expect(page.locator(".notice")).to_contain_text("add the config.json")
    field = page.get_by_label("config.json, pasted")
    field.fill(json.dumps(LLAMA))
    expect(page.locator("#slope")).to_have_text("128 KiB")
    expect(field).to_be_focused()
    expect(page.locator("#weights caption")).to_contain_text("added up from headers")
    field.fill(json.dumps(LLAMA | {"num_key_value_heads": "x"}))
    expect(page.locator("#error-config")).to_contain_text("config.num_key_value_heads")
    field.fill(json.dumps(LLAMA | {"num_key_value_heads": 4}))
    expect(page.locator("#slope")).to_have_text("64 KiB")
    page.get_by_role("button", name="Take the files out").click()
    expect(page.locator("#weights caption")).to_contain_text("by the shapes that the config gives")
    expect(page.locator("#file")).to_have_value("")


def test_a_file_that_is_no_model(watched: Watched, base_url: str, tmp_path: Path) -> None:
    """It is said beside the field, and the page can be used on."""
    page = watched.page
    wrong = tmp_path / "picture.gguf"
    wrong.write_bytes(b"\x89PNG" + bytes(100))
    page.goto(f"{base_url}/models/inspect")
    page.locator("#file").set_input_files(wrong)
    expect(page.locator("#error-file")).to_contain_text("no GGUF")
    page.get_by_role("button", name="Take the files out").click()
    expect(page.locator("#error-file")).to_have_count(0)
    page.get_by_label("config.json, pasted").fill(json.dumps(LLAMA))
    expect(page.locator("#slope")).to_have_text("128 KiB")


def test_inspecting_without_javascript(browser: Browser, base_url: str, tmp_path: Path) -> None:
    """Both forms are plain: a button each, the same figures."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/models/inspect")
    page.locator("#config").fill(json.dumps(LLAMA))
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#slope")).to_have_text("128 KiB")
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes())
    page.locator("#file").set_input_files(path)
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#weights")).to_contain_text("Q8_0")
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes())
    page.locator("#file").set_input_files(path)
    page.locator("#config-beside").fill(json.dumps(LLAMA))
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#slope")).to_have_text("128 KiB")
    expect(page.locator("#weights")).to_contain_text("BF16")
    context.close()


DEEP = [
    "/models",
    f"/models/{GEMMA}",
    "/models/deepseek-ai/DeepSeek-V4-Flash",
    f"/models?pick={GEMMA}&pick=Qwen/Qwen3-Next-80B-A3B-Instruct",
    "/models?read=no",
    "/models/nobody/nothing",
    "/models/inspect?config=%7B%22model_type%22%3A%22llama%22%7D",
]


@pytest.mark.parametrize("path", DEEP)
def test_the_deeper_pages_are_sound(path: str, browser: Browser, base_url: str) -> None:
    """Nothing that axe calls a violation in either theme; at 360 pixels no sideways scroll."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(base_url + path)
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response["violations"]
        assert [
            (item["id"], [node["target"] for node in item["nodes"]][:3]) for item in found
        ] == []
    page.set_viewport_size({"width": 360, "height": 740})
    # A drawn chart follows the width a moment later.
    for _ in range(50):
        if page.evaluate("document.documentElement.scrollWidth") <= 360:
            break
        page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
