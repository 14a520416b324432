"""What an event takes out of traversal, or puts back (`graph.archive`). Nothing is removed by it."""

from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import GraphArchive, GraphEdge
from recallflow.operators.graph.changes import Changes
from recallflow.operators.graph.given import named, unknown
from recallflow.state.graph_codec import ENTITY_KIND, MEMORY_KIND, SIMILAR_TO, NodeKey, NodeRow, node_key

Ends = tuple[NodeKey, NodeKey]  # source and target


def archive(changes: Changes, event: GraphArchive) -> bool:
    """Takes the event's nodes and edges out of traversal, or puts them back, all or none. Returns whether anything
    changed. Raises InvalidRecord."""
    nodes = [_existing(changes, text) for text in event.entities]
    edges = [(_ends(changes, edge), edge.type) for edge in event.edges]
    missing = [n for n, key in enumerate(nodes) if key is None]
    problems = [FieldProblem(f"entities.{n}", unknown(changes, event.entities[n])) for n in missing]
    problems += [FieldProblem(f"edges.{n}", "there is no such edge") for n, (ends, _) in enumerate(edges) if not ends]
    if problems:
        raise InvalidRecord("not_found", problems)
    names = [name for key in nodes if key is not None for name in changes.names.of(key)]
    changed = [_archive_node(changes, name, event.archived) for name in dict.fromkeys(names)]
    changed += [_archive_edge(changes, ends, kind, event.archived) for ends, kind in edges if ends is not None]
    return any(changed)


def _existing(changes: Changes, text: str) -> NodeKey | None:
    """What a text names, of what is there: a memory, a node's key, or an entity's name."""
    end = named(changes, text, condition=False)
    keys = [end.key] if end is not None else []
    for key in [*keys, NodeKey(node_key(ENTITY_KIND, text))]:
        if key.memory or changes.node(key) is not None:
            return key
    return None


def _ends(changes: Changes, edge: GraphEdge) -> Ends | None:
    """The ends of an edge that is there: something states it, or its ends are similar memories."""
    source, target = _existing(changes, edge.source), _existing(changes, edge.target)
    if source is None or target is None:
        return None
    stated = changes.edges.get(changes.edges.name(source, target, edge.type)) is not None
    return (source, target) if stated or _similar(changes, (source, target), edge.type) else None


def _similar(changes: Changes, ends: Ends, kind: str) -> list[tuple[int, int]]:
    """The sequence numbers of two similar memories, from either end; empty where the ends are none."""
    if kind != SIMILAR_TO or not all(end.memory for end in ends):
        return []
    one, other = (changes.seq(end.text) for end in ends)
    if one is None or other is None or all(neighbour.seq != other for neighbour in changes.neighbours(one)):
        return []
    return [(one, other), (other, one)]


def _archive_node(changes: Changes, key: NodeKey, archived: bool) -> bool:
    row = changes.node(key)
    if (row is not None and row.archived) == archived:
        return False
    changes.past.keep_node(key, row)
    if row is not None and not key.memory:
        changes.put_node(row._replace(archived=archived))
    elif archived:
        changes.put_node(NodeRow(key, MEMORY_KIND, key.text, archived=True))
    else:
        changes.remove_node(key)  # a memory needs no record to be a node
    return True


def _archive_edge(changes: Changes, ends: Ends, kind: str, archived: bool) -> bool:
    changed = False
    name = changes.edges.name(*ends, kind)
    row = changes.edges.get(name)
    if row is not None and row.is_archived != archived:
        changes.edges.put(name, row._replace(archived=archived))
        changed = True
    for seq, other in _similar(changes, ends, kind):
        before = changes.neighbours(seq)
        after = [one._replace(archived=archived) if one.seq == other else one for one in before]
        if after != before:
            changes.past.keep_neighbour(seq, next(one for one in before if one.seq == other))
            changes.put_neighbours(seq, after)
            changed = True
    return changed
