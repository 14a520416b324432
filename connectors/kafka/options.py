"""How to reach Kafka: one frozen object, and one adapter to librdkafka's own options."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from recallflow.errors import UsageError

# What recallflow's guarantees rest on: not for users to set.
_OURS = frozenset(
    (
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "enable.idempotence",
        "acks",
        "transactional.id",
    )
)


@dataclass(frozen=True)
class KafkaOptions:
    """Where the brokers are. `extra` takes any librdkafka option: security.protocol, sasl.*, ssl.*, client.id, …"""

    bootstrap_servers: str
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := sorted(_OURS & self.extra.keys()):
            raise UsageError(f"{', '.join(taken)} cannot be set: exactly-once delivery rests on recallflow's choice")

    def consumer(self) -> dict[str, object]:
        """For a consumer that is told its partitions and offsets: no group, no commits. An offset that is gone is an
        error, never a silent jump."""
        return {
            **self.extra,
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": "recallflow",  # librdkafka wants one; nothing is ever committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "socket.nagle.disable": True,
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 5_000,
        }

    def producer(self) -> dict[str, object]:
        """For the sink: idempotent, acknowledged by all in-sync replicas, without waiting for a fuller batch."""
        return {
            **self.extra,
            "bootstrap.servers": self.bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "partitioner": "murmur2_random",
        }

    def admin(self) -> dict[str, str | int | float | bool]:
        """For metadata and topic creation."""
        return {**self.extra, "bootstrap.servers": self.bootstrap_servers}
