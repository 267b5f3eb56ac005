"""What keeps a run from holding a server: a time limit, a cancel, and one run at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.domain.notes import Note

DEFAULT_SECONDS = 20.0


class RunStopped(Exception):
    """A run that ended before its result; `note` says why, for the page to translate."""

    def __init__(self, note: Note) -> None:
        self.note = note
        super().__init__(note.text)


class LabBusy(Exception):
    """Another run holds the lab."""

    def __init__(self) -> None:
        self.note = Note("lab_busy", "The lab is busy with another run; try again when it ends.")
        super().__init__(self.note.text)


def _never() -> bool:
    return False


class Budget:
    """A time limit and a cancel, polled between the steps of a run."""

    def __init__(
        self,
        *,
        seconds: float = DEFAULT_SECONDS,
        cancelled: Callable[[], bool] = _never,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._cancelled = cancelled
        self._clock = clock
        self._started = clock()

    def check(self) -> None:
        """Return while the run may go on.

        Raises:
            RunStopped: once it was cancelled or has used its time.

        """
        if self._cancelled():
            raise RunStopped(Note("cancelled", "The run was cancelled."))
        if self._clock() - self._started > self._seconds:
            raise RunStopped(
                Note(
                    "over_time",
                    "The run was stopped after {seconds} seconds.",
                    {"seconds": f"{self._seconds:g}"},
                )
            )


class LabSlot:
    """The one place where a lab run may be; a second caller is told that it is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, *, patience_s: float = 0.0) -> Iterator[None]:
        """Hold the slot for the length of a `with` block.

        Raises:
            LabBusy: when it is held already and does not come free within `patience_s`.

        """
        if not self._lock.acquire(timeout=patience_s):
            raise LabBusy
        try:
            yield
        finally:
            self._lock.release()
