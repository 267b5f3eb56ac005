"""What was read from the Hub before, on disk, under a bound.

Only what anyone may read is kept: an answer to a token is never written. A file of a commit never
changes, so it is kept as long as there is room; which commit a branch stands at is asked again
after a few minutes. Least recently used entries go first.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

BRANCH_SECONDS = 300
_SUFFIX = ".hub"
# A file system gives space in such pieces, which is what the bound is about.
_PIECE_BYTES = 4096


def default_folder() -> Path | None:
    """Return the user's cache folder for this program (XDG base directories).

    A user without a home, as in a container that runs as any number, has none.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "kv-ledger" / "hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCache:
    """Entries by key in one folder; a folder that cannot be written makes every look-up a miss."""

    folder: Path
    limit_bytes: int

    def get(self, *key: str, newer_than_s: float | None = None) -> bytes | None:
        """Return an entry, or None; with `newer_than_s`, only one that was written since."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            if newer_than_s is not None and time.time() - path.stat().st_mtime > newer_than_s:
                return None
            data = path.read_bytes()
            if newer_than_s is None:
                os.utime(path)  # used now; an entry with an age keeps its own
            return data
        return None

    def put(self, data: bytes, *key: str) -> None:
        """Keep an entry, and drop the least recently used ones until all fit."""
        if _size_on_disk(len(data)) > self.limit_bytes:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                Path(name).replace(self._path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._shrink()

    def drop(self, *key: str) -> None:
        """Forget an entry (one that turned out to be unreadable)."""
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: tuple[str, ...]) -> Path:
        digest = sha256("\0".join(key).encode()).hexdigest()
        return self.folder / f"{digest}{_SUFFIX}"

    def _shrink(self) -> None:
        entries = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may have dropped it
                if path.suffix == _SUFFIX:
                    about = path.stat()
                    entries.append((about.st_mtime, _size_on_disk(about.st_size), path))
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        entries.sort(reverse=True)
        while excess > 0:
            _, size, path = entries.pop()
            path.unlink(missing_ok=True)
            excess -= size


def _size_on_disk(length: int) -> int:
    return -(-length // _PIECE_BYTES) * _PIECE_BYTES
