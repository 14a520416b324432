"""The state step on its own directory, with its graph; questions that use the graph, and rollouts."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recallflow.control import ControlHistory, Rollout
from recallflow.flows.settings import Settings
from recallflow.operators.graph.write import GraphWriter, MakeWriter
from recallflow.owner import Owner
from recallflow.responses import ErrorBody
from recallflow.state.directory import StateDirectory
from recallflow.state.folders import partition_folder
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_check import TABLES, GraphCheck
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_owner import HotOwner
from recallflow.state.keys import CURRENT, OWNERS, split, table
from recallflow.state.rows import MemoryHead
from tests.unit.operators.harness import DAY_MS, MEMORIES, FlatEmbedder, Harness, answers, letters, make_event, receipts

ALONE = Settings(partitions=1, similarity_max_per_memory=0)  # no memory is like another
ANN = Owner("acme", "prod", "ann")


def event(kind: str, /, **fields: Any) -> dict[str, Any]:
    """An event of Ann's that asks for a receipt."""
    return {"type": kind, "tenant_id": "acme", "user_id": "ann", "receipt": True} | fields


def fact(memory_id: str, content: str = "tea", **fields: Any) -> dict[str, Any]:
    return event("memory", id=memory_id, content=content, **fields)


def memory(key: str) -> NodeKey:
    return NodeKey(key, memory=True)


class Engine:
    def __init__(self, path: Path, settings: Settings | None = None, writer: MakeWriter = GraphWriter) -> None:
        self.receipts: list[dict[str, Any]] = []
        self.refused: list[tuple[str, list[str]]] = []
        self._harness = Harness(path, FlatEmbedder(), settings=settings, one_log=True, rules={"graph_writer": writer})

    def run(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """One batch. Returns its receipts; refusals are kept as code and wrong fields."""
        outputs = self._harness.run(MEMORIES, *events)
        for letter in letters(outputs):
            body = ErrorBody.of(letter.error)
            self.refused.append((body.code, [one.field for one in body.fields]))
        given = receipts(outputs)
        self.receipts += given
        return given

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        (answer,) = answers(self._harness.run(MEMORIES, question))
        return answer

    def again(self, writer: MakeWriter | None = None) -> None:
        self._harness.restart(**{} if writer is None else {"graph_writer": writer})

    def kill(self, *events: dict[str, Any]) -> None:
        """Apply events without a sync, as in a killed process, and start again from the synced files."""
        folder = partition_folder(self._harness.path, 0)
        before = folder.with_name("before")
        self.directory.partition(0).checkpoint(before)
        number = self.number
        self._harness.run(MEMORIES, *events)
        self._harness.stop()
        shutil.rmtree(folder)
        before.rename(folder)
        del self._harness.lines[MEMORIES][number:]
        self._harness.rewind(MEMORIES, number)
        self._harness.start()

    @property
    def number(self) -> int:
        return len(self._harness.lines[MEMORIES])

    @property
    def directory(self) -> StateDirectory:
        return self._harness.directory

    @property
    def graph(self) -> OwnerGraph:
        partition = self.directory.partition(0)
        return OwnerGraph(partition, partition.keyring.owner(ANN))

    @property
    def hot(self) -> HotOwner:
        return self.directory.hot_owners().get(self.directory.partition(0), ANN)

    def nodes(self) -> dict[NodeKey, Node]:
        return {node.key: node for node in self.graph.nodes()}

    def edges(self) -> dict[tuple[NodeKey, NodeKey, str], Edge]:
        found = list(self.graph.all_edges())
        by_ends = {(edge.source, edge.target, edge.type): edge for edge in found}
        assert len(by_ends) == len(found), "no edge is there twice"
        return by_ends

    def problems(self) -> list[str]:
        partition = self.directory.partition(0)
        owner = partition.keyring.owner(ANN)
        check = GraphCheck(partition.keyring, owner)
        remembered = {}
        for key, value in partition.scan(OWNERS + owner):
            _, letter, rest = split(key)
            if letter in TABLES:
                check.add(letter, rest, value)
        for key, value in partition.scan(table(owner, CURRENT)):
            current = MemoryHead.decode(value)
            if not current.forgotten:
                remembered[current.seq] = split(key)[2]
        return list(check.problems(remembered))

    def hash(self) -> str:
        return self._harness.hash()

    def close(self) -> None:
        self._harness.stop()


@contextmanager
def opened(path: Path, settings: Settings = ALONE, writer: MakeWriter = GraphWriter) -> Iterator[Engine]:
    """An engine whose graph must hang together in the end."""
    engine = Engine(path, settings, writer)
    yield engine
    assert engine.problems() == []
    engine.close()


def rolled_out(mode: str = "canary", *tenants: str) -> ControlHistory:
    """Return decisions that set the rollout mode of tenants, of `acme` where none is given."""
    history = ControlHistory()
    for tenant in tenants or ("acme",):
        rollout = {"type": "graph.rollout", "tenant_id": tenant, "name": "default", "mode": mode}
        history.add(0, Rollout.model_validate(rollout))
    return history


def ask(query: str, **fields: Any) -> dict[str, Any]:
    """Return a question with expansion, about a day after the memories."""
    return make_event("recall", DAY_MS, **{"query": query, "k": 3, "strategy": "hybrid_graph"} | fields)
