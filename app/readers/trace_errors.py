"""The one way in which a log is refused: with the line that cannot be read."""

from __future__ import annotations

from app.domain.errors import Malformed


class TraceMistake(Malformed):
    """A log that cannot be read; `line` counts from 1. A row of a Parquet file counts as a line."""

    def __init__(self, template: str, *, line: int, **params: object) -> None:
        self.line = line
        super().__init__(template, field="trace", line=line, **params)
