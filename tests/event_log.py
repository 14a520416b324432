"""Logs of random events, and comparisons of the states and responses that they lead to."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.state_hash import state_hash

QUERIES = ("recall", "memory.get", "memory.history", "episodes.list", "user.stats")
CHANGES = ("memory.update", "memory.forget", "memory.feedback", "graph.edges", "graph.archive", "episode.end")
CREATIONS = ("message", "memory")

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
NEW_YEAR_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
ASKED_AT = "2025-12-24T00:00:00Z"

OWNERS = [
    ("acme", "ann", "prod"), ("acme", "ann", "staging"), ("acme", "bob", "prod"), ("acme", "zoë/🦦", "prod"),
    ("globex", "ann", "prod"), ("globex", "cy", "prod"),
]  # fmt: skip
TIMELESS = ("acme", "drifter", "prod")  # events of this owner have no timestamp
# fmt: off
WORDS = [
    "walnut", "ferry", "bicycle", "quarry", "lantern", "harbour", "violin", "thistle", "kettle", "meadow", "invoice",
    "glacier", "ribbon", "orchard", "tunnel", "pepper", "saddle", "canvas", "beacon", "marble", "Leeds", "Porto",
    "Tuesday", "yesterday", "piano", "tomato", "bridge", "compass",
]
# fmt: on
INCIDENTAL = ("stages_ms", "cache_hits")  # fields of routing_info that differ from run to run
MODES = ("hybrid", "relevance", "recency", "episode", "decayed", "balanced", "entity_focused", "auto")
PLACES = ["Porto", "Leeds", "Lake Como"]
RELATED = ["caused_by", "contradicts", "supersedes", "prefers_over"]
NAMES = ["Ann", "Bob", "Cleo Marsh", "Dee", None]
BROKEN = [
    b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b'{"type": "memo", "tenant_id": "acme", "user_id": "ann"}',
    b'{"type": "message", "user_id": "ann", "content": "no tenant"}',
    b'{"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "no time", "timestamp": "soon"}',
    b'{"type": "recall", "tenant_id": "acme", "user_id": "ann", "id": "wrong", "query": "", "k": "many"}',
    b'{"type": "memory.feedback", "tenant_id": "acme", "user_id": "ann", "memory_id": "nobody\'s", "useful": true}',
    b'{"type": "memory", "tenant_id": "acme", "user_id": "bob", "content": "x", "embedding": [0.5, 0.5]}',
]  # fmt: skip


class Author:
    def __init__(self, seed: int, nameless: frozenset[str]) -> None:
        self._draw = random.Random(seed)
        self._nameless = nameless
        self._now_ms = NEW_YEAR_MS
        self._serial = 0
        self._said: list[bytes] = []
        self._known: dict[tuple[str, str, str], list[str]] = {owner: [] for owner in [*OWNERS, TIMELESS]}
        self._edges: dict[tuple[str, str, str], list[dict[str, Any]]] = {owner: [] for owner in self._known}
        self.lines: list[bytes] = []

    def write(self, count: int) -> list[bytes]:
        for owner in [*OWNERS, TIMELESS]:  # is never forgotten: each owner always has a memory
            stays: dict[str, Any] = {"content": "an anchor stays", "tags": ["a"], "entities": [{"name": PLACES[0]}]}
            self._event("memory", owner, id="anchor", timestamp=NEW_YEAR_MS + 350 * DAY_MS, **stays)
        while len(self.lines) < count:
            self._now_ms += int(self._draw.expovariate(1 / (8 * MINUTE_MS)))
            self._one(self._draw.choice([*OWNERS, *OWNERS, TIMELESS]))
        return self.lines

    def _one(self, owner: tuple[str, str, str]) -> None:
        (act,) = self._draw.choices(
            [
                self._message, self._memory, self._update, self._forget, self._judge, self._relate, self._archive,
                self._end, self._repeat, self._query, self._break,
            ],
            [46, 11, 9, 4, 3, 4, 2, 4, 6, 8, 6],
        )  # fmt: skip
        act(owner)

    def _event(self, kind: str, owner: tuple[str, str, str], /, **fields: Any) -> bytes:
        tenant_id, user_id, environment = owner
        event = {"type": kind, "tenant_id": tenant_id, "user_id": user_id, "environment": environment}
        event |= {"timestamp": self._time()} | fields
        if owner == TIMELESS:
            del event["timestamp"]
        if "id" not in event and not (kind in self._nameless and self._draw.random() < 0.3):
            event["id"] = self._id()
        line = orjson.dumps(event)
        self.lines.append(line)
        return line

    def _id(self) -> str:
        self._serial += 1
        return self._draw.choice(["m{}", "m/{}", "é🎈{}"]).format(self._serial)

    def _time(self) -> str | int:
        """Return a time that is mostly in order, sometimes late, rarely far ahead; as milliseconds or as text."""
        (lateness_ms,) = self._draw.choices([0, 5 * MINUTE_MS, 3 * DAY_MS, -200 * DAY_MS], [82, 10, 7, 1])
        at_ms = self._now_ms - int(self._draw.random() * lateness_ms)
        return at_ms if self._draw.random() < 0.5 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()

    def _text(self) -> str:
        words = self._draw.choices(WORDS, k=self._draw.randint(2, 12))
        return " ".join(words) + self._draw.choice([".", "?", "! And more of it.", " 🎻"])

    def _message(self, owner: tuple[str, str, str]) -> None:
        session = self._draw.choice([{"session_id": f"s{self._draw.randint(1, 3)}"}, {}])
        fields: dict[str, Any] = {"role": self._draw.choice(["user", "assistant"])} | session
        name = self._draw.choice(NAMES)
        self._create("message", owner, content=self._text(), **fields, **({"name": name} if name else {}))

    def _memory(self, owner: tuple[str, str, str]) -> None:
        fields: dict[str, Any] = {
            "kind": self._draw.choice(["fact", "preference", "rule"]),
            "category": self._draw.choice(["food", "travel", "work"]),
            "tags": self._draw.sample(["a", "b", "c"], self._draw.randint(0, 3)),
            "topics": self._draw.sample(["boats", "music"], self._draw.randint(0, 2)),
            "entities": [{"name": self._draw.choice(PLACES), "type": "place", "urn": "urn:place:1"}],
            "relations": [{"source": "Cleo Marsh", "target": self._draw.choice(PLACES), "type": "likes"}],
            "importance": round(self._draw.random(), 2),
            "expires_at": self._now_ms + self._draw.randint(1, 300) * DAY_MS,
            "session_id": f"s{self._draw.randint(1, 3)}",
        }
        chosen = self._draw.sample(list(fields), self._draw.randint(0, len(fields)))
        if self._draw.random() < 0.05:
            fields["embedding"] = [round(self._draw.uniform(-1, 1), 3) for _ in range(384)]
            chosen.append("embedding")
        self._create("memory", owner, content=self._text(), **{field: fields[field] for field in chosen})

    def _create(self, kind: str, owner: tuple[str, str, str], /, **fields: Any) -> None:
        line = self._event(kind, owner, **fields)
        self._said.append(line)
        if "id" in (event := orjson.loads(line)):
            self._known[owner].append(event["id"])

    def _memory_id(self, owner: tuple[str, str, str]) -> str:
        known = self._known[owner]
        return self._draw.choice(known) if known and self._draw.random() < 0.9 else "nobody's"

    def _update(self, owner: tuple[str, str, str]) -> None:
        change: dict[str, Any] = self._draw.choice(
            [
                {"content": self._text()}, {"content": self._text(), "tags": ["a"]},
                {"importance": round(self._draw.random(), 2), "category": None}, {"summary": None, "layer": "rule"},
                {"kind": "rule"}, {"valid_to": self._now_ms + DAY_MS},
            ]
        )  # fmt: skip
        self._event("memory.update", owner, memory_id=self._memory_id(owner), **change)

    def _forget(self, owner: tuple[str, str, str]) -> None:
        wanted = self._draw.choice(
            [
                {"session_id": "s1", "older_than": self._now_ms - DAY_MS}, {"tag": "a", "category": "food"},
                {"older_than": self._now_ms - 4 * DAY_MS, "session_id": "s2"},
            ]
        )  # fmt: skip
        by_id = self._draw.random() < 0.7
        target: dict[str, Any] = {"memory_id": self._memory_id(owner)} if by_id else {"filter": wanted}
        self._event("memory.forget", owner, **target)

    def _judge(self, owner: tuple[str, str, str]) -> None:
        useful = self._draw.random() < 0.7
        self._event("memory.feedback", owner, memory_id=self._memory_id(owner), useful=useful)

    def _edge(self, owner: tuple[str, str, str]) -> dict[str, Any]:
        """Return an edge between two memories or two entities; some edges expire."""
        ends = {end: self._memory_id(owner) for end in ("source", "target")}
        if self._draw.random() < 0.2:
            ends = {end: f"entity:{self._draw.choice(PLACES).lower()}" for end in ends}
        told: dict[str, Any] = {"type": self._draw.choice(RELATED), "weight": round(self._draw.random(), 2)}
        if self._draw.random() < 0.3:
            told["expires_at"] = self._now_ms + self._draw.randint(1, 100) * DAY_MS
        return ends | told

    def _relate(self, owner: tuple[str, str, str]) -> None:
        edges = [self._edge(owner) for _ in range(self._draw.randint(1, 3))]
        self._edges[owner] += edges
        self._event("graph.edges", owner, edges=edges)

    def _archive(self, owner: tuple[str, str, str]) -> None:
        """Archive existing edges only: a later edge would exist when the log is sent again."""
        wanted: dict[str, Any] = {"entities": ["entity:porto", "tag:a"]}
        if self._edges[owner] and self._draw.random() < 0.6:
            wanted = {"edges": [self._draw.choice(self._edges[owner])]}
        self._event("graph.archive", owner, **wanted, archived=self._draw.random() < 0.7)

    def _end(self, owner: tuple[str, str, str]) -> None:
        self._event("episode.end", owner, session_id=f"s{self._draw.randint(1, 3)}")

    def _repeat(self, owner: tuple[str, str, str]) -> None:
        """Repeat an event, or send other content under its id."""
        line = self._draw.choice(self._said) if self._said else b""
        event = orjson.loads(line) if line else {}
        if "id" not in event:  # without an id each repetition is another memory
            self._message(owner)
        elif self._draw.random() < 0.6:
            self.lines.append(line)
        else:
            self.lines.append(orjson.dumps(event | {"content": "something else"}))

    def _query(self, owner: tuple[str, str, str]) -> None:
        kind = self._draw.choice(["recall", "recall", "memory.get", "memory.history", "episodes.list", "user.stats"])
        fields: dict[str, Any] = {"id": f"drifter-{len(self.lines)}"} if owner == TIMELESS else {}
        if kind == "recall":
            fields |= {"query": f"Who told of the {self._draw.choice(WORDS)}?", "k": 5}
            fields |= {"mode": self._draw.choice(MODES)} | self._draw.choice([{"session_id": "s1"}, {}])
            fields |= self._draw.choice([{"traversal_depth": 2, "entity_urns": ["urn:place:1"]}, {}])
        elif kind.startswith("memory."):
            fields["memory_id"] = self._memory_id(owner)
        self._event(kind, owner, **fields)

    def _break(self, owner: tuple[str, str, str]) -> None:  # noqa: ARG002
        self.lines.append(self._draw.choice(BROKEN))


def make_log(seed: int, count: int = 1_500, nameless: Sequence[str] = ()) -> list[bytes]:
    """Return the lines of a log. `nameless`: types of which some events have no id."""
    return Author(seed, frozenset(nameless)).write(count)


def final_questions() -> list[bytes]:
    """Return questions to each owner about the whole log."""
    asked: list[dict[str, Any]] = []
    for tenant_id, user_id, environment in OWNERS:
        scope = {"tenant_id": tenant_id, "user_id": user_id, "environment": environment, "timestamp": ASKED_AT}
        for mode in MODES:
            for query in ("Who took the ferry to Porto?", "What did Cleo say about the violin yesterday?"):
                asked.append({"type": "recall", "query": query, "mode": mode, "k": 10, "session_id": "s1"} | scope)
        asked += [{"type": kind} | scope for kind in ("episodes.list", "user.stats")]
        asked += [{"type": kind, "memory_id": "anchor"} | scope for kind in ("memory.history", "memory.get")]
    return [orjson.dumps(query) for query in asked]


def kind_of(line: bytes) -> str | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event.get("type") if isinstance(event, dict) else None


def hash_of(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> str:
    with StateDirectory.existing(state_dir, at_rest) as directory:
        return state_hash(directory)


def comparable(responses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return responses without fields that differ from run to run: timing, default ids, times of the clock."""
    return [_strip(response) for response in responses]


def _strip(response: dict[str, Any]) -> dict[str, Any]:
    if response["query_id"].startswith("drifter-"):
        return {"query_id": response["query_id"], "status": response["status"]}
    differing = {"processing_time_ms", "sla_met", "applied"}
    if response["query_id"].startswith(("stdin:", "lines:")):
        differing.add("query_id")
    kept = {field: value for field, value in response.items() if field not in differing}
    if "routing_info" in kept:
        routing = kept["routing_info"].items()
        kept["routing_info"] = {name: value for name, value in routing if name not in INCIDENTAL}
    if "versions" in kept:
        for version in kept["versions"]:
            if not version["ingested_at"].startswith("2025"):  # a time of the clock: those of the log are of 2025
                del version["ingested_at"]
    return kept
