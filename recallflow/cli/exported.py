"""Where an export goes: JSON lines or Parquet, into a file or to standard output."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from recallflow.errors import UsageError
from recallflow.private_files import FILE_MODE

FORMATS = ("jsonl", "parquet")
GROUP_ROWS = 20_000  # of a row group, unless its texts come to GROUP_BYTES before
GROUP_BYTES = 32 * 1024 * 1024

# Columns of Parquet → what is in them. `json`: an object or a list, as text.
MEMORIES: Mapping[str, str] = {
    "type": "text", "id": "text", "memory_id": "text", "tenant_id": "text", "environment": "text", "user_id": "text",
    "project_id": "text", "session_id": "text", "timestamp": "time", "role": "text", "name": "text",
    "content": "text", "summary": "text", "kind": "text", "layer": "text", "category": "text", "tags": "texts",
    "topics": "texts", "entities": "json", "relations": "json", "importance": "number", "confidence": "number",
    "valid_from": "time", "valid_to": "time", "expires_at": "time", "metadata": "json", "derived_from": "json",
    "cleared": "texts",
}  # fmt: skip
ANSWERS: Mapping[str, str] = {
    "topic": "text", "partition": "whole", "offset": "whole", "appended_at": "time", "key": "text",
    "query_id": "text", "status": "text", "processing_time_ms": "number", "response": "json",
}  # fmt: skip


def format_of(chosen: str | None, path: Path | None) -> str:
    """The format that was named, or the one that a file's ending says: JSON lines, but for `.parquet`."""
    return chosen or ("parquet" if path is not None and path.suffix == ".parquet" else "jsonl")


@contextlib.contextmanager
def written(path: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file for its owner alone, that has its name once it is whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=FILE_MODE)
    except OSError as error:
        raise UsageError(f"--out: cannot write {path}: {error.strerror}") from None
    try:
        with new.open("wb") as file:
            yield file
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)  # half of somebody's memories, of which nobody would know
        raise


def write(rows: Iterable[dict[str, Any]], columns: Mapping[str, str], form: str, path: Path | None) -> int:
    """Writes rows, held a row group at a time. Returns how many."""
    with written(path) as file:
        return _write_parquet(rows, columns, file) if form == "parquet" else _write_lines(rows, file)


def _write_lines(rows: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 - how many there were
        file.write(orjson.dumps(row) + b"\n")
    return count


def _write_parquet(rows: Iterable[dict[str, Any]], columns: Mapping[str, str], file: BinaryIO) -> int:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    kinds = {"text": pa.string(), "json": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(),
             "whole": pa.int64(), "time": pa.timestamp("ms", "UTC")}  # fmt: skip
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    count = 0
    with ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(rows):
            count += len(group)
            cells = [[_cell(row.get(name), kind) for row in group] for name, kind in columns.items()]
            writer.write_table(pa.table([*map(pa.array, cells, schema.types)], schema=schema))
    return count


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        # In a table, null is also what a row says nothing of.
        if (cleared := [name for name, value in row.items() if value is None]) and "type" in row:
            row = row | {"cleared": cleared}
        group.append(row)
        size += len(orjson.dumps(row))
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return orjson.dumps(value).decode()
    if kind == "time":
        from datetime import datetime

        return datetime.fromisoformat(value)
    if kind == "text" and not isinstance(value, str):  # a topic holds what anybody wrote
        return orjson.dumps(value).decode()
    if kind == "number":
        return float(value) if isinstance(value, int | float) else None
    return value
