"""`recallflow run` in a process of its own, with topics of its own."""

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.process import Ended, Process, command
from tools.broker import Cluster, has_leaders, retry

INPUTS = ("memory", "query", "control")
OUTPUTS = ("response", "receipt", "dead-letter")
ADMIN_S = 60.0
SHORT_SESSION = ("--session-timeout-s", "6")  # after which another engine may take over


@dataclass(frozen=True)
class Topics:
    """Names that nobody else has: `of("memory")` is the memory topic. `suffix` tells deployments apart."""

    cluster: Cluster
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    def of(self, kind: str) -> str:
        return f"{kind}-{self.suffix}"

    def make(self, partitions: int = 2, config: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Create all six; `config` has settings by kind."""
        for kind in (*INPUTS, *OUTPUTS):
            self.make_one(kind, partitions, (config or {}).get(kind))

    def make_one(self, kind: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self.cluster.create_topics({self.of(kind): partitions}, config)
        self._await(lambda: self._has_bounds(kind))  # a broker is told to lead a partition a little after it told us

    def arguments(self) -> list[str]:
        return [word for kind in (*INPUTS, *OUTPUTS) for word in (f"--{kind}-topic", self.of(kind))]

    def grow(self, kind: str, partitions: int) -> None:
        name = self.of(kind)
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(ADMIN_S)
        self._await(lambda: has_leaders(self._admin, name, partitions))

    def remove(self, kind: str) -> None:
        name = self.of(kind)
        self._admin.delete_topics([name])[name].result(ADMIN_S)
        self._await(lambda: name not in self._admin.list_topics(timeout=ADMIN_S).topics)

    def remake(self, kind: str, partitions: int) -> None:
        self.remove(kind)

        def is_made() -> bool:
            with suppress(KafkaException):  # the broker may still be about deleting the old one
                self.make_one(kind, partitions)
                return True
            return False

        self._await(is_made)

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
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})

    def _await(self, true: Callable[[], bool]) -> None:
        if not retry(true, time.monotonic() + ADMIN_S):
            raise RuntimeError(f"a topic of {self.suffix} is not as it was ordered after {ADMIN_S:.0f} s")


class Engine(Process):
    def __init__(self, topics: Topics, folder: Path, *options: str, name: str = "engine") -> None:
        self.state_dir, self.topics = folder / name, topics
        where = ["--state-dir", str(self.state_dir), "--bootstrap-servers", topics.cluster.bootstrap_servers]
        super().__init__(folder / f"{name}.log", "run", *where, *topics.arguments(), *options)

    def state(self, action: str, *more: str | Path) -> Ended:
        return command("state", action, "--state-dir", self.state_dir, *more)
