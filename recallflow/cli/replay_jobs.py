"""Replay of conversation logs: search for logs, refused records, rate limit, progress, import, and dry run."""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import orjson
from rich.progress import TextColumn

from recallflow.cli.output import clean, error, heading, json_line, note, progress_bar, show, table
from recallflow.connectors.local_inputs import BATCH_RECORDS, Delivered, batched
from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Log, Registry, log_name
from recallflow.connectors.logs.sources import REJECTS, STANDARD_INPUT, LogFile, open_source
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

UPDATE_INTERVAL_S = 0.1  # of the progress display
PRINT_INTERVAL_S = 10.0  # without a terminal
# Of a dry run:
EXAMPLES = 3
EXAMPLE_CHARACTERS = 50
EXCERPT_BYTES = 200  # of a record that would be refused
DISTINCT_MAX = 100_000  # names of a kind are counted up to this number, to limit memory
SURVEY_COLUMNS = "users", "people", "sessions", "events", "refused"


class RejectsFile:
    """File of refused records. Those of earlier replays are not added again; an incomplete last line is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known_digests: set[bytes] = set()
        self._whole_bytes = 0
        self._opened = False
        with suppress(OSError), path.open("rb") as file:  # the first `add` reports a file that is not writable
            for line in takewhile(lambda line: line.endswith(b"\n"), file):
                self._whole_bytes += len(line)
                with suppress(ValueError, KeyError, TypeError):  # line of another program
                    rejected = orjson.loads(line)
                    self._known_digests.add(_line_digest(rejected["line"], rejected["record"], rejected.get("log")))

    def add(self, line: int, letter: DeadLetter, log: str | None = None) -> None:
        """Add a refused line of a log, unless an earlier replay did. `log` is the name of one of several logs."""
        record = letter.record.value.decode(errors="replace")
        if _line_digest(line, record, log) in self._known_digests:
            return
        log_field = {} if log is None else {"log": log}
        try:
            with open_private(self.path, "ab") as file:
                if not self._opened:
                    file.truncate(self._whole_bytes)
                    self._opened = True
                file.write(orjson.dumps(rejection(line, letter) | log_field | {"record": record}) + b"\n")
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; give --rejects FILE") from error


def _line_digest(line: int, record: str, log: str | None) -> bytes:
    """Return a digest of a line's number and content. The content is needed, because logs may have the same name."""
    return blake2b(orjson.dumps([line, record, log]), digest_size=16).digest()


class ReplayResult(NamedTuple):
    """Result of a log's replay. `before` counts the events of earlier runs; `rate` is events per second;
    `where` follows the number of events in the text."""

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
    """Log to be replayed. `label` is its name in messages, `inner_name` its name in a folder or archive. `read_errors`
    collects the errors of all logs of the command."""

    log: Log
    scope: ImportScope
    rejects: RejectsFile
    label: str
    inner_name: str | None
    read_errors: list[str]

    def events(self) -> Iterator[bytes]:
        """Yield the log's events. A read error, such as of a truncated log, ends this log, but not the command."""
        try:
            yield from self.log.read(self.scope)
        except UsageError as error:
            self.read_errors.append(str(error))


def find_jobs(options: argparse.Namespace, read_errors: list[str]) -> list[ReplayJob]:
    """Return the logs in all files; add to `read_errors`. Raise UsageError without logs."""
    registry = Registry(options.format, dict(options.columns))
    scope = _scope(options)
    rejects_files: dict[Path, RejectsFile] = {}
    jobs = []
    for name in options.files:
        try:
            source = open_source(name)
            logs, others = registry.logs_of(source)
        except UsageError as unreadable:
            read_errors.append(str(unreadable))
            continue
        path = Path("standard-input" if name == STANDARD_INPUT else name).resolve()
        target = options.rejects or path.with_name(path.name + REJECTS)
        rejects = rejects_files.setdefault(target, RejectsFile(target))
        for log in logs:
            inner_name = None if log.source is source else log.source.name
            label = path.name if inner_name is None else f"{path.name}: {inner_name}"
            log_scope = replace(scope, skipped=Counter(), columns={})
            jobs.append(ReplayJob(log, log_scope, rejects, label, inner_name, read_errors))
        for other in others:
            if other.broken is None:
                note(f"{other.where}: not a conversation log, skipped")
            else:
                read_errors.append(str(other.broken))
        if source.empty and logs[0].source is not source:
            note(f"{source.where}: {source.empty:,} empty files, skipped")
    if not jobs:
        for text in read_errors[:-1]:
            error(text)
        raise UsageError(read_errors[-1])
    return jobs


def _scope(options: argparse.Namespace) -> ImportScope:
    try:
        zone = UTC if options.zone is None else ZoneInfo(options.zone)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--zone: unknown time zone {options.zone}; give one like Europe/Lisbon") from None
    user, is_given = (options.user, True) if options.user is not None else ("user", False)
    return ImportScope(options.tenant, user, options.environment, is_given, options.date_order, zone)


class RateLimit:
    """Limit in events per second for all logs of a command, from the first event on."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._start_s: float | None = None
        self._passed = 0

    def batches(self, events: Iterator[bytes], size_max: int = BATCH_RECORDS) -> Iterator[list[bytes]]:
        """Yield events in batches as the limit permits them; empty batches while it permits none."""
        self._start_s = start_s = time.monotonic() if self._start_s is None else self._start_s
        for event in events:  # before a wait, because none is needed after the last event
            while (permitted := int((time.monotonic() - start_s) * self._rate) + 1 - self._passed) < 1:
                time.sleep(min(1 / self._rate, UPDATE_INTERVAL_S))
                yield []
            batch = [event, *islice(events, min(permitted, size_max) - 1)]
            self._passed += len(batch)
            yield batch


class ProgressMeter:
    """Progress display on standard error: a bar on a terminal, elsewhere a line at intervals."""

    def __init__(self, name: str, source: LogFile) -> None:
        self._name, self._source = clean(name), source
        self.events = 0
        self._bar = progress_bar(TextColumn("{task.fields[rate]}"))
        self._task = self._bar.add_task(self._name, total=source.total_bytes, rate="")
        self._bar.start()
        self._start_s = time.monotonic()
        self._updated_s = self._printed_s = self._start_s

    def close(self) -> None:
        self._bar.stop()

    def add(self, count: int = 1) -> None:
        self.events += count
        now_s = time.monotonic()
        if now_s - self._updated_s < UPDATE_INTERVAL_S:
            return
        self._updated_s = now_s
        text = f"{self.events:,} events, {self.rate():,.0f}/s"
        if not self._bar.disable:
            self._bar.update(self._task, completed=self._source.done_bytes, rate=text)
        elif now_s - self._printed_s >= PRINT_INTERVAL_S:
            self._printed_s = now_s
            share = self._source.done_bytes / max(1, self._source.total_bytes)
            left_s = (now_s - self._start_s) * (1 - share) / max(share, 1e-3)
            self._bar.console.print(f"{self._name}: {text}, {share:.0%} read, {left_s:,.0f} s left")

    def rate(self) -> float:
        return self.events / max(time.monotonic() - self._start_s, 1e-3)


def report(results: Iterable[ReplayResult], *, as_json: bool) -> int:
    """Print the result of each log. Return the number of refused records."""
    refused = 0
    for result in results:
        refused += result.refused
        fields = result._asdict() | {"rejects": str(result.rejects), "rate": round(result.rate, 1)}
        show(fields, result.text(), as_json=as_json)
    return refused


def to_directory(
    chosen: Config, state_dir: Path, jobs: list[ReplayJob], limit: RateLimit | None, *, as_json: bool
) -> int:
    """Replay to a state directory. Return the number of refused records."""
    if (warning := chosen.enrichment.unavailable_warning()) is not None:
        note(warning)
    at_rest = open_at_rest(chosen.encryption)
    with EmbeddedEngine.open(chosen.engine, state_dir, models=chosen.models, at_rest=at_rest) as embedded:
        return report((_replay(embedded, job, limit) for job in jobs), as_json=as_json)


def _replay(embedded: EmbeddedEngine, job: ReplayJob, limit: RateLimit | None) -> ReplayResult:
    counts: Counter[str] = Counter()
    with closing(ProgressMeter(job.label, job.log.source)) as meter:

        def open_feed(offset: int, add_to_digest: Callable[[bytes], object]) -> Iterator[list[bytes]]:
            counts["before"] = offset
            events = job.events()
            for event in islice(events, offset):
                add_to_digest(event)
            return batched(events) if limit is None else limit.batches(events)

        def deliver(offset: int, outputs: list[Delivered]) -> None:
            meter.add()
            for output in outputs:
                if isinstance(output, DeadLetter):
                    counts["refused"] += 1
                    job.rejects.add(offset + 1, output, job.inner_name)

        try:
            run_lines(embedded, log_name(job.log, job.scope), open_feed, deliver, is_replayable=True)
        except LogChanged as error:
            raise UsageError(f"{job.label}: {error}") from None
        stored, rate = meter.events - counts["refused"], meter.rate()
    skipped, rejects = job.scope.skipped, job.rejects.path
    return ReplayResult(job.label, stored, counts["refused"], counts["before"], skipped, rate, rejects)


class Survey:
    """Summary of a log. People are the speakers by name, without assistants and tools."""

    def __init__(self) -> None:
        self.events = self.refused = 0
        self.span: tuple[int, int] | None = None
        self.examples: list[dict[str, Any]] = []
        self._names: dict[str, set[int]] = {"users": set(), "people": set(), "sessions": set()}  # hashes

    def add(self, item: Write | Ask) -> None:
        event, owner = (item.event, item.owner) if isinstance(item, Write) else (item.query, item.owner)
        self._count_name("users", *owner)
        if event.session_id is not None:
            self._count_name("sessions", *owner, event.session_id)
        if (at := event.timestamp) is not None:
            self.span = (at, at) if self.span is None else (min(at, self.span[0]), max(at, self.span[1]))
        if not isinstance(item, Write) or (author_text := author_and_text(item.event)) is None:
            return
        if getattr(event, "role", "user") == "user":
            self._count_name("people", *owner, getattr(event, "name", None))
        if len(self.examples) < EXAMPLES:
            self.examples.append(_example(event, author_text[1]))

    def _count_name(self, kind: str, *name: str | None) -> None:
        if len(self._names[kind]) <= DISTINCT_MAX:
            self._names[kind].add(hash(name))

    def fields(self) -> dict[str, Any]:
        first, last = (None, None) if self.span is None else map(format_time, self.span)
        too_many = f"over {DISTINCT_MAX:,}"
        counts = {kind: len(names) if len(names) <= DISTINCT_MAX else too_many for kind, names in self._names.items()}
        return counts | {"events": self.events, "from": first, "to": last, "refused": self.refused}


def _example(event: Any, text: str) -> dict[str, Any]:
    line = " ".join(text.split())
    excerpt = line if len(line) <= EXAMPLE_CHARACTERS else line[: EXAMPLE_CHARACTERS - 1] + "…"
    author = getattr(event, "name", None) or getattr(event, "role", None)
    at = None if event.timestamp is None else format_time(event.timestamp)
    return {"user": event.user_id, "session": event.session_id, "at": at, "who": author, "text": excerpt}


def dry_run(jobs: Sequence[ReplayJob], embedder: Embedder, *, as_json: bool) -> int:
    """Read and check logs; return the number of records that would be refused."""
    surveys: list[dict[str, Any]] = []
    for job in jobs:
        fields: dict[str, Any] = {"log": job.label, "format": job.log.format.name}
        errors_before = len(job.read_errors)
        survey = _survey(job, embedder)
        if log_errors := job.read_errors[errors_before:]:
            fields["error"] = log_errors[0]
        fields |= survey.fields() | {"left_out": dict(job.scope.skipped), "examples": survey.examples}
        if job.scope.columns:
            fields["columns"] = {field: column for column, field in job.scope.columns.items() if field}
            fields["unused_columns"] = [column for column, field in job.scope.columns.items() if not field]
        surveys.append(fields)
        if as_json:
            json_line(fields)
    if not as_json:
        _print_surveys(surveys)
    return sum(one["refused"] for one in surveys)


def _survey(job: ReplayJob, embedder: Embedder) -> Survey:
    survey, name = Survey(), log_name(job.log, job.scope)
    with closing(ProgressMeter(job.label, job.log.source)) as meter:
        for number, event in enumerate(job.events(), start=1):
            item = decode(Record(Position(name, 0, number - 1), event, 0))
            if isinstance(item, Write):
                item = check_dimension(embedder, item)
            if isinstance(item, Refused):
                survey.refused += 1
                refused = rejection(number, DeadLetter(item.record, 0, item.error, item.step))
                json_line(refused | {"record": event[:EXCERPT_BYTES].decode(errors="replace")}, stderr=True)
            else:
                survey.events += 1
                survey.add(item)
            meter.add()
    return survey


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
