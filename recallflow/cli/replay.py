"""`recallflow replay`: conversation logs to Kafka, or into a state directory."""

import argparse
from pathlib import Path

from recallflow.cli.flags import ENGINE, add_create, add_kafka, add_owner, add_repeated, config_and_origins
from recallflow.cli.output import error
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import UsageError

DATES = ("dmy", "mdy", "ymd")


def add_replay(commands: Commands) -> None:
    parser = add_command(commands, "replay", run)
    text = "a file, a folder, a zip archive, or - for standard input; .gz, .zst"
    parser.add_argument("files", nargs="+", metavar="FILE", help=text)
    parser.add_argument("--embedded", action="store_true", help="import into --state-dir, without Kafka")
    parser.add_argument("--format", metavar="NAME", help="format of the log (default: detected)")
    text = "in a table (Parquet, CSV, JSON lines): the column of content, user_id, timestamp, …"
    add_repeated(parser, "--column", "columns", "FIELD=COLUMN", text, _column)
    parser.add_argument("--date-order", choices=DATES, help="order in ambiguous dates such as 1/2/24")
    parser.add_argument("--zone", metavar="NAME", help="time zone of times without one (default: UTC)")
    parser.add_argument("--rate", type=_rate, metavar="N", help="maximum events per second")
    text = "file for refused records (default: the log's name with .rejects.jsonl)"
    parser.add_argument("--rejects", type=Path, metavar="FILE", help=text)
    add_create(parser)
    parser.add_argument("--dry-run", action="store_true", help="read and check only, without storing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON lines")
    add_kafka(parser, *ENGINE, "topics.memory")
    add_owner(parser)
    parser.set_defaults(user=None)


def run(options: argparse.Namespace) -> int:
    """Import conversation logs to Kafka or a state directory.
    Logs are exports of chat programs and other memory systems, chat messages, tables, recallflow events. The format is
    detected. An interrupted replay can be continued. Refused records go to FILE.rejects.jsonl with their reasons.
    $ recallflow replay conversations.jsonl --dry-run
    $ recallflow replay conversations.jsonl --embedded --state-dir new --create
    $ zcat -f conversations.jsonl | recallflow replay - --embedded --state-dir piped --create
    $ recallflow replay conversations.jsonl --bootstrap-servers localhost:9092"""
    from recallflow.cli.replay_jobs import RateLimit, dry_run, find_jobs, report, to_directory
    from recallflow.flows.models import open_embedder

    chosen, origins = config_and_origins(options)
    read_errors: list[str] = []
    jobs = find_jobs(options, read_errors)
    limit = None if options.rate is None else RateLimit(options.rate)
    if options.dry_run:
        with open_embedder(chosen.engine, chosen.embedding) as embedder:
            refused = dry_run(jobs, embedder, as_json=options.json)
    elif not options.embedded and "kafka.bootstrap_servers" in origins:
        from recallflow.cli.publish import publish

        topic, credentials = chosen.topics.memory, chosen.auth.credentials
        results = (publish(chosen.kafka, topic, job, limit, credentials) for job in jobs)
        refused = report(results, as_json=options.json)
    elif options.embedded and chosen.state_dir is not None:
        refused = to_directory(chosen, chosen.state_dir, jobs, limit, as_json=options.json)
    else:
        raise UsageError("give --embedded --state-dir DIR, or --bootstrap-servers HOST:PORT")
    for text in read_errors:
        error(text)
    return 1 if refused or read_errors else 0


def _column(text: str) -> tuple[str, str]:
    from recallflow.connectors.logs.tables import FIELDS

    field, _, column = text.partition("=")
    if not column or field not in FIELDS:
        raise argparse.ArgumentTypeError(f"give FIELD=COLUMN, FIELD one of {', '.join(FIELDS)}")
    return field, column


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError("give a number of events per second above 0")
    return rate
