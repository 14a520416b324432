"""CSV: a header with the names of the columns, then rows. A comma, semicolon, tab or bar separates the values."""

import csv
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from recallflow.connectors.lines import bounded_lines
from recallflow.connectors.logs.building import broken
from recallflow.connectors.logs.model import Head, LogFormat, LogSource, Scope, start_of
from recallflow.connectors.logs.tables import Columns, Row, TableReader, mapped
from recallflow.limits import RECORD_BYTES
from recallflow.parsing import unmarked

_DELIMITERS = ",;\t|"
_HEADER_LINES = 20  # names of columns may hold line feeds
_JSON_STARTS = (b"{", b"[")


def csv_format(columns: Columns) -> LogFormat:
    """`columns`: those that somebody named; the others are guessed."""

    def recognises(head: Head) -> bool:
        names = [] if head.members else header_columns(head.start)
        given = {field: column for field, column in columns.items() if column in names}
        return "content" in mapped(names, given).values()

    def read(source: LogSource, scope: Scope) -> Iterator[bytes]:
        with source.open() as file:
            delimiter, names = _header(start_of(file))
        with source.open() as file:
            yield from TableReader(source.name, scope, columns).read(names, _rows(source.name, file, names, delimiter))

    return LogFormat("csv", "CSV with a header and a column of texts", recognises, read)


def header_columns(start: bytes) -> list[str]:
    """Return the columns of a file that starts as CSV does; none of other files."""
    start = unmarked(start).lstrip()
    if start.startswith(_JSON_STARTS) or b"\x00" in start[:1000]:
        return []
    _, names = _header(start)
    return names if len(names) > 1 else []


def _header(start: bytes) -> tuple[str, list[str]]:
    """Return the delimiter that gives the most columns, and the columns, each under a name of its own."""
    lines = [f"{line}\n" for line in _texts(unmarked(start).split(b"\n", _HEADER_LINES)[:_HEADER_LINES])]
    found = [(delimiter, _first_row(lines, delimiter)) for delimiter in _DELIMITERS]
    delimiter, names = max(found, key=lambda one: len(one[1]))
    unique: dict[str, None] = {}
    for place, name in enumerate(names, start=1):
        shown = name.strip() or f"column {place}"
        unique[shown if shown not in unique else f"{shown} ({place})"] = None
    return delimiter, [*unique]


def _first_row(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
    except csv.Error:
        return []


def _rows(name: str, file: BinaryIO, columns: list[str], delimiter: str) -> Iterator[Row | bytes]:
    """Return each row's values by column, without empty ones. What is no row comes as bytes, to be refused."""
    csv.field_size_limit(RECORD_BYTES)  # of the process. It bounds what a quote that is never closed takes in.
    reader = csv.reader((f"{line}\n" for line in _texts(bounded_lines(file, 2 * RECORD_BYTES))), delimiter=delimiter)
    is_header = True
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield broken(f"{name}, line {reader.line_num}", f"is no row ({error})")
            continue
        if not values:
            continue
        if is_header:
            is_header = False
        elif len(values) > len(columns):
            yield broken(
                f"{name}, line {reader.line_num}", f"has {len(values)} values for {len(columns)} columns", values
            )
        else:
            yield {column: value for column, value in zip(columns, values, strict=False) if value.strip()}


def _texts(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield (line if number else unmarked(line)).decode("utf-8", "replace").removesuffix("\r")
