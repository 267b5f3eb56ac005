"""What the readers of binary headers share: the error for bytes that end too early."""

from __future__ import annotations

from typing import NoReturn

from app.domain.errors import Malformed
from app.domain.notes import Note

# Headers of public checkpoints stay under 30 MB (a GGUF's vocabulary, a shard's tensor list).
MAX_HEADER_BYTES = 64 * 2**20
# What says one model: its config, its index and the headers of its shards.
MAX_FILES = 64


class HeaderTruncated(Malformed):
    """The bytes given end inside the header; `more_bytes` at least are missing."""

    def __init__(self, field: str, *, part: Note, have_bytes: int, more_bytes: int) -> None:
        self.more_bytes = more_bytes
        super().__init__(
            "{field} ends inside {part}: {have_bytes} bytes were given, at least {more_bytes} "
            "more are needed",
            field=field,
            part=part,
            have_bytes=have_bytes,
            more_bytes=more_bytes,
        )


def refuse_truncated(field: str, part: Note, *, have_bytes: int, need_bytes: int) -> NoReturn:
    """Raise the right error for a header that claims to reach `need_bytes`.

    Raises:
        HeaderTruncated: when more bytes would help.
        Malformed: when the header claims more than any header may hold.

    """
    if need_bytes > MAX_HEADER_BYTES:
        raise Malformed(
            "{field} claims a header of at least {need_bytes} bytes in {part}; "
            "at most {limit_bytes} are read",
            field=field,
            part=part,
            need_bytes=need_bytes,
            limit_bytes=MAX_HEADER_BYTES,
        )
    raise HeaderTruncated(
        field, part=part, have_bytes=have_bytes, more_bytes=need_bytes - have_bytes
    )
