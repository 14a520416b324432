"""The step of the enrichment flow that reads records."""

from typing import Any

import orjson
import pytest

from recallflow.flows.engine_metrics import Stages
from recallflow.flows.enrich import RequestReader
from recallflow.flows.record_spans import RecordSpans
from recallflow.outputs import DeadLetter, Derived, Done
from recallflow.records import Position, Record

OWNER = {"tenant_id": "acme", "user_id": "ann", "environment": "prod"}
EVENT = OWNER | {"type": "memory.update", "memory_id": "m", "category": "travel"}


def result(**events: Any) -> Record:
    said = OWNER | {"type": "enrichment.result", "request": "enrichment.requests:0:1", "source": "memory.events:0:1"}
    value = orjson.dumps(said | {"memory_id": "m", "events": [EVENT, EVENT | events]})
    return Record(Position("enrichment.results", 0, 7), value, 0)


def read(record: Record, *, answered: bool = False) -> list[type]:
    spans = RecordSpans(Stages(("enrichment.requests", "enrichment.results")))
    ((key, outputs),) = RequestReader("enrichment.requests", lambda _: answered, spans)([record])
    assert key == "000"
    assert isinstance(outputs, tuple)
    return [type(output) for output in outputs]


@pytest.mark.parametrize("field", OWNER)
def test_a_result_changes_its_own_owners_memory_alone(field: str) -> None:
    """A result is sent as a whole or not at all."""
    assert (read(result()), read(result(**{field: "another"}))) == ([Derived, Derived, Done], [DeadLetter, Done])


def test_an_answered_request_is_done_without_output() -> None:
    invalid = Record(Position("enrichment.requests", 0, 7), b"no JSON", 0)
    assert (read(invalid), read(invalid, answered=True)) == ([DeadLetter, Done], [Done])
