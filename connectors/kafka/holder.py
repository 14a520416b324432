"""Who works on a partition, or for a deployment of one process: a note beside the group's committed offset."""

import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import orjson

from recallflow.errors import SourceError, UsageError

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
    """The process that wrote a note. `renewals` tells two looks apart; `released`: it has handed over.
    `settings`: those that all members of the deployment share."""

    host: str
    directory: str
    directory_id: str
    pid: int
    since: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewals: int = 0
    released: bool = False
    instance: str = ""  # the name of a static member
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def here(
        cls, state_dir: Path, instance: str = "", settings: Mapping[str, object] = MappingProxyType({})
    ) -> "Holder":
        """This process."""
        since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        directory = str(state_dir.resolve())
        return cls(
            socket.gethostname(), directory, directory_id(state_dir), os.getpid(), since,
            instance=instance, settings=dict(settings),
        )  # fmt: skip

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
        return orjson.dumps(self).decode()

    def __str__(self) -> str:
        return f"{self.directory} on {self.host} (process {self.pid}), since {self.since}"


def agree(name: str, ours: Mapping[str, object], holders: Iterable[Holder]) -> bool:
    """Return whether a member of the deployment has committed its settings. Raises UsageError where they differ from
    ours."""
    committed = [holder.settings for holder in holders if holder.settings]
    for theirs in committed:
        differing = [key for key in (*theirs, *(ours.keys() - theirs.keys())) if theirs.get(key) != ours.get(key)]
        if differing:
            values = "; ".join(f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here" for key in differing)
            raise UsageError(
                f"deployment {name} has other settings: {values}. Use those, or begin another deployment: "
                "docs/operations.md#changing-shared-settings"
            )
    return bool(committed)
