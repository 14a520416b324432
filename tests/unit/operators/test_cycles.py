"""An applied event is freed at once: a reference cycle would stay until Python collects garbage amid a later batch."""

import gc
from typing import Any

import pytest

from tests.unit.operators.harness import make_event, run_flow

MANY = 20
MADE = 2  # objects of an event that are freed no earlier than its state directory
RELATION = {"source": "Ada", "type": "has", "target": "cup"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("message", {"content": "Tea with Ada", "session_id": "s"}),
        ("memory", {"content": "Ada has cups", "entities": [{"name": "Ada"}], "relations": [RELATION]}),
        ("memory.update", {"memory_id": "told", "content": "Ada has cups"}),
        ("memory.forget", {"memory_id": "none"}),
        ("memory.feedback", {"memory_id": "told", "useful": True}),
    ],
)
def test_applied_event_leaves_no_cycle(kind: str, fields: dict[str, Any]) -> None:
    def garbage(count: int) -> int:
        told = make_event("memory", 0, id="told", content="Ada has a cup")
        texts = [{"content": f"{fields['content']} {n}"} if "content" in fields else {} for n in range(count)]
        events = [make_event(kind, n, **fields | text) for n, text in enumerate(texts)]
        gc.collect()
        gc.freeze()  # the collection below looks at new objects alone
        gc.disable()
        try:
            assert not run_flow([told, *events]).rejected
            return gc.collect()
        finally:
            gc.enable()
            gc.unfreeze()

    garbage(1)  # makes what is made once in a process
    assert garbage(2 * MANY) - garbage(MANY) < MADE * MANY
