"""What a user says about Kafka reaches librdkafka as it is, and what is wrong with it is said at once."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import UsageError

SERVERS = "127.0.0.1:1"
SECURE = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": "a secret",
    "ssl.endpoint.identification.algorithm": "none",
    "client.id": "engine-7",
    "socket.keepalive.enable": "true",
}
# as librdkafka names and shows them
SHOWN = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "[redacted]",
    "sasl.password": "[redacted]",
    "ssl.endpoint.identification.algorithm": "none",
    "client.id": "engine-7",
    "socket.keepalive.enable": "true",
}


def configuration(
    client: Callable[..., Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> dict[str, str]:
    """The configuration that librdkafka says a client of it has."""
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("librdkafka")
    made = client(options | {"debug": "conf", "log_level": "7"}, logger=logger)
    made.poll(0)
    said = "\n".join(record.getMessage() for record in caplog.records)
    return dict(re.findall(r"([a-z.]+) = (\S+)", said))


@pytest.mark.parametrize("kind", ["consumer", "producer", "admin"])
def test_security_options_reach_every_client(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = getattr(KafkaOptions(SERVERS, SECURE), kind)()
    assert {name: chosen[name] for name in SECURE} == SECURE
    client = {"consumer": Consumer, "producer": Producer, "admin": AdminClient}[kind]
    assert configuration(client, chosen, caplog).items() >= SHOWN.items()


def test_what_a_user_chooses_wins_over_our_tuning() -> None:
    chosen = {"linger.ms": "7", "queued.min.messages": "9", "group.id": "allowed", "socket.nagle.disable": "false"}
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
        ({"retries": "0"}, "`retries` must be set"),  # a producer's alone
        ({"error_cb": "x"}, "expected error_cb property as a callable function"),
        ({"acks": "1", "enable.idempotence": "false"}, "acks, enable.idempotence cannot be set"),
        ({"request.required.acks": "0"}, "cannot be set"),
        ({"partitioner": "random"}, "cannot be set"),
        ({"metadata.broker.list": "h:1"}, "give the brokers as --bootstrap-servers"),
    ],
)
def test_a_wrong_option_is_a_clear_error(chosen: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        KafkaOptions(SERVERS, chosen)
