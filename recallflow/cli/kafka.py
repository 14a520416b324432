"""`recallflow run` and `recallflow topics create`: the main flow against Kafka."""

import argparse
import os
from pathlib import Path

from recallflow.cli.options import add_engine, settings
from recallflow.connectors.kafka.admin import create_topics
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.errors import UsageError
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.topics import Topics

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
LOCAL = "localhost:9092"
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def servers_in_environment() -> str:
    return os.environ.get(BOOTSTRAP_VARIABLE, LOCAL)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run", help="the main flow against Kafka", description="Runs the main flow until SIGTERM."
    )
    add_engine(run)
    run.add_argument("--reply-topic", action="append", default=[], metavar="TOPIC", help="may be named in reply_to")
    run.set_defaults(run=run_flow)
    topics = commands.add_parser("topics", help="topics with sensible settings", description="Topics.")
    create = topics.add_subparsers(metavar="ACTION", required=True).add_parser("create", help="create what is missing")
    create.add_argument("--partitions", type=int, default=8, metavar="N", help="per topic (default: 8)")
    create.add_argument("--replication", type=int, default=1, metavar="N", help="copies (default: 1)")
    create.set_defaults(run=run_create)
    for parser in (run, create):
        add_kafka(parser, servers_in_environment())


def add_kafka(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Where Kafka is; `default` where nothing is given."""
    told = f"Kafka (default: ${BOOTSTRAP_VARIABLE}, {default or 'none'})"
    parser.add_argument("--bootstrap-servers", default=default, metavar="HOST:PORT", help=told)
    parser.add_argument("-X", dest="librdkafka", action="append", default=[], metavar="NAME=VALUE",
                        help="any librdkafka option: security.protocol, sasl.*, ssl.*, …")  # fmt: skip


def kafka_options(options: argparse.Namespace) -> KafkaOptions:
    """The Kafka that the options name."""
    pairs = [text.split("=", 1) for text in options.librdkafka]
    if wrong := [pair[0] for pair in pairs if len(pair) == 1]:
        raise UsageError(f"-X {wrong[0]}: give NAME=VALUE")
    return KafkaOptions(options.bootstrap_servers, dict(pairs))


def run_flow(options: argparse.Namespace) -> int:
    state_dir: Path | None = options.state_dir
    if state_dir is None:
        raise UsageError("give --state-dir: the folder that holds the state")
    topics = Topics(replies=tuple(options.reply_topic))
    KafkaFlow(kafka_options(options), state_dir, topics, settings(options)).run()
    return 0


def run_create(options: argparse.Namespace) -> int:
    topics, many = Topics(), options.partitions
    if many < 1 or options.replication < 1:
        raise UsageError("--partitions and --replication: give 1 or more")
    partitions = {
        topics.memory: many,
        topics.queries: many,
        topics.control: 1,
        topics.responses: many,
        topics.receipts: many,
        topics.enrichment: many,
        topics.dead_letters: 1,
    }
    config = dict.fromkeys(partitions, LOG_APPEND_TIME)
    config[topics.control] = LOG_APPEND_TIME | {"cleanup.policy": "compact"}
    for topic, made in create_topics(kafka_options(options), partitions, config, options.replication).items():
        print(f"{topic}: {'created' if made else 'was there'}")
    return 0
