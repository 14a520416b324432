"""The sink of a process that has some of the partitions: no output twice, and a mark when all before it is synced and
delivered.

Each output carries its identity in headers: the position of the record it comes from, and its number among that
record's outputs. Whoever had a partition before may have sent some of what comes of its records; what was found in the
tails of output topics is dropped when it comes.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from recallflow.background import OUTAGE_S, Closing, Patience
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.messages import Identity, Outgoing, time_ms
from recallflow.connectors.kafka.sender import FLUSH_STEP_S, Sender
from recallflow.errors import MembershipLost, RecallflowError, SinkError
from recallflow.outputs import Marked
from recallflow.records import Position

_log = logging.getLogger(__name__)

Permit = Callable[[Callable[[], Patience]], None]


class ToSend(NamedTuple):
    """A record to deliver, and to which partition of which topic."""

    topic: str
    number: int
    outgoing: Outgoing


class Sent:
    """What an earlier owner of our partitions had sent, and did not come again yet."""

    def __init__(self) -> None:
        self._by_partition: dict[int, set[Identity]] = {}
        # A mark is committed once it is synced, and outputs of later records are claimed until then.
        self._at_marks: dict[tuple[int, int], frozenset[Identity]] = {}

    def learn(self, partition: int, found: set[Identity]) -> None:
        """Before the partition is opened."""
        self._by_partition[partition] = found

    def claim(self, identity: Identity) -> bool:
        """Whether an output is there already. True one time only."""
        if not self._by_partition:
            return False
        partition = int(identity[0].rsplit(b":", 2)[1])
        found = self._by_partition.get(partition)
        if not found or identity not in found:
            return False
        found.remove(identity)
        return True

    def pass_mark(self, partition: int, number: int) -> None:
        """Remember what is not claimed at a mark."""
        if found := self._by_partition.get(partition):
            self._at_marks[partition, number] = frozenset(found)

    def left(self, partition: int, number: int, done: Callable[[Position], bool]) -> bool:
        """Return whether anything was not claimed at a mark. Outputs of records that are done are not waited for."""

        def is_done(identity: Identity) -> bool:
            return done(Position.parse(identity[0].decode()))

        if found := self._by_partition.pop(partition, None):
            left = {one for one in found if not is_done(one)}
            if left:
                self._by_partition[partition] = left
        return not all(map(is_done, self._at_marks.pop((partition, number), ())))


class DeliverySink:
    """Delivers outputs, and commits each mark once all before it is synced and acknowledged."""

    def __init__(
        self,
        options: KafkaOptions,
        *,
        most_bytes: Mapping[str, int],
        sent: Sent,
        marked: Callable[[list[Marked]], None],
        permit: Permit = lambda _: None,
        outage_s: float = OUTAGE_S,
        stopping: threading.Event | None = None,
        closing: Closing | None = None,
    ) -> None:
        """`most_bytes`: topic → how large a record it takes. `permit` is called before each send: it returns, or raises
        once the patience it can ask for has ended. `outage_s`: so long an output waits for brokers that are away; once
        `stopping` is set, much shorter. `marked`: told of marks, on the dataflow's thread."""
        self.options, self.most_bytes, self.sent, self.marked = options, most_bytes, sent, marked
        self.permit, self.outage_s = permit, outage_s
        self.stopping = stopping or threading.Event()
        self.closing = closing or Closing()
        self._delivery: Delivery | None = None

    def build(self) -> "Delivery":
        self._delivery = Delivery(self)
        return self._delivery

    def settle(self) -> None:
        """Commit the marks that are synced and delivered by now. Called on the dataflow's thread between batches, as no
        output may come for a while."""
        if self._delivery is not None:
            self._delivery.settle()

    def expired(self, why: str) -> RecallflowError:
        """An output that the brokers did not take in time is dropped, as another member may have its partition by then:
        whoever joins anew finds out what was sent. Who is to stop ends with it."""
        return SinkError(why) if self.stopping.is_set() else MembershipLost(why)


class Delivery:
    def __init__(self, sink: DeliverySink) -> None:
        self._sink = sink
        self._sender = OutputSender(
            sink.options, sink.most_bytes, sink.permit, sink.outage_s, sink.stopping, sink.expired
        )
        self._pending: list[tuple[Marked, int]] = []  # marks with the barriers behind the outputs before them

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
        """Serve delivery reports, and commit the marks that are synced and delivered. Raises as `poll_outputs`."""
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
        self._sender.drop(self._sink.stopping)  # before others are given what is ours


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
        """Return the number of a barrier behind all outputs sent so far."""
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
