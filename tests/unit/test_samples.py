"""The bundled conversations and questions are what the demo and the engine take them for."""

import pytest
from pydantic import TypeAdapter

from recallflow.events import Event, MemoryAdd, MemoryEvent, MemoryForget, MemoryUpdate, Message
from recallflow.queries import Recall
from recallflow.samples import sample_path, sample_questions


@pytest.fixture(scope="module")
def events() -> list[Event]:
    adapter: TypeAdapter[Event] = TypeAdapter(MemoryEvent)
    return [adapter.validate_json(line) for line in sample_path("conversations.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def questions() -> list[Recall]:
    adapter = TypeAdapter(Recall)
    return [adapter.validate_python(question.query) for question in sample_questions()]


def test_no_field_is_misspelt(events: list[Event], questions: list[Recall]) -> None:
    assert [event.id for event in [*events, *questions] if event.model_extra] == []


def test_events_are_in_time_order_before_the_questions(events: list[Event], questions: list[Recall]) -> None:
    times = [event.timestamp for event in events if event.timestamp is not None]
    assert len(times) == len(events)
    assert times == sorted(times)
    assert all(question.timestamp is not None and question.timestamp > times[-1] for question in questions)


def test_events_and_questions_have_the_same_owners(events: list[Event], questions: list[Recall]) -> None:
    owners = {("demo", "maya"), ("demo", "team-atlas"), ("demo", "theo")}
    assert {(event.tenant_id, event.user_id) for event in events} == owners
    assert {(question.tenant_id, question.user_id) for question in questions} == owners


def test_changes_name_an_earlier_memory_of_the_same_user(events: list[Event]) -> None:
    known: set[tuple[str, str | None]] = set()
    changes = 0
    for event in events:
        if isinstance(event, Message | MemoryAdd):
            known.add((event.user_id, event.id))
        elif isinstance(event, MemoryUpdate | MemoryForget):
            changes += 1
            assert (event.user_id, event.memory_id) in known
    assert changes == 2


def test_a_question_expects_memories_of_its_own_user(events: list[Event]) -> None:
    forgotten = {event.memory_id for event in events if isinstance(event, MemoryForget)}
    memories = {(e.user_id, e.id) for e in events if isinstance(e, Message | MemoryAdd) and e.id not in forgotten}
    for question in sample_questions():
        assert question.note
        assert {(question.query["user_id"], memory_id) for memory_id in question.expect} <= memories
