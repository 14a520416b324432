"""What a reader of a log's format is given, and what it says of itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose the conversations are where the log names nobody."""

    tenant_id: str = "default"
    user_id: str = "user"
    environment: str = "prod"


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
