"""`recallflow run` and `recallflow topics create`: the main flow against Kafka."""

import argparse
import os
from pathlib import Path

from recallflow.brokers.options import KafkaOptions
from recallflow.cli.log import FORMATS, set_up
from recallflow.cli.options import add_engine, add_pace, fraction, settings, whole
from recallflow.connectors.kafka.admin import create_topics
from recallflow.connectors.kafka.deployment import SESSION_MAX_S, SESSION_MIN_S, SESSION_S
from recallflow.errors import UsageError
from recallflow.flows.kafka import LOOPBACK, KafkaFlow
from recallflow.flows.repeats import ACCEPT
from recallflow.flows.topics import Topics

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
LOCAL = "localhost:9092"
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
# Field of `Topics` → how its option is named.
_TOPICS = {
    "memory": "memory",
    "queries": "query",
    "control": "control",
    "responses": "response",
    "receipts": "receipt",
    "enrichment": "enrichment",
    "dead_letters": "dead-letter",
}


def servers_in_environment() -> str:
    return os.environ.get(BOOTSTRAP_VARIABLE, LOCAL)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run", help="the main flow against Kafka", description="Runs the main flow until SIGTERM."
    )
    add_engine(run)
    add_pace(run)
    workers = "default: 1; one is supported, more processes are the way to scale"
    run.add_argument("--workers", default="1", metavar="N", help=workers)
    run.add_argument("--metrics-port", metavar="PORT", help="serve /metrics, /livez and /readyz here")
    run.add_argument("--metrics-host", default=LOOPBACK, metavar="HOST", help=f"where (default: {LOOPBACK})")
    told = "one engine works for it (default: recallflow-MEMORY_TOPIC)"
    run.add_argument("--deployment", metavar="NAME", help=told)
    told = f"after so long without a word another engine may take over (default: {SESSION_S:g})"
    run.add_argument("--session-timeout-s", default=f"{SESSION_S:g}", metavar="S", help=told)
    told = "start although outputs since the last snapshot are gone from their topics, and may be sent again"
    run.add_argument(ACCEPT, action="store_true", help=told)
    run.add_argument("--wait", action="store_true", help="stand by while another engine works for the deployment")
    run.add_argument("--serve-while-catching-up", action="store_true", help="/readyz is 200 before all is applied")
    run.add_argument("--log-format", choices=FORMATS, default=FORMATS[0], help="of the lines on standard error")
    run.add_argument("--reply-topic", action="append", default=[], metavar="TOPIC", help="may be named in reply_to")
    passed = "pass over this record: it becomes a dead letter, unread; may be given often"
    run.add_argument("--skip", action="append", default=[], metavar="TOPIC:PARTITION:OFFSET", help=passed)
    add_topics(run, "memory", "queries", "control", "responses", "receipts", "dead_letters")
    run.set_defaults(run=run_flow)
    parser = commands.add_parser("topics", help="topics with sensible settings", description="Topics.")
    create = parser.add_subparsers(metavar="ACTION", required=True).add_parser("create", help="create what is missing")
    create.add_argument("--partitions", default="8", metavar="N", help="per topic (default: 8)")
    create.add_argument("--replication", default="1", metavar="N", help="copies (default: 1)")
    add_topics(create, *_TOPICS)
    create.set_defaults(run=run_create)
    for command in (run, create):
        add_kafka(command, servers_in_environment())


def add_kafka(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Where Kafka is; `default` where nothing is given."""
    told = f"Kafka (default: ${BOOTSTRAP_VARIABLE}, {default or 'none'})"
    parser.add_argument("--bootstrap-servers", default=default, metavar="HOST:PORT", help=told)
    parser.add_argument("-X", dest="librdkafka", action="append", default=[], metavar="NAME=VALUE",
                        help="any librdkafka option: security.protocol, sasl.*, ssl.*, …")  # fmt: skip


def add_topics(parser: argparse.ArgumentParser, *fields: str) -> None:
    """What the topics are called that a command uses."""
    for name in fields:
        default = getattr(Topics, name)
        flag = f"--{_TOPICS[name]}-topic"
        parser.add_argument(flag, dest=f"topic_{name}", default=default, metavar="TOPIC", help=f"default: {default}")


def kafka_options(options: argparse.Namespace) -> KafkaOptions:
    """The Kafka that the options name."""
    pairs = [text.split("=", 1) for text in options.librdkafka]
    if wrong := [pair[0] for pair in pairs if len(pair) == 1]:
        raise UsageError(f"-X {wrong[0]}: give NAME=VALUE")
    return KafkaOptions(options.bootstrap_servers, dict(pairs))


def topics(options: argparse.Namespace) -> Topics:
    """The topics that the options name; others are called as they are by default."""
    given = {name: getattr(options, f"topic_{name}", getattr(Topics, name)) for name in _TOPICS}
    return Topics(**given, replies=tuple(getattr(options, "reply_topic", ())))


def run_flow(options: argparse.Namespace) -> int:
    set_up(options.log_format)
    state_dir: Path | None = options.state_dir
    if state_dir is None:
        raise UsageError("give --state-dir: the folder that holds the state")
    workers = whole("workers", options.workers)
    if workers < 1:
        raise UsageError("--workers: give 1 or more")
    port = None if options.metrics_port is None else whole("metrics_port", options.metrics_port)
    session_s = fraction("session_timeout_s", options.session_timeout_s)
    if not SESSION_MIN_S <= session_s <= SESSION_MAX_S:
        raise UsageError(f"--session-timeout-s: give {SESSION_MIN_S:g} to {SESSION_MAX_S:g} seconds")
    kafka, named, chosen = kafka_options(options), topics(options), settings(options)
    starting = (options.wait, options.serve_while_catching_up, named.skipped(options.skip), options.accept_repeats)
    deployment = (options.deployment or None, session_s, *starting)
    KafkaFlow(kafka, state_dir, named, chosen, workers, options.metrics_host, port, *deployment).run()
    return 0


def run_create(options: argparse.Namespace) -> int:
    named = topics(options)
    many, copies = whole("partitions", options.partitions), whole("replication", options.replication)
    if many < 1 or copies < 1:
        raise UsageError("--partitions and --replication: give 1 or more")
    partitions = {
        named.memory: many,
        named.queries: many,
        named.control: 1,
        named.responses: many,
        named.receipts: many,
        named.enrichment: many,
        named.dead_letters: 1,
    }
    config = dict.fromkeys(partitions, LOG_APPEND_TIME)
    # The memories themselves: lost state is rebuilt from this log, so nothing in it may expire.
    config[named.memory] = LOG_APPEND_TIME | {"retention.ms": "-1"}
    config[named.control] = LOG_APPEND_TIME | {"cleanup.policy": "compact"}
    for topic, made in create_topics(kafka_options(options), partitions, config, copies).items():
        print(f"{topic}: {'created' if made else 'was there'}")
    return 0
