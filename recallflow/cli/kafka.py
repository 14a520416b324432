"""`recallflow run` and `recallflow topics create`: the main flow against Kafka."""

import argparse
from typing import TYPE_CHECKING

from recallflow.cli.options import ENRICHMENT, GRAPH, KEPT, LLM, PACE, RERANK, add_create, add_kafka, config
from recallflow.cli.output import json_line
from recallflow.cli.until_stopped import run_until_stopped
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.flows.config import Config

LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
OUTPUTS = ("topics.responses", "topics.receipts", "topics.dead_letters")
TOPICS = ("topics.memory", "topics.queries", "topics.control", *OUTPUTS, "topics.enrichment")
DEPLOYMENT = ("run.deployment", "run.session_timeout_s", "run.own", "run.instance_id")
ANSWERED = ("run.accept_repeats", "run.give_up_unanswered", "run.skip")
MEMBERS = ("run.processes", "run.standby")
CHECKPOINTS = ("run.checkpoint_to", "run.checkpoint_minutes", "run.checkpoint_keep")
SHOWN = ("run.metrics_host", "run.metrics_port", "run.serve_while_catching_up", "run.log_format")


RUN = (
    *(*KEPT, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms", *ENRICHMENT, *PACE),
    *(*TOPICS, "topics.audit", "topics.replies", *DEPLOYMENT, *MEMBERS, *CHECKPOINTS),
    *(*ANSWERED, *SHOWN),
)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    run = commands.add_parser(
        "run",
        help="the engine: the main flow against Kafka",
        description="Runs the main flow until SIGTERM.",
        examples=(
            "recallflow run --bootstrap-servers localhost:9092 --state-dir engine --create",
            "recallflow run --processes auto --bootstrap-servers localhost:9092 --state-dir engines --create",
        ),
    )
    add_kafka(run, *RUN)
    add_create(run)
    run.add_argument("--print-config", action="store_true", help="print the settings that hold, and from where")
    run.set_defaults(run=run_flow)
    parser = commands.add_parser("topics", help="topics with sensible settings", description="Topics.")
    create = parser.add_subparsers(metavar="ACTION", required=True, dest="action").add_parser(
        "create",
        help="create what is missing",
        description="Creates the topics that are missing.",
        examples=("recallflow topics create --partitions 8 --bootstrap-servers localhost:9092",),
    )
    create.add_argument("--json", action="store_true", help="a line of JSON for each topic")
    create.add_argument("--partitions", default="16", metavar="N", help="per topic (default: 16)")
    create.add_argument("--replication", default="1", metavar="N", help="copies (default: 1)")
    add_kafka(create, *TOPICS, "topics.results", "topics.audit")
    create.set_defaults(run=run_create)


def run_flow(options: argparse.Namespace) -> int:
    return run_until_stopped(options, _run, lambda chosen: chosen.engine.check_models())


def _run(chosen: "Config") -> int:
    from recallflow.members.folders import check_for_one
    from recallflow.members.start import processes, run_members

    if (count := processes(chosen)) > 1:
        return run_members(chosen, count)
    from recallflow.flows.kafka import KafkaFlow  # which a supervisor does without

    check_for_one(chosen.named_state_dir())
    KafkaFlow(chosen).run()
    return 0


def run_create(options: argparse.Namespace) -> int:
    from recallflow.connectors.kafka.admin import KEEPS_ALL, create_topics

    chosen = config(options)
    named = chosen.topics
    many, copies = _count("--partitions", options.partitions), _count("--replication", options.replication)
    partitions = {
        named.memory: many,
        named.queries: many,
        named.control: 1,
        named.responses: many,
        named.receipts: many,
        named.enrichment: many,
        named.results: many,
        named.dead_letters: 1,
    }
    if named.audit is not None:
        partitions[named.audit] = many
    settings = dict.fromkeys(partitions, LOG_APPEND_TIME)
    # The memories themselves: lost state is rebuilt from this log, so nothing in it may expire.
    settings[named.memory] = LOG_APPEND_TIME | {"retention.ms": "-1"}
    # What was decided, too: records are judged by what held when they came, however long ago that is.
    settings[named.control] = LOG_APPEND_TIME | KEEPS_ALL
    for topic, made in create_topics(chosen.kafka, partitions, settings, copies).items():
        if options.json:
            json_line({"topic": topic, "created": made})
        else:
            print(f"{topic}: {'created' if made else 'was there'}")
    return 0


def _count(flag: str, text: str) -> int:
    from recallflow.flows.config import parse_whole

    try:
        if (count := parse_whole(text)) >= 1:
            return count
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    raise UsageError(f"{flag}: give 1 or more")
