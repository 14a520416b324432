"""`recallflow replay` to Kafka: conversation logs to the memory topic."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.cli.replay_jobs import ProgressMeter, RateLimit, ReplayJob, ReplayResult
from recallflow.connectors.kafka.admin import describe_required_topics
from recallflow.connectors.kafka.messages import Headers
from recallflow.connectors.kafka.sender import Publisher
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.logs.registry import log_name
from recallflow.errors import FieldProblem, InvalidRecord, RecallflowError, UsageError
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.events import Refused, decode
from recallflow.outputs import DeadLetter
from recallflow.parsing import without_bom
from recallflow.private_files import make_private_folder
from recallflow.records import Position, Record
from recallflow.state.files import replace_file

SAVE_INTERVAL_S = 0.5
STEP = "publish"


class Target(NamedTuple):
    """Topic with its number of `records`, and `ends`, the approximate number of all records that it ever had."""

    cluster: str
    topic: str
    topic_id: str
    records: int
    ends: int

    @classmethod
    def of(cls, options: KafkaOptions, topic: str) -> "Target":
        """Read the sizes of a topic. Raise SourceError if Kafka is unreachable, refuses us, or lacks the topic."""
        topic_id = describe_required_topics(options, [topic])[topic].id
        with TopicReader(options) as reader:
            spans = [*reader.spans([topic]).values()]
            cluster = reader.cluster_id()
        return cls(cluster, topic, topic_id, sum(high - low for low, high in spans), sum(high for _, high in spans))


class ReplayProgress:
    """Progress of a log's transfer to a target. `log` is the name of the log. A recreated topic has another id, and
    therefore no progress. If the topic lost the records of an earlier run, the progress begins again."""

    def __init__(self, log: str, target: Target, environment: Mapping[str, str] = os.environ) -> None:
        """Read the progress. Raise RecallflowError if it is unreadable."""
        key = "\n".join((log, target.cluster, target.topic, target.topic_id))
        self.path = state_home(environment) / "replay" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        self.events = self.sent = 0
        self.emptied = False  # whether the topic lost the records of an earlier run
        try:
            if self.path.exists():
                stored = orjson.loads(self.path.read_bytes())
                self.events, self.sent = int(stored["events"]), int(stored["sent"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecallflowError(f"cannot read {self.path} ({error}); remove it to send the whole log again") from None
        if self.sent and (target.records == 0 or target.ends < self.sent):
            self.emptied, self.events, self.sent = True, 0, 0

    def save(self, events: int, sent: int) -> None:
        try:
            make_private_folder(self.path.parent)
            replace_file(self.path, orjson.dumps({"events": events, "sent": sent}))
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; set XDG_STATE_HOME") from error


def state_home(environment: Mapping[str, str]) -> Path:
    """Return recallflow's folder for persistent state of the user, in `$XDG_STATE_HOME` or `~/.local/state`."""
    folder = Path(environment.get("XDG_STATE_HOME", ""))
    if folder.is_absolute():  # the XDG standard requires that a relative path is ignored
        return folder / "recallflow"
    try:
        return Path.home() / ".local" / "state" / "recallflow"
    except RuntimeError:
        raise UsageError("no home folder for the progress of the replay; set XDG_STATE_HOME") from None


def publish(
    options: KafkaOptions, topic: str, job: ReplayJob, limit: RateLimit | None, credentials: Headers
) -> ReplayResult:
    """Send a log's events to a topic, from the end of an earlier run (`ReplayProgress`). An event without an id gets
    its position in the log as its id, so that a repeated event applies once. Records have `credentials` as headers."""
    name = log_name(job.log, job.scope)
    progress = ReplayProgress(name, Target.of(options, topic))
    events_before, sent_before = progress.events, progress.sent
    sent, refused, saved_s = 0, 0, time.monotonic()
    with closing(ProgressMeter(job.label, job.log.source)) as meter:

        def note_handled(handled: int) -> None:
            nonlocal saved_s
            meter.add(handled - meter.events)
            if (now_s := time.monotonic()) - saved_s >= SAVE_INTERVAL_S:
                saved_s = now_s
                progress.save(events_before + handled, sent_before + max(0, handled - refused))

        publisher = Publisher(options, topic, note_handled, credentials)
        events: Iterator[bytes] = islice(job.events(), events_before, None)
        if limit is not None:
            events = chain.from_iterable(limit.batches(events, 1))
        for number, value in enumerate(events, events_before):
            item = decode(Record(Position(name, 0, number), value, 0))
            if not isinstance(item, Refused):
                key, fields = item.owner.record_key, orjson.loads(without_bom(value))
                has_id = fields.get("id") is not None
                event = value if has_id else orjson.dumps({**fields, "id": str(item.record.position)})
                if publisher.fits(key, event):
                    sent += 1
                    publisher.send(key, event)
                    continue
                problem = FieldProblem("", f"{topic} takes {publisher.most_bytes} bytes per record (max.message.bytes)")
                item = Refused(item.record, InvalidRecord("too_large", [problem]), STEP)
            refused += 1
            job.rejects.add(number + 1, DeadLetter(item.record, 0, item.error, item.step), job.inner_name)
            publisher.skip()
        publisher.flush()
        progress.save(events_before + sent + refused, sent_before + sent)
    destination = f" sent to {topic}"
    if progress.emptied:
        destination += ", from the beginning, because the topic lost the records of an earlier run"
    skipped, rejects = job.scope.skipped, job.rejects.path
    return ReplayResult(job.label, sent, refused, events_before, skipped, meter.rate(), rejects, destination)
