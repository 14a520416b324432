"""Kafka options of a user, and which of Kafka's errors pass."""

import base64
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from recallflow import kafka_options
from recallflow.errors import SourceError, UsageError
from recallflow.kafka_clients import ClientErrors, is_refusal, is_retriable
from recallflow.kafka_options import LOG_PAUSE_S, ClientLog, KafkaOptions, LogRateLimit, MskTokens
from tests.unit.connectors.clock import Clock

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
            "group.id cannot be set: recallflow's guarantees depend on the values it sets; give run --deployment",
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


# https://kafka.apache.org/protocol: the error codes that are retriable there. Not among them here: broken records (2),
# and topics that are unknown (3, 100, 103, 106), of which each caller says more.
RETRIABLE = (5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 88, 89)
NOBODY_ANSWERED = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_WAIT_COORD",
                   "_WAIT_CACHE", "_DESTROY", "_RETRY", "_OUTDATED")  # fmt: skip


@pytest.mark.parametrize(
    ("code", "passing", "denied"),
    [
        *((code, True, False) for code in (*RETRIABLE, *(getattr(KafkaError, name) for name in NOBODY_ANSWERED))),
        (KafkaError._AUTHENTICATION, True, False), (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, False), (KafkaError._AUTO_OFFSET_RESET, False, False),
    ],
)  # fmt: skip
def test_an_error_passes_or_denies_or_is_for_good(code: int, passing: bool, denied: bool) -> None:
    error = KafkaError(code)
    assert (is_retriable(error), is_refusal(error)) == (passing, denied)


@pytest.mark.parametrize(
    ("code", "text", "denied"),
    [
        (KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: Could not resolve host: x", False),
        (KafkaError._AUTHENTICATION, 'Failed to acquire SASL OAUTHBEARER token: {"error":"invalid_client"}', True),
        (KafkaError._AUTHENTICATION, 'SASL authentication error: {"status":"invalid_token"}', False),
        (KafkaError._AUTHENTICATION, "SASL OAUTHBEARER mechanism handshake failed: Local: Broken pipe", False),
        (KafkaError._AUTHENTICATION, "SaslAuthenticateRequest failed: Local: Broker transport failure", False),
        (KafkaError._AUTHENTICATION, "FindCoordinator response error: Local: Authentication failure", False),
        (KafkaError._AUTHENTICATION, "SASL OAUTHBEARER mechanism handshake failed: Broker: Unsupported", True),
        (KafkaError._TRANSPORT, "Receive failed: SSL routines::ssl/tls alert certificate expired", True),
        (KafkaError._TRANSPORT, "Disconnected", False),
    ],
)
def test_login_is_refused_or_fails_for_now(code: int, text: str, denied: bool) -> None:
    assert is_refusal(KafkaError(code, text)) == denied


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove AWS credentials, and let each test get tokens of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(kafka_options, "_msk_tokens", MskTokens)
    return monkeypatch


def test_msk_tokens_are_signed_and_shared(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    aws.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    tokens = MskTokens("eu-west-1")
    token, expires_s = tokens("")
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=")
    assert 800 < expires_s - time.time() <= 900
    assert tokens("") == (token, expires_s)


@pytest.mark.usefixtures("aws")
def test_missing_aws_credentials_are_named_before_a_client_waits() -> None:
    options = KafkaOptions(SERVERS, {"client.id": "engine-7"}, "eu-west-1")  # is valid without a token
    for kind in (options.consumer, options.producer, options.admin):
        with pytest.raises(SourceError, match="no AWS credentials for Amazon MSK: none are configured"):
            kind()


def test_missing_library_of_msk_is_named(aws: pytest.MonkeyPatch) -> None:
    aws.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(UsageError, match=r"pip install 'recallflow\[msk\]'"):
        KafkaOptions(SERVERS, {}, "eu-west-1").admin()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(kafka_options, "_log_rate_limit", LogRateLimit(clock))
    return clock


def test_long_outage_is_logged_seldom(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clients = [ClientErrors() for _ in range(4)]
    for _ in range(3_600):
        for client_errors in clients:
            client_errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
            client_errors.check()
        clock.now_s += 1
    said = [record.getMessage() for record in caplog.records]
    assert set(said) == {"Kafka: 1/1 brokers are down; retrying"}
    assert len(said) == 11  # at 0, 10, 30, 70, 150, 310, 630 and 1270 s, and every 640 s from then on


def test_new_outage_is_reported_at_once(clock: Clock) -> None:
    limit = LogRateLimit(clock)
    assert [limit.permit("outage"), limit.permit("outage"), limit.permit("other")] == [True, False, True]
    clock.now_s += LOG_PAUSE_S + 1
    assert limit.permit("outage")


@pytest.mark.usefixtures("clock")
def test_lines_of_the_library_are_logged_once_or_when_lasting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    log = ClientLog()
    for _ in range(50):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", "Connection refused")
        log.log(logging.WARNING, "%s [%s] %s", "REQTMOUT", "rdkafka#1", "Timed out 1 in-flight requests")
        log.log(logging.WARNING, "%s [%s] %s", "GETPID", "rdkafka#1", "Failed to acquire idempotence PID: retrying")
    assert [record.getMessage() for record in caplog.records] == ["REQTMOUT [rdkafka#1] Timed out 1 in-flight requests"]


def test_clients_of_the_library_write_nothing_themselves(capfd: pytest.CaptureFixture[str]) -> None:
    options = KafkaOptions("127.0.0.1:1")
    told = threading.Event()

    def complain(_: KafkaError) -> None:
        told.set()

    consumer = Consumer(options.consumer() | {"error_cb": complain})
    producer = Producer(options.producer() | {"error_cb": complain})
    while not told.is_set():
        consumer.poll(0.05)
        producer.poll(0.05)
    told.clear()
    while not told.is_set():
        producer.poll(0.05)
        consumer.poll(0.05)
    consumer.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [("wrong", "security settings"), ("invalid credentials with SCRAM", "sasl.password"),
     ("OAUTHBEARER token: invalid_client", "client.secret")],
)  # fmt: skip
def test_a_refusal_is_kept_with_its_remedy(reason: str, remedy: str, caplog: pytest.LogCaptureFixture) -> None:
    client_errors = ClientErrors()
    client_errors(KafkaError(KafkaError._AUTHENTICATION, reason))
    client_errors(KafkaError(KafkaError._TRANSPORT, "disconnected"))
    assert not caplog.records
    with pytest.raises(SourceError, match=f"Kafka refuses us: {reason}; .*{remedy}"):
        client_errors.check()
