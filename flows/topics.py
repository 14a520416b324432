"""The topics of a deployment, by their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from recallflow.errors import UsageError
from recallflow.records import Position

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = "letters, digits, dots, underscores and hyphens, at most 249"
_POSITION = re.compile(r".+:[0-9]{1,9}:[0-9]{1,18}")


@dataclass(frozen=True)
class Topics:
    """Topic names. `replies`: further topics that a query may name in `reply_to`; `audit`: of the access record, None
    where there is none."""

    memory: str = "memory.events"
    queries: str = "query.events"
    control: str = "control.events"
    responses: str = "recall.responses"
    receipts: str = "memory.receipts"
    enrichment: str = "enrichment.requests"
    results: str = "enrichment.results"
    dead_letters: str = "dead.letters"
    replies: tuple[str, ...] = field(default=())
    audit: str | None = None

    def __post_init__(self) -> None:
        inputs = self.read()
        names = (*inputs, self.enrichment, self.results, *self.outputs())
        if wrong := sorted({name for name in names if not _NAME.fullmatch(name) or name in (".", "..")}):
            raise UsageError(f"no topic name: {', '.join(map(repr, wrong))}; give {_NAMED}")
        # What is read must not be what is written, nor one topic be read for another.
        own = (*inputs, self.enrichment, self.results)
        if twice := sorted({name for name in own if names.count(name) > 1}):
            raise UsageError(f"{', '.join(twice)}: each topic that is read needs a name of its own")

    def read(self) -> tuple[str, ...]:
        """Every topic the main flow reads."""
        return self.memory, self.queries, self.control

    def read_for(self) -> dict[str, str]:
        """The same, by the flag of `run` that names each."""
        return dict(zip(("--memory-topic", "--query-topic", "--control-topic"), self.read(), strict=True))

    def outputs(self) -> tuple[str, ...]:
        """Every topic that only the main flow writes to."""
        audit = [] if self.audit is None else [self.audit]
        return (self.responses, self.receipts, self.dead_letters, *audit, *self.replies)

    def written(self, *, enriches: bool = False) -> tuple[str, ...]:
        """Every topic the main flow writes to: quality gates' verdicts go where operators' decisions come from, and
        requests go to the enrichment flow, where there are any (`enriches`)."""
        return (*self.outputs(), self.control, *([self.enrichment] if enriches else []))

    def enrichment_read_for(self) -> dict[str, str]:
        """Every topic the enrichment flow reads, by the flag of `enrich` that names each."""
        return {
            "--enrichment-topic": self.enrichment,
            "--result-topic": self.results,
            "--control-topic": self.control,
        }

    def enrichment_written(self) -> tuple[str, ...]:
        """Every topic the enrichment flow writes to: it reads its results back."""
        return self.results, self.memory, self.receipts, self.dead_letters

    def skipped(self, texts: Iterable[str]) -> frozenset[Position]:
        """Positions to pass over, as they were typed. Raises UsageError for what is no position of an input topic."""
        found = []
        for text in texts:
            if not _POSITION.fullmatch(text):
                raise UsageError(f"--skip {text}: give TOPIC:PARTITION:OFFSET, as a log line or a dead letter names it")
            found.append(Position.parse(text))
            if found[-1].topic not in (self.memory, self.queries):
                raise UsageError(f"--skip {text}: this run reads {self.memory} and {self.queries}")
        return frozenset(found)
