"""Several processes of one deployment: whatever happens to them, everything is answered once, and the state is that of
one; and where a record landed changes nothing."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.broker import Cluster
from benchmarks.fleet import checker
from benchmarks.fleet.chaos import KILL, LOSE, PAUSE, STOP, Fault
from benchmarks.fleet.members import Fleet
from benchmarks.fleet.traffic import Astray, owners
from benchmarks.fleet.trial import Plan, Trial
from benchmarks.torture.checker import settled
from benchmarks.torture.engine import SHORT_SESSION
from benchmarks.torture.log import Log, Sent
from benchmarks.torture.reader import Reader
from benchmarks.torture.topics import Topics
from recallflow.state.at_rest import UNENCRYPTED
from recallflow.state.combined import combined_hash
from recallflow.state.rows import MemoryRow

MEMBERS = 3
PARTITIONS = 8
SEED = 18
FAULTS = [
    Fault(KILL, (0,), 1.0, 1.0),
    Fault(PAUSE, (1,), 8.0, 1.0),
    Fault(LOSE, (2,), 7.0, 1.0),
    Fault(STOP, (0,), 1.0, 1.0),
]
SMALL: dict[str, Any] = {"per_second": 30.0, "probe_s": 0.5, "idle_s": 0.0}
ROUNDS, OWNERS = 8, 12
SAID_MS = 1_735_689_600_000
MISROUTED = 0.1


def test_a_fleet_that_is_killed_paused_and_robbed_answers_everything_once(broker: Cluster, tmp_path: Path) -> None:
    plan = Plan(members=MEMBERS, partitions=PARTITIONS, seed=SEED, misrouted=0.05, **SMALL)
    with closing(Trial(broker, tmp_path, plan)) as trial:
        report = trial.run(FAULTS)
    assert report.findings.clean(), report.findings
    assert not report.broken, report.broken
    assert report.state_equal
    assert report.faults == {KILL: 1, PAUSE: 1, LOSE: 1, STOP: 1}
    assert report.findings.outputs > report.probes > 0
    assert report.astray


class Told:
    """A fleet that was told the same as others were, with a share of it astray."""

    def __init__(self, broker: Cluster, folder: Path, share: float) -> None:
        folder.mkdir()
        self.topics = Topics(broker)
        self.topics.make(PARTITIONS)
        self.log, self.ways = Log(self.topics), Astray(random.Random(SEED), share, PARTITIONS)
        self.astray = 0
        options = ("--epoch-ms", "100", *SHORT_SESSION)
        with Fleet(self.topics, folder, MEMBERS - 1, *options) as fleet, closing(Reader(self.topics)) as reader:
            fleet.up()
            reader.alive = fleet.running
            for line in script():
                self._tell(line)
                assert reader.until(lambda: settled(self.log, reader)), fleet.said()
            asked = [self._ask(owner, kind) for owner, _ in self.log.minds for kind in ("recall", "memories.list")]
            self.findings = checker.judge(self.log, reader)
            bodies = {output.answers: output.body for output in reader.outputs if output.kind == "response"}
            self.answers = [seen(bodies[sent.query_id]) for sent in asked]
            assert [ended.code for ended in fleet.stop_all()] == [0] * (MEMBERS - 1), fleet.said()
        self.hash = combined_hash(fleet.directories(), UNENCRYPTED).hash

    def _tell(self, line: list[tuple[str, str, dict[str, Any]]]) -> None:
        """What several owners say, each of them one thing: there is no order among them."""
        for owner, event_type, fields in line:
            way = self.ways.way(owner)
            self.astray += bool(way)
            self.log.tell(owner, event_type, how=way, **fields)
        self.log.flush()

    def _ask(self, owner: str, kind: str) -> Sent:
        """Waits for the position of what the owner said last, wherever that landed."""
        last = [sent for sent in self.log.of(["memory"]) if sent.owner == owner][-1]
        text = {"query": "walnut and harbour", "timestamp": SAID_MS * 2} if kind == "recall" else {}
        return self.log.ask(owner, kind, how=self.ways.way(owner), wait_for=last.position, **text)


def script() -> Iterator[list[tuple[str, str, dict[str, Any]]]]:
    """Rounds in which each owner says something; the same each time."""
    draw = random.Random(SEED)
    told: dict[str, list[str]] = {owner: [] for owner in owners(draw, OWNERS)}
    for number in range(ROUNDS):
        line: list[tuple[str, str, dict[str, Any]]] = []
        for owner, known in told.items():
            at: dict[str, Any] = {"timestamp": SAID_MS + number * 60_000, "id": f"{owner.replace('/', '-')}-{number}"}
            text = " ".join(draw.choices(("walnut", "harbour", "ferry", "Ann", "Leeds"), k=6)) + f" {number}"
            match draw.choice(("memory", "message", "memory.update", "memory.forget")):
                case "memory.update" if known:
                    line.append((owner, "memory.update", at | {"memory_id": draw.choice(known), "content": text}))
                case "memory.forget" if len(known) > 2:
                    line.append((owner, "memory.forget", at | {"memory_id": known.pop()}))
                case "message":
                    known.append(at["id"])
                    line.append((owner, "message", at | {"content": text, "session_id": "s"}))
                case _:
                    known.append(at["id"])
                    line.append((owner, "memory", at | {"content": text}))
        yield line


def seen(answer: dict[str, Any]) -> Any:
    """What an answer says of memories."""
    memories = answer.get("memories") or (answer.get("memory_page") or {}).get("memories") or []
    return answer["status"], [{name: memory[name] for name in memory if name != "why"} for memory in memories]


def test_where_a_record_landed_changes_no_answer_and_no_state(
    broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logical = MemoryRow.logical
    # Of two logs, each has its own times at which it took records in.
    monkeypatch.setattr(MemoryRow, "logical", lambda row: logical(row) | {"ingested_ms": 0})
    home, astray = (Told(broker, tmp_path / name, share) for name, share in (("home", 0.0), ("astray", MISROUTED)))
    assert home.astray == 0 < astray.astray
    assert home.findings.clean(), home.findings
    assert astray.findings.clean(), astray.findings
    assert astray.answers == home.answers
    assert all(memories for _, memories in home.answers)
    assert astray.hash == home.hash
