"""Who works on a partition, or for a deployment of one process: a note beside the group's committed offset."""

import os
import socket
import uuid
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import orjson

from recallflow.errors import SourceError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def directory_id(path: Path) -> str:
    """Names a directory as this machine's kernel knows it until it boots again, in whatever container: a lock on it
    holds among all who see this name. Empty where there is none."""
    try:
        found = path.stat()
        return f"{BOOT_ID.read_text().strip()}:{found.st_dev}:{found.st_ino}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that wrote a note. `renewals` tells two looks apart; `released`: it has handed over."""

    host: str
    directory: str
    directory_id: str
    pid: int
    since: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewals: int = 0
    released: bool = False
    instance: str = ""  # the name of a static member

    @classmethod
    def here(cls, state_dir: Path, instance: str = "") -> "Holder":
        """This process."""
        since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        directory = str(state_dir.resolve())
        return cls(socket.gethostname(), directory, directory_id(state_dir), os.getpid(), since, instance=instance)

    @classmethod
    def parse(cls, note: str | None) -> "Holder | None":
        """Who a note names; None where there is no note. Raises SourceError."""
        try:
            return None if note is None else cls(**orjson.loads(note))
        except (ValueError, TypeError) as error:
            raise SourceError(f"the consumer group's committed offset is not of recallflow's making: {note}") from error

    def is_at(self, other: "Holder") -> bool:
        """Whether both work on one directory, as processes that follow each other do."""
        return (self.host, self.directory) == (other.host, other.directory)

    def encode(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def __str__(self) -> str:
        return f"{self.directory} on {self.host} (process {self.pid}), since {self.since}"
