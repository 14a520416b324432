"""Where the graph cannot be written, the memory is stored, its graph is not, and the owner's next event tries again."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recallflow.errors import StorageError
from recallflow.flows.settings import Settings
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import GraphChanges
from recallflow.operators.graph.graph_events import FAILURES_MAX, RETRIES, SYNC_FAILED
from recallflow.operators.graph.write import GraphWriter, RememberedMemory, Similarity
from recallflow.state.graph_codec import NodeKey
from tests.unit.operators.graph.engine import Engine, event, memory, opened


@dataclass
class Faults:
    """Writers that fail halfway, this often for each memory."""

    left: dict[str, int] = field(default_factory=dict)
    error: Callable[[], Exception] = lambda: RuntimeError("a fault put in by the test")
    tried: list[str] = field(default_factory=list)

    def __call__(self, changes: GraphChanges, limits: Similarity) -> GraphWriter:
        return _Failing(changes, limits, self)

    def strike(self, memory_id: str) -> None:
        self.tried.append(memory_id)
        if self.left.get(memory_id, 0) > 0:
            self.left[memory_id] -= 1
            raise self.error()


class _Failing(GraphWriter):
    def __init__(self, changes: GraphChanges, limits: Similarity, faults: Faults) -> None:
        super().__init__(changes, limits)
        self._faults = faults

    def remember(
        self, memory: RememberedMemory, analysis: Analysis | None, episode_id: str | None, newest: int
    ) -> None:
        super().remember(memory, analysis, episode_id, newest)
        self._faults.strike(memory.row.id)

    def forget(self, memory_id: str, seq: int) -> None:
        super().forget(memory_id, seq)
        self._faults.strike(memory_id)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def engine(tmp_path: Path, faults: Faults, caplog: pytest.LogCaptureFixture) -> Iterator[Engine]:
    caplog.set_level(logging.CRITICAL)
    with opened(tmp_path / "s", Settings(partitions=1), faults) as made:
        yield made


def said(memory_id: str, **fields: Any) -> dict[str, Any]:
    relation = {"source": "Ann", "type": "likes", "target": "Tea"}
    fields = {"content": "then Ann came", "tags": ["hot"], "relations": [relation]} | fields
    return event("memory", id=memory_id, **fields)


def untouched() -> dict[str, Any]:
    return event("memory.forget", memory_id="nobody")


def codes(receipts: list[dict[str, Any]]) -> list[str | None]:
    return [receipt["code"] for receipt in receipts]


def test_memory_is_kept_when_its_graph_part_is_dropped(engine: Engine, faults: Faults) -> None:
    faults.left = {"a": 1}
    (receipt,) = engine.run(said("a"))
    assert (receipt["outcome"], receipt["memory_id"], receipt["code"]) == ("created", "a", SYNC_FAILED)
    assert engine.nodes().keys() == {memory("a")}
    assert (engine.graph.links(0), list(engine.graph.all_edges())) == ([], [])
    assert engine.hot.stored_graph.node(memory("a")) is not None


@pytest.mark.parametrize("restart", [False, True])
def test_next_event_retries_from_the_stored_state(
    engine: Engine, tmp_path: Path, faults: Faults, restart: bool
) -> None:
    faults.left = {"b": 1}
    engine.run(said("a"), said("b"))
    if restart:
        engine.again()
    assert codes(engine.run(untouched())) == [None]
    assert engine.graph.members(NodeKey("tag:hot"), 5) == [1, 0]
    assert {(a.text, b.text) for a, b, kind in engine.edges() if kind == "similar_to"} == {("a", "b"), ("b", "a")}
    whole = Engine(tmp_path / "whole", Settings(partitions=1))
    whole.run(said("a"), said("b"), untouched())
    assert whole.edges().keys() == engine.edges().keys()
    assert whole.nodes() == engine.nodes()


def test_a_failed_forget_is_made_up_for(engine: Engine, faults: Faults) -> None:
    engine.run(said("a"), said("b"))
    faults.left = {"a": 1}
    (receipt,) = engine.run(event("memory.forget", memory_id="a"))
    assert (receipt["outcome"], receipt["code"]) == ("forgotten", SYNC_FAILED)
    assert memory("a") not in engine.nodes()
    shown = engine.ask(event("graph.explore", nodes=["tag:hot"], hops=2))["subgraph"]
    assert [one["id"] for one in shown["memories"]] == ["b"]
    assert {link["memory"] for link in shown["links"]} == {"b"}
    engine.run(untouched())
    assert engine.graph.members(NodeKey("tag:hot"), 5) == [1]
    assert {edge.type for edge in engine.edges().values()} == {"likes"}


@pytest.mark.parametrize("as_of", [{}, {"as_of": {"event_time": 50}}, {"as_of": {"ingestion_time": 50}}], ids=str)
@pytest.mark.parametrize("kind", ["graph.explore", "graph.trace", "graph.facts", "recall"])
def test_questions_are_answered_where_a_memory_has_no_links(
    engine: Engine, faults: Faults, kind: str, as_of: dict[str, Any]
) -> None:
    for name in ("b", "a", "c"):
        faults.left = {"a": 100}
        engine.run(event("message", id=name, content="Tea?", session_id="s", timestamp=1))
    edges = [{"source": "b", "target": "a", "type": "caused_by"}, {"source": "a", "target": "c", "type": "caused_by"}]
    engine.run(event("graph.edges", edges=edges, timestamp=1))
    fields: dict[str, Any] = {"nodes": ["b"], "hops": 3} if kind == "graph.explore" else {"query": "tea"}
    if kind == "recall":
        fields |= {"strategy": "hybrid_graph", "traversal_depth": 3, "k": 1}
    answer = engine.ask(event(kind, timestamp=100, **fields, **as_of))
    assert engine.graph.links(1) == []
    assert answer["status"] != "error", answer
    assert "graph_failed" not in str(answer["warnings"])


def test_evidence_of_an_edge_that_was_given_meanwhile_is_kept(engine: Engine, faults: Faults) -> None:
    faults.left = {"a": 2}
    given = {"source": "b", "target": "c", "type": "knows", "evidence": "a"}
    engine.run(said("a"), said("b"), event("graph.edges", edges=[given]))
    assert codes(engine.run(untouched())) == [None]
    engine.run(event("memory.forget", memory_id="a"))
    assert engine.problems() == []


def test_members_of_a_merged_episode_are_moved_later(engine: Engine, faults: Faults) -> None:
    minutes = {"a": 0, "b": 50, "c": 25}  # c bridges two episodes
    faults.left = {"c": 1}
    for name, minute in minutes.items():
        engine.run(event("message", id=name, content="x", session_id="s", timestamp=minute * 60_000))
    assert sum(node.kind == "episode" for node in engine.nodes().values()) == 2
    engine.run(untouched())
    (episode,) = [key for key, node in engine.nodes().items() if node.kind == "episode"]
    assert engine.graph.members(episode, 5) == [2, 1, 0]


def test_repeated_failure_is_given_up(engine: Engine, faults: Faults) -> None:
    faults.left = {"a": 100}
    engine.run(said("a"))
    for _ in range(FAILURES_MAX + 3):
        engine.run(untouched())
    assert faults.tried.count("a") == FAILURES_MAX
    faults.left = {}
    engine.again()
    engine.run(untouched())
    assert engine.graph.links(0) == []
    engine.run(event("memory.update", memory_id="a", tags=["cold"]))
    assert engine.graph.members(NodeKey("tag:cold"), 5) == [0]


def test_one_event_makes_up_for_a_few(engine: Engine, faults: Faults) -> None:
    names, hub = [f"m{n}" for n in range(RETRIES + 2)], NodeKey("tag:hot")
    engine.run(*(said(name) for name in names))
    faults.left = {names[-1]: 1}
    engine.run(event("memory.forget", filter={"tag": "hot"}))  # all of it fails
    assert len(engine.graph.members(hub, 99)) == len(names)
    faults.tried.clear()
    faults.left = {names[0]: 1}
    engine.run(untouched())
    assert faults.tried == names[:RETRIES]
    assert len(engine.graph.members(hub, 99)) == len(names) - RETRIES + 1
    engine.run(untouched())
    assert faults.tried[RETRIES:] == [names[0], *names[RETRIES:]]
    assert (list(engine.graph.nodes()), list(engine.graph.all_edges())) == ([], [])


def test_a_storage_error_stops_the_flow(engine: Engine, faults: Faults) -> None:
    faults.left, faults.error = {"a": 1}, lambda: StorageError("the disk is gone")
    with pytest.raises(StorageError):
        engine.run(said("a"))
    engine.again()
    assert engine.graph.node(memory("a")) is None
