"""A process of the lab's own, so that its work never stands in a server's way and can be killed.

Loading torch, or one long product, can hold an interpreter for longer than a server may be silent,
and a run that has hung can be ended by nothing less than ending its process. The process is started
by the first job, kept for the next ones, and ends with the server.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from app.demo.budget import DEFAULT_SECONDS, LabSlot, RunStopped
from app.domain.errors import DomainError
from app.domain.notes import Note

# Read by the array libraries when they are loaded: one thread, since others need the cores and a
# measured time should not depend on how many are free.
_THREAD_LIMITS = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# A run ends itself at its limit; one that does not is killed after this many seconds more, within
# which a first job also has to load its libraries.
GRACE_SECONDS = 30.0

_CANCELLED = Note("cancelled", "The run was cancelled.")
_ENDED = Note("lab_ended", "The lab's process ended before it had an answer.")


@dataclass(frozen=True, slots=True)
class _Child:
    """A started process and this side's ends of the two pipes to it."""

    process: BaseProcess
    jobs: Connection
    answers: Connection


class LabProcess:
    """One process for one job at a time.

    A caller waits at most `patience_s` for the job before it; 0 tells it at once.
    """

    def __init__(self, *, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s
        self._slot = LabSlot()
        self._child: _Child | None = None

    def start(
        self,
        kind: str,
        *,
        seconds: float = DEFAULT_SECONDS,
        grace_s: float = GRACE_SECONDS,
        **arguments: object,
    ) -> LabRun:
        """Start a job of `app.demo.jobs` and return it as it runs.

        Raises:
            LabBusy: while another job runs.

        """
        with ExitStack() as held:
            held.enter_context(self._slot.hold(patience_s=self._patience_s))
            if self._child is None or not self._child.process.is_alive():
                self._child = _started()
            self._child.jobs.send((kind, {"seconds": seconds, **arguments}))
            return LabRun(self._child, held.pop_all(), seconds + grace_s)

    def end(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.process.kill()
            self._child.process.join()
            self._child = None


class LabRun:
    """A job as it runs: iterate for its results.

    It holds its place until it has ended or is closed; as a context it closes itself.
    """

    def __init__(self, child: _Child, held: ExitStack, limit_s: float) -> None:
        self._child = child
        self._held = held
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._ending = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        """Return the run itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the job, if it has not ended."""
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """Return the run itself."""
        return self

    def __next__(self) -> Any:
        """Return the next result, waiting for it.

        Raises:
            DomainError: as the job did.
            RunStopped: when it was over its time, was closed from elsewhere, or its process ended.
            RuntimeError: for an error that is a defect of the job.

        """
        if self._is_over:
            raise StopIteration
        what, value = self._received()
        if what == "result":
            return value
        self._finish(kill=False)
        if what == "refused":
            kind, template, field, params = value
            raise kind(template, field=field, **params)
        if what == "stopped":
            raise RunStopped(value)
        if what == "failed":
            raise RuntimeError(value)
        raise StopIteration

    def close(self) -> None:
        """End the job, by ending its process if it is not done. May be called from any thread."""
        self._finish(kill=True)

    def _received(self) -> tuple[str, Any]:
        try:
            if self._child.answers.poll(max(0.0, self._deadline - time.monotonic())):
                received: tuple[str, Any] = self._child.answers.recv()
                return received
        except (EOFError, OSError):
            was_closed = self._is_over
            self.close()
            raise RunStopped(_CANCELLED if was_closed else _ENDED) from None
        self.close()
        raise RunStopped(
            Note(
                "over_time",
                "The run was stopped after {seconds} seconds.",
                {"seconds": f"{self._limit_s:g}"},
            )
        )

    def _finish(self, *, kill: bool) -> None:
        with self._ending:
            if self._is_over:
                return
            self._is_over = True
            if kill:
                self._child.process.kill()
                # Until it is seen to be gone, it would pass for a process that takes another job.
                self._child.process.join()
            self._held.close()


def _started() -> _Child:
    """Start a process; it is told to end when this one does, and sees its pipe close in any case.

    Spawned, not forked: a server has threads, and a fork would copy their locks.
    """
    context = multiprocessing.get_context("spawn")
    jobs_out, jobs_in = context.Pipe(duplex=False)
    answers_out, answers_in = context.Pipe(duplex=False)
    process = context.Process(
        target=_serve, args=(jobs_out, answers_in), name="kv-ledger-lab", daemon=True
    )
    process.start()
    # This side's copies would keep the pipes open after the process has ended.
    jobs_out.close()
    answers_in.close()
    return _Child(process=process, jobs=jobs_in, answers=answers_out)


def _serve(jobs: Connection, answers: Connection) -> None:
    """Take jobs until there is nobody to give them."""
    # Ctrl-C goes to every process of a terminal; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(_THREAD_LIMITS, "1"))
    try:
        while True:
            kind, arguments = jobs.recv()
            _do(answers, kind, arguments)
    except (EOFError, BrokenPipeError):
        return


def _do(answers: Connection, kind: str, arguments: dict[str, Any]) -> None:
    """Do one job and send what comes of it, errors included."""
    from app.demo.jobs import JOBS  # noqa: PLC0415 - loads NumPy, after its threads are limited

    try:
        for result in JOBS[kind](**arguments):
            answers.send(("result", result))
    except DomainError as error:
        # An exception of several keyword arguments does not survive being pickled.
        params = {name: value for name, value in error.params.items() if name != "field"}
        answers.send(("refused", (type(error), error.template, error.field, params)))
    except RunStopped as stopped:
        answers.send(("stopped", stopped.note))
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 - the defect is shown where the job was asked for
        answers.send(("failed", traceback.format_exc()))
    else:
        answers.send(("end", None))
