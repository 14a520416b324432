"""Edges derived from memories: their effect on answers, and their removal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.embedded import Processed
from recallflow.state.verify import verify
from tests.unit.operators.harness import make_event, run_flow
from tests.unit.operators.test_apply import forget, found, history, message, outcomes, update
from tests.unit.operators.test_derived import LISBON, PORTO, fact, of

Event = tuple[str, dict[str, Any]]
Do = Callable[..., Processed]

MINUTE_MS = 60_000
OLD, NEW, CAT = message("old", LISBON), message("new", PORTO), message("cat", "My cat is called Tom")


@pytest.fixture
def do(tmp_path: Path) -> Do:
    """Run events (type, fields) a minute apart, each with a receipt, and check consistency."""

    def run(*events: Event) -> Processed:
        made = [
            make_event(kind, at * MINUTE_MS, **{"receipt": True} | fields) for at, (kind, fields) in enumerate(events)
        ]
        done = run_flow(made, tmp_path / "state")
        assert done.rejected == []
        assert verify(tmp_path / "state").problems == []
        return done

    return run


def between(source: str, target: str, kind: str = "supersedes", **fields: Any) -> Event:
    """An edge between two memories, derived from the first while the second was shown."""
    edge = {"source": f"memory:{source}", "target": f"memory:{target}", "type": kind, "evidence": source, **fields}
    return "graph.edges", {"edges": [edge], **of(source, None, target)}


def given(kind: str = "supersedes", **fields: Any) -> Event:
    """The same edge, as a platform gives it."""
    return "graph.edges", {"edges": [{"source": "memory:new", "target": "memory:old", "type": kind, **fields}]}


def asked(**fields: Any) -> Event:
    return "recall", {"query": "Where do I live?", **fields}


def answers(done: Processed) -> list[set[str]]:
    return [found(response) for response in done.responses]


BOTH = {"old", "new"}


def test_moved_person_has_a_new_residence_and_an_old_one(do: Do) -> None:
    done = do(
        OLD, CAT, NEW, between("new", "old"), asked(), asked(include_history=True),
        asked(as_of={"event_time": MINUTE_MS}), asked(as_of={"ingestion_time": 2 * MINUTE_MS}),
    )  # fmt: skip
    assert answers(done) == [{"new", "cat"}, {"old", "new", "cat"}, {"old", "cat"}, {"old", "new", "cat"}]


@pytest.mark.parametrize(
    "event",
    [
        forget(memory_id="new"),
        update("new", content="I may move to Porto"),
        update("old", content="I have always lived in Lisbon"),
        given(archived=True),
        ("graph.archive", {"edges": [{"source": "memory:new", "target": "memory:old", "type": "supersedes"}]}),
        ("graph.archive", {"entities": ["memory:new"]}),
    ],
    ids=["forgotten", "newer edited", "older edited", "archived edge", "archived", "archived memory"],
)
def test_undone_supersession_makes_the_memory_current(do: Do, event: Event) -> None:
    done = do(OLD, NEW, between("new", "old"), asked(), event, asked())
    assert "old" not in answers(done)[0]
    assert ("old" in answers(done)[1]) == (event[1].get("entities") is None)


def test_fact_is_current_again_after_its_successor_is_edited(do: Do) -> None:
    told = [
        OLD, fact("lisbon", "Ann lives in Lisbon", **of("old")), NEW,
        fact("porto", "Ann lives in Porto", **of("new")),
    ]  # fmt: skip
    done = do(*told, between("porto", "lisbon"), asked(), update("new", content="I dream of Porto"), asked())
    assert answers(done) == [{"old", "new", "porto"}, {"old", "new", "lisbon"}]


def test_undone_edge_stays_undone_when_derived_again(do: Do) -> None:
    done = do(OLD, NEW, between("new", "old"), given(archived=True), between("new", "old"), asked())
    assert answers(done) == [BOTH]


def test_derived_edges_do_not_change_given_ones(do: Do) -> None:
    done = do(OLD, NEW, given(confidence=0.5), between("new", "old", confidence=1.0), asked(), history("new"))
    assert found(done.responses[0]) == BOTH
    (edge,) = done.responses[1]["edges"]
    assert (edge["confidence"], edge["evidence"]) == (0.5, ["new"])


def test_given_edge_survives_the_edit_of_a_stating_memory(do: Do) -> None:
    done = do(OLD, NEW, given(), between("new", "old"), update("new", content="I moved to Porto last year"), asked())
    assert answers(done) == [{"new"}]


def test_contradiction_removes_nothing_from_an_answer(do: Do) -> None:
    done = do(OLD, CAT, NEW, between("new", "cat", "contradicts", confidence=0.6), asked())
    assert answers(done) == [{"old", "new", "cat"}]
    flags = {memory["id"]: memory.get("conflicts_with") for memory in done.responses[0]["memories"]}
    assert flags == {"old": None, "new": ["cat"], "cat": ["new"]}


@pytest.mark.parametrize(
    "event", [forget(memory_id="new"), update("new", content="Tea, always")], ids=["forgotten", "edited"]
)
@pytest.mark.parametrize(
    "edge",
    [
        {"source": "memory:new", "target": "time:morning", "type": "conditional_on"},
        {"source": "entity:Ann", "target": "entity:tea", "type": "likes"},
    ],
    ids=["condition", "relation"],
)
def test_forgotten_memory_takes_its_graph_data_along(do: Do, edge: dict[str, Any], event: Event) -> None:
    said = "graph.edges", {"edges": [edge], **of("new", "coffee")}
    explored = "graph.explore", {"nodes": [edge["target"]]}
    done = do(message("new", "coffee"), said, explored, event, explored)
    assert outcomes(done)[1] == "updated"
    before, after = done.responses
    assert [one["type"] for one in before["subgraph"]["edges"] if one["type"] == edge["type"]] == [edge["type"]]
    assert after["status"] == "error" or after["subgraph"]["edges"] == []


def test_edge_to_a_deleted_memory_is_no_error(do: Do) -> None:
    done = do(
        OLD, NEW, ("graph.edges", {"edges": [{"source": "new", "target": "tag:gone", "type": "about"}], **of("new")})
    )
    assert outcomes(done)[2:] == ["outdated"]


def test_evidence_is_deleted_with_its_memory(do: Do) -> None:
    edge = {"source": "new", "target": "old", "type": "supersedes", "evidence": "moved"}
    quoted = "graph.edges", {"edges": [edge], **of("cat", CAT[1]["content"])}
    done = do(OLD, NEW, CAT, given(), quoted, history("new"), forget(memory_id="cat"), history("new"))
    shown = [response["edges"][0].get("properties") for response in done.responses]
    assert shown == [{"evidence": "moved"}, {}]
