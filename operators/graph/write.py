"""A memory's part of its owner's graph, with `similar_to` links between memories with close vectors.

Each memory has a limited number of links. If a new memory is closer than the weakest link of a memory at the limit, it
replaces that link, in both directions; at equal closeness, the existing link stays."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from recallflow.caching import BoundedCache
from recallflow.embedder import Matrix
from recallflow.limits import STATEMENTS_MAX
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import GraphChanges, Link
from recallflow.operators.graph.names import TextNames, read_names, with_known
from recallflow.operators.graph.past import EDGE_WEIGHT, STATED_WEIGHT
from recallflow.state import graph_codec as codec
from recallflow.state.graph_codec import NodeKey
from recallflow.state.hot_graph import max_differing_bits, sketches
from recallflow.state.rows import MemoryRow, Vectors


class StatedRelation(NamedTuple):
    """An edge that a memory states, with the memory's statement."""

    source: NodeKey
    target: NodeKey
    type: str
    statement: codec.Statement


# Relation field → statement field.
_STATEMENT_FIELDS = {name: name for name in ("archived", "properties", "weight", "confidence")}
_STATEMENT_FIELDS |= {"valid_from": "valid_from_ms", "valid_to": "valid_to_ms"}
_NO_NAME = codec.node_key(codec.ENTITY_KIND, "")  # the key of a blank name


def links(row: MemoryRow, episode_id: str | None, names: TextNames) -> dict[str, Link]:
    """Return the links of a memory by node key. If it names a node several times, the first link decides the role, and
    the first link with a description decides the name."""
    found: dict[str, Link] = {}
    for link in _all_links(row, episode_id, names):
        before = found.get(link.key)
        if before is None:
            if len(link.key) > len(link.kind) + 1:  # blank names are skipped
                found[link.key] = link
        elif link.description is not None and before.description is None:
            found[link.key] = before._replace(name=link.name, description=link.description)
    return found


def _all_links(row: MemoryRow, episode_id: str | None, names: TextNames) -> Iterator[Link]:
    yield _link("type", row.kind)
    if row.category is not None:
        yield _link("category", row.category)
    for topic in row.topics:
        yield _link("topic", topic)
    for tag in (*row.tags, *names.tags):
        yield _link("tag", tag)
    if row.project_id is not None:
        yield _link("repo", row.project_id)
    if episode_id is not None:
        # Not cached, because hardly any episode id repeats.
        yield Link(f"{codec.EPISODE_KIND}:{episode_id}", codec.EPISODE_KIND, episode_id, codec.EPISODE_KIND)
    if row.name is not None:
        yield _link(codec.ENTITY_KIND, row.name, "author")
    yield from _given_entities(row)
    for name in names.entities:
        yield _link(codec.ENTITY_KIND, name, "mention")
    for urn in names.urns:
        yield _link(codec.ENTITY_KIND, urn, "mention", is_urn=True)


def _given_entities(row: MemoryRow) -> Iterator[Link]:
    """Yield the links of a memory's entities. Names, URNs and aliases are separate nodes, because texts use any of
    them; `same_as` relations connect them."""
    for entity in row.entities:
        name, urn = entity["name"], entity.get("urn")
        properties = {field: value for field, value in entity.items() if field not in ("name", "urn", "aliases")}
        description = codec.NodeDescription(urn, properties) if urn is not None or properties else None
        yield _link(codec.ENTITY_KIND, name)._replace(description=description)
        if urn is not None:
            of_urn = codec.NodeDescription(urn, {"name": name, **properties})
            yield _link(codec.ENTITY_KIND, urn, is_urn=True)._replace(description=of_urn)
        for alias in entity.get("aliases", ()):
            yield _link(codec.ENTITY_KIND, alias)
    for relation in row.relations:
        yield _link(codec.ENTITY_KIND, relation["source"])
        yield _link(codec.ENTITY_KIND, relation["target"])


_links: BoundedCache[tuple[str, str, str, bool], Link] = BoundedCache(  # few distinct links occur often
    lambda link: Link(codec.node_key(*link[:2]), *link[:3], None, link[3]), 4 * 1024 * 1024
)


def _link(kind: str, name: str, role: str | None = None, is_urn: bool = False) -> Link:
    return _links[kind, name, role or kind, is_urn]


def relations(row: MemoryRow) -> list[StatedRelation]:
    """Return the stated edges of entities, with `same_as` for aliases and URNs. A URN as an end is its entity."""
    names = {
        codec.node_key(codec.ENTITY_KIND, e["urn"]): codec.node_key(codec.ENTITY_KIND, e["name"])
        for e in row.entities
        if e.get("urn")
    }

    def end(name: str) -> NodeKey:
        key = codec.node_key(codec.ENTITY_KIND, name)
        return NodeKey(names.get(key, key))

    plain = codec.Statement(row.id, row.seq, row.ingested_ms, relation=True, stated_ms=row.updated_ms)
    found: list[StatedRelation] = []
    for relation in row.relations:
        source, target, kind = end(relation["source"]), end(relation["target"]), relation["type"]
        statement = plain._replace(**{_STATEMENT_FIELDS[n]: v for n, v in relation.items() if n in _STATEMENT_FIELDS})
        if kind != codec.SAME_AS or source != target:
            found.append(StatedRelation(source, target, kind, statement))
    found += _synonyms(row, plain)
    return [one for one in found if _NO_NAME not in (one.source.text, one.target.text)]


def _synonyms(row: MemoryRow, statement: codec.Statement) -> Iterator[StatedRelation]:
    for entity in row.entities:
        own = NodeKey(codec.node_key(codec.ENTITY_KIND, entity["name"]))
        for other in (entity.get("urn"), *entity.get("aliases", ())):
            if other is not None and (key := NodeKey(codec.node_key(codec.ENTITY_KIND, other))) != own:
                yield StatedRelation(own, key, codec.SAME_AS, statement)


DIGITS = 4  # of a stored cosine
_ROUNDING = 0.5 * 10**-DIGITS
_PRODUCT_ERROR = 1e-3  # a bound, in single precision, for unit vectors of up to 10,000 numbers


class Similarity(NamedTuple):
    """The settings of similarity links. `threshold`: the least cosine. `max_k`: the number of memories to compare.
    `max_per_memory`: the largest number of links of a memory; 0 for none."""

    threshold: float = 0.85
    max_k: int = 20
    max_per_memory: int = 5


def link_similar(
    changes: GraphChanges, row: MemoryRow, vectors: Vectors, sketch: bytes, newest: int, limits: Similarity
) -> None:
    """Link a memory that has no similar ones yet to the closest of its owner's newest memories."""
    own: list[codec.StoredNeighbour] = []
    max_bits = max_differing_bits(limits.threshold - _ROUNDING)  # the least cosine that rounds up to the threshold
    near = changes.hot_graph.window(newest).near(sketch, max_bits, newest)
    others = [seq for seq in near if seq != row.seq][: limits.max_k]
    for weight, seq in _closest(changes, vectors, others, limits.threshold) if others else ():
        if len(own) == limits.max_per_memory:
            break
        newcomer = codec.StoredNeighbour(row.seq, row.id, weight, row.ingested_ms)
        memory_id = _accept(changes, seq, newcomer, limits.max_per_memory)
        if memory_id is not None:
            own.append(codec.StoredNeighbour(seq, memory_id, weight, row.ingested_ms))
    if own:
        changes.put_neighbours(row.seq, own)


def unlink_similar(changes: GraphChanges, seq: int) -> None:
    neighbours = changes.neighbours(seq)
    for neighbour in neighbours:
        _remove_neighbour(changes, neighbour.seq, seq)
        changes.keep_neighbour(seq, neighbour)
    if neighbours:
        changes.put_neighbours(seq, [])


def _closest(changes: GraphChanges, vectors: Vectors, near: list[int], at_least: float) -> list[tuple[float, int]]:
    """Return cosine (4 digits) and `seq` of memories with a sufficient cosine, closest first, then newest."""
    vector = vectors.whole
    seqs, wholes = changes.hot_graph.memory_vectors(near, vectors.model, len(vector))
    # The exact cosine costs much more than a product in single precision, and few memories are close enough.
    (close,) = (wholes @ vector >= at_least - _PRODUCT_ERROR).nonzero()
    if not len(close):
        return []
    weights = zip(cosines(vector, wholes[close]), close.tolist(), strict=True)
    rounded = [(round(weight, DIGITS), seqs[at]) for weight, at in weights]
    found = [one for one in rounded if one[0] >= at_least]
    return sorted(found, key=lambda one: (-one[0], -one[1]))


def cosines(vector: Matrix, others: Matrix) -> list[float]:
    """Return the cosine of a unit vector with each row of `others`, (n, dimension), in double precision. Each row is
    summed separately: in a matrix product, a cosine would depend on the other rows and on the order of the operands."""
    found: list[float] = (others.astype(np.float64) * vector).sum(axis=1).tolist()
    return found


def _accept(changes: GraphChanges, seq: int, newcomer: codec.StoredNeighbour, at_most: int) -> str | None:
    """Add a newcomer to a memory's neighbours, if there is room or the newcomer is closer than the weakest. Return the
    memory's id; None if the newcomer was not added."""
    neighbours = changes.neighbours(seq)
    is_full = len(neighbours) >= at_most
    if is_full and newcomer.weight <= neighbours[-1].weight:
        return None
    links = changes.links(seq)
    if links is None:  # the memory's graph write failed earlier; its retry will find the newcomer
        return None
    if is_full:
        weakest = neighbours.pop()
        _remove_neighbour(changes, weakest.seq, seq)
        changes.keep_neighbour(seq, weakest)
    neighbours.append(newcomer)
    changes.put_neighbours(seq, sorted(neighbours, key=lambda one: (-one.weight, -one.seq)))
    return links.id


def _remove_neighbour(changes: GraphChanges, seq: int, other: int) -> None:
    """Remove one memory from the neighbours of another."""
    neighbours = changes.neighbours(seq)
    for neighbour in neighbours:
        if neighbour.seq == other:
            changes.keep_neighbour(seq, neighbour)
    changes.put_neighbours(seq, [one for one in neighbours if one.seq != other])


_DESCRIBED_WEIGHT = 6  # the cost of finding another description for a node, where deleting a link costs 1


class ForgottenMemory(NamedTuple):
    memory_id: str
    seq: int


class RememberedMemory(NamedTuple):
    """The current version of a memory after an event."""

    row: MemoryRow
    episode: int  # the number of its episode
    vectors: Vectors | None
    content_changed: bool  # its text or vector changed
    may_exist: bool = True  # the graph may have an earlier version
    only_vector: bool = False  # only its vector is new
    ended: bool = False  # it is no longer valid, so names in its text are not linked

    @property
    def memory_id(self) -> str:
        return self.row.id

    @property
    def seq(self) -> int:
        return self.row.seq


class GraphWriter:
    """Writes memories into a graph, through the changes of one event."""

    def __init__(self, changes: GraphChanges, limits: Similarity) -> None:
        self._changes, self._limits = changes, limits

    def remember(
        self, memory: RememberedMemory, analysis: Analysis | None, episode_id: str | None, newest: int
    ) -> None:
        """Write a memory's nodes, links and edges, and remove outdated ones. `newest`: the owner's newest `seq`."""
        changes, row = self._changes, memory.row
        before = changes.links(row.seq) if memory.may_exist else None
        current = links(row, episode_id, TextNames() if memory.ended else self._names_of(row, analysis))
        self._put_links(row.seq, before.links if before else {}, current)
        edges = relations(row) if row.relations or row.entities else []
        stated = [name.hex() for one in edges if (name := self._write_relation(row, one)) is not None]
        evidence = before.evidence if before else []
        if before is not None:
            self._withdraw([name for name in before.relations if name not in stated], row.id, is_relation=True)
            if memory.content_changed:
                self._withdraw(evidence, row.id, is_relation=False)
                evidence = []
        sketch = before.sketch if before else b""
        if memory.content_changed and self._limits.max_per_memory:
            sketch = self._find_similar(memory, b"" if analysis is None else analysis.sketch, newest)
        roles = {key: link.role for key, link in current.items()}
        after = codec.LinksRow(row.id, roles, list(dict.fromkeys(stated)), evidence, sketch)
        if before is not None and before._replace(sketch=sketch) != after:
            changes.keep_links(row.seq, row.version - 1, before)
        changes.put_links(row.seq, after)

    def embed(self, memory: RememberedMemory, newest: int) -> None:
        """Update the similar memories of a memory with a new vector."""
        changes, before = self._changes, self._changes.links(memory.seq)
        if before is not None and self._limits.max_per_memory:
            # The links are as new as the vector.
            current = memory._replace(row=replace(memory.row, ingested_ms=changes.ingested_ms))
            changes.put_links(memory.seq, before._replace(sketch=self._find_similar(current, b"", newest)))

    def forget(self, memory_id: str, seq: int) -> None:
        """Remove a memory's contributions to the graph, and every edge at the memory."""
        changes, key = self._changes, NodeKey(memory_id, memory=True)
        changes.forgetting = seq
        before = changes.links(seq)
        if before is not None:
            for node in before.links:
                changes.unlink(seq, node)
            self._withdraw(before.relations, memory_id, is_relation=True)
            self._withdraw(before.evidence, memory_id, is_relation=False)
            for stated in dict.fromkeys([*before.relations, *before.evidence]):
                changes.forget_statements(bytes.fromhex(stated), seq)
            changes.put_links(seq, None)
        for name, row in changes.edges_at(key):
            changes.erase_edge(name, row)
        unlink_similar(changes, seq)
        changes.forget_history(key, seq)
        changes.forget_memory(key, seq)
        changes.forgetting = None

    def weigh(self, memory_id: str, seq: int, at_most: int) -> int:
        """Estimate the number of records that forgetting a memory touches, up to a limit."""
        changes = self._changes
        row = changes.links(seq)
        key = NodeKey(memory_id, memory=True)
        weight = EDGE_WEIGHT * len(changes.edge_names_at(key, at_most // EDGE_WEIGHT + 1))
        weight += changes.weigh_history(key, seq, at_most)
        if row is None:
            return weight
        described = sum(role == codec.ENTITY_KIND for role in row.links.values())
        stated = len(row.relations) + len(row.evidence)
        return weight + len(row.links) + _DESCRIBED_WEIGHT * described + STATED_WEIGHT * stated

    def thin(self, memory_id: str, seq: int, at_most: int) -> None:
        """Remove about `at_most` units (see `weigh`) of a memory's edges, evidence and history."""
        changes, row, key = self._changes, self._changes.links(seq), NodeKey(memory_id, memory=True)
        changes.forgetting = seq
        edges = [*changes.edges_at(key, at_most // EDGE_WEIGHT)]
        for name, edge in edges:
            changes.erase_edge(name, edge)
        left = at_most - EDGE_WEIGHT * len(edges)
        withdrawn = row.evidence[: left // STATED_WEIGHT] if row is not None else []
        if row is not None and withdrawn:
            self._withdraw(withdrawn, memory_id, is_relation=False)
            for stated in withdrawn:
                changes.forget_statements(bytes.fromhex(stated), seq)
            changes.put_links(seq, row._replace(evidence=row.evidence[len(withdrawn) :]))
        left -= STATED_WEIGHT * len(withdrawn)
        changes.thin_history(key, seq, left)
        changes.forgetting = None
        changes.prune()

    def merge_episodes(self, merged_id: str, into_id: str, at_most: int | None = None) -> int:
        """Move members of one episode to another, optionally limited. Return their number."""
        changes, merged = self._changes, codec.node_key(codec.EPISODE_KIND, merged_id)
        into = Link(codec.node_key(codec.EPISODE_KIND, into_id), codec.EPISODE_KIND, into_id, codec.EPISODE_KIND)
        members = changes.members(merged, at_most)
        for seq in members:
            row = changes.links(seq)
            if row is not None:
                changes.unlink(seq, merged)
                changes.link(seq, [into])
                roles = {into.key if key == merged else key: role for key, role in row.links.items()}
                changes.put_links(seq, row._replace(links=roles))
        return len(members)

    def _names_of(self, row: MemoryRow, analysis: Analysis | None) -> TextNames:
        """Return the names in a memory's text, including names that only the graph identifies."""
        names = read_names(row.content) if analysis is None else analysis.names
        caseless = self._changes.caseless_names() if not row.content.isascii() else []
        is_incomplete = bool(names.doubtful or caseless)
        return with_known(names, self._changes.has_node, row.content, caseless) if is_incomplete else names

    def _find_similar(self, memory: RememberedMemory, sketch: bytes, newest: int) -> bytes:
        """Update the memory's neighbours. Return the sketch of its vector."""
        row, vectors = memory.row, memory.vectors
        if memory.may_exist:
            unlink_similar(self._changes, row.seq)
        if vectors is None:
            return b""
        own = sketch or sketches([vectors.whole])[0]
        link_similar(self._changes, row, vectors, own, newest, self._limits)
        return own

    def _put_links(self, seq: int, before: dict[str, str], current: dict[str, Link]) -> None:
        self._changes.link(seq, [link for key, link in current.items() if key not in before])
        for key in before:
            if key in current:
                self._changes.relink(seq, current[key])
            else:
                self._changes.unlink(seq, key, keep=True)

    def _write_relation(self, row: MemoryRow, relation: StatedRelation) -> bytes | None:
        """Write a memory's relation as a statement of its edge. Return the name of the edge in storage keys; None if
        the owner's edges are at their limit."""
        changes = self._changes
        name = changes.edge_name(relation.source, relation.target, relation.type)
        edge = changes.edge(name)
        statement = relation.statement
        if edge is None and not changes.has_room():
            return None
        if edge is None:
            edge = changes.new_edge(relation.source, relation.target, relation.type)
            changes.add_edge(name, edge._replace(statements=(statement,)))
            return name
        earlier = next((one for one in edge.statements if _is_of(one, row.id, True)), statement)
        others = [one for one in edge.statements if not _is_of(one, row.id, True)]
        since = statement._replace(ingested_ms=earlier.ingested_ms, stated_ms=earlier.stated_ms)
        statements = with_statement(others, since)
        if statements != edge.statements:
            changes.put_edge(name, edge._replace(statements=statements))
        return name

    def _withdraw(self, names: list[str], memory_id: str, is_relation: bool) -> None:
        """Withdraw a memory's statements of edges. An edge without statements is removed."""
        for name in map(bytes.fromhex, names):
            edge = self._changes.edge(name)
            if edge is None:
                continue
            is_end = NodeKey(memory_id, memory=True) in (edge.source, edge.target) and not is_relation
            others = [one for one in edge.statements if not _is_of(one, memory_id, is_relation)]
            statements = tuple(one for one in others if not (is_end and one.derived))
            given = edge.given
            if given is not None and not given.is_unconditional and all(one.relation for one in statements):
                given = None
            if given is None and not statements:
                self._changes.remove_edge(name, edge)
            else:
                self._changes.put_edge(name, edge._replace(given=given, statements=statements))


def with_statement(others: Iterable[codec.Statement], statement: codec.Statement) -> tuple[codec.Statement, ...]:
    """Return the newest statements in order of their memories, up to a limit."""
    return tuple(sorted([*others, statement], key=lambda one: (one.seq, one.relation)))[-STATEMENTS_MAX:]


def _is_of(statement: codec.Statement, memory_id: str, is_relation: bool) -> bool:
    return statement.memory_id == memory_id and statement.relation == is_relation


MakeWriter = Callable[[GraphChanges, Similarity], GraphWriter]
