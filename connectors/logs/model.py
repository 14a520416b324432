"""Interface of log formats: the scope of an import, log sources, and `LogFormat`."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import BinaryIO, Literal, Protocol, cast

from recallflow.errors import UsageError

DateOrder = Literal["dmy", "mdy", "ymd"]


@dataclass(frozen=True, slots=True)
class ImportScope:
    """Defaults of an import.

    `user_given` means that `--user` was set: then a group chat, otherwise a separate owner, belongs to that user.
    `date_order` and `zone` apply to dates without month names or zone. `skipped` counts omitted messages by reason, in
    each reading. `columns` maps table columns to event fields, empty for metadata; a reader fills it.
    """

    tenant_id: str = "default"
    user_id: str = "user"
    environment: str = "prod"
    user_given: bool = False
    date_order: DateOrder | None = None
    zone: tzinfo = UTC
    skipped: Counter[str] = field(default_factory=Counter, compare=False)
    columns: dict[str, str] = field(default_factory=dict, compare=False)


class LogSource(Protocol):
    """File, standard input, folder or archive entry. It is decompressed, and read from the beginning at each
    opening."""

    @property
    def name(self) -> str:
        """Return the path within a folder or archive, or else the file name, without `.gz` and `.zst`."""

    def open(self) -> BinaryIO: ...

    def members(self) -> Sequence["LogSource"]:
        """Return the files in a folder or an archive by name; an empty sequence for a single file."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """Start of a log for format detection. `start` are the first bytes of a single file, at most HEAD_BYTES;
    `members` are the names in a folder or an archive."""

    name: str
    start: bytes
    members: tuple[str, ...] = ()


HEAD_BYTES = 256 * 1024


def piece(file: BinaryIO, most_bytes: int) -> bytes:
    """Return the next piece; empty at the end. One read per piece: in a truncated file, a larger read would lose
    data."""
    return cast("bytes", file.read1(most_bytes))  # type: ignore[attr-defined]


def start_of(file: BinaryIO, most_bytes: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a log, also of a truncated one."""
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
    """Format of a program's conversation logs.

    `read` yields memory events as JSON in a fixed order and in bounded memory, each with an id, so that a repeated
    import applies once. Nothing is dropped silently: an invalid message is yielded in a form that the decode step
    refuses with its reason.
    """

    name: str
    title: str
    recognises: Callable[[LogHead], bool]
    read: Callable[[LogSource, ImportScope], Iterator[bytes]]
    fields: tuple[str, ...] = ()  # names in its JSON, by which the format that is nearest to an unknown log is found
