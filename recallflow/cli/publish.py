"""`recallflow replay` to Kafka: conversation logs onto the memory topic."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
from tqdm import tqdm

from recallflow.brokers.options import KafkaOptions
from recallflow.cli.progress import Progress, Target
from recallflow.connectors.chat_logs import LogFormat, Scope, count_log, read_log
from recallflow.connectors.kafka.messages import Headers
from recallflow.connectors.kafka.publish import Publisher
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.operators.decode import decode
from recallflow.operators.events import Refused
from recallflow.outputs import DeadLetter
from recallflow.parsing import unmarked
from recallflow.records import Position, Record

SAVE_EVERY = 5_000
STEP = "publish"

Reject = Callable[[int, DeadLetter], None]


def publish(options: KafkaOptions, topic: str, path: Path, scope: Scope, log_format: LogFormat, name: str,
            reject: Reject, credentials: Headers = ()) -> str:  # fmt: skip
    """Sends a log's events to a topic, from where an earlier run stopped (`Progress`). An event without an id gets its
    position in the file as its id, so that an event that is sent twice applies once. `credentials`: headers of each."""
    progress = Progress(name, Target.of(options, topic))
    done, sent_before = progress.events, progress.sent
    counts: Counter[str] = Counter()
    with tqdm(
        total=count_log(path, scope, log_format), initial=done, desc=path.name, unit=" events", file=sys.stderr
    ) as bar:

        def reached(handled: int) -> None:
            bar.update(done + handled - bar.n)
            if handled - counts["saved"] >= SAVE_EVERY:
                counts["saved"] = handled
                progress.save(done + handled, sent_before + max(0, handled - counts["refused"]))

        publisher = Publisher(options, topic, reached, credentials)
        for number, value in enumerate(read_log(path, scope, log_format, skip=done), done):
            item = decode(Record(Position(name, 0, number), value, 0))
            if not isinstance(item, Refused):
                key, event = item.owner.record_key, _with_id(value, item.record.position)
                if publisher.fits(key, event):
                    counts["sent"] += 1
                    publisher.send(key, event)
                    continue
                problem = FieldProblem("", f"{topic} takes {publisher.most_bytes} bytes a record (max.message.bytes)")
                item = Refused(item.record, InvalidRecord("too_large", [problem]), STEP)
            counts["refused"] += 1
            reject(number + 1, DeadLetter(item.record, 0, item.error, item.step))
            publisher.pass_over()
        publisher.flush()
        progress.save(done + counts["sent"] + counts["refused"], sent_before + counts["sent"])
    before = f", {done} before were sent by an earlier run" if done else ""
    if progress.emptied:
        before = ", all anew: what an earlier run sent is not in the topic any more"
    return f"{path.name}: {counts['sent']} events sent to {topic}{before}; {counts['refused']} refused"


def _with_id(value: bytes, position: Position) -> bytes:
    event = orjson.loads(unmarked(value))
    return value if event.get("id") is not None else orjson.dumps({**event, "id": str(position)})
