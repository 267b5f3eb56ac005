"""A served application and a Chromium that reports every console line and refusal."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Playwright, Request, expect, sync_playwright

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
START_SECONDS = 60
# A busy machine draws and answers late; what is wrong stays wrong for longer than this.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def base_url(root: Path) -> Iterator[str]:
    """Return the address of a server that lives as long as the tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", str(port)],
        cwd=root,
        env={**os.environ, "WEB_CONCURRENCY": "1"},
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield url
    server.terminate()
    assert server.wait(timeout=10) == 0 or server.returncode < 0


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """Return a started Playwright."""
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Return Debian's Chromium where it is installed, else Playwright's own."""
    path = shutil.which("chromium")
    started = playwright.chromium.launch(executable_path=path, args=FLAGS)
    yield started
    started.close()


@dataclass
class Watched:
    """A page, and all that it complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)


def note_failure(seen: Watched, request: Request) -> None:
    """Note a request that failed; one that its page's own leaving ended is no fault."""
    if request.failure != "net::ERR_ABORTED":
        seen.complaints.append(f"failed: {request.url}")


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """Return a page in English and light; afterwards it must not have complained."""
    context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 900})
    seen = Watched(page=context.new_page())
    seen.page.on(
        "console",
        lambda line: (
            seen.complaints.append(f"{line.type}: {line.text}")
            if line.type in {"error", "warning"}
            else None
        ),
    )
    seen.page.on("pageerror", lambda error: seen.complaints.append(f"exception: {error}"))
    seen.page.on("requestfailed", lambda it: note_failure(seen, it))
    yield seen
    context.close()
    assert seen.complaints == []
