"""Inputs of an engine in this process: lines of files, and records of callers on other threads."""

import io
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import islice
from typing import BinaryIO

from recallflow.credentials import Headers
from recallflow.errors import SourceError
from recallflow.outputs import Ack, Answer, DeadLetter, ReceiptOutput
from recallflow.records import Position, Record

Delivered = Answer | ReceiptOutput | DeadLetter
Delivery = Callable[[int, list[Delivered]], None]  # called with the offset of a record, and its outputs
OnPosition = Callable[[Position], None]

BATCH_RECORDS = 256  # the prepared data of a batch stays in the processor's cache until it is applied
MAX_QUEUED_READS = 16  # of `read_ahead`
READ_BYTES = 64 * 1024
WAIT_S = 0.01
SKIP_BYTES = 1024 * 1024  # size of each read that skips the rest of a line that is too long


def bounded_lines(file: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """Yield lines without their line feed. A longer line is cut to `limit_bytes`, and its rest is skipped."""
    while line := file.readline(limit_bytes + 1):
        if line.endswith(b"\n") or len(line) <= limit_bytes:
            yield line.removesuffix(b"\n")
            continue
        yield line[:limit_bytes]
        while (rest := file.readline(SKIP_BYTES)) and not rest.endswith(b"\n"):
            pass


def batches_of_lines(file: io.BufferedIOBase, limit_bytes: int) -> Iterator[list[bytes]]:
    """Yield the same lines as `bounded_lines`, one list for each read: a queue then has one item per read."""
    rest, is_cut = b"", False
    while data := file.read1(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if is_cut and lines:  # this is the rest of a line whose beginning was yielded
            del lines[0]
            is_cut = False
        elif is_cut:
            rest = b""
        lines = [line if len(line) <= limit_bytes else line[:limit_bytes] for line in lines]
        if len(rest) > limit_bytes:
            lines.append(rest[:limit_bytes])
            rest, is_cut = b"", True
        if lines:
            yield lines
    if rest:
        yield [rest]


def batched(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield lines in batches of up to `BATCH_RECORDS`."""
    return iter(lambda: [*islice(lines, BATCH_RECORDS)], [])


def read_ahead(batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield lines that a thread reads from a slow input, or none after a short wait. Raise the error of the input."""
    read: queue.Queue[list[bytes] | BaseException] = queue.Queue(MAX_QUEUED_READS)
    threading.Thread(target=_pump, args=(batches, read), daemon=True, name="recallflow-input").start()
    end: BaseException | None = None
    while end is None:
        batch: list[bytes] = []
        with suppress(queue.Empty):
            while len(batch) < BATCH_RECORDS and end is None:
                got = read.get(block=not batch, timeout=WAIT_S)
                if isinstance(got, BaseException):
                    end = got
                else:
                    batch += got
        if batch or end is None:
            yield batch
    if not isinstance(end, StopIteration):
        raise end


def _pump(batches: Iterator[list[bytes]], read: queue.Queue[list[bytes] | BaseException]) -> None:
    try:
        for lines in batches:
            read.put(lines)
        read.put(StopIteration())
    except BaseException as error:  # noqa: BLE001 - the reader of the queue raises it
        read.put(error)


def split_batches(batches: Iterator[list[bytes]], ends_batch: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
    """Split batches after each line for which `ends_batch` is true."""
    for lines in batches:
        begin = 0
        for end, line in enumerate(lines, 1):
            if ends_batch(line):
                yield lines[begin:end]
                begin = end
        if begin < len(lines) or not lines:
            yield lines[begin:]


# A batch takes about 10 ms, which delays a query of another tenant.
EVENTS_BATCH, QUERIES_BATCH = 4, 1
# Limit of a tenant's queued records. Cancelled records stay in the queue while the engine is paused.
QUEUED_MAX = 1_024
SERVED_MAX = 10_000  # tenants whose last turn is kept


class LocalCall:
    """A record of a caller, with its outcome. `record` is set when the engine takes it from the queue."""

    record: Record

    def __init__(self, value: bytes, headers: Headers, on_position: OnPosition) -> None:
        self.value, self.headers, self.on_position = value, headers, on_position
        self.is_wanted = True  # whether the caller still waits
        self.outcome: Future[Delivered] = Future()
        self.outcome.set_running_or_notify_cancel()  # so that a caller who gives up cannot cancel it


class LocalCalls:
    """Queue of calls from callers, on any thread, to the engine, on its own thread. `events` and `queries` are the
    names of the two logs. Setting `wake` ends the engine's idle wait."""

    def __init__(self, events: str, queries: str, wake: threading.Event | None = None) -> None:
        self.topics = (queries, events)
        self.queries = queries
        self.taken_counts = dict.fromkeys(self.topics, 0)
        self.wake = wake or threading.Event()
        self._now_ms = 0
        self.has_begun = False  # whether the engine ever took records
        self._next_offsets: dict[str, int] = {}  # by log
        self._queues = {topic: _TenantQueues() for topic in self.topics}
        self._waiting = set[LocalCall]()  # open calls, queued or taken: without an outcome, and their callers wait
        self._taken_calls: dict[Position, LocalCall] = {}
        self.in_flight = 0  # records that were taken and are unfinished
        # Reasons; empty while they do not apply.
        self.obstacle = "starting"  # why the engine is not ready
        self.ended = ""  # why the engine was stopped or has failed: it accepts no further records
        self.failure = ""  # why the engine has failed: queued records will never be processed
        self._interrupted = ""  # why records are refused temporarily
        self._is_closed = False  # whether `end` waits no longer: the engine ends when the queues are empty
        self._changed = threading.Condition()

    # ------------------------------------------------------------------ called by callers

    @contextmanager
    def put(
        self, topic: str, tenant_id: str, value: bytes, headers: Headers, on_position: OnPosition = lambda _: None
    ) -> Iterator[LocalCall]:
        """Queue a record of a tenant. The caller waits within the block; a query whose block has ended is skipped.

        The engine calls `on_position` before it applies the record. Raise SourceError if the engine refuses records."""
        call = LocalCall(value, headers, on_position)
        with self._changed:
            if reason := self.ended or self._interrupted:
                raise SourceError(reason)
            if self._queues[topic].count(tenant_id) >= QUEUED_MAX:
                raise SourceError(f"{QUEUED_MAX:,} records of this tenant wait for the engine: try again later")
            self._queues[topic].append(tenant_id, call)
            self._waiting.add(call)
        self.wake.set()
        try:
            yield call
        finally:
            with self._changed:
                call.is_wanted = False
                self._waiting.discard(call)
                self._changed.notify_all()

    def end(self, reason: str, patience_s: float) -> None:
        """Refuse new records with a reason. Wait at most `patience_s` for all open calls; then the engine ends."""
        with self._changed:
            self.ended = self.obstacle = self.ended or reason
            self._changed.wait_for(lambda: not self._waiting, patience_s)
            self._is_closed = True
            self._changed.notify_all()
        self.wake.set()

    def fail(self, reason: str) -> None:
        with self._changed:
            self.ended = self.obstacle = self.ended or reason
            self.failure = reason
        self._fail_waiting(reason)

    def interrupt(self, reason: str) -> None:
        """Fail open calls with a reason, and refuse new ones until the engine begins again. Applied events stay."""
        with self._changed:
            self._interrupted = reason
            self.obstacle = self.ended or reason
            self._queues = {topic: _TenantQueues() for topic in self.topics}
            self.in_flight = 0
        self._fail_waiting(reason)

    def _fail_waiting(self, reason: str) -> None:
        with self._changed:
            failed, self._waiting = self._waiting, set()
            self._taken_calls.clear()
            self._changed.notify_all()
        for call in failed:
            call.outcome.set_exception(SourceError(reason))

    def is_ended_within(self, seconds: float) -> bool:
        """Wait until `end` has finished. Return whether it did so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)

    def queued(self) -> dict[str, int]:
        return {topic: len(queues) for topic, queues in self._queues.items()}

    def await_begin(self) -> None:
        """Wait until the engine accepts records, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self.obstacle or bool(self.ended))

    # ------------------------------------------------------------------ called by the engine

    def begin(self, offsets: Mapping[str, int]) -> None:
        """Accept records. Their positions begin at these offsets."""
        self.has_begun = True
        with self._changed:
            self._next_offsets = {
                topic: max(offset, self._next_offsets.get(topic, 0)) for topic, offset in offsets.items()
            }
            self._interrupted = ""
            self.obstacle = self.ended
            self._changed.notify_all()

    def take(self) -> list[Record]:
        """Return the next records, queries first. Raise StopIteration at the end."""
        with self._changed:
            if self._is_closed and not any(map(len, self._queues.values())):
                raise StopIteration
            events = self._take_from(self.topics[1], EVENTS_BATCH)
            taken = [*self._take_from(self.queries, QUERIES_BATCH), *events]
            self.in_flight += len(taken)
        return taken

    def _take_from(self, topic: str, limit: int) -> list[Record]:
        """Take records of a log in round robin over tenants. They get their positions in this order."""
        queues, records = self._queues[topic], list[Record]()
        while len(queues) and len(records) < limit:
            call = queues.popleft()
            if topic == self.queries and not call.is_wanted:
                continue
            self._now_ms = max(self._now_ms, time.time_ns() // 1_000_000)  # append times never decrease
            position = Position(topic, 0, self._next_offsets[topic])
            self._next_offsets[topic] += 1
            call.record = Record(position, call.value, self._now_ms, headers=call.headers)
            if call.is_wanted:
                self._taken_calls[position] = call
            call.on_position(position)
            records.append(call.record)
        self.taken_counts[topic] += len(records)
        return records

    def deliver(self, outputs: Iterable[Delivered | Ack]) -> None:
        """Pass each output to its waiting caller. Outputs of records of an earlier process have no caller."""
        for output in outputs:
            if isinstance(output, Ack):
                self.in_flight -= len(output.offsets)
            # A refused query has a dead letter and an answer; its caller gets the answer.
            elif output.position.topic != self.queries or isinstance(output, Answer):
                with self._changed:
                    if (call := self._taken_calls.pop(output.position, None)) is None:
                        continue
                    self._waiting.discard(call)
                    self._changed.notify_all()
                call.outcome.set_result(output)


class _TenantQueues:
    """Queued calls by tenant. The tenant with the oldest last turn is next."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[LocalCall]] = {}
        self._served: dict[str, int] = {}  # number of each tenant's last turn, ascending
        self._turns = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def count(self, tenant_id: str) -> int:
        return len(self._queues.get(tenant_id, ()))

    def append(self, tenant_id: str, call: LocalCall) -> None:
        self._queues.setdefault(tenant_id, deque()).append(call)

    def popleft(self) -> LocalCall:
        tenant_id = min(self._queues, key=lambda one: self._served.get(one, 0))
        queue = self._queues[tenant_id]
        call = queue.popleft()
        if not queue:
            del self._queues[tenant_id]
        self._turns += 1
        self._served.pop(tenant_id, None)
        self._served[tenant_id] = self._turns
        if len(self._served) > SERVED_MAX:
            del self._served[next(iter(self._served))]
        return call
