"""A memory's part of its owner's graph: put in when it is remembered, brought up to date when it changes, taken out
when it is forgotten."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from recallflow.limits import STATEMENTS_MAX
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.extract import Link, Relation, links, relations
from recallflow.operators.graph.known import with_known
from recallflow.operators.graph.names import Named, read_names
from recallflow.operators.graph.past import EDGE_WEIGHT, STATED_WEIGHT
from recallflow.operators.graph.similar import Similarity, link_similar, unlink_similar
from recallflow.state.graph_codec import ENTITY_KIND, EPISODE_KIND, LinksRow, NodeKey, Statement, node_key
from recallflow.state.rows import MemoryRow, Vectors
from recallflow.state.window import sketches

_DESCRIBED_WEIGHT = 6  # a search for the next description of a node, in links


class Forgotten(NamedTuple):
    """A memory that an event forgot."""

    memory_id: str
    seq: int


class Remembered(NamedTuple):
    """The version of a memory that an event made the current one. `episode`: the number of the episode that it joined.
    `content_changed`: its text or its vector is another than before. `known`: the graph may have an earlier version.
    `embedded`: nothing is new but that it has a vector, or another one. `ended`: it holds no longer, and is linked to
    nothing that its text names."""

    row: MemoryRow
    episode: int
    vectors: Vectors | None
    content_changed: bool
    known: bool = True
    embedded: bool = False
    ended: bool = False

    @property
    def memory_id(self) -> str:
        return self.row.id

    @property
    def seq(self) -> int:
        return self.row.seq


class GraphWriter:
    """Writes memories into a graph, through the changes of one event."""

    def __init__(self, changes: Changes, limits: Similarity) -> None:
        self._changes = changes
        self._limits = limits

    # ------------------------------------------------------------------ memories

    def remember(self, memory: Remembered, analysis: Analysis | None, episode_id: str | None, newest: int) -> None:
        """Puts a memory's nodes, links and edges in, and takes out those it has no more. `analysis`: of its text, where
        there is one; `episode_id`: of the standing episode that it belongs to; `newest`: the sequence number of its
        owner's newest memory."""
        changes, row = self._changes, memory.row
        before = changes.links(row.seq) if memory.known else None
        wanted = links(row, episode_id, Named() if memory.ended else self._named(row, analysis))
        self._put_links(row.seq, before.links if before else {}, wanted)
        edges = relations(row) if row.relations or row.entities else []
        stated = [name.hex() for one in edges if (name := self._state(row, one)) is not None]
        evidence = before.evidence if before else []
        if before is not None:
            self._withdraw([name for name in before.relations if name not in stated], row.id, relation=True)
            if memory.content_changed:
                self._withdraw(evidence, row.id, relation=False)
                evidence = []
        sketch = before.sketch if before else b""
        if memory.content_changed and self._limits.max_per_memory:
            sketch = self._find_similar(memory, b"" if analysis is None else analysis.sketch, newest)
        roles = {key: link.role for key, link in wanted.items()}
        after = LinksRow(row.id, roles, list(dict.fromkeys(stated)), evidence, sketch)
        if before is not None and before._replace(sketch=sketch) != after:
            changes.past.keep_links(row.seq, row.version - 1, before)
        changes.put_links(row.seq, after)

    def embed(self, memory: Remembered, newest: int) -> None:
        """Finds the memories that are similar to one by the vector that it has now."""
        changes, before = self._changes, self._changes.links(memory.seq)
        if before is not None and self._limits.max_per_memory:
            known = memory._replace(row=replace(memory.row, ingested_ms=changes.ingested_ms))
            changes.put_links(memory.seq, before._replace(sketch=self._find_similar(known, b"", newest)))

    def forget(self, memory_id: str, seq: int) -> None:
        """Takes out all that a memory brought in, and every edge at it."""
        changes, key = self._changes, NodeKey(memory_id, memory=True)
        changes.forgetting = seq
        before = changes.links(seq)
        if before is not None:
            for node in before.links:
                changes.unlink(seq, node)
            self._withdraw(before.relations, memory_id, relation=True)
            self._withdraw(before.evidence, memory_id, relation=False)
            for stated in dict.fromkeys([*before.relations, *before.evidence]):
                changes.past.forget_statements(bytes.fromhex(stated), seq)
            changes.put_links(seq, None)
        for name, row in changes.edges.at(key):
            changes.edges.erase(name, row)
        unlink_similar(changes, seq)
        changes.past.forget_memory(key, seq)
        changes.forget_memory(key, seq)
        changes.forgetting = None

    def weigh(self, memory_id: str, seq: int, at_most: int) -> int:
        """Estimates how many records forgetting a memory touches; of its edges, counts so many."""
        changes = self._changes
        row = changes.links(seq)
        key = NodeKey(memory_id, memory=True)
        weight = EDGE_WEIGHT * len(changes.edges.names_at(key, at_most // EDGE_WEIGHT + 1))
        weight += changes.past.weigh(key, seq, at_most)
        if row is None:
            return weight
        described = sum(role == ENTITY_KIND for role in row.links.values())
        stated = len(row.relations) + len(row.evidence)
        return weight + len(row.links) + _DESCRIBED_WEIGHT * described + STATED_WEIGHT * stated

    def thin(self, memory_id: str, seq: int, at_most: int) -> None:
        """Takes out so many of the edges at a memory, of those that it is evidence of, and of what is kept of its
        past."""
        changes, row, key = self._changes, self._changes.links(seq), NodeKey(memory_id, memory=True)
        changes.forgetting = seq
        edges = [*changes.edges.at(key, at_most // EDGE_WEIGHT)]
        for name, edge in edges:
            changes.edges.erase(name, edge)
        left = at_most - EDGE_WEIGHT * len(edges)
        withdrawn = row.evidence[: left // STATED_WEIGHT] if row is not None else []
        if row is not None and withdrawn:
            self._withdraw(withdrawn, memory_id, relation=False)
            for stated in withdrawn:
                changes.past.forget_statements(bytes.fromhex(stated), seq)
            changes.put_links(seq, row._replace(evidence=row.evidence[len(withdrawn) :]))
        left -= STATED_WEIGHT * len(withdrawn)
        changes.past.thin(key, seq, left)
        changes.forgetting = None
        changes.prune()

    def merge_episodes(self, merged_id: str, into_id: str, at_most: int | None = None) -> int:
        """Makes so many members of one episode, or all, members of another. Returns how many there were."""
        changes, merged = self._changes, node_key(EPISODE_KIND, merged_id)
        into = Link(node_key(EPISODE_KIND, into_id), EPISODE_KIND, into_id, EPISODE_KIND)
        members = changes.members(merged, at_most)
        for seq in members:
            row = changes.links(seq)
            if row is not None:
                changes.unlink(seq, merged)
                changes.link(seq, [into])
                roles = {into.key if key == merged else key: role for key, role in row.links.items()}
                changes.put_links(seq, row._replace(links=roles))
        return len(members)

    # ------------------------------------------------------------------ parts

    def _named(self, row: MemoryRow, analysis: Analysis | None) -> Named:
        """What a memory's text names, by itself or by what the graph knows."""
        named = read_names(row.content) if analysis is None else analysis.named
        caseless = self._changes.names.caseless() if not row.content.isascii() else []
        if named.doubtful or caseless:
            return with_known(named, self._changes.has_node, row.content, caseless)
        return named

    def _find_similar(self, memory: Remembered, sketch: bytes, newest: int) -> bytes:
        """Brings the memory's neighbours up to date. Returns the sketch of its vector, made unless it is given."""
        row, vectors = memory.row, memory.vectors
        if memory.known:
            unlink_similar(self._changes, row.seq)
        if vectors is None:
            return b""
        own = sketch or sketches([vectors.whole])[0]
        link_similar(self._changes, row, vectors, own, newest, self._limits)
        return own

    def _put_links(self, seq: int, before: dict[str, str], wanted: dict[str, Link]) -> None:
        if not before:
            self._changes.link(seq, wanted.values())
            return
        self._changes.link(seq, [link for key, link in wanted.items() if key not in before])
        for key in before:
            if key in wanted:
                self._changes.relink(seq, wanted[key])
            else:
                self._changes.unlink(seq, key)
                self._changes.past.keep_member(seq, NodeKey(key))

    def _state(self, row: MemoryRow, relation: Relation) -> bytes | None:
        """Makes the memory evidence of the relation's edge. Returns what stands for the edge in stored keys; None where
        the owner may have no more edges."""
        changes = self._changes
        name = changes.edges.name(relation.source, relation.target, relation.type)
        edge = changes.edges.get(name)
        statement = Statement(row.id, row.seq, row.ingested_ms, True, *relation[3:], row.updated_ms)
        if edge is None and not changes.has_room():
            return None
        if edge is None:
            edge = changes.edges.new(relation.source, relation.target, relation.type)
            changes.edges.add(name, edge._replace(statements=(statement,)))
            return name
        earlier = next((one for one in edge.statements if _is_of(one, row.id, True)), statement)
        others = [one for one in edge.statements if not _is_of(one, row.id, True)]
        since = statement._replace(ingested_ms=earlier.ingested_ms, said_ms=earlier.said_ms)
        statements = with_statement(others, since)
        if statements != edge.statements:
            changes.edges.put(name, edge._replace(statements=statements))
        return name

    def _withdraw(self, names: list[str], memory_id: str, relation: bool) -> None:
        """The memory is evidence of these edges no more; an edge that nothing states goes. Some may be gone before,
        with one of their ends."""
        for name in map(bytes.fromhex, names):
            edge = self._changes.edges.get(name)
            if edge is None:
                continue
            is_end = NodeKey(memory_id, memory=True) in (edge.source, edge.target) and not relation
            statements = tuple(
                one for one in edge.statements if not (_is_of(one, memory_id, relation) or (is_end and one.derived))
            )
            given = edge.given
            if given is not None and not given.stands and all(one.relation for one in statements):
                given = None
            if given is None and not statements:
                self._changes.edges.remove(name, edge)
            else:
                self._changes.edges.put(name, edge._replace(given=given, statements=statements))


def with_statement(others: Iterable[Statement], statement: Statement) -> tuple[Statement, ...]:
    """Statements in the order of their memories, the newest ones: an edge that everybody states says it once."""
    return tuple(sorted([*others, statement], key=lambda one: (one.seq, one.relation)))[-STATEMENTS_MAX:]


def _is_of(statement: Statement, memory_id: str, relation: bool) -> bool:
    return statement.memory_id == memory_id and statement.relation == relation


MakeWriter = Callable[[Changes, Similarity], GraphWriter]
