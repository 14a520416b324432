"""Pages of memories and of the graph: together they are complete, also under concurrent changes."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow import limits
from recallflow.operators.answers import explore as whole
from tests.groups import share
from tests.unit.operators.harness import MEMORIES, MINUTE_MS, QUERIES, Harness, answers

Event = dict[str, Any]

ANN = {"tenant_id": "acme", "user_id": "ann"}
IDS = [f"m{number}" for number in range(8)]
CURSOR = "m:1:" + "x" * 300
NAMES = ["Ana Cruz", "Porto", "tea", "Mr Cruz", "Leeds"]


def ask(engine: Harness, **fields: Any) -> Event:
    asked = ANN | {"id": "q", "timestamp": 100 * MINUTE_MS} | fields
    outputs = engine.run(QUERIES, asked, append_ms=100 * MINUTE_MS)
    (answer,) = answers([*outputs, *engine.advance_to_end()])
    return answer


def told(engine: Harness, at: int, *events: Event) -> None:
    for event in events:
        engine.run(MEMORIES, ANN | {"timestamp": at * MINUTE_MS} | event, append_ms=at * MINUTE_MS)
        engine.advance_to_end()


def pages_of(engine: Harness, part: str, **fields: Any) -> Iterator[Event]:
    after = None
    while True:
        answer = ask(engine, **fields, **({} if after is None else {"after": after}))
        assert answer["status"] == "ok", answer
        yield answer[part]
        after = answer[part]["after"]
        if after is None:
            return


def listed(engine: Harness, **fields: Any) -> list[str]:
    found = pages_of(engine, "memory_page", type="memories.list", **fields)
    return [memory["id"] for page in found for memory in page["memories"]]


@pytest.fixture
def engine(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "state")


AT = st.integers(0, 5)


@st.composite
def change(draw: st.DrawFn) -> Event:
    memory_id, at = draw(st.sampled_from(IDS)), draw(AT) * MINUTE_MS
    kind = draw(st.sampled_from(["memory", "memory", "memory.update", "memory.forget"]))
    if kind == "memory":
        return {"type": kind, "id": memory_id, "content": f"What {memory_id} says", "timestamp": at}
    changed = {"content": "Other words", "timestamp": at} if kind == "memory.update" else {}
    return {"type": kind, "memory_id": memory_id} | changed


@settings(max_examples=share(0.5))
@given(
    before=st.lists(change(), max_size=12), between=st.lists(st.lists(change(), max_size=3), max_size=8),
    limit=st.integers(1, 4),
)  # fmt: skip
def test_each_memory_is_on_one_page(before: list[Event], between: list[list[Event]], limit: int) -> None:
    with TemporaryDirectory() as folder:
        engine = Harness(Path(folder) / "state")

        def there() -> set[str]:
            return {one for one in IDS if ask(engine, type="memory.get", memory_id=one)["status"] == "ok"}

        told(engine, 0, *before)
        always, ever, found = there(), there(), list[Event]()
        changes = iter(between)
        for page in pages_of(engine, "memory_page", type="memories.list", limit=limit):
            assert len(page["memories"]) <= limit
            found += page["memories"]
            told(engine, 0, *next(changes, []))
            always &= there()
            ever |= there()
        ids = [one["id"] for one in found]
        assert len(ids) == len({*ids})
        assert always <= {*ids} <= ever
        times = [one["created_at"] for one in found]
        assert times == sorted(times, reverse=True)
        engine.stop()


def test_list_filters_are_those_of_recall_and_hidden_ones_marked(engine: Harness) -> None:
    told(
        engine,
        1,
        {"type": "memory", "id": "old", "content": "She lives in Porto", "kind": "fact", "tags": ["home"]},
        {"type": "memory", "id": "gone", "content": "A ticket", "kind": "note", "tags": ["home"]}
            | {"expires_at": 2 * MINUTE_MS},
        {"type": "message", "id": "said", "content": "The kettle is broken", "session_id": "s", "project_id": "p"},
        {
            "type": "memory", "id": "new", "content": "She lives in Leeds", "kind": "fact", "metadata": {"from": "x"},
        },
        {"type": "graph.edges", "edges": [{"source": "new", "type": "supersedes", "target": "old"}]},
    )  # fmt: skip
    (page,) = pages_of(engine, "memory_page", type="memories.list")
    marks = {one["id"]: one["marks"] for one in page["memories"]}
    assert marks == {"new": [], "said": [], "gone": ["expired"], "old": ["superseded"]}
    assert page["memories"][0]["metadata"] == {"from": "x"}
    assert listed(engine, filters={"kinds": ["fact"]}) == ["new", "old"]
    assert listed(engine, filters={"not": {"tags": ["home"]}, "session_ids": ["s"]}) == ["said"]
    assert listed(engine, filters={"metadata": {"from": "x"}}) == ["new"]
    assert listed(engine, project_id="p") == ["said"]


@pytest.mark.parametrize("kind", ["memories.list", "graph.explore"])
def test_page_has_a_byte_limit_and_large_memories_their_own(engine: Harness, kind: str) -> None:
    part = "memory_page" if kind == "memories.list" else "subgraph"
    long = "The ferry leaves at nine. " * 6_000
    told(engine, 1, *({"type": "memory", "id": one, "content": f"{one}: {long}"} for one in IDS))
    told(engine, 2, {"type": "memory", "id": "giant", "content": "x" * (limits.PAGE_BYTES + 1)})
    found = list(pages_of(engine, part, type=kind, **({"whole": True} if part == "subgraph" else {})))
    assert [memory["id"] for page in found for memory in page["memories"]] == ["giant", *reversed(IDS)]
    assert [len(page["memories"]) for page in found if page["memories"]] == [1, 3, 3, 2]
    for page in found[1:]:
        assert len(orjson.dumps(page)) < limits.RECORD_BYTES


@st.composite
def related(draw: st.DrawFn) -> Event:
    memory_id = draw(st.sampled_from(IDS))
    kind = draw(st.sampled_from([*["memory"] * 4, "memory.update", "memory.forget", "graph.edges", "graph.archive"]))
    end = st.sampled_from([f"entity:{name.lower()}" for name in NAMES] * 2 + IDS)
    edge = st.fixed_dictionaries(
        {"source": end, "target": end, "type": st.sampled_from(["likes", "lives_in", "same_as", "contradicts"])}
    )
    match kind:
        case "memory":
            entities = [{"name": name} for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))]
            words = draw(st.sampled_from(["The ferry leaves at nine", "The kettle is broken", "Tea for two"]))
            people = st.sampled_from(NAMES)
            apart = st.lists(people, min_size=2, max_size=2, unique=True)
            related_so = st.lists(st.tuples(apart, st.sampled_from(["likes", "same_as"])), max_size=2)
            relations = [{"source": a, "target": b, "type": t} for (a, b), t in draw(related_so)]
            return {"type": kind, "id": memory_id, "content": words, "entities": entities, "relations": relations}
        case "memory.update":
            return {"type": kind, "memory_id": memory_id, "content": draw(st.sampled_from(NAMES)), "tags": ["new"]}
        case "memory.forget":
            return {"type": kind, "memory_id": memory_id}
        case "graph.edges":
            given = draw(edge.filter(lambda one: one["source"] != one["target"]))
            evidence = draw(st.sampled_from([None, memory_id]))
            said = {"confidence": 1.0, "weight": 0.5} | ({} if evidence is None else {"evidence": evidence})
            return {"type": kind, "edges": [given | said]}
    return {"type": "graph.archive", "entities": [draw(st.sampled_from(NAMES))]}


def parts(subgraphs: list[Event]) -> dict[str, dict[str, Event]]:
    found: dict[str, dict[str, Event]] = {"nodes": {}, "edges": {}, "links": {}, "memories": {}}
    for subgraph in subgraphs:
        for name, of_kind in found.items():
            for one in subgraph[name]:
                shown = {key: value for key, value in one.items() if key not in ("hops", "centrality", "expanded")}
                ends = (
                    sorted((one["source"], one["target"])) if one.get("type") in ("similar_to", "contradicts") else []
                )
                if ends:
                    shown["source"], shown["target"] = ends
                own = [shown.get(key) for key in ("id", "key", "source", "target", "type", "memory", "node", "role")]
                of_kind[orjson.dumps(own).decode()] = shown
    return found


@settings(max_examples=share(0.5))
@given(
    events=st.lists(related(), max_size=16), limit=st.integers(1, 3),
    as_of=st.sampled_from([None, {"event_time": 6 * MINUTE_MS}, {"ingestion_time": 9 * MINUTE_MS}]),
)  # fmt: skip
def test_all_pages_are_the_whole_graph(events: list[Event], limit: int, as_of: Event | None) -> None:
    then = {} if as_of is None else {"as_of": as_of}
    with TemporaryDirectory() as folder:
        engine = Harness(Path(folder) / "state")
        for number, event in enumerate(events):
            told(engine, number, event)
        found = parts([*pages_of(engine, "subgraph", type="graph.explore", whole=True, limit=limit, **then)])
        around = []
        for name in (*IDS, *NAMES, "tag:new", "type:memory"):
            answer = ask(engine, type="graph.explore", nodes=[name], hops=3, **then)
            around += [] if answer["status"] == "error" else [answer["subgraph"]]
        expected = parts(around)
        # Nobody walks through archived nodes: an edge between two of them is in no neighbourhood.
        archived = {node["key"] for node in found["nodes"].values() if node["archived"]}
        edges = {own: edge for own, edge in found["edges"].items() if not {edge["source"], edge["target"]} <= archived}
        found["edges"] = edges
        for kind, every in expected.items():
            assert found[kind] == every, kind
        engine.stop()


def test_a_cursor_of_a_state_that_is_gone_is_refused(engine: Harness, tmp_path: Path) -> None:
    edges = [{"source": f"entity:{one}", "target": "entity:porto", "type": "lives_in"} for one in ("Ann", "Bo", "Cy")]
    told(engine, 1, {"type": "graph.edges", "edges": edges})
    *_, cut = (page["after"] for page in pages_of(engine, "subgraph", type="graph.explore", whole=True, limit=1))
    first = ask(engine, type="graph.explore", whole=True, limit=1, after="e:")["subgraph"]["after"]
    assert cut is None
    other = Harness(tmp_path / "other")
    told(other, 1, {"type": "graph.edges", "edges": edges})
    refused = ask(other, type="graph.explore", whole=True, limit=1, after=first)["error"]
    assert refused["fields"][0]["field"] == "after"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"whole": True, "nodes": ["m1"]}, "nodes"), ({"whole": True, "hops": 2}, "hops"), ({"after": "e:"}, "after"),
        ({"limit": 5}, "limit"), ({"whole": True, "after": "elsewhere"}, "after"),
        *(({"type": "memories.list", "after": cursor}, "after") for cursor in ("", "m:1", "m:x:y", "5", "e:", CURSOR)),
    ],
)  # fmt: skip
def test_invalid_cursor_or_part_of_a_page_is_refused(engine: Harness, fields: Event, wrong: str) -> None:
    refused = ask(engine, **{"type": "graph.explore"} | fields)["error"]
    assert (refused["code"], [one["field"] for one in refused["fields"]]) == ("invalid_event", [wrong])


def test_page_reads_a_bounded_number_of_names(engine: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "PAIRS_MAX", 10)
    names = {"Ann": [f"Ann {n}" for n in range(5)], "Porto": [f"Porto {n}" for n in range(5)]}
    entities = [{"name": name, "aliases": aliases} for name, aliases in names.items()]
    told(engine, 1, {"type": "memory", "id": "m1", "content": "Ann lives in Porto", "entities": entities})
    kinds = [f"kind_{n}" for n in range(6)]
    edges = [{"source": "entity:ann 1", "target": "entity:porto 1", "type": kind} for kind in kinds]
    told(engine, 2, {"type": "graph.edges", "edges": edges})
    found = [*pages_of(engine, "subgraph", type="graph.explore", whole=True, limit=100)]
    assert len(found) > 3
    every = parts(found)["edges"].values()
    assert sorted(edge["type"] for edge in every if edge["type"] in kinds) == kinds
    assert {(edge["source"], edge["target"]) for edge in every if edge["type"] in kinds} == {
        ("entity:ann", "entity:porto")
    }
