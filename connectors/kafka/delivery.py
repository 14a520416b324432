"""Sink of a process that owns some partitions: each output once, and commits of barriers.

A barrier is committed once everything before it is synced and delivered. Each output carries its identity in headers:
the position of its record, and its number among the outputs of that record. The previous owner of a partition may have
sent some outputs already. Those were found in the tails of the output topics, and are not sent again.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from recallflow.connectors.kafka.messages import Identity, Outgoing, time_ms
from recallflow.connectors.kafka.sender import FLUSH_STEP_S, Sender
from recallflow.errors import MembershipLost, RecallflowError, SinkError
from recallflow.kafka_options import KafkaOptions
from recallflow.outputs import Marked
from recallflow.process import OUTAGE_S, Closing, Patience
from recallflow.records import Position

_log = logging.getLogger(__name__)

Permit = Callable[[Callable[[], Patience]], None]


class ToSend(NamedTuple):
    """Record to deliver, with topic and partition."""

    topic: str
    number: int
    outgoing: Outgoing


class EarlierOutputs:
    """Outputs that earlier owners of our partitions sent, and that did not come again yet."""

    def __init__(self) -> None:
        self._by_partition: dict[int, set[Identity]] = {}
        # Until a barrier is synced and committed, outputs of later records are claimed.
        self._at_marks: dict[tuple[int, int], frozenset[Identity]] = {}

    def learn(self, partition: int, found: set[Identity]) -> None:
        """Add the outputs found for a partition. Called before the partition is opened."""
        self._by_partition[partition] = found

    def claim(self, identity: Identity) -> bool:
        """Return whether an output was sent already. Only the first call for it returns True."""
        if not self._by_partition:
            return False
        partition = int(identity[0].rsplit(b":", 2)[1])
        found = self._by_partition.get(partition)
        if not found or identity not in found:
            return False
        found.remove(identity)
        return True

    def pass_mark(self, partition: int, number: int) -> None:
        """Keep the unclaimed outputs at a barrier."""
        if found := self._by_partition.get(partition):
            self._at_marks[partition, number] = frozenset(found)

    def left(self, partition: int, number: int, done: Callable[[Position], bool]) -> bool:
        """Return whether outputs were unclaimed at a barrier. Outputs of finished records are ignored."""

        def is_done(identity: Identity) -> bool:
            return done(Position.parse(identity[0].decode()))

        if found := self._by_partition.pop(partition, None):
            left = {one for one in found if not is_done(one)}
            if left:
                self._by_partition[partition] = left
        return not all(map(is_done, self._at_marks.pop((partition, number), ())))


class DeliverySink:
    """Sink that delivers outputs, and commits each barrier once all before it is synced and acknowledged."""

    def __init__(
        self,
        options: KafkaOptions,
        *,
        most_bytes: Mapping[str, int],
        sent: EarlierOutputs,
        marked: Callable[[list[Marked]], None],
        permit: Permit = lambda _: None,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        closing: Closing | None = None,
    ) -> None:
        """Create the sink.

        Args:
            most_bytes: topic → record size limit.
            marked: called with barriers, on the dataflow's thread.
            permit: called before each send; it returns, or raises once the given patience has ended.
            outage_s: how long an output waits for unavailable brokers; much shorter once `stopping` is set.
        """
        self.options, self.most_bytes, self.sent, self.marked = options, most_bytes, sent, marked
        self.permit, self.outage_s = permit, outage_s
        self.stopping = stopping or threading.Event()
        self.closing = closing or Closing()
        self._delivery: Delivery | None = None

    def build(self) -> "Delivery":
        self._delivery = Delivery(self)
        return self._delivery

    def settle(self) -> None:
        """Commit the barriers that are synced and delivered. The dataflow's thread calls it between batches, because
        the next output may come much later."""
        if self._delivery is not None:
            self._delivery.settle()

    def expired(self, why: str) -> RecallflowError:
        """Return the error for an output that the brokers did not accept in time. It is dropped, because another member
        may own its partition by now; the next owner finds the sent outputs. During a stop it ends the process."""
        return SinkError(why) if self.stopping.is_set() else MembershipLost(why)


class Delivery:
    def __init__(self, sink: DeliverySink) -> None:
        self._sink = sink
        self._sender = OutputSender(
            sink.options, sink.most_bytes, sink.permit, sink.outage_s, sink.stopping, sink.expired
        )
        self._pending: list[tuple[Marked, int]] = []  # marks with the barriers after the outputs that precede them

    def write_batch(self, items: list[ToSend | Marked]) -> None:
        for item in items:
            if isinstance(item, Marked):
                self._sink.sent.pass_mark(item.partition, item.number)
                self._pending.append((item, self._sender.barrier()))
            elif not self._sink.sent.claim(item.outgoing.identity):
                self._sender.deliver(item)
        if any(mark.last for mark, _ in self._pending):
            self._sender.flush_outputs()  # a partition is handed over: nothing of it may be under way
        self.settle()

    def settle(self) -> None:
        """Serve delivery reports, and commit the barriers that are synced and delivered. Raise as `poll_outputs`."""
        self._sender.poll_outputs()
        if not self._pending:
            return
        first_open = self._sender.first_open()
        passed, pending = list[Marked](), list[tuple[Marked, int]]()
        for mark, barrier in self._pending:
            if barrier < first_open and mark.is_synced():
                passed.append(mark)
            else:
                pending.append((mark, barrier))
        if passed:
            self._pending = pending
            self._sink.marked(passed)

    def close(self) -> None:
        self._sink.closing(self._sender.flush_outputs)
        self._sender.drop(self._sink.stopping)  # before our partitions go to other members


class OutputSender(Sender):
    """Sender of outputs. An output that the brokers refuse is sent again alone, then replaced by its stand-in, because
    brokers refuse a batch as a whole."""

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
        self._refused: list[tuple[ToSend, str]] = []  # with the reason
        self._barrier = 0
        self._open = Counter[int]()  # outputs that are not acknowledged, by the barrier before which they were sent

    def barrier(self) -> int:
        """Return the number of a barrier after all outputs sent so far."""
        self._barrier += 1
        return self._barrier - 1

    def first_open(self) -> int:
        """Return the first barrier before which an output is not acknowledged."""
        return min(self._open, default=self._barrier)

    def deliver(self, item: ToSend) -> None:
        """Hand over one output. Raise SinkError if an earlier one failed."""
        outgoing, barrier = item.outgoing, self._barrier

        def acknowledged(message: Any) -> None:
            self._open[barrier] -= 1
            if not self._open[barrier]:
                del self._open[barrier]
            if outgoing.delivered is not None:
                outgoing.delivered(time_ms(message))

        self._open[barrier] += 1
        self.send(
            item.topic,
            outgoing.value,
            outgoing.key,
            partition=item.number,
            headers=outgoing.all_headers,
            delivered=acknowledged,
            refused=lambda why: self._refused.append((item, why)),
        )

    def flush_outputs(self) -> None:
        """Return when the brokers acknowledged every output or its stand-in. Raise SinkError."""
        self._flush()
        refused, self._refused = self._refused, []
        for item, reason in refused:
            self._deliver_alone(item, reason)
        self._open.clear()  # also of outputs that were left out

    def poll_outputs(self) -> None:
        """Serve delivery reports and resend refused outputs. Raise SinkError."""
        self.poll()
        if self._refused:
            self.flush_outputs()

    def _deliver_alone(self, item: ToSend, reason: str) -> None:
        if self._is_accepted(item):
            return
        where = f"{item.topic}:{item.number}: an output of {item.outgoing.source}"
        _log.error("%s was refused: %s", where, reason)
        stand_in = item.outgoing.instead and item.outgoing.instead(reason)
        if stand_in is None or not self._is_accepted(item._replace(outgoing=stand_in)):
            _log.error("%s is left out: the topic takes nothing in its place either; check the topic's settings", where)

    def _is_accepted(self, item: ToSend) -> bool:
        """Send one record alone. Return whether the brokers accepted it."""
        self.deliver(item)
        self._flush()
        return not (self._refused and self._refused.pop())

    def _flush(self) -> None:
        self.flush(Patience(self._outage_s + FLUSH_STEP_S, self._stopping))  # queued records expire a moment before
