"""`recallflow enrich`: the enrichment flow against Kafka."""

import argparse

from recallflow.cli.options import EMBEDDING, LLM, STATE, add_create, add_kafka
from recallflow.cli.until_stopped import run_until_stopped

TOPICS = ("enrichment", "results", "memory", "control", "receipts", "dead_letters")
DEPLOYMENT = ("run.deployment", "run.session_timeout_s", "run.accept_repeats", "run.give_up_unanswered")
SHOWN = ("run.metrics_host", "run.metrics_port", "run.log_format")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    enrich = commands.add_parser(
        "enrich",
        help="models beside the main flow",
        description="Runs the enrichment flow until SIGTERM.",
        examples=(
            "recallflow enrich --bootstrap-servers localhost:9092 --state-dir enrichment --create --llm gpt-4o-mini",
        ),
    )
    topics = (f"topics.{name}" for name in TOPICS)
    add_kafka(enrich, *STATE, *LLM, "llm.timeout_ms", *EMBEDDING, "engine.epoch_ms", *topics, *DEPLOYMENT, *SHOWN)
    add_create(enrich)
    enrich.add_argument("--print-config", action="store_true", help="print the settings that hold, and from where")
    enrich.set_defaults(run=run_flow)


def run_flow(options: argparse.Namespace) -> int:
    from recallflow.flows.enrich import EnrichFlow

    return run_until_stopped(options, lambda chosen: EnrichFlow(chosen).run())
