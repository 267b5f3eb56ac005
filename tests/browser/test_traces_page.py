"""The page of request logs, as a person uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser

LOG = "".join(
    f'{{"timestamp": {turn * 1000}, "input_length": {512 * turn}, "output_length": 10,'
    f' "hash_ids": {list(range(turn))}}}\n'
    for turn in range(1, 9)
)
HEADING = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:05.0000000,100,10\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a conversation of eight turns, each a block longer than the one before."""
    path = tmp_path / "turns.jsonl"
    path.write_text(LOG)
    return path


def test_a_chosen_log_is_measured_in_place(watched: Watched, base_url: str, log: Path) -> None:
    """A chosen file goes at once; figures, charts and downloads appear without a new page."""
    page = watched.page
    page.goto(f"{base_url}/traces")
    page.evaluate("window.stayed = true")
    page.locator("#file").set_input_files(log)
    expect(page.locator("#reuse")).to_have_text("77.8 %")
    expect(page.locator("#unique")).to_have_text("512 MiB")
    expect(page.locator("#hint-log")).to_contain_text("turns.jsonl · JSON lines, hash ids")
    expect(page.locator("[data-panel]")).to_be_hidden()
    page.locator("#chart-curve").scroll_into_view_if_needed()
    expect(page.locator("#chart-curve .main-svg").first).to_be_visible(timeout=15_000)
    expect(page.locator("#chart-live .main-svg").first).to_be_visible(timeout=15_000)
    with page.expect_download() as waiting:
        page.get_by_role("link", name="hit-rate.csv").click()
    rows = Path(waiting.value.path()).read_text().splitlines()
    assert rows[0].startswith("capacity_blocks,capacity_bytes")
    assert rows[-1] == "7,469762048,224,28,36"
    assert page.evaluate("window.stayed")


def test_another_model_for_the_same_log(watched: Watched, base_url: str, log: Path) -> None:
    """With other fields the chosen log is measured again; the address keeps the fields."""
    page = watched.page
    page.goto(f"{base_url}/traces")
    page.locator("#file").set_input_files(log)
    expect(page.locator("#unique")).to_have_text("512 MiB")
    page.get_by_label("By its numbers").check()
    page.get_by_label("KV heads").fill("16")
    page.get_by_label("Pool to look up").fill("256 MiB")
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#unique")).to_have_text("1 GiB")
    expect(page.locator("#pool-hit")).to_contain_text("holds 2 of the log's blocks")
    expect(page).to_have_url(re.compile(r"/traces\?source=numbers&layers=32&kv_heads=16.*pool="))
    page.reload()
    expect(page.get_by_label("KV heads")).to_have_value("16")
    expect(page.get_by_label("Pool to look up")).to_have_value("256 MiB")


def test_a_mistake_leaves_the_last_figures(watched: Watched, base_url: str, log: Path) -> None:
    """A bad line is named; the figures of the log before stay in sight."""
    page = watched.page
    page.goto(f"{base_url}/traces")
    page.locator("#file").set_input_files(log)
    expect(page.locator("#reuse")).to_have_text("77.8 %")
    bad = log.with_name("bad.jsonl")
    bad.write_text(LOG + "oops\n")
    page.locator("#file").set_input_files(bad)
    expect(page.locator("#error-file")).to_have_text("line 9 is not JSON")
    expect(page.locator("#reuse")).to_have_text("77.8 %")
    page.locator("#file").set_input_files(log)
    expect(page.locator("#error-file")).to_have_count(0)


def test_examples_are_one_click(watched: Watched, base_url: str) -> None:
    """A click on an example gives its figures and an address that keeps them."""
    page = watched.page
    page.goto(f"{base_url}/traces")
    page.get_by_role("link", name="Conversations with block ids").click()
    expect(page.locator("#live")).to_be_visible()
    shown = page.locator("#reuse").inner_text()
    page.get_by_label("Or for all, ms").fill("60000")
    page.get_by_role("button", name="Measure").click()
    expect(page).to_have_url(re.compile("example=conversations.*duration_ms=60000"))
    expect(page.locator("#reuse")).to_have_text(shown)
    live = page.locator("#live").inner_text()
    page.reload()
    expect(page.locator("#live")).to_have_text(live)


def long_log(folder: Path) -> Path:
    """Return a log that takes many seconds."""
    path = folder / "long.csv"
    path.write_text(HEADING + ROW * 800_000)
    return path


def test_progress_and_cancel(browser: Browser, base_url: str, tmp_path: Path, log: Path) -> None:
    """While a long log is read its progress is told; Cancel ends it, and the next one is read."""
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    page.goto(f"{base_url}/traces")
    page.locator("#file").set_input_files(long_log(tmp_path))
    expect(page.locator("[data-at]")).to_have_text(
        re.compile(r"[0-9.]+ [KM]iB of 26\.\d+ MiB read, [0-9\u202f]+ requests"), timeout=20_000
    )
    assert page.locator("progress").evaluate("bar => bar.value > 0 && bar.value < bar.max")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("[data-at]")).to_have_text("Cancelled: nothing was kept")
    expect(page.locator("progress")).to_be_hidden()
    expect(page.locator("#live")).to_have_count(0)
    page.locator("#file").set_input_files(log)
    expect(page.locator("#reuse")).to_have_text("77.8 %")
    context.close()


def test_a_file_over_the_limit_stays_here(watched: Watched, base_url: str, tmp_path: Path) -> None:
    """A file over the limit is refused before it is sent."""
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    page = watched.page
    sent: list[str] = []
    page.goto(f"{base_url}/traces")
    page.on("request", lambda request: sent.append(request.method))
    page.locator("#file").set_input_files(path)
    assert "over the limit of 64 MiB" in page.locator("#file").evaluate(
        "field => field.validationMessage"
    )
    expect(page.locator("[data-panel]")).to_be_hidden()
    assert "POST" not in sent


def test_without_javascript(browser: Browser, base_url: str, log: Path) -> None:
    """The form is a plain POST: the same figures in a whole page."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{base_url}/traces")
    page.locator("#file").set_input_files(log)
    page.get_by_role("button", name="Measure").click()
    expect(page.locator("#reuse")).to_have_text("77.8 %")
    context.close()


def violations(page: Page) -> list[object]:
    """Return what axe finds on a page."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", ["/traces?example=conversations&pool=8GiB", "/fragmentation", "/fragmentation?lang=zh"]
)
def test_answers_are_accessible(path: str, scheme: str, browser: Browser, base_url: str) -> None:
    """No violation is found by axe where an answer is shown, all details open."""
    context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(base_url + path)
    for summary in page.locator("summary").all():
        summary.click()
    assert violations(page) == []
    context.close()


@pytest.mark.parametrize("path", ["/traces", "/traces?example=conversations", "/fragmentation"])
def test_a_phone_has_no_sideways_scroll(path: str, browser: Browser, base_url: str) -> None:
    """At 360 pixels nothing is wider than the screen."""
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(base_url + path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()
