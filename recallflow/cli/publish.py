"""`recallflow replay` to Kafka: conversation logs onto the memory topic."""

import time
from itertools import islice

import orjson

from recallflow.brokers.options import KafkaOptions
from recallflow.cli.pace import Meter, Pace
from recallflow.cli.progress import Progress, Target
from recallflow.cli.replay import Job, Replayed
from recallflow.connectors.kafka.messages import Headers
from recallflow.connectors.kafka.sender import Publisher
from recallflow.connectors.logs.registry import log_name
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.operators.decode import decode
from recallflow.operators.events import Refused
from recallflow.outputs import DeadLetter
from recallflow.parsing import unmarked
from recallflow.records import Position, Record

SAVE_EVERY_S = 0.5
STEP = "publish"


def publish(options: KafkaOptions, topic: str, job: Job, pace: Pace | None, credentials: Headers = ()) -> Replayed:
    """Sends a log's events to a topic, from where an earlier run stopped (`Progress`). An event without an id gets its
    position in the file as its id, so that an event that is sent twice applies once. `credentials`: headers of each."""
    name = log_name(job.log, job.scope)
    progress = Progress(name, Target.of(options, topic))
    done, sent_before = progress.events, progress.sent
    sent, refused, saved_at = 0, 0, time.monotonic()
    with Meter(job.shown, lambda: job.log.source.done_bytes, job.log.source.bytes) as meter:

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
                key, event = item.owner.record_key, _with_id(value, item.record.position)
                if publisher.fits(key, event):
                    sent += 1
                    publisher.send(key, event)
                    continue
                problem = FieldProblem("", f"{topic} takes {publisher.most_bytes} bytes a record (max.message.bytes)")
                item = Refused(item.record, InvalidRecord("too_large", [problem]), STEP)
            refused += 1
            job.rejects.note(number + 1, DeadLetter(item.record, 0, item.error, item.step), job.within)
            publisher.pass_over()
        publisher.flush()
        progress.save(done + sent + refused, sent_before + sent)
        rate = meter.rate()
    where = f" sent to {topic}"
    if progress.emptied:
        where += ", all anew: what an earlier run sent is not in the topic any more"
    return Replayed(job.shown, sent, refused, done, job.scope.skipped, rate, job.rejects.path, where)


def _with_id(value: bytes, position: Position) -> bytes:
    event = orjson.loads(unmarked(value))
    return value if event.get("id") is not None else orjson.dumps({**event, "id": str(position)})
