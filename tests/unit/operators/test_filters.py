"""Filters and k, against brute force over all memories."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.errors import InvalidRecord
from recallflow.limits import FILTER_CONDITIONS_MAX, FILTER_LEVELS_MAX
from recallflow.parsing import parse
from recallflow.queries import Filters
from tests.groups import share
from tests.unit.operators.harness import codes, make_event, run_flow

NOW = 1_000_000
TEXTS = ["The red bike is new", "Bo rides a bike to work", "Tea with milk?", "We rode far", "Tea is fine"]
CATEGORIES, TAGS, SESSIONS, NAMES, PROJECTS = (
    ["a", "b", "c"], ["x", "y", "z"], ["s", "t", "u"], ["Ann", "Bo"], ["p", "q"],
)  # fmt: skip
PEOPLE = {"Zed": "urn:p:zed", "Ines": "urn:p:ines"}
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "source": st.sampled_from(["slack", "mail", "5"]), "stars": st.sampled_from([4, 5, 5.0, True]),
        "labels": st.lists(st.sampled_from(["a", "b", 5]), max_size=2), "held": st.just({"deeper": 1}),
    },
)  # fmt: skip
SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
TIMES = st.integers(0, 40).map(lambda step: step * 50_000)  # some lie ahead of the query

MESSAGE = st.fixed_dictionaries(
    {"type": st.just("message"), "content": st.sampled_from(TEXTS), "timestamp": TIMES},
    optional={
        "role": st.sampled_from(["user", "assistant"]), "name": st.sampled_from(NAMES),
        "session_id": st.sampled_from(SESSIONS), "project_id": st.sampled_from(PROJECTS), "metadata": METADATA,
    },
)  # fmt: skip
MEMORY = st.fixed_dictionaries(
    {"type": st.just("memory"), "content": st.sampled_from(TEXTS), "timestamp": TIMES},
    optional={
        "kind": st.sampled_from(["fact", "rule", "preference"]),
        "layer": st.sampled_from(["rule", "working", "long_term"]),
        "category": st.sampled_from(CATEGORIES),
        "tags": st.lists(st.sampled_from(TAGS), max_size=2),
        "name": st.sampled_from(NAMES),
        "session_id": st.sampled_from(SESSIONS),
        "project_id": st.sampled_from(PROJECTS),
        "confidence": st.sampled_from(SHARES),
        "importance": st.sampled_from(SHARES),
        "metadata": METADATA,
        "entities": st.lists(st.sampled_from([*PEOPLE]), max_size=2, unique=True).map(
            lambda names: [{"name": name, "urn": PEOPLE[name]} for name in names]
        ),
        "expires_at": TIMES,
    },
)
ASKED = st.sampled_from(["slack", "5", 5, 5.0, True, "a", "nothing"])
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "categories": st.lists(st.sampled_from([*CATEGORIES, "none"]), min_size=1, max_size=2),
        "tags": st.lists(st.sampled_from([*TAGS, "none"]), min_size=1, max_size=2),
        "kinds": st.lists(st.sampled_from(["message", "fact", "rule", "preference", "none"]), min_size=1, max_size=3),
        "layers": st.lists(st.sampled_from(["rule", "working", "long_term"]), min_size=1, max_size=2),
        "roles": st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=2),
        "names": st.lists(st.sampled_from([*NAMES, "user", "none"]), min_size=1, max_size=2),
        "project_id": st.sampled_from([*PROJECTS, "none"]),
        "session_ids": st.lists(st.sampled_from([*SESSIONS, "none"]), min_size=1, max_size=2),
        "created_after": TIMES,
        "created_before": TIMES,
        "min_confidence": st.sampled_from(SHARES),
        "min_importance": st.sampled_from(SHARES),
        "all_tags": st.lists(st.sampled_from([*TAGS, "none"]), min_size=1, max_size=2),
        "entities": st.lists(st.sampled_from([*PEOPLE, *PEOPLE.values(), "nobody"]), min_size=1, max_size=2),
        "metadata": st.dictionaries(
            st.sampled_from(["source", "stars", "labels", "held"]), ASKED | st.lists(ASKED, min_size=1, max_size=2),
            min_size=1, max_size=2,
        ),
    },
)  # fmt: skip
# Few conditions each, so that something is left of what they let through.
CONDITION = FILTERS.map(lambda filters: dict([*filters.items()][:2]))
NESTED = st.recursive(
    CONDITION,
    lambda inner: st.builds(
        lambda own, nested: own | nested,
        CONDITION,
        st.fixed_dictionaries(
            {},
            optional={
                "all": st.lists(inner, min_size=1, max_size=2), "any": st.lists(inner, min_size=1, max_size=3),
                "not": inner | st.lists(inner, min_size=1, max_size=2),
            },
        ),
    ),
    max_leaves=6,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def has(metadata: dict[str, Any], name: str, wanted: Any) -> bool:
    given, any_of = metadata.get(name), wanted if isinstance(wanted, list) else [wanted]
    return any(same(one, value) for one in (given if isinstance(given, list) else [given]) for value in any_of)


def within(event: dict[str, Any], filters: dict[str, Any]) -> bool:
    negated = filters.get("not", [])
    called = {name for one in event.get("entities", []) for name in one.values()}
    metadata = event.get("metadata", {})
    return (
        within_flat(event, filters)
        and {*filters.get("all_tags", [])} <= {*event.get("tags", [])}
        and ("entities" not in filters or not called.isdisjoint(filters["entities"]))
        and all(has(metadata, name, wanted) for name, wanted in filters.get("metadata", {}).items())
        and event.get("importance", 0.5) >= filters.get("min_importance", 0.0)
        and all(within(event, one) for one in filters.get("all", []))
        and ("any" not in filters or any(within(event, one) for one in filters["any"]))
        and not any(within(event, one) for one in (negated if isinstance(negated, list) else [negated]))
    )


def passes(event: dict[str, Any], filters: dict[str, Any]) -> bool:
    return within(event, filters) and event.get("expires_at", NOW + 1) > NOW


def within_flat(event: dict[str, Any], filters: dict[str, Any]) -> bool:
    is_message = event["type"] == "message"
    role = event.get("role", "user") if is_message else None
    told = {
        "categories": event.get("category"), "kinds": "message" if is_message else event.get("kind", "fact"),
        "layers": event.get("layer", "long_term"), "roles": role, "names": event.get("name", role),
        "session_ids": event.get("session_id"),
    }  # fmt: skip
    return (
        all(value in filters[name] for name, value in told.items() if name in filters)
        and ("tags" not in filters or not {*filters["tags"]}.isdisjoint(event.get("tags", [])))
        and ("project_id" not in filters or filters["project_id"] == event.get("project_id"))
        and filters.get("created_after", event["timestamp"]) <= event["timestamp"]
        and event["timestamp"] < filters.get("created_before", event["timestamp"] + 1)
        and event.get("confidence", 1.0) >= filters.get("min_confidence", 0.0)
    )


@settings(max_examples=share(0.4))
@given(
    told=st.lists(MESSAGE | MEMORY, max_size=12),
    asked=st.lists(st.tuples(FILTERS | NESTED, st.integers(1, 14)), min_size=1, max_size=4),
)
@pytest.mark.parametrize("mode", ["recency", "relevance"])
def test_answer_holds_the_best_k_that_pass(
    mode: str, told: list[dict[str, Any]], asked: list[tuple[dict[str, Any], int]]
) -> None:
    owner = {"tenant_id": "acme", "user_id": "ann"}
    events = [owner | event | {"id": f"m{n}"} for n, event in enumerate(told)]
    ask = owner | {"type": "recall", "query": "Who rides the red bike?", "mode": mode, "timestamp": NOW}
    everything = run_flow([*events, ask | {"k": 50}]).responses[0]["memories"]
    order = [memory["id"] for memory in everything]
    by_id = {event["id"]: event for event in events}
    assert sorted(order) == sorted(event["id"] for event in events if passes(event, {}))
    if mode == "recency":
        times = [by_id[name]["timestamp"] for name in order]
        assert times == sorted(times, reverse=True)
    answers = run_flow([*events, *(ask | {"filters": filters, "k": k} for filters, k in asked)]).responses
    for (filters, k), answer in zip(asked, answers, strict=True):
        # The order does not depend on the filters, so the best k that pass are the first k of all that pass.
        expected = [name for name in order if passes(by_id[name], filters)][:k]
        assert [memory["id"] for memory in answer["memories"]] == expected


def ids(response: dict[str, Any]) -> set[str]:
    return {memory["id"] for memory in response["memories"]}


def test_entity_filter_uses_names_and_urns() -> None:
    told = [
        make_event("memory", 1, id="given", content="She likes tea", entities=[{"name": "Maria", "urn": "urn:p:1"}]),
        make_event("memory", 2, id="named", content="We saw Maria at the harbour"),
        make_event("memory", 3, id="other", content="The harbour is large"),
    ]
    asked = [
        make_event("recall", 9, query="tea?", filters={"entities": [name]}) for name in ("Maria", "urn:p:1", "Zed")
    ]
    maria, urn, nobody = run_flow([*told, *asked]).responses
    assert ids(maria) == ids(urn) == {"given", "named"}
    assert ids(nobody) == set()
    assert "unknown_entity" in codes(nobody)


def test_entity_filter_reads_a_bounded_number_of_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallflow.operators.recall.filters.FILTER_MEMBERS_MAX", 2)
    told = [make_event("memory", n, id=f"m{n}", content="tea", entities=[{"name": "Maria"}]) for n in range(4)]
    (answer,) = run_flow([*told, make_event("recall", 9, query="tea", filters={"entities": ["Maria"]})]).responses
    assert ids(answer) == {"m2", "m3"}
    assert (answer["status"], codes(answer)) == ("degraded", ["filter_cut"])


@pytest.mark.parametrize(("levels", "conditions"), [(FILTER_LEVELS_MAX + 1, 1), (1, FILTER_CONDITIONS_MAX)])
def test_filters_of_any_size_are_refused_beyond_a_bound(levels: int, conditions: int) -> None:
    def asked(levels: int, conditions: int) -> bytes:
        filters: dict[str, Any] = {"any": [{"kinds": ["fact"]}] * conditions} if levels == 1 else {"kinds": ["fact"]}
        for _ in range(levels - 1):
            filters = {"not": filters}
        event = {"type": "recall", "tenant_id": "a", "user_id": "b", "query": "tea", "filters": filters}
        return orjson.dumps(event)

    parse(asked(min(levels, FILTER_LEVELS_MAX), conditions - 1))
    with pytest.raises(InvalidRecord) as refused:
        parse(asked(levels, conditions))
    assert [one.field for one in refused.value.fields] == ["filters"]


def test_built_filter_equals_the_written_one() -> None:
    built = Filters.model_validate({"not": {"tags": ["a"]}, "any": [{"not": [{"kinds": ["fact"]}]}]})
    assert orjson.loads(built.model_dump_json(exclude_unset=True)) == {
        "not": {"tags": ["a"]}, "any": [{"not": [{"kinds": ["fact"]}]}],
    }  # fmt: skip
