"""The Parquet files of one run: one file for each day of puts, in the partitions ``date=YYYY-MM-DD/``."""

import os
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyarrow import parquet

from forwarder.archive.record import PART, flush

_MICROSECONDS_OF_A_DAY = 86_400_000_000
_ROW_GROUP_BYTES = 64 << 20  # the largest row group in memory, unless one message is larger


class DatedFiles:
    """Writes rows to temporary files. The end of the block removes the files, unless ``release`` was called.

    Args:
        prefix: the beginning of the files' temporary names.
        row_group: the largest number of rows in a row group.
    """

    def __init__(self, directory: str, prefix: str, schema: pa.Schema, row_group: int) -> None:
        self._directory, self._prefix, self._schema, self._row_group = directory, prefix, schema, row_group
        self._files: list[tuple[str, str]] = []  # the temporary name and the date of each file
        self._writer: parquet.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []  # the rows of the next row group
        self._rows = self._bytes = 0  # in ``_waiting``

    def __enter__(self) -> Self:
        return self

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows. Rows of one day that follow each other are in one file."""
        first = 0
        times: list[int] = batch.column("enqueued_at").cast(pa.int64()).to_pylist()  # type: ignore[assignment]
        for day, rows in groupby(time // _MICROSECONDS_OF_A_DAY for time in times):
            count = sum(1 for _ in rows)
            self._add(f"{datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}", batch.slice(first, count))
            first += count

    def _add(self, date: str, batch: pa.RecordBatch) -> None:
        if not self._files or self._files[-1][1] != date:
            self._close_file()
            name = f"{self._prefix}{len(self._files)}{PART}"
            self._files.append((name, date))
            self._writer = parquet.ParquetWriter(os.path.join(self._directory, name), self._schema)
        self._waiting.append(batch)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + batch.nbytes
        if self._rows >= self._row_group or self._bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._writer is not None and self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._row_group)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def _close_file(self) -> None:
        """Complete the present file, and flush it."""
        if self._writer is None:
            return
        self._write_group()
        writer, self._writer = self._writer, None
        writer.close()
        flush(os.path.join(self._directory, self._files[-1][0]))

    def finish(self, stem: str) -> tuple[tuple[str, str], ...]:
        """Make the files durable. Return the temporary and the final name of each file.

        ``stem``: the beginning of the files' final names.
        """
        self._close_file()
        flush(self._directory)
        return tuple(
            (name, f"date={date}/{stem}{f'-{place}' if place else ''}.parquet")
            for place, (name, date) in enumerate(self._files)
        )

    def release(self) -> None:
        """Leave the files to the caller. The end of the block no longer removes the files."""
        self._files.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # the disk is full: the file is removed anyway
            if self._writer is not None:
                self._writer.close()
        for name, _ in self._files:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, name))
