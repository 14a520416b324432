"""Source and sink for callers in this process: records as they are put, and what comes of each for whoever waits.

Events and questions have a log each, as on Kafka: a question that waits holds no event up, nor the other way round.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from recallflow.connectors.lines import AT_ONCE, PART, Offsets
from recallflow.credentials import Headers
from recallflow.errors import SourceError
from recallflow.outputs import Answer, DeadLetter, Done, Receipted
from recallflow.records import Position, Record

Outcome = Answer | Receipted | DeadLetter

# A question waits for at most one batch of events.
EVENTS_BATCH, QUERIES_BATCH = 16, 64
# Records of a log that are not taken yet: those whose caller gave up stay among them while the dataflow stands.
QUEUED_MAX = 1_024
# Whoever puts a record wakes the worker. It rests no longer than this where it has taken some that are not answered:
# they may take steps, or wait for a time.
WAIT_S, IDLE_WAIT_S = 0.001, 0.05


class Call:
    """One record under way, and what came of it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.outcome: Future[Outcome] = Future()
        self.outcome.set_running_or_notify_cancel()  # who waits may give up; what comes then has nobody to go to


class Calls:
    """What is under way between callers, on any thread, and the dataflow, on its own. `events` and `queries` name the
    two logs; `wake` ends the dataflow's wait, for whoever else has news for it."""

    def __init__(
        self,
        events: str,
        queries: str,
        wake: threading.Event | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.topics = (queries, events)
        self.queries = queries
        self.given = dict.fromkeys(self.topics, 0)
        self._wake = wake or threading.Event()
        self._clock_ms = clock_ms
        self._now_ms = 0
        self._lock = threading.Lock()
        self._next = Offsets()
        self._queued: dict[str, deque[Call]] = {topic: deque() for topic in self.topics}
        self._waiting: dict[Position, Call] = {}
        self._in_flight = 0
        self.obstacle = "starting"  # why no record can be put; empty where one can
        self._ended = ""  # why no record is taken any more
        self._ends = False
        self._news = threading.Condition(self._lock)

    # ------------------------------------------------------------------ callers

    @contextmanager
    def put(
        self, topic: str, value: bytes, headers: Headers, placed: Callable[[Position], None] = lambda _: None
    ) -> Iterator[Call]:
        """Gives a record its place in a log, and has it taken. Within, its outcome can be waited for: a question that
        nobody waits for any more is not asked. Raises SourceError where the dataflow has ended, or takes nothing.
        `placed` is told the place before the record is taken."""
        with self._lock:
            if self._ended:
                raise SourceError(self._ended)
            if len(self._queued[topic]) >= QUEUED_MAX:
                raise SourceError(f"the engine is behind: {QUEUED_MAX:,} wait for it; try again later")
            self._now_ms = max(self._now_ms, self._clock_ms())  # a log's time never goes back
            position = Position(topic, 0, self._next[topic])
            self._next[topic] += 1
            call = Call(Record(position, value, self._now_ms, headers=headers))
            self._waiting[position] = call
            placed(position)
            self._queued[topic].append(call)
        self._wake.set()
        try:
            yield call
        finally:
            with self._news:
                self._waiting.pop(position, None)
                self._news.notify_all()

    def end(self, reason: str, patience_s: float) -> None:
        """No record is taken any more: who puts one is told the reason. Those under way are seen to their end, unless
        that takes longer than `patience_s`; then the dataflow ends."""
        with self._news:
            self._ended = self.obstacle = self._ended or reason
            self._news.wait_for(lambda: not self._waiting, patience_s)
            self._ends = True
        self._wake.set()

    def fail(self, reason: str) -> None:
        """The dataflow has ended: nothing comes of anything any more."""
        with self._news:
            self._ended = self.obstacle = self._ended or reason
            waiting, self._waiting = [*self._waiting.values()], {}
            self._news.notify_all()
        for call in waiting:
            call.outcome.set_exception(SourceError(reason))

    @property
    def in_flight(self) -> int:
        """Records taken that are not through."""
        return self._in_flight

    def queued(self) -> dict[str, int]:
        """Records by log that are not taken yet."""
        return {topic: len(calls) for topic, calls in self._queued.items()}

    def await_begin(self) -> None:
        """Returns once records can be put, or never will be."""
        with self._news:
            self._news.wait_for(lambda: not self.obstacle or bool(self._ended))

    # ------------------------------------------------------------------ the dataflow

    def begin(self, offsets: Offsets) -> None:
        """The dataflow takes records, which are numbered from here on."""
        with self._news:
            self._next = offsets
            self.obstacle = self._ended
            self._news.notify_all()

    def take(self) -> list[Record]:
        """The next records: questions first. Raises StopIteration at the end."""
        with self._lock:
            if self._ends and not any(self._queued.values()):
                raise StopIteration
            events = self._taken(self.topics[1], EVENTS_BATCH)
            taken = [*self._taken(self.queries, QUERIES_BATCH), *events]
            self._in_flight += len(taken)
        return taken

    def _taken(self, topic: str, most: int) -> list[Record]:
        queued, records = self._queued[topic], list[Record]()
        while queued and len(records) < most:
            call = queued.popleft()
            if topic != self.queries or call.record.position in self._waiting:
                records.append(call.record)
        self.given[topic] += len(records)
        return records

    def wait(self) -> None:
        """Waits for a record, or for other news; not while something is on its way through the dataflow."""
        if self._in_flight == 0:
            self._wake.wait(WAIT_S if self._waiting else IDLE_WAIT_S)
        self._wake.clear()

    def offsets(self) -> Offsets:
        """What the next records are numbered, of those that were not taken the first."""
        with self._lock:
            first = {topic: queued[0].record.position.offset for topic, queued in self._queued.items() if queued}
            return Offsets(self._next | first)

    def deliver(self, output: Outcome | Done) -> None:
        """Hands an output to whoever waits for it. Outputs of an earlier run's records have nobody."""
        if isinstance(output, Done):
            self._in_flight -= len(output.offsets)
            return
        if output.position.topic == self.queries and not isinstance(output, Answer):
            return  # a refused question is answered as well
        with self._news:
            call = self._waiting.pop(output.position, None)
            self._news.notify_all()
        if call is not None:
            call.outcome.set_result(output)


class CallSource(FixedPartitionedSource[Record, Offsets]):
    """Records as callers put them. Its part is that of lines: both number logs of one state directory."""

    def __init__(self, calls: Calls, floors: dict[str, int]) -> None:
        """`floors`: the lowest offset of each log that is new."""
        self._calls = calls
        self._floors = floors

    def list_parts(self) -> list[str]:
        return [PART]

    def build_part(self, step_id: str, for_part: str, resume_state: Offsets | None) -> "CallPart":  # noqa: ARG002
        resumed = resume_state or Offsets()
        firsts = {topic: max(resumed.get(topic, 0), self._floors.get(topic, 0)) for topic in self._calls.topics}
        self._calls.begin(Offsets(resumed | firsts))
        return CallPart(self._calls)


class CallPart(StatefulSourcePartition[Record, Offsets]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def next_batch(self) -> list[Record]:
        records = self._calls.take()
        if not records:
            self._calls.wait()
        return records

    def next_awake(self) -> datetime:
        return AT_ONCE  # `wait` paces; Bytewax would rest 1 ms after each empty batch

    def snapshot(self) -> Offsets:
        return self._calls.offsets()


class CallSink(FixedPartitionedSink[Outcome | Done, None]):
    """Outputs as they come, each to its caller."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def list_parts(self) -> list[str]:
        return [PART]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "ToCallers":  # noqa: ARG002
        return ToCallers(self._calls)


class ToCallers(StatefulSinkPartition[Outcome | Done, None]):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def write_batch(self, values: list[Outcome | Done]) -> None:
        for output in values:
            self._calls.deliver(output)

    def snapshot(self) -> None:
        return None
