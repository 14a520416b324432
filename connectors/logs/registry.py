"""Registry of log formats, and detection of a log's format.

To add an importer, define a `LogFormat` (`log_format.py`) in a module of this package, and list it in `FORMATS`. The
format only reads a `LogFile`; `sources.py` opens folders, archives and compressed files."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs.assistants import CHATGPT, CLAUDE
from recallflow.connectors.logs.chat_json import LOCOMO, OPENAI, SHAREGPT
from recallflow.connectors.logs.documents import elements, first_objects, is_document
from recallflow.connectors.logs.log_format import EMPTY_FILE, EVENT_BYTES, ImportScope, LogFormat
from recallflow.connectors.logs.mbox import MBOX
from recallflow.connectors.logs.memory_stores import MEM0, ZEP
from recallflow.connectors.logs.messengers import TELEGRAM, WHATSAPP
from recallflow.connectors.logs.sources import LogFile, LogHead
from recallflow.connectors.logs.tables import csv_format, header_columns, lines_format, mapped, parquet_format
from recallflow.connectors.logs.team_chats import DISCORD, SLACK
from recallflow.errors import UsageError
from recallflow.parsing import EVENT_TYPES, encoding_problem, without_bom


def _recognises(head: LogHead) -> bool:
    found = first_objects(head.start)
    has_event_type = any(isinstance(kind := one.get("type"), str) and kind in EVENT_TYPES for one in found)
    return has_event_type or any("tenant_id" in one and not {"messages", "role"} & one.keys() for one in found)


def _read(source: LogFile, scope: ImportScope) -> Iterator[bytes]:  # noqa: ARG001 - events name their owners
    if is_document(source.start()):
        yield from elements(source, most_bytes=EVENT_BYTES - 1)
        return
    with source.open() as file:
        for number, line in enumerate(bounded_lines(file, EVENT_BYTES)):
            yield line if number else without_bom(line)


EVENTS = LogFormat(
    "events",
    "JSON lines of memory events (with type and tenant_id)",
    _recognises,
    _read,
    fields=("type", "tenant_id", "user_id", "session_id", "environment", "project_id", "timestamp"),
)


# In the order of detection, specific formats first: `events` matches any of our types, `message` among them, and
# `openai` any `messages`.
FORMATS: Sequence[LogFormat] = (
    CHATGPT, CLAUDE, SLACK, TELEGRAM, DISCORD, ZEP, MEM0, EVENTS, LOCOMO, OPENAI, SHAREGPT, MBOX, WHATSAPP,
)  # fmt: skip

_LISTED_MAX = 6  # names of fields or files in an error
_NAME_CHARACTERS = 64


class Log(NamedTuple):
    """Source with its format. `columns` are those of `--column`: (event field, column)."""

    source: LogFile
    format: LogFormat
    columns: tuple[tuple[str, str], ...] = ()

    def read(self, scope: ImportScope) -> Iterator[bytes]:
        scope.leave_out(EMPTY_FILE, self.source.empty)
        return self.format.read(self.source, scope)


class Registry:
    """Formats that logs are read in: all of them, or the chosen one."""

    def __init__(self, chosen: str | None = None, columns: Mapping[str, str] = MappingProxyType({})) -> None:
        """With `columns` (event field → table column), only tables are recognised. Raise UsageError."""
        self._columns = tuple(sorted(columns.items()))
        parquet, rows, delimited = parquet_format(columns), lines_format(columns), csv_format(columns)
        self._formats = (parquet, rows, delimited) if columns else (parquet, *FORMATS, delimited)
        by_name = {one.name: one for one in (parquet, delimited, rows, *FORMATS)}
        if chosen is not None and chosen not in by_name:
            raise UsageError(f"--format {chosen}: no such format; there are {', '.join(by_name)}")
        self._chosen = None if chosen is None else by_name[chosen]

    def logs_of(self, source: LogFile) -> tuple[list[Log], list[LogFile]]:
        """Return the logs of a source, and its other files; unreadable ones have an error in `broken`. A folder or an
        archive is one log if a format matches it as a whole; otherwise its files are separate logs. Raise UsageError,
        with the supported formats, if there is no log."""
        if (found := self._format_of(source)) is not None:
            return [Log(source, found, self._columns)], []
        logs: list[Log] = []
        others: list[LogFile] = []
        for file in source.members:
            try:
                found = self._format_of(file)
            except UsageError as error:
                found, file.broken = None, error
            if found is not None:
                logs.append(Log(file, found, self._columns))
            else:
                others.append(file)
        if not logs:
            problem = "no conversation log in it" if source.members else "not a conversation log"
            supported = f"supported are {', '.join(one.title for one in FORMATS)}, CSV and Parquet"
            unread = f"{source.where}: {problem}: {_description(source.head())}; {supported}"
            raise next(filter(None, (file.broken for file in others)), UsageError(unread))
        return logs, others

    def _format_of(self, source: LogFile) -> LogFormat | None:
        """Return the format of a source. A chosen format applies to any file, and to folders that it matches."""
        if self._chosen is not None and not source.members:
            return self._chosen
        head = source.head()
        formats = self._formats if self._chosen is None else (self._chosen,)
        return next((one for one in formats if one.recognises(head)), None)


def _description(head: LogHead) -> str:
    if head.members:
        return f"holds {_shortened(head.members)}"
    if wrong := encoding_problem(head.start):
        return f"its start {wrong}"
    line = next((one.strip() for one in head.start.splitlines() if one.strip()), b"")
    if not line:
        return "blank lines only"
    if objects := first_objects(head.start):
        return f"starts with a JSON object with the fields {_shortened(objects[0]) or '(none)'}; {_remedy(objects)}"
    start = f"starts with {line[:40].decode(errors='replace')!r}"
    if columns := header_columns(head.start):
        return f"{start}; if those are columns of CSV ({_shortened(columns)}), give --column content=NAME"
    return start


def _shortened(names: Iterable[str]) -> str:
    shown = [name[:_NAME_CHARACTERS] for name in names]
    return ", ".join(shown[:_LISTED_MAX]) + (", …" if len(shown) > _LISTED_MAX else "")


def _remedy(objects: Sequence[Mapping[str, object]]) -> str:
    """Return the remedy for unknown JSON: read it as a table, or as the format with the most matching fields."""
    columns = (column for one in objects for column, field in mapped([*one], {}).items() if field == "content")
    if text := next(columns, ""):
        return f"it looks like rows of a table: give --column content={text}"
    nested = {name: item for one in objects for name, item in one.items()}
    lists = ((name, item[0]) for name, item in nested.items() if isinstance(item, list) and item)
    list_name, first = next(lists, ("", None))
    names = {*nested, *(first if isinstance(first, dict) else ())}
    near = max(FORMATS, key=lambda one: len(names.intersection(one.fields)))
    if found := [name for name in near.fields if name in names]:
        fields = f"{_shortened(near.fields)} (here: {_shortened(found)})"
        return f"it is nearest to {near.name}, which has {fields}; read it as that with --format {near.name}"
    if isinstance(first, dict):
        fields = f"its {list_name} have the fields {_shortened(first)}"
        return f"{fields}: save its {list_name} as JSON lines, and give --column content=FIELD"
    return "if each is a message, give --column content=FIELD"


_LINE_BYTES = 64 * 1024
_END_BYTES = 64 * 1024
_LINE_FORMATS = ("events", "openai")  # formats of lines, whose files grow


def log_name(log: Log, scope: ImportScope) -> str:
    """Return the log's name in the positions of its events. A repeated replay continues where the last one stopped.

    A file of lines is identified by its path and first line, so that a replay of a grown file continues. Other logs are
    identified by content: a later export of the same conversations is another log, but an event with a known id is not
    applied again. The options of an import are part of the identity, except for events, which contain their owners."""
    owner = scope.tenant_id, scope.user_id, scope.user_given, scope.environment, scope.date_order, str(scope.zone)
    options = "" if log.format.name == "events" else repr((log.format.name, log.columns, owner))
    if log.source.path is not None and log.format.name in _LINE_FORMATS:
        start = log.source.start()
        if not is_document(start):
            first = start.partition(b"\n")[0][:_LINE_BYTES].rstrip(b"\r\n")
            return _hashed(os.fsencode(log.source.path.resolve()) + f"\n{options}".encode() + first)
    return _hashed(options.encode() + _content_digest(log.source))


def _hashed(identity: bytes) -> str:
    return "file-" + hashlib.sha256(identity).hexdigest()[:16]


def _content_digest(source: LogFile) -> bytes:
    """Return a digest of size, beginning and end of each file: hashing gigabytes would take too long."""
    digest = hashlib.sha256()
    for one in source.members or (source,):
        digest.update(f"{one.name}\n{one.total_bytes}\n{one.checksum}\n".encode())
        if one.checksum is None and one.open_raw is not None:
            with one.open_raw() as file:
                digest.update(file.read(_END_BYTES) or b"")
                if one.total_bytes > _END_BYTES:
                    file.seek(-_END_BYTES, os.SEEK_END)
                    digest.update(file.read(_END_BYTES) or b"")
    return digest.digest()
