"""`recallflow export`: everything that is held on a person; memories of many; answers."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.cli.options import STATE, add_kafka, config_and_origins

if TYPE_CHECKING:
    from recallflow.flows.config import Config

CACHE_BYTES = 1024 * 1024


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export",
        help="what is held on a person; memories, or answers, as JSON lines or Parquet",
        description="Writes all that a state directory, or a checkpoint, holds on a user: every version of every "
        "memory, the graph, usage, episodes, what waits; it ends with 1 where nothing is known of the user. With "
        "--memories: the memories of all, of a tenant or of a user, as events that replay reads. With --answers: what "
        "is in the response topic.",
        examples=(
            "recallflow export default user --state-dir memory --out user.jsonl",
            "recallflow export --memories --state-dir memory --out memories.parquet",
            "recallflow export --answers --bootstrap-servers localhost:9092 | head -1",
        ),
    )
    parser.add_argument("tenant", metavar="TENANT", nargs="?")
    parser.add_argument("user", metavar="USER", nargs="?")
    add_environments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--memories", action="store_true", help="memories alone, to be replayed elsewhere")
    what.add_argument("--answers", action="store_true", help="the answers in the response topic, from Kafka")
    what.add_argument("--vectors", action="store_true", help="with the numbers of vectors")
    parser.add_argument("--format", choices=("jsonl", "parquet"), help="default: by the file's ending, else jsonl")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there, for nobody else to read")
    add_kafka(parser, *STATE, "topics.responses")
    parser.set_defaults(run=run_export)


def add_person(parser: argparse.ArgumentParser) -> None:
    """Who it is about."""
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("user", metavar="USER")
    add_environments(parser)


def add_environments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environment",
        dest="environments",
        action="append",
        default=[],
        metavar="NAME",
        help="only in this one; may be given often (default: all)",
    )


def run_export(options: argparse.Namespace) -> int:
    from recallflow.cli.exported import format_of
    from recallflow.errors import UsageError

    chosen, origins = config_and_origins(options)
    form = format_of(options.format, options.out)
    if options.answers:
        if "kafka.bootstrap_servers" not in origins:
            raise UsageError("--answers: give --bootstrap-servers HOST:PORT; they are in Kafka")
        return _answers(chosen, options.out, form)
    if options.memories:
        return _memories(chosen, options, form)
    if options.user is None:
        raise UsageError("give TENANT and USER, or --memories, or --answers")
    if form != "jsonl":
        raise UsageError("all that is held on a person is of many kinds, and JSON lines; for Parquet give --memories")
    return _person(chosen, options)


def _person(chosen: "Config", options: argparse.Namespace) -> int:
    from itertools import chain

    from recallflow.cli.exported import write
    from recallflow.errors import RecallflowError
    from recallflow.flows.export import export
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.directory import StateDirectory

    with StateDirectory.existing(chosen.named_state_dir(), CACHE_BYTES, open_at_rest(chosen.encryption)) as directory:
        records = export(directory, options.tenant, options.user, options.environments, vectors=options.vectors)
        if (first := next(records, None)) is None:
            raise RecallflowError(f"nothing is held on user {options.user} of tenant {options.tenant}")
        write(chain([first], records), {}, "jsonl", options.out)
    return 0


def _memories(chosen: "Config", options: argparse.Namespace, form: str) -> int:
    from recallflow.cli.exported import MEMORIES, write
    from recallflow.cli.output import note
    from recallflow.flows.export import memory_events
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.directory import StateDirectory

    with StateDirectory.existing(chosen.named_state_dir(), CACHE_BYTES, open_at_rest(chosen.encryption)) as directory:
        events = memory_events(directory, options.tenant, options.user, frozenset(options.environments))
        count = write(events, MEMORIES, form, options.out)
    note(f"{count:,} events of memories")
    return 0


def _answers(chosen: "Config", path: Path | None, form: str) -> int:
    from recallflow.cli.exported import ANSWERS, write
    from recallflow.cli.output import note
    from recallflow.connectors.kafka.topic_reader import answers

    count = write(answers(chosen.kafka, chosen.topics.responses), ANSWERS, form, path)
    note(f"{count:,} answers of {chosen.topics.responses}")
    return 0
