"""Samples, and the conversations of the recall benchmarks."""

import pytest
from pydantic import TypeAdapter

from benchmarks.kinds import KINDS, load
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


@pytest.mark.models
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_loads_with_evidence_among_its_turns(kind: str) -> None:
    conversations = load(kind)
    asked_of = [(one, question) for one in conversations for question in one.questions]
    expected = {"locomo": 505, "assistant": 100, "assistant_long": 120, "group": 538, "chinese": 320, "mixed": 1043}
    assert len(asked_of) == expected.get(kind, len(asked_of)) > 0
    assert all(question.evidence & {turn.id for turn in one.turns} for one, question in asked_of)
