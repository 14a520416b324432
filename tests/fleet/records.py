"""Records of a deployment: the ones sent, the ones in output topics, and a model of each owner's memories."""

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.fleet.engine import OUTPUTS, Topics
from tests.process import GIVE_UP_S


@dataclass
class Memory:
    versions: list[str]


@dataclass
class Mind:
    """An owner's memories by id. Forgotten ones stay known as such."""

    memories: dict[str, Memory] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)

    def apply(self, event: dict[str, Any]) -> bool:
        """Take an event in. Whether it can take effect; if not, it has to become a dead letter."""
        match event["type"]:
            case "message" | "memory":
                self.memories.setdefault(event["id"], Memory([event["content"]]))
                return True
            case "memory.update":
                if (memory := self.memories.get(event["memory_id"])) is None:
                    return False
                if memory.versions[-1] != event["content"]:
                    memory.versions.append(event["content"])
                return True
            case "memory.forget":
                if self.memories.pop(event["memory_id"], None) is None:
                    return False
                self.forgotten.add(event["memory_id"])
                return True
        return True


def same_text(told: str, answered: dict[str, Any]) -> bool:
    """Whether an answer's item holds a told text: whole, or the beginning of it and says so."""
    content = str(answered["content"])
    if answered.get("truncated"):
        return told.startswith(content.rstrip("…").rstrip()) and len(content) < len(told) + 1
    return content == told


FLUSH_S = 120.0
TENANT = "acme"

RECEIPT = frozenset({"receipt"})
LETTER = frozenset({"dead-letter"})
ANSWER = frozenset({"response"})
REFUSED_ANSWER = frozenset({"response", "dead-letter"})

How = dict[str, Any]  # what a record has beside its value: `key`, `partition`, `headers`, `timestamp`
AS_USUAL: How = {}


def who(user: str) -> dict[str, str]:
    tenant, _, name = user.rpartition("/")
    return {"tenant_id": tenant or TENANT, "user_id": name}


@dataclass
class Sent:
    """A record in an input topic. `wants`: the sets of outputs it may end in, each of them once."""

    kind: str
    owner: str
    event: dict[str, Any] | None
    wants: Sequence[frozenset[str]]
    value: bytes | None = None
    position: str = ""  # known once it is delivered
    expects: str = ""  # the memory that has to be in the answer, unless that says why not
    done: bool = False  # whether the reader saw what came of it

    @property
    def query_id(self) -> str:
        return str((self.event or {}).get("id") or self.position)


@dataclass
class Log:
    """Send events of users, and keeps account of them. A user is of TENANT unless named with a tenant, as
    `globex/ann`. May be used by two threads."""

    topics: Topics
    minds: defaultdict[str, Mind] = field(default_factory=lambda: defaultdict(Mind))  # by user
    sent: list[Sent] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._numbers = 0
        settings = {"bootstrap.servers": self.topics.cluster.bootstrap_servers, "partitioner": "murmur2_random"}
        limits = {"enable.idempotence": True, "message.timeout.ms": 0, "message.max.bytes": 2_000_000}
        self._producer = Producer(settings | limits | {"linger.ms": 0, "log_level": 0})

    def number(self) -> int:
        with self.lock:
            self._numbers += 1
            return self._numbers

    def tell(self, user: str, event_type: str = "memory", *, how: How = AS_USUAL, **fields: Any) -> Sent:
        """A memory event of a user's; the model has it from now on. `how`: as for `raw`."""
        with self.lock:
            event = {"type": event_type, **who(user), "id": f"e{self.number()}", "receipt": True} | fields
            takes = self.minds[user].apply(event)
            return self._event("memory", user, event, [RECEIPT if takes else LETTER], how)

    def ask(self, user: str, event_type: str, *, how: How = AS_USUAL, **fields: Any) -> Sent:
        event = {"type": event_type, **who(user), "id": f"q{self.number()}"} | fields
        return self._event("query", user, event, [ANSWER], how)

    def talk(self, count: int = 40, *, owners: int = 5) -> None:
        """Tell so many memories and asks as many questions, in turns and of these users, and waits until all are in
        their topics."""
        for number in range(count):
            user = f"user{number % owners}"
            self.tell(user, content=f"walnut {self.number()}")
            self.ask(user, "recall", query="walnut")
        self.flush()

    def raw(self, kind: str, value: bytes | None, wants: Sequence[frozenset[str]] = (LETTER,), **how: Any) -> Sent:
        """A record as it is, keyed like a user's unless `how` says otherwise."""
        sent = Sent(kind, "", None, list(wants), value)
        self._send(sent, value, {"key": f"{TENANT}/raw".encode()} | how)
        return sent

    def event(self, kind: str, event: dict[str, Any], wants: Sequence[frozenset[str]], **how: Any) -> Sent:
        sent = Sent(kind, str(event.get("user_id", "")), event, list(wants))
        self._send(sent, orjson.dumps(event), {"key": f"{TENANT}/{sent.owner}".encode()} | how)
        return sent

    def waiting(self) -> int:
        with self.lock:
            self._producer.poll(0)
            return len(self._producer)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        if left := self._producer.flush(timeout_s):
            raise RuntimeError(f"{left} records could not be sent within {timeout_s:.0f} s")
        if self.failed:
            raise RuntimeError(f"records could not be sent: {self.failed[:3]}")

    def of(self, kinds: Iterable[str]) -> list[Sent]:
        with self.lock:
            return [sent for sent in self.sent if sent.kind in set(kinds)]

    def _event(self, kind: str, user: str, event: dict[str, Any], wants: list[frozenset[str]], how: How) -> Sent:
        sent = Sent(kind, user, event, wants)
        self._send(sent, orjson.dumps(event), {"key": "/".join(who(user).values()).encode()} | how)
        return sent

    def _send(self, sent: Sent, value: bytes | None, how: How) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(f"{sent.kind} {sent.event or sent.value!r}: {error}"[:300])
                return
            sent.position = f"{message.topic()}:{message.partition()}:{message.offset()}"

        with self.lock:
            self.sent.append(sent)
            self._producer.produce(self.topics.of(sent.kind), value, on_delivery=delivered, **how)
            self._producer.poll(0)


FETCH_S = 0.1
FOREIGN = b"not of recallflow"  # the key of what others put into an output topic


@dataclass(frozen=True)
class Output:
    kind: str
    part: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.value or b"null")
        return found

    def header(self, name: str) -> str:
        return (dict(self.headers).get(name) or b"").decode()

    @property
    def answers(self) -> str:
        """What it answers, by the contract: a query by its id, a record by its position."""
        if self.kind == "response":
            return str(self.body["query_id"])
        return str(self.body["position"]) if self.kind == "receipt" else self.header("error.source")


class Reader:
    """Read the output topics as they grow. Partitions that come later are not read: see `all_of`."""

    def __init__(self, topics: Topics, kinds: Iterable[str] = OUTPUTS) -> None:
        settings = {"bootstrap.servers": topics.cluster.bootstrap_servers, "group.id": f"reader-{uuid.uuid4().hex}"}
        more = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_uncommitted"}
        # at the end of a topic the broker would hold a fetch back for half a second
        self._consumer = Consumer(settings | more | {"fetch.wait.max.ms": 20, "log_level": 0})
        self._kinds = {topics.of(kind): kind for kind in kinds}
        known = [(name, n) for kind, name in zip(kinds, self._kinds, strict=True) for n in topics.bounds(kind)]
        self._consumer.assign([TopicPartition(name, number, OFFSET_BEGINNING) for name, number in known])
        self._behind = set(known)
        self.outputs: list[Output] = []
        self.seen: set[tuple[str, str]] = set()  # kind, and what it answers
        self.alive: Callable[[], bool] = lambda: True  # whether waiting for more makes sense

    def until(self, true: Callable[[], bool], timeout_s: float = GIVE_UP_S) -> bool:
        """Read on until something holds. Whether it came to hold in time."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline or not self.alive():
                self.read()
                return true()
            self.read()
        return True

    def drain(self) -> list[Output]:
        reached = self._consumer.position(self._consumer.assignment())
        for part in reached:
            part.offset = part.offset if part.offset >= 0 else OFFSET_BEGINNING
        self._behind = {(part.topic, part.partition) for part in reached}
        self._consumer.assign(reached)  # ends are told anew
        if not self.until(lambda: not self._behind):
            raise RuntimeError(f"the end of {self._behind} was not reached in {GIVE_UP_S:.0f} s")
        return self.outputs

    def read(self) -> None:
        for message in self._consumer.consume(1_000, FETCH_S):
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._behind.discard((message.topic(), message.partition()))

    def answer(self, query_id: str, timeout_s: float = GIVE_UP_S) -> dict[str, Any]:
        return self._one("response", query_id, timeout_s).body

    def letter(self, position: str, timeout_s: float = GIVE_UP_S) -> Output:
        return self._one("dead-letter", position, timeout_s)

    def receipt(self, position: str, timeout_s: float = GIVE_UP_S) -> dict[str, Any]:
        return self._one("receipt", position, timeout_s).body

    def _one(self, kind: str, answers: str, timeout_s: float) -> Output:
        if not self.until(lambda: (kind, answers) in self.seen, timeout_s):
            raise TimeoutError(f"no {kind} for {answers} within {timeout_s:.0f} s, or ever: the engine ended")
        return next(one for one in self.outputs if (one.kind, one.answers) == (kind, answers))

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Any) -> None:
        if message.key() == FOREIGN:
            return
        part = f"{message.topic()}:{message.partition()}"
        kind, headers = self._kinds[message.topic()], tuple(message.headers() or ())
        output = Output(kind, part, message.offset(), message.key(), message.value(), headers)
        self.outputs.append(output)
        self.seen.add((kind, output.answers))


def all_of(topics: Topics, kinds: Iterable[str] = OUTPUTS) -> list[Output]:
    reader = Reader(topics, tuple(kinds))
    try:
        return reader.drain()
    finally:
        reader.close()
