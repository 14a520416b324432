"""Lines as Bytewax reads them: a source of records, and a sink that hands outputs over in the order of the records."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from recallflow.connectors.lines import Delivered, Delivery, Feed, Offsets, Turns
from recallflow.outputs import Done
from recallflow.records import Position, Record

PART = "embedded"
AT_ONCE = datetime.fromtimestamp(0, UTC)


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
