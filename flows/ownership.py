"""Ownership of partitions: assignment to this process and revocation, between the consumer group and the dataflow.

An assigned partition resumes at its progress. Memory is read from the first record that its folder has not applied,
without outputs up to the progress. Queries are read from the first unanswered one. Outputs that were sent already are
looked up in the tails of the output topics. Without known progress, all outputs are read (`initial_progress.py`)."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from recallflow.connectors.kafka.cluster import EndOffsetPoller, earliest, read_tails
from recallflow.connectors.kafka.group_consumer import Committed
from recallflow.connectors.kafka.hub import REMEDIES, Remedies, describe_removal
from recallflow.connectors.kafka.messages import Identity, append_ms, identity_of
from recallflow.connectors.kafka.owned import BarrierProgress, OwnedSource, lane_at
from recallflow.connectors.kafka.partition import Lane, LogProgress, PartitionProgress, RoundRobinQueue, TopicOffsets
from recallflow.connectors.kafka.sender import EarlierOutputs
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.errors import OutputsGone, SourceError
from recallflow.flows.partition_copies import Restore
from recallflow.kafka_options import KafkaOptions
from recallflow.outputs import OutputBarrier
from recallflow.owner import ranges_of
from recallflow.records import Position
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import unmark_released

RESTORED_AT_ONCE = 2
PAUSE_S = 0.01
CHECK_INTERVAL_S = 1.0  # the delay until the end of the dataflow is noticed

_log = logging.getLogger(__name__)


class _Arrival(NamedTuple):
    """A partition in assignment: its progress, its outputs sent before, and a token that identifies this assignment."""

    progress: PartitionProgress
    sent: set[Identity]
    token: object


@dataclass(eq=False)
class Ownership:
    """The partitions of one process. The membership calls `gain` and `give_up`; the sink calls `commit_barriers`."""

    options: KafkaOptions
    topics: tuple[str, str]  # of memory and of queries
    directory: StateDirectory | None  # the folders of partitions; None for a flow without state
    source: OwnedSource
    sent: EarlierOutputs  # identities of outputs sent before
    ends: EndOffsetPoller  # of the output topics
    commit: Callable[[Mapping[int, Committed]], None]  # commits progress to the group
    is_committed: Callable[[Collection[int]], bool]  # returns whether the group has the progress of these partitions
    _: KW_ONLY
    initial_progress: Callable[[Collection[int]], dict[int, PartitionProgress]]  # of partitions without committed one
    deployment: str  # progress of other deployments is ignored
    restore: Restore | None = None  # restores a folder from a checkpoint, which may take long
    remedies: Remedies = REMEDIES  # remedies for deleted records, in messages
    by_tenants: bool = True  # serve queries round robin by tenant, not in the order of the log
    counts: Callable[[], bool] = lambda: False  # returns whether rate quotas need all records of the current second
    give_up_unanswered: bool = False  # skip queries that retention deleted
    accept_repeats: bool = False  # allow repeated outputs if retention deleted earlier outputs

    def __post_init__(self) -> None:
        self._memory, self._queries = self.topics
        self._progress: dict[int, PartitionProgress] = {}
        self._empty: list[int] = []  # empty partitions that are open and not logged yet
        self._coming: dict[int, object] = {}  # assigned partitions that are not open yet → token of the assignment
        self._handed: dict[int, threading.Event] = {}
        self._tails: dict[int, TopicOffsets] = {}  # where to look for outputs that earlier owners sent
        self._error: Exception | None = None
        self._over = False  # the dataflow has ended
        self._stopping = self.source.stopping
        self._moving = ThreadPoolExecutor(1, "recallflow-moving")
        self._restoring = ThreadPoolExecutor(RESTORED_AT_ONCE, "recallflow-restoring")

    def failure(self) -> Exception | None:
        """Return the error that prevented the opening of a partition."""
        return self._error

    def end(self) -> None:
        """Stop all handovers, because the dataflow has ended."""
        self._over = True
        for handed in [*self._handed.values()]:
            handed.set()
        self._coming.clear()
        self._restoring.shutdown(cancel_futures=True)
        self._moving.shutdown()

    # ------------------------------------------------------------------ for the membership

    def initial_commit(self, at: Committed) -> Committed:
        """Return the progress to commit when a clean partition becomes ours. Its tails are the current ends of outputs:
        everything we send comes after them, even if we crash before the first barrier."""
        if (progress := PartitionProgress.parse(at.text)) is None or not progress.clean:
            return at
        tails, at_ms = self.ends.latest()
        return committed(replace(progress, tails=tails, at_ms=at_ms, clean=False))

    def gain(self, texts: Mapping[int, str | None]) -> None:
        """Start to open assigned partitions, by the metadata of their committed offsets, without blocking."""
        tokens = {number: object() for number in texts}
        self._coming.update(tokens)
        self._moving.submit(self._keeping_failures, self._begin, dict(texts), tokens)

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Return the progress of revoked partitions, after their records in progress are finished."""
        for number in partitions:
            self._coming.pop(number, None)
        if not self._over:
            self._moving.submit(self._keeping_failures, self._close, [*partitions]).result()
            for number in partitions:
                if (handed := self._handed.get(number)) is not None:
                    while not (self._over or handed.wait(CHECK_INTERVAL_S)):
                        pass  # our outputs must precede the next owner's
        for number in partitions:
            self._handed.pop(number, None)
        known = {number: self._progress.pop(number, None) for number in partitions}
        return {number: committed(progress) for number, progress in known.items() if progress is not None}

    def _keeping_failures(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - `failure` reports it to the flow
            self._error = error

    def _begin(self, texts: dict[int, str | None], tokens: dict[int, object]) -> None:
        """Look up the progress of partitions, and outputs sent for them, before slow restores: queries are ours from
        now on."""
        coming = [number for number in texts if self._coming.get(number) is tokens[number]]
        if not coming:
            return
        ends = self.ends.ask()
        found = {number: self._known(number, texts[number]) for number in coming}
        known = {number: progress for number, progress in found.items() if progress is not None}
        known |= self._commit_initial_progress([number for number in coming if number not in known])
        sent = self._sent_before(known, ends)
        if self._stopping.is_set():  # the tails are incomplete, so the partition would wrongly count as clean
            return
        arrivals = {number: _Arrival(at, sent.get(number, set()), tokens[number]) for number, at in known.items()}
        if self.restore is None:
            self._open_all(arrivals)
            return
        for number, arrival in arrivals.items():
            self._restoring.submit(self._keeping_failures, self._fetch, number, arrival, self.restore)

    def _commit_initial_progress(self, unknown: list[int]) -> dict[int, PartitionProgress]:
        """Return the initial progress of partitions, after the group has committed it."""
        if not unknown:
            return {}
        found = self.initial_progress(unknown)
        self.commit({number: committed(progress) for number, progress in found.items()})
        # The commit precedes the first query: without it, the next owner would start at the end of queries by then.
        while not (self._over or self.is_committed(unknown)):
            time.sleep(PAUSE_S)
        return found

    def _fetch(self, number: int, arrival: _Arrival, restore: Restore) -> None:
        # A standby partition is open, so its folder cannot be replaced.
        restore(number, lambda: self._coming.get(number) is arrival.token and number not in self.source.standbys())
        if self._coming.get(number) is arrival.token:
            self._moving.submit(self._keeping_failures, self._open_all, {number: arrival})

    def _open_all(self, arrivals: dict[int, _Arrival]) -> None:
        coming = {number: one for number, one in arrivals.items() if self._coming.get(number) is one.token}
        if not coming:
            return
        with TopicReader(self.options) as reader:
            for number, arrival in coming.items():
                self._open(reader, number, arrival.progress, arrival.sent)
        if self._empty and not self._coming:  # one log line for all
            _log.info("%d empty partitions are assigned: %s", len(self._empty), ranges_of(self._empty))
            self._empty.clear()

    def _known(self, number: int, text: str | None) -> PartitionProgress | None:
        """Return the progress of a partition from the group, or else from its folder if the deployment is the same."""
        if (progress := PartitionProgress.parse(text)) is not None:
            return progress
        if self.directory is None or number not in self.directory.existing_numbers():
            return None
        kept = self.directory.partition(number).progress
        progress = None if kept is None else PartitionProgress.decode(kept)
        return progress if progress is not None and progress.deployment == self.deployment else None

    def _open(self, reader: TopicReader, number: int, at: PartitionProgress, sent: set[Identity]) -> None:
        partition = None if self.directory is None else self.directory.partition(number)
        first = at.memory.first
        if partition is not None:  # from the first record that the folder has not applied
            applied = partition.applied.get(f"{self._memory}:{number}", -1)
            first = min(first, max(at.began, applied + 1))
        memory = self._lane(reader, self._memory, number, at.memory, first, at.began)
        queries = self._lane(reader, self._queries, number, at.queries, at.queries.first)
        if self.by_tenants:
            queries.queue = RoundRobinQueue(at.queries.ahead)
        self._progress[number] = replace(at, generation=at.generation + 1)
        self._tails[number] = at.tails
        self._handed[number] = threading.Event()
        self._coming.pop(number, None)
        held = ""
        if partition is not None:
            unmark_released(partition.path)
            if (counts := partition.counts).owners:
                held = f", with {counts.memories} memories of {counts.owners} owners"
        self.sent.add(number, sent)
        if held or memory.next_offset or memory.end:
            _log.info(
                "partition %d is assigned%s; %s resumes at offset %d, %s at %d",
                number, held, memory.source, memory.next_offset, queries.source, at.queries.first,
            )  # fmt: skip
        else:
            self._empty.append(number)
        self.source.own(number, memory, queries)

    def _lane(self, reader: TopicReader, topic: str, number: int, at: LogProgress, first: int, least: int = 0) -> Lane:
        """Return a log to read from `first` on, and never before `least`. Raise SourceError."""
        low, high = reader.span(topic, number)
        of_queries = topic == self._queries
        if first < low and of_queries and self.give_up_unanswered:
            problem = "unanswered records were deleted from the topic and are skipped"
            _log.warning("%s:%d: %d %s", topic, number, low - first, problem)
            at, first = LogProgress(max(at.next_offset, low), at.since_ms, tuple(o for o in at.open if o >= low)), low
        if first < low:
            remedy = self.remedies.queries if of_queries else self.remedies.memories
            raise SourceError(
                describe_removal(f"{topic}:{number}", f"{low - first} records from offset {first} on are", remedy)
            )
        if at.next_offset > high:
            raise SourceError(
                f"{topic}:{number} ends at offset {high}, before our offset {at.next_offset}: the topic was recreated. "
                "Start another deployment (--deployment) with another state directory"
            )
        if self.counts():
            first = max(low, least, self._second_of(reader, topic, number, at, first, high))
        return lane_at(topic, number, at, high, first)

    def _second_of(self, reader: TopicReader, topic: str, number: int, at: LogProgress, first: int, high: int) -> int:
        """Return the offset of the first record in the second of `first`. Rate quotas read those records again, without
        outputs, so that their verdicts do not depend on the handover."""
        since_ms = at.since_ms
        if first < at.next_offset:  # records from `first` on are read again
            found = reader.firsts({(topic, number): (first, high)})
            since_ms = max(map(append_ms, found.values()), default=0)
        return first if since_ms == 0 else min(first, reader.offset_at(topic, number, since_ms // 1000 * 1000))

    def _close(self, partitions: list[int]) -> None:
        self.source.give_up([number for number in partitions if number in self._handed])

    # ------------------------------------------------------------------ outputs sent before

    def _sent_before(self, known: Mapping[int, PartitionProgress], ends: TopicOffsets) -> dict[int, set[Identity]]:
        """Return the identities of outputs in the tails, by partition, of records that are not done."""
        unclean = {number: progress for number, progress in known.items() if not progress.clean}
        if not unclean:
            return {}
        begin = earliest([at.tails or self.ends.at(at.at_ms) for at in unclean.values()], ends)
        self._check_there(begin, unclean)
        found: dict[int, set[Identity]] = {}

        def collect(message: Any) -> None:
            for identity in identity_of(message):
                try:
                    position = Position.parse(identity[0].decode())
                except ValueError:  # not written by recallflow
                    continue
                progress = unclean.get(position.partition)
                if progress is not None and not self._is_done(progress, position):
                    found.setdefault(position.partition, set()).add(identity)

        read_tails(self.options, begin, ends, self._stopping, collect)
        return found

    def _check_there(self, begin: TopicOffsets, unclean: Mapping[int, PartitionProgress]) -> None:
        """Raise OutputsGone if retention deleted outputs since a progress with unfinished records."""
        if (
            self.accept_repeats
            or (lost := self.ends.first_loss(begin, min(one.at_ms for one in unclean.values()))) is None
        ):
            return
        lacks = f"{lost} lacks outputs since the last barrier"
        raise OutputsGone(f"{lacks}, so outputs could be repeated: {self.remedies.outputs}")

    def _is_done(self, progress: PartitionProgress, position: Position) -> bool:
        """Return whether outputs of a record need not be looked up."""
        if position.topic == self._memory:
            return position.offset < progress.memory.first
        return position.topic != self._queries or progress.queries.is_done(position.offset)

    # ------------------------------------------------------------------ for the sink

    def commit_barriers(self, barriers: Collection[OutputBarrier]) -> None:
        """Advance the progress of partitions: all outputs before these barriers are delivered."""
        known: dict[int, Committed] = {}
        for barrier in barriers:
            if (given := self.source.barrier_progress(barrier.partition, barrier.number)) is None:
                continue  # a partition of a standby
            progress = self._progress_at(barrier, given)
            self._progress[barrier.partition] = progress
            if barrier.last:
                self._handed[barrier.partition].set()
            else:
                self.source.set_progress(barrier.partition, progress.encode(), has_open=any(barrier.pending.values()))
                known[barrier.partition] = committed(progress)
        if known:
            self.commit(known)

    def _progress_at(self, barrier: OutputBarrier, given: BarrierProgress) -> PartitionProgress:
        """Return the progress of a partition, from the records given up to a barrier and those unfinished at it."""
        before = self._progress[barrier.partition]
        held = barrier.pending.get(f"{self._memory}:{barrier.partition}", ())
        reached = max(before.memory.next_offset, min((given.memory.next_offset, *held)))
        memory = given.memory._replace(next_offset=reached, open=(), ahead=())
        asked = barrier.pending.get(f"{self._queries}:{barrier.partition}", ())
        still = tuple(sorted({*given.queries.open, *asked}))
        ahead = tuple(offset for offset in given.queries.ahead if offset not in asked)
        progress = replace(
            before,
            memory=memory,
            queries=given.queries._replace(open=still, ahead=ahead),
            tails=given.tails,
            at_ms=given.tails_ms,
            clean=False,
            deployment=self.deployment,
        )
        if self.sent.take_unclaimed(barrier.partition, barrier.number, partial(self._is_done, progress)):
            return replace(progress, tails=self._tails[barrier.partition], at_ms=before.at_ms)
        return replace(progress, tails={}, clean=True) if barrier.last else progress


def committed(progress: PartitionProgress) -> Committed:
    return Committed(progress.memory.first, progress.queries.first, progress.text())
