"""Edges derived from memories: their effect on answers, and their removal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallflow.flows.embedded import Processed
from recallflow.state.verify import verify
from tests.unit.operators.harness import MINUTE_MS, make_event, run_flow
from tests.unit.operators.test_apply import forget, found, history, message, update
from tests.unit.operators.test_derived import LISBON, PORTO, of

Event = tuple[str, dict[str, Any]]
Do = Callable[..., Processed]

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


@pytest.mark.parametrize(
    "event",
    [
        forget(memory_id="new"), update("new", content="I may move to Porto"),
        update("old", content="I have always lived in Lisbon"), given(archived=True),
        ("graph.archive", {"edges": [{"source": "memory:new", "target": "memory:old", "type": "supersedes"}]}),
        ("graph.archive", {"entities": ["memory:new"]}),
    ],
    ids=["forgotten", "newer edited", "older edited", "archived edge", "archived", "archived memory"],
)  # fmt: skip
def test_undone_supersession_makes_the_memory_current(do: Do, event: Event) -> None:
    done = do(OLD, NEW, between("new", "old"), asked(), event, asked())
    assert "old" not in answers(done)[0]
    assert ("old" in answers(done)[1]) == (event[1].get("entities") is None)


def test_undone_edge_stays_undone_when_derived_again(do: Do) -> None:
    done = do(OLD, NEW, between("new", "old"), given(archived=True), between("new", "old"), asked())
    assert answers(done) == [BOTH]


def test_evidence_is_deleted_with_its_memory(do: Do) -> None:
    edge = {"source": "new", "target": "old", "type": "supersedes", "evidence": "moved"}
    quoted = "graph.edges", {"edges": [edge], **of("cat", CAT[1]["content"])}
    done = do(OLD, NEW, CAT, given(), quoted, history("new"), forget(memory_id="cat"), history("new"))
    shown = [response["edges"][0].get("properties") for response in done.responses]
    assert shown == [{"evidence": "moved"}, {}]
