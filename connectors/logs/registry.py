"""All formats of logs, and which of them a log is in."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from recallflow.connectors.logs.building import EMPTY_FILE, leave_out
from recallflow.connectors.logs.chatgpt import CHATGPT
from recallflow.connectors.logs.claude import CLAUDE
from recallflow.connectors.logs.delimited import csv_format, header_columns
from recallflow.connectors.logs.discord import DISCORD
from recallflow.connectors.logs.documents import first_objects
from recallflow.connectors.logs.events import EVENTS
from recallflow.connectors.logs.locomo import LOCOMO
from recallflow.connectors.logs.mbox import MBOX
from recallflow.connectors.logs.mem0 import MEM0
from recallflow.connectors.logs.model import Head, LogFormat, Scope
from recallflow.connectors.logs.openai import OPENAI, SHAREGPT
from recallflow.connectors.logs.parquet import parquet_format
from recallflow.connectors.logs.slack import SLACK
from recallflow.connectors.logs.sources import Source
from recallflow.connectors.logs.tables import lines_format, mapped
from recallflow.connectors.logs.telegram import TELEGRAM
from recallflow.connectors.logs.whatsapp import WHATSAPP
from recallflow.connectors.logs.zep import ZEP
from recallflow.errors import UsageError
from recallflow.parsing import wrapping

# In the order in which they are tried. Those that look for one program's fields come first: `events` takes whatever has
# one of our types, `message` among them, and `openai` whatever has `messages`.
FORMATS: Sequence[LogFormat] = (
    CHATGPT, CLAUDE, SLACK, TELEGRAM, DISCORD, ZEP, MEM0, EVENTS, LOCOMO, OPENAI, SHAREGPT, MBOX, WHATSAPP,
)  # fmt: skip

SHOWN = 6  # names of fields or files in an error
_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Log:
    """A source with the format that it is read as. `columns`: as somebody named them."""

    source: Source
    format: LogFormat
    columns: tuple[tuple[str, str], ...] = ()

    def read(self, scope: Scope) -> Iterator[bytes]:
        leave_out(scope, EMPTY_FILE, self.source.empty)
        return self.format.read(self.source, scope)


class Registry:
    """The formats that logs are read in: all of them, or the one that somebody chose."""

    def __init__(self, chosen: str | None = None, columns: Mapping[str, str] = MappingProxyType({})) -> None:
        """`columns`: field of an event → column of a table; without `chosen`, lines are rows then. Raises UsageError
        where there is no such format."""
        self._columns = tuple(sorted(columns.items()))
        parquet, rows, delimited = parquet_format(columns), lines_format(columns), csv_format(columns)
        self._formats = (parquet, rows, delimited) if columns else (parquet, *FORMATS, delimited)
        self._chosen = None
        if chosen is not None:
            by_name = {one.name: one for one in (parquet, delimited, rows, *FORMATS)}
            if chosen not in by_name:
                raise UsageError(f"--format {chosen}: no such format; there are {', '.join(by_name)}")
            self._chosen = by_name[chosen]

    def logs_of(self, source: Source) -> tuple[list[Log], list[Source]]:
        """What is to be read of a source, and the files that are no logs, or broken (`Source.broken`). A folder or an
        archive is one log where a format knows it as a whole, and else as many as there are in it. Raises UsageError,
        which says what was found and what is understood, where there is none."""
        if (found := self._recognised(source)) is not None:
            return [Log(source, found, self._columns)], []
        if not source.members():
            raise UsageError(f"{source.where}: not a conversation log: {_described(source.head())}; {_understood()}")
        logs: list[Log] = []
        others: list[Source] = []
        for one in source.members():
            try:
                known = self._recognised(one)
            except UsageError as error:
                known, one.broken = None, error
            if known is not None:
                logs.append(Log(one, known, self._columns))
            else:
                others.append(one)
        if not logs and (broken := next((one.broken for one in others if one.broken), None)) is not None:
            raise broken
        if not logs:
            raise UsageError(f"{source.where}: no conversation log in it: {_described(source.head())}; {_understood()}")
        return logs, others

    def _recognised(self, source: Source) -> LogFormat | None:
        """A chosen format is taken for any file, and for a folder or an archive that it knows."""
        if self._chosen is not None and not source.members():
            return self._chosen
        head = source.head()
        formats = self._formats if self._chosen is None else (self._chosen,)
        return next((one for one in formats if one.recognises(head)), None)


def _understood() -> str:
    titles = ", ".join(one.title for one in FORMATS)
    return f"understood are {titles}, CSV and Parquet"


def _described(head: Head) -> str:
    """What a log starts with, or holds, in a few words."""
    if head.members:
        return f"holds {_some(head.members)}"
    if wrong := wrapping(head.start):
        return f"starts with what {wrong}"
    line = next((one.strip() for one in head.start.splitlines() if one.strip()), b"")
    if not line:
        return "blank lines only"
    if objects := first_objects(head.start):
        return f"starts with a JSON object with the fields {_some(objects[0]) or '(none)'}; {_likeness(objects)}"
    described = f"starts with {line[:40].decode(errors='replace')!r}"
    if columns := header_columns(head.start):
        return f"{described}; if those are columns of CSV ({_some(columns)}), give --column content=NAME"
    return described


def _some(names: Iterable[str]) -> str:
    shown = [name[:_NAME_CHARACTERS] for name in names]
    return ", ".join(shown[:SHOWN]) + (", …" if len(shown) > SHOWN else "")


def _likeness(objects: Sequence[Mapping[str, object]]) -> str:
    """What unknown JSON looks like, and what to do with it: rows of a table, or the format whose fields it has most
    of."""
    if text := next(
        (column for one in objects for column, field in mapped([*one], {}).items() if field == "content"), ""
    ):
        return f"it looks like rows of a table: give --column content={text}"
    nested = {name: item for one in objects for name, item in one.items()}
    listed = next(((name, item[0]) for name, item in nested.items() if isinstance(item, list) and item), ("", None))
    names = {*nested, *(listed[1] if isinstance(listed[1], dict) else ())}
    near = max(FORMATS, key=lambda one: len(names.intersection(one.fields)))
    if found := [name for name in near.fields if name in names]:
        return (
            f"it is nearest to {near.name}, which has {_some(near.fields)} (here: {_some(found)}); "
            f"--format {near.name} reads it as that"
        )
    if isinstance(listed[1], dict):
        return (
            f"its {listed[0]} have the fields {_some(listed[1])}: save those as lines and give --column content=FIELD"
        )
    return "if each is a message, give --column content=FIELD"
