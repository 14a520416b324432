"""`recallflow replay` to Kafka: conversation logs onto the memory topic."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
from tqdm import tqdm

from recallflow.connectors.chat_logs import LogFormat, Scope, count_log, read_log
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.connectors.kafka.publish import Publisher
from recallflow.encodings import unmarked
from recallflow.operators.decode import decode
from recallflow.operators.events import Refused
from recallflow.operators.reply import owner_key
from recallflow.outputs import DeadLetter
from recallflow.records import Position, Record
from recallflow.state.files import write_whole

SAVE_EVERY = 5_000

Reject = Callable[[int, DeadLetter], None]


def publish(options: KafkaOptions, topic: str, path: Path, scope: Scope, log_format: LogFormat, name: str,
            reject: Reject) -> str:  # fmt: skip
    """Sends a log's events. How far it got stands in `FILE.progress`, and the same command goes on from there; an
    event without an id gets its place in the file as one, so that what is sent twice applies once."""
    progress = path.with_name(path.name + ".progress")
    done = _read(progress, name)
    counts: Counter[str] = Counter()
    with tqdm(
        total=count_log(path, scope, log_format), initial=done, desc=path.name, unit=" events", file=sys.stderr
    ) as bar:

        def reached(settled: int) -> None:
            bar.update(done + settled - bar.n)
            if settled - counts["saved"] >= SAVE_EVERY:
                counts["saved"] = settled
                write_whole(progress, orjson.dumps({"log": name, "events": done + settled}))

        publisher = Publisher(options, topic, reached)
        for number, value in enumerate(read_log(path, scope, log_format, skip=done), done):
            item = decode(Record(Position(name, 0, number), value, 0))
            if isinstance(item, Refused):
                counts["refused"] += 1
                reject(number + 1, DeadLetter(item.record, 0, item.error, item.step))
                publisher.pass_over()
            else:
                counts["sent"] += 1
                publisher.send(owner_key(item.owner), _with_id(value, item.record.position))
        publisher.close()
        write_whole(progress, orjson.dumps({"log": name, "events": done + counts["sent"] + counts["refused"]}))
    before = f", {done} before were sent by an earlier run" if done else ""
    return f"{path.name}: {counts['sent']} events sent to {topic}{before}; {counts['refused']} refused"


def _with_id(value: bytes, position: Position) -> bytes:
    event = orjson.loads(unmarked(value))
    return value if event.get("id") is not None else orjson.dumps({**event, "id": str(position)})


def _read(progress: Path, name: str) -> int:
    """How many events of this log were sent before."""
    if not progress.exists():
        return 0
    stored = orjson.loads(progress.read_bytes())
    return int(stored["events"]) if stored["log"] == name else 0
