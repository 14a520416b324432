"""What the enrichment flow makes of results that it reads."""

from typing import Any

import orjson
import pytest

from recallflow.flows.enrich_steps import Reader
from recallflow.flows.journeys import Journeys
from recallflow.flows.stages import Stages
from recallflow.outputs import DeadLetter, Derived, Done
from recallflow.records import Position, Record

OWNER = {"tenant_id": "acme", "user_id": "ann", "environment": "prod"}
EVENT = OWNER | {"type": "memory.update", "memory_id": "m", "category": "travel"}


def result(**events: Any) -> Record:
    said = OWNER | {"type": "enrichment.result", "request": "enrichment.requests:0:1", "source": "memory.events:0:1"}
    value = orjson.dumps(said | {"memory_id": "m", "events": [EVENT, EVENT | events]})
    return Record(Position("enrichment.results", 0, 7), value, 0)


def read(record: Record) -> list[type]:
    (outputs,) = Reader(
        "enrichment.requests", lambda _: False, Journeys(Stages(("enrichment.requests", "enrichment.results")))
    )([record])
    assert isinstance(outputs, tuple)
    return [type(output) for output in outputs]


@pytest.mark.parametrize("field", OWNER)
def test_a_result_changes_its_own_owners_memory_alone(field: str) -> None:
    """Not a part of it is sent: what stands in the topic of results is a set."""
    assert read(result()) == [Derived, Derived, Done]
    assert read(result(**{field: "another"})) == [DeadLetter, Done]
