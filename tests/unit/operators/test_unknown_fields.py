"""Misspelt and undeclared fields: refused or reported by name, and without effect."""

from collections.abc import Iterator
from typing import Any, get_args

import orjson
import pytest

from recallflow import fields, parsing
from recallflow.control import ControlHistory
from recallflow.errors import InvalidRecord
from recallflow.events import Event, MemoryEvent
from recallflow.limits import PROBLEMS_MAX
from recallflow.parsing import parse, parse_control
from recallflow.queries import QueryEvent
from tests.unit.operators.harness import make_event, run_flow

TOLD = [make_event("message", 0, id=f"m{n}", content=f"Ann has {n} cats", session_id="s") for n in range(3)]
GIVEN: dict[str, dict[str, Any]] = {
    "message": {"content": "Ann has a dog"}, "memory": {"content": "Ann has a dog"},
    "memory.update": {"memory_id": "m0", "content": "Ann has no cat"}, "memory.forget": {"memory_id": "m0"},
    "memory.feedback": {"memory_id": "m0", "useful": True}, "episode.end": {"session_id": "s"},
    "category.summary": {"category": "pets", "summary": "Cats."},
    "episode.summary": {"episode_id": "none", "session_id": "s", "summary": "Cats."},
    "graph.edges": {"edges": [{"source": "m0", "target": "m1", "type": "likes"}]},
    "memory.embedding": {"memory_id": "m0", "embedding": [1.0], "model": "m", "content_hash": "0" * 64},
    "graph.archive": {"entities": ["cat"]}, "user.erase": {}, "recall": {"query": "cats"},
    "memory.get": {"memory_id": "m0"}, "memory.history": {"memory_id": "m0"}, "memories.list": {}, "episodes.list": {},
    "graph.status": {}, "graph.trace": {"query": "cats"}, "graph.explore": {}, "graph.facts": {}, "user.stats": {},
}  # fmt: skip
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


WHO = {"tenant_id": "acme", "user_id": "ann"}


def problems(event: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidRecord) as refused:
        parse(orjson.dumps(WHO | event))
    return {one.field: one.problem for one in refused.value.fields}


def wrong(**fields: Any) -> dict[str, str]:
    return problems({"type": "recall", "query": "tea"} | fields)


@pytest.mark.parametrize(
    ("given", "field", "meant"),
    [
        ({"as_of": {"eventTime": "2024-05-02T00:00:00Z"}}, "as_of.eventTime", "event_time"),
        ({"as_of": {"event_time": 1, "ingested": 2}}, "as_of.ingested", "ingestion_time"),
        ({"filters": {"tag": "a"}}, "filters.tag", "tags"),
        ({"filters": {"AND": [{"kinds": ["fact"]}]}}, "filters.AND", "all"),
        ({"filters": {"any": [{}, {"not": {"tagz": ["a"]}}]}}, "filters.any.1.not.tagz", "tags"),
        ({"filters": {"not": [{"kind": ["fact"]}]}}, "filters.not.0.kind", "kinds"),
        ({"filters": {"createdAfter": 1}}, "filters.createdAfter", "created_after"),
        ({"decay": {"tau": 1}}, "decay.tau", "tau_days"),
        ({"weights": {"sematic": 1}}, "weights.sematic", "semantic"),
        ({"reply_to": {"topic": "a", "partitions": 1}}, "reply_to.partitions", "partition"),
    ],
)
def test_misspelt_field_is_refused_with_a_suggestion(given: dict[str, Any], field: str, meant: str) -> None:
    found = wrong(**given)
    assert found.keys() == {field}
    assert meant in found[field]


def nested_names() -> list[tuple[str, str]]:
    found = []
    for query in QueryEvent.__origin__.__args__:  # type: ignore[attr-defined]
        schema = query.model_json_schema()
        for name, field in schema["properties"].items():
            arms = [field, *field.get("anyOf", [])]
            if any("$ref" in arm for arm in arms):
                found.append((schema["properties"]["type"]["const"], name))
    return found


@pytest.mark.parametrize(("kind", "part"), nested_names())
def test_no_part_of_any_query_passes_over_a_name(kind: str, part: str) -> None:
    needed = {"query": "tea", "memory_id": "m"}
    assert f"{part}.zebra" in problems({"type": kind, part: {"zebra": 1}} | needed)


def test_misspelt_forget_condition_is_refused() -> None:
    found = problems({"type": "memory.forget", "filter": {"session_id": "s", "older": 5}})
    assert found.keys() == {"filter.older"}


def test_many_unknown_fields_are_reported_up_to_a_limit() -> None:
    found = wrong(decay={f"{'x' * 100}{n}": 1 for n in range(60)})
    assert len(found) == PROBLEMS_MAX + 1
    assert found[""] == "and 40 more"
    assert wrong(decay={f"{'x' * 100}{n}": 1 for n in range(9_000)}).keys() == {"decay"}


def _within(depth: int, filters: dict[str, Any]) -> dict[str, Any]:
    return filters if depth == 0 else {"all": [_within(depth - 1, filters)]}


def _doubled(depth: int, filters: dict[str, Any]) -> dict[str, Any]:
    return filters if depth == 0 else {"any": [_doubled(depth - 1, filters)] * 2}


@pytest.mark.parametrize(
    "filters",
    [
        _within(6, {"any": [{"tags": [1] * 98}] * 90}), _doubled(5, {"tags": [1] * 200}),
        _within(6, {"any": [{f"tagz{n}": ["a"]} for n in range(80)]}), _within(6, {f"tagz{n}": 1 for n in range(80)}),
        {"not": [1] * 9_900}, {"any": [[1]] * 4_900}, {f"k{n}": 1 for n in range(9_000)},
    ],
)  # fmt: skip
def test_refused_filters_word_few_problems(filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    worded = 0

    def counted(function: Any) -> Any:
        def count(*arguments: Any) -> Any:
            nonlocal worded
            worded += 1
            return function(*arguments)

        return count

    monkeypatch.setattr(parsing, "_problem", counted(parsing._problem))
    monkeypatch.setattr(fields, "nearest", counted(fields.nearest))
    monkeypatch.setattr(fields, "_as_details", counted(fields._as_details))
    assert wrong(filters=filters)
    assert worded <= 5 * parsing.CONVERTED_MAX


def warned(response: dict[str, Any]) -> dict[str, str]:
    return {warning["code"]: warning["detail"] for warning in response["warnings"]}


def test_unknown_entity_is_a_warning() -> None:
    told = make_event("memory", 1, content="Maria likes tea", entities=[{"name": "Maria", "urn": "urn:p:1"}])
    asked = [
        make_event("recall", 2, query="tea", mode=mode, entity_urns=urns)
        for mode in ("hybrid", "relevance")
        for urns in (["urn:p:1"], ["Maria"], ["urn:p:1", "urn:p:2", "Mario"])
    ]
    for answer, query in zip(run_flow([told, *asked]).responses, asked, strict=True):
        unknown = warned(answer).get("unknown_entity")
        assert (unknown is not None and "urn:p:2, Mario" in unknown) == ("Mario" in query["entity_urns"])
        assert answer["status"] == "ok"


def test_unknown_top_level_field_is_reported_with_a_suggestion() -> None:
    told = make_event("memory", 1, id="m", content="tea")
    asked = [
        make_event("recall", 2, query="tea", asOf={"event_time": 1}),
        make_event("memory.get", 2, memory_id="m", zebra=1), make_event("episodes.list", 2, project_id="p"),
    ]  # fmt: skip
    recalled, got, listed = run_flow([told, *asked]).responses
    assert "as_of" in warned(recalled)["unknown_field"]
    assert "zebra" in warned(got)["unknown_field"]
    assert "project_id" in warned(listed)["unknown_field"]


def test_odd_field_name_is_not_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_reported", set())  # each name is reported once in a process
    key = f"rfk_{'0' * 16}_{'S' * 43}"
    names = ["what Ann said\nWARNING forged", key, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "", "ümlaut", "x" * 41]
    run_flow([make_event("message", 1, content="tea", **dict.fromkeys([*names, "colour"], 1))])
    said = [record.getMessage() for record in caplog.records if "is not read" in record.getMessage()]
    assert any("'colour'" in line for line in said)
    assert not any(name in line for line in said for name in names if name)
