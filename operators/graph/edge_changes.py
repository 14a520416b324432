"""Changes of one event to its owner's edges, stored at both ends, with the history of replaced states."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.limits import SUPERSEDED_MAX
from recallflow.state import keys
from recallflow.state.graph_codec import (
    SUPERSEDES,
    SYMMETRIC,
    EdgeRow,
    Life,
    NodeKey,
    Superseded,
    decode_superseded,
    encode_rows,
)
from recallflow.state.partition import Partition

if TYPE_CHECKING:
    from recallflow.operators.graph.changes import GraphChanges

_EDGE_NUMBERS = 2**16  # per event; a record has no room for more edges


class EdgeChanges:
    """The changes of one event to its owner's edges."""

    def __init__(self, changes: "GraphChanges", partition: Partition, owner: bytes, change: int) -> None:
        self._changes = changes
        self._partition = partition
        self._owner = owner
        self._first_number = change * _EDGE_NUMBERS

    def name(self, source: NodeKey, target: NodeKey, kind: str) -> bytes:
        """Return the stored name of an edge. An edge of a symmetric type has the same name from both ends."""
        first, second = sorted((source, target)) if kind in SYMMETRIC else (source, target)
        return self._partition.keyring.edge(self._owner, self._changes.name(first), self._changes.name(second), kind)

    def get(self, name: bytes) -> EdgeRow | None:
        stored = self._changes.get(keys.edge(self._owner, name))
        return None if stored is None else EdgeRow.decode(stored)

    def new(self, source: NodeKey, target: NodeKey, kind: str) -> EdgeRow:
        """Return a new edge without statements. The caller stores it."""
        number = self._first_number + self._changes.staged.edges
        self._changes.staged.edges += 1
        first, second = sorted((source, target)) if kind in SYMMETRIC else (source, target)
        return EdgeRow(first, second, kind, number, added_ms=self._changes.ingested_ms)

    def add(self, name: bytes, row: EdgeRow) -> None:
        """Write a new edge, at both ends."""
        for end in (row.source, row.target):
            self._changes.put(keys.adjacency(self._owner, self._changes.name(end), row.number), name)
        self._changes.staged.more_edges += 1
        self.put(name, row)

    def put(self, name: bytes, row: EdgeRow) -> None:
        """Write an existing edge."""
        before = self.get(name)
        if before is not None:
            self._changes.past.keep_parts(name, before, row)
        self._changes.put(keys.edge(self._owner, name), row.encode())
        self._supersede(row, hides=row.hides)
        self._changes.names.join(row, joins=row.joins)

    def remove(self, name: bytes, row: EdgeRow) -> None:
        """Delete an edge at both ends. Its statements stay in the history, except statements of forgotten memories."""
        past = self._changes.past
        past.keep_parts(name, row, None)
        self._take_out(name, row)
        if past.forget_unless_said(name):
            past.keep_life(name, row)
        else:
            past.forget_traces(Life.of_row(row))

    def erase(self, name: bytes, row: EdgeRow) -> None:
        """Delete an edge with its history."""
        self._take_out(name, row)
        self._changes.past.forget_edge(name)
        self._changes.past.forget_traces(Life.of_row(row))

    def names_at(self, key: NodeKey, at_most: int | None = None) -> list[bytes]:
        """Return names of edges that earlier events left at a node, optionally limited."""
        stored = self._partition.scan(keys.adjacency_of(self._owner, self._changes.name(key)))
        return [name for _, name in islice(stored, at_most)]

    def at(self, key: NodeKey, at_most: int | None = None) -> Iterator[tuple[bytes, EdgeRow]]:
        """Yield names and records of those edges that still exist."""
        for name in self.names_at(key, at_most):
            if (row := self.get(name)) is not None:
                yield name, row

    def _take_out(self, name: bytes, row: EdgeRow) -> None:
        self._changes.put(keys.edge(self._owner, name), None)
        self._changes.staged.more_edges -= 1
        for end in (row.source, row.target):
            self._changes.put(keys.adjacency(self._owner, self._changes.name(end), row.number), None)
            if not end.memory:
                self._changes.detach(end)
        self._supersede(row, hides=False)
        self._changes.names.join(row, joins=False)

    def _supersede(self, row: EdgeRow, hides: bool) -> None:
        if row.type != SUPERSEDES or not (row.source.memory and row.target.memory):
            return
        seq = self._changes.seq(row.target.text)
        if seq is None:
            return
        key = keys.superseded(self._owner, seq)
        stored = self._changes.get(key)
        by = decode_superseded(stored) if stored else []
        before = next((one for one in by if one.by == row.source.text and one.until_ms is None), None)
        ingested_ms = self._changes.ingested_ms
        after = None
        if hides:
            times_ms = row.ends_ms, row.word.valid_from_ms
            after = Superseded(row.source.text, ingested_ms, *times_ms, said_ms=row.said_ms)
        if before is not None and after is not None and before._replace(ingested_ms=ingested_ms) == after:
            return
        others = [one for one in by if one != before]
        if before is not None:
            others.append(before._replace(until_ms=ingested_ms))
        past = [one for one in others if one.until_ms is not None][-SUPERSEDED_MAX:]
        current = [one for one in others if one.until_ms is None]
        if after is not None and len(current) == SUPERSEDED_MAX:
            problem = (
                f"{row.target} is superseded by {SUPERSEDED_MAX} memories already: archive the edge of one of them"
            )
            raise InvalidRecord("invalid_event", [FieldProblem("edges", problem)])
        by = [*past, *current, *([] if after is None else [after])]
        self._changes.put(key, encode_rows(by) if by else None)
        self._changes.staged.superseded[seq] = by
