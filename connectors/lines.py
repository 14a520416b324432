"""Embedded source and sink: records from anything that gives lines, outputs handed over in the order of the records."""

import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import BinaryIO, Protocol

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from recallflow.checked import Checked
from recallflow.outputs import Answer, DeadLetter, Done, Receipted
from recallflow.records import Position, Record

Delivered = Answer | Receipted | DeadLetter
Delivery = Callable[[int, list[Delivered]], None]  # the offset of a record, and its outputs

BATCH_RECORDS = 1_024
PUMPED_BATCHES = 4
WAIT_S = 0.01
PART = "embedded"
AT_ONCE = datetime.fromtimestamp(0, UTC)
REST_BYTES = 1024 * 1024


def bounded_lines(file: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """Lines without their line feed; a longer one is cut to `limit_bytes`, and its rest never held."""
    while line := file.readline(limit_bytes + 1):
        if line.endswith(b"\n") or len(line) <= limit_bytes:
            yield line.removesuffix(b"\n")
            continue
        yield line[:limit_bytes]
        while (rest := file.readline(REST_BYTES)) and not rest.endswith(b"\n"):
            pass


class Feed(Protocol):
    """Where lines come from."""

    def take(self) -> list[bytes]:
        """The lines that are there, at most a batch; none where the next is still awaited. StopIteration at the end."""


class IteratorFeed:
    """Lines that are at hand: a list, a file."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def take(self) -> list[bytes]:
        if not (batch := list(islice(self._lines, BATCH_RECORDS))):
            raise StopIteration
        return batch


class PumpFeed:
    """Lines that may be slow to come: a thread reads ahead, so that the dataflow never blocks on its input."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._queue: queue.Queue[list[bytes] | BaseException] = queue.Queue(PUMPED_BATCHES * BATCH_RECORDS)
        threading.Thread(target=self._pump, args=(lines,), daemon=True, name="recallflow-input").start()

    def _pump(self, lines: Iterator[bytes]) -> None:
        try:
            for line in lines:
                self._queue.put([line])
            self._queue.put(StopIteration())
        except BaseException as error:  # noqa: BLE001 handed to the dataflow, which raises it
            self._queue.put(error)

    def take(self) -> list[bytes]:
        batch: list[bytes] = []
        while len(batch) < BATCH_RECORDS:
            try:
                got = self._queue.get(block=not batch, timeout=WAIT_S)
            except queue.Empty:
                return batch
            if isinstance(got, BaseException):
                if batch:
                    self._queue.put(got)
                    return batch
                raise got
            batch += got
        return batch


class Offsets(Checked, dict[str, int]):
    """The next offset of each topic that was ever read into a state directory."""

    def _fields(self) -> tuple[dict[str, int]]:
        return (dict(self),)


class LineSource(FixedPartitionedSource[Record, Offsets]):
    """Records `topic:0:offset` from lines. One part for every embedded source a state directory ever sees: its resume
    state holds the next offset of each topic, as Bytewax knows parts by the ones the first run had."""

    def __init__(
        self,
        topic: str,
        open_feed: Callable[[int], Feed],
        floor: int,
        clock_ms: Callable[[], int],
        ends_turn: Callable[[bytes], bool],
    ) -> None:
        """`open_feed(offset)` gives the lines from that offset on; `floor` is the lowest offset to begin at;
        `clock_ms` stamps the records. After a line that `ends_turn`, none is taken before its outputs are handed over:
        what an answer changes (a verdict on the graph) holds for the next line, however many come at once."""
        self.topic = topic
        self._open_feed = open_feed
        self._floor = floor
        self._clock_ms = clock_ms
        self._ends_turn = ends_turn
        self.first_offset = floor
        self.delivered = floor  # all outputs of the records before this offset are handed over

    def list_parts(self) -> list[str]:
        return [PART]

    def build_part(self, step_id: str, for_part: str, resume_state: Offsets | None) -> "LinePart":  # noqa: ARG002
        resumed = resume_state or Offsets()
        self.first_offset = max(resumed.get(self.topic, 0), self._floor)
        self.delivered = self.first_offset
        feed = Turns(self._open_feed(self.first_offset), self._ends_turn)
        offsets = Offsets({**resumed, self.topic: self.first_offset})
        return LinePart(self.topic, feed, self._clock_ms, offsets, lambda: self.delivered)


class Turns:
    """The lines of a feed in batches: each ends with a line that ends a turn."""

    def __init__(self, feed: Feed, ends_turn: Callable[[bytes], bool]) -> None:
        self._feed = feed
        self._ends_turn = ends_turn
        self._held: deque[bytes] = deque()
        self.ended = False  # whether the last batch ended a turn

    def take(self) -> list[bytes]:
        if not self._held:
            self._held.extend(self._feed.take())
        batch: list[bytes] = []
        self.ended = False
        while self._held and not self.ended:
            batch.append(self._held.popleft())
            self.ended = self._ends_turn(batch[-1])
        return batch


class LinePart(StatefulSourcePartition[Record, Offsets]):
    def __init__(
        self,
        topic: str,
        feed: Turns,
        clock_ms: Callable[[], int],
        offsets: Offsets,
        delivered: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._feed = feed
        self._clock_ms = clock_ms
        self._offsets = offsets
        self._delivered = delivered

    def next_batch(self) -> list[Record]:
        if self._waits():
            return []
        lines = self._feed.take()
        now_ms, first = self._clock_ms(), self._offsets[self._topic]
        self._offsets[self._topic] = first + len(lines)
        return [
            Record(Position(self._topic, 0, first + i), line, now_ms, append_logged=False)
            for i, line in enumerate(lines)
        ]

    def next_awake(self) -> datetime | None:
        return AT_ONCE if self._waits() else None  # an answer takes about as long as Bytewax would rest

    def _waits(self) -> bool:
        """Whether the last line ended a turn, and is not through."""
        return self._feed.ended and self._delivered() < self._offsets[self._topic]

    def snapshot(self) -> Offsets:
        return Offsets(self._offsets)


class LineSink(FixedPartitionedSink[Delivered | Done, None]):
    """Hands over the outputs of each record once every record before it is through: state partitions run at their own
    pace, and a quick answer would overtake a slow one."""

    def __init__(self, source: LineSource, deliver: Delivery) -> None:
        """`deliver(offset, outputs)` is called for every record of the run, in order; most have no outputs."""
        self._source = source
        self._deliver = deliver

    def list_parts(self) -> list[str]:
        return [PART]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> "InOrder":  # noqa: ARG002
        return InOrder(self._source, self._deliver)


class InOrder(StatefulSinkPartition[Delivered | Done, None]):
    def __init__(self, source: LineSource, deliver: Delivery) -> None:
        self._source = source
        self._deliver = deliver
        self._next: int | None = None
        self._outputs: dict[int, list[Delivered]] = defaultdict(list)
        self._done: set[int] = set()

    def write_batch(self, values: list[Delivered | Done]) -> None:
        for output in values:
            if isinstance(output, Done):
                self._done.update(output.offsets)
            elif output.position.topic == self._source.topic:  # else what an earlier run of another feed had waiting
                self._outputs[output.position.offset].append(output)
        if self._next is None:
            self._next = self._source.first_offset
        while self._next in self._done:
            self._done.remove(self._next)
            self._deliver(self._next, self._outputs.pop(self._next, []))
            self._next += 1
            self._source.delivered = self._next

    def snapshot(self) -> None:
        return None
