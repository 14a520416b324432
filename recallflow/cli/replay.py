"""`recallflow replay`: conversation logs to Kafka, or into a state directory."""

import argparse
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recallflow.cli.options import ENGINE, add_create, add_kafka, add_owner, config_and_origins

if TYPE_CHECKING:
    from recallflow.cli.pace import Meter, Pace
    from recallflow.cli.rejects import Rejects
    from recallflow.connectors.lines import Delivery
    from recallflow.connectors.logs.model import Scope
    from recallflow.connectors.logs.registry import Log
    from recallflow.flows.config import Config
    from recallflow.flows.embedded import Embedded
    from recallflow.outputs import Answer, DeadLetter, Receipted

DATES = ("dmy", "mdy", "ymd")


class Replayed(NamedTuple):
    """What was done with a log. `before`: events that an earlier run had taken; `rate`: events a second; `where`: what
    else there is to say of where they went."""

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
            said += f", {self.before:,} before were there from an earlier run"
        if self.refused:
            said += f"; {self.refused:,} refused, see {self.rejects}"
        if self.skipped:
            said += f"; left out: {', '.join(f'{count:,} {reason}' for reason, count in self.skipped.most_common())}"
        return f"{said}; {self.rate:,.0f} events/s" if self.events else said


class Job(NamedTuple):
    """A log to be replayed. `shown`: its name for people; `within`: its name in the folder or archive it is of."""

    log: "Log"
    scope: "Scope"
    rejects: "Rejects"
    shown: str
    within: str | None


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay",
        help="conversation logs to Kafka, or into a state directory",
        description="Replays conversation logs: exports of chat programs and of other memories, chat messages, tables, "
        "our own events. The format is recognised. An interrupted replay goes on where it stopped; refused records go "
        "to FILE.rejects.jsonl with their reasons.",
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
    parser.add_argument("--embedded", action="store_true", help="into --state-dir, without Kafka")
    parser.add_argument("--format", metavar="NAME", help="read it as this, whatever it looks like")
    of_table = "of a table (Parquet, JSON lines): which column has content, user_id, timestamp, …"
    parser.add_argument(
        "--column", dest="columns", action="append", default=[], metavar="FIELD=COLUMN", type=_column, help=of_table
    )
    parser.add_argument("--date-order", choices=DATES, help="of dates that do not say it: 1/2/24")
    parser.add_argument("--zone", metavar="NAME", help="where clocks stood that do not say it (default: UTC)")
    parser.add_argument("--rate", type=_rate, metavar="N", help="at most so many events a second")
    parser.add_argument("--rejects", type=Path, metavar="FILE", help="default: the log's name with .rejects.jsonl")
    add_create(parser)
    parser.add_argument("--dry-run", action="store_true", help="read and check only; nothing is stored")
    parser.add_argument("--json", action="store_true", help="what was done, or would be, as JSON lines")
    add_kafka(parser, *ENGINE, "run.workers", "topics.memory")
    add_owner(parser)
    parser.set_defaults(run=run, user=None)


def run(options: argparse.Namespace) -> int:
    from recallflow.cli.dry_run import dry_run
    from recallflow.cli.pace import Pace
    from recallflow.errors import UsageError
    from recallflow.flows.embedding import open_embedder

    chosen, origins = config_and_origins(options)
    jobs = _jobs(options)
    if options.dry_run:
        with open_embedder(chosen.engine, chosen.embedding) as embedder:
            return dry_run([(job.shown, job.log, job.scope) for job in jobs], embedder, as_json=options.json)
    pace = None if options.rate is None else Pace(options.rate)
    if not options.embedded and "kafka.bootstrap_servers" in origins:
        _to_kafka(chosen, jobs, pace, as_json=options.json)
    elif options.embedded and chosen.state_dir is not None:
        _to_directory(chosen, chosen.state_dir, jobs, pace, as_json=options.json)
    else:
        raise UsageError("give --embedded --state-dir DIR, or --bootstrap-servers HOST:PORT")
    return 0


def _jobs(options: argparse.Namespace) -> list[Job]:
    from recallflow.cli.output import note
    from recallflow.cli.rejects import Rejects
    from recallflow.connectors.logs.registry import Registry
    from recallflow.connectors.logs.sources import REJECTS, STANDARD_INPUT, open_source

    registry = Registry(options.format, dict(options.columns))
    scope = _scope(options)
    opened: dict[Path, Rejects] = {}
    jobs = []
    for given in options.files:
        source = open_source(given)
        logs, others = registry.logs_of(source)
        path = Path("standard-input" if given == STANDARD_INPUT else given).resolve()
        target = options.rejects or path.with_name(path.name + REJECTS)
        rejects = opened.setdefault(target, Rejects(target))
        for log in logs:
            within = None if log.source is source else log.source.name
            shown = path.name if within is None else f"{path.name}: {within}"
            jobs.append(Job(log, replace(scope, skipped=Counter()), rejects, shown, within))
        for other in others:
            note(f"{other.where}: not a conversation log, passed over")
    return jobs


def _scope(options: argparse.Namespace) -> "Scope":
    from datetime import UTC
    from zoneinfo import ZoneInfo

    from recallflow.connectors.logs.model import Scope
    from recallflow.errors import UsageError

    try:
        zone = UTC if options.zone is None else ZoneInfo(options.zone)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--zone {options.zone}: no such time zone; give one like Europe/Lisbon") from None
    user, given = (options.user, True) if options.user is not None else ("user", False)
    return Scope(options.tenant, user, options.environment, given, options.date_order, zone)


def _tell(done: Replayed, *, as_json: bool) -> None:
    from recallflow.cli.output import clean, json_line

    if as_json:
        json_line(done._asdict() | {"rejects": str(done.rejects), "rate": round(done.rate, 1)})
    else:
        print(clean(done.text()))


def _to_kafka(chosen: "Config", jobs: list[Job], pace: "Pace | None", *, as_json: bool) -> None:
    from recallflow.cli.publish import publish

    for job in jobs:
        _tell(publish(chosen.kafka, chosen.topics.memory, job, pace, chosen.auth.credentials), as_json=as_json)


def _to_directory(chosen: "Config", state_dir: Path, jobs: list[Job], pace: "Pace | None", *, as_json: bool) -> None:
    from recallflow.flows.embedded import Embedded
    from recallflow.flows.encryption import open_at_rest

    with ExitStack() as stack:
        at_rest = open_at_rest(chosen.encryption)
        opened = Embedded.open(chosen.engine, state_dir, models=chosen.models, at_rest=at_rest)
        embedded = stack.enter_context(opened)
        for job in jobs:
            _tell(_replay(embedded, job, chosen.run.workers, pace), as_json=as_json)


def _replay(embedded: "Embedded", job: Job, workers: int, pace: "Pace | None") -> Replayed:
    from recallflow.cli.pace import Meter, PacedFeed
    from recallflow.connectors.lines import Feed, IteratorFeed
    from recallflow.connectors.logs.identity import log_name
    from recallflow.flows.lines import run_lines

    counts: Counter[str] = Counter()
    with Meter(job.shown, lambda: job.log.source.done_bytes, job.log.source.bytes) as meter:

        def open_feed(offset: int) -> Feed:
            counts["before"] = offset
            values = islice(job.log.read(job.scope), offset, None)
            return IteratorFeed(values) if pace is None else PacedFeed(values, pace)

        name = log_name(job.log, job.scope)
        run_lines(embedded, name, open_feed, _counter(job, counts, meter), rewinds=True, workers=workers)
        done = meter.events, counts["refused"], counts["before"], job.scope.skipped, meter.rate()
    return Replayed(job.shown, *done, job.rejects.path)


def _counter(job: Job, counts: "Counter[str]", meter: "Meter") -> "Delivery":
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
        raise argparse.ArgumentTypeError("give a number of events a second above 0")
    return rate
