"""Kill the Kafka flow again and again, and look for what was lost, done twice, or answered from the wrong state.

    python -m benchmarks.crash [--events 20000] [--kills 20] [--workers 1] [--seed N] [--quick] [--json FILE]

A log of events and queries is drawn from a seed and produced while processes that run the flow are killed (SIGKILL):
at random moments, and once at each of the four named points (POINTS) where a mistake would show. Then every output is
compared with a reference: the same partition logic in this process, without Kafka, Bytewax or crashes, fed each source
partition in offset order. An answer says which positions were applied, so the reference answers the same query at the
same place.
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from benchmarks.broker import Cluster, connect_or_start
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.kafka import sink
from recallflow.connectors.kafka.names import part_name
from recallflow.connectors.kafka.options import KafkaOptions
from recallflow.connectors.kafka.partitioner import partition_of
from recallflow.connectors.kafka.sink import NUMBER_HEADER, SOURCE_HEADER, Outgoing, SharedProducer
from recallflow.connectors.kafka.source import KafkaSource
from recallflow.flows.kafka import KafkaFlow
from recallflow.flows.settings import Settings
from recallflow.flows.topics import Router, Topics
from recallflow.operators import outbox
from recallflow.operators.decode import decode
from recallflow.operators.events import Ask, Item
from recallflow.operators.partition import Clocks, PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.outputs import Done
from recallflow.records import Position, Record
from recallflow.state.directory import RECOVERY, StateDirectory, describe
from recallflow.state.logical import state_hash
from recallflow.state.partition import Partition

ROOT = Path(__file__).parents[1]
EPOCH_MS = 200
MEMORY_PARTITIONS, QUERY_PARTITIONS, OUTPUT_PARTITIONS = 4, 3, 2
CACHE_BYTES = 4 * 1024 * 1024  # small: owners leave memory and come back

POINTS = ("applied", "produced", "snapshot", "tail")
STUBS = ("dedupe", "positions", "outbox")

STARTUP_S = 1.5  # a random kill may fall within it
PROGRESS_S = 5.0
GIVE_UP_S = 60.0
POLL_S = 0.02
BATCH = 256
LAST_PLACE = 1.5e-6  # factors and scores are rounded to six places
AT_ONCE = {"fetch.wait.max.ms": 10}  # at the end of a topic the broker would hold a fetch back for half a second

MINUTE_MS = 60_000
WAIT_MAX_MS = 60_000
NEW_YEAR_MS = 1_735_689_600_000
# fmt: off
WORDS = [
    "walnut", "ferry", "bicycle", "quarry", "lantern", "harbour", "violin", "thistle", "kettle", "meadow", "invoice",
    "glacier", "ribbon", "orchard", "tunnel", "pepper", "saddle", "canvas", "beacon", "marble", "Leeds", "Porto",
]
# fmt: on
OWNERS = [("acme", f"user{n}", "prod") for n in range(18)] + [("globex", f"user{n}", "staging") for n in range(6)]

Event = dict[str, Any]
Fields = tuple[str, str, str]


# ------------------------------------------------------------------- the log


class Line(NamedTuple):
    """One record to produce."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class Author:
    """Writes a log: everything owners do and ask, and what nobody can read, drawn from a seed."""

    def __init__(self, seed: int, topics: Topics, receipts: float) -> None:
        self._draw = random.Random(seed)
        self._topics = topics
        self._receipts = receipts
        self._serial = 0
        self._now_ms = NEW_YEAR_MS
        self._known: dict[Fields, list[Event]] = {owner: [] for owner in OWNERS}
        self._ends: Counter[int] = Counter()  # memory partition → its next offset
        self._awaited: dict[int, int] = defaultdict(lambda: -1)  # memory partition → highest offset a query waits for
        self.lines: list[Line] = []

    def write(self, count: int) -> list[Line]:
        acts = {
            self._message: 42,
            self._memory: 12,
            self._update: 9,
            self._forget: 3,
            self._end_episode: 2,
            self._repeat: 7,
            self._break: 4,
            self._misplace: 1,
            self._recall: 11,
            self._look_up: 5,
            self._wait: 4,
        }
        while len(self.lines) < count:
            self._now_ms += self._draw.randint(0, MINUTE_MS)
            (act,) = self._draw.choices(list(acts), list(acts.values()))
            act(self._draw.choice(OWNERS))
        return self.lines

    def close(self) -> list[str]:
        """Ends the log so that no query waits for ever. Returns the ids of its last queries: one an owner, answered
        once everything before is through."""
        while True:
            last = {owner: self._say("memory", owner, content="the last word") for owner in OWNERS}
            if all(offset >= self._awaited[_memory_partition(owner)] for owner, offset in last.items()):
                break
        for number, (owner, offset) in enumerate(last.items()):
            target = f"{self._topics.memory}:{_memory_partition(owner)}:{offset}"
            fields = {"query": "the last word", "wait_for": target, "wait_timeout_ms": WAIT_MAX_MS}
            self._ask("recall", owner, id=f"closing-{number}", **fields)
        return [f"closing-{number}" for number in range(len(last))]

    # what owners say

    def _message(self, owner: Fields) -> None:
        session = {"session_id": f"s{self._draw.randint(1, 3)}"} if self._draw.random() < 0.7 else {}
        self._create("message", owner, role=self._draw.choice(["user", "assistant"]), content=self._text(), **session)

    def _memory(self, owner: Fields) -> None:
        kind, tags = self._draw.choice(["fact", "rule"]), self._draw.sample(["a", "b", "c"], 2)
        self._create("memory", owner, content=self._text(), kind=kind, tags=tags)

    def _create(self, kind: str, owner: Fields, /, **fields: Any) -> None:
        named = {"id": self._id()} if self._draw.random() < 0.8 else {}
        offset = self._say(kind, owner, **fields, **named)
        known = named.get("id") or f"{self._topics.memory}:{_memory_partition(owner)}:{offset}"
        self._known[owner].append({"type": kind, "id": known} | fields)

    def _update(self, owner: Fields) -> None:
        changes: list[Event] = [{"content": self._text()}, {"importance": round(self._draw.random(), 2)}]
        change = self._draw.choice(changes)
        named = {"id": self._id()} if self._draw.random() < 0.5 else {}
        self._say("memory.update", owner, memory_id=self._memory_id(owner), **change, **named)

    def _forget(self, owner: Fields) -> None:
        wanted: Event = {"memory_id": self._memory_id(owner)}
        if self._draw.random() < 0.2:
            wanted = {"filter": {"session_id": "s1", "older_than": self._now_ms - 600 * MINUTE_MS}}
        self._say("memory.forget", owner, **wanted)

    def _end_episode(self, owner: Fields) -> None:
        self._say("episode.end", owner, session_id=f"s{self._draw.randint(1, 3)}")

    def _repeat(self, owner: Fields) -> None:
        """A duplicate, or other content under an id that is taken."""
        if not self._known[owner]:
            return
        said = self._draw.choice(self._known[owner])
        changed = {"content": "something else"} if self._draw.random() < 0.3 else {}
        self._say(said["type"], owner, **{k: v for k, v in said.items() if k != "type"} | changed)

    def _break(self, owner: Fields) -> None:
        value = self._draw.choice([b"{", b"\xff\xfe", b'{"type": "memo"}', b'{"type": "message", "content": 7}'])
        asks = self._draw.random() < 0.4
        if asks and self._draw.random() < 0.5:
            value = b'{"type": "recall", "tenant_id": "acme", "user_id": "x", "id": "wrong", "query": ""}'
        self._append(asks, owner, value)

    def _misplace(self, owner: Fields) -> None:
        self._append(True, owner, self._event("memory", owner, content="on the wrong topic", receipt=True))

    # what owners ask

    def _recall(self, owner: Fields) -> None:
        mode = self._draw.choice(["hybrid", "relevance", "recency", "episode"])
        self._ask("recall", owner, query=f"Who told of the {self._draw.choice(WORDS)}?", k=5, mode=mode)

    def _look_up(self, owner: Fields) -> None:
        kind = self._draw.choice(["memory.get", "memory.history", "episodes.list", "user.stats"])
        named = {"memory_id": self._memory_id(owner)} if kind.startswith("memory.") else {}
        self._ask(kind, owner, **named)

    def _wait(self, owner: Fields) -> None:
        """Waits for what comes later; one in ten not long enough."""
        partition = _memory_partition(owner)
        target = self._ends[partition] + self._draw.randint(0, 20)
        self._awaited[partition] = max(self._awaited[partition], target)
        timeout_ms = 1 if self._draw.random() < 0.1 else WAIT_MAX_MS
        position = f"{self._topics.memory}:{partition}:{target}"
        self._ask("recall", owner, query=self._text(), k=5, wait_for=position, wait_timeout_ms=timeout_ms)

    # parts

    def _say(self, kind: str, owner: Fields, /, **fields: Any) -> int:
        if self._draw.random() < self._receipts:
            fields["receipt"] = True
        return self._append(False, owner, self._event(kind, owner, **fields))

    def _ask(self, kind: str, owner: Fields, /, **fields: Any) -> None:
        self._append(True, owner, self._event(kind, owner, **{"id": self._id()} | fields))

    def _event(self, kind: str, owner: Fields, /, **fields: Any) -> bytes:
        """Mostly in order of time, sometimes late."""
        tenant_id, user_id, environment = owner
        scope = {"type": kind, "tenant_id": tenant_id, "user_id": user_id, "environment": environment}
        late_ms = self._draw.choice([0, 0, 0, 0, 10 * MINUTE_MS, 3_000 * MINUTE_MS])
        return orjson.dumps(scope | {"timestamp": self._now_ms - int(self._draw.random() * late_ms)} | fields)

    def _append(self, asks: bool, owner: Fields, value: bytes) -> int:
        key = f"{owner[0]}/{owner[1]}".encode()
        if asks:
            self.lines.append(Line(self._topics.queries, partition_of(key, QUERY_PARTITIONS), key, value))
            return -1
        partition = _memory_partition(owner)
        self.lines.append(Line(self._topics.memory, partition, key, value))
        self._ends[partition] += 1
        return self._ends[partition] - 1

    def _memory_id(self, owner: Fields) -> str:
        known = self._known[owner]
        return str(self._draw.choice(known)["id"]) if known else "nobody's"

    def _id(self) -> str:
        self._serial += 1
        return f"e{self._serial}"

    def _text(self) -> str:
        words = " ".join(self._draw.choices(WORDS, k=self._draw.randint(2, 10)))
        return words + self._draw.choice([".", "?", "! More."])


def _memory_partition(owner: Fields) -> int:
    return partition_of(f"{owner[0]}/{owner[1]}".encode(), MEMORY_PARTITIONS)


# ------------------------------------------------------------------- the process that is killed


@dataclass(frozen=True)
class Plan:
    """What a child process does. `kill`: a point and at which pass; `stub`: a safeguard to take out; `prime`: only make
    the state directory, as queries count from the first start on."""

    servers: str
    state_dir: str
    topics: dict[str, Any]
    workers: int
    kill: tuple[str, int] | None = None
    stub: str | None = None
    prime: bool = False


def child(plan: Plan) -> None:
    """Runs the flow as the plan says, until SIGTERM or the kill."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if plan.stub:
        _take_out(plan.stub)
    if plan.kill:
        _arm(*plan.kill)
    if plan.prime:
        _stop_at_once()
    settings = Settings(epoch_ms=EPOCH_MS, cache_bytes=CACHE_BYTES)
    topics = Topics(**plan.topics)
    KafkaFlow(KafkaOptions(plan.servers), Path(plan.state_dir), topics, settings, plan.workers).run()


def _die_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _arm(point: str, passes: int) -> None:
    """Kills this process at the given pass of a point."""
    left = [passes]

    def passed() -> None:
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    {"applied": _at_applied, "produced": _at_produced, "snapshot": _at_snapshot, "tail": _at_tail}[point](passed)


def _at_applied(passed: Callable[[], None]) -> None:
    """RocksDB has taken a batch; nothing of it is produced."""
    commit = Partition.commit

    def committed(self: Partition) -> None:
        writes = bool(self._moved)
        commit(self)
        if writes:
            passed()

    patch.object(Partition, "commit", committed).start()


def _at_produced(passed: Callable[[], None]) -> None:
    """The broker has acknowledged new outputs; no snapshot says so."""
    send, flush = SharedProducer.send, SharedProducer.flush
    sent = [0]

    def counted(self: SharedProducer, *args: Any) -> None:
        sent[0] += 1
        send(self, *args)

    def flushed(self: SharedProducer) -> None:
        flush(self)
        if sent[0]:
            sent[0] = 0
            passed()

    patch.object(SharedProducer, "send", counted).start()
    patch.object(SharedProducer, "flush", flushed).start()


def _at_snapshot(passed: Callable[[], None]) -> None:
    """A state partition's snapshot is taken, and not committed."""
    snapshot = PartitionLogic.snapshot

    def taken(self: PartitionLogic) -> Any:
        result = snapshot(self)
        passed()
        return result

    patch.object(PartitionLogic, "snapshot", taken).start()


def _at_tail(passed: Callable[[], None]) -> None:
    """Some output partitions' tails are read, others not."""
    read = sink.read_tail

    def was_read(*args: Any) -> Any:
        result = read(*args)
        passed()
        return result

    patch.object(sink, "read_tail", was_read).start()


def _take_out(stub: str) -> None:
    """Replaces one of the three safeguards by nothing, to see that the comparison notices."""
    read = sink.read_tail
    match stub:
        case "dedupe":
            patch.object(sink, "read_tail", lambda *args: ([], read(*args)[1])).start()
        case "positions":
            patch.object(Partition, "is_applied", lambda *_: False).start()
        case "outbox":
            patch.object(outbox, "kept", lambda *_: []).start()


def _stop_at_once() -> None:
    build = KafkaSource.build_part

    def built(self: KafkaSource, *args: Any) -> Any:
        self.stopping.set()
        return build(self, *args)

    patch.object(KafkaSource, "build_part", built).start()


class Child:
    """A running child process."""

    def __init__(self, plan: Plan, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "benchmarks.crash", "--child", orjson.dumps(plan).decode()]
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=file, stderr=file)

    def running(self) -> bool:
        return self._process.poll() is None

    def ended(self, wanted: int, timeout_s: float = GIVE_UP_S) -> None:
        """Waits for the end. RuntimeError where it is another one than wanted."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the flow did not end within {timeout_s:.0f} s:\n{self._said()}") from None
        if code != wanted:
            raise RuntimeError(f"the flow ended with {code}, not {wanted}:\n{self._said()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self.ended(0)

    def close(self) -> None:
        self.kill()
        if self._process.stdin:
            self._process.stdin.close()

    def _said(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


# ------------------------------------------------------------------- what came out


class Key(NamedTuple):
    """An output's identity: the topic it is on, the record it comes from, its number among that record's outputs."""

    topic: str
    source: str
    number: int


class Found(NamedTuple):
    """An output as it stands in a topic, or should."""

    part: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


class Watcher:
    """Reads the output topics as they grow."""

    def __init__(self, servers: str, topics: Topics) -> None:
        self._options = KafkaOptions(servers)
        self._consumer = Consumer(self._options.consumer() | AT_ONCE)
        parts = [TopicPartition(t, n, OFFSET_BEGINNING) for t in topics.outputs() for n in range(OUTPUT_PARTITIONS)]
        self._consumer.assign(parts)
        self._topics = topics
        self.outputs: dict[Key, list[Found]] = defaultdict(list)
        self.count = 0
        self.answered: set[str] = set()

    def until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Reads on until something holds. Whether it came to hold in time."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                return False
            self._take(self._consumer.consume(1_000, POLL_S))
        return True

    def drain(self) -> None:
        """Reads all there is."""
        found = sink.ends(self._options, self._topics.outputs())
        total = sum(end for parts in found.values() for end in parts.values())
        if not self.until(lambda: self.count >= total, GIVE_UP_S):
            raise RuntimeError(f"only {self.count} of {total} outputs could be read")

    def close(self) -> None:
        self._consumer.close()

    def _take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if (error := message.error()) is not None:
                if not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise RuntimeError(f"cannot read the outputs: {error}")
                continue
            headers = tuple(message.headers())
            named = dict(headers)
            key = Key(message.topic(), named[SOURCE_HEADER].decode(), int(named[NUMBER_HEADER]))
            part = part_name(message.topic(), message.partition())
            self.outputs[key].append(Found(part, message.key(), message.value(), headers))
            self.count += 1
            if message.topic() == self._topics.responses:
                self.answered.add(orjson.loads(message.value())["query_id"])


def read_topic(servers: str, topic: str, partitions: int) -> list[Record]:
    """All records of a topic, as the source gives them."""
    options = KafkaOptions(servers).consumer() | AT_ONCE | {"enable.partition.eof": True}
    records: list[Record] = []
    with closing(Consumer(options)) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        ended = 0
        while ended < partitions:
            for message in consumer.consume(1_000, POLL_S):
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
    return sorted(records, key=lambda record: record.position)


def _record(message: Any) -> Record:
    position = Position(message.topic(), message.partition(), message.offset())
    headers = tuple(message.headers() or ())
    return Record(position, message.value() or b"", message.timestamp()[1], message.key(), headers=headers)


# ------------------------------------------------------------------- what should have come out


class Reference:
    """The same partition logic in this process. One state partition per source partition: owners do not know of each
    other, so it makes no difference which of them share a database."""

    def __init__(self, folder: Path, topics: Topics, settings: Settings) -> None:
        self._embedder = load_embedder(settings.embedder)
        self._directory = StateDirectory.open(folder, settings.fingerprint(self._embedder), settings.cache_bytes)
        counts = dict.fromkeys(topics.outputs(), OUTPUT_PARTITIONS)
        rules = settings.rules(self._embedder, topics.queries, {topics.responses: OUTPUT_PARTITIONS}, input_ends=False)
        build = PartitionLogic.builder(self._directory, self._embedder, rules, Clocks())
        self._logics = [build(None) for _ in range(MEMORY_PARTITIONS)]
        self._router = Router(topics, counts)
        self.outputs: dict[Key, Found] = {}

    def run(self, memories: Sequence[Record], queries: Iterable[tuple[Record, int]]) -> str:
        """Applies memories and asks each query where the given offset of its owner's memory partition is the last one
        applied. Fills `outputs`; returns the state hash."""
        lines = [(r.position.partition, r.position.offset, 0, r) for r in memories]
        lines += [(_memory_partition_of(r.key), at, 1, _unwaiting(r)) for r, at in queries]
        lines.sort(key=lambda line: line[:3])
        for partition, logic in enumerate(self._logics):
            records = [line[3] for line in lines if line[0] == partition]
            for start in range(0, len(records), BATCH):
                items = prepare(self._embedder, [decode(record) for record in records[start : start + BATCH]])
                self._feed(logic, partition, items)
        return state_hash(self._directory)

    def close(self) -> None:
        self._directory.close()

    def _feed(self, logic: PartitionLogic, partition: int, items: list[Item]) -> None:
        outputs, _ = logic.on_batch([(f"{partition:03d}", item) for item in items])
        for output in outputs:
            if not isinstance(output, Done):
                part, outgoing = self._router.route(output)
                self.outputs[_key(part, outgoing)] = _found(part, outgoing)


def _key(part: str, outgoing: Outgoing) -> Key:
    return Key(part.rpartition(":")[0], outgoing.source, outgoing.number)


def _found(part: str, outgoing: Outgoing) -> Found:
    source, number = outgoing.identity
    return Found(
        part,
        outgoing.key,
        outgoing.value,
        (*outgoing.headers, (SOURCE_HEADER, source), (NUMBER_HEADER, number)),
    )


def _memory_partition_of(key: bytes | None) -> int:
    return partition_of(key or b"", MEMORY_PARTITIONS)


def _unwaiting(record: Record) -> Record:
    """The query asked at the very place where it was answered: there is nothing to wait for."""
    asked = decode(record)
    if not isinstance(asked, Ask) or not getattr(asked.query, "wait_for", None):
        return record
    value = {name: given for name, given in orjson.loads(record.value).items() if name != "wait_for"}
    return Record(record.position, orjson.dumps(value), record.append_ms, record.key, headers=record.headers)


# ------------------------------------------------------------------- comparison


@dataclass
class Report:
    """What a crash run came to. `lost`, `duplicate`, `unexpected` and `wrong` name outputs; all are to be empty."""

    workers: int
    events: int
    kills: dict[str, int]
    outputs: int = 0
    responses: int = 0
    compared: int = 0  # answers that equal the reference's at the positions they say they had applied
    unplaced: int = 0  # error answers that say no positions
    waited: int = 0  # answers given once the position they waited for was applied
    stale: int = 0  # answers to queries that could not wait longer
    lost: list[str] = field(default_factory=list)
    duplicate: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    state_equal: bool = False
    seconds: float = 0.0

    def clean(self) -> bool:
        return self.state_equal and not (self.lost or self.duplicate or self.unexpected or self.wrong)


class Judge:
    """Compares what came out with the reference."""

    def __init__(self, topics: Topics, report: Report) -> None:
        self._topics = topics
        self._report = report

    def compare(self, expected: Mapping[Key, Found], seen: Mapping[Key, Sequence[Found]]) -> None:
        report = self._report
        report.outputs = len(expected)
        report.lost = [_name(key) for key in expected.keys() - seen.keys()]
        report.unexpected = [_name(key) for key in seen.keys() - expected.keys()]
        report.duplicate = [_name(key) for key, found in seen.items() if len(found) > 1]
        for key in expected.keys() & seen.keys():
            if key.topic == self._topics.responses:
                self._compare_answer(key, expected[key], seen[key][0])
            elif expected[key] != seen[key][0]:
                report.wrong.append(f"{_name(key)}: {seen[key][0].value[:300]!r}, not {expected[key].value[:300]!r}")

    def check_wait(self, record: Record, answer: Mapping[str, Any]) -> None:
        """An answer that waited for a position either has it, or says that it does not."""
        asked = decode(record)
        wanted = getattr(asked.query, "wait_for", None) if isinstance(asked, Ask) else None
        if wanted is None:
            return
        target = Position.parse(wanted)
        if any(warning["code"] == "stale_read" for warning in answer.get("warnings", [])):
            self._report.stale += 1
        elif applied_up_to(answer, target.source) >= target.offset:
            self._report.waited += 1
        else:
            self._report.wrong.append(f"{record.position}: answered before {target} was applied, without a warning")

    def _compare_answer(self, key: Key, expected: Found, seen: Found) -> None:
        self._report.responses += 1
        answer = orjson.loads(seen.value)
        if answer["status"] == "error" and key.number == 0 and "applied" not in answer:
            self._report.unplaced += 1
            return
        found = list(differences(_comparable(answer), _comparable(orjson.loads(expected.value))))
        if (seen.part, seen.key, seen.headers) != (expected.part, expected.key, expected.headers):
            found.append(f"{seen.part} {seen.key!r} {seen.headers}")
        if found:
            self._report.wrong.append(f"{_name(key)}: {'; '.join(found)}"[:1_000])
        else:
            self._report.compared += 1


def applied_up_to(answer: Mapping[str, Any], source: str) -> int:
    """The last offset of a source that an answer says was applied."""
    applied = dict(position.rsplit(":", 1) for position in answer.get("applied") or ())
    return int(applied.get(source, -1))


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ. Numbers may by one of their last place: an index that was loaded adds up in another
    order than one that has grown."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{place}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if abs(ours - theirs) > LAST_PLACE:
            yield f"{path}: {ours}, not {theirs}"
    elif ours != theirs:
        yield f"{path}: {str(ours)[:200]}, not {str(theirs)[:200]}"


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what may differ: how long it took, what else was applied, how much memory an index takes with
    its dead slots, and the warning that it could not wait."""
    kept = {k: v for k, v in answer.items() if k not in ("processing_time_ms", "sla_met", "applied", "warnings")}
    warnings = answer.get("warnings", [])
    kept["warnings"] = [warning for warning in warnings if warning["code"] != "stale_read"]
    if len(kept["warnings"]) < len(warnings) and kept["status"] == "degraded":
        kept["status"] = "ok"
    if "stats" in kept:
        kept["stats"] = {name: count for name, count in kept["stats"].items() if name != "index_bytes"}
    return kept


def _name(key: Key) -> str:
    return f"{key.topic} {key.source} #{key.number}"


# ------------------------------------------------------------------- one run


class Trial:
    """One log on topics of its own, one state directory, and one process after the other that dies on it."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        events: int,
        workers: int = 1,
        seed: int = 1,
        stub: str | None = None,
        receipts: float = 0.3,
        append_times: bool = False,
    ) -> None:
        self._servers = cluster.bootstrap_servers
        self._folder = folder
        self._draw = random.Random(seed)
        self._stub = stub
        names = ("memory", "queries", "control", "responses", "receipts", "enrichment", "dead_letters")
        suffix = uuid.uuid4().hex[:8]
        self._names = {name: f"crash.{name.replace('_', '.')}-{suffix}" for name in names}
        self.topics = Topics(**self._names)  # type: ignore[arg-type]  # names only; `replies` stays
        partitions = {self.topics.control: 1} | dict.fromkeys(self.topics.outputs(), OUTPUT_PARTITIONS)
        cluster.create_topics({self.topics.queries: QUERY_PARTITIONS} | partitions)
        # The ingestion clock of a state partition runs over all its sources, so it depends on how they interleave, and
        # it is part of the state hash: with append times of the log, no two runs over several partitions are equal.
        config = {} if append_times else {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        cluster.create_topics({self.topics.memory: MEMORY_PARTITIONS}, config)
        author = Author(seed, self.topics, receipts)
        author.write(events)
        self._closing = set(author.close())
        self._lines = author.lines
        self._produced = 0
        self._producer = Producer(KafkaOptions(self._servers).producer())
        self._watcher = Watcher(self._servers, self.topics)
        self._settings = Settings(epoch_ms=EPOCH_MS, cache_bytes=CACHE_BYTES)
        self._began_s = time.monotonic()
        self.report = Report(workers, len(self._lines), dict.fromkeys(("random", *POINTS), 0))

    def close(self) -> None:
        self._watcher.close()

    def prime(self) -> None:
        """Makes the state directory: queries count from the first start on."""
        with self._started(prime=True) as process:
            process.ended(0)

    def leave_uncommitted(self) -> None:
        """Puts into the recovery store what a process leaves that dies while an epoch's snapshots are written: one of
        an epoch that is not committed. It cannot be read, so that a start that takes it for its own fails."""
        (path,) = (self._folder / "state" / RECOVERY).glob("*.sqlite3")
        with closing(sqlite3.connect(path)) as store, store:
            (epoch,) = store.execute("SELECT max(worker_frontier) FROM fronts").fetchone()
            row = ("recallflow.outputs", part_name(self.topics.responses, 0), epoch, b"of a dead epoch")
            store.execute("INSERT INTO snaps (step_id, state_key, snap_epoch, ser_change) VALUES (?, ?, ?, ?)", row)

    def kill_at(self, point: str, passes: int, share: float) -> None:
        """Produces a share of the log, and lets a process die at a point."""
        self.produce(share)
        with self._started(kill=(point, passes)) as process:
            process.ended(-signal.SIGKILL)
        self.report.kills[point] += 1

    def kill_at_random(self, share: float) -> None:
        """Produces a share of the log, and kills a process while it starts, or when it has put out something."""
        self.produce(share)
        before = self._watcher.count
        with self._started() as process:
            if self._draw.random() < 0.3:
                self._watcher.until(lambda: not process.running(), self._draw.uniform(0, STARTUP_S))
            else:
                wanted = self._draw.randint(1, max(1, int(share * len(self._lines) / 4)))
                self._watcher.until(lambda: self._watcher.count >= before + wanted, PROGRESS_S)
            process.kill()
            process.ended(-signal.SIGKILL)
        self.report.kills["random"] += 1

    @contextmanager
    def running(self) -> Iterator[Watcher]:
        """A process that has put out something, and runs on for the time of a `with`; it is killed at its end."""
        before = self._watcher.count
        with self._started() as process:
            if not self._watcher.until(lambda: self._watcher.count > before, GIVE_UP_S):
                raise RuntimeError("nothing came out")
            yield self._watcher
            process.kill()
            process.ended(-signal.SIGKILL)
        self.report.kills["random"] += 1

    def finish(self) -> Report:
        """Produces the rest, lets a process run until all is through, stops it, and compares."""
        self.produce(1.0)
        with self._started() as process:
            self._watcher.until(lambda: self._closing <= self._watcher.answered or not process.running(), GIVE_UP_S)
            if not process.running():
                process.ended(0)
            process.stop()
        self._watcher.drain()
        self._judge()
        self.report.seconds = round(time.monotonic() - self._began_s, 1)
        return self.report

    def produce(self, share: float) -> None:
        """Appends the next share of the log."""
        until = min(len(self._lines), self._produced + int(share * len(self._lines)) + 1)
        for line in self._lines[self._produced : until]:
            self._producer.produce(line.topic, line.value, line.key, line.partition, timestamp=NEW_YEAR_MS)
            self._producer.poll(0)
        if self._producer.flush(GIVE_UP_S):
            raise RuntimeError("the log could not be produced")
        self._produced = until

    @contextmanager
    def _started(self, kill: tuple[str, int] | None = None, prime: bool = False) -> Iterator[Child]:
        state_dir = str(self._folder / "state")
        plan = Plan(self._servers, state_dir, dict(self._names), self.report.workers, kill, self._stub, prime)
        with closing(Child(plan, self._folder / "child.log")) as process:
            yield process

    def _judge(self) -> None:
        memories = read_topic(self._servers, self.topics.memory, MEMORY_PARTITIONS)
        queries = read_topic(self._servers, self.topics.queries, QUERY_PARTITIONS)
        judge = Judge(self.topics, self.report)
        placed = []
        for record in queries:
            found = self._watcher.outputs.get(Key(self.topics.responses, str(record.position), 0))
            answer = orjson.loads(found[0].value) if found else {}
            source = f"{self.topics.memory}:{_memory_partition_of(record.key)}"
            placed.append((record, applied_up_to(answer, source)))
            if found:
                judge.check_wait(record, answer)
        with closing(Reference(self._folder / "reference", self.topics, self._settings)) as reference:
            expected_hash = reference.run(memories, placed)
            judge.compare(reference.outputs, self._watcher.outputs)
        self.report.state_equal = self._state_hash() == expected_hash

    def _state_hash(self) -> str:
        path = self._folder / "state"
        with StateDirectory.open(path, describe(path)[0], CACHE_BYTES) as directory:
            return state_hash(directory)


@contextmanager
def trial(cluster: Cluster, events: int, **chosen: Any) -> Iterator[Trial]:
    """A primed trial in a folder that is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="recallflow-crash-") as folder,
        closing(Trial(cluster, Path(folder), events, **chosen)) as made,
    ):
        made.prime()
        yield made


def run(cluster: Cluster, events: int, kills: int, workers: int, seed: int) -> Report:
    """The whole run: random kills with each named point among them, then the rest in peace."""
    draw = random.Random(seed)
    deaths = ["random"] * kills + [*POINTS]
    draw.shuffle(deaths)
    with trial(cluster, events, workers=workers, seed=seed) as made:
        for death in deaths:
            share = 1 / (len(deaths) + 1)
            if death == "random":
                made.kill_at_random(share)
            else:
                # Outputs are flushed once an epoch, and a share may be through within one.
                made.kill_at(death, 1 if death == "produced" else draw.randint(1, 4), share)
        return made.finish()


# ------------------------------------------------------------------- command


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(Plan(**orjson.loads(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=20, help="at random moments; the named points come on top")
    parser.add_argument("--workers", type=int, choices=(1, 2), help="default: one, then two")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--quick", action="store_true", help="the same work smaller")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    events, kills = (2_000, 4) if chosen.quick else (chosen.events, chosen.kills)
    print(f"seed {chosen.seed}")
    with connect_or_start() as cluster:
        reports = []
        for workers in (chosen.workers,) if chosen.workers else (1, 2):
            reports.append(run(cluster, events, kills, workers, chosen.seed))
            show(reports[-1])
    if chosen.json:
        figures = {"seed": chosen.seed, "runs": [asdict(report) for report in reports]}
        chosen.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    if not all(report.clean() for report in reports):
        raise SystemExit(1)


def show(report: Report) -> None:
    """A report in a few lines."""
    kills = ", ".join(f"{count} {point}" for point, count in report.kills.items())
    print(f"workers {report.workers}: {report.events:,} events, kills: {kills}; {report.seconds} s")
    print(f"  outputs {report.outputs:,}: lost {len(report.lost)}, duplicate {len(report.duplicate)}", end="")
    print(f", unexpected {len(report.unexpected)}, wrong {len(report.wrong)}")
    print(f"  responses {report.responses:,}: {report.compared:,} equal the reference's at the same positions", end="")
    print(f" ({report.unplaced} errors without positions); waited {report.waited}, too long {report.stale}")
    print(f"  state {'equal' if report.state_equal else 'DIFFERENT'}")
    for kind in ("lost", "duplicate", "unexpected", "wrong"):
        for name in getattr(report, kind)[:5]:
            print(f"  {kind}: {name}")


if __name__ == "__main__":
    main()
