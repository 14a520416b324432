"""A Kafka client without a broker: it keeps messages, and reports deliveries when the test says so."""

from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError

OK = None


class Delivered(NamedTuple):
    where: int

    def offset(self) -> int:
        return self.where


class Produced(NamedTuple):
    topic: str
    value: bytes | None
    headers: dict[str, bytes]
    report: Callable[[KafkaError | None, Any], None]
    sent_ms: int


class FakeProducer:
    """`fails`: value → errors of its next deliveries. `room`: size of the queue; the first `in_flight` records are
    being sent. Deliveries are reported in `poll`, `flush` and `acknowledge`, in any order."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.options = options or {}
        self.queue: list[Produced] = []
        self.log: list[Produced] = []  # what was acknowledged
        self.fails: dict[bytes | None, list[KafkaError]] = {}
        self.room = 1_000
        self.in_flight = 0
        self.stuck = False  # nothing is reported by itself

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,  # noqa: ARG002
        partition: int = -1,  # noqa: ARG002
        headers: Any = (),
        on_delivery: Any = None,
        timestamp: int = 0,
    ) -> None:
        if len(self.queue) >= self.room:
            raise BufferError("Local: Queue full")
        self.queue.append(Produced(topic, value, dict(headers), on_delivery, timestamp))

    def acknowledge(self, number: int = 0) -> None:
        record = self.queue.pop(number)
        errors = self.fails.get(record.value)
        if errors:
            record.report(errors.pop(0), None)
        else:
            self.log.append(record)
            record.report(OK, Delivered(len(self.log) - 1))

    def poll(self, timeout_s: float = 0) -> int:
        if self.queue and not self.stuck and timeout_s:
            self.acknowledge()
        return 0

    def _transact(self, *_: float) -> None: ...

    init_transactions = begin_transaction = commit_transaction = _transact

    def flush(self, timeout_s: float = 0) -> int:  # noqa: ARG002
        while self.queue and not self.stuck:
            self.acknowledge()
        return len(self.queue)

    def purge(self, in_queue: bool = True, in_flight: bool = True) -> None:
        on_their_way, waiting = self.queue[: self.in_flight], self.queue[self.in_flight :]
        self.queue = [] if in_flight else on_their_way
        for record in waiting if in_queue else ():
            record.report(KafkaError(KafkaError._PURGE_QUEUE), None)
