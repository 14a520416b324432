"""Every type of event of the wire contract has an effect."""

from typing import Any, get_args

import pytest

from recallflow.events import Event, MemoryEvent
from recallflow.queries import QueryEvent
from tests.unit.operators.harness import make_event, run_flow

MODELS = {kind.model_fields["type"].annotation.__args__[0]: kind
          for union in (MemoryEvent, QueryEvent) for kind in get_args(get_args(union)[0])}  # fmt: skip


def test_update_can_change_every_field_of_a_memory() -> None:
    memory, update = MODELS["memory"].model_fields, MODELS["memory.update"].model_fields
    assert update.keys() - Event.model_fields == memory.keys() - Event.model_fields - {"name"} | {"memory_id"}


LEAST: dict[str, dict[str, Any]] = {
    "message": {"content": "tea"}, "memory": {"content": "tea"}, "memory.update": {"memory_id": "m", "tags": ["a"]},
    "memory.forget": {"memory_id": "m"}, "memory.feedback": {"memory_id": "m", "useful": True},
    "category.summary": {"category": "c", "summary": "s"},
    "episode.summary": {"episode_id": "e", "summary": "s", "derived_from": {"memory_id": "m"}},
    "graph.archive": {"entities": ["m"]},
    "graph.edges": {"edges": [{"source": "m", "target": "n", "type": "t"}]},
    "memory.embedding": {"memory_id": "m", "embedding": [1.0] * 384, "model": "x", "content_hash": "0" * 64},
    "recall": {"query": "tea"}, "memory.get": {"memory_id": "n"}, "memory.history": {"memory_id": "n"},
    "graph.trace": {"query": "tea"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_every_event_type_is_applied(kind: str) -> None:
    told = [make_event("memory", id="m", content="tea"), make_event("memory", id="n", content="green tea")]
    done = run_flow([*told, make_event(kind, **LEAST.get(kind, {}))])
    assert [one["error"] for one in [*done.rejected, *done.responses] if one.get("error")] == []
