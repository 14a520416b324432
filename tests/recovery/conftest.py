"""Logs to replay, and runs of the engine that can be cut, killed and compared."""

import contextlib
import io
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.cli import main
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.logical import state_hash

CACHE_BYTES = 1024 * 1024

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
NEW_YEAR_MS = 1_735_689_600_000  # 2025-01-01T00:00:00Z
ASKED_AT = "2025-12-24T00:00:00Z"

OWNERS = [
    ("acme", "ann", "prod"),
    ("acme", "ann", "staging"),
    ("acme", "bob", "prod"),
    ("acme", "zoë/🦦", "prod"),
    ("globex", "ann", "prod"),
    ("globex", "cy", "prod"),
]
TIMELESS = ("acme", "drifter", "prod")  # nothing this owner says has a time
# fmt: off
WORDS = [
    "walnut", "ferry", "bicycle", "quarry", "lantern", "harbour", "violin", "thistle", "kettle", "meadow", "invoice",
    "glacier", "ribbon", "orchard", "tunnel", "pepper", "saddle", "canvas", "beacon", "marble", "Leeds", "Porto",
    "Tuesday", "yesterday", "piano", "tomato", "bridge", "compass",
]
# fmt: on
REFUSED = 1  # the exit code of a replay that refused lines
INCIDENTAL = ("stages_ms", "cache_hits")  # what routing_info tells of the run alone
MODES = ("hybrid", "relevance", "recency", "episode", "decayed", "balanced", "entity_focused", "auto")
PLACES = ["Porto", "Leeds", "Lake Como"]
RELATED = ["caused_by", "contradicts", "supersedes", "prefers_over"]
NAMES = ["Ann", "Bob", "Cleo Marsh", "Dee", None]
BROKEN = [
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[1, 2]",
    b'{"type": "memo", "tenant_id": "acme", "user_id": "ann"}',
    b'{"type": "message", "user_id": "ann", "content": "no tenant"}',
    b'{"type": "message", "tenant_id": "acme", "user_id": "ann", "content": "no time", "timestamp": "soon"}',
    b'{"type": "recall", "tenant_id": "acme", "user_id": "ann", "id": "wrong", "query": "", "k": "many"}',
    b'{"type": "memory.feedback", "tenant_id": "acme", "user_id": "ann", "memory_id": "nobody\'s", "useful": true}',
    b'{"type": "memory", "tenant_id": "acme", "user_id": "bob", "content": "x", "embedding": [0.5, 0.5]}',
]


class Author:
    """Writes a log: everything an owner may do, drawn at random from a seed."""

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
        for owner in [*OWNERS, TIMELESS]:  # one memory of each stays, so that nobody is ever left with none
            stays: dict[str, Any] = {"content": "an anchor stays", "tags": ["a"], "entities": [{"name": PLACES[0]}]}
            self._event("memory", owner, id="anchor", timestamp=NEW_YEAR_MS + 350 * DAY_MS, **stays)
        while len(self.lines) < count:
            self._now_ms += int(self._draw.expovariate(1 / (8 * MINUTE_MS)))
            self._one(self._draw.choice([*OWNERS, *OWNERS, TIMELESS]))
        return self.lines

    def _one(self, owner: tuple[str, str, str]) -> None:
        (act,) = self._draw.choices(
            [
                self._message,
                self._memory,
                self._update,
                self._forget,
                self._judge,
                self._relate,
                self._archive,
                self._end,
                self._repeat,
                self._query,
                self._break,
            ],
            [46, 11, 9, 4, 3, 4, 2, 4, 6, 8, 6],
        )
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
        """Mostly in order, sometimes late, one in a hundred far ahead; in all the ways there are to write it."""
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
                {"content": self._text()},
                {"content": self._text(), "tags": ["a"]},
                {"importance": round(self._draw.random(), 2), "category": None},
                {"summary": None, "layer": "rule"},
                {"kind": "rule"},
                {"valid_to": self._now_ms + DAY_MS},
            ]
        )
        self._event("memory.update", owner, memory_id=self._memory_id(owner), **change)

    def _forget(self, owner: tuple[str, str, str]) -> None:
        wanted = self._draw.choice(
            [
                {"session_id": "s1", "older_than": self._now_ms - DAY_MS},
                {"tag": "a", "category": "food"},
                {"older_than": self._now_ms - 4 * DAY_MS, "session_id": "s2"},
            ]
        )
        by_id = self._draw.random() < 0.7
        target: dict[str, Any] = {"memory_id": self._memory_id(owner)} if by_id else {"filter": wanted}
        self._event("memory.forget", owner, **target)

    def _judge(self, owner: tuple[str, str, str]) -> None:
        useful = self._draw.random() < 0.7
        self._event("memory.feedback", owner, memory_id=self._memory_id(owner), useful=useful)

    def _edge(self, owner: tuple[str, str, str]) -> dict[str, Any]:
        """Between two memories, or two places; some end by themselves."""
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
        """Of what was there before: what is not there yet would be, when the log is sent again."""
        wanted: dict[str, Any] = {"entities": ["entity:porto", "tag:a"]}
        if self._edges[owner] and self._draw.random() < 0.6:
            wanted = {"edges": [self._draw.choice(self._edges[owner])]}
        self._event("graph.archive", owner, **wanted, archived=self._draw.random() < 0.7)

    def _end(self, owner: tuple[str, str, str]) -> None:
        self._event("episode.end", owner, session_id=f"s{self._draw.randint(1, 3)}")

    def _repeat(self, owner: tuple[str, str, str]) -> None:
        """A duplicate, or other content under an id that is taken."""
        line = self._draw.choice(self._said) if self._said else b""
        event = orjson.loads(line) if line else {}
        if "id" not in event:  # what has no id is another memory each time it is said
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

    def _break(self, owner: tuple[str, str, str]) -> None:  # noqa: ARG002 broken by whomever
        self.lines.append(self._draw.choice(BROKEN))


@pytest.fixture(scope="session")
def make_log() -> Callable[..., list[bytes]]:
    """The lines of a log, from a seed. `nameless` are the types of which some events come without an id."""

    def make(seed: int, count: int = 1_500, nameless: Sequence[str] = ()) -> list[bytes]:
        return Author(seed, frozenset(nameless)).write(count)

    return make


@pytest.fixture(scope="session")
def final_questions() -> list[bytes]:
    """What every owner is asked once a log is in."""
    asked: list[dict[str, Any]] = []
    for tenant_id, user_id, environment in OWNERS:
        scope = {"tenant_id": tenant_id, "user_id": user_id, "environment": environment, "timestamp": ASKED_AT}
        for mode in MODES:
            for query in ("Who took the ferry to Porto?", "What did Cleo say about the violin yesterday?"):
                asked.append({"type": "recall", "query": query, "mode": mode, "k": 10, "session_id": "s1"} | scope)
        asked += [{"type": kind} | scope for kind in ("episodes.list", "user.stats")]
        asked += [{"type": kind, "memory_id": "anchor"} | scope for kind in ("memory.history", "memory.get")]
    return [orjson.dumps(query) for query in asked]


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def pipe() -> Callable[[Path, Sequence[bytes]], list[dict[str, Any]]]:
    """Pipes lines into a state directory, in this process; returns the responses."""

    def run(state_dir: Path, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        given = io.TextIOWrapper(io.BytesIO(b"".join(line + b"\n" for line in lines)))
        said = io.TextIOWrapper(io.BytesIO())
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "stdin", given)
            code = main(["pipe", "--create", "--state-dir", str(state_dir)])
        logging.disable(logging.NOTSET)  # pipe keeps warnings off its stderr
        assert code == 0
        said.seek(0)
        return [orjson.loads(line) for line in said.buffer]

    return run


@pytest.fixture(scope="module")
def replay(start: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., None]:
    """Replays a log, of which some lines are refused, into a state directory. In a process of its own: after a run with
    several workers, Bytewax would print the traceback of every later error in this one."""

    def run(state_dir: Path, log: Path, *options: str) -> None:
        engine = start("replay", log, "--embedded", "--create", "--state-dir", state_dir, *options)
        _, err = engine.communicate()
        assert engine.returncode == REFUSED, err

    return run


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def hash_of() -> Callable[[Path], str]:
    def run(state_dir: Path) -> str:
        with StateDirectory.open(state_dir, describe(state_dir)[0], CACHE_BYTES) as directory:
            return state_hash(directory)

    return run


@pytest.fixture(scope="session")
def applied() -> Callable[[Path], int]:
    """How far a state directory is: the last applied offset of its one source."""

    def run(state_dir: Path) -> int:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["state", "info", "--json", "--state-dir", str(state_dir)]) == 0
        (offset,) = orjson.loads(said.getvalue())["applied"].values()
        return int(offset)

    return run


@pytest.fixture(scope="session")
def comparable() -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Responses without what differs from run to run: how long they took, how far the run was, default ids,
    and what a clock stamped because the log has no time for it."""

    def strip(response: dict[str, Any]) -> dict[str, Any]:
        if response["query_id"].startswith("drifter-"):
            return {"query_id": response["query_id"], "status": response["status"]}
        differing = {"processing_time_ms", "sla_met", "applied"}
        if response["query_id"].startswith("stdin:"):
            differing.add("query_id")
        kept = {field: value for field, value in response.items() if field not in differing}
        if "routing_info" in kept:
            routing = kept["routing_info"].items()
            kept["routing_info"] = {name: told for name, told in routing if name not in INCIDENTAL}
        if "versions" in kept:
            kept["versions"] = [_without_stamp(version) for version in kept["versions"]]
        return kept

    return lambda responses: [strip(response) for response in responses]


def _without_stamp(version: dict[str, Any]) -> dict[str, Any]:
    """All times of the log are of 2025."""
    stamped = not version["ingested_at"].startswith("2025")
    return {field: value for field, value in version.items() if not (stamped and field == "ingested_at")}
