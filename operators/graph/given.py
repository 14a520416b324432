"""Edges that an event gives (`graph.edges`)."""

from dataclasses import replace
from typing import NamedTuple

from recallflow.errors import FieldProblem, InvalidRecord, OverQuota
from recallflow.events import GraphEdge, GraphEdges
from recallflow.limits import EVIDENCE_MAX
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.extract import relations
from recallflow.operators.graph.write import with_statement
from recallflow.quota_names import EDGES_PER_USER
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
    by = None if event.derived_from is None else event.derived_from.memory_id
    changed = [_give(changes, edge, source, target, said_ms, by) for edge, source, target in found]
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


def _give(changes: Changes, edge: GraphEdge, source: End, target: End, said_ms: int, derived_from: str | None) -> bool:
    name = changes.edges.name(source.key, target.key, edge.type)
    before = changes.edges.get(name)
    if before is None and not changes.has_room():
        if derived_from is not None:
            return False
        raise OverQuota(EDGES_PER_USER, _full(changes.edges_most), "edges")
    for end in (source, target):
        if not end.key.memory:
            changes.ensure_node(end.key.text, end.kind, end.name)
    row = before if before is not None else changes.edges.new(source.key, target.key, edge.type)
    memory_id = derived_from or edge.evidence
    evidence = None if memory_id is None else changes.seq(memory_id)
    if derived_from is None or evidence is None:
        row = _with_given(row, edge, evidence, said_ms, changes.ingested_ms)
    else:
        row = _with_found(row, edge, Statement(derived_from, evidence, changes.ingested_ms, False, said_ms=said_ms))
    if row == before:
        return False
    if before is None:
        changes.edges.add(name, row)
    else:
        changes.edges.put(name, row)
    if evidence is not None:
        _note_evidence(changes, evidence, str(memory_id), name.hex())
    if derived_from is not None:
        for key in (source.key, target.key):
            seq = changes.seq(key.text) if key.memory else None
            if seq is not None:
                _note_evidence(changes, seq, key.text, name.hex())
    return True


def _with_found(row: EdgeRow, edge: GraphEdge, statement: Statement) -> EdgeRow:
    """The edge with what was found out of it, which changes nothing of what is given. It holds as long as the memory
    says so, and those at its ends are what they were."""
    quoted = {} if edge.evidence in (None, statement.memory_id) else {"evidence": edge.evidence}
    statement = statement._replace(derived=True, properties=quoted or None)
    said = [one for one in row.statements if not one.relation and one.memory_id == statement.memory_id]
    if said and not said[0].derived:
        return row
    if said:
        statement = statement._replace(ingested_ms=said[0].ingested_ms, said_ms=said[0].said_ms)
    row = row._replace(statements=with_statement([one for one in row.statements if one not in said], statement))
    if row.archived is not None or (row.given is not None and row.given.stands):
        return row
    times = (statement.ingested_ms, False, edge.valid_from, edge.valid_to, statement.said_ms)
    given = Given(edge.weight, edge.confidence, edge.expires_at, edge.archived, {}, *times)
    return row._replace(given=given)


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


def _full(edges_most: int | None) -> str:
    return (
        f"the user's graph would have more edges than {EDGES_PER_USER} allows ({edges_most:,}): forget memories that "
        "state some, or have the limit raised (recallflow quota set)"
    )


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
