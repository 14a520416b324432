"""Edges that an event gives (`graph.edges`)."""

from dataclasses import replace
from typing import NamedTuple

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import GraphEdge, GraphEdges
from recallflow.limits import EVIDENCE_MAX
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.extract import relations
from recallflow.operators.graph.write import with_statement
from recallflow.state.graph_codec import (
    CONDITION_KIND,
    ENTITY_KIND,
    MEMORY_KIND,
    NODE_KINDS,
    EdgeRow,
    Given,
    LinksRow,
    NodeKey,
    Statement,
    begins_like_a_key,
    node_key,
)
from recallflow.state.rows import MemoryRow

CONDITIONAL_ON = "conditional_on"
_CREATED = (ENTITY_KIND, CONDITION_KIND)  # kinds of which an edge may bring new nodes
_TO_ITSELF = "the same as the source: an edge leads from one to another"


class End(NamedTuple):
    """What an edge leads to; `kind` and `name` of a node that is still to be created, if it is."""

    key: NodeKey
    kind: str
    name: str


def relate(changes: Changes, event: GraphEdges, said_ms: int) -> bool:
    """Writes the event's edges, all or none; `said_ms`: its event time. Returns whether anything changed. Raises
    InvalidRecord."""
    problems: list[FieldProblem] = []
    found: list[tuple[GraphEdge, End, End]] = []
    for number, edge in enumerate(event.edges):
        source = named(changes, edge.source, condition=False)
        target = named(changes, edge.target, condition=edge.type == CONDITIONAL_ON)
        problems += [
            FieldProblem(f"edges.{number}.{field}", unknown(changes, text))
            for field, text, end in (("source", edge.source, source), ("target", edge.target, target))
            if end is None
        ]
        if source is not None and target is not None:
            found.append((edge, source, target))
    if problems:
        raise InvalidRecord("not_found", problems)
    loops = [number for number, (_, source, target) in enumerate(found) if source.key == target.key]
    if loops:
        raise InvalidRecord("invalid_event", [FieldProblem(f"edges.{number}.target", _TO_ITSELF) for number in loops])
    changed = [_give(changes, edge, source, target, said_ms) for edge, source, target in found]
    return any(changed)


def check_relations(row: MemoryRow) -> None:
    """Raises InvalidRecord where a memory relates an entity to itself, however it spells it."""
    loops = [
        number
        for number, one in enumerate(row.relations)
        if any(edge.source == edge.target for edge in relations(replace(row, relations=[one])))
    ]
    if loops:
        raise InvalidRecord(
            "invalid_event", [FieldProblem(f"relations.{number}.target", _TO_ITSELF) for number in loops]
        )


# ---------------------------------------------------------------------- ends


def named(changes: Changes, text: str, condition: bool) -> End | None:
    """What a text names, read as `nodes_called` does; a node that may be created, if it is not there."""
    memory_id = text.removeprefix(f"{MEMORY_KIND}:")
    if memory_id != text or not begins_like_a_key(text):
        if changes.seq(memory_id) is not None:
            return End(NodeKey(memory_id, memory=True), MEMORY_KIND, memory_id)
        if memory_id != text:
            return None
    key, kind, name = _parsed(text, condition)
    if not name.strip() or (kind not in _CREATED and changes.node(NodeKey(key)) is None):
        return None
    return End(NodeKey(key), kind, name)


def unknown(changes: Changes, text: str) -> str:
    """What is wrong with a text that names nothing."""
    if begins_like_a_key(text) and changes.seq(text) is not None:
        return f"no node has this key; the memory of this id is called {MEMORY_KIND}:{text} here"
    return "no memory has this id, and no node this key"


def _parsed(text: str, condition: bool) -> tuple[str, str, str]:
    """Key, kind and name of a node. A condition may be named by what it is about (`time:morning`); a text without a
    colon names none."""
    kind, colon, name = text.partition(":")
    if kind == CONDITION_KIND and ":" in name:
        return _parsed(name, condition=True)
    if colon and kind in NODE_KINDS:
        return node_key(kind, name), kind, name
    return node_key(kind, name), CONDITION_KIND if condition and name.strip() else "", text


# ---------------------------------------------------------------------- edges


def _give(changes: Changes, edge: GraphEdge, source: End, target: End, said_ms: int) -> bool:
    for end in (source, target):
        if not end.key.memory:
            changes.ensure_node(end.key.text, end.kind, end.name)
    name = changes.edges.name(source.key, target.key, edge.type)
    before = changes.edges.get(name)
    row = before if before is not None else changes.edges.new(source.key, target.key, edge.type)
    evidence = None if edge.evidence is None else changes.seq(edge.evidence)
    row = _with_given(row, edge, evidence, said_ms, changes.ingested_ms)
    if row == before:
        return False
    if before is None:
        changes.edges.add(name, row)
    else:
        changes.edges.put(name, row)
    if evidence is not None:
        _note_evidence(changes, evidence, str(edge.evidence), name.hex())
    return True


def _with_given(row: EdgeRow, edge: GraphEdge, evidence: int | None, said_ms: int, ingested_ms: int) -> EdgeRow:
    """The edge with what is given of it now. Evidence that is no memory's id is kept as its property."""
    properties = {"evidence": edge.evidence} if edge.evidence is not None and evidence is None else {}
    before = row.given
    given = Given(
        edge.weight,
        edge.confidence,
        edge.expires_at,
        edge.archived,
        (before.properties if before else {}) | properties,
        min(before.ingested_ms, ingested_ms) if before else ingested_ms,
        stands=evidence is None or (before is not None and before.stands),
        valid_from_ms=edge.valid_from,
        valid_to_ms=edge.valid_to,
        said_ms=min(before.said_ms, said_ms) if before else said_ms,
    )
    statements = row.statements
    known = any(not one.relation and one.memory_id == edge.evidence for one in statements)
    if evidence is not None and not known:
        statement = Statement(str(edge.evidence), evidence, ingested_ms, relation=False, said_ms=said_ms)
        statements = with_statement(statements, statement)
    return row._replace(given=given, statements=statements, archived=None)


def _note_evidence(changes: Changes, seq: int, memory_id: str, name: str) -> None:
    """A memory remembers what it is evidence of, so that it can be withdrawn."""
    row = changes.links(seq)
    if row is None:
        row = LinksRow(memory_id, {}, [], [])
    if name not in row.evidence:
        if len(row.evidence) >= EVIDENCE_MAX:
            problem = f"{memory_id} is the evidence of {EVIDENCE_MAX:,} edges already: name another memory, or none"
            raise InvalidRecord("invalid_event", [FieldProblem("edges", problem)])
        changes.put_links(seq, row._replace(evidence=[*row.evidence, name]))
