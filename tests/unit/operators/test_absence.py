"""While a partition catches up no answer claims absence: it waits, and then reports `catching_up`."""

from pathlib import Path
from typing import Any, get_args

import pytest

from recallflow.operators.answers import parked_queries
from recallflow.operators.answers.parked_queries import HELD_BYTES_EACH
from recallflow.operators.step import Clocks
from recallflow.queries import QueryEvent
from recallflow.records import Barrier
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, codes, make_event

TIMEOUT_MS = 2_000
ASKED: dict[str, dict[str, Any]] = {
    "recall": {"query": "walnut"}, "memory.get": {"memory_id": "m"}, "memory.history": {"memory_id": "m"},
    "memories.list": {}, "episodes.list": {}, "graph.status": {}, "graph.trace": {"query": "walnut"},
    "graph.explore": {"nodes": ["m"]}, "graph.facts": {"entities": ["m"]}, "user.stats": {},
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "graph.explore": {"whole": True}, "graph.facts": {"query": "walnut"},
    "memories.list": {"filters": {"tags": ["walnut"]}}, "recall": {"query": "walnut", "as_of": {"event_time": 0}},
}  # fmt: skip
EVERY = [*ASKED.items(), *MORE.items()]
RELATION = make_event("graph.edges", 2, edges=[{"source": "m", "target": "n", "type": "walnut"}])
TOLD = make_event("memory", 1, id="m", content="Ann works at Walnut", tags=["walnut"], entities=[{"name": "Walnut"}])


class Engine(Harness):
    """A partition that is behind its log until the test says otherwise."""

    def __init__(self, path: Path) -> None:
        self.behind, self.now_ms = "12 memory records remain", 0
        clocks = Clocks(timer=lambda: 0.0, now_ms=lambda: self.now_ms)
        super().__init__(path, clocks=clocks, behind=lambda _: self.behind, append_ms=lambda _: 10)

    def ask(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        found = answers(self.run(QUERIES, make_event(kind, 10, **fields)))
        return found + answers(self.advance_to_now())

    def advance_to_now(self) -> list[Any]:
        """Call the partition as often as it is due by now."""
        outputs: list[Any] = []
        while (due_ms := self._step.due_ms()) is not None and due_ms <= self.now_ms:
            outputs += self.advance()
        return outputs

    def open_queries(self) -> tuple[int, ...]:
        return self._step.begin_sync(Barrier(0, 0)).pending.get(f"{QUERIES}:0", ())

    def pass_time(self, ms: int) -> list[dict[str, Any]]:
        self.now_ms += ms
        return answers(self.advance_to_now())


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "state")


def test_every_kind_of_query_has_a_case() -> None:
    kinds = {get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(get_args(QueryEvent)[0])}
    assert kinds == {*ASKED}


@pytest.mark.parametrize(("kind", "fields"), EVERY)
def test_absence_waits_and_then_is_catching_up(engine: Engine, kind: str, fields: dict[str, Any]) -> None:
    assert engine.ask(kind, **fields) == []
    assert engine.pass_time(TIMEOUT_MS - 1) == []
    (answer,) = engine.pass_time(1)
    assert (answer["status"], answer["error"]["code"], codes(answer)) == ("error", "catching_up", ["catching_up"])
    assert not engine.is_due


@pytest.mark.parametrize(("kind", "fields"), EVERY)
def test_waiting_query_is_answered_once_caught_up(engine: Engine, kind: str, fields: dict[str, Any]) -> None:
    assert engine.ask(kind, **fields) == []
    engine.behind = ""
    (answer,) = engine.pass_time(parked_queries.CATCH_UP_CHECK_MS)
    code = answer.get("error", {}).get("code")
    assert (answer["status"], code) in {("ok", None), ("error", "not_found")}


@pytest.mark.parametrize(("kind", "fields"), [one for one in EVERY if one[1].get("as_of") is None])
def test_found_memories_are_answered_immediately(engine: Engine, kind: str, fields: dict[str, Any]) -> None:
    engine.run(MEMORIES, TOLD, make_event("message", 1, id="n", session_id="s", content="A walnut"), RELATION)
    (answer,) = engine.ask(kind, **fields)
    assert (answer["status"], "catching_up" in codes(answer)) == ("degraded", True)


def test_too_many_waiting_queries_are_answered_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_queries, "HELD_BYTES_MAX", 2 * HELD_BYTES_EACH + 500)
    found = [engine.ask("memory.get", memory_id="m") for _ in range(3)]
    assert [[one["error"]["code"] for one in answer] for answer in found] == [[], [], ["catching_up"]]
    assert len(engine.pass_time(TIMEOUT_MS)) == 2
    assert engine.ask("memory.get", memory_id="m") == []


def test_waiting_query_is_open_for_the_next_owner(engine: Engine) -> None:
    engine.ask("memory.get", memory_id="m")
    assert engine.open_queries() == (0,)
    engine.pass_time(TIMEOUT_MS)
    assert engine.open_queries() == ()
