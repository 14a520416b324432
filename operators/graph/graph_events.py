"""Graph writes of events: edges (`graph.edges`), archiving (`graph.archive`), and memories with retries.

A failed graph write of a memory event does not affect the memory. The graph changes are dropped as a whole, and the
memory is marked as unsynced. Later events of the owner retry the write from stored data, oldest memory first. After
several failures, only events of the memory itself retry. Archived nodes and edges are stored, but not traversed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from recallflow.errors import FieldProblem, InvalidRecord, OverQuota
from recallflow.events import GraphArchive, GraphEdge, GraphEdges
from recallflow.limits import EDGES_PER_USER, EVIDENCE_MAX
from recallflow.operators.events import Analysis
from recallflow.operators.graph.changes import GraphChanges
from recallflow.operators.graph.write import ForgottenMemory, RememberedMemory, relations, with_statement
from recallflow.operators.guard import try_once
from recallflow.operators.view import View
from recallflow.records import Position
from recallflow.state import graph_codec as codec
from recallflow.state.graph_codec import EdgeRow, LinksRow, NodeKey, NodeRow
from recallflow.state.rows import MemoryRow

CONDITIONAL_ON = "conditional_on"
_CREATED_KINDS = (codec.ENTITY_KIND, codec.CONDITION_KIND)  # kinds of nodes that an edge may create
Ends = tuple[NodeKey, NodeKey]  # source and target
STEP = "graph"
RETRIES = 4  # retries per event
FAILURES_MAX = 5
SYNC_FAILED = "GRAPH_RELATIONSHIP_SYNC_FAILED"


class EdgeEnd(NamedTuple):
    """The end of an edge. `kind` and `name` describe the node for its creation."""

    key: NodeKey
    kind: str
    name: str


def relate(changes: GraphChanges, event: GraphEdges, stated_ms: int) -> bool:
    """Write the event's edges, all or none. Return whether anything changed. Raise InvalidRecord."""
    problems: list[FieldProblem] = []
    found: list[tuple[GraphEdge, EdgeEnd, EdgeEnd]] = []
    for number, edge in enumerate(event.edges):
        source = find_end(changes, edge.source, may_be_condition=False)
        target = find_end(changes, edge.target, may_be_condition=edge.type == CONDITIONAL_ON)
        problems += [
            FieldProblem(f"edges.{number}.{field}", missing_problem(changes, text))
            for field, text, end in (("source", edge.source, source), ("target", edge.target, target))
            if end is None
        ]
        if source is not None and target is not None:
            found.append((edge, source, target))
    if problems:
        raise InvalidRecord("not_found", problems)
    _refuse_loops("edges", [source.key == target.key for _, source, target in found])
    memory_id = None if event.derived_from is None else event.derived_from.memory_id
    changed = [_write_edge(changes, edge, source, target, stated_ms, memory_id) for edge, source, target in found]
    return any(changed)


def check_relations(row: MemoryRow) -> None:
    """Raise InvalidRecord for a relation of an entity to itself, in any spelling."""
    each = (relations(replace(row, relations=[one])) for one in row.relations)
    _refuse_loops("relations", [any(edge.source == edge.target for edge in edges) for edges in each])


def _refuse_loops(field: str, are_loops: Sequence[bool]) -> None:
    """Raise InvalidRecord if any edge of a list field has equal ends."""
    problem = "the same as the source: name two different ends"
    if problems := [FieldProblem(f"{field}.{n}.target", problem) for n, is_loop in enumerate(are_loops) if is_loop]:
        raise InvalidRecord("invalid_event", problems)


def find_end(changes: GraphChanges, text: str, may_be_condition: bool) -> EdgeEnd | None:
    """Return the node of a memory id, key or name; None if it is missing and an edge cannot create it.
    `may_be_condition`: an unknown name is a condition."""
    memory_id = text.removeprefix(f"{codec.MEMORY_KIND}:")
    if memory_id != text or not codec.has_kind_prefix(text):
        if changes.seq(memory_id) is not None:
            return EdgeEnd(NodeKey(memory_id, memory=True), codec.MEMORY_KIND, memory_id)
        if memory_id != text:
            return None
    key, kind, name = _parse_node(text, may_be_condition)
    if not name.strip() or (kind not in _CREATED_KINDS and changes.node(NodeKey(key)) is None):
        return None
    return EdgeEnd(NodeKey(key), kind, name)


def missing_problem(changes: GraphChanges, text: str) -> str:
    """Return the problem of a text that is not the name of a node."""
    if codec.has_kind_prefix(text) and changes.seq(text) is not None:
        return f"no node has this key; the memory of this id is called {codec.MEMORY_KIND}:{text} here"
    return "no memory has this id, and no node this key"


def _parse_node(text: str, may_be_condition: bool) -> tuple[str, str, str]:
    """Return key, kind and name of a node. A condition may be written without its kind (`time:morning`)."""
    kind, colon, name = text.partition(":")
    if kind == codec.CONDITION_KIND and ":" in name:
        return _parse_node(name, may_be_condition=True)
    if colon and kind in codec.NODE_KINDS:
        return codec.node_key(kind, name), kind, name
    return codec.node_key(kind, name), codec.CONDITION_KIND if may_be_condition and name.strip() else "", text


def _write_edge(
    changes: GraphChanges, edge: GraphEdge, source: EdgeEnd, target: EdgeEnd, stated_ms: int, derived_from: str | None
) -> bool:
    name = changes.edge_name(source.key, target.key, edge.type)
    before = changes.edge(name)
    if before is None and not changes.has_room():
        if derived_from is not None:
            return False
        problem = (
            f"the user's graph would have more edges than {EDGES_PER_USER} allows ({changes.edge_limit:,}): forget "
            "memories that state edges, or raise the limit (recallflow quota set)"
        )
        raise OverQuota(EDGES_PER_USER, problem, "edges")
    for end in (source, target):
        if not end.key.memory:
            changes.ensure_node(end.key.text, end.kind, end.name)
    row = before if before is not None else changes.new_edge(source.key, target.key, edge.type)
    memory_id = derived_from or edge.evidence
    evidence = None if memory_id is None else changes.seq(memory_id)
    if derived_from is None or evidence is None:
        row = _with_values(row, edge, evidence, stated_ms, changes.ingested_ms)
    else:
        statement = codec.Statement(derived_from, evidence, changes.ingested_ms, False, stated_ms=stated_ms)
        row = _with_derived(row, edge, statement)
    if row == before:
        return False
    if before is None:
        changes.add_edge(name, row)
    else:
        changes.put_edge(name, row)
    if evidence is not None:
        _note_evidence(changes, evidence, str(memory_id), name.hex())
    if derived_from is not None:
        for key in (source.key, target.key):
            seq = changes.seq(key.text) if key.memory else None
            if seq is not None:
                _note_evidence(changes, seq, key.text, name.hex())
    return True


def _with_derived(row: EdgeRow, edge: GraphEdge, statement: codec.Statement) -> EdgeRow:
    """Return the edge with a derived statement, which does not change values that an event has set. The statement is
    withdrawn with its memory, or with a change of the memories at the ends of the edge."""
    quoted = {} if edge.evidence in (None, statement.memory_id) else {"evidence": edge.evidence}
    statement = statement._replace(derived=True, properties=quoted or None)
    earlier = [one for one in row.statements if not one.relation and one.memory_id == statement.memory_id]
    if earlier and not earlier[0].derived:
        return row
    if earlier:
        statement = statement._replace(ingested_ms=earlier[0].ingested_ms, stated_ms=earlier[0].stated_ms)
    row = row._replace(statements=with_statement([one for one in row.statements if one not in earlier], statement))
    if row.archived is not None or (row.given is not None and row.given.is_unconditional):
        return row
    times = (statement.ingested_ms, False, edge.valid_from, edge.valid_to, statement.stated_ms)
    given = codec.GivenEdge(edge.weight, edge.confidence, edge.expires_at, edge.archived, {}, *times)
    return row._replace(given=given)


def _with_values(row: EdgeRow, edge: GraphEdge, evidence: int | None, stated_ms: int, ingested_ms: int) -> EdgeRow:
    """Return the edge with the values of an event. Evidence that is not a memory id becomes a property."""
    properties = {"evidence": edge.evidence} if edge.evidence is not None and evidence is None else {}
    before = row.given
    given = codec.GivenEdge(
        edge.weight,
        edge.confidence,
        edge.expires_at,
        edge.archived,
        (before.properties if before else {}) | properties,
        min(before.ingested_ms, ingested_ms) if before else ingested_ms,
        is_unconditional=evidence is None or (before is not None and before.is_unconditional),
        valid_from_ms=edge.valid_from,
        valid_to_ms=edge.valid_to,
        stated_ms=min(before.stated_ms, stated_ms) if before else stated_ms,
    )
    statements = row.statements
    is_stated = any(not one.relation and one.memory_id == edge.evidence for one in statements)
    if evidence is not None and not is_stated:
        statement = codec.Statement(str(edge.evidence), evidence, ingested_ms, relation=False, stated_ms=stated_ms)
        statements = with_statement(statements, statement)
    return row._replace(given=given, statements=statements, archived=None)


def _note_evidence(changes: GraphChanges, seq: int, memory_id: str, name: str) -> None:
    """Record in a memory's links that an edge depends on this memory, as evidence or as the end of a derived edge."""
    row = changes.links(seq) or LinksRow(memory_id, {}, [], [])
    if name not in row.evidence:
        if len(row.evidence) >= EVIDENCE_MAX:
            problem = f"{memory_id} is the evidence of {EVIDENCE_MAX:,} edges already: name another memory, or none"
            raise InvalidRecord.of("invalid_event", problem, "edges")
        changes.put_links(seq, row._replace(evidence=[*row.evidence, name]))


def archive(changes: GraphChanges, event: GraphArchive) -> bool:
    """Archive or unarchive nodes and edges, all or none. Return whether anything changed. Raise InvalidRecord."""
    nodes = [_existing(changes, text) for text in event.entities]
    edges = [(_ends(changes, edge), edge.type) for edge in event.edges]
    missing = [n for n, key in enumerate(nodes) if key is None]
    problems = [FieldProblem(f"entities.{n}", missing_problem(changes, event.entities[n])) for n in missing]
    problems += [FieldProblem(f"edges.{n}", "there is no such edge") for n, (ends, _) in enumerate(edges) if not ends]
    if problems:
        raise InvalidRecord("not_found", problems)
    names = [name for key in nodes if key is not None for name in changes.names_of(key)]
    changed = [_archive_node(changes, name, event.archived) for name in dict.fromkeys(names)]
    changed += [_archive_edge(changes, ends, kind, event.archived) for ends, kind in edges if ends is not None]
    return any(changed)


def _existing(changes: GraphChanges, text: str) -> NodeKey | None:
    """Return the memory, node or entity that a text names; None if it does not exist."""
    end = find_end(changes, text, may_be_condition=False)
    keys = [end.key] if end is not None else []
    for key in [*keys, NodeKey(codec.node_key(codec.ENTITY_KIND, text))]:
        if key.memory or changes.node(key) is not None:
            return key
    return None


def _ends(changes: GraphChanges, edge: GraphEdge) -> Ends | None:
    """Return the ends of an edge, stated or between similar memories; None if it does not exist."""
    source, target = _existing(changes, edge.source), _existing(changes, edge.target)
    if source is None or target is None:
        return None
    stated = changes.edge(changes.edge_name(source, target, edge.type)) is not None
    return (source, target) if stated or _similar(changes, (source, target), edge.type) else None


def _similar(changes: GraphChanges, ends: Ends, kind: str) -> list[tuple[int, int]]:
    """Return the sequence numbers of two similar memories in both orders; empty for other ends."""
    if kind != codec.SIMILAR_TO or not all(end.memory for end in ends):
        return []
    one, other = (changes.seq(end.text) for end in ends)
    if one is None or other is None or all(neighbour.seq != other for neighbour in changes.neighbours(one)):
        return []
    return [(one, other), (other, one)]


def _archive_node(changes: GraphChanges, key: NodeKey, archived: bool) -> bool:
    row = changes.node(key)
    if (row is not None and row.archived) == archived:
        return False
    changes.keep_node(key, row)
    if row is not None and not key.memory:
        changes.put_node(key, row._replace(archived=archived))
    elif archived:
        changes.put_node(key, NodeRow(key, codec.MEMORY_KIND, key.text, archived=True))
    else:
        changes.put_node(key, None)  # a memory needs no record to be a node
    return True


def _archive_edge(changes: GraphChanges, ends: Ends, kind: str, archived: bool) -> bool:
    changed = False
    name = changes.edge_name(*ends, kind)
    row = changes.edge(name)
    if row is not None and row.is_archived != archived:
        changes.put_edge(name, row._replace(archived=archived))
        changed = True
    for seq, other in _similar(changes, ends, kind):
        before = changes.neighbours(seq)
        after = [one._replace(archived=archived) if one.seq == other else one for one in before]
        if after != before:
            changes.keep_neighbour(seq, next(one for one in before if one.seq == other))
            changes.put_neighbours(seq, after)
            changed = True
    return changed


def update_graph(view: View, analysis: Analysis | None, position: Position, retries: int = RETRIES) -> bool:
    """Write the graph of an event, and retry earlier failures. Return whether this event's own write succeeded."""
    changes, touched = view.graph, view.touched
    unsynced = changes.unsynced()
    synced = True
    if touched:
        synced = attempt(changes, position, partial(_write, view, analysis, unsynced))
        merged = [] if synced else view.merged_episodes()
        for one in () if synced else touched:
            before = unsynced.get(one.seq, codec.Unsynced(one.memory_id, 0, []))
            marker = before._replace(failures=before.failures + 1, merged=[*before.merged, *merged])
            changes.put_unsynced(one.seq, marker)
    if unsynced:
        own = {one.seq for one in touched}
        due = [seq for seq in sorted(unsynced) if seq not in own and unsynced[seq].failures < FAILURES_MAX]
        for seq in due[:retries]:
            marker = unsynced[seq]
            if not attempt(changes, position, partial(_write_stored, view, seq, marker)):
                changes.put_unsynced(seq, marker._replace(failures=marker.failures + 1))
    return synced


def attempt(changes: GraphChanges, position: Position, work: Callable[[], object]) -> bool:
    """Run work on the graph. Return whether it succeeded; after an internal error its changes are dropped."""
    before = changes.staged.copied() if changes.staged.effects else None
    try:
        try_once(STEP, position, work, undo=partial(changes.restore, before))
    except InvalidRecord as error:
        if error.code != "internal_error":
            raise
        return False
    return True


def _write(view: View, analysis: Analysis | None, unsynced: dict[int, codec.Unsynced]) -> None:
    for pair in view.merged_episodes():
        view.writer.merge_episodes(*pair)
    for one in view.touched:
        own = analysis if isinstance(one, RememberedMemory) and one.content_changed else None
        _write_memory(view, one, own, unsynced.get(one.seq))
    view.graph.prune()


def _write_stored(view: View, seq: int, marker: codec.Unsynced) -> None:
    current = view.current(marker.id)
    if current is None or current.forgotten:
        _write_memory(view, ForgottenMemory(marker.id, seq), None, marker)
    else:
        row, episode = view.row(marker.id, current.version), view.entry(seq).episode
        memory = RememberedMemory(row, episode, view.vectors(seq), content_changed=True)
        _write_memory(view, memory, None, marker)
    view.graph.prune()


def _write_memory(
    view: View, memory: RememberedMemory | ForgottenMemory, analysis: Analysis | None, marker: codec.Unsynced | None
) -> None:
    """Write a memory. For an unsynced one, complete its pending episode merges first."""
    if marker is not None:
        view.graph.put_unsynced(memory.seq, None)
        for pair in marker.merged:
            view.writer.merge_episodes(*pair)
    if isinstance(memory, ForgottenMemory):
        view.writer.forget(memory.memory_id, memory.seq)
        return
    if marker is not None:
        memory = memory._replace(content_changed=True)
    elif memory.only_vector:
        view.writer.embed(memory, view.newest)
        return
    view.writer.remember(memory, analysis, view.episode_id(memory.row.session_id, memory.episode), view.newest)
