"""Parquet files: a row group after the other, a column for each field of an event."""

import shutil
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope
from recallflow.connectors.logs.tables import Columns, TableReader
from recallflow.errors import UsageError

MAGIC = b"PAR1"
_BATCH_ROWS = 1024


def _recognises(head: Head) -> bool:
    return head.start.startswith(MAGIC)


def parquet_format(columns: Columns) -> LogFormat:
    """`columns`: those that somebody named; the others are guessed."""

    def read(source: LogSource, scope: Scope) -> Iterator[bytes]:
        from pyarrow import ArrowException  # takes as long to import as all else
        from pyarrow.parquet import ParquetFile

        with source.open() as file:
            try:
                # Not read ahead: a row group is held a column's page at a time, however large it is.
                table = ParquetFile(_seekable(file), pre_buffer=False, buffer_size=1024 * 1024)
                batches = table.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
                rows: Iterator[dict[str, Any] | bytes] = (row for batch in batches for row in _rows(batch))
                yield from TableReader(source.name, scope, columns).read(table.schema_arrow.names, rows)
            except (ArrowException, OSError) as error:
                reason = str(error).partition("\n")[0]
                raise UsageError(f"{source.name}: cannot be read as Parquet ({reason}); is it complete?") from None

    return LogFormat("parquet", "Parquet, with a column of texts", _recognises, read)


def _seekable(file: BinaryIO) -> BinaryIO:
    """Parquet is read from its end. What is decompressed on the way cannot be, and is copied to where it can."""
    if file.seekable():
        return file
    copy = TemporaryFile(prefix="recallflow-")  # noqa: SIM115 - for as long as it is read
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast("BinaryIO", copy)


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a record batch. Times are cut to microseconds, the finest that Python has; those that are out of its
    range are texts."""
    columns = []
    for column in batch.columns:
        try:
            columns.append(column.cast(_coarser(column.type), safe=False).to_pylist())
        except (ValueError, OverflowError):
            columns.append(column.cast("string").to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _coarser(kind: Any) -> Any:
    """The type with microseconds for nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_coarser(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(_coarser(kind.value_type))
    return kind
