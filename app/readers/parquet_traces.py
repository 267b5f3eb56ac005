"""Request logs in Parquet, a few hundred rows at a time; pyarrow is imported only here.

The columns have the same names as the fields of the other forms. What a file claims of itself is
checked before its rows are unpacked: a few bytes of Parquet can stand for any number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from os import SEEK_END
from typing import IO, TYPE_CHECKING, Any

from app.domain.errors import Malformed, OutOfRange, Unsupported
from app.readers.column_names import (
    HASH_NAMES,
    INPUT_NAMES,
    OUTPUT_NAMES,
    TIME_NAMES,
    TOKEN_NAMES,
    pick_name,
)
from app.readers.trace_errors import TraceMistake
from app.readers.trace_formats import RecordForm, TraceOptions
from app.readers.traces import ArrivalOrder, Progress, no_progress

if TYPE_CHECKING:
    from app.domain.notes import Note
    from app.domain.traces import TraceRequest

BATCH_ROWS = 512
MAX_GROUP_VALUES = 20_000_000
MAX_GROUP_BYTES = 1 << 30


class ParquetReader:
    """The requests of a Parquet file, to be iterated once; a row counts as a line from 1."""

    def __init__(
        self,
        file: IO[bytes],
        options: TraceOptions | None = None,
        *,
        progress: Progress = no_progress,
    ) -> None:
        """Take a file that can seek.

        Raises:
            Unsupported: where pyarrow is not installed (the extra `parquet`).

        """
        try:
            import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to import
            from pyarrow import parquet  # noqa: PLC0415 - the same
        except ImportError:
            raise Unsupported(
                "{field}: reading Parquet needs pyarrow (kv-ledger[parquet]); JSON lines and CSV"
                " do not",
                field="trace",
            ) from None
        self._arrow = pa
        self._parquet = parquet
        self.form = "Parquet"
        self.notes: tuple[Note, ...] = ()
        self.block_tokens: int | None = None
        self.requests = 0
        self._file = file
        self._options = options or TraceOptions()
        self._progress = progress

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests.

        Raises:
            Malformed: for what is no Parquet file, or a damaged one.
            OutOfRange: for a row group too large to be unpacked.
            TraceMistake: for a row that cannot be read, or a time before the one before it.

        """
        file = self._opened()
        # Before any row is unpacked: a column that is missing is missing at the first line.
        RecordForm(1, dict.fromkeys(file.schema_arrow.names, ""), self._options, "s")
        columns = [
            name
            for wanted in (TIME_NAMES, INPUT_NAMES, OUTPUT_NAMES, HASH_NAMES, TOKEN_NAMES)
            if (name := pick_name(file.schema_arrow.names, wanted)) is not None
        ]
        options = self._options_for(file)
        size_bytes = self._file.seek(0, SEEK_END)
        form: RecordForm | None = None
        order = ArrivalOrder()
        for batch in self._batches(file, columns):
            for row in batch:
                line = self.requests + 1
                if form is None:
                    form = RecordForm(line, row, options, "s")
                    self.form = f"Parquet, {form.name}"
                    self.notes, self.block_tokens = tuple(form.notes), form.block_tokens
                request = form.read(line, row)
                order.check(line, request)
                self.requests += 1
                yield request
            self._progress(size_bytes * self.requests // file.metadata.num_rows, self.requests)
        if form is None:
            raise TraceMistake("line {line}: the log ends without a request", line=1)

    def _opened(self) -> Any:
        try:
            file = self._parquet.ParquetFile(self._file)
        except (self._arrow.ArrowException, OSError):
            raise Malformed("{field} is not a Parquet file", field="trace") from None
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            values = max(
                (group.column(at).num_values for at in range(group.num_columns)), default=0
            )
            if values > MAX_GROUP_VALUES or group.total_byte_size > MAX_GROUP_BYTES:
                raise OutOfRange(
                    "{field}: row group {index} has {values} values in {value} bytes; at most"
                    " {most_values} in {high} are unpacked at once: write smaller groups",
                    field="trace",
                    index=index,
                    values=values,
                    value=group.total_byte_size,
                    most_values=MAX_GROUP_VALUES,
                    high=MAX_GROUP_BYTES,
                )
        return file

    def _options_for(self, file: Any) -> TraceOptions:
        """Return the options, in nanoseconds where the file says that its times are times."""
        name = pick_name(file.schema_arrow.names, TIME_NAMES)
        if name is None or not self._arrow.types.is_timestamp(file.schema_arrow.field(name).type):
            return self._options
        return replace(self._options, time_unit="ns")

    def _batches(self, file: Any, columns: list[str]) -> Iterator[list[dict[str, object]]]:
        """Yield rows, a batch at a time, with times as integers."""
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=columns)
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                rows = [self._plain(batch.column(name)) for name in columns]
            except (self._arrow.ArrowException, OSError):
                raise TraceMistake(
                    "line {line} and those after it cannot be unpacked", line=self.requests + 1
                ) from None
            yield [dict(zip(columns, row, strict=True)) for row in zip(*rows, strict=True)]

    def _plain(self, column: Any) -> list[object]:
        if self._arrow.types.is_timestamp(column.type):
            column = column.cast(self._arrow.timestamp("ns")).cast(self._arrow.int64())
        values: list[object] = column.to_pylist()
        return values
