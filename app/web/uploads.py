"""Where the parts of an upload wait while they are read."""

from __future__ import annotations

import tempfile

from starlette.formparsers import MultiPartParser


def hold_uploads(limit_bytes: int) -> None:
    """Keep parts in memory where no folder can be written, as in a read-only container.

    Starlette moves a part of more than a megabyte to a temporary file, which would then fail.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        MultiPartParser.spool_max_size = limit_bytes + 1
