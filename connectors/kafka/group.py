"""A deployment's consumer group: leases of its members, the notes in its commits, and descriptions of its members.

A commit that the coordinator accepts shows that the member was in the group after it was sent. So nobody else gets its
partitions within a session from then. The member may send for less than that: records that wait in the producer's queue
expire before the session does.

Partitions that are assigned by hand (`--own`) make their owner a static member, named after them. The members assign
nothing to each other, but two whose partitions overlap see each other in the group.
"""

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from recallflow.brokers.options import KafkaOptions
from recallflow.brokers.trouble import passes
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import SourceError, UsageError
from recallflow.ranges import parse_ranges, ranges_of

MARGIN_MIN_S = 2.0
RENEWALS = 5  # in the time that one of them lets us send
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PREFIX = "own-"
_NAME = re.compile(_PREFIX + r"\d+(-\d+)?(_\d+(-\d+)?)*")
NAME_CHARACTERS = 249  # what a broker takes
ASK_S = 5.0
COMMITTED_S = 2.0
PROBE_S = 0.05
# librdkafka may end the process where a description times out (its issue 4605), so hardly any does.
PROBE_TIMEOUT_S = 30.0
LOOK_RENEWALS = 2.5  # who has not renewed within so many times is silent
Shares = dict[str, frozenset[int]]  # the partitions of each member

_log = logging.getLogger(__name__)


def boottime_s() -> float:
    """Runs on while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def outage_s(session_s: float) -> float:
    """So long an output may wait for brokers that are away: below the session by what a renewal may take."""
    return session_s - max(MARGIN_MIN_S, session_s / 9)


class Lease:
    """What accepted commits entitle to. Thread-safe enough: each number is set at once, and read by itself."""

    def __init__(self, session_s: float, clock_s: Callable[[], float] = boottime_s) -> None:
        self.clock_s = clock_s
        self.session_s = session_s
        self.outage_s = outage_s(session_s)
        self.renew_s = (session_s - self.outage_s) / RENEWALS
        self._until_s: float | None = None

    def renew(self, sent_s: float) -> None:
        """A commit was accepted that was sent at `sent_s`."""
        self._until_s = sent_s + self.session_s

    def end(self) -> None:
        self._until_s = None

    def seconds_left(self) -> float:
        """How long nobody else can be at work, without news from the coordinator."""
        until_s = self._until_s
        return 0.0 if until_s is None else max(0.0, until_s - self.clock_s())

    @property
    def may_send(self) -> bool:
        """Whether what is handed over now has expired when somebody else may come."""
        return self.seconds_left() > self.outage_s

    @property
    def ran_out(self) -> bool:
        """Whether we had one, and were away for longer than a session since."""
        return self._until_s is not None and self.seconds_left() <= 0


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
                "docs/how-to/several-machines.md#change-shared-settings"
            )
    return bool(committed)


def name_of(own: Collection[int]) -> str:
    """`own-0-7_9`: a broker takes letters, digits, `.`, `_` and `-`."""
    return _PREFIX + ranges_of(own).replace(",", "_")


def overlapping(own: Collection[int], names: Iterable[str]) -> str | None:
    """What another member of the group owns of ours, as it was given; None where there is no such member."""
    for name in names:
        if name == name_of(own) or not _NAME.fullmatch(name):
            continue
        text = name.removeprefix(_PREFIX).replace("_", ",")
        if parse_ranges(text) & frozenset(own):
            return text
    return None


def static_members(options: KafkaOptions, name: str) -> dict[str, str]:
    """The static members of a group: what they are named → how the coordinator knows them. Raises SourceError."""
    try:
        admin: Any = AdminClient(options.admin())
        found = admin.describe_consumer_groups([name], request_timeout=ASK_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise SourceError(f"cannot ask who is in deployment {name}: {error.args[0].str()}") from error
    return {member.group_instance_id: member.member_id for member in found.members if member.group_instance_id}


def check_alone(options: KafkaOptions, name: str, own: Collection[int]) -> None:
    """Raises UsageError where another member owns by hand what we are to own, and SourceError. Who looks once it is in
    the group sees everybody who came before: of two that come at once, one sees the other at least."""
    if other := overlapping(own, static_members(options, name)):
        raise UsageError(
            f"deployment {name}: another process owns partitions {other}: they overlap with --own {ranges_of(own)}"
        )


class RebalanceProbe:
    """Whether a group is between two generations."""

    def __init__(self, options: KafkaOptions, name: str, clock_s: Callable[[], float] = boottime_s) -> None:
        self._options, self._name, self._clock_s = options, name, clock_s
        self._admin: Any = None
        self._asked: Any = None  # a future
        self._next_s = 0.0

    def is_rebalancing(self) -> bool:
        """Return whether a rebalance has begun, or the group's state cannot be read. Does not wait: a description that
        is under way counts as no rebalance."""
        if self._asked is None and self._clock_s() >= self._next_s:
            self._admin = self._admin or AdminClient(self._options.admin())
            self._asked = self._admin.describe_consumer_groups([self._name], request_timeout=PROBE_TIMEOUT_S)[
                self._name
            ]
            self._next_s = self._clock_s() + PROBE_S
        if self._asked is None or not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            return bool(asked.result().state != ConsumerGroupState.STABLE)
        except KafkaException as error:
            return not passes(error.args[0])


def check_topics(options: KafkaOptions, topics: tuple[str, str], own: Collection[int] | None) -> None:
    """Raises UsageError where the topics of memory and queries are not partitioned alike, or have not what we are to
    own, and SourceError where they are missing."""
    with TopicReader(options) as reader:
        found = {topic: len(numbers) for topic, numbers in reader.partitions(topics).items()}
    memory, queries = (found[topic] for topic in topics)
    if memory != queries:
        less, more = (topics[0], queries) if memory < queries else (topics[1], memory)
        raise UsageError(
            f"{topics[0]} has {memory} partitions and {topics[1]} {queries}, and one member owns a "
            f"partition of both: add partitions to {less}, up to {more}"
        )
    if outside := [one for one in own or () if one >= memory]:
        raise UsageError(f"{topics[0]} has no partition {ranges_of(outside)}: it has {memory}, from 0 on")


def await_silent(
    options: KafkaOptions, name: str, query_topic: str, me: Holder, lease: Lease, stopping: threading.Event
) -> None:
    """The coordinator lets a newcomer in once every member has come to it again, or is given up. For one that was
    killed that takes its session, and so long it accepts nobody's commits: all would stop sending. So we wait until
    the group has given it up."""
    with TopicReader(options, {"group.id": name}) as reader:
        (numbers,) = reader.partitions([query_topic]).values()

        def read() -> Iterable[Holder]:
            return reader.ask(lambda: holders(reader, query_topic, numbers)).values()  # type: ignore[no-any-return]

        await_lively(read, me, lease, stopping)


def holders(reader: TopicReader, query_topic: str, numbers: Iterable[int]) -> dict[int, Holder]:
    """Who said last that a partition is its own, for each of which somebody did. Raises KafkaException."""
    asked = [TopicPartition(query_topic, number) for number in numbers]
    found = reader.consumer.committed(asked, timeout=COMMITTED_S) if asked else []
    notes = {one.partition: Holder.parse(one.metadata or None) for one in found}
    return {number: holder for number, holder in notes.items() if holder is not None}


def await_lively(read: Callable[[], Iterable[Holder]], me: Holder, lease: Lease, stopping: threading.Event) -> None:
    """Returns once everybody who has not handed over is at work, or nobody is; after a session at the latest. Whose
    place we take is not waited for."""
    until_s = lease.clock_s() + lease.session_s + MARGIN_MIN_S
    warned = False
    before = _renewals(read(), me)
    while before and lease.clock_s() < until_s and not stopping.wait(LOOK_RENEWALS * lease.renew_s):
        now = _renewals(read(), me)
        silent = {run for run in now if now[run] == before.get(run)}
        if not silent or silent == now.keys():
            return
        if not warned:
            _log.info("waiting until the group has given up members that are silent: %d", len(silent))
            warned = True
        before = now


def _renewals(holders: Iterable[Holder], me: Holder) -> dict[str, int]:
    """Run → how often it has renewed."""
    found: dict[str, int] = {}
    for holder in holders:
        ours = holder.directory_id == me.directory_id != "" or holder.instance == me.instance != ""
        if not holder.released and not ours:
            found[holder.run] = max(holder.renewals, found.get(holder.run, 0))
    return found


class GroupShares:
    """Of one topic."""

    def __init__(self, options: KafkaOptions, name: str, topic: str) -> None:
        """`name`: of the group."""
        self._name, self._topic = name, topic
        self._admin = AdminClient(options.admin())

    def look(self) -> Shares:
        """What every member has at this moment. Raises KafkaException."""
        described: Any = self._admin.describe_consumer_groups([self._name], request_timeout=PROBE_TIMEOUT_S)
        return {
            member.member_id: frozenset(
                one.partition for one in member.assignment.topic_partitions if one.topic == self._topic
            )
            for member in described[self._name].result().members
        }
