"""Edges: content, hiding, and the cost of keeping or dropping their past."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recallflow.operators import large
from recallflow.operators.graph import past
from recallflow.state.hot_graph import StagedGraphChanges
from recallflow.state.partition import Partition, Values
from tests.unit.operators.graph.engine import ask, rolled_out
from tests.unit.operators.harness import DAY_MS, MEMORIES, Harness, ids, make_event, run_flow

NAMES = "abcd"


@pytest.fixture
def remembered() -> list[dict[str, Any]]:
    """Four memories, one a second, in the order of their names."""
    texts = ["the gate opens at six", "the gate opens at seven", "the gate opens at eight", "the gate is painted green"]
    return [
        make_event("memory", 1_000 * n, id=name, content=text)
        for n, (name, text) in enumerate(zip(NAMES, texts, strict=True))
    ]


def edges(*pairs: str, kind: str = "supersedes", **fields: Any) -> dict[str, Any]:
    given = [{"source": one, "target": other, "type": kind, **fields} for one, other in map(list, pairs)]
    return make_event("graph.edges", 5_000, edges=given)


def found(*events: dict[str, Any], **settings: Any) -> dict[str, Any]:
    answer: dict[str, Any] = run_flow([*events], similarity_max_per_memory=0, **settings).responses[-1]
    return answer


@pytest.mark.parametrize(("confidence", "hidden"), [(1.0, True), (0.7, True), (0.69, False), (0.0, False)])
def test_uncertain_supersession_hides_nothing(
    confidence: float, hidden: bool, remembered: list[dict[str, Any]]
) -> None:
    sure, other = edges("ba"), edges("ba", confidence=confidence)
    asked = make_event("recall", DAY_MS, query="when does the gate open", k=4)
    answer = found(*remembered, sure, other, asked)
    assert sorted(ids(answer)) == [name for name in NAMES if name != "a" or not hidden]


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        (["ba"], "bcd"),
        (["ab"], "acd"),  # who says so knows better than the order
        (["ab", "ba"], "bcd"),
        (["ab", "bc", "ca"], "cd"),
        (["ab", "ba", "dc"], "bd"),
        (["ab", "ba", "cb"], "cd"),  # from outside the circle
        (["ab", "ba", "cd", "dc"], "bd"),
        (["ba", "cb", "dc"], "d"),
    ],
)
def test_newest_memory_of_a_supersession_cycle_stays(
    pairs: list[str], left: str, remembered: list[dict[str, Any]]
) -> None:
    asked = make_event("recall", DAY_MS, query="when does the gate open", k=4)
    answer = found(*remembered, edges(*pairs), asked)
    assert sorted(ids(answer)) == [*left]


@pytest.mark.parametrize("nothing", [{"weight": 0}, {"confidence": 0}])
def test_an_edge_without_weight_adds_nothing(nothing: dict[str, Any], remembered: list[dict[str, Any]]) -> None:
    given = [
        edges("da", kind="caused_by", **nothing),
        edges("ab", kind="caused_by"),
        make_event("graph.edges", 5_000, edges=[{"source": "d", "target": "entity:paint", "type": "about", **nothing}]),
        make_event("graph.edges", 5_000, edges=[{"source": "entity:paint", "target": "c", "type": "about"}]),
    ]
    asked = ask("who painted it green", k=1)
    answer = found(*remembered, *given, asked, decisions=rolled_out())
    assert ids(answer) == ["d"]
    trace = make_event("graph.trace", query="who painted it green", k=1)
    steps = found(*remembered, *given, trace)["graph_trace"]["steps"]
    outcomes = {step["target"]: step["outcome"] for step in steps}
    assert (outcomes["a"], outcomes["entity:paint"]) == ("edge without weight", "edge without weight")


def test_inactive_edge_is_shown_with_the_reason() -> None:
    told = [
        make_event("memory", id="old", content="old", tags=["x"], expires_at=DAY_MS),
        make_event("memory", id="ahead", content="ahead", tags=["x"], valid_from=3 * DAY_MS),
        make_event("memory", id="past", content="past", tags=["x"], valid_to=DAY_MS),
        make_event("memory", id="now", content="now", tags=["x"]),
        make_event("memory", id="new", content="new", tags=["x"]),
        make_event("graph.edges", edges=[{"source": "new", "target": "now", "type": "supersedes"}]),
        make_event("graph.edges", edges=[{"source": "old", "target": "now", "type": "y", "expires_at": DAY_MS}]),
        make_event("graph.archive", entities=["new"]),
    ]
    subgraph = found(*told, make_event("graph.explore", 2 * DAY_MS, nodes=["tag:x"]))["subgraph"]
    assert {memory["id"]: memory["marks"] for memory in subgraph["memories"]} == {
        "old": ["expired"], "ahead": ["not_yet_valid"], "past": ["expired"], "now": ["superseded"],
        "new": ["archived"],
    }  # fmt: skip
    subgraph = found(*told, make_event("graph.explore", 2 * DAY_MS, nodes=["now"]))["subgraph"]
    assert {edge["type"]: edge["marks"] for edge in subgraph["edges"]} == {"supersedes": [], "y": ["expired"]}


def test_memory_id_equal_to_a_node_has_its_own_key() -> None:
    told = [
        make_event("memory", id="tag:tea", content="about tea", tags=["tea"]),
        make_event("memory", id="m", content="more about tea", tags=["tea"]),
        make_event("graph.edges", edges=[{"source": "m", "target": "memory:tag:tea", "type": "caused_by"}]),
    ]
    subgraph = found(*told, make_event("graph.explore", nodes=["tag:tea"], hops=2))["subgraph"]
    keys = [node["key"] for node in subgraph["nodes"]]
    assert len(keys) == len(set(keys))
    assert {"tag:tea", "memory:tag:tea", "m"} <= {*keys}
    (edge,) = subgraph["edges"]
    assert (edge["source"], edge["target"]) == ("m", "memory:tag:tea")
    assert {memory["id"]: memory["key"] for memory in subgraph["memories"]} == {"tag:tea": "memory:tag:tea", "m": "m"}
    assert ("memory:tag:tea", "tag:tea") in {(link["memory"], link["node"]) for link in subgraph["links"]}
    (node,) = found(*told, make_event("graph.explore", nodes=["memory:tag:tea"]))["subgraph"]["nodes"][:1]
    assert (node["key"], node["kind"]) == ("memory:tag:tea", "memory")


def test_expired_supersession_hides_no_longer(remembered: list[dict[str, Any]]) -> None:
    given = edges("ba", expires_at=7_000)
    asked = [make_event("recall", at, query="when does the gate open", k=4) for at in (6_999, 7_000)]
    before, after = run_flow([*remembered, given, *asked]).responses
    assert {*ids(after)} - {*ids(before)} == {"a"}


SHARE = 200
RECORDS_A_LINK = 4  # at most: the records that a step changes for each link of its share
WITNESSES, EDGES, VERSIONS, TAGS = 4, 60, 12, 20
FORGET: tuple[str, dict[str, Any]] = ("memory.forget", {"memory_id": "hub"})
UPDATE: tuple[str, dict[str, Any]] = ("memory.update", {"memory_id": "w0", "content": "and nothing else"})


class Looked(dict[bytes, bytes | None]):
    """The records read by an event; `all`: by every event so far."""

    all: list["Looked"] = []

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.all.append(self)

    def __iter__(self) -> Iterator[bytes]:
        self.count += len(self)
        return super().__iter__()

    def items(self) -> Any:
        self.count += len(self)
        return super().items()


@pytest.fixture
def said() -> list[dict[str, Any]]:
    """A memory that had very many edges, and has some; each version had other tags."""
    told = [make_event("memory", id=f"w{n}", content=f"witness {n}") for n in range(WITNESSES)]
    told.append(make_event("memory", id="hub", content="the hub"))
    for witness in range(WITNESSES):
        edges = [
            {"source": "hub", "target": f"entity:E{witness} {n}", "type": "about", "evidence": f"w{witness}"}
            for n in range(EDGES)
        ]
        told.append(make_event("graph.edges", edges=edges))
    told += [make_event("memory.update", memory_id=f"w{n}", content="else") for n in range(1, WITNESSES)]
    for version in range(VERSIONS):
        tags = [f"{version} {n}" for n in range(TAGS)]
        told.append(make_event("memory.update", memory_id="hub", content=f"the hub {version}", tags=tags))
    return told


def test_forget_step_changes_a_bounded_share_of_a_past(
    open_harness: Callable[[], Harness], said: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stepped = open_harness(), open_harness()
    whole.run(MEMORIES, *said, make_event(FORGET[0], **FORGET[1]))
    stepped.run(MEMORIES, *said)
    changed: list[int] = []
    stage = Partition.stage

    def counted(partition: Partition, values: Values, *rest: Any) -> None:
        changed.append(len(values))
        stage(partition, values, *rest)

    monkeypatch.setattr(Partition, "stage", counted)
    monkeypatch.setattr(large, "STEP_WEIGHT", SHARE)
    stepped.run(MEMORIES, make_event(FORGET[0], **FORGET[1]))
    stepped.advance_to_end()
    assert max(changed) < RECORDS_A_LINK * SHARE < sum(changed)
    assert stepped.hash() == whole.hash()
    assert stepped.problems() == []


@pytest.mark.parametrize(("kind", "fields"), [UPDATE, FORGET], ids=str)
def test_staged_records_are_not_scanned_per_edge(
    open_harness: Callable[[], Harness], said: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kind: str,
    fields: dict[str, Any],
) -> None:  # fmt: skip
    harness = open_harness()
    harness.run(MEMORIES, *said)
    monkeypatch.setattr(Looked, "all", [])
    monkeypatch.setattr(past, "StagedGraphChanges", lambda: StagedGraphChanges(effects=Looked()))
    harness.run(MEMORIES, make_event(kind, **fields))
    harness.advance_to_end()
    largest = max(Looked.all, key=len)
    assert len(largest) > EDGES
    assert largest.count <= 5 * len(largest)
