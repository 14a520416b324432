"""A producer that knows what it sent: every record with where it stands, and what has to come of it."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import Producer

from benchmarks.torture.model import Minds
from benchmarks.torture.topics import Topics

FLUSH_S = 120.0
TENANT = "acme"

RECEIPT = frozenset({"receipt"})
LETTER = frozenset({"dead-letter"})
ANSWER = frozenset({"response"})
REFUSED_ANSWER = frozenset({"response", "dead-letter"})
NOTHING: frozenset[str] = frozenset()

How = dict[str, Any]  # what a record has beside its value: `key`, `partition`, `headers`, `timestamp`
AS_USUAL: How = {}


def who(user: str) -> dict[str, str]:
    """The fields that say whose an event is."""
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
    """Sends events of users, and keeps account of them. A user is of TENANT unless named with a tenant, as
    `globex/ann`. May be used by two threads."""

    topics: Topics
    minds: Minds = field(default_factory=Minds)
    sent: list[Sent] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._numbers = 0
        self.renew()

    def renew(self) -> None:
        """Sends what waits, then goes on with a producer that sees partitions anew."""
        with self.lock:
            if self._numbers:
                self.flush()
            settings = {"bootstrap.servers": self.topics.cluster.bootstrap_servers, "partitioner": "murmur2_random"}
            limits = {"enable.idempotence": True, "message.timeout.ms": 0, "message.max.bytes": 2_000_000}
            self._producer = Producer(settings | limits | {"linger.ms": 0, "log_level": 0})

    def number(self) -> int:
        """One that no record of this log has."""
        with self.lock:
            self._numbers += 1
            return self._numbers

    def tell(self, user: str, event_type: str = "memory", *, how: How = AS_USUAL, **fields: Any) -> Sent:
        """A memory event of a user's; the model has it from now on. `how`: as for `raw`."""
        with self.lock:
            event = {"type": event_type, **who(user), "id": f"e{self.number()}", "receipt": True} | fields
            takes = self.minds.of(user).apply(event)
            return self._event("memory", user, event, [RECEIPT if takes else LETTER], how)

    def ask(self, user: str, event_type: str, *, how: How = AS_USUAL, **fields: Any) -> Sent:
        """A query of a user's."""
        event = {"type": event_type, **who(user), "id": f"q{self.number()}"} | fields
        return self._event("query", user, event, [ANSWER], how)

    def talk(self, count: int = 40, *, owners: int = 5) -> None:
        """Tells so many memories and asks as many questions, in turns and of these users, and waits until all are in
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
        """An event that the model need not know, sent as it is."""
        sent = Sent(kind, str(event.get("user_id", "")), event, list(wants))
        self._send(sent, orjson.dumps(event), {"key": f"{TENANT}/{sent.owner}".encode()} | how)
        return sent

    def waiting(self) -> int:
        """How many records are not in their topics yet."""
        with self.lock:
            self._producer.poll(0)
            return len(self._producer)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Waits until all of it is in its topic."""
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
