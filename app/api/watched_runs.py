"""A computation in a thread that the event loop watches, and stops when nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from app.readers.traces import Progress, TraceCancelled

T = TypeVar("T")

# Each keeps one core busy, and no request may have to wait long for the interpreter.
THREADS = 2
# How often it is looked whether a waiting caller is still there.
LOOK_SECONDS = 0.2
# What servers answer to nobody: the caller has gone.
GONE_STATUS = 499

_limiters: list[anyio.CapacityLimiter] = []


def _threads() -> anyio.CapacityLimiter:
    """Return the limit that all runs share, made inside the running loop."""
    if not _limiters:
        _limiters.append(anyio.CapacityLimiter(THREADS))
    return _limiters[0]


class WatchedRun(Generic[T]):
    """One call of `compute` in a thread; it is given the callback that tells how far it is.

    `started` is false while it waits for a thread; `read_bytes` and `requests` are what the
    callback was told last.
    """

    def __init__(self, compute: Callable[[Progress], T]) -> None:
        self.started = False
        self.read_bytes = 0
        self.requests = 0
        self._cancelled = False
        self._task = asyncio.create_task(self._in_thread(compute))

    async def _in_thread(self, compute: Callable[[Progress], T]) -> T:
        def run() -> T:
            self.started = True
            return compute(self._progress)

        return await anyio.to_thread.run_sync(run, limiter=_threads(), abandon_on_cancel=True)

    def _progress(self, read_bytes: int, requests: int) -> None:
        if self._cancelled:
            raise TraceCancelled
        self.read_bytes, self.requests = read_bytes, requests

    async def wait(self, seconds: float) -> bool:
        """Wait at most so long, and return whether the run is over."""
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        return bool(done)

    def result(self) -> T:
        """Return what the run that is over came to, or raise what it raised."""
        return self._task.result()

    def cancel(self) -> None:
        """Let the thread end at its next callback; what it comes to is dropped."""
        self._cancelled = True
        self._task.cancel()


async def result_for(request: Request, run: WatchedRun[T]) -> T:
    """Return a run's result, unless whoever asked goes away before.

    Raises:
        TraceCancelled: when nobody waits any more.

    """
    try:
        while not await run.wait(LOOK_SECONDS):
            if await request.is_disconnected():
                raise TraceCancelled
        return run.result()
    finally:
        run.cancel()
