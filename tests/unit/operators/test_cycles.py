"""What an event is made of is freed when it is applied: none leaves a cycle behind, which waits until Python looks for
such in the middle of another batch."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from recallflow.flows.embedded import Processed

MANY = 40
MADE = 2  # objects of an event that are freed no earlier than its state directory


def event(kind: str, number: int) -> dict[str, Any]:
    relation = {"source": "Ada", "type": "has", "target": f"cup {number}"}
    fields: dict[str, dict[str, Any]] = {
        "message": {"content": f"Tea with Ada, cup {number}", "session_id": "s"},
        "memory": {"content": f"Ada has {number} cups", "entities": [{"name": "Ada"}], "relations": [relation]},
        "memory.update": {"memory_id": "told", "content": f"Ada has {number} cups"},
        "memory.forget": {"memory_id": f"none{number}"},
        "memory.feedback": {"memory_id": "told", "useful": True},
    }
    return fields[kind]


@pytest.mark.parametrize("kind", ["message", "memory", "memory.update", "memory.forget", "memory.feedback"])
def test_an_applied_event_leaves_no_cycle_behind(
    run_flow: Callable[..., Processed], make_event: Callable[..., dict[str, Any]], kind: str
) -> None:
    def garbage(count: int) -> int:
        told = make_event("memory", 0, id="told", content="Ada has a cup")
        lines = [told, *(make_event(kind, n, **event(kind, n)) for n in range(count))]
        gc.collect()
        gc.disable()
        try:
            assert not run_flow(lines).rejected
            return gc.collect()
        finally:
            gc.enable()

    garbage(MANY)  # what is made once is made
    assert garbage(2 * MANY) - garbage(MANY) < MADE * MANY
