"""The state step alone, on a directory of its own: events in, receipts and refusals out, the graph to look at."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from recallflow.embedder import Kind, Matrix
from recallflow.flows.settings import Settings
from recallflow.operators.decode import decode
from recallflow.operators.events import Batch, Item
from recallflow.operators.graph.write import GraphWriter, MakeWriter
from recallflow.operators.partition import PartitionLogic
from recallflow.operators.prepare import prepare
from recallflow.outputs import DeadLetter, Receipted
from recallflow.owner import Owner
from recallflow.records import Position, Record
from recallflow.responses import ErrorBody
from recallflow.state.directory import StateDirectory
from recallflow.state.graph import Edge, Node, OwnerGraph
from recallflow.state.graph_check import TABLES, GraphCheck
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_owner import HotOwner
from recallflow.state.keys import CURRENT, OWNERS, split, table
from recallflow.state.logical import state_hash
from recallflow.state.rows import Current

ANN = Owner("acme", "prod", "ann")
CACHE_BYTES = 1024 * 1024


_QUESTION = Record(
    Position("ask", 0, 0), orjson.dumps({"type": "memory.get", "tenant_id": "a", "user_id": "b", "memory_id": "c"}), 0
)


class FlatEmbedder:
    """All texts lie in one direction; a test that is about vectors brings its own."""

    name, dimension = "flat", 4
    kind: Kind = "spelling"

    def embed(self, texts: Sequence[str]) -> Matrix:
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(texts), 1))


def event(kind: str, /, **fields: Any) -> dict[str, Any]:
    """An event of Ann's that asks for a receipt."""
    return {"type": kind, "tenant_id": "acme", "user_id": "ann", "receipt": True} | fields


def memory(key: str) -> NodeKey:
    return NodeKey(key, memory=True)


@dataclass
class Engine:
    """An open state directory; `number` counts the events it was ever given."""

    path: Path
    settings: Settings = field(default_factory=lambda: Settings(partitions=1))
    writer: MakeWriter = GraphWriter
    number: int = 0
    receipts: list[dict[str, Any]] = field(default_factory=list)
    refused: list[tuple[str, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open()

    def run(self, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """One batch. Returns its receipts; refusals are kept as code and wrong fields."""
        outputs, _ = self._logic.on_batch([Batch(0, self._items(events))])
        self.number += len(events)
        receipts = []
        for output in outputs:
            match output:
                case Receipted():
                    receipts.append(orjson.loads(output.body))
                case DeadLetter():
                    body = ErrorBody.of(output.error)
                    self.refused.append((body.code, [one.field for one in body.fields]))
        self.receipts += receipts
        return receipts

    def run_each(self, events: Iterable[dict[str, Any]]) -> None:
        for one in events:
            self.run(one)

    def again(self, writer: MakeWriter | None = None) -> None:
        """Ends the process and starts another one: what was kept in memory is gone."""
        self.close()
        self.writer = writer or self.writer
        self._open()

    def kill(self, *events: dict[str, Any]) -> None:
        """Applies events whose batch is never committed, as in a process that is killed; then starts again."""
        for item in self._items(events):
            self._logic._take(item)  # the end of a batch, which commits, is not reached
        self.again()

    @property
    def graph(self) -> OwnerGraph:
        partition = self.directory.partition(0)
        return OwnerGraph(partition, partition.keyring.owner(ANN))

    @property
    def hot(self) -> HotOwner:
        """Ann, as the state step has her in memory."""
        return self.directory.hot_owners().get(ANN, lambda: HotOwner(self.directory.partition(0), ANN))

    def nodes(self) -> dict[NodeKey, Node]:
        return {node.key: node for node in self.graph.nodes()}

    def edges(self) -> dict[tuple[NodeKey, NodeKey, str], Edge]:
        found = list(self.graph.all_edges())
        by_ends = {(edge.source, edge.target, edge.type): edge for edge in found}
        assert len(by_ends) == len(found), "no edge is there twice"
        return by_ends

    def problems(self) -> list[str]:
        """What of the stored graph does not hang together."""
        partition = self.directory.partition(0)
        owner = partition.keyring.owner(ANN)
        check = GraphCheck(partition.keyring, owner)
        remembered = {}
        for key, value in partition.scan(OWNERS + owner):
            _, letter, rest = split(key)
            if letter in TABLES:
                check.add(letter, rest, value)
        for key, value in partition.scan(table(owner, CURRENT)):
            current = Current.decode(value)
            if not current.forgotten:
                remembered[current.seq] = split(key)[2]
        return list(check.problems(remembered))

    def hash(self) -> str:
        return state_hash(self.directory)

    def close(self) -> None:
        self.directory.close()

    def _items(self, events: Sequence[dict[str, Any]]) -> list[Item]:
        numbered = enumerate(events, self.number)
        records = [Record(Position("log", 0, n), orjson.dumps(one), n) for n, one in numbered]
        return prepare(FlatEmbedder(), [decode(record) for record in records])

    def _open(self) -> None:
        embedder = FlatEmbedder()
        rules = replace(self.settings.rules(embedder), graph_writer=self.writer)
        self.directory = StateDirectory.open(self.path, self.settings.fingerprint(embedder), CACHE_BYTES)
        self._logic = PartitionLogic.builder(self.directory, embedder, rules)(None)
        self._logic.on_batch([Batch(0, prepare(embedder, [decode(_QUESTION)]))])  # opens the partition
