"""Entities of a question, proximity of memories, and expansion over the graph."""

from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recallflow.operators.graph.paths import SHARED_NODE, TYPE_WEIGHTS, boosts, edge_weight, expand
from recallflow.operators.graph.query_graph import READS_MAX, proximity
from recallflow.operators.graph.reader import (
    CONTEXT_ENTRIES,
    LoadBounds,
    entity_context,
    given_entities,
    named_entities,
)
from recallflow.state.graph import Edge
from recallflow.state.graph_codec import NodeKey
from recallflow.state.index import OwnerIndex
from tests.unit.operators.graph.reference import ANY_EDGES, LINKS, MEMORIES, NODES, reference
from tests.unit.operators.graph.stub import NOW_MS, StubGraph, edge, scope, walk
from tests.unit.operators.harness import make_entry


def people(*names: str, **fields: Any) -> StubGraph:
    return StubGraph({f"m{n}": [f"entity:{name}"] for n, name in enumerate(names)}, **fields)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Where does Ann work?", ["entity:ann"]), ("where does ANN work", ["entity:ann"]),
        ("Did Bob call Ann's mother?", ["entity:bob", "entity:ann"]),
        ("What did Ann Smith and Ann say?", ["entity:ann smith", "entity:ann"]), ("Is Annabel here?", []),
        ("Who writes C++?", ["entity:c++"]), ("Who writes c++, and who .NET?", ["entity:c++", "entity:.net"]),
        ("Ask @bob.", ["entity:bob"]), ("About urn:acme:7, what is new?", ["entity:urn:acme:7"]),
        ("When will he come?", []), ("When did Will come?", ["entity:will"]), ("Will he come?", []), ("", []),
        ("?!", []),
    ],
)  # fmt: skip
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


def test_common_node_brings_some_memories_near() -> None:
    graph = StubGraph({f"m{n}": ["topic:all", *(["entity:ann"] if n < 2 else [])] for n in range(30)})
    assert near(graph, 30, "entity:ann") == [1, 1, *[0] * 4, *[0.5] * 24]
    wanted = near(graph, 30, "entity:ann", prefer=lambda seq: -float(seq))
    assert wanted == [1, 1, *[0.5] * 22, *[0] * 6]  # of the 24, two are Ann's own


def test_proximity_to_the_entity_of_all_memories_is_bounded() -> None:
    graph = StubGraph({f"m{n}": ["entity:ann", f"tag:{n // 5}"] for n in range(5_000)})
    found = near(graph, 5_000, "entity:ann")
    assert found == [*[0] * 3_000, *[1] * 2_000]
    assert len(graph.read) < 5 * READS_MAX


def test_an_index_of_an_earlier_moment_has_fewer_memories() -> None:
    graph = StubGraph({f"m{n}": ["entity:ann"] for n in range(5)})
    assert near(graph, 3, "entity:ann") == [1, 1, 1]
    assert np.all(near(graph, 0, "entity:ann") == [])


def scores(graph: StubGraph, *begun: str, hops: int = 1, limit: int = 100, **fields: object) -> dict[str, float]:
    """Memory id → score, best first."""
    expansion = expand(walk(graph, *begun, hops=hops, **fields), limit)
    return {f"m{item.seq}": round(item.score, 9) for item in expansion.items}


ANN_AND_ACME = {"m0": ["entity:ann"], "m1": ["entity:acme"]}
OF_TEA = {"m0": ["tag:tea"], "m1": ["tag:tea", "tag:milk"], "m2": ["tag:milk"]}
TWO_TAGS = {"m0": ["tag:a", "tag:b"], "m1": ["tag:b"]}
WORKS = edge("entity:ann", "depends_on", "entity:acme", confidence=0.5)
MORNING = edge("m0", "conditional_on", "time:morning")
RING = [edge(f"m{n}", "caused_by", f"m{(n + 1) % 4}", confidence=0.1 if n in (0, 3) else 1) for n in range(4)]
CHAIN = [edge("m0", "similar_to", "m1"), edge("m1", "depends_on", "m2"), edge("m3", "caused_by", "m2")]
BARE: dict[str, list[str]] = {f"m{n}": [] for n in range(4)}
CASES: dict[str, tuple[dict[str, list[str]], list[Edge], int, dict[str, float]]] = {
    "the last edge counts, divided by the hops": (BARE, CHAIN, 3, {"m1": 1.0, "m3": 0.5, "m2": 0.45}),
    "a shared node is one hop": (OF_TEA, [], 1, {"m1": 0.25}),
    "two shared nodes are two hops": (OF_TEA, [], 2, {"m1": 0.25, "m2": 0.125}),
    "an edge between nodes is not reached in one hop": (ANN_AND_ACME, [WORKS], 1, {}),
    "an edge between nodes has its weight": (ANN_AND_ACME, [WORKS], 2, {"m1": 0.225}),  # 0.9 · 1 · 0.5 / 2
    **{
        f"the strongest of several edges counts, {kinds[0]} first": (
            ANN_AND_ACME, [edge("entity:ann", kind, "entity:acme") for kind in kinds], 2, {"m1": 0.75}
        )  # 1.5 · 1 · 1 / 2
        for kinds in (("x", "caused_by"), ("caused_by", "x"))
    },
    "within one hop a shared node": (TWO_TAGS, [edge("tag:a", "caused_by", "tag:b")], 1, {"m1": 0.25}),
    "a stronger edge wins over one hop less": (TWO_TAGS, [edge("tag:a", "caused_by", "tag:b")], 2, {"m1": 0.75}),
    "a link out of a node ignores the incoming path": ({"m0": [], "m1": ["time:morning"]}, [MORNING], 1, {"m1": 0.25}),
    "an edge to a condition acts like a link": (
        BARE, [MORNING, edge("m1", "conditional_on", "time:morning", confidence=0.5)], 1, {"m1": 0.3}
    ),  # 0.6 · 1 · 0.5 / 1
    "a cycle ends, m1 by 0-3-2-1 and not by 0-1-2-1": (BARE, RING, 3, {"m2": 0.75, "m3": 0.5, "m1": 0.5}),
    "an archived edge": (BARE, [edge("m0", "caused_by", "m1", archived=True), edge("m1", "x", "m2")], 3, {}),
    "an expired edge": (BARE, [edge("m0", "caused_by", "m1", expires_ms=NOW_MS), edge("m1", "x", "m2")], 3, {}),
    "a common type of memories": ({"m0": ["type:fact"], "m1": ["type:fact"]}, [], 3, {}),
}  # fmt: skip


@pytest.mark.parametrize(("links", "edges", "hops", "expected"), CASES.values(), ids=CASES)
def test_scores_by_hand(links: dict[str, list[str]], edges: list[Edge], hops: int, expected: dict[str, float]) -> None:
    assert scores(StubGraph(links, edges), "m0", hops=hops) == expected


def fits(fit: float) -> Callable[[int, bool], float]:
    return lambda _, given: fit if given else 0.0


def test_stated_edges_count_fully_and_given_ones_by_fit() -> None:
    edges = [
        edge("m0", "depends_on", "m1"), edge("m0", "similar_to", "m3", stated_ms=0), edge("m0", "x", "tag:b"),
        edge("tag:a", "specializes", "tag:c"),
    ]  # fmt: skip
    links = {"m0": ["tag:a"], "m1": [], "m3": [], "m4": ["tag:a"], "m5": ["tag:b"], "m6": ["tag:c"]}
    found = scores(StubGraph(links, edges), "m0", hops=2, fit=fits(0.5))
    assert found == {"m3": 1.0, "m1": 0.9, "m6": 0.35, "m4": 0.125, "m5": 0.125}


def test_derived_edges_are_traversed_but_not_added() -> None:
    edges = [
        edge("m0", "similar_to", "m1"), edge("m2", "caused_by", "m3"), edge("entity:ann", "works_at", "entity:acme"),
    ]  # fmt: skip
    links = {
        "m0": ["entity:ann"], "m1": ["tag:a"], "m2": ["entity:ann"], "m3": [], "m4": ["entity:acme"], "m5": ["tag:a"],
    }  # fmt: skip
    expansion = expand(walk(StubGraph(links, edges), "m0", hops=2, fit=fits(0.5)))
    assert [(item.seq, item.score) for item in expansion.items] == [(3, 0.75), (4, 0.125), (5, 0.0625)]
    assert (expansion.considered, expansion.derived_only) == (5, 2)


class Half(StubGraph):
    """A graph whose `m0` only mentions what the others are tagged with."""

    def links(self, seq: int) -> list[tuple[NodeKey, str]]:
        return [(key, "mention" if seq == 0 and role == "tag" else role) for key, role in super().links(seq)]


def test_a_link_is_given_where_it_is_at_both_ends() -> None:
    graph = {"m0": ["tag:a"], "m1": ["tag:a"], "m2": ["tag:a"]}
    assert scores(Half(graph), "m1", fit=fits(0.5)) == {"m2": 0.125}
    assert scores(Half(graph), "m0", fit=fits(0.5)) == {}


@given(LINKS, ANY_EDGES, st.integers(1, 3), st.floats(0.01, 1))
def test_score_equals_that_of_the_reported_path(
    links: dict[str, list[str]], edges: list[Edge], hops: int, fit: float
) -> None:
    expansion = expand(walk(StubGraph(links, edges), "m0", hops=hops, fit=fits(fit)), 100)
    assert [item.score for item in expansion.items] == sorted((item.score for item in expansion.items), reverse=True)
    for item in expansion.items:
        by = item.why["edge"]
        worth = TYPE_WEIGHTS.get(by["type"], TYPE_WEIGHTS[SHARED_NODE]) * by["weight"] * by["confidence"]
        assert item.score == pytest.approx(worth / item.why["hops"] * item.why["fit"], abs=1e-5)
        assert item.why["fit"] in (round(fit, 6) if by["type"] == SHARED_NODE else 1, 1)


def step(
    source: str, target: str, kind: str = "shared_node", weight: float = 1.0, confidence: float = 1.0
) -> dict[str, object]:
    return {"source": source, "target": target, "type": kind, "weight": weight, "confidence": confidence}


def test_longer_path_is_reported_from_its_seed() -> None:
    edges = [edge("m2", "caused_by", "m1", weight=0.9, confidence=0.8)]
    graph = StubGraph({"m0": ["tag:tea"], "m1": ["tag:tea"], "m2": []}, edges)
    item = next(item for item in expand(walk(graph, "m0", hops=2)).items if item.seq == 2)
    assert item.why == {
        "reason": "graph_expansion", "from": "m0", "node": "m1", "edge_type": "caused_by", "hops": 2, "fit": 1.0,
        "edge": {"source": "m2", "target": "m1", "type": "caused_by", "weight": 0.9, "confidence": 0.8},
        "path": [step("m0", "tag:tea"), step("tag:tea", "m1"), step("m1", "m2", "caused_by", 0.9, 0.8)],
    }  # fmt: skip


def test_equal_paths_go_by_hops_and_then_by_node() -> None:
    two_hops = [edge("m0", "similar_to", "m1", weight=0.1), edge("m1", "similar_to", "m2", weight=0.5)]
    graph = StubGraph({"m0": ["tag:b", "tag:a"], "m1": [], "m2": ["tag:b", "tag:a"]}, two_hops)
    reached = {item.seq: item.why for item in expand(walk(graph, "m0", hops=2)).items}
    assert (reached[2]["hops"], reached[2]["node"]) == (1, "tag:a")  # 0.25 three times over


def test_tied_memories_rank_by_preference_then_newest() -> None:
    graph = StubGraph({f"m{n}": ["tag:tea"] for n in range(4)})
    assert [*scores(graph, "m0")] == ["m3", "m2", "m1"]
    assert [*scores(graph, "m0", prefer=lambda seq: float(seq == 2))] == ["m2", "m3", "m1"]


@pytest.mark.parametrize(("archived", "shut"), [(["m1"], -1), ([], 1)], ids=["archived", "not allowed"])
def test_memory_out_of_reach_is_no_step_of_a_path(archived: list[str], shut: int) -> None:
    edges = [edge("m0", "similar_to", "m1"), edge("m1", "similar_to", "m2")]
    graph = StubGraph({f"m{n}": [] for n in range(3)}, edges, archived=archived)
    assert scores(graph, "m0", hops=3, allowed=lambda seq: seq != shut) == {}


def test_large_node_is_cut_to_its_newest_memories_and_reported() -> None:
    graph = StubGraph({f"m{n}": ["topic:tea"] for n in range(100)})
    expansion = expand(walk(graph, "m0", hops=1), 100)
    assert [item.seq for item in expansion.items] == [*range(99, 75, -1)]
    assert (expansion.considered, expansion.caps.fan_out) == (24, ["topic:tea"])


@pytest.mark.parametrize("memories", [8, 9, 30, 5_000])
def test_edges_given_are_followed_however_many_memories_a_node_has(memories: int) -> None:
    edges = [edge("entity:ann", "works_at", "entity:acme"), edge("entity:ann", "caused_by", f"m{memories}")]
    links = {f"m{n}": ["entity:ann"] for n in range(memories)} | {f"m{memories}": [], "m99999": ["entity:acme"]}
    found = scores(StubGraph(links, edges), "m0", hops=2)
    assert {memory: found[memory] for memory in (f"m{memories}", "m99999")} == {f"m{memories}": 1.5, "m99999": 0.125}


def test_hubs_of_edges_and_links_are_cut_and_reported() -> None:
    hub = [edge("m0", "caused_by", f"m{n}") for n in range(1, 5_000)]
    graph = StubGraph({f"m{n}": [f"topic:{n % 60}"] for n in range(5_000)}, hub)
    expansion = expand(walk(graph, "m0", hops=3), 1_000)
    assert {"m0", "topic:0"} <= {*expansion.caps.fan_out}
    assert expansion.caps.visited_at_hop == 2
    assert expansion.considered < LoadBounds().visited
    assert len(graph.read) < 5 * LoadBounds().visited


def test_visited_nodes_are_bounded_and_the_hop_reported() -> None:
    tree = [edge(f"m{(n - 1) // 10}", "x", f"m{n}") for n in range(1, 2_000)]
    graph = StubGraph({f"m{n}": [] for n in range(2_000)}, tree)
    met = expand(walk(graph, "m0", hops=3, bounds=LoadBounds(visited=50)), 100)
    assert (met.considered, met.caps.visited_at_hop) == (49, 2)
    opened = expand(walk(graph, "m0", hops=3, bounds=LoadBounds(opened=3)), 100)
    assert (opened.considered, opened.caps.visited_at_hop) == (30, 2)


def paths(model: nx.MultiGraph, target: str, hops: int) -> Iterator[tuple[int, float]]:
    """Hops and score of each path from `m0` to another memory that comes to nothing twice."""
    for path in nx.all_simple_edge_paths(model, "m0", target, cutoff=2 * hops):
        length, between = 0, None
        for source, end, number in path:
            last = model.edges[source, end, number]["edge"]
            into_node = source in MEMORIES and end in NODES
            length += not into_node
            scored = last or between
            between = None if source in MEMORIES else last
        if length <= hops:
            yield length, round(edge_weight(scored) / length, 9)


@given(LINKS, ANY_EDGES, st.integers(1, 3))
def test_the_memories_reached_are_those_that_networkx_has_paths_to(
    links: dict[str, list[str]], edges: list[Edge], hops: int
) -> None:
    model = reference(links, edges)
    expected = {target: found for target in MEMORIES[1:] if (found := [*paths(model, target, hops)])}
    best = scores(StubGraph(links, edges), "m0", hops=hops)
    assert best.keys() == expected.keys()
    for target, score in best.items():
        shortest = min(length for length, _ in expected[target])
        assert score <= max(score for _, score in expected[target])
        assert score >= max(score for length, score in expected[target] if length == shortest)


def test_neighbours_are_boosted_depth_by_depth() -> None:
    edges = [edge("m0", "similar_to", "m1", weight=0.1), edge("m1", "caused_by", "m2"), edge("m0", "depends_on", "m3")]
    graph = StubGraph({f"m{n}": [] for n in range(4)}, edges)
    found = walk(graph, "m0", hops=2)
    assert boosts(found, 10) == pytest.approx({3: 0.45, 1: 0.05, 2: 0.375})
    assert [{*boosts(found, limit)} for limit in (0, 1, 2, 3)] == [set(), {3}, {1, 3}, {1, 2, 3}]
