"""The stored graph equals a model of dictionaries after any writes, however the log is cut or killed."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from recallflow.flows.settings import Settings
from recallflow.operators.graph.write import Similarity
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import SIMILAR_TO, SUPERSEDES, SYMMETRIC, NodeKey
from tests.unit.operators.graph.engine import Engine, event, memory
from tests.unit.operators.graph.model import Model, ModelEdge

LIMITS = Similarity(threshold=0.85, max_k=4, max_per_memory=2)
CHOSEN = Settings(partitions=1, similarity_max_k=LIMITS.max_k, similarity_max_per_memory=LIMITS.max_per_memory)

# A memory may be called like a node; forgotten ids are used again.
IDS = ["m1", "m2", "m3", "m4", "tag:tea", "m5", "entity:ann"]
NAMED = ["memory:tag:tea", "memory:entity:ann", "memory:m1"]
NODES = [
    "tag:tea", "tag:hot", "entity:ann", "entity:bob", "entity:annie", "type:fact", "topic:x", "condition:rain",
    "time:noon", "q",
]  # fmt: skip
# Angles of about 0°, 10°, 20°, 30°, 37° and 90° to the first: close, just close enough, and not.
VECTORS = [[1, 0, 0, 0], [0.985, 0.174, 0, 0], [0.94, 0, 0.342, 0], [0.866, 0, 0, 0.5], [0.8, 0.6, 0, 0], [0, 1, 0, 0]]
TEXTS = [
    "Then Ann met Bob at urn:city:rome",
    "Then ANN slept #Tea",
    "nothing here",
    "See github.com/A/b, said Bob",
    "Bob rang.",
    "ann and cleo",
    "昨天我和王小明去了北京",
]
ENTITIES: list[dict[str, Any]] = [
    {"name": "Ann"}, {"name": "Ann", "type": "person", "urn": "urn:ann"}, {"name": "Bob", "type": "person"},
    {"name": "Bob", "type": "dog", "urn": "urn:city:rome"}, {"name": "王小明"},
    {"name": "Annie", "aliases": ["ann", "annie"], "age": 7},
]  # fmt: skip
RELATIONS: list[dict[str, Any]] = [
    {"source": "Ann", "type": "knows", "target": "Bob"},
    {"source": "ann", "type": "knows", "target": "bob", "archived": True, "properties": {"since": 2}},
    {"source": "urn:ann", "type": "contradicts", "target": "Bob", "properties": {"a": 1}},
    {"source": "Bob", "type": "contradicts", "target": "Ann"},
    {"source": "Annie", "type": "knows", "target": "urn:city:rome", "properties": {"b": 2}},
    {"source": "Bob", "type": "same_as", "target": "Annie"},
]


def some(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), max_size=2)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "category": st.sampled_from([None, "food", "Food"]), "tags": some(["tea", "Tea", "hot"]), "topics": some(["x"]),
    "kind": st.sampled_from(["fact", "rule"]), "entities": some(ENTITIES), "relations": some(RELATIONS),
}  # fmt: skip
SAID = st.fixed_dictionaries(
    {"content": st.sampled_from(TEXTS), "embedding": st.sampled_from(VECTORS)}, optional=FIELDS
)
CHANGED = st.fixed_dictionaries({}, optional=FIELDS).filter(bool) | SAID
ID = st.sampled_from(IDS)
EDGE = st.fixed_dictionaries(
    {
        "source": st.sampled_from(IDS + NODES + NAMED),
        "target": st.sampled_from(IDS + NODES + NAMED),
        "type": st.sampled_from(
            ["supersedes", "contradicts", "knows", "conditional_on", "similar_to", "same_as", "same_as"]
        ),
        "weight": st.sampled_from([1.0, 0.5]),
        "archived": st.booleans(),
    },
    optional={"evidence": st.sampled_from([*IDS, "so it is said"])},
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), ID, SAID), st.tuples(st.just("remember"), ID, SAID),
        st.tuples(st.just("update"), ID, CHANGED), st.tuples(st.just("forget"), ID),
        st.tuples(st.just("forget_tagged"), st.sampled_from(["tea", "hot"])), st.tuples(st.just("relate"), EDGE),
        st.tuples(st.just("archive"), st.sampled_from(IDS + NODES + NAMED), st.booleans()),
        st.tuples(st.just("archive_edge"), EDGE),
    ),
    max_size=25,
)  # fmt: skip


def as_event(change: tuple[Any, ...]) -> dict[str, Any]:
    match change:
        case ("remember", memory_id, said):
            return event("memory", id=memory_id, **said)
        case ("update", memory_id, said):
            return event("memory.update", memory_id=memory_id, **said)
        case ("forget", memory_id):
            return event("memory.forget", memory_id=memory_id)
        case ("forget_tagged", tag):
            return event("memory.forget", filter={"tag": tag})
        case ("relate", edge):
            return event("graph.edges", edges=[edge])
        case ("archive", key, archived):
            return event("graph.archive", entities=[key], archived=archived)
        case ("archive_edge", edge):
            return event("graph.archive", edges=[edge], archived=edge["archived"])
    raise AssertionError(change)


def follow(model: Model, change: tuple[Any, ...]) -> None:
    match change:
        case ("remember", memory_id, said):
            if memory_id not in model.rows:
                model.remember(memory_id, said["embedding"], **without(said))
        case ("update", memory_id, said):
            model.update(memory_id, said.get("embedding"), **without(said))
        case ("forget", memory_id):
            model.forget([memory_id])
        case ("forget_tagged", tag):
            model.forget([row.id for row in model.rows.values() if tag in row.tags])
        case ("relate", edge):
            model.relate(**{"evidence": None} | {("kind" if k == "type" else k): v for k, v in edge.items()})
        case ("archive", key, archived):
            model.archive_node(key, archived)
        case (_, edge):
            model.archive_edge(edge["source"], edge["target"], edge["type"], edge["archived"])


def without(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name != "embedding"}


def check(engine: Engine, model: Model) -> None:
    assert engine.problems() == []
    expected = {key: expected_node(model, same) for key in model.nodes if (same := model.names(key))[0] == key}
    assert {key.text: node[1:] for key, node in engine.nodes().items() if not key.memory} == expected
    memories = {key.text: (node.kind, node.archived) for key, node in engine.nodes().items() if key.memory}
    assert memories == {m: ("memory", m in model.archived_memories) for m in model.rows}
    found = {ends: picture(edge) for ends, edge in engine.edges().items()}
    assert found == expected_edges(model)
    graph = engine.graph
    for memory_id, row in model.rows.items():
        roles: dict[NodeKey, str] = {}
        for key, link in model.links[memory_id].items():
            roles.setdefault(model.called(NodeKey(key)), link.role)
        assert sorted(graph.links(row.seq)) == sorted([(memory(memory_id), "self"), *roles.items()])
    for key in model.nodes:
        names = {*model.names(key)}
        seqs = sorted((model.rows[m].seq for m, found in model.links.items() if names & found.keys()), reverse=True)
        assert graph.members(NodeKey(key), 100) == seqs
        assert graph.members(NodeKey(key), 1) == seqs[:1]
        assert engine.hot.stored_graph.node(NodeKey(key)) == graph.node(NodeKey(key))  # what was kept in memory
    for end in {end for ends in found for end in ends[:2]}:
        # outgoing and incoming edges; of a symmetric one, only the outgoing direction
        listed = {ends for ends in found if ends[0] == end or (ends[1] == end and ends[2] not in SYMMETRIC)}
        assert {(edge.source, edge.target, edge.type) for edge in graph.edges(end, 100)} == listed
    superseded = {seq: sorted(one.by for one in by) for seq, by in graph.superseded().items()}
    assert superseded == expected_superseded(model)


def expected_node(model: Model, names: list[str]) -> tuple[Any, ...]:
    nodes = [model.nodes[name] for name in names]
    told: dict[str, Any] = {}
    for node in nodes:
        told = (node.description.properties if node.description else {}) | told
    if len(nodes) > 1 and nodes[0].own_urn is None:
        told.pop("name", None)
    urns = [node.own_urn or (node.description.urn if node.description else None) for node in nodes]
    return (
        nodes[0].kind, nodes[0].name, next((urn for urn in urns if urn), None), any(node.archived for node in nodes),
        told, tuple(node.name for node in nodes[1:] if node.own_urn is None),
    )  # fmt: skip


def expected_edges(model: Model) -> dict[tuple[NodeKey, NodeKey, str], tuple[Any, ...]]:
    alike: dict[tuple[NodeKey, NodeKey, str], list[tuple[Any, ...]]] = {}
    for (source, target, kind), edge in sorted(model.edges.items(), key=lambda item: -item[1].number):
        one, other = model.called(source), model.called(target)
        if one != other:
            alike.setdefault((one, other, kind), []).append(expected_edge(model, edge))
            if kind in SYMMETRIC:
                alike.setdefault((other, one, kind), []).append(expected_edge(model, edge))
    found = {ends: merged(edges) for ends, edges in alike.items()}
    for one_id, others in model.similar.items():
        for other_id, weight in others.items():
            ends = (memory(one_id), memory(other_id), SIMILAR_TO)
            found.setdefault(ends, (weight, 1.0, [], frozenset((one_id, other_id)) in model.archived_pairs, {}))
    return found


def merged(edges: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Edges of several united names, newest first; the strongest unarchived one decides."""
    weight, confidence, _, archived, told = min(edges, key=lambda edge: (edge[3], -edge[0]))
    return weight, confidence, list(dict.fromkeys(one for edge in edges for one in edge[2])), archived, told


def expected_edge(model: Model, edge: ModelEdge) -> tuple[Any, ...]:
    by_seq = sorted({*edge.relations, *edge.evidence}, key=lambda one: model.rows[one].seq)
    properties: dict[str, Any] = {}
    for one in by_seq:
        properties |= edge.relations.get(one, (False, {}))[1]
    weight, confidence, _, told = edge.given or (1.0, 1.0, False, {})
    return weight, confidence, by_seq, model.is_archived(edge), properties | told


def picture(edge: Edge) -> tuple[Any, ...]:
    return edge.weight, edge.confidence, edge.evidence, edge.archived, edge.properties


def expected_superseded(model: Model) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for (source, target, kind), edge in model.edges.items():
        if kind == SUPERSEDES and source.memory and target.memory and not model.is_archived(edge):
            found.setdefault(model.rows[target.text].seq, []).append(source.text)
    return {seq: sorted(by) for seq, by in found.items()}


@contextmanager
def engines(number: int) -> Iterator[list[Engine]]:
    with tempfile.TemporaryDirectory() as folder:
        made = [Engine(Path(folder) / str(n), CHOSEN) for n in range(number)]
        yield made
        for engine in made:
            engine.close()


SAID_OF_RELATIONS = {"content": TEXTS[0], "embedding": VECTORS[0], "relations": [RELATIONS[2]]}
SAID_OF_A_URN = {"content": TEXTS[0], "embedding": VECTORS[0], "entities": [ENTITIES[1]]}


@given(changes=CHANGES)
@example(  # a URN that was a name first, and whose description goes
    changes=[
        ("remember", "m1", SAID_OF_RELATIONS), ("remember", "m2", SAID_OF_A_URN), ("update", "m2", {"entities": []}),
    ]
)  # fmt: skip
@example(
    changes=[
        ("remember", "m1", SAID_OF_RELATIONS), ("remember", "m2", SAID_OF_A_URN | {"tags": ["tea"]}),
        ("forget_tagged", "tea"),
    ]
)  # fmt: skip
def test_graph_equals_a_model_of_dictionaries(changes: list[tuple[Any, ...]]) -> None:
    with engines(1) as (engine,):
        model = Model(LIMITS)
        for change in changes:
            engine.run(as_event(change))
            follow(model, change)
            assert "internal_error" not in {code for code, _ in engine.refused}
            check(engine, model)


@given(
    changes=CHANGES.filter(bool), sizes=st.lists(st.integers(1, 6), min_size=1),
    kills=st.sets(st.integers(0, 24), max_size=3),
)  # fmt: skip
def test_graph_does_not_depend_on_batches_or_kills(
    changes: list[tuple[Any, ...]], sizes: list[int], kills: set[int]
) -> None:
    events = [as_event(change) for change in changes]
    with engines(2) as (whole, cut):
        whole.run(*events)
        while cut.number < len(events):
            size = sizes[cut.number % len(sizes)]
            batch = events[cut.number : cut.number + size]
            if cut.number in kills:
                cut.kill(*batch)
            cut.run(*batch)
            if cut.number % 2:
                cut.again()
        assert cut.hash() == whole.hash()
        assert cut.problems() == whole.problems() == []
        assert cut.receipts == whole.receipts
        assert cut.refused == whole.refused
