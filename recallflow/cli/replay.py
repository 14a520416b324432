"""`recallflow replay`: conversation logs to Kafka, or into a state directory."""

import argparse
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recallflow.cli.options import ENGINE, add_create, add_kafka, add_owner, config_and_origins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recallflow.cli.pace import Pace, ProgressMeter
    from recallflow.cli.rejects import Rejects
    from recallflow.connectors.lines import Delivery
    from recallflow.connectors.logs.events import ImportScope
    from recallflow.connectors.logs.registry import Log
    from recallflow.flows.config import Config
    from recallflow.flows.embedded import EmbeddedEngine
    from recallflow.outputs import Answer, DeadLetter, Receipted

DATES = ("dmy", "mdy", "ymd")


class Replayed(NamedTuple):
    """Result of a log's replay. `events` counts the new events, `before` the events of earlier runs; `rate` is in
    records per second; `where` describes the target."""

    log: str
    events: int
    refused: int
    before: int
    skipped: "Counter[str]"
    rate: float
    rejects: Path
    where: str = ""

    def text(self) -> str:
        said = f"{self.log}: {self.events:,} events{self.where}"
        if self.before:
            said += f", {self.before:,} were stored by an earlier run"
        if self.refused:
            said += f"; {self.refused:,} refused, see {self.rejects}"
        if self.skipped:
            said += f"; omitted: {', '.join(f'{count:,} {reason}' for reason, count in self.skipped.most_common())}"
        return f"{said}; {self.rate:,.0f} events/s" if self.events else said


class ReplayJob(NamedTuple):
    """Log to be replayed. `shown` is its name in messages, `within` its name in a folder or archive. `failed`
    collects the read errors of all logs of the command."""

    log: "Log"
    scope: "ImportScope"
    rejects: "Rejects"
    shown: str
    within: str | None
    failed: list[str]

    def values(self) -> "Iterator[bytes]":
        """Yield the log's events, up to the end of a truncated log. A truncated log does not stop the command."""
        from recallflow.errors import UsageError

        try:
            yield from self.log.read(self.scope)
        except UsageError as error:
            self.failed.append(str(error))


def add_replay(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay",
        help="import conversation logs to Kafka or a state directory",
        description="Imports conversation logs: exports of chat programs and other memory systems, chat messages, "
        "tables, recallflow events. The format is detected. An interrupted replay can be continued. Refused records "
        "go to FILE.rejects.jsonl with their reasons.",
        examples=(
            "recallflow replay conversations.jsonl --dry-run",
            "recallflow replay conversations.jsonl --embedded --state-dir new --create",
            "zcat -f conversations.jsonl | recallflow replay - --embedded --state-dir piped --create",
            "recallflow replay conversations.jsonl --bootstrap-servers localhost:9092",
        ),
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a file, a folder, a zip archive, or - for standard input; .gz, .zst"
    )
    parser.add_argument("--embedded", action="store_true", help="import into --state-dir, without Kafka")
    parser.add_argument("--format", metavar="NAME", help="format of the log (default: detected)")
    of_table = "of a table (Parquet, CSV, JSON lines): column of content, user_id, timestamp, …"
    parser.add_argument(
        "--column", dest="columns", action="append", default=[], metavar="FIELD=COLUMN", type=_column, help=of_table
    )
    parser.add_argument("--date-order", choices=DATES, help="order in ambiguous dates such as 1/2/24")
    parser.add_argument("--zone", metavar="NAME", help="time zone of times without one (default: UTC)")
    parser.add_argument("--rate", type=_rate, metavar="N", help="maximum events per second")
    parser.add_argument(
        "--rejects",
        type=Path,
        metavar="FILE",
        help="file for refused records (default: the log's name with .rejects.jsonl)",
    )
    add_create(parser)
    parser.add_argument("--dry-run", action="store_true", help="read and check only, without storing")
    parser.add_argument("--json", action="store_true", help="print the results as JSON lines")
    add_kafka(parser, *ENGINE, "topics.memory")
    add_owner(parser)
    parser.set_defaults(run=run, user=None)


def run(options: argparse.Namespace) -> int:
    from recallflow.cli.dry_run import dry_run
    from recallflow.cli.pace import Pace
    from recallflow.errors import UsageError
    from recallflow.flows.models import open_embedder

    chosen, origins = config_and_origins(options)
    failed: list[str] = []
    jobs = _jobs(options, failed)
    if options.dry_run:
        with open_embedder(chosen.engine, chosen.embedding) as embedder:
            refused = dry_run(jobs, embedder, as_json=options.json)
        return _ended(refused, failed)
    pace = None if options.rate is None else Pace(options.rate)
    if not options.embedded and "kafka.bootstrap_servers" in origins:
        refused = _to_kafka(chosen, jobs, pace, as_json=options.json)
    elif options.embedded and chosen.state_dir is not None:
        refused = _to_directory(chosen, chosen.state_dir, jobs, pace, as_json=options.json)
    else:
        raise UsageError("give --embedded --state-dir DIR, or --bootstrap-servers HOST:PORT")
    return _ended(refused, failed)


def _ended(refused: int, failed: list[str]) -> int:
    """Print the read errors, and return the exit code: 1 where an event was refused or unreadable."""
    from recallflow.cli.output import error

    for one in failed:
        error(one)
    return int(bool(refused or failed))


def _jobs(options: argparse.Namespace, failed: list[str]) -> list[ReplayJob]:
    """Return the logs in all files; add read errors to `failed`. Raise UsageError without logs."""
    from recallflow.cli.output import error, note
    from recallflow.cli.rejects import Rejects
    from recallflow.connectors.logs.registry import Registry
    from recallflow.connectors.logs.sources import REJECTS, STANDARD_INPUT, open_source
    from recallflow.errors import UsageError

    registry = Registry(options.format, dict(options.columns))
    scope = _scope(options)
    opened: dict[Path, Rejects] = {}
    jobs = []
    for given in options.files:
        try:
            source = open_source(given)
            logs, others = registry.logs_of(source)
        except UsageError as unread:
            failed.append(str(unread))
            continue
        path = Path("standard-input" if given == STANDARD_INPUT else given).resolve()
        target = options.rejects or path.with_name(path.name + REJECTS)
        rejects = opened.setdefault(target, Rejects(target))
        for log in logs:
            within = None if log.source is source else log.source.name
            shown = path.name if within is None else f"{path.name}: {within}"
            jobs.append(ReplayJob(log, replace(scope, skipped=Counter(), columns={}), rejects, shown, within, failed))
        for other in others:
            if other.broken is None:
                note(f"{other.where}: not a conversation log, skipped")
            else:
                failed.append(str(other.broken))
        if source.empty and logs[0].source is not source:
            note(f"{source.where}: {source.empty:,} empty files, skipped")
    if not jobs:
        *before, last = failed
        for one in before:
            error(one)
        raise UsageError(last)
    return jobs


def _scope(options: argparse.Namespace) -> "ImportScope":
    from datetime import UTC
    from zoneinfo import ZoneInfo

    from recallflow.connectors.logs.events import ImportScope
    from recallflow.errors import UsageError

    try:
        zone = UTC if options.zone is None else ZoneInfo(options.zone)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--zone: unknown time zone {options.zone}; give one like Europe/Lisbon") from None
    user, given = (options.user, True) if options.user is not None else ("user", False)
    return ImportScope(options.tenant, user, options.environment, given, options.date_order, zone)


def _tell(done: Replayed, *, as_json: bool) -> None:
    from recallflow.cli.output import clean, json_line

    if as_json:
        json_line(done._asdict() | {"rejects": str(done.rejects), "rate": round(done.rate, 1)})
    else:
        print(clean(done.text()))


def _to_kafka(chosen: "Config", jobs: list[ReplayJob], pace: "Pace | None", *, as_json: bool) -> int:
    """Replay to Kafka. Return the number of refused records."""
    from recallflow.cli.publish import publish

    refused = 0
    for job in jobs:
        done = publish(chosen.kafka, chosen.topics.memory, job, pace, chosen.auth.credentials)
        _tell(done, as_json=as_json)
        refused += done.refused
    return refused


def _to_directory(
    chosen: "Config", state_dir: Path, jobs: list[ReplayJob], pace: "Pace | None", *, as_json: bool
) -> int:
    """Replay to a state directory. Return the number of refused records."""
    from recallflow.cli.output import note
    from recallflow.flows.embedded import EmbeddedEngine
    from recallflow.flows.settings import open_at_rest

    refused = 0
    if (warning := chosen.enrichment.unavailable()) is not None:
        note(warning)
    at_rest = open_at_rest(chosen.encryption)
    with EmbeddedEngine.open(chosen.engine, state_dir, models=chosen.models, at_rest=at_rest) as embedded:
        for job in jobs:
            done = _replay(embedded, job, pace)
            _tell(done, as_json=as_json)
            refused += done.refused
    return refused


def _replay(embedded: "EmbeddedEngine", job: ReplayJob, pace: "Pace | None") -> Replayed:
    from recallflow.cli.pace import PacedFeed, ProgressMeter
    from recallflow.connectors.lines import Feed, IteratorFeed
    from recallflow.connectors.logs.registry import log_name
    from recallflow.errors import LogChanged, UsageError
    from recallflow.flows.embedded import run_lines

    counts: Counter[str] = Counter()
    with ProgressMeter(job.shown, lambda: job.log.source.done_bytes, job.log.source.bytes) as meter:

        def open_feed(offset: int, pass_over: "Callable[[bytes], object]") -> Feed:
            counts["before"] = offset
            values = job.values()
            for value in islice(values, offset):
                pass_over(value)
            return IteratorFeed(values) if pace is None else PacedFeed(values, pace)

        name = log_name(job.log, job.scope)
        try:
            run_lines(embedded, name, open_feed, _counter(job, counts, meter), rewinds=True)
        except LogChanged as error:
            raise UsageError(f"{job.shown}: {error}") from None
        done = meter.events - counts["refused"], counts["refused"], counts["before"], job.scope.skipped, meter.rate()
    return Replayed(job.shown, *done, job.rejects.path)


def _counter(job: ReplayJob, counts: "Counter[str]", meter: "ProgressMeter") -> "Delivery":
    from recallflow.outputs import DeadLetter

    def deliver(offset: int, outputs: "list[Answer | Receipted | DeadLetter]") -> None:
        meter.add()
        for output in outputs:
            if isinstance(output, DeadLetter):
                counts["refused"] += 1
                job.rejects.note(offset + 1, output, job.within)

    return deliver


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
