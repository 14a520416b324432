"""`recallflow replay --dry-run`: contents of logs, without storing them."""

from collections.abc import Sequence
from typing import Any

from recallflow.cli.output import heading, json_line, table
from recallflow.cli.pace import ProgressMeter
from recallflow.cli.replay import ReplayJob
from recallflow.connectors.logs.registry import log_name
from recallflow.embedder import Embedder
from recallflow.fields import format_time
from recallflow.flows.embedded import rejection
from recallflow.operators.events import Ask, Refused, Write, decode
from recallflow.operators.prepare import check_dimension, said
from recallflow.outputs import DeadLetter
from recallflow.records import Position, Record

EXAMPLES = 3
EXAMPLE_CHARACTERS = 50
EXCERPT_BYTES = 200  # of what would be refused
DISTINCT_MAX = 100_000  # limit of distinct names, to limit memory
COLUMNS = "users", "people", "sessions", "events", "refused"


class Distinct:
    """Number of distinct names; above DISTINCT_MAX only that fact."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, *name: str | None) -> None:
        if len(self._seen) <= DISTINCT_MAX:
            self._seen.add(hash(name))

    def count(self) -> int | str:
        return len(self._seen) if len(self._seen) <= DISTINCT_MAX else f"over {DISTINCT_MAX:,}"


class Survey:
    """Summary of a log. People are the speakers by name, without assistants and tools."""

    def __init__(self) -> None:
        self.events = self.refused = 0
        self.users, self.people, self.sessions = Distinct(), Distinct(), Distinct()
        self.span: tuple[int, int] | None = None
        self.examples: list[dict[str, Any]] = []

    def add(self, item: Write | Ask) -> None:
        event, owner = (item.event, item.owner) if isinstance(item, Write) else (item.query, item.owner)
        self.users.add(*owner)
        if event.session_id is not None:
            self.sessions.add(*owner, event.session_id)
        if (at := event.timestamp) is not None:
            self.span = (at, at) if self.span is None else (min(at, self.span[0]), max(at, self.span[1]))
        if not isinstance(item, Write) or (brought := said(item.event)) is None:
            return
        if getattr(event, "role", "user") == "user":
            self.people.add(*owner, getattr(event, "name", None))
        if len(self.examples) < EXAMPLES:
            self.examples.append(_example(event, brought[1]))

    def shown(self) -> dict[str, Any]:
        first, last = (None, None) if self.span is None else map(format_time, self.span)
        counts = {name: getattr(self, name).count() for name in ("users", "people", "sessions")}
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
        _look(job, embedder, survey)
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
        _print(surveys)
    return sum(one["refused"] for one in surveys)


def _look(job: ReplayJob, embedder: Embedder, survey: Survey) -> None:
    name = log_name(job.log, job.scope)
    with ProgressMeter(job.shown, lambda: job.log.source.done_bytes, job.log.source.bytes) as meter:
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


def _print(surveys: list[dict[str, Any]]) -> None:
    for one in surveys:
        heading(f"{one['log']}: {one['format']}")
        days = [one[name] and one[name][: len("2024-01-31")] for name in ("from", "to")]
        left_out = sum(one["left_out"].values())
        table((*COLUMNS, "from", "to", "omitted"), [[*(one[name] for name in COLUMNS), *days, left_out]])
        if left_out:
            print(f"omitted: {', '.join(f'{count:,} {reason}' for reason, count in one['left_out'].items() if count)}")
        if "columns" in one:
            print(f"columns: {', '.join(f'{field} from {column}' for field, column in one['columns'].items())}")
            print(f"unused columns (kept as metadata): {', '.join(one['unused_columns']) or 'none'}")
        print()
        table(("user", "session", "at", "who", "text"), [[*example.values()] for example in one["examples"]])
