"""What an event takes out of the graph, kept for questions about then (`state/past_graph.py` reads it).

What is added says itself since when it is there. Only what is lost or replaced is kept here: the links that an update
took away, what was said of an edge, edges, neighbours and archive marks. Of a forgotten memory nothing is kept, and
what was kept of it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, takewhile
from sys import maxsize
from typing import TYPE_CHECKING, Any

import orjson

from recallflow.state import keys
from recallflow.state.graph_codec import (
    SAME_AS,
    SUPERSEDES,
    EdgeRow,
    Given,
    LinksRow,
    Neighbour,
    NodeKey,
    NodeRow,
    Superseded,
    decode_superseded,
    encode_rows,
)
from recallflow.state.past_edge import EVIDENCE, GIVEN, LIFE, OVERRIDE, RELATION, Life

if TYPE_CHECKING:
    from recallflow.operators.graph.changes import Changes
    from recallflow.state.partition import Partition

# What takes so many times as long as a link: an edge with both its ends, an edge that 200 memories state, and a
# replaced version beside what it brought.
EDGE_WEIGHT = 4
STATED_WEIGHT = 6
VERSION_WEIGHT = 6


class Past:
    """What one event leaves of its owner's graph as it was."""

    def __init__(self, changes: Changes, partition: Partition, owner: bytes, change: int) -> None:
        self._changes = changes
        self._partition = partition
        self._owner = owner
        self._change = change

    # ------------------------------------------------------------------ keeping

    def keep_links(self, seq: int, version: int, row: LinksRow) -> None:
        """Keeps what a version that is replaced brought into the graph."""
        self._changes.put(keys.past_links(self._owner, seq, version), row._replace(sketch=b"").encode())

    def keep_member(self, seq: int, node: NodeKey) -> None:
        """Keeps that a memory was linked to a node."""
        self._put(keys.past_member(self._owner, self._changes.name(node), seq), b"")

    def keep_parts(self, name: bytes, before: EdgeRow, after: EdgeRow | None) -> None:
        """Keeps what is said of an edge and will not be any more, unless a memory said it that is being forgotten."""
        stated = {} if after is None else {(one.seq, one.relation): one for one in after.statements}
        for statement in before.statements:
            if statement.seq == self._changes.forgetting:
                continue
            if stated.get((statement.seq, statement.relation)) != statement:
                part = RELATION if statement.relation else EVIDENCE
                self._keep(name, statement.seq, part, statement)
        if before.given is not None and (after is None or after.given != before.given):
            self._keep(name, None, GIVEN, before.given)
        if after is None or after.archived != before.archived:
            self._keep(name, None, OVERRIDE, before.archived)

    def keep_life(self, name: bytes, row: EdgeRow) -> None:
        """Keeps that an edge was there, at both its ends."""
        life = Life.of_row(row)
        self._keep(name, None, LIFE, life)
        stored = orjson.dumps([self._changes.ingested_ms, name.hex(), life], default=tuple)
        for end in (row.source, row.target):
            self._put(keys.past_adjacency(self._owner, self._changes.name(end), row.number), stored)

    def keep_neighbour(self, seq: int, neighbour: Neighbour) -> None:
        """Keeps that a memory had a neighbour, or one with another archive mark, as it was before the event, which may
        part two memories more than once."""
        key = keys.past_similar(self._owner, seq, neighbour.seq, self._change)
        if self._changes.get(key) is None:
            self._changes.put(key, orjson.dumps([self._changes.ingested_ms, tuple(neighbour)]))

    def keep_node(self, key: NodeKey, row: NodeRow | None) -> None:
        """Keeps a node as it was; None: a memory without a record. What describes a node is not kept: the memory that
        does may be forgotten."""
        plain = None if row is None else tuple(row.describe(None, None))
        stored = orjson.dumps([self._changes.ingested_ms, plain], default=tuple)
        self._put(keys.past_node(self._owner, self._changes.name(key), self._change), stored)

    def keep_joined(self, source: NodeKey, target: NodeKey, number: int) -> None:
        """Keeps that an edge may have joined two names: whether it did is asked of what is kept of it."""
        key = keys.past_joined(self._owner, self._changes.name(source), number)
        self._changes.put(key, orjson.dumps([source.text, target.text]))

    def keep_orphan(self, key: NodeKey, row: NodeRow | None) -> None:
        """Keeps a node that is deleted, if something led to it once; else drops what is kept of it."""
        name = self._changes.name(key)
        once = (keys.past_adjacency_of(self._owner, name), keys.past_members(self._owner, name))
        if all(next(self._standing(prefix), None) is None for prefix in once):
            self._drop(keys.past_nodes(self._owner, name))
        elif row is not None:
            self.keep_node(key, row)

    def _is_word(self, key: bytes) -> bool:
        """Whether an edge would be there by what is kept under a key alone."""
        part, _ = keys.edge_part(key)
        if part == GIVEN:
            return Given(*orjson.loads(self._changes.get(key) or b"")[1]).stands
        return part in (RELATION, EVIDENCE)

    def _keep(self, name: bytes, seq: int | None, part: bytes, content: Any) -> None:
        """Keeps a part of what was said of an edge, as it was before the event, which may replace it more than once."""
        key = keys.past_edge(self._owner, name, seq, part, self._change)
        if self._changes.get(key) is None:
            self._put(key, orjson.dumps([self._changes.ingested_ms, content], default=tuple))

    def _put(self, key: bytes, value: bytes) -> None:
        """Keeps a record that is looked for by what its key begins with."""
        self._changes.put(key, value)
        kept, stretch = self._changes.staged.kept, key[: keys.GROUP_BYTES]
        kept[stretch] = (*kept.get(stretch, ()), key)

    # ------------------------------------------------------------------ forgetting

    def weigh(self, key: NodeKey, seq: int, at_most: int) -> int:
        """Estimates what it costs to drop what is kept of a memory, in links; counts up to so many."""
        weight = 0
        for _, value in self._partition.scan(keys.past_links_of(self._owner, seq)):
            weight += _weight(LinksRow.decode(value))
            if weight >= at_most:
                return weight
        lives = keys.past_adjacency_of(self._owner, self._changes.name(key))
        weight += EDGE_WEIGHT * len(self._partition.first_keys(lives, at_most // EDGE_WEIGHT))
        return weight + len(self._partition.first_keys(keys.past_similar_of(self._owner, seq), at_most))

    def forget_memory(self, key: NodeKey, seq: int) -> None:
        """Drops all that is kept of a memory as a node."""
        self.thin(key, seq, maxsize)
        self._drop(keys.past_nodes(self._owner, self._changes.name(key)))

    def thin(self, key: NodeKey, seq: int, at_most: int) -> int:
        """Drops what is kept of a memory's replaced versions, and of its edges and neighbours that are gone: about so
        much. Returns what it weighed."""
        weight = self._forget_versions(seq, at_most)
        weight += self._forget_lives(key, at_most - weight)
        return weight + self._forget_neighbours(seq, at_most - weight)

    def forget_statements(self, name: bytes, seq: int) -> None:
        """Drops what a memory said of an edge before, with what was given of the edge on the word of such memories."""
        self._drop(keys.past_edge_of(self._owner, name, seq))
        row = self._changes.edges.get(name)
        if row is None and not self.forget_unless_said(name):
            return
        self._forget_given(name, row)
        life = self._last_life(name) if row is None else Life.of_row(row)
        if life is not None:
            self._ask_of_superseding(life)

    def forget_unless_said(self, name: bytes) -> bool:
        """Drops what is kept of an edge where no word of anybody is. Returns whether one is."""
        parts = []
        for key in self._standing(keys.past_edges(self._owner, name)):
            if self._is_word(key):
                return True
            parts.append(key)
        self._forget_parts(parts)
        return False

    def forget_edge(self, name: bytes) -> None:
        """Drops all that was said of an edge before."""
        self._forget_parts(self._standing(keys.past_edges(self._owner, name)))

    def _forget_versions(self, seq: int, at_most: int) -> int:
        weight = 0
        for key, value in self._partition.scan(keys.past_links_of(self._owner, seq)):
            if weight >= at_most:
                break
            row = LinksRow.decode(value)
            for text in row.links:
                node = NodeKey(text)
                self._changes.put(keys.past_member(self._owner, self._changes.name(node), seq), None)
                self._changes.detach(node)
            for name in {*row.relations, *row.evidence}:
                self.forget_statements(bytes.fromhex(name), seq)
            self._changes.put(key, None)
            weight += _weight(row)
        return weight

    def _forget_lives(self, key: NodeKey, at_most: int) -> int:
        weight = 0
        for stored in self._standing(keys.past_adjacency_of(self._owner, self._changes.name(key))):
            if weight >= at_most:
                break
            self.forget_edge(bytes.fromhex(orjson.loads(self._changes.get(stored) or b"")[1]))
            weight += EDGE_WEIGHT
        return weight

    def _forget_neighbours(self, seq: int, at_most: int) -> int:
        weight = 0
        for stored, value in self._partition.scan(keys.past_similar_of(self._owner, seq)):
            if weight >= at_most:
                break
            other, change = orjson.loads(value)[1][0], keys.sequence(stored)
            self._changes.put(stored, None)
            self._changes.put(keys.past_similar(self._owner, other, seq, change), None)
            weight += 1
        return weight

    def _forget_given(self, name: bytes, row: EdgeRow | None) -> None:
        """Drops what was given of an edge with memories as evidence, where no word of any of them is left."""
        standing = self._standing(self._parts_of(name, GIVEN))
        given = takewhile(lambda key: not self._is_word(key), standing)  # what stands, stands from then on
        first = next(given, None)
        if first is None or (row is not None and not all(one.relation for one in row.statements)):
            return
        parts = map(keys.edge_part, self._standing(keys.past_edges(self._owner, name)))
        if all(part != EVIDENCE for part, _ in parts):
            self._forget_parts([first, *given])

    def _last_life(self, name: bytes) -> Life | None:
        """What is kept of an edge that is gone."""
        lives = [orjson.loads(self._changes.get(key) or b"")[1] for key in self._standing(self._parts_of(name, LIFE))]
        return Life.of(lives[-1]) if lives else None

    def _parts_of(self, name: bytes, part: bytes) -> bytes:
        return keys.past_edge_of(self._owner, name, None) + part

    def _forget_parts(self, parts: Iterable[bytes]) -> None:
        for key in parts:
            if keys.edge_part(key)[0] == LIFE:
                _, life = orjson.loads(self._changes.get(key) or b"")
                self._forget_life(Life.of(life))
            self._changes.put(key, None)

    def _forget_life(self, life: Life) -> None:
        for end in (life.source, life.target):
            self._changes.put(keys.past_adjacency(self._owner, self._changes.name(end), life.number), None)
            if not end.memory:
                self._changes.detach(end)
        self.forget_traces(life)

    def forget_traces(self, life: Life) -> None:
        """Drops that an edge joined two names, or that a memory superseded another by it."""
        if life.type == SAME_AS:
            joined = keys.past_joined(self._owner, self._changes.name(life.source), life.number)
            if self._changes.get(joined) is not None:
                self._changes.put(joined, None)
        self._put_superseding(life, [])

    def _ask_of_superseding(self, life: Life) -> None:
        """Lets questions about then ask the edge when a memory was superseded by it: somebody's word of it is gone."""
        until_ms = self._changes.ingested_ms
        self._put_superseding(life, [Superseded(life.source.text, until_ms, None, until_ms=until_ms, asks=True)])

    def _put_superseding(self, life: Life, past: list[Superseded]) -> None:
        """Replaces what is kept of when a memory was superseded by an edge."""
        superseding = life.type == SUPERSEDES and life.source.memory and life.target.memory
        seq = self._changes.seq(life.target.text) if superseding else None
        if seq is None:
            return
        key = keys.superseded(self._owner, seq)
        stored = self._changes.get(key)
        by = decode_superseded(stored) if stored else []
        left = [*past, *(one for one in by if one.by != life.source.text or one.until_ms is None)]
        if left != by:
            self._changes.put(key, encode_rows(left) if left else None)
            self._changes.staged.superseded[seq] = left

    def _standing(self, prefix: bytes) -> Iterator[bytes]:
        """The keys under a prefix, which begins with a node or an edge, as the event leaves them so far: first those
        that it brought. It may have brought thousands of others."""
        staged = self._changes.staged
        brought = staged.kept.get(prefix[: keys.GROUP_BYTES], ())
        now = (key for key in brought if key.startswith(prefix) and staged.effects[key] is not None)
        return chain(now, (key for key, _ in self._partition.scan(prefix) if key not in staged.effects))

    def _drop(self, prefix: bytes) -> None:
        for key in self._standing(prefix):
            self._changes.put(key, None)


def _weight(row: LinksRow) -> int:
    """What it costs to drop what a replaced version brought in."""
    return VERSION_WEIGHT + len(row.links) + STATED_WEIGHT * (len(row.relations) + len(row.evidence))
