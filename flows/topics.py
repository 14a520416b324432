"""The topics of a deployment: their names, and how large a record each takes."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.admin import KEEPS_ALL, ask_configs
from recallflow.errors import UsageError
from recallflow.records import Position

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAMED = "letters, digits, dots, underscores and hyphens, at most 249"
_POSITION = re.compile(r".+:[0-9]{1,9}:[0-9]{1,18}")
LEAST_BYTES = 16 * 1024  # room for every key, header and error there may be

_log = logging.getLogger(__name__)


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


def stamped_by_log(options: KafkaOptions, topics: Iterable[str]) -> frozenset[str]:
    """Those of the topics whose records carry the time of the log."""
    return frozenset(topic for topic, found in ask_configs(options, topics).items() if found.stamped_by_log)


def judged_by_senders(topics: Iterable[str]) -> UsageError:
    """Why records of topics cannot be judged as of a time that their producers choose."""
    return UsageError(
        f"{', '.join(topics)}: records carry their producers' times (CreateTime), by which credentials would be "
        "judged: set message.timestamp.type=LogAppendTime"
    )


def ask_sizes(
    options: KafkaOptions, inputs: Iterable[str], written: Iterable[str], *, judged: bool = False
) -> dict[str, int]:
    """Asks the brokers how large a record each written topic takes; a log line where the clocks of producers stamp what
    is read. Raises UsageError where that is next to nothing, and where records are `judged` as of a time that their
    producers choose: an expired token would hold, and a revoked key."""
    found = ask_configs(options, (*inputs, *written))
    if own := [topic for topic in inputs if not found[topic].stamped_by_log]:
        if judged:
            raise judged_by_senders(own)
        _log.warning(
            "%s: records carry their producers' times (CreateTime): clocks that differ mix up what was known when; "
            "set message.timestamp.type=LogAppendTime",
            ", ".join(own),
        )
    most_bytes = {topic: found[topic].most_bytes for topic in written}
    if small := [topic for topic, most in most_bytes.items() if most < LEAST_BYTES]:
        raise UsageError(f"{', '.join(small)}: max.message.bytes is too small; set it to {LEAST_BYTES} or more")
    return most_bytes


def check_control(options: KafkaOptions, topic: str) -> None:
    """A log line where decisions may be lost, or claim to be of another time than they are."""
    found = ask_configs(options, [topic])[topic]
    if not found.keeps_all:
        wanted = ", ".join(f"{name}={value}" for name, value in KEEPS_ALL.items())
        _log.warning(
            "%s does not keep everything: records are judged by what was decided when they came, and a rebuild would "
            "judge them otherwise; set %s",
            topic,
            wanted,
        )
    if not found.stamped_by_log:
        _log.warning(
            "%s: decisions carry their senders' times (CreateTime), and can be backdated; set "
            "message.timestamp.type=LogAppendTime",
            topic,
        )
