"""Every page: no complaint in the console, no accessibility violation, in both themes."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from app.pages.navigation import NAVIGATION

pytestmark = pytest.mark.browser

PAGES = [item.path for item in NAVIGATION] + ["/?lang=zh"]
# Swagger UI's own markup is not ours to mend; its page is checked for complaints only.
OTHERS = ["/docs"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing(path: str, scheme: str, browser: Browser, base_url: str) -> None:
    """Nothing that axe calls a violation is on the page in this theme."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(base_url + path)
    found = Axe().run(page)
    summary = [
        (item["id"], [node["target"] for node in item["nodes"]][:3])
        for item in found.response["violations"]
    ]
    context.close()
    assert summary == []


@pytest.mark.parametrize("path", PAGES + OTHERS)
def test_no_complaint(path: str, browser: Browser, base_url: str) -> None:
    """The console stays silent: no error, no refusal by the policy, no failed request."""
    context = browser.new_context()
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console",
        lambda line: complaints.append(line.text) if line.type in {"error", "warning"} else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto(base_url + path)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    page.wait_for_load_state("networkidle")
    seen = list(complaints)  # closing ends what is under way, which is no fault
    context.close()
    assert seen == []
