"""What events ask the enrichment flow for."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from recallflow.control import Category
from recallflow.decisions import History
from recallflow.enrichment import EnrichmentRequest, content_hash
from recallflow.operators.enrichment.requests import MEMORY
from recallflow.operators.enrichment.wanted import Wanted
from recallflow.outputs import Output, Requested
from tests.unit.operators.harness import MEMORIES, Harness

ALL = Wanted(relationships=True, facts=True, categories=True, summaries=True)
LONG = "My sister Ana visits us in Lisbon on Friday."


def requests(outputs: Iterable[Output]) -> list[EnrichmentRequest]:
    found = [output for output in outputs if isinstance(output, Requested)]
    parsed = [EnrichmentRequest.model_validate_json(output.body) for output in found]
    assert [tuple(one.tasks) for one in parsed] == [output.tasks for output in found]
    return parsed


def message(number: int, content: str | None = LONG, **fields: Any) -> dict[str, Any]:
    known = {"type": "message", "id": f"m{number}", "tenant_id": "acme", "user_id": "ann", "session_id": "s"}
    return {**known, "role": "user", "timestamp": 1_700_000_000_000 + number, "content": content, **fields}


def memory(number: int, content: str = LONG, **fields: Any) -> dict[str, Any]:
    known = {"type": "memory", "id": f"m{number}", "tenant_id": "acme", "user_id": "ann", "session_id": "s"}
    return {**known, "timestamp": 1_700_000_000_000 + number, "content": content, **fields}


@pytest.fixture
def make(tmp_path: Path) -> Iterable[Callable[..., Harness]]:
    made: list[Harness] = []

    def start(wanted: Wanted | None = ALL, **rules: Any) -> Harness:
        made.append(Harness(tmp_path / str(len(made)), rules={"wanted": wanted, **rules}))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_a_message_is_asked_about_with_what_was_said_before(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0, "Hello!"), message(1, "Who is there?", role="assistant"))
    (output,) = (one for one in engine.run(MEMORIES, message(2)) if isinstance(one, Requested))
    assert (output.number, output.key, str(output.position)) == (MEMORY, b"acme/ann", "memories:0:2")
    (request,) = requests([output])
    assert request.tasks == ["extract", "facts"]
    assert (request.tenant_id, request.user_id, request.session_id) == ("acme", "ann", "s")
    assert (request.source, request.timestamp) == ("memories:0:2", 2)
    (own,) = request.memories
    assert (own.memory_id, own.content, own.content_hash) == ("m2", LONG, content_hash(LONG))
    assert (own.kind, own.role, own.created_at) == ("message", "user", 1_700_000_000_002)
    assert [(one.memory_id, one.content) for one in request.recent] == [("m1", "Who is there?"), ("m0", "Hello!")]


def test_what_is_recent_is_of_the_session_first_and_then_of_the_owner(make: Callable[..., Harness]) -> None:
    engine = make(ALL._replace(recent=3))
    engine.run(MEMORIES, message(0), message(1))
    engine.run(MEMORIES, *(message(number, session_id="other") for number in range(2, 6)))
    (request,) = requests(engine.run(MEMORIES, message(6)))
    assert [one.memory_id for one in request.recent] == ["m1", "m0", "m5"]


@pytest.mark.parametrize(
    ("event", "tasks"),
    [
        (message(0, "I'm vegan"), ["facts"]),  # too short to be read for relations
        (message(0, role="assistant"), ["extract", "facts"]),
        (message(0, role="tool"), ["extract"]),
        (message(0, role="tool", name="Ana"), ["extract", "facts"]),
        (message(0, role="system"), ["extract"]),
        (memory(0), ["extract"]),
        (message(0, " "), []),
        (message(0, None, role="assistant"), []),
        (memory(0, derived_from={"memory_id": "x", "content_hash": "h"}), []),
    ],
)
def test_what_an_event_asks_for(make: Callable[..., Harness], event: dict[str, Any], tasks: list[str]) -> None:
    assert [task for request in requests(make().run(MEMORIES, event)) for task in request.tasks] == tasks


def test_what_is_not_wanted_is_not_asked_for(make: Callable[..., Harness]) -> None:
    assert requests(make(None).run(MEMORIES, message(0))) == []
    assert requests(make(Wanted(summaries=True)).run(MEMORIES, message(0))) == []
    (request,) = requests(make(Wanted(facts=True)).run(MEMORIES, message(0)))
    assert request.tasks == ["facts"]


def test_an_update_asks_where_the_text_is_another(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0))
    update = {"type": "memory.update", "tenant_id": "acme", "user_id": "ann", "memory_id": "m0"}
    assert requests(engine.run(MEMORIES, {**update, "category": "family"})) == []
    assert requests(engine.run(MEMORIES, {**update, "content": LONG})) == []
    (request,) = requests(engine.run(MEMORIES, {**update, "content": LONG.upper()}))
    assert (request.tasks, request.memories[0].content) == (["extract", "facts"], LONG.upper())
    assert request.recent == []


def test_a_memory_without_category_asks_for_one_where_the_tenant_has_any(make: Callable[..., Harness]) -> None:
    decisions = History()
    for at_ms, name, removed in ((1, "family", False), (3, "family", True)):
        event = Category(type="category", tenant_id="acme", name=name, description="Kin.", removed=removed)
        decisions.add(at_ms, event)
    engine = make(Wanted(categories=True), decisions=decisions)
    found = [
        requests(engine.run(MEMORIES, event)) for event in (memory(0), memory(1), memory(2, category="x"), memory(3))
    ]
    assert [[one.tasks for one in each] for each in found] == [[], [["categorise"]], [], []]


def test_a_repeated_event_and_a_silent_one_ask_for_nothing(make: Callable[..., Harness]) -> None:
    engine = make()
    assert requests(engine.run(MEMORIES, message(0), silent=True)) == []
    assert requests(engine.run(MEMORIES, message(0))) == []
    assert len(requests(engine.run(MEMORIES, message(1)))) == 1


def test_an_applied_event_that_comes_again_puts_out_the_very_request(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.write(MEMORIES, *(message(number, f"{LONG} {number}", receipt=True) for number in range(3)))
    first = engine.read(MEMORIES)
    engine.kill()
    assert engine.read(MEMORIES) == first
    assert len(requests(first)) == 3


def test_what_was_kept_is_not_put_out_where_nobody_reads_it_any_more(make: Callable[..., Harness]) -> None:
    engine = make()
    engine.run(MEMORIES, message(0))
    engine.restart(wanted=None)
    engine.rewind(MEMORIES)
    assert requests(engine.read(MEMORIES)) == []


def test_requests_are_no_part_of_the_state(make: Callable[..., Harness]) -> None:
    on, off = make(), make(None)
    for engine in (on, off):
        engine.run(MEMORIES, *(message(number, f"{LONG} {number}") for number in range(5)))
    assert on.hash() == off.hash()


def test_where_our_own_code_fails_the_memory_is_stored(
    make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    monkeypatch.setattr("recallflow.operators.writes.requests", lambda *_: 1 / 0)
    assert requests(engine.run(MEMORIES, message(0))) == []
    monkeypatch.undo()
    (request,) = requests(engine.run(MEMORIES, message(1)))
    assert [one.memory_id for one in request.recent] == ["m0"]
