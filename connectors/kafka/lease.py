"""Lease of a member on its partitions, and the note of its holder in each commit.

If the coordinator accepts a commit, the member was in the group when it sent the commit. So no other member gets its
partitions within a session after that time (setting `session_timeout_s`). The member may send for a shorter time,
because records that wait in the producer's queue must expire before the session does."""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

import orjson
from confluent_kafka import TopicPartition

from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, TopicReader
from recallflow.errors import SourceError
from recallflow.kafka_options import KafkaOptions

MARGIN_MIN_S = 2.0  # least difference of the session and the tolerated outage
RENEWALS = 5  # renewals of a lease within that difference
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SILENT_RENEWALS = 2.5  # number of renewal intervals after which a member without a renewal is silent

_log = logging.getLogger(__name__)


def boottime_s() -> float:
    """Return the time since boot, which includes suspensions of the machine and stops of the process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Lease by accepted commits. Thread-safe, because it consists of one number."""

    def __init__(self, session_s: float, clock_s: Callable[[], float] = boottime_s) -> None:
        self.clock_s, self.session_s = clock_s, session_s
        margin_s = max(MARGIN_MIN_S, session_s / 9)
        # An output may wait for unavailable brokers for `outage_s`.
        self.outage_s, self.renew_s = session_s - margin_s, margin_s / RENEWALS
        self._until_s: float | None = None

    def renew(self, sent_s: float) -> None:
        """Extend the lease by an accepted commit that was sent at `sent_s`."""
        self._until_s = sent_s + self.session_s

    def end(self) -> None:
        self._until_s = None

    def seconds_left(self) -> float:
        """Return how long no other member can own our partitions, without another commit."""
        until_s = self._until_s
        return 0.0 if until_s is None else max(0.0, until_s - self.clock_s())

    @property
    def may_send(self) -> bool:
        """Return whether a record, if queued now, expires before another member can own its partition."""
        return self.seconds_left() > self.outage_s

    @property
    def has_expired(self) -> bool:
        """Return whether a session has passed since the last accepted commit was sent."""
        return self._until_s is not None and self.seconds_left() <= 0


def directory_id(path: Path) -> str:
    """Return an id of a directory that is valid until the next boot, and equal in all containers of the machine: a lock
    on the directory excludes all processes that see this id. Return an empty text if there is no directory."""
    try:
        found = path.stat()
        return f"{BOOT_ID.read_text().strip()}:{found.st_dev}:{found.st_ino}"
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that wrote the note of a commit. `released`: it has handed over its partitions."""

    host: str
    directory: str
    directory_id: str
    pid: int
    since: str  # start of the process
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewals: int = 0  # number of its notes
    released: bool = False
    instance: str = ""  # `group.instance.id` of a static member
    settings: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def here(
        cls, state_dir: Path, instance: str = "", settings: Mapping[str, object] = MappingProxyType({})
    ) -> "Holder":
        since = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        directory = str(state_dir.resolve())
        return cls(
            socket.gethostname(), directory, directory_id(state_dir), os.getpid(), since,
            instance=instance, settings=dict(settings),
        )  # fmt: skip

    @classmethod
    def parse(cls, note: str | None) -> "Holder | None":
        """Return the process that wrote a note; None without a note. Raise SourceError for any other text."""
        try:
            return None if note is None else cls(**orjson.loads(note))
        except (ValueError, TypeError) as error:
            raise SourceError(f"another program has committed an offset of the consumer group, with: {note}") from error

    def encode(self) -> str:
        return orjson.dumps(self).decode()

    def __str__(self) -> str:
        return f"{self.directory} on {self.host} (process {self.pid}), since {self.since}"


def holders(reader: TopicReader, query_topic: str, numbers: Iterable[int]) -> dict[int, Holder]:
    """Return the last owner of each partition that has one. Raise KafkaException."""
    parts = [TopicPartition(query_topic, number) for number in numbers]
    committed = reader.consumer.committed(parts, timeout=REQUEST_TIMEOUT_S) if parts else []
    notes = {one.partition: Holder.parse(one.metadata or None) for one in committed}
    return {number: holder for number, holder in notes.items() if holder is not None}


def await_removals(
    options: KafkaOptions, name: str, query_topic: str, me: Holder, lease: Lease, stopping: threading.Event
) -> None:
    """Wait until the group has removed killed members, before we (`me`) join.

    The coordinator admits a new member once every member has rejoined or is removed. It removes a killed member when
    its session ends. Until then it accepts no commits, so after a join all members would stop sending."""
    with TopicReader(options, {"group.id": name}) as reader:
        (numbers,) = reader.partitions([query_topic]).values()
        read = partial(holders, reader, query_topic, numbers)
        await_active(lambda: reader.ask(read).values(), me, lease, stopping)


def await_active(read: Callable[[], Iterable[Holder]], me: Holder, lease: Lease, stopping: threading.Event) -> None:
    """Return once all other members that have not handed over are active, or none is; at the latest after a session."""
    until_s = lease.clock_s() + lease.session_s + MARGIN_MIN_S
    is_logged = False
    before = _renewals(read(), me)
    while before and lease.clock_s() < until_s and not stopping.wait(SILENT_RENEWALS * lease.renew_s):
        after = _renewals(read(), me)
        silent = {run for run in after if after[run] == before.get(run)}
        if not silent or silent == after.keys():
            return
        if not is_logged:
            _log.info("waiting until the group has removed %d members that no longer renew their leases", len(silent))
            is_logged = True
        before = after


def _renewals(holders: Iterable[Holder], me: Holder) -> dict[str, int]:
    """Return `Holder.run` → number of renewals, of other members that have not handed over."""
    found: dict[str, int] = {}
    for holder in holders:
        is_ours = holder.directory_id == me.directory_id != "" or holder.instance == me.instance != ""
        if not holder.released and not is_ours:
            found[holder.run] = max(holder.renewals, found.get(holder.run, 0))
    return found
