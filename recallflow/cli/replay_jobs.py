"""Replay of conversation logs: the logs of the given files, refused records, rate limit, progress, the import into a
state directory, and the dry run."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

import orjson
from rich.progress import TextColumn

from recallflow.cli.output import clean, error, heading, json_line, note, progress_bar, show, table
from recallflow.connectors.local_inputs import BATCH_RECORDS, Delivered, batched
from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Log, Registry, log_name
from recallflow.connectors.logs.sources import REJECTS, STANDARD_INPUT, open_source
from recallflow.embedder import Embedder
from recallflow.errors import LogChanged, RecallflowError, UsageError
from recallflow.fields import format_time
from recallflow.flows.config import Config
from recallflow.flows.embedded import EmbeddedEngine, rejection, run_lines
from recallflow.flows.settings import open_at_rest
from recallflow.operators.events import Ask, Refused, Write, decode
from recallflow.operators.prepare import author_and_text, check_dimension
from recallflow.outputs import DeadLetter
from recallflow.private_files import open_private
from recallflow.records import Position, Record


class Rejects:
    """Rejects file. Records that it held at opening are not added again; an incomplete last line is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[bytes] = set()
        self._whole_bytes = 0
        self._opened = False
        with suppress(OSError), path.open("rb") as file:  # the first `note` reports a file that is not writable
            for noted in takewhile(lambda line: line.endswith(b"\n"), file):
                self._whole_bytes += len(noted)
                with suppress(ValueError, KeyError, TypeError):  # line of another program
                    rejected = orjson.loads(noted)
                    self._known.add(_line_digest(rejected["line"], rejected["record"], rejected.get("log")))

    def note(self, line: int, letter: DeadLetter, log: str | None = None) -> None:
        """Add a refused line of a log, unless an earlier replay did. `log` is the name of one of several logs."""
        record = letter.record.value.decode(errors="replace")
        if _line_digest(line, record, log) in self._known:
            return
        named = {} if log is None else {"log": log}
        try:
            with open_private(self.path, "ab") as file:
                if not self._opened:
                    file.truncate(self._whole_bytes)
                    self._opened = True
                file.write(orjson.dumps(rejection(line, letter) | named | {"record": record}) + b"\n")
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; give --rejects FILE") from error


def _line_digest(line: int, record: str, log: str | None) -> bytes:
    """Return a digest of a line and its content: another log may have the same name."""
    return blake2b(orjson.dumps([line, record, log]), digest_size=16).digest()


class Replayed(NamedTuple):
    """Result of a log's replay. `before` counts events of earlier runs; `rate` is per second; `where` is the target."""

    log: str
    events: int
    refused: int
    before: int
    skipped: Counter[str]
    rate: float
    rejects: Path
    where: str = ""

    def text(self) -> str:
        text = f"{self.log}: {self.events:,} events{self.where}"
        if self.before:
            text += f", {self.before:,} were stored by an earlier run"
        if self.refused:
            text += f"; {self.refused:,} refused, see {self.rejects}"
        if self.skipped:
            text += f"; omitted: {', '.join(f'{count:,} {reason}' for reason, count in self.skipped.most_common())}"
        return f"{text}; {self.rate:,.0f} events/s" if self.events else text


class ReplayJob(NamedTuple):
    """Log to be replayed. `shown` is its name in messages, `within` its name in a folder or archive. `failed`
    collects the read errors of all logs of the command."""

    log: Log
    scope: ImportScope
    rejects: Rejects
    shown: str
    within: str | None
    failed: list[str]

    def values(self) -> Iterator[bytes]:
        """Yield the log's events, up to the end of a truncated log. A truncated log does not stop the command."""
        try:
            yield from self.log.read(self.scope)
        except UsageError as error:
            self.failed.append(str(error))


def find_jobs(options: argparse.Namespace, failed: list[str]) -> list[ReplayJob]:
    """Return the logs in all files; add read errors to `failed`. Raise UsageError without logs."""
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


def _scope(options: argparse.Namespace) -> ImportScope:
    try:
        zone = UTC if options.zone is None else ZoneInfo(options.zone)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--zone: unknown time zone {options.zone}; give one like Europe/Lisbon") from None
    user, given = (options.user, True) if options.user is not None else ("user", False)
    return ImportScope(options.tenant, user, options.environment, given, options.date_order, zone)


# ---------------------------------------------------------------------- rate and progress

SHOWN_EVERY_S = 0.1
PRINTED_EVERY_S = 10.0  # without a terminal


class Pace:
    """Rate limit in events per second, from the first event on."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begun: float | None = None
        self._taken = 0

    def room(self) -> int:
        """Return how many more events may pass now. Wait for a short time if none may."""
        if self._begun is None:
            self._begun = time.monotonic()
        room = int((time.monotonic() - self._begun) * self._rate) + 1 - self._taken
        if room < 1:
            time.sleep(min(1 / self._rate, SHOWN_EVERY_S))
        return room

    def take(self, count: int) -> None:
        self._taken += count

    def wait(self) -> None:
        """Take one event once the rate permits it."""
        while self.room() < 1:
            pass
        self.take(1)


class ProgressMeter:
    """Progress display on standard error: a bar on a terminal, elsewhere a line at intervals."""

    def __init__(self, name: str, done: Callable[[], int], total: int) -> None:
        """`done` returns how many of `total` bytes are read."""
        self._name, self._done, self._total = clean(name), done, total
        self.events = 0
        self._bar = progress_bar(TextColumn("{task.fields[rate]}"))
        self._task = self._bar.add_task(self._name, total=total, rate="")
        self._begun = time.monotonic()
        self._shown = self._printed = self._begun

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def add(self, count: int = 1) -> None:
        self.events += count
        now = time.monotonic()
        if now - self._shown < SHOWN_EVERY_S:
            return
        self._shown = now
        text = f"{self.events:,} events, {self.rate():,.0f}/s"
        if not self._bar.disable:
            self._bar.update(self._task, completed=self._done(), rate=text)
        elif now - self._printed >= PRINTED_EVERY_S:
            self._printed = now
            share = self._done() / max(1, self._total)
            left = (now - self._begun) * (1 - share) / max(share, 1e-3)
            self._bar.console.print(f"{self._name}: {text}, {share:.0%} read, {left:,.0f} s left")

    def rate(self) -> float:
        return self.events / max(time.monotonic() - self._begun, 1e-3)


def _paced(lines: Iterator[bytes], pace: Pace) -> Iterator[list[bytes]]:
    """Yield lines in batches under a rate limit; none while it is reached."""
    while True:
        room = min(pace.room(), BATCH_RECORDS)
        batch = [*islice(lines, max(0, room))]
        if room >= 1 and not batch:
            return
        pace.take(len(batch))
        yield batch


# ---------------------------------------------------------------------- to a state directory


def report(results: Iterable[Replayed], *, as_json: bool) -> int:
    """Print the result of each log. Return the number of refused records."""
    refused = 0
    for done in results:
        refused += done.refused
        fields = done._asdict() | {"rejects": str(done.rejects), "rate": round(done.rate, 1)}
        show(fields, done.text(), as_json=as_json)
    return refused


def to_directory(chosen: Config, state_dir: Path, jobs: list[ReplayJob], pace: Pace | None, *, as_json: bool) -> int:
    """Replay to a state directory. Return the number of refused records."""
    if (warning := chosen.enrichment.unavailable_warning()) is not None:
        note(warning)
    at_rest = open_at_rest(chosen.encryption)
    with EmbeddedEngine.open(chosen.engine, state_dir, models=chosen.models, at_rest=at_rest) as embedded:
        return report((_replay(embedded, job, pace) for job in jobs), as_json=as_json)


def _replay(embedded: EmbeddedEngine, job: ReplayJob, pace: Pace | None) -> Replayed:
    counts: Counter[str] = Counter()
    with ProgressMeter(job.shown, lambda: job.log.source.done_bytes, job.log.source.total_bytes) as meter:

        def open_feed(offset: int, add_to_digest: Callable[[bytes], object]) -> Iterator[list[bytes]]:
            counts["before"] = offset
            values = job.values()
            for value in islice(values, offset):
                add_to_digest(value)
            return batched(values) if pace is None else _paced(values, pace)

        def deliver(offset: int, outputs: list[Delivered]) -> None:
            meter.add()
            for output in outputs:
                if isinstance(output, DeadLetter):
                    counts["refused"] += 1
                    job.rejects.note(offset + 1, output, job.within)

        name = log_name(job.log, job.scope)
        try:
            run_lines(embedded, name, open_feed, deliver, rewinds=True)
        except LogChanged as error:
            raise UsageError(f"{job.shown}: {error}") from None
        done = meter.events - counts["refused"], counts["refused"], counts["before"], job.scope.skipped, meter.rate()
    return Replayed(job.shown, *done, job.rejects.path)


# ---------------------------------------------------------------------- dry run

EXAMPLES = 3
EXAMPLE_CHARACTERS = 50
EXCERPT_BYTES = 200  # of what would be refused
DISTINCT_MAX = 100_000  # limit of distinct names, to limit memory
SURVEY_COLUMNS = "users", "people", "sessions", "events", "refused"


class Survey:
    """Summary of a log. People are the speakers by name, without assistants and tools."""

    def __init__(self) -> None:
        self.events = self.refused = 0
        self.span: tuple[int, int] | None = None
        self.examples: list[dict[str, Any]] = []
        self._names: dict[str, set[int]] = {"users": set(), "people": set(), "sessions": set()}  # hashes

    def add(self, item: Write | Ask) -> None:
        event, owner = (item.event, item.owner) if isinstance(item, Write) else (item.query, item.owner)
        self._note("users", *owner)
        if event.session_id is not None:
            self._note("sessions", *owner, event.session_id)
        if (at := event.timestamp) is not None:
            self.span = (at, at) if self.span is None else (min(at, self.span[0]), max(at, self.span[1]))
        if not isinstance(item, Write) or (brought := author_and_text(item.event)) is None:
            return
        if getattr(event, "role", "user") == "user":
            self._note("people", *owner, getattr(event, "name", None))
        if len(self.examples) < EXAMPLES:
            self.examples.append(_example(event, brought[1]))

    def _note(self, kind: str, *name: str | None) -> None:
        if len(self._names[kind]) <= DISTINCT_MAX:
            self._names[kind].add(hash(name))

    def shown(self) -> dict[str, Any]:
        first, last = (None, None) if self.span is None else map(format_time, self.span)
        counts = {
            kind: len(seen) if len(seen) <= DISTINCT_MAX else f"over {DISTINCT_MAX:,}"
            for kind, seen in self._names.items()
        }
        return counts | {"events": self.events, "from": first, "to": last, "refused": self.refused}


def _example(event: Any, text: str) -> dict[str, Any]:
    shown = " ".join(text.split())
    cut = shown if len(shown) <= EXAMPLE_CHARACTERS else shown[: EXAMPLE_CHARACTERS - 1] + "…"
    who = getattr(event, "name", None) or getattr(event, "role", None)
    at = None if event.timestamp is None else format_time(event.timestamp)
    return {"user": event.user_id, "session": event.session_id, "at": at, "who": who, "text": cut}


def dry_run(jobs: Sequence[ReplayJob], embedder: Embedder, *, as_json: bool) -> int:
    """Read and check logs; return the number of records that would be refused."""
    surveys: list[dict[str, Any]] = []
    for job in jobs:
        survey = Survey()
        found: dict[str, Any] = {"log": job.shown, "format": job.log.format.name}
        before = len(job.failed)
        _survey(job, embedder, survey)
        if broken := job.failed[before:]:
            found["error"] = broken[0]
        found |= survey.shown() | {"left_out": dict(job.scope.skipped), "examples": survey.examples}
        if job.scope.columns:
            found["columns"] = {field: column for column, field in job.scope.columns.items() if field}
            found["unused_columns"] = [column for column, field in job.scope.columns.items() if not field]
        surveys.append(found)
        if as_json:
            json_line(found)
    if not as_json:
        _print_surveys(surveys)
    return sum(one["refused"] for one in surveys)


def _survey(job: ReplayJob, embedder: Embedder, survey: Survey) -> None:
    name = log_name(job.log, job.scope)
    with ProgressMeter(job.shown, lambda: job.log.source.done_bytes, job.log.source.total_bytes) as meter:
        for number, value in enumerate(job.values(), start=1):
            item = decode(Record(Position(name, 0, number - 1), value, 0))
            if isinstance(item, Write):
                item = check_dimension(embedder, item)
            if isinstance(item, Refused):
                survey.refused += 1
                refused = rejection(number, DeadLetter(item.record, 0, item.error, item.step))
                shown_record = value[:EXCERPT_BYTES].decode(errors="replace")  # start of the record
                json_line(refused | {"record": shown_record}, stderr=True)
            else:
                survey.events += 1
                survey.add(item)
            meter.add()


def _print_surveys(surveys: list[dict[str, Any]]) -> None:
    for one in surveys:
        heading(f"{one['log']}: {one['format']}")
        days = [one[name] and one[name][: len("2024-01-31")] for name in ("from", "to")]
        left_out = sum(one["left_out"].values())
        table((*SURVEY_COLUMNS, "from", "to", "omitted"), [[*(one[name] for name in SURVEY_COLUMNS), *days, left_out]])
        if left_out:
            print(f"omitted: {', '.join(f'{count:,} {reason}' for reason, count in one['left_out'].items() if count)}")
        if "columns" in one:
            print(f"columns: {', '.join(f'{field} from {column}' for field, column in one['columns'].items())}")
            print(f"unused columns (kept as metadata): {', '.join(one['unused_columns']) or 'none'}")
        print()
        table(("user", "session", "at", "who", "text"), [[*example.values()] for example in one["examples"]])
