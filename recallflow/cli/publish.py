"""`recallflow replay` to Kafka: conversation logs to the memory topic."""

import hashlib
import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.cli.replay_jobs import Pace, ProgressMeter, Replayed, ReplayJob, report
from recallflow.connectors.kafka.admin import first_descriptions
from recallflow.connectors.kafka.messages import Headers
from recallflow.connectors.kafka.sender import Publisher
from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.connectors.logs.registry import log_name
from recallflow.errors import FieldProblem, InvalidRecord, RecallflowError, UsageError
from recallflow.flows.config import Config
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.events import Refused, decode
from recallflow.outputs import DeadLetter
from recallflow.parsing import without_bom
from recallflow.private_files import make_private_folder
from recallflow.records import Position, Record
from recallflow.state.files import replace_file


class Target(NamedTuple):
    """Topic with its number of records, and `ends`, the approximate number of records ever."""

    cluster: str
    topic: str
    topic_id: str
    records: int
    ends: int

    @classmethod
    def of(cls, options: KafkaOptions, topic: str) -> "Target":
        """Read the sizes of a topic. Raise SourceError where Kafka is unreachable, refuses us, or lacks the topic."""
        topic_id = first_descriptions(options, [topic])[topic].id
        with TopicReader(options) as reader:
            spans = [*reader.spans([topic]).values()]
            cluster = reader.cluster_id()
        return cls(cluster, topic, topic_id, sum(high - low for low, high in spans), sum(high for _, high in spans))


class ReplayProgress:
    """Progress of a log's transfer to a target. `log` is the name of the log. A recreated topic has another id, and so
    no progress. An emptied topic holds fewer records than were sent."""

    def __init__(self, log: str, target: Target, environment: Mapping[str, str] = os.environ) -> None:
        """Read the progress. Raise RecallflowError if it is unreadable."""
        key = "\n".join((log, target.cluster, target.topic, target.topic_id))
        self.path = state_home(environment) / "replay" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        self.events = self.sent = 0
        self.emptied = False  # whether the topic lost the records sent before
        try:
            if self.path.exists():
                stored = orjson.loads(self.path.read_bytes())
                self.events, self.sent = int(stored["events"]), int(stored["sent"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecallflowError(f"cannot read {self.path} ({error}); remove it to send the whole log again") from None
        if self.sent and (target.records == 0 or target.ends < self.sent):
            self.emptied, self.events, self.sent = True, 0, 0

    def save(self, events: int, sent: int) -> None:
        """Write the progress. Raise RecallflowError if that fails."""
        try:
            make_private_folder(self.path.parent)
            replace_file(self.path, orjson.dumps({"events": events, "sent": sent}))
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; set XDG_STATE_HOME") from error


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the user's folder for persistent state: `$XDG_STATE_HOME`, or `~/.local/state`."""
    given = environment.get("XDG_STATE_HOME", "")
    if Path(given).is_absolute():  # the standard wants a relative path to be ignored
        return Path(given) / "recallflow"
    try:
        return Path.home() / ".local" / "state" / "recallflow"
    except RuntimeError:
        raise UsageError("no home folder for the progress of the replay; set XDG_STATE_HOME") from None


SAVE_EVERY_S = 0.5
STEP = "publish"


def publish(options: KafkaOptions, topic: str, job: ReplayJob, pace: Pace | None, credentials: Headers) -> Replayed:
    """Send a log's events to a topic, from the end of an earlier run (`ReplayProgress`). An event without an id gets
    its position in the file as its id, so that a repeated event applies once. Records have `credentials` as headers."""
    name = log_name(job.log, job.scope)
    progress = ReplayProgress(name, Target.of(options, topic))
    done, sent_before = progress.events, progress.sent
    sent, refused, saved_at = 0, 0, time.monotonic()
    with ProgressMeter(job.shown, lambda: job.log.source.done_bytes, job.log.source.total_bytes) as meter:

        def reached(handled: int) -> None:
            nonlocal saved_at
            meter.add(handled - meter.events)
            if (now := time.monotonic()) - saved_at >= SAVE_EVERY_S:
                saved_at = now
                progress.save(done + handled, sent_before + max(0, handled - refused))

        publisher = Publisher(options, topic, reached, credentials)
        for number, value in enumerate(islice(job.values(), done, None), done):
            if pace is not None:
                pace.wait()
            item = decode(Record(Position(name, 0, number), value, 0))
            if not isinstance(item, Refused):
                key, fields = item.owner.record_key, orjson.loads(without_bom(value))
                named = fields.get("id") is not None
                event = value if named else orjson.dumps({**fields, "id": str(item.record.position)})
                if publisher.fits(key, event):
                    sent += 1
                    publisher.send(key, event)
                    continue
                problem = FieldProblem("", f"{topic} takes {publisher.most_bytes} bytes per record (max.message.bytes)")
                item = Refused(item.record, InvalidRecord("too_large", [problem]), STEP)
            refused += 1
            job.rejects.note(number + 1, DeadLetter(item.record, 0, item.error, item.step), job.within)
            publisher.skip()
        publisher.flush()
        progress.save(done + sent + refused, sent_before + sent)
        rate = meter.rate()
    where = f" sent to {topic}"
    if progress.emptied:
        where += ", from the beginning, because the topic lost the records of an earlier run"
    return Replayed(job.shown, sent, refused, done, job.scope.skipped, rate, job.rejects.path, where)


def to_kafka(chosen: Config, jobs: list[ReplayJob], pace: Pace | None, *, as_json: bool) -> int:
    """Replay to Kafka. Return the number of refused records."""
    topic, credentials = chosen.topics.memory, chosen.auth.credentials
    return report((publish(chosen.kafka, topic, job, pace, credentials) for job in jobs), as_json=as_json)
