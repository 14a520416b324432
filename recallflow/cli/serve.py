"""`recallflow serve`: the gateway, HTTP in and out."""

import argparse
from typing import TYPE_CHECKING

from recallflow.cli.kafka import OUTPUTS
from recallflow.cli.options import ENGINE, GRAPH, LLM, RERANK, add_control, add_create, add_kafka, decisions
from recallflow.cli.until_stopped import run_until_stopped
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.flows.config import Config

SERVE = ("serve.host", "serve.port", "serve.reply_topic", "serve.reply_partition")
TOPICS = ("topics.memory", "topics.queries", "topics.control", *OUTPUTS)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="the gateway: questions and events over HTTP",
        description="Serves HTTP until SIGTERM, for an engine behind Kafka; with --state-dir for one in this process, "
        "over that directory.",
        examples=(
            "recallflow serve --state-dir memory",
            "recallflow serve --bootstrap-servers localhost:9092 --port 8081",
        ),
    )
    add_kafka(parser, *SERVE, *TOPICS, *ENGINE, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms", "run.log_format")
    add_control(parser)
    add_create(parser)
    parser.add_argument("--print-config", action="store_true", help="print the settings that hold, and from where")
    parser.set_defaults(run=run_serve)


def run_serve(options: argparse.Namespace) -> int:
    def run(config: "Config") -> None:
        from recallflow.flows import gateway  # which needs an extra

        if options.state_dir is not None:
            gateway.serve_local(config, decisions(options), options.control)
        elif options.control is not None:
            raise UsageError("--control goes with --state-dir: before Kafka, decisions stand in the control topic")
        else:
            gateway.serve_kafka(config)

    return run_until_stopped(options, run)
