"""Kafka settings: connection, login, session timeout of a member, librdkafka's options, and the log of clients."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallflow.distribution import install
from recallflow.errors import RegistryUnavailable, SourceError, UsageError
from recallflow.schema_registry import PREFIX, SchemaRegistry

if TYPE_CHECKING:
    from confluent_kafka import KafkaError  # an optional dependency

LOG_PAUSE_S = 10.0  # minimum time between the first two log lines about one problem; each later pause is twice as long
LOG_PAUSE_MAX_S = 640.0
_log = logging.getLogger(__name__)
# Session timeout of an engine in its deployment's group. Outputs wait for brokers for 2 s less: these 13 s are longer
# than the 9 s of a leader election after a broker failure. The partitions of a killed engine move after the timeout.
SESSION_S = 15.0
SESSION_MIN_S = 6.0  # default of group.min.session.timeout.ms
SESSION_MAX_S = 1_800.0  # default of group.max.session.timeout.ms
# Options of librdkafka that users cannot set, because recallflow's guarantees depend on them. Some have two names.
_FIXED = {
    # each output once, in order, acknowledged, and expired before another engine can take over
    "enable.idempotence", "enable.gapless.guarantee", "transactional.id", "acks", "request.required.acks", "retries",
    "message.send.max.retries", "max.in.flight", "max.in.flight.requests.per.connection", "message.timeout.ms",
    "delivery.timeout.ms", "delivery.report.only.error", "partitioner",
    "queuing.strategy",  # records must leave in order
    # no output size limit below the topic's: it would stop the flow again and again
    "message.max.bytes", "queue.buffering.max.kbytes",
    # every record is read once, up to the end of the leader's log
    "auto.offset.reset", "enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "offset.store.method",
    "enable.partition.eof", "isolation.level",
    "client.rack",  # a follower may lag behind the end of the log
    # each partition of a deployment has one engine at a time
    "group.id", "group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor",
    "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
    # a misspelt topic is an error, and the brokers are real
    "allow.auto.create.topics", "test.mock.num.brokers", "test.mock.broker.rtt",
}  # fmt: skip
_INSTEAD = {"group.id": "run --deployment", "session.timeout.ms": "run --session-timeout-s"}
PORT_MAX = 65_535
READER_GROUP = "recallflow"  # librdkafka requires a group; the readers commit nothing
_SERVERS = frozenset(("bootstrap.servers", "metadata.broker.list"))
# Facilities of librdkafka's log that are not logged. Failed connections and token requests also reach `error_cb`. A
# warning about a producer option in a consumer is useless, because both share one set of options.
_NOT_LOGGED = frozenset({"FAIL", "ERROR", "FATAL", "OIDC", "CONFWARN"})
# Delay of a facility's first line. A new broker assigns no producer ids for a moment, and librdkafka retries (GETPID).
_DELAYS_S = {"GETPID": 5.0}


class LogRateLimit:
    """Rate limit of log lines about one problem: the first line at once, the others with doubling pauses. A problem is
    a new one if it was not reported for `LOG_PAUSE_S`. Without the limit, every client of a process would log
    unavailable brokers several times a second. Not locked: a race of threads adds or loses one line at most."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._pauses: dict[str, tuple[float, float, float]] = {}  # problem → last report, next line, pause after it

    def permit(self, kind: str, delay_s: float = 0.0) -> bool:
        """Count a report of a problem, and return whether to log it. A problem shorter than `delay_s` has no line."""
        now_s = self._clock_s()
        seen_s, due_s, pause_s = self._pauses.get(kind, (float("-inf"), 0.0, 0.0))
        if now_s - seen_s > LOG_PAUSE_S:
            due_s, pause_s = now_s + delay_s, LOG_PAUSE_S
        allowed = now_s >= due_s
        if allowed:
            due_s, pause_s = now_s + pause_s, min(2 * pause_s, LOG_PAUSE_MAX_S)
        self._pauses[kind] = now_s, due_s, pause_s
        return allowed


_log_rate_limit = LogRateLimit()


def log_outage(error: "KafkaError") -> None:
    """Log an error of a client, once for all clients of the process."""
    if _log_rate_limit.permit("outage"):
        _log.warning("Kafka: %s; retrying", error.str())


def log_registry_outage(error: RegistryUnavailable) -> None:
    """Log an unavailable schema registry, once for all readers of the process."""
    if _log_rate_limit.permit("schema registry"):
        _log.warning("%s; records that need it wait, and nothing is lost; retrying", error)


class ClientLog:
    """Logger of librdkafka's own lines, which would go to standard error (its option `logger`)."""

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        delay_s = _DELAYS_S.get(facility, 0.0)
        if facility not in _NOT_LOGGED and _log_rate_limit.permit(f"librdkafka {facility}", delay_s):
            _log.log(level, text, facility, client, message)


class MskTokens:
    """Tokens of AWS IAM for Amazon MSK: librdkafka's option `oauth_cb`. All clients of a process share a token until
    half of its lifetime has passed, because a new token may need a request to AWS."""

    def __init__(self, region: str) -> None:
        self._region, self._lock = region, threading.Lock()
        self._token, self._renew_s, self._expires_s = "", 0.0, 0.0

    def __call__(self, _: str) -> tuple[str, float]:
        """Return a token and its expiry in Unix seconds. librdkafka calls again after an error."""
        try:
            return self.current()
        except SourceError as error:
            if _log_rate_limit.permit("token"):
                _log.warning("Kafka: %s; retrying", error)
            raise

    def current(self) -> tuple[str, float]:
        """Return a token and its expiry in Unix time. Raise SourceError (no credentials) or UsageError (no library)."""
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # an optional dependency
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise UsageError(f"msk_iam_region needs aws-msk-iam-sasl-signer-python: {install('msk')}") from None
        with self._lock:
            if time.time() >= self._renew_s:
                try:
                    self._token, expires_ms = MSKAuthTokenProvider.generate_auth_token(self._region)
                except (BotoCoreError, ClientError, ValueError, AttributeError) as error:
                    # The library raises AttributeError if no credentials are configured.
                    problem = "none are configured" if isinstance(error, AttributeError) else str(error)
                    remedy = "give the process a role, AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                    raise SourceError(f"no AWS credentials for Amazon MSK: {problem}; {remedy}") from error
                self._expires_s = expires_ms / 1000
                self._renew_s = (time.time() + self._expires_s) / 2
            return self._token, self._expires_s


_msk_tokens = cache(MskTokens)
_MSK_LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@dataclass(frozen=True)
class KafkaOptions:
    """Addresses of the brokers, and options of librdkafka: security.protocol, sasl.*, ssl.*, client.id, … Options
    `schema.registry.…` configure the schema registry. Raises UsageError for unknown options and invalid values."""

    bootstrap_servers: str
    librdkafka: Mapping[str, str] = field(default_factory=dict)
    msk_iam_region: str | None = None  # AWS region of an Amazon MSK cluster; set it to log in with IAM credentials

    def __post_init__(self) -> None:
        for server in self.bootstrap_servers.split(","):
            _, colon, port = server.strip().rpartition(":")
            if colon and port.isdecimal() and int(port) > PORT_MAX:  # librdkafka would use the low 16 bits
                raise UsageError(f"bootstrap_servers: {server.strip()}: ports are 1 to {PORT_MAX:,}")
        if reserved := sorted(_FIXED & self.librdkafka.keys()):
            instead = "".join(f"; give {_INSTEAD[name]}" for name in reserved if name in _INSTEAD)
            names = ", ".join(reserved)
            raise UsageError(f"{names} cannot be set: recallflow's guarantees depend on the values it sets{instead}")
        if reserved := sorted(_SERVERS & self.librdkafka.keys()):
            raise UsageError(f"{', '.join(reserved)}: give the brokers as --bootstrap-servers (bootstrap_servers)")
        if self.msk_iam_region is not None:  # check the options with this login, without requesting a token
            replace(self, librdkafka=_MSK_LOGIN | {**self.librdkafka}, msk_iam_region=None)
        elif self.librdkafka:
            self._check()
        if self.registry is not None:
            self.registry.client  # noqa: B018 - raises for invalid options

    @cached_property
    def registry(self) -> SchemaRegistry | None:
        options = {key.removeprefix(PREFIX): value for key, value in self.librdkafka.items() if key.startswith(PREFIX)}
        return SchemaRegistry(options) if options else None

    def _check(self) -> None:
        """Let librdkafka check names, values and combinations. Without brokers, a client opens no connection."""
        from confluent_kafka import Consumer, KafkaException, Producer  # an optional dependency

        offline: dict[str, object] = {"bootstrap.servers": "", "log_level": 0}
        try:
            Consumer(self.consumer() | offline).close()
            Producer(self.producer() | offline)
        except KafkaException as error:
            raise UsageError(f"Kafka options: {error.args[0].str()}") from error
        except (TypeError, ValueError, AttributeError) as error:  # an option whose value is an object, given as text
            raise UsageError(f"Kafka options: {error}") from error

    def consumer(self) -> dict[str, object]:
        """Return options for a consumer with assigned partitions and offsets: no group, no commits. If the record at an
        offset was deleted, the consumer reports an error and does not skip it silently."""
        return {
            "group.id": READER_GROUP, "socket.nagle.disable": True,
            "fetch.queue.backoff.ms": 2, "queued.min.messages": 5_000,
            # Larger read-ahead and fetches than the defaults, because records may be large.
            "queued.max.messages.kbytes": 16 * 1024, "fetch.max.bytes": 16 * 1024 * 1024,
            **self._common(), "enable.auto.commit": False, "auto.offset.reset": "error",
        }  # fmt: skip

    def producer(self) -> dict[str, object]:
        """Return options for the sink: idempotent, acknowledged by all in-sync replicas, without batching delay."""
        defaults = {"linger.ms": 0, "socket.nagle.disable": True}
        return defaults | self._common() | {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}

    def admin(self) -> dict[str, Any]:
        """Return options for admin requests, whose results contain their errors."""
        return self._common() | {"error_cb": lambda _: None}

    def certificate_files(self) -> list[Path]:
        """Return the files of certificates and keys, which a client reads once, when it is created."""
        options = self.librdkafka.items()
        return [Path(value) for name, value in options if name.startswith("ssl.") and name.endswith(".location")]

    def _common(self) -> dict[str, Any]:
        """Return the options of every client. Raise SourceError without AWS credentials, if they are needed."""
        login: dict[str, Any] = {}
        if self.msk_iam_region is not None:
            tokens = _msk_tokens(self.msk_iam_region)
            tokens.current()  # a client without a token would wait for it in its constructor
            login = {**_MSK_LOGIN, "oauth_cb": tokens}
        ours = {name: value for name, value in self.librdkafka.items() if not name.startswith(PREFIX)}
        return {**login, **ours, "logger": ClientLog(), "bootstrap.servers": self.bootstrap_servers}
