"""What a reader of a log's format is given, and what it says of itself."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import BinaryIO, Literal, Protocol, cast

from recallflow.errors import UsageError

DateOrder = Literal["dmy", "mdy", "ymd"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose the conversations are where the log names nobody, and what it leaves open.

    `user_given`: somebody named the user, so that a group chat, which would be an owner of its own, is the user's too.
    `date_order` and `zone`: how dates without names of months are read, and where their clock stood; for logs that do
    not say it. `skipped` counts what a reader leaves out on purpose, by its reason, in each reading. `columns`: of a
    table, column → event field, empty for those that are kept as metadata only; a reader fills it."""

    tenant_id: str = "default"
    user_id: str = "user"
    environment: str = "prod"
    user_given: bool = False
    date_order: DateOrder | None = None
    zone: tzinfo = UTC
    skipped: Counter[str] = field(default_factory=Counter, compare=False)
    columns: dict[str, str] = field(default_factory=dict, compare=False)


class LogSource(Protocol):
    """A file, standard input, a folder, or what is in an archive: decompressed, and read from its beginning each time
    that it is opened."""

    @property
    def name(self) -> str:
        """Its path within a folder or archive, or else its file name, without `.gz` and `.zst`."""

    def open(self) -> BinaryIO: ...

    def members(self) -> Sequence["LogSource"]:
        """The files in a folder or an archive, by name; none of a single file."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a format is recognised by. `start`: the first bytes of a single file, at most HEAD_BYTES; `members`: the
    names of what is in a folder or an archive."""

    name: str
    start: bytes
    members: tuple[str, ...] = ()


HEAD_BYTES = 256 * 1024


def piece(file: BinaryIO, most_bytes: int) -> bytes:
    """What one reading gives, none at the end. Where a file breaks off, asking for more would lose what came before."""
    return cast("bytes", file.read1(most_bytes))  # type: ignore[attr-defined]


def start_of(file: BinaryIO, most_bytes: int = HEAD_BYTES) -> bytes:
    """The first bytes of a log; of one that breaks off, as many as there are."""
    start = b""
    try:
        while len(start) < most_bytes and (more := piece(file, most_bytes - len(start))):
            start += more
    except UsageError:
        if not start:
            raise
    return start


@dataclass(frozen=True, slots=True)
class LogFormat:
    """How a program writes conversations down.

    `read` gives one memory event as JSON after the other, in a fixed order and in bounded memory, each with an id, so
    that a log that is read twice applies once. Nothing is dropped unseen: what cannot be understood is passed on in a
    form that the decode step refuses with its reason."""

    name: str
    title: str
    recognises: Callable[[Head], bool]
    read: Callable[[LogSource, Scope], Iterator[bytes]]
    fields: tuple[str, ...] = ()  # names in its JSON, by which the format that is nearest to an unknown log is found
