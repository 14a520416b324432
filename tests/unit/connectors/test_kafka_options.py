"""Kafka options of a user reach librdkafka unchanged, and wrong ones are reported at once."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from recallflow.errors import UsageError
from recallflow.kafka_options import KafkaOptions

SERVERS = "127.0.0.1:1"
SECURE = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ann",
    "sasl.password": "a secret", "ssl.endpoint.identification.algorithm": "none", "client.id": "engine-7",
    "socket.keepalive.enable": "true",
}  # fmt: skip
# as librdkafka names and shows them
SHOWN = {
    "security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "[redacted]",
    "sasl.password": "[redacted]", "ssl.endpoint.identification.algorithm": "none", "client.id": "engine-7",
    "socket.keepalive.enable": "true",
}  # fmt: skip


def configuration(
    client: Callable[..., Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> dict[str, str]:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("librdkafka")
    made = client(options | {"debug": "conf", "log_level": "7"}, logger=logger)
    made.poll(0)
    said = "\n".join(record.getMessage() for record in caplog.records)
    return dict(re.findall(r"([a-z.]+) = (\S+)", said))


def test_no_admin_client_writes_lines_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    client = AdminClient(KafkaOptions(SERVERS).admin())
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1.0)
    del client
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_security_options_reach_every_client(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = getattr(KafkaOptions(SERVERS, SECURE), kind)()
    assert {name: chosen[name] for name in SECURE} == SECURE
    client = {"consumer": Consumer, "producer": Producer, "admin": AdminClient}[kind]
    assert configuration(client, chosen, caplog).items() >= SHOWN.items()


def test_user_options_override_our_defaults() -> None:
    chosen = {"linger.ms": "7", "queued.min.messages": "9", "socket.nagle.disable": "false"}
    options = KafkaOptions(SERVERS, chosen)
    assert options.producer()["linger.ms"] == "7"
    assert options.consumer().items() >= {k: v for k, v in chosen.items() if k != "linger.ms"}.items()


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"sasl.pasword": "x"}, 'No such configuration property: "sasl.pasword"'),
        ({"socket.timeout.ms": "soon"}, 'Invalid value for configuration property "socket.timeout.ms"'),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAN"}, "Unsupported SASL mechanism: PLAN"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password must be set"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "ssl.ca.location failed"),
        ({"error_cb": "x"}, "expected error_cb property as a callable function"),
        ({"acks": "1", "enable.idempotence": "false"}, "acks, enable.idempotence cannot be set"),
        (
            {"group.id": "g"},
            "group.id cannot be set: recallflow's guarantees rest on its own choice; give run --deployment",
        ),
        ({"session.timeout.ms": "9000"}, "give run --session-timeout-s"),
        ({"batch.num.messages": "0"}, 'Configuration property "batch.num.messages" value 0'),  # a producer's alone
        ({"metadata.broker.list": "h:1"}, "give the brokers as --bootstrap-servers"),
    ],
)
def test_a_wrong_option_is_a_clear_error(chosen: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        KafkaOptions(SERVERS, chosen)


# Options of librdkafka that could break the guarantees, each with a valid value.
RESERVED = """
    enable.idempotence=false enable.gapless.guarantee=true transactional.id=t acks=1 request.required.acks=0
    retries=1 message.send.max.retries=1 max.in.flight=1 max.in.flight.requests.per.connection=1
    message.timeout.ms=300000 delivery.timeout.ms=300000 delivery.report.only.error=true queuing.strategy=lifo
    partitioner=random message.max.bytes=1000 queue.buffering.max.kbytes=1 auto.offset.reset=latest
    enable.auto.commit=true auto.commit.enable=true enable.auto.offset.store=true offset.store.method=file
    enable.partition.eof=true isolation.level=read_uncommitted client.rack=a group.id=g group.instance.id=i
    group.protocol=consumer group.protocol.type=consumer group.remote.assignor=uniform
    partition.assignment.strategy=roundrobin session.timeout.ms=300000 heartbeat.interval.ms=1
    max.poll.interval.ms=300000 allow.auto.create.topics=true test.mock.num.brokers=3 test.mock.broker.rtt=1
"""


@pytest.mark.parametrize("option", RESERVED.split())
def test_option_that_guarantees_depend_on_is_refused(option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(UsageError, match=f"^{re.escape(name)} cannot be set"):
        KafkaOptions(SERVERS, {name: value})


# Options of how brokers are reached, and at what pace.
FREE = """
    linger.ms=5 batch.num.messages=100 batch.size=100000 compression.type=zstd
    queue.buffering.max.messages=1000 retry.backoff.ms=50 reconnect.backoff.max.ms=500 socket.timeout.ms=30000
    request.timeout.ms=20000 fetch.max.bytes=5000000 fetch.wait.max.ms=100 queued.max.messages.kbytes=1000
    check.crcs=true client.id=engine broker.address.family=v4 statistics.interval.ms=1000
    topic.metadata.refresh.interval.ms=10000
"""


@pytest.mark.parametrize("option", FREE.split())
def test_option_of_connection_and_pace_is_accepted(option: str) -> None:
    name, _, value = option.partition("=")
    assert KafkaOptions(SERVERS, {name: value}).consumer()[name] == value
