"""What stands in the topics, read by somebody who trusts nobody: every record, of open transactions as well."""

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from benchmarks.torture.topics import OUTPUTS, Topics

GIVE_UP_S = 120.0
POLL_S = 0.1
FOREIGN = b"not of recallflow"  # the key of what others put into an output topic


@dataclass(frozen=True)
class Output:
    """A record of an output topic. `kind` as in `topics.OUTPUTS`."""

    kind: str
    part: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.value or b"null")
        return found

    def header(self, name: str) -> str:
        """A header as text; empty where there is none."""
        return (dict(self.headers).get(name) or b"").decode()

    @property
    def answers(self) -> str:
        """What it answers, by the contract: a query by its id, a record by its position."""
        if self.kind == "response":
            return str(self.body["query_id"])
        return str(self.body["position"]) if self.kind == "receipt" else self.header("error.source")


class Reader:
    """Reads the output topics as they grow. Partitions that come later are not read: see `all_of`."""

    def __init__(self, topics: Topics, kinds: Iterable[str] = OUTPUTS) -> None:
        settings = {"bootstrap.servers": topics.cluster.bootstrap_servers, "group.id": f"reader-{uuid.uuid4().hex}"}
        more = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_uncommitted"}
        # at the end of a topic the broker would hold a fetch back for half a second
        self._consumer = Consumer(settings | more | {"fetch.wait.max.ms": 20, "log_level": 0})
        self._kinds = {topics.of(kind): kind for kind in kinds}
        known = [(name, n) for kind, name in zip(kinds, self._kinds, strict=True) for n in topics.bounds(kind)]
        self._consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in known])
        self._behind = set(known)
        self.outputs: list[Output] = []
        self.seen: set[tuple[str, str]] = set()  # kind, and what it answers
        self.alive: Callable[[], bool] = lambda: True  # whether waiting for more makes sense

    def until(self, true: Callable[[], bool], timeout_s: float = GIVE_UP_S) -> bool:
        """Reads on until something holds. Whether it came to hold in time."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline or not self.alive():
                self.read()
                return true()
            self.read()
        return True

    def drain(self) -> list[Output]:
        """Reads all there is by now."""
        reached = self._consumer.position(self._consumer.assignment())
        for part in reached:
            part.offset = part.offset if part.offset >= 0 else OFFSET_BEGINNING
        self._behind = {(part.topic, part.partition) for part in reached}
        self._consumer.assign(reached)  # ends are told anew
        if not self.until(lambda: not self._behind):
            raise RuntimeError(f"the end of {self._behind} was not reached in {GIVE_UP_S:.0f} s")
        return self.outputs

    def read(self) -> None:
        """Takes what has come, or waits a moment."""
        for message in self._consumer.consume(1_000, POLL_S):
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._behind.discard((message.topic(), message.partition()))

    def answer(self, query_id: str, timeout_s: float = GIVE_UP_S) -> dict[str, Any]:
        """The response to a query. TimeoutError where none comes."""
        found: list[Output] = []

        def came() -> bool:
            found[:] = [o for o in self.outputs if o.kind == "response" and o.answers == query_id]
            return bool(found)

        if not self.until(came, timeout_s):
            raise TimeoutError(f"no answer to {query_id} within {timeout_s:.0f} s, or ever: the engine ended")
        return found[0].body

    def letter(self, position: str, timeout_s: float = GIVE_UP_S) -> Output:
        """The dead letter of a record. TimeoutError where none comes."""
        return self._one("dead-letter", position, timeout_s)

    def receipt(self, position: str, timeout_s: float = GIVE_UP_S) -> dict[str, Any]:
        """The receipt of a memory event. TimeoutError where none comes."""
        return self._one("receipt", position, timeout_s).body

    def _one(self, kind: str, position: str, timeout_s: float) -> Output:
        found: list[Output] = []

        def came() -> bool:
            found[:] = [o for o in self.outputs if o.kind == kind and o.answers == position]
            return bool(found)

        if not self.until(came, timeout_s):
            raise TimeoutError(f"no {kind} for {position} within {timeout_s:.0f} s")
        return found[0]

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Any) -> None:
        if message.key() == FOREIGN:
            return
        part = f"{message.topic()}:{message.partition()}"
        kind, headers = self._kinds[message.topic()], tuple(message.headers() or ())
        output = Output(kind, part, message.offset(), message.key(), message.value(), headers)
        self.outputs.append(output)
        self.seen.add((kind, output.answers))


def all_of(topics: Topics, kinds: Iterable[str] = OUTPUTS) -> list[Output]:
    """Everything the output topics hold now."""
    reader = Reader(topics, tuple(kinds))
    try:
        return reader.drain()
    finally:
        reader.close()
