"""The Kafka sink: checked deliveries, and no output twice.

Each output carries its identity in headers: the position of the record it comes from, and its number among that
record's outputs. After a crash the dataflow sends again what it had sent since the last snapshot; on build a part
reads its partition's tail from the snapshotted offset on, and drops every output that is already there.

Outputs come in a size that their topic takes. One that the brokers refuse all the same is sent again alone, as a batch
is refused as a whole, then replaced by what stands in for it, so that no output stops the flow for good.

Bytewax's own Kafka sink is a `DynamicSink`: its progress is not part of the snapshot, and it ignores delivery errors.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from recallflow.brokers.options import KafkaOptions
from recallflow.checked import Checked
from recallflow.connectors.kafka.closing import Closing
from recallflow.connectors.kafka.messages import time_ms
from recallflow.connectors.kafka.outgoing import Identity, Outgoing, identity_of
from recallflow.connectors.kafka.partitions import part_name
from recallflow.connectors.kafka.patience import OUTAGE_S, Patience
from recallflow.connectors.kafka.sender import FLUSH_STEP_S, Sender
from recallflow.connectors.kafka.topic_reader import TAIL, TopicReader
from recallflow.errors import RecallflowError, SinkError

_log = logging.getLogger(__name__)

Permit = Callable[[Callable[[], Patience]], None]


@dataclass(frozen=True, slots=True)
class Delivered(Checked):
    """A part's resume state: everything below `offset` is known; `unclaimed` stands in the tail from before a crash,
    and the dataflow has not sent it again yet. All this is of the topic of that id, not of one made in its place."""

    offset: int
    unclaimed: tuple[Identity, ...]
    topic_id: str = ""  # of a part that has no snapshot yet


class KafkaSink(FixedPartitionedSink[Outgoing, Delivered]):
    """One part per partition of each output topic. Items are keyed by the part they go to (`part_name`)."""

    def __init__(
        self,
        options: KafkaOptions,
        *,
        partitions: Mapping[str, int],
        begin: Mapping[str, int],
        ids: Mapping[str, str],
        most_bytes: Mapping[str, int],
        sources: Iterable[str],
        permit: Permit = lambda _: None,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        closing: Closing | None = None,
    ) -> None:
        """`partitions`: topic → how many. `begin`: part → its offset when the state directory was new: what stands
        before is of no concern to a part that has no snapshot yet. `ids`: topic → its id as it is now, which changes
        where the topic is made anew. `most_bytes`: topic → how large a record it takes. `sources`: the topics whose
        records outputs come from; what else is in an output topic is somebody else's. `permit` is called before each
        send: it returns, or raises once the patience it can ask for has ended. `outage_s`: so long an output waits for
        brokers that are away; once `stopping` is set, much shorter."""
        self.partitions = dict(partitions)
        self.most_bytes = most_bytes
        self.sources = frozenset(topic.encode() for topic in sources)
        self.options = options
        self.ids = ids
        self.stopping = stopping or threading.Event()
        self.closing = closing or Closing()
        self._permit = permit
        self._outage_s = outage_s
        self._begin = begin
        self._senders: dict[int, OutputSender] = {}
        self._starting = threading.Lock()
        self._index = {part: number for number, part in enumerate(self.list_parts())}

    def list_parts(self) -> list[str]:
        # Bytewax sorts parts by name and numbers them so: zero-padded, both orders are one.
        return sorted(part_name(topic, n) for topic, count in self.partitions.items() for n in range(count))

    def part_fn(self, item_key: str) -> int:
        return self._index[item_key]

    def build_part(self, step_id: str, for_part: str, resume_state: Delivered | None) -> "SinkPart":  # noqa: ARG002
        topic, number = for_part.rsplit(":", 1)
        with self._starting:
            worker = threading.get_ident()
            if worker not in self._senders:
                self._senders[worker] = OutputSender(
                    self.options, self.most_bytes, self._permit, self._outage_s, self.stopping
                )
            sender = self._senders[worker]
        return SinkPart(self, sender, topic, int(number), resume_state or Delivered(self._begin.get(for_part, 0), ()))


class OutputSender(Sender):
    """Sends the outputs of all parts of a worker."""

    def __init__(
        self,
        options: KafkaOptions,
        most_bytes: Mapping[str, int],
        permit: Permit,
        outage_s: float,
        stopping: threading.Event,
        expired: Callable[[str], RecallflowError] = SinkError,
    ) -> None:
        def patience() -> Patience:
            return Patience(outage_s, stopping)

        super().__init__(
            options,
            most_bytes,
            then="it is sent again on restart",
            permit=lambda: permit(patience),
            expired=expired,
            chosen={"message.timeout.ms": round(1000 * outage_s)},
        )
        self._stopping = stopping
        self._outage_s = outage_s
        self._refused: list[_Refused] = []
        self._barrier = 0
        self._open = Counter[int]()  # outputs that are not acknowledged, by the barrier before which they were sent

    def barrier(self) -> int:
        """Return the number of a barrier behind all outputs sent so far."""
        self._barrier += 1
        return self._barrier - 1

    def first_open(self) -> int:
        """Return the first barrier before which an output is not acknowledged."""
        return min(self._open, default=self._barrier)

    def deliver(self, topic: str, partition: int, outgoing: Outgoing, delivered: Callable[[int], None]) -> None:
        """Hands over one output. Raises SinkError where an earlier one failed."""

        barrier = self._barrier

        def taken_in(message: Any) -> None:
            self._open[barrier] -= 1
            if not self._open[barrier]:
                del self._open[barrier]
            delivered(message.offset())
            if outgoing.delivered is not None:
                outgoing.delivered(time_ms(message))

        self._open[barrier] += 1
        self.send(
            topic,
            outgoing.value,
            outgoing.key,
            partition=partition,
            headers=outgoing.all_headers,
            delivered=taken_in,
            refused=lambda why: self._refused.append(_Refused(topic, partition, outgoing, delivered, why)),
        )

    def flush_outputs(self) -> None:
        """Returns once the brokers have acknowledged every output sent so far, or what stands in for it. Raises
        SinkError."""
        self._flush()
        refused, self._refused = self._refused, []
        for one in refused:
            self._deliver_alone(one)
        self._open.clear()  # also of outputs that were left out

    def poll_outputs(self) -> None:
        """Serves delivery reports, and sends again what was refused. Raises SinkError."""
        self.poll()
        if self._refused:
            self.flush_outputs()

    def _deliver_alone(self, refused: "_Refused") -> None:
        topic, partition, outgoing, delivered, reason = refused
        if self._is_taken(refused):
            return
        where = f"{topic}:{partition}: an output of {outgoing.source}"
        _log.error("%s was refused: %s", where, reason)
        stand_in = outgoing.instead and outgoing.instead(reason)
        if stand_in is None or not self._is_taken(_Refused(topic, partition, stand_in, delivered, reason)):
            _log.error("%s is left out: the topic takes nothing in its place either; check the topic's settings", where)

    def _is_taken(self, refused: "_Refused") -> bool:
        """Sends one record with nothing else underway. Whether the brokers took it."""
        self.deliver(refused.topic, refused.partition, refused.outgoing, refused.delivered)
        self._flush()
        return not (self._refused and self._refused.pop())

    def _flush(self) -> None:
        self.flush(Patience(self._outage_s + FLUSH_STEP_S, self._stopping))  # what waits expires a moment before


class _Refused(NamedTuple):
    """A record that the brokers did not take, as it was sent, and why."""

    topic: str
    partition: int
    outgoing: Outgoing
    delivered: Callable[[int], None]
    reason: str


class SinkPart(StatefulSinkPartition[Outgoing, Delivered]):
    """One Kafka partition."""

    def __init__(self, sink: KafkaSink, sender: OutputSender, topic: str, number: int, resumed: Delivered) -> None:
        self._sink = sink
        self._sender = sender
        self._topic = topic
        self._number = number
        self._id = sink.ids[topic]
        if resumed.topic_id not in ("", self._id):
            resumed = Delivered(0, ())
        tail, self._offset = read_tail(sink.options, topic, number, resumed.offset, sink.stopping)
        ours = {identity for identity in tail if identity[0].rsplit(b":", 2)[0] in sink.sources}
        self._unclaimed = ours | set(resumed.unclaimed)

    def write_batch(self, values: Sequence[Outgoing]) -> None:
        self._check_id()
        for outgoing in values:
            if outgoing.identity in self._unclaimed:
                self._unclaimed.remove(outgoing.identity)
            else:
                self._sender.deliver(self._topic, self._number, outgoing, self._advance)
        self._sender.poll_outputs()

    def snapshot(self) -> Delivered:
        # The offset alone would be unsound: what the tail held and was not sent again yet could be sent twice later.
        self._sender.flush_outputs()
        self._check_id()
        return Delivered(self._offset, tuple(sorted(self._unclaimed)), self._id)

    def close(self) -> None:
        self._sink.closing(self._sender.flush_outputs)

    def _check_id(self) -> None:
        """A topic made anew holds nothing of what we knew, and what it may hold of ours by now begins anywhere."""
        if self._sink.ids[self._topic] != self._id:
            self._id, self._offset, self._unclaimed = self._sink.ids[self._topic], 0, set()

    def _advance(self, offset: int) -> None:
        self._offset = max(self._offset, offset + 1)


def read_tail(
    options: KafkaOptions, topic: str, number: int, offset: int, stopping: threading.Event
) -> tuple[list[Identity], int]:
    """The identities of all our records from `offset` to the end of a partition, and the end: its high watermark."""
    # Bytewax builds a part with its first output, which may fall into an outage: as patient as a flush.
    with TopicReader(options, TAIL, give_up_s=OUTAGE_S, stopping=stopping) as reader:
        low, high = reader.span(topic, number)
        begin = max(offset, low)
        if begin >= high:
            return [], high
        found = [identity for message in reader.read_to_end(topic, number, begin) for identity in identity_of(message)]
        return found, reader.ends[number]
