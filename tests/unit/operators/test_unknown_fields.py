"""A field that a type does not declare, although another type does, reaches no logic."""

from collections.abc import Iterator
from typing import Any, get_args

import orjson
import pytest

from recallflow.control import ControlHistory
from recallflow.events import Event, MemoryEvent
from recallflow.parsing import parse, parse_control
from recallflow.queries import QueryEvent
from tests.unit.operators.harness import make_event, run_flow

TOLD = [make_event("message", 0, id=f"m{n}", content=f"Ann has {n} cats", session_id="s") for n in range(3)]
GIVEN: dict[str, dict[str, Any]] = {
    "message": {"content": "Ann has a dog"},
    "memory": {"content": "Ann has a dog"},
    "memory.update": {"memory_id": "m0", "content": "Ann has no cat"},
    "memory.forget": {"memory_id": "m0"},
    "memory.feedback": {"memory_id": "m0", "useful": True},
    "episode.end": {"session_id": "s"},
    "category.summary": {"category": "pets", "summary": "Cats."},
    "episode.summary": {"episode_id": "none", "session_id": "s", "summary": "Cats."},
    "graph.edges": {"edges": [{"source": "m0", "target": "m1", "type": "likes"}]},
    "memory.embedding": {"memory_id": "m0", "embedding": [1.0], "model": "m", "content_hash": "0" * 64},
    "graph.archive": {"entities": ["cat"]},
    "user.erase": {},
    "recall": {"query": "cats"},
    "memory.get": {"memory_id": "m0"},
    "memory.history": {"memory_id": "m0"},
    "memories.list": {},
    "episodes.list": {},
    "graph.status": {},
    "graph.trace": {"query": "cats"},
    "graph.explore": {},
    "graph.facts": {},
    "user.stats": {},
}
VALUES = [5, "x", [1], {"memory_id": 1}, {"memory_id": "m1"}, True]


def _models(union: object) -> Iterator[type[Event]]:
    yield from get_args(get_args(union)[0])


MODELS = {get_args(kind.model_fields["type"].annotation)[0]: kind
          for union in (MemoryEvent, QueryEvent) for kind in _models(union)}  # fmt: skip
FIELDS = {name for kind in MODELS.values() for name in kind.model_fields}


def undeclared(event_type: str) -> list[str]:
    """Return the names of fields that other types declare. An event may have 64 unknown fields."""
    return sorted(FIELDS - MODELS[event_type].model_fields.keys() - {"not_"})


@pytest.mark.parametrize("event_type", MODELS)
def test_undeclared_field_is_no_attribute(event_type: str) -> None:
    names = undeclared(event_type)
    for at in range(0, len(names), 32):
        unknown = dict.fromkeys(names[at : at + 32], 5)
        event = parse(orjson.dumps(make_event(event_type, **GIVEN[event_type], **unknown)))
        assert event.model_extra
        assert [name for name in event.model_extra if hasattr(event, name) and not hasattr(type(event), name)] == []


@pytest.mark.parametrize("event_type", MODELS)
def test_undeclared_fields_change_no_outcome(event_type: str) -> None:
    event, names = make_event(event_type, 9, id="x", receipt=True, **GIVEN[event_type]), undeclared(event_type)
    plain = _told(run_flow([*TOLD, event], graph_enabled=True))
    for value in VALUES:
        for at in range(0, len(names), 60):
            found = _told(run_flow([*TOLD, event | dict.fromkeys(names[at : at + 60], value)], graph_enabled=True))
            assert found == plain


def _told(processed: Any) -> list[Any]:
    for response in processed.responses:
        for name in ("processing_time_ms", "routing_info", "stats", "warnings", "sla_met"):
            response.pop(name, None)
    return [processed.responses, processed.receipts, processed.rejected]


def test_undeclared_revocation_revokes_nothing() -> None:
    fields = {"type": "quota", "tenant_id": "acme", "name": "queries_per_s", "limit": 1, "timestamp": 5}
    history = ControlHistory()
    history.add_signed(1, parse_control(orjson.dumps(fields | {"revoked": True})))
    assert not history.is_revoked("acme", "quota", "queries_per_s", 2)
    assert history.add_signed(2, parse_control(orjson.dumps(fields | {"limit": 2, "timestamp": 6})))
