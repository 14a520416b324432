"""Copies of partitions: checkpoints in an object store, standby copies, and the folders of released partitions.

A standby member applies the memories of a partition, without outputs, up to the offset that the owner has delivered.
Therefore, little is left to read when it becomes the owner. Every member computes from the assignment of the group
which partitions it would receive if their owner failed, and keeps copies of these. During a rebalance, members may see
different assignments; then a partition briefly has two standby copies or none.

The folder of a released partition is marked, and commands such as `recall` ignore it. The folder is kept for a day: if
the partition is assigned again, only the tail of its log is read. Later erasures do not reach it, so it is removed."""

import logging
import shutil
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import KW_ONLY, asdict, dataclass
from heapq import heapify, heapreplace
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from recallflow.connectors.checkpoints.generation import CheckpointOrigin
from recallflow.connectors.checkpoints.store import CheckpointSaver, CheckpointStore
from recallflow.connectors.kafka.group_members import Assignment, fetch_assignment
from recallflow.connectors.kafka.membership import Membership
from recallflow.connectors.kafka.owned import OwnedSource
from recallflow.connectors.kafka.partition import Lane
from recallflow.connectors.kafka.topic_reader import REQUEST_TIMEOUT_S, TopicReader
from recallflow.errors import CheckpointError, MasterKeyError, RecallflowError, StorageError
from recallflow.flows.runner import now_ms
from recallflow.kafka_options import KafkaOptions
from recallflow.process import background_thread
from recallflow.state import folders, keys
from recallflow.state.directory import StateDirectory

FAR_BEHIND = 20_000  # records; a checkpoint is fetched in less time than these are applied
CHECK_INTERVAL_S, RELEASED_INTERVAL_S, STANDBY_INTERVAL_S = 1.0, 2.0, 1.0
RELEASED_MS = 24 * 3_600_000  # how long a released folder is kept
NEVER = 2**63 - 1  # an offset that is never reached, so a standby sends no outputs
RESULTS = ("kept", "failed")

_log = logging.getLogger(__name__)

PartitionsGetter = Callable[[], frozenset[int]]
Restore = Callable[[int, Callable[[], bool]], None]  # restores a partition if the second argument returns True


@dataclass(eq=False)
class Checkpoints:
    store: CheckpointStore
    directory: StateDirectory
    memory_topic: str
    deployment: str
    _: KW_ONLY
    interval_s: float  # between two checkpoints of a partition with new records
    generations: int  # the number of checkpoints of a partition that the store keeps
    open_partitions: PartitionsGetter

    def __post_init__(self) -> None:
        self._saver = CheckpointSaver(self.store, self.directory.path, self.generations)
        self.results = Counter[str]()
        self._run_id = uuid.uuid4().hex
        self._saved: dict[int, int] = {}  # partition → the offset applied at its last checkpoint
        self._due_s: dict[int, float] = {}
        self._stopping = threading.Event()
        self._restoring = defaultdict[int, threading.Lock](threading.Lock)  # by partition

    def running(self) -> AbstractContextManager[None]:
        return background_thread(self._run, "checkpoints", self._stopping)

    def restore(self, number: int, is_needed: Callable[[], bool]) -> None:
        """Replace the folder of a closed partition by its newest checkpoint if the folder is missing or far behind. A
        failure is only logged, because the topic has all records. `is_needed` is called under the partition's lock."""
        with self._restoring[number]:
            if not is_needed():
                return
            try:
                self._restore(number)
            except (CheckpointError, MasterKeyError, StorageError) as error:
                _log.warning("partition %d was not restored from a checkpoint: %s", number, error)

    def _restore(self, number: int) -> None:
        applied = self._applied(number)
        newest = self.store.newest(number)
        if newest is None or newest.about.offset <= applied + (FAR_BEHIND if applied >= 0 else 0):
            return
        self._check(number, newest.about, applied)
        began_s = time.monotonic()
        folder = folders.arriving_folder(self.directory.path, number)
        found = self.store.fetch_newest(number, folder)
        if found is None:
            return
        try:
            self._check(number, found.about, applied)  # an older checkpoint was fetched if `newest` is incomplete
            self.directory.replace_folder(number, folder)
        except (CheckpointError, MasterKeyError):
            shutil.rmtree(folder, ignore_errors=True)
            raise
        size, offset, took_s = found.size, found.about.offset, time.monotonic() - began_s
        message = "partition %d was restored from a checkpoint of %d bytes in %.1f s, applied up to offset %d"
        _log.info(message, number, size, took_s, offset)

    def _check(self, number: int, origin: CheckpointOrigin, applied: int) -> None:
        """Raise CheckpointError for a checkpoint of another topic or configuration, or older than the folder."""
        if origin.source != self._source(number):
            problem = f" holds checkpoints of {origin.source}: give each topic its own --checkpoint-to"
        elif origin.state_format != keys.FORMAT_VERSION:
            problem = f": another version wrote the checkpoint, in format {origin.state_format}"
        elif origin.fingerprint != asdict(self.directory.fingerprint):
            problem = ": the checkpoint was written with other settings"
        elif origin.offset <= applied:
            problem = ": the newest complete checkpoint is older than the local folder"
        else:
            return
        raise CheckpointError(self.store.shown + problem)

    def _source(self, number: int) -> str:
        return f"{self.memory_topic}:{number}"

    def _applied(self, number: int) -> int:
        return self.directory.partition(number).applied.get(self._source(number), -1)

    def _run(self) -> None:
        while not self._stopping.wait(CHECK_INTERVAL_S):
            now_s = time.monotonic()
            for number in sorted(self.open_partitions()):
                staggered_s = self.interval_s * (number % 8 + 1) / 8
                due_s = self._due_s.setdefault(number, now_s + staggered_s)
                if now_s >= due_s and not self._stopping.is_set():
                    self._save(number)
                    self._due_s[number] = time.monotonic() + self.interval_s

    def _save(self, number: int) -> None:
        applied = self._applied(number)
        if applied < 0 or applied == self._saved.get(number):
            return
        try:
            saved = self._saver.save(number, lambda folder: self._copy(number, folder))
        except (CheckpointError, StorageError, OSError) as error:  # also if the partition was closed meanwhile
            self.results["failed"] += 1
            _log.warning("the checkpoint of partition %d failed: %s", number, error)
            return
        self.results["kept"] += 1
        self._saved[number] = saved.manifest.about.offset
        _log.info("wrote a checkpoint of partition %d: %d bytes sent", number, saved.sent_bytes)

    def _copy(self, number: int, folder: Path) -> CheckpointOrigin:
        """Copy the committed, cleaned state into a folder. Return its description. The copy may include records after
        the offsets in the description."""
        partition = self.directory.partition(number)
        partition.clean()
        partition.sync()
        applied = partition.committed_positions()
        folders.copy_partition(partition, folder)
        return CheckpointOrigin(
            state_format=keys.FORMAT_VERSION,
            partition=number,
            partitions=self.directory.fingerprint.partitions,
            source=self._source(number),
            applied=applied,
            deployment=self.deployment,
            run_id=self._run_id,
            created_ms=now_ms(),
            fingerprint=asdict(self.directory.fingerprint),
        )


@dataclass(eq=False)
class ReleasedPartitions:
    """The released partitions of a state directory. `Ownership` removes the mark of one that is assigned again."""

    directory: StateDirectory
    _: KW_ONLY
    others: PartitionsGetter  # returns the partitions that other members own, as they last reported
    ours: PartitionsGetter  # returns the partitions that are or will be ours
    standbys: PartitionsGetter  # returns the partitions with a standby copy here, whose folders stay
    is_recoverable: Callable[[int], bool]  # returns whether the topic or a checkpoint has the data of a folder
    stopping: threading.Event  # set while the process stops
    clock_ms: Callable[[], int] = now_ms

    def __post_init__(self) -> None:
        self._last_others: frozenset[int] = frozenset()  # partitions of other members at the last check
        self._ending = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        return background_thread(self._run, "released", self._ending)

    def _run(self) -> None:
        while not self._ending.wait(RELEASED_INTERVAL_S):
            with suppress(KafkaException, RecallflowError, OSError):  # the next check retries
                self.check()

    def check(self) -> None:
        """Mark released folders, and remove expired ones. A partition is released once others own it at two successive
        checks, because it may be assigned to us again at once."""
        others = self.others()
        released, self._last_others = others & self._last_others, others
        for number in self.directory.existing_numbers():
            if number in released - self.ours() and not self.stopping.is_set():
                self._mark_or_remove(number)

    def _mark_or_remove(self, number: int) -> None:
        folder, now_ms = folders.partition_folder(self.directory.path, number), self.clock_ms()
        since_ms, is_standby = folders.released_since_ms(folder), number in self.standbys()
        if since_ms is None or (is_standby and now_ms - since_ms >= RELEASED_MS // 2):
            folders.mark_released(folder, now_ms)
            if number in self.ours():  # the partition was assigned concurrently
                folders.unmark_released(folder)
            return
        is_expired = not is_standby and now_ms - since_ms >= RELEASED_MS and self.is_recoverable(number)
        if is_expired and self.directory.forget_closed(number):
            _log.info("partition %d moved to another member a day ago: its local folder was removed", number)


@dataclass(eq=False)
class Standby:
    """The standby copies of one member, which follow the owners of their partitions."""

    options: KafkaOptions
    name: str  # the name of the consumer group
    memory_topic: str
    directory: StateDirectory
    source: OwnedSource
    membership: Membership
    count: int  # the number of standby copies of each partition
    _: KW_ONLY
    restore: Restore | None  # restores the folder of a partition from a checkpoint

    def __post_init__(self) -> None:
        self._admin = AdminClient(self.options.admin())
        self._last_seen: tuple[str | None, Assignment] = None, {}  # our member id and the assignment at the last check
        self._wanted: frozenset[int] = frozenset()  # partitions to follow, by the last assignment
        self._stopping = threading.Event()

    def running(self) -> AbstractContextManager[None]:
        return background_thread(self._run, "standby", self._stopping)

    def _run(self) -> None:
        with TopicReader(self.options, {"group.id": self.name}) as reader:
            while not self._stopping.wait(STANDBY_INTERVAL_S):
                try:
                    self._check(reader)
                except (KafkaException, RecallflowError) as error:
                    _log.warning("the partitions for standby copies cannot be determined: %s", error)

    def _check(self, reader: TopicReader) -> None:
        reader.consumer.list_topics(self.memory_topic, timeout=REQUEST_TIMEOUT_S)  # fails early if Kafka is down
        seen = self.membership.member_id, fetch_assignment(self._admin, self.name, self.memory_topic)
        if seen != self._last_seen:
            self._last_seen, self._wanted = seen, standby_partitions(*seen, self.count)
        wanted = self._wanted - self.source.partitions()
        for number in self.source.standbys() - wanted:
            self.source.drop_standby(number)
        if not wanted:
            return
        partitions = [TopicPartition(self.memory_topic, number) for number in sorted(wanted)]
        for committed in reader.consumer.committed(partitions, timeout=REQUEST_TIMEOUT_S):
            if committed.error is None and committed.offset >= 0:
                self._follow(reader, committed.partition, committed.offset)

    def _follow(self, reader: TopicReader, number: int, stop_offset: int) -> None:
        if number in self.source.standbys():
            self.source.limit_standby(number, stop_offset)
            return
        if self.restore is not None:
            self.restore(number, lambda: number not in self.membership.expected)  # `Ownership` opens expected ones
        applied = self.directory.partition(number).applied.get(f"{self.memory_topic}:{number}", -1)
        low, high = reader.span(self.memory_topic, number)
        if applied + 1 < low:
            _log.warning("partition %d has no standby copy here: its log starts only at offset %d", number, low)
            return
        lane = Lane(self.memory_topic, number, applied + 1, high, outputs_from=NEVER, stop_offset=stop_offset)
        self.source.add_standby(number, lane)


def standby_partitions(me: str | None, assigned: Assignment, count: int) -> frozenset[int]:
    """Return the partitions that this member receives if their owner fails. `count` is the number of successive
    failures to cover: with 2, also the partitions that it receives if the next owner fails too."""
    if me not in assigned:
        return frozenset()
    others = ((owner, share) for owner, share in assigned.items() if owner != me)
    return frozenset().union(*(_inherited(me, assigned, owner, share, count) for owner, share in others))


def _inherited(me: str, assigned: Assignment, failed: str, share: frozenset[int], count: int) -> frozenset[int]:
    """Return the partitions among `share` of the member `failed` that this member receives, after at most `count`
    successive failures."""
    remaining = without(assigned, failed)
    inherited = remaining[me] & share
    if count > 1:
        next_shares = {other: owned & share for other, owned in remaining.items() if other != me and owned & share}
        further = (_inherited(me, remaining, other, owned, count - 1) for other, owned in next_shares.items())
        inherited = inherited.union(*further)
    return inherited


def without(assigned: Assignment, failed: str) -> Assignment:
    """Return the assignment after a member failed. librdkafka's cooperative-sticky assignor assigns its partitions, the
    highest first, each to the member with the fewest partitions; ties go to the smallest member id."""
    remaining = {member: set(share) for member, share in assigned.items() if member != failed}
    by_load = [(len(share), member) for member, share in remaining.items()]
    heapify(by_load)
    for partition in sorted(assigned[failed], reverse=True) if by_load else ():
        load, member = by_load[0]
        remaining[member].add(partition)
        heapreplace(by_load, (load + 1, member))
    return {member: frozenset(share) for member, share in remaining.items()}
