"""Entities of a question: recognition, context, and the proximity of memories."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from recallflow.operators.graph.query_graph import OPENED, proximity
from recallflow.operators.graph.reader import CONTEXT_ENTRIES, entity_context, given_entities, named_entities
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from tests.unit.operators.graph.reference import ANY_EDGES, LINKS, MEMORIES, NODES, reference
from tests.unit.operators.graph.stub import NOW_MS, StubGraph, edge, scope
from tests.unit.operators.harness import make_entry


def people(*names: str, **fields: Any) -> StubGraph:
    return StubGraph({f"m{n}": [f"entity:{name}"] for n, name in enumerate(names)}, **fields)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Where does Ann work?", ["entity:ann"]),
        ("where does ANN work", ["entity:ann"]),
        ("Did Bob call Ann's mother?", ["entity:bob", "entity:ann"]),
        ("What did Ann Smith and Ann say?", ["entity:ann smith", "entity:ann"]),
        ("Is Annabel here?", []),
        ("Who writes C++?", ["entity:c++"]),
        ("Who writes c++, and who .NET?", ["entity:c++", "entity:.net"]),
        ("Ask @bob.", ["entity:bob"]),
        ("About urn:acme:7, what is new?", ["entity:urn:acme:7"]),
        ("When will he come?", []),
        ("When did Will come?", ["entity:will"]),
        ("Will he come?", []),
        ("", []),
        ("?!", []),
    ],
)
def test_names_are_found_as_whole_words(question: str, found: list[str]) -> None:
    graph = people("ann", "bob", "ann smith", "c++", ".net", "urn:acme:7", "will")
    assert [*map(str, named_entities(graph, question))] == found


def test_archived_entities_are_not_found() -> None:
    graph = people("ann", "bob", archived=["entity:ann"], urns={"entity:ann": "urn:a", "entity:bob": "urn:b"})
    assert [*map(str, named_entities(graph, "Ann and Bob"))] == ["entity:bob"]
    assert [*map(str, given_entities(graph, ["urn:a", "urn:b", "entity:bob", "urn:x", "entity:x"]))] == ["entity:bob"]


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    graph = people("ann")
    named_entities(graph, "word " * 2_000 + "Ann")
    assert named_entities(graph, "word " * 2_000 + "Ann") == []


def test_context_tells_entities_and_those_within_two_relations() -> None:
    edges = [
        edge("entity:ann", "works_at", "entity:acme"), edge("entity:acme", "part_of", "entity:group"),
        edge("entity:group", "owns", "entity:far"), edge("entity:ann", "left", "entity:old", archived=True),
        edge("entity:ann", "rents", "entity:flat", expires_ms=NOW_MS), edge("entity:ann", "knows", "entity:gone"),
        edge("entity:ann", "caused_by", "m0"),
    ]  # fmt: skip
    graph = StubGraph({"m0": []}, edges, archived=["entity:gone"])
    assert entity_context(graph, [NodeKey("entity:ann")], NOW_MS).entries == [
        {"name": "ann", "type": "entity", "properties": {}, "relationships": [{"type": "works_at", "target": "acme"}]},
        {"name": "acme", "type": "entity", "properties": {}, "relationships": [{"type": "part_of", "target": "group"}]},
        {"name": "group", "type": "entity", "properties": {}, "relationships": [{"type": "owns", "target": "far"}]},
    ]


def test_relation_is_shown_in_its_direction() -> None:
    graph = StubGraph({"m0": []}, [edge("entity:ann", "works_at", "entity:acme")])
    told = [
        (entry["name"], entry["relationships"])
        for entry in entity_context(graph, [NodeKey("entity:acme")], NOW_MS).entries
    ]
    assert told == [("acme", []), ("ann", [{"type": "works_at", "target": "acme"}])]


def test_an_entity_has_the_type_that_was_told_of_it() -> None:
    class Told(StubGraph):
        def node(self, key: NodeKey) -> Any:
            found = super().node(key)
            return found and found._replace(properties={"type": "person", "age": 7})

    (entry,) = entity_context(Told({"m0": ["entity:ann"]}), [NodeKey("entity:ann")], NOW_MS).entries
    assert (entry["type"], entry["properties"]) == ("person", {"age": 7})


def test_context_is_bounded() -> None:
    graph = StubGraph({"m0": []}, [edge("entity:hub", "knows", f"entity:{n}") for n in range(2_000)])
    entries = entity_context(graph, [NodeKey("entity:hub")], NOW_MS).entries
    assert len(entries) == CONTEXT_ENTRIES
    assert len(entries[0]["relationships"]) == 24


def near(graph: StubGraph, memories: int, *entities: str, **fields: Any) -> list[float]:
    index = OwnerIndex("model", 2)
    # In conversation order the later ones come first.
    index.add([make_entry(seq, episode=0, created_ms=-seq) for seq in range(memories)], {})
    found = proximity(scope(graph, **fields), index, [NodeKey(entity) for entity in entities])
    assert found.shape == (memories,)
    return [round(float(value), 6) for value in found[::-1]]


def test_proximity_falls_with_the_hops() -> None:
    links = {
        "m0": ["entity:ann"], "m1": ["entity:ann", "tag:tea"], "m2": ["tag:tea", "tag:milk"],
        "m3": ["tag:milk", "tag:cow"], "m4": ["tag:cow", "tag:field"], "m5": ["tag:field"], "m6": [],
    }  # fmt: skip
    assert near(StubGraph(links), 7, "entity:ann") == [1, 1, 0.5, 0.333333, 0.25, 0, 0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINKS, ANY_EDGES)
def test_hops_are_those_of_the_shortest_paths_in_networkx(links: dict[str, list[str]], edges: list[Edge]) -> None:
    hops = nx.single_source_dijkstra_path_length(
        reference(links, edges),
        "tag:a",
        weight=lambda source, target, _: 0 if source in NODES and target in MEMORIES else 1,
    )
    expected = [round(1 / (1 + hops[name]), 6) if hops.get(name, 9) <= 3 else 0 for name in MEMORIES]
    assert near(StubGraph(links, edges), len(MEMORIES), "tag:a") == expected


def test_expired_and_archived_edges_add_no_proximity() -> None:
    links = {"m0": ["entity:ann", "tag:old"], "m1": ["entity:acme"], "m2": ["tag:old"], "m3": []}
    edges = [edge("entity:ann", "works_at", "entity:acme", expires_ms=NOW_MS), edge("m0", "x", "m3", archived=True)]
    graph = StubGraph(links, edges, archived=["tag:old"])
    assert near(graph, 4, "entity:ann") == [1, 0, 0, 0]
    assert near(graph, 4, "entity:ann", now_ms=NOW_MS - 1) == [1, 0.5, 0, 0]


def test_common_node_brings_some_memories_near() -> None:
    graph = StubGraph({f"m{n}": ["topic:all", *(["entity:ann"] if n < 2 else [])] for n in range(30)})
    assert near(graph, 30, "entity:ann") == [1, 1, *[0] * 4, *[0.5] * 24]
    wanted = near(graph, 30, "entity:ann", prefer=lambda seq: -float(seq))
    assert wanted == [1, 1, *[0.5] * 22, *[0] * 6]  # of the 24, two are Ann's own


def test_same_memory_type_adds_no_proximity() -> None:
    graph = StubGraph({"m0": ["entity:ann", "type:fact"], "m1": ["type:fact"]})
    assert near(graph, 2, "entity:ann") == [1, 0]


def test_proximity_to_the_entity_of_all_memories_is_bounded() -> None:
    graph = StubGraph({f"m{n}": ["entity:ann", f"tag:{n // 5}"] for n in range(5_000)})
    found = near(graph, 5_000, "entity:ann")
    assert found == [*[0] * 3_000, *[1] * 2_000]
    assert len(graph.read) < 5 * OPENED


def test_an_index_of_an_earlier_moment_has_fewer_memories() -> None:
    graph = StubGraph({f"m{n}": ["entity:ann"] for n in range(5)})
    assert near(graph, 3, "entity:ann") == [1, 1, 1]
    assert np.all(near(graph, 0, "entity:ann") == [])
