"""Ownership of partitions: assignment to this process and revocation, between the consumer group and the dataflow.

An assigned partition resumes at its progress. Memory is read from the first record that its folder has not applied;
records before the progress give no outputs. Queries are read from the first unanswered one. Outputs that were sent
already are looked up in the tails of the output topics: in their records since the last barrier. A partition without
progress gets an initial one, for which whole output topics are read (`initial_progress.py`)."""

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
from recallflow.connectors.kafka.input_scheduler import REMEDIES, Remedies, describe_removal
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

CONCURRENT_RESTORES = 2
PAUSE_S = 0.01
CHECK_INTERVAL_S = 1.0  # the delay until the end of the dataflow is noticed

_log = logging.getLogger(__name__)


class _Assigned(NamedTuple):
    """An assigned partition that is not open yet. `token` identifies the assignment."""

    progress: PartitionProgress
    earlier_outputs: set[Identity]
    token: object


@dataclass(eq=False)
class Ownership:
    """The partitions of one process. The membership calls `gain` and `give_up`; the sink calls `commit_barriers`."""

    options: KafkaOptions
    topics: tuple[str, str]  # the topic of memory, and that of queries
    directory: StateDirectory | None  # the folders of partitions; None for a flow without state
    source: OwnedSource
    earlier_outputs: EarlierOutputs  # identities of outputs that earlier owners sent
    ends: EndOffsetPoller  # the end offsets of the output topics
    commit: Callable[[Mapping[int, Committed]], None]  # commits progress to the group
    is_committed: Callable[[Collection[int]], bool]  # returns whether the group has the progress of these partitions
    _: KW_ONLY
    initial_progress: Callable[[Collection[int]], dict[int, PartitionProgress]]  # of partitions without a committed one
    deployment: str  # progress of other deployments is ignored
    restore: Restore | None = None  # restores a folder from a checkpoint, which may take long
    remedies: Remedies = REMEDIES  # remedies for deleted records, in messages
    round_robin_by_tenant: bool = True  # serve queries round robin by tenant, not in the order of the log
    needs_rate_history: Callable[[], bool] = lambda: False  # rate quotas need all records of the current second
    give_up_unanswered: bool = False  # skip queries that retention deleted
    accept_repeats: bool = False  # allow repeated outputs if retention deleted earlier outputs

    def __post_init__(self) -> None:
        self._memory, self._queries = self.topics
        self._progress: dict[int, PartitionProgress] = {}
        self._empty: list[int] = []  # open empty partitions that the next log line names
        self._tokens: dict[int, object] = {}  # assigned partitions that are not open yet → token of the assignment
        self._last_barriers: dict[int, threading.Event] = {}  # set once the last barrier of a partition is delivered
        self._tails: dict[int, TopicOffsets] = {}  # offsets from which outputs of earlier owners are looked up
        self._error: Exception | None = None
        self._has_ended = False  # the dataflow has ended
        self._stopping = self.source.stopping
        self._worker = ThreadPoolExecutor(1, "recallflow-moving")
        self._restore_workers = ThreadPoolExecutor(CONCURRENT_RESTORES, "recallflow-restoring")

    def failure(self) -> Exception | None:
        """Return the error that prevented the opening of a partition."""
        return self._error

    def end(self) -> None:
        """Stop all handovers, because the dataflow has ended."""
        self._has_ended = True
        for delivered in [*self._last_barriers.values()]:
            delivered.set()
        self._tokens.clear()
        self._restore_workers.shutdown(cancel_futures=True)
        self._worker.shutdown()

    # ------------------------------------------------------------------ for the membership

    def initial_commit(self, found: Committed) -> Committed:
        """Return the progress to commit when a clean partition becomes ours. Its tails are the current ends of outputs:
        everything we send comes after them, even if we crash before the first barrier."""
        if (progress := PartitionProgress.parse(found.text)) is None or not progress.clean:
            return found
        tails, at_ms = self.ends.latest()
        return committed(replace(progress, tails=tails, at_ms=at_ms, clean=False))

    def gain(self, texts: Mapping[int, str | None]) -> None:
        """Start to open assigned partitions, and return at once. `texts` is the metadata of their committed offsets."""
        tokens = {number: object() for number in texts}
        self._tokens.update(tokens)
        self._worker.submit(self._guard, self._prepare, dict(texts), tokens)

    def give_up(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Return the progress of revoked partitions, after their records in progress are finished."""
        for number in partitions:
            self._tokens.pop(number, None)
        if not self._has_ended:
            self._worker.submit(self._guard, self._close, [*partitions]).result()
            for number in partitions:
                if (delivered := self._last_barriers.get(number)) is not None:
                    while not (self._has_ended or delivered.wait(CHECK_INTERVAL_S)):
                        pass  # our outputs must precede the next owner's
        for number in partitions:
            self._last_barriers.pop(number, None)
        known = {number: self._progress.pop(number, None) for number in partitions}
        return {number: committed(progress) for number, progress in known.items() if progress is not None}

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - `failure` reports it to the flow
            self._error = error

    def _prepare(self, texts: dict[int, str | None], tokens: dict[int, object]) -> None:
        """Look up the progress and the earlier outputs of partitions. This precedes restores, which are slow, because
        queries that arrive meanwhile are ours to answer."""
        current = [number for number in texts if self._tokens.get(number) is tokens[number]]
        if not current:
            return
        ends = self.ends.ask()
        found = {number: self._known_progress(number, texts[number]) for number in current}
        known = {number: progress for number, progress in found.items() if progress is not None}
        known |= self._commit_initial_progress([number for number in current if number not in known])
        outputs = self._read_earlier_outputs(known, ends)
        if self._stopping.is_set():  # the outputs are incomplete, so the partition would wrongly count as clean
            return
        assigned = {number: _Assigned(at, outputs.get(number, set()), tokens[number]) for number, at in known.items()}
        if self.restore is None:
            self._open_all(assigned)
            return
        for number, one in assigned.items():
            self._restore_workers.submit(self._guard, self._restore_and_open, number, one, self.restore)

    def _commit_initial_progress(self, unknown: list[int]) -> dict[int, PartitionProgress]:
        """Return the initial progress of partitions, after the group has committed it."""
        if not unknown:
            return {}
        found = self.initial_progress(unknown)
        self.commit({number: committed(progress) for number, progress in found.items()})
        # The commit precedes the first query. Without it, the next owner would skip all queries up to its own start.
        while not (self._has_ended or self.is_committed(unknown)):
            time.sleep(PAUSE_S)
        return found

    def _restore_and_open(self, number: int, assigned: _Assigned, restore: Restore) -> None:
        # A standby partition is open, so its folder cannot be replaced.
        restore(number, lambda: self._tokens.get(number) is assigned.token and number not in self.source.standbys())
        if self._tokens.get(number) is assigned.token:
            self._worker.submit(self._guard, self._open_all, {number: assigned})

    def _open_all(self, assigned: dict[int, _Assigned]) -> None:
        current = {number: one for number, one in assigned.items() if self._tokens.get(number) is one.token}
        if not current:
            return
        with TopicReader(self.options) as reader:
            for number, one in current.items():
                self._open(reader, number, one.progress, one.earlier_outputs)
        if self._empty and not self._tokens:  # one log line for all
            _log.info("%d empty partitions are assigned: %s", len(self._empty), ranges_of(self._empty))
            self._empty.clear()

    def _known_progress(self, number: int, text: str | None) -> PartitionProgress | None:
        """Return the progress of a partition from the group, or else from its folder if the deployment is the same."""
        if (progress := PartitionProgress.parse(text)) is not None:
            return progress
        if self.directory is None or number not in self.directory.existing_numbers():
            return None
        stored = self.directory.partition(number).progress
        progress = None if stored is None else PartitionProgress.decode(stored)
        return progress if progress is not None and progress.deployment == self.deployment else None

    def _open(self, reader: TopicReader, number: int, at: PartitionProgress, outputs: set[Identity]) -> None:
        partition = None if self.directory is None else self.directory.partition(number)
        first = at.memory.first
        if partition is not None:  # from the first record that the folder has not applied
            applied = partition.applied.get(f"{self._memory}:{number}", -1)
            first = min(first, max(at.began, applied + 1))
        memory = self._lane(reader, self._memory, number, at.memory, first, at.began)
        queries = self._lane(reader, self._queries, number, at.queries, at.queries.first)
        if self.round_robin_by_tenant:
            queries.queue = RoundRobinQueue(at.queries.ahead)
        self._progress[number] = replace(at, generation=at.generation + 1)
        self._tails[number] = at.tails
        self._last_barriers[number] = threading.Event()
        self._tokens.pop(number, None)
        contents = ""
        if partition is not None:
            unmark_released(partition.path)
            if (counts := partition.counts).owners:
                contents = f", with {counts.memories} memories of {counts.owners} owners"
        self.earlier_outputs.add(number, outputs)
        if contents or memory.next_offset or memory.end:
            _log.info(
                "partition %d is assigned%s; %s resumes at offset %d, %s at %d",
                number, contents, memory.source, memory.next_offset, queries.source, at.queries.first,
            )  # fmt: skip
        else:
            self._empty.append(number)
        self.source.own(number, memory, queries)

    def _lane(self, reader: TopicReader, topic: str, number: int, at: LogProgress, first: int, least: int = 0) -> Lane:
        """Return a log to read from `first` on, and never before `least`. Raise SourceError."""
        low, high = reader.span(topic, number)
        has_queries = topic == self._queries
        if first < low and has_queries and self.give_up_unanswered:
            problem = "unanswered records were deleted from the topic and are skipped"
            _log.warning("%s:%d: %d %s", topic, number, low - first, problem)
            at, first = LogProgress(max(at.next_offset, low), at.since_ms, tuple(o for o in at.open if o >= low)), low
        if first < low:
            remedy = self.remedies.queries if has_queries else self.remedies.memories
            loss = f"{low - first} records from offset {first} on are"
            raise SourceError(describe_removal(f"{topic}:{number}", loss, remedy))
        if at.next_offset > high:
            raise SourceError(
                f"{topic}:{number} ends at offset {high}, before our offset {at.next_offset}: the topic was recreated. "
                "Start another deployment (--deployment) with another state directory"
            )
        if self.needs_rate_history():
            first = max(low, least, self._start_of_second(reader, topic, number, at, first, high))
        return lane_at(topic, number, at, high, first)

    def _start_of_second(
        self, reader: TopicReader, topic: str, number: int, at: LogProgress, first: int, high: int
    ) -> int:
        """Return the offset of the first record of the second in which the record at `first` was appended. Rate quotas
        count the records from there on, which give no outputs again, so that verdicts do not depend on a handover."""
        since_ms = at.since_ms
        if first < at.next_offset:  # records from `first` on are read again
            found = reader.first_records({(topic, number): (first, high)})
            since_ms = max(map(append_ms, found.values()), default=0)
        return first if since_ms == 0 else min(first, reader.offset_at(topic, number, since_ms // 1000 * 1000))

    def _close(self, partitions: list[int]) -> None:
        self.source.give_up([number for number in partitions if number in self._last_barriers])

    def _read_earlier_outputs(
        self, known: Mapping[int, PartitionProgress], ends: TopicOffsets
    ) -> dict[int, set[Identity]]:
        """Return the identities of outputs in the tails, by partition, for records that are not done."""
        unclean = {number: progress for number, progress in known.items() if not progress.clean}
        if not unclean:
            return {}
        begin = earliest([at.tails or self.ends.at(at.at_ms) for at in unclean.values()], ends)
        # Retention may have deleted outputs since a progress with unfinished records.
        since_ms = min(progress.at_ms for progress in unclean.values())
        if not self.accept_repeats and (lost := self.ends.first_loss(begin, since_ms)) is not None:
            problem = f"{lost} lacks outputs since the last barrier, so outputs could be repeated"
            raise OutputsGone(f"{problem}: {self.remedies.outputs}")
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

    def _is_done(self, progress: PartitionProgress, position: Position) -> bool:
        """Return whether outputs of a record need not be looked up."""
        if position.topic == self._memory:
            return position.offset < progress.memory.first
        return position.topic != self._queries or progress.queries.is_done(position.offset)

    # ------------------------------------------------------------------ for the sink

    def commit_barriers(self, barriers: Collection[OutputBarrier]) -> None:
        """Advance the progress of partitions: all outputs before these barriers are delivered."""
        to_commit: dict[int, Committed] = {}
        for barrier in barriers:
            if (emitted := self.source.barrier_progress(barrier.partition, barrier.number)) is None:
                continue  # a partition of a standby
            progress = self._progress_at(barrier, emitted)
            self._progress[barrier.partition] = progress
            if barrier.last:
                self._last_barriers[barrier.partition].set()
            else:
                self.source.set_progress(barrier.partition, progress.encode(), has_open=any(barrier.pending.values()))
                to_commit[barrier.partition] = committed(progress)
        if to_commit:
            self.commit(to_commit)

    def _progress_at(self, barrier: OutputBarrier, emitted: BarrierProgress) -> PartitionProgress:
        """Return the progress of a partition at a barrier. `emitted` counts all records that the source had emitted as
        done; `barrier.pending` has the offsets that the state had not finished."""
        before = self._progress[barrier.partition]
        open_memories = barrier.pending.get(f"{self._memory}:{barrier.partition}", ())
        memory_end = max(before.memory.next_offset, min((emitted.memory.next_offset, *open_memories)))
        open_queries = barrier.pending.get(f"{self._queries}:{barrier.partition}", ())
        unanswered = tuple(sorted({*emitted.queries.open, *open_queries}))
        ahead = tuple(offset for offset in emitted.queries.ahead if offset not in open_queries)
        progress = replace(
            before,
            memory=emitted.memory._replace(next_offset=memory_end, open=(), ahead=()),
            queries=emitted.queries._replace(open=unanswered, ahead=ahead),
            tails=emitted.tails,
            at_ms=emitted.tails_ms,
            clean=False,
            deployment=self.deployment,
        )
        if self.earlier_outputs.forget_barrier(barrier, partial(self._is_done, progress)):  # some are unclaimed
            return replace(progress, tails=self._tails[barrier.partition], at_ms=before.at_ms)
        return replace(progress, tails={}, clean=True) if barrier.last else progress


def committed(progress: PartitionProgress) -> Committed:
    return Committed(progress.memory.first, progress.queries.first, progress.text())
