"""What a call costs beside a bare echo of the same shapes, and a page beside its budget.

The small call is asked of two servers, ours and the echo, over a kept connection, and the CPU time
of the server processes is compared; all else is driven through the ASGI interface of one process,
so that the client does not count. Figures are the best of several rounds, and the two sides of a
ratio are measured in turn within one round.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

ROUNDS = 7
ROOT = Path(__file__).resolve().parents[1]
MILLION = 1_000_000
Application = Callable[..., Coroutine[Any, Any, None]]


async def call(
    app: Application, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    """Send one request through the ASGI interface and return the answer's body."""
    target, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
        "method": "GET" if body is None else "POST", "path": target, "raw_path": target.encode(),
        "query_string": query.encode(), "root_path": "", "server": ("bench", 80),
        "client": ("bench", 1), "state": {},
        "headers": [(b"content-type", b"application/json"), (b"host", b"bench"),
                    *((k.encode(), v.encode()) for k, v in (headers or {}).items())],
    }  # fmt: skip
    parts: list[bytes] = []
    status = 0

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    if status != 200:
        raise RuntimeError(f"{path}: {status} {b''.join(parts)[:200]!r}")
    return b"".join(parts)


def cpu_ms(run: Callable[[], Coroutine[Any, Any, Any]], times: int) -> float:
    """Return the CPU milliseconds of one of `times` calls."""

    async def loop() -> float:
        await run()
        started = time.process_time()
        for _ in range(times):
            await run()
        return (time.process_time() - started) * 1000 / times

    return asyncio.run(loop())


def best(sides: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return each side's smallest figure, the sides taken in turn."""
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            seen[name].append(measure())
    return {name: min(values) for name, values in seen.items()}


def echo_app() -> Application:
    """Return a bare FastAPI application that echoes the same request and answer shapes."""
    from fastapi import FastAPI

    from app.api.answers import LedgersAnswer
    from app.api.compute import answer_ledgers
    from app.api.schemas import LedgersRequest

    canned: dict[int, LedgersAnswer] = {}
    app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False})

    async def echo(request: LedgersRequest) -> LedgersAnswer:
        key = len(request.lengths)
        if key not in canned:
            canned[key] = answer_ledgers(request)
        return canned[key]

    # The framework reads annotations as values; here they are names of this function's own imports.
    echo.__annotations__ = {"request": LedgersRequest, "return": LedgersAnswer}
    app.post("/api/v1/ledgers")(echo)
    return app


class Served:
    """A server in a process of its own, and the CPU time that it has used."""

    def __init__(self, factory: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", factory, "--factory", "--port", str(self.port),
             "--http", "httptools", "--no-access-log", "--log-level", "error"],
            cwd=ROOT, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)

    def post(self, path: str, body: bytes) -> bytes:
        """Send one request over the kept connection."""
        self.connection.request("POST", path, body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:200]!r}")
        return content

    def ready(self, path: str, body: bytes) -> None:
        """Wait for the first answer."""
        for _ in range(300):
            try:
                self.post(path, body)
            except OSError:
                self.connection.close()
                time.sleep(0.1)
            else:
                return
        raise RuntimeError("no server")

    def cpu_ms(self, path: str, body: bytes, times: int) -> float:
        """Return the server's CPU milliseconds per request."""
        before = self._ticks()
        for _ in range(times):
            self.post(path, body)
        return (self._ticks() - before) * 1000 / os.sysconf("SC_CLK_TCK") / times

    def _ticks(self) -> int:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[11]) + int(stat[12])

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()


def small_call() -> None:
    """Compare a call of 32 lengths with the echo: server CPU over a real connection."""
    draw = random.Random(1)
    body = json.dumps(
        {
            "model": {"layers": 32, "kv_heads": 8, "head_dim": 128},
            "kv_dtype": "fp16",
            "lengths": [draw.randrange(1, 32_768) for _ in range(32)],
        }
    ).encode()
    path = "/api/v1/ledgers"
    ours, echo = Served("app.served:served_app"), Served("benchmarks.ledgers:echo_app")
    try:
        ours.ready(path, body)
        echo.ready(path, body)
        figures = best(
            {
                "ledgers": lambda: ours.cpu_ms(path, body, 500),
                "echo": lambda: echo.cpu_ms(path, body, 500),
            }
        )
    finally:
        ours.stop()
        echo.stop()
    ratio = figures["ledgers"] / figures["echo"]
    print(f"call of 32 lengths: {ratio:.2f} × a bare echo of the same shapes (aim ≤ 1.5)")
    print(f"  {figures['ledgers']:.3f} ms against {figures['echo']:.3f} ms of server CPU")


def million() -> None:
    """Compare a million lengths, listed and as counts, with parsing and adding them up."""
    from app.main import create_app

    ours = create_app()
    draw = random.Random(2)
    lengths = [draw.randrange(1, 32_768) for _ in range(MILLION)]
    model = {"model": {"layers": 32, "kv_heads": 8, "head_dim": 128}, "kv_dtype": "fp16"}
    listed = json.dumps({**model, "lengths": lengths, "limit": 0}).encode()
    seen: dict[int, int] = {}
    for length in lengths:
        seen[length] = seen.get(length, 0) + 1
    counts = [{"length": length, "count": count} for length, count in seen.items()]
    counted = json.dumps({**model, "lengths": counts, "limit": 0}).encode()

    def parse_and_sum() -> float:
        started = time.process_time()
        sum(json.loads(listed)["lengths"])
        return (time.process_time() - started) * 1000

    figures = best(
        {
            "parse": parse_and_sum,
            "listed": lambda: cpu_ms(lambda: call(ours, "/api/v1/ledgers", listed), 1),
            "counted": lambda: cpu_ms(lambda: call(ours, "/api/v1/ledgers", counted), 1),
        },
        rounds=5,
    )
    parse = figures["parse"]
    print(f"a million lengths listed: {figures['listed'] / parse:.2f} × parse and sum (aim ≤ 2)")
    print(f"  the same as counts: {figures['counted'] / parse:.2f} ×; parse and sum {parse:.0f} ms")


def page() -> None:
    """Measure the first page and its fragment."""
    from app.main import create_app

    ours = create_app()
    partial = {"hx-request": "true"}
    query = "/?model=meta-llama%2FLlama-3.1-8B&lengths=17,31,32"
    figures = best(
        {
            "page": lambda: cpu_ms(lambda: call(ours, query), 50),
            "fragment": lambda: cpu_ms(lambda: call(ours, query, headers=partial), 50),
        }
    )
    print(f"fragment: {figures['fragment']:.2f} ms of CPU (aim ≤ 3)")
    print(f"page: {figures['page']:.2f} ms of CPU (aim ≤ 8)")


_FIRST_ANSWER = """
import asyncio, re, sys, time
started = time.perf_counter()
from app.served import served_app
from benchmarks.ledgers import call
app = served_app()
asyncio.run(call(app, sys.argv[1]))
took = time.perf_counter() - started
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(took, int(peak[1]) / 1000)
"""


def first_answer() -> None:
    """Measure time and memory from a fresh interpreter to the first answer."""
    for path in ("/healthz", "/"):
        rows = []
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", _FIRST_ANSWER, path],
                capture_output=True, text=True, check=True, cwd=ROOT,
            )  # fmt: skip
            rows.append(tuple(float(word) for word in done.stdout.split()[-2:]))
        seconds, mebibytes = min(rows)
        print(f"first answer of {path}: {seconds:.2f} s, {mebibytes:.0f} MB (aim ≤ 1 s, 100 MB)")


def wire() -> None:
    """Add up what a first visit brings over the wire, brotli where the server has it."""
    from app.main import create_app
    from app.web import assets

    ours = create_app()
    html = asyncio.run(call(ours, "/", headers={"accept-encoding": "br"}))
    names = ["app.css", "plotly.css", "app.js", "icon.svg", "vendor/htmx-4.0.1.min.js",
             "vendor/plotly-basic-4.1.1.min.js"]  # fmt: skip
    sizes = {"page": len(html)}
    for name in names:
        path = assets.asset_url(name)
        sizes[name] = len(asyncio.run(call(ours, path, headers={"accept-encoding": "br"})))
    total = sum(sizes.values())
    chart = sizes["vendor/plotly-basic-4.1.1.min.js"]
    print(f"first visit: {total / 1000:.0f} kB over the wire (aim ≤ 450), chart {chart / 1000:.0f}")
    print(f"  before the chart: {(total - chart) / 1000:.0f} kB")


def main() -> None:
    """Print every figure."""
    small_call()
    million()
    page()
    first_answer()
    wire()


if __name__ == "__main__":
    main()
