"""The bundled conversations and questions are what the demo and the engine take them for."""

import pytest
from pydantic import TypeAdapter

from recallflow.events import Event, MemoryEvent
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
