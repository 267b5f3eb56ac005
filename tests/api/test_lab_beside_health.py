"""A server stays responsive while its lab works: `/healthz` answers within a tenth of a second."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

LIMIT_SECONDS = 0.1
TRIES = 5
START_SECONDS = 30
LONG = {"experiment": "error_by_length", "length_tokens": 512}


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    """Return the address of a server of one worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", str(port), "--workers", "1"],
        cwd=root,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{address}/healthz", timeout=1)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    yield address
    server.terminate()
    server.wait(timeout=10)


def health_seconds(url: str, work: threading.Thread) -> list[float]:
    """Return how long each of the answers to /healthz took while `work` ran, shortest first."""
    seconds = []
    with httpx.Client(base_url=url, timeout=60) as client:
        client.get("/healthz")
        work.start()
        while work.is_alive():
            started = time.perf_counter()
            assert client.get("/healthz").status_code == 200
            seconds.append(time.perf_counter() - started)
            time.sleep(0.005)
    return sorted(seconds)


LARGE = {
    "query": [0.5] * 256, "past_keys": [[0.25] * 256] * 250, "past_values": [[2.0] * 256] * 250,
    "new_key": [0.25] * 256, "new_value": [2.0] * 256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/api/v1/attention/experiments", {"json": LONG}),
        ("/api/v1/attention", {"json": LARGE}),
        ("/cost/measured", {"data": {"lab_device": "auto"}}),
    ],
)
def test_health_answers_while_the_lab_works(url: str, path: str, sent: dict[str, Any]) -> None:
    """An experiment, the largest question or a measured run holds nobody up.

    A blocked loop would answer once or twice, late; of many answers one in twenty may wait for
    others who use the machine, and so it is tried a few times.
    """
    seen = []
    for _ in range(TRIES):
        work = threading.Thread(
            target=httpx.post, args=(url + path,), kwargs={**sent, "timeout": 60}
        )
        seconds = health_seconds(url, work)
        slow = seconds[len(seconds) * 19 // 20]
        seen.append((round(slow, 3), len(seconds)))
        if slow < LIMIT_SECONDS:
            return
    pytest.fail(f"/healthz took too long: {seen}")
