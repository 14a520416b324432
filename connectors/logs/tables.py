"""Tables as events: JSON lines, CSV and Parquet. Columns are named by options, or guessed."""

import csv
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, tzinfo
from decimal import Decimal
from itertools import chain, islice
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

import orjson

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs import owners
from recallflow.connectors.logs.chat_json import Conversations, messages_field
from recallflow.connectors.logs.documents import first_objects, is_document, parsed, records
from recallflow.connectors.logs.log_format import EVENT_BYTES, ImportScope, LogFormat, broken, list_of
from recallflow.connectors.logs.sources import LogFile, LogHead
from recallflow.errors import UsageError
from recallflow.fields import wire_time
from recallflow.limits import RECORD_BYTES
from recallflow.parsing import EVENT_TYPES, without_bom

Columns = Mapping[str, str]  # field of an event → column
Row = dict[str, Any]

FIELDS = (
    "content", "role", "name", "timestamp", "id", "session_id", "user_id", "tenant_id", "environment", "project_id",
)  # fmt: skip
# Field → column names for guesses, in order of preference.
_COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "content": ("content", "text", "message", "body", "utterance"),
    "role": ("role",),
    "user_id": owners.OWNER_NAMES,
    "name": (*owners.SPEAKER_NAMES, "username", "user_name", "display_name", "customer_name"),
    "timestamp": ("timestamp", "created_at", "create_time", "created", "time", "datetime", "date", "ts", "sent_at"),
    "id": ("id", "message_id"),
    "session_id": owners.SESSION_NAMES,
    "tenant_id": ("tenant_id",),
    "environment": ("environment",),
    "project_id": ("project_id",),
}
_JSON_FIELDS = ("metadata", "entities", "relations", "derived_from", "cleared")  # `export` writes them as JSON texts
# (limit, factor to milliseconds) of times below the limit: seconds until the year 5138, milliseconds, microseconds.
_TIME_UNITS = ((1e11, 1e3), (1e14, 1.0), (1e17, 1e-3))
_NANOSECOND_MS = 1e-6
_NO_TIME = 1e24  # such a number is refused as a text, because its milliseconds exceed the integers of JSON
_NUMBER = re.compile(r"-?\d{9,20}(\.\d+)?")  # an epoch in a column of texts
_COLUMNS_MAX = 100  # limit of the columns that the dry run lists: each row may have others
_SAMPLE_ROWS = 100


class TableReader:
    """Encoder of the rows of one table as events."""

    def __init__(self, name: str, scope: ImportScope, columns: Columns) -> None:
        """`columns` are those of `--column`. An owner column among them takes precedence over `--user`."""
        self._name, self._scope, self._columns = name, scope, columns
        self._conversations = Conversations(name, replace(scope, user_given=False) if "user_id" in columns else scope)

    def read(self, names: Sequence[str], rows: Iterator[Row | bytes]) -> Iterator[bytes]:
        """Yield the events of a table with the columns `names`. Yield unreadable rows, which are bytes, unchanged.
        Raise UsageError for a missing column, a table without texts, or as `fields` does."""
        if missing := [column for column in self._columns.values() if column not in names]:
            raise UsageError(f"{self._name}: no column {missing[0]}; there are {', '.join(names)}")
        first = [*islice(rows, _SAMPLE_ROWS)]
        sample = [row for row in first if not isinstance(row, bytes)]
        fields = self.fields(names, sample)
        has_texts = "content" in fields.values() or any(map(messages_field, sample))
        if not has_texts and not {"type", "messages"} & {*names}:
            remedy = f"Give --column content=NAME; there are {', '.join(names)}"
            raise UsageError(f"{self._name}: which column has the texts? {remedy}")
        for number, row in enumerate(chain(first, rows), start=1):
            yield from [row] if isinstance(row, bytes) else self.events(row, fields, number)

    def fields(self, names: Sequence[str], sample: Sequence[Row]) -> dict[str, str]:
        """Return column → event field, and add them to the scope. Raise UsageError if a column may be the owner."""
        found = mapped(names, self._columns, sample, owned=not self._scope.user_given)
        self._check_owner(names, found)
        for name in names:
            if len(self._scope.columns) < _COLUMNS_MAX:
                self._scope.columns.setdefault(name, found.get(name, ""))
        return found

    def _check_owner(self, names: Sequence[str], fields: Mapping[str, str]) -> None:
        if self._scope.user_given or "user_id" in self._columns:
            return
        owner = next((column for column, field in fields.items() if field == "user_id"), None)
        # A guessed speaker column does not show whether the speakers share a memory.
        guessed = {column for column, field in fields.items() if field == "name"} - {*self._columns.values()}
        unmapped = [name for name in names if name not in fields]
        if unclear := owners.unclear_identities([*unmapped, *(guessed if owner is None else ())], owner):
            raise UsageError(
                f"{self._name}: whose is a row? {', '.join([*filter(None, [owner]), *unclear])} may be its owner. "
                f"Give --column user_id={owner or unclear[0]}, or --user NAME for one owner of all rows; there are "
                f"{', '.join(names)}"
            )

    def events(self, row: Row, fields: Mapping[str, str], number: int) -> Iterator[bytes]:
        """Yield the event of a row, or the events of its `messages`. In a table with owners, a row without one belongs
        to `--user` or is refused."""
        scope, filled = self._scope, {*fields.values()}
        element = {  # a column with the name of a field that another column fills is renamed
            fields.get(column, f"{column} (column)" if column in filled else column): json_value(value, scope.zone)
            for column, value in row.items()
            # Data frames have NaN for a missing value. Elsewhere it stays a null, which is part of the ids of rows.
            if value is not None and (value == value or column not in fields)
        }
        if "timestamp" in element:
            element["timestamp"] = _event_time(element["timestamp"], scope.zone)
        if "user_id" in filled:
            default = scope.user_id if scope.user_given else ""
            element["user_id"] = owners.identifier_text(element.get("user_id", default))
        if isinstance(role := element.get("role"), str):
            element["role"] = owners.ROLES.get(role.strip().casefold(), role)
        if isinstance(kind := element.get("type"), str) and kind in EVENT_TYPES:  # an event that `export` wrote
            yield scope.encode_event(_exported_event(element))
            return
        if messages_field(element) is None:
            element.setdefault("role", "user")
        yield from self._conversations.events(element, number)


def _exported_event(element: Row) -> Row:
    for field in _JSON_FIELDS:
        if isinstance(text := element.get(field), str):
            element[field] = parsed(text.encode())
    cleared = {name: None for name in list_of(element, "cleared") if isinstance(name, str)}
    element.pop("cleared", None)
    return element | cleared


def mapped(names: Sequence[str], columns: Columns, sample: Sequence[Row] = (), *, owned: bool = True) -> dict[str, str]:
    """Return column → field: the columns of options (`columns`: field → column), and guesses by name. Guess the owner
    only if `owned`. `sample` has the first rows: a column with lists or structs is no owner, speaker or session;
    a column that is named like an owner or speaker, and has only roles, is the role."""
    found = {column: field for field, column in columns.items()}
    by_name = {owners.snake_case(name): name for name in reversed(names)}
    for field, guesses in _COLUMN_NAMES.items():
        if field in columns or (field == "user_id" and not owned):
            continue
        for guess in guesses:
            if (name := by_name.get(guess)) is None or name in found:
                continue
            is_nested = any(isinstance(row.get(name), list | dict) for row in sample)
            if field in ("user_id", "session_id", "name") and is_nested:
                continue
            if field in ("user_id", "name") and "role" not in found.values() and _holds_roles(sample, name):
                found[name] = "role"
                continue
            found[name] = field
            break
    return found


def _holds_roles(sample: Sequence[Row], column: str) -> bool:
    values = {value.strip().casefold() for row in sample if isinstance(value := row.get(column), str)}
    return bool(values) and values <= owners.ROLES.keys()


def json_value(value: Any, zone: tzinfo) -> Any:
    """Return a value for JSON: times in RFC 3339 (`zone` applies to times without one), bytes as text."""
    match value:
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=zone)).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal():
            return float(value)
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return {str(key): json_value(item, zone) for key, item in value.items()}
        case list() | tuple():
            return [json_value(item, zone) for item in value]
        case str() | int() | float() | None:
            return value
    return str(value)


def _event_time(value: object, zone: tzinfo) -> object:
    """Convert an epoch in seconds, milli-, micro- or nanoseconds to milliseconds, and a date to its midnight in UTC. A
    text without a zone gets `zone`; other texts stay."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, str):
        if len(value) == len("2024-01-01") and value[4:5] == "-":
            return f"{value}T00:00:00Z"
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return value if moment.tzinfo else moment.replace(tzinfo=zone).isoformat()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if abs(value) >= _NO_TIME:
        return str(value)
    factor = next((factor for limit, factor in _TIME_UNITS if abs(value) < limit), _NANOSECOND_MS)
    return wire_time(round(value * factor)) if factor == _TIME_UNITS[0][1] else round(value * factor)


def lines_format(columns: Columns) -> LogFormat:
    """Return the format of JSON lines, or a JSON array, of rows whose columns `--column` names."""

    def read(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
        table = TableReader(source.name, scope, columns)
        fields: dict[tuple[str, ...], dict[str, str]] = {}  # columns of a row → fields; each row may have others
        for number, text in enumerate(records(source, as_document=is_document(source.start())), start=1):
            row = parsed(text)
            if not isinstance(row, dict):
                yield text[:EVENT_BYTES] if row is None else orjson.dumps(row)
                continue
            names = tuple(row)
            if names not in fields:
                fields = fields if len(fields) < _COLUMNS_MAX else {}
                fields[names] = table.fields(names, [row])
            yield from table.events(row, fields[names], number)

    return LogFormat("rows", "JSON lines of rows, with --column", lambda head: bool(first_objects(head.start)), read)


_DELIMITERS = ",;\t|"
_HEADER_LINES = 20  # names of columns may hold line feeds


def csv_format(columns: Columns) -> LogFormat:
    """Return the CSV format. `columns` are those of `--column`; others are guessed."""

    def recognises(head: LogHead) -> bool:
        names = [] if head.members else header_columns(head.start)
        existing = {field: column for field, column in columns.items() if column in names}
        return "content" in mapped(names, existing).values()

    def read(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
        delimiter, names = _header(source.start())
        with source.open() as file:
            rows = _csv_rows(source.name, file, names, delimiter)
            yield from TableReader(source.name, scope, columns).read(names, rows)

    return LogFormat("csv", "CSV with a header and a column of texts", recognises, read)


def header_columns(start: bytes) -> list[str]:
    """Return the columns of a log that starts like CSV; an empty list for other logs."""
    start = without_bom(start).lstrip()
    if start.startswith((b"{", b"[")) or b"\x00" in start[:1000]:
        return []
    _, names = _header(start)
    return names if len(names) > 1 else []


def _header(start: bytes) -> tuple[str, list[str]]:
    """Return the delimiter that gives the most columns, and the columns under unique names."""
    lines = [f"{line}\n" for line in _decoded(without_bom(start).split(b"\n", _HEADER_LINES)[:_HEADER_LINES])]
    found = [(delimiter, _first_row(lines, delimiter)) for delimiter in _DELIMITERS]
    delimiter, names = max(found, key=lambda one: len(one[1]))
    unique: dict[str, None] = {}
    for index, name in enumerate(names, start=1):
        shown = name.strip() or f"column {index}"
        unique[shown if shown not in unique else f"{shown} ({index})"] = None
    return delimiter, [*unique]


def _first_row(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
    except csv.Error:
        return []


def _csv_rows(name: str, file: BinaryIO, columns: list[str], delimiter: str) -> Iterator[Row | bytes]:
    """Yield each row's values by column, without empty ones. An invalid row is bytes, to be refused."""
    csv.field_size_limit(RECORD_BYTES)  # for the whole process; it ends a field whose quote is not closed
    reader = csv.reader((f"{line}\n" for line in _decoded(bounded_lines(file, 2 * RECORD_BYTES))), delimiter=delimiter)
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
            problem = f"has {len(values)} values for {len(columns)} columns"
            yield broken(f"{name}, line {reader.line_num}", problem, values)
        else:
            yield {column: value for column, value in zip(columns, values, strict=False) if value.strip()}


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield (line if number else without_bom(line)).decode("utf-8", "replace").removesuffix("\r")


_MAGIC = b"PAR1"
_BATCH_ROWS = 1024


def parquet_format(columns: Columns) -> LogFormat:
    """Return the Parquet format. `columns` are those of `--column`; others are guessed."""

    def read(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
        from pyarrow import ArrowException  # slow to import
        from pyarrow.parquet import ParquetFile

        with source.open() as file:
            try:
                # Without read-ahead, only one page per column is in memory, however large a row group is.
                table = ParquetFile(_seekable(file), pre_buffer=False, buffer_size=1024 * 1024)
                batches = table.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
                rows: Iterator[dict[str, Any] | bytes] = (row for batch in batches for row in _parquet_rows(batch))
                yield from TableReader(source.name, scope, columns).read(table.schema_arrow.names, rows)
            except (ArrowException, OSError) as error:
                reason = str(error).partition("\n")[0]
                raise UsageError(f"{source.name}: cannot be read as Parquet ({reason}); is it complete?") from None

    return LogFormat("parquet", "Parquet, with a column of texts", lambda head: head.start.startswith(_MAGIC), read)


def _seekable(file: BinaryIO) -> BinaryIO:
    """Return a seekable file, because Parquet is read from its end. A decompressed stream becomes a temporary file."""
    if file.seekable():
        return file
    copy = TemporaryFile(prefix="recallflow-")  # noqa: SIM115 - closed with its last reference
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return cast("BinaryIO", copy)


def _parquet_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch. Times are cut to microseconds; times out of Python's range become texts."""
    columns = []
    for column in batch.columns:
        try:
            columns.append(column.cast(_in_microseconds(column.type), safe=False).to_pylist())
        except (ValueError, OverflowError):
            columns.append(column.cast("string").to_pylist())
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _in_microseconds(kind: Any) -> Any:
    """Return the type with microseconds in place of nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind.fields])
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    return kind
