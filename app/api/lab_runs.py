"""The lab's two processes in this worker: short answers queue for theirs, long runs do not.

A run that would have to wait is refused as busy, and one whose caller has gone is ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from app.api.problems import REFUSED, Problem, Problems
from app.demo.budget import LabBusy, RunStopped
from app.demo.process import LabProcess, LabRun

ANSWER_SECONDS = 10.0
RUN_SECONDS = 20.0
# How long an answer may wait for the answers before it; each takes milliseconds.
PATIENCE_SECONDS = 5.0
# A cancelled run is ended when its connection is seen to be gone, a little after the click.
MOMENTS, MOMENT_SECONDS = 20, 0.1
BUSY_STATUS = 429
RETRY_AFTER_SECONDS = 5

LAB_REFUSED: dict[int | str, dict[str, Any]] = {
    **REFUSED,
    BUSY_STATUS: {"model": Problems, "description": "Another run has the lab; try again."},
}

ANSWERS = LabProcess(patience_s=PATIENCE_SECONDS)
RUNS = LabProcess()

_END = object()


async def started(start: Callable[[], LabRun]) -> LabRun:
    """Start a run; one that its caller has just cancelled has a moment to end.

    Raises:
        LabBusy: while another run has the lab, and keeps it.

    """
    for _ in range(MOMENTS):
        try:
            return start()
        except LabBusy:
            await anyio.sleep(MOMENT_SECONDS)
    return start()


async def collected(request: Request, run: LabRun) -> list[Any]:
    """Return all results of a run, and end it when its caller goes away.

    Raises:
        RunStopped: when it was ended before its last result.
        DomainError: as the job did.

    """
    with run:
        async with anyio.create_task_group() as watching:
            watching.start_soon(_close_when_gone, request, run)
            try:
                # Exceptions come out of here as they are, not in a group.
                results = await anyio.to_thread.run_sync(_results, run)
            finally:
                watching.cancel_scope.cancel()
    if isinstance(results, Exception):
        raise results
    return results


async def as_they_come(run: LabRun) -> AsyncIterator[Any]:
    """Yield the results of a run one by one; a caller that stops early ends the run.

    Raises:
        RunStopped: when it was ended before its last result.
        DomainError: as the job did.

    """
    with run:
        while True:
            result = await anyio.to_thread.run_sync(next, run, _END, abandon_on_cancel=True)
            if result is _END:
                return
            yield result


def _results(run: LabRun) -> list[Any] | Exception:
    try:
        return list(run)
    except Exception as error:  # noqa: BLE001 - raised again outside of the task group
        return error


async def _close_when_gone(request: Request, run: LabRun) -> None:
    """End the run when the caller has gone; what else comes in is the rest of its body."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    run.close()


def install(app: FastAPI) -> None:
    """Let `app` answer a busy lab with 429 and a stopped run with 422, in the shape of refusals."""

    @app.exception_handler(LabBusy)
    async def busy(_: Request, error: LabBusy) -> JSONResponse:
        found = _problems(error.note.code, error.note.text)
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        return JSONResponse(found, status_code=BUSY_STATUS, headers=headers)

    @app.exception_handler(RunStopped)
    async def stopped(_: Request, error: RunStopped) -> JSONResponse:
        return JSONResponse(_problems(error.note.code, error.note.text), status_code=422)


def _problems(code: str, text: str) -> dict[str, Any]:
    return Problems(detail=[Problem(loc=["body"], msg=text, type=code)]).model_dump()
