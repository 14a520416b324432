"""The log: what owners do and ask, drawn from a seed."""

import random
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import orjson

from benchmarks.crash.layout import memory_partition
from recallflow.flows.topics import Topics

MINUTE_MS = 60_000
WAIT_MAX_MS = 60_000
NEW_YEAR_MS = 1_735_689_600_000
# fmt: off
WORDS = [
    "walnut", "ferry", "bicycle", "quarry", "lantern", "harbour", "violin", "thistle", "kettle", "meadow", "invoice",
    "glacier", "ribbon", "orchard", "tunnel", "pepper", "saddle", "canvas", "beacon", "marble", "Leeds", "Porto",
]
# fmt: on
MODES = ("relevance", "recency", "episode")  # those whose answers do not depend on what was asked before
OWNERS = [("acme", f"user{n}", "prod") for n in range(18)] + [("globex", f"user{n}", "staging") for n in range(6)]

Event = dict[str, Any]
Fields = tuple[str, str, str]


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
            fields = {"query": "the last word", "mode": "relevance", "wait_for": target, "wait_timeout_ms": WAIT_MAX_MS}
            self._ask("recall", owner, id=f"closing-{number}", **fields)
        return [f"closing-{number}" for number in range(len(last))]

    # what owners say

    def _message(self, owner: Fields) -> None:
        session = {"session_id": f"s{self._draw.randint(1, 3)}"} if self._draw.random() < 0.7 else {}
        self._create("message", owner, role=self._draw.choice(["user", "assistant"]), content=self._text(), **session)

    def _memory(self, owner: Fields) -> None:
        kind, tags = self._draw.choice(["fact", "rule"]), self._draw.sample(["a", "b", "c"], 2)
        session = {"session_id": f"s{self._draw.randint(1, 3)}"} if self._draw.random() < 0.5 else {}
        self._create("memory", owner, content=self._text(), kind=kind, tags=tags, **session)

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
        query = f"Who told of the {self._draw.choice(WORDS)}?"
        self._ask("recall", owner, query=query, k=5, mode=self._draw.choice(MODES))

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
        waits = {"wait_for": position, "wait_timeout_ms": timeout_ms}
        self._ask("recall", owner, query=self._text(), k=5, mode="relevance", **waits)

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
        key = _key(owner)
        if asks:
            self.lines.append(Line(self._topics.queries, memory_partition(key), key, value))
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


def _key(owner: Fields) -> bytes:
    return f"{owner[0]}/{owner[1]}".encode()


def _memory_partition(owner: Fields) -> int:
    return memory_partition(_key(owner))
