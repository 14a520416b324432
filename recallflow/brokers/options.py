"""How to reach Kafka: one frozen object, and one adapter to librdkafka's own options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recallflow.errors import UsageError

# Of an engine in its deployment's group. Outputs wait for brokers for 2 s less: longer than Kafka needs to elect other
# leaders when a broker dies (9 s). Who was killed is missed for no longer.
SESSION_S = 15.0
SESSION_MIN_S = 6.0  # what a broker accepts by default
SESSION_MAX_S = 1_800.0  # as its default allows

# What recallflow's guarantees rest on, some under two names: not for users to set. The rest of librdkafka's options is
# about reaching brokers, security and pace, which are the user's.
_OURS = frozenset(
    (
        # each output once, in order, acknowledged, and expired before another engine may come
        "enable.idempotence",
        "enable.gapless.guarantee",
        "transactional.id",
        "acks",
        "request.required.acks",
        "retries",
        "message.send.max.retries",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "queuing.strategy",  # the last one first, as some like it
        "partitioner",
        # any output can be handed over: a smaller limit would stop the flow at one, again and again
        "message.max.bytes",
        "queue.buffering.max.kbytes",
        # every record is read once, and to the end of what the leader has
        "auto.offset.reset",
        "enable.auto.commit",
        "auto.commit.enable",
        "enable.auto.offset.store",
        "offset.store.method",
        "enable.partition.eof",
        "isolation.level",
        "client.rack",  # a follower's end is not the end
        # one engine a deployment
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        # a misspelt topic is an error, and the brokers are real
        "allow.auto.create.topics",
        "test.mock.num.brokers",
        "test.mock.broker.rtt",
    )
)
_INSTEAD = {"group.id": "run --deployment", "session.timeout.ms": "run --session-timeout-s"}
PORT_MAX = 65_535
READER_GROUP = "recallflow"  # librdkafka wants one; nothing is ever committed under it
_SERVERS = frozenset(("bootstrap.servers", "metadata.broker.list"))


@dataclass(frozen=True)
class KafkaOptions:
    """Where the brokers are. `librdkafka` takes any of its options: security.protocol, sasl.*, ssl.*, client.id, …

    Raises UsageError where librdkafka does not know an option, or does not take its value.
    """

    bootstrap_servers: str
    librdkafka: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for server in self.bootstrap_servers.split(","):
            _, colon, port = server.strip().rpartition(":")
            if colon and port.isdecimal() and int(port) > PORT_MAX:  # librdkafka would take what is left of 16 bits
                raise UsageError(f"bootstrap_servers: {server.strip()}: ports are 1 to {PORT_MAX:,}")
        if reserved := sorted(_OURS & self.librdkafka.keys()):
            instead = "".join(f"; give {_INSTEAD[name]}" for name in reserved if name in _INSTEAD)
            raise UsageError(
                f"{', '.join(reserved)} cannot be set: recallflow's guarantees rest on its own choice{instead}"
            )
        if reserved := sorted(_SERVERS & self.librdkafka.keys()):
            raise UsageError(f"{', '.join(reserved)}: give the brokers as --bootstrap-servers (bootstrap_servers)")
        if self.librdkafka:
            self._check()

    def _check(self) -> None:
        """librdkafka judges names, values and how they go together where a client is made; one without brokers
        connects to nobody."""
        from confluent_kafka import Consumer, KafkaException, Producer  # it is not there where no Kafka is

        offline: dict[str, object] = {"bootstrap.servers": "", "log_level": 0}
        try:
            Consumer(self.consumer() | offline).close()
            Producer(self.producer() | offline)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {error.args[0].str()}") from error
        except (TypeError, ValueError, AttributeError) as error:  # options whose values are objects, not text
            raise UsageError(f"Kafka options: {error}") from error

    def consumer(self) -> dict[str, object]:
        """For a consumer with assigned partitions and offsets: no group, no commits. An offset that is gone is an
        error, never a silent jump."""
        return {
            "group.id": READER_GROUP,
            "socket.nagle.disable": True,
            "fetch.queue.backoff.ms": 2,
            "queued.min.messages": 5_000,
            # What librdkafka reads ahead, and what one fetch may bring: records may be large.
            "queued.max.messages.kbytes": 16 * 1024,
            "fetch.max.bytes": 16 * 1024 * 1024,
            **self.librdkafka,
            "logger": _client_log(),
            "bootstrap.servers": self.bootstrap_servers,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }

    def producer(self) -> dict[str, object]:
        """For the sink: idempotent, acknowledged by all in-sync replicas, without waiting for a fuller batch."""
        return {
            "linger.ms": 0,
            "socket.nagle.disable": True,
            **self.librdkafka,
            "logger": _client_log(),
            "bootstrap.servers": self.bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
        }

    def admin(self) -> dict[str, Any]:
        """For questions and orders to the brokers. Why one fails, its answer says."""
        return {
            **self.librdkafka,
            "logger": _client_log(),
            "error_cb": lambda _: None,
            "bootstrap.servers": self.bootstrap_servers,
        }


def _client_log() -> object:
    from recallflow.brokers.trouble import ClientLog  # it knows librdkafka

    return ClientLog()
