"""The topics of one deployment, made, grown and emptied as an operator does it."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import Cluster, has_leaders

INPUTS = ("memory", "query", "control")
OUTPUTS = ("response", "receipt", "dead-letter")
ADMIN_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True)
class Topics:
    """Names that nobody else has: `of("memory")` is the memory topic. `suffix` tells deployments apart."""

    cluster: Cluster
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    def of(self, kind: str) -> str:
        return f"{kind}-{self.suffix}"

    def make(self, partitions: int = 2, config: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Creates all six; `config` has settings by kind."""
        for kind in (*INPUTS, *OUTPUTS):
            self.make_one(kind, partitions, (config or {}).get(kind))

    def make_one(self, kind: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self.cluster.create_topics({self.of(kind): partitions}, config)
        self._await(lambda: self._has_bounds(kind))  # a broker is told to lead a partition a little after it told us

    def arguments(self) -> list[str]:
        """What makes a command of recallflow use them."""
        return [word for kind in (*INPUTS, *OUTPUTS) for word in (f"--{kind}-topic", self.of(kind))]

    def grow(self, kind: str, partitions: int) -> None:
        """Adds partitions, up to so many."""
        name = self.of(kind)
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(ADMIN_S)
        self._await(lambda: has_leaders(self._admin, name, partitions))

    def remove(self, kind: str) -> None:
        name = self.of(kind)
        self._admin.delete_topics([name])[name].result(ADMIN_S)
        self._await(lambda: name not in self._admin.list_topics(timeout=ADMIN_S).topics)

    def remake(self, kind: str, partitions: int) -> None:
        """Deletes a topic and makes one of the same name."""
        self.remove(kind)
        deadline = time.monotonic() + ADMIN_S
        while True:
            try:
                return self.make_one(kind, partitions)
            except KafkaException:  # the broker may still be about deleting the old one
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def forget_records(self, kind: str) -> None:
        """Deletes every record there is, as retention does."""
        ends = [TopicPartition(self.of(kind), number, end) for number, (_, end) in self.bounds(kind).items()]
        for done in self._admin.delete_records(ends).values():
            done.result(ADMIN_S)

    def bounds(self, kind: str) -> dict[int, tuple[int, int]]:
        """The first offset of each partition, and the one that comes next."""
        name = self.of(kind)
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap_servers, "group.id": "bounds"})
        try:
            known = consumer.list_topics(name, timeout=ADMIN_S).topics[name].partitions
            return {n: consumer.get_watermark_offsets(TopicPartition(name, n), timeout=ADMIN_S) for n in known}
        finally:
            consumer.close()

    def _has_bounds(self, kind: str) -> bool:
        with suppress(KafkaException):
            return bool(self.bounds(kind))
        return False

    @cached_property
    def _admin(self) -> AdminClient:
        """One that lives on: what it was asked is dropped with it."""
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})

    def _await(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ADMIN_S
        while not true():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a topic of {self.suffix} is not as it was ordered after {ADMIN_S:.0f} s")
            time.sleep(POLL_S)
