"""docs/events.md says what the models do: each field with its values and default, each bound, each code."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from recallflow import limits
from recallflow.errors import ErrorCode
from recallflow.events import Event, MemoryEvent
from recallflow.flows.embedded import Processed
from recallflow.parsing import MAX_DEPTH
from recallflow.queries import (
    HOPS_MAX,
    HOPS_MIN,
    K_MAX,
    K_MIN,
    MAX_TOKENS_MAX,
    DecayFunction,
    Filters,
    Mode,
    Query,
    QueryEvent,
)
from recallflow.responses import WARNINGS
from recallflow.schema import schemas
from tools.reference import fields
from tools.reference.fields import Field

WHOLE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
PAGE = re.sub(r"^```.*?^```$", "", WHOLE, flags=re.M | re.S)
MODELS = {kind.model_fields["type"].annotation.__args__[0]: kind
          for union in (MemoryEvent, QueryEvent) for kind in get_args(get_args(union)[0])}  # fmt: skip
NUMBER = re.compile(r"\d[\d,]*")
# Parts of events that have a name of their own in the page.
PARTS = {
    "Entity": "entity", "Relation": "relation", "GraphEdge": "edge", "ContentPart": "part", "ForgetFilter": "filter",
    "DerivedFrom": "derived_from", "Source": "source",
    "Filters": "filters", "Decay": "decay", "AsOf": "as_of", "ReplyTo": "reply_to",
}  # fmt: skip


def section(title: str) -> str:
    """The text under a heading, up to the next one of its level."""
    return re.split(r"^#{1,2} ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of all tables of a section, without heads."""
    lines = re.findall(r"^\|(.*)\|$", section(title), re.M)
    heads = {at - 1 for at, line in enumerate(lines) if set(line) <= {"-", "|"}}
    return [
        [cell.strip() for cell in line.split("|")]
        for at, line in enumerate(lines)
        if at not in heads and at - 1 not in heads
    ]


def names(cell: str) -> list[str]:
    """What stands in it as code."""
    return re.findall(r"`([^`]+)`", cell)


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────


def part_of(name: str) -> str:
    """A part in the page's words."""
    return f"{{{PARTS[name]}}}"


def fields_of(schema: dict[str, Any]) -> Iterator[Field]:
    """Name, values and default of each field."""
    return fields.fields_of(schema, part_of)


def expected() -> set[tuple[str, str, str, str]]:
    """Every field that is an event's own, and every field of its parts."""
    found = set()
    for kind, model in MODELS.items():
        schema = model.model_json_schema()
        common = Query.model_fields.keys() | {"type"}
        own = [field for field in fields_of(schema) if field[0] not in common]
        if issubclass(model, Query):
            of_all = Query.model_fields.keys() - Event.model_fields.keys()
            found |= {("every query", *field) for field in fields_of(schema) if field[0] in of_all}
        if kind == "memory.update":  # the page says: those of a memory
            own = [field for field in own if field[0] == "memory_id"]
        found |= {(kind, *field) for field in own}
        for name, part in schema.get("$defs", {}).items():
            found |= {(PARTS[name], *field) for field in fields_of(part)}
    return found


def test_every_field_stands_in_the_page_with_its_values_and_its_default() -> None:
    told = {(of.strip("`"), names(field)[0], value, default) for of, field, value, default, *_ in rows("Fields")}
    assert told == expected()


def test_what_has_no_default_may_be_null_but_for_what_the_page_names() -> None:
    said = re.search(r"A field that\s+is not required.*?\.\n", section("Fields"), re.S)
    assert said is not None
    refused = set()
    for model in MODELS.values():
        schema = model.model_json_schema()
        for part in (schema, *schema.get("$defs", {}).values()):
            without = {name for name, _, default in fields_of(part) if default == ""}
            fields = part["properties"]
            refused |= {name for name in without if {"type": "null"} not in fields[name].get("anyOf", [])}
    assert refused == {*names(said[0])}


def test_the_fields_of_every_event_are_told() -> None:
    told = [name for field, *_ in rows("Every event") for name in names(field)]
    assert sorted(told) == sorted({"type", *Event.model_fields})


def test_an_update_can_change_every_field_of_a_memory() -> None:
    memory, update = MODELS["memory"].model_fields, MODELS["memory.update"].model_fields
    assert update.keys() - Event.model_fields == memory.keys() - Event.model_fields - {"name"} | {"memory_id"}
    assert "any field of a `memory` but `name`" in section("Memory events")


@pytest.mark.parametrize("title", ["Memory events", "Queries"])
def test_the_tables_of_types_name_each_and_no_other_field(title: str) -> None:
    union = MemoryEvent if title == "Memory events" else QueryEvent
    kinds = {kind for kind, model in MODELS.items() if model in get_args(get_args(union)[0])}
    told = [names(row[0]) for row in rows(title) if names(row[0]) and names(row[0])[0] in kinds]
    listed = {kind for row in told for kind in row}
    assert listed == kinds
    for row in rows(title):
        for kind in kinds & set(names(row[0])):
            if title == "Memory events" and kind != "memory.update":
                fields = set(names(re.sub(r"\[?\{.*?\}\]?|\(.*?\)|with `.*", "", row[1])))
                assert fields == MODELS[kind].model_fields.keys() - Event.model_fields.keys() - {"type"}, kind


# ── what is acted on ──────────────────────────────────────────────────────────────────────────────────────────────


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
def test_every_type_of_the_contract_is_acted_on(
    kind: str, make_event: Callable[..., dict[str, Any]], run_flow: Callable[..., Processed]
) -> None:
    told = [make_event("memory", id="m", content="tea"), make_event("memory", id="n", content="green tea")]
    done = run_flow([*told, make_event(kind, **LEAST.get(kind, {}))])
    assert [one["error"] for one in [*done.rejected, *done.responses] if one.get("error")] == []


# ── bounds and codes ──────────────────────────────────────────────────────────────────────────────────────────────

READ = [
    [limits.READ_CHARACTERS], [20_000, 16, 80], [512, 128, limits.METADATA_VALUES_MAX],
    [limits.FILTER_MEMBERS_MAX, limits.FILTER_PAST_MEMBERS_MAX], [limits.STATEMENTS_MAX], [limits.DESCRIBERS_MAX],
    [limits.QUERY_CHARACTERS], [limits.QUERY_WORDS], [limits.QUERY_DATES], [limits.NAMED_MAX, limits.PARTICIPANTS_MAX],
]  # fmt: skip
AT_MOST = [
    [limits.RECORD_BYTES], [limits.VALUES_MAX], [MAX_DEPTH - 1], [limits.UNKNOWN_FIELDS_MAX], [128], [512],
    [limits.PARTS_MAX], [limits.LABELS_MAX], [limits.ENTITIES_MAX], [limits.ALIASES_MAX], [limits.RELATIONS_MAX],
    [8_192], [limits.SUMMARY_CHARACTERS], [limits.EVIDENCE_CHARACTERS], [limits.EDGES_MAX], [limits.EVIDENCE_MAX],
    [limits.SUPERSEDED_MAX], [limits.SOURCES_MAX], [limits.MADE_MAX, limits.MADE_EVER_MAX], [64],
    [limits.FILTER_VALUES_MAX], [limits.FILTER_LEVELS_MAX, limits.FILTER_CONDITIONS_MAX],
    [limits.URNS_MAX, limits.FILTER_FIELDS_MAX], [limits.URNS_MAX], [limits.WHOLE_EPISODES_MAX],
    [limits.FACT_ENTITIES_MAX], [limits.FILTER_VALUES_MAX], [limits.POSITIONS_MAX], [MAX_TOKENS_MAX],
    [limits.USERS_MAX, limits.SUMMARY_CHARACTERS],
]  # fmt: skip


def test_the_limits_are_those_of_the_code() -> None:
    told = [[int(number.replace(",", "")) for number in NUMBER.findall(row[1])] for row in rows("Limits")]
    assert told == AT_MOST + READ


def test_what_is_clamped_is_clamped_to_what_the_page_says() -> None:
    clamped = re.findall(r"clamped to (\d+) to (\d+)", section("Fields"))
    assert [tuple(map(int, pair)) for pair in clamped] == [(K_MIN, K_MAX), (HOPS_MIN, HOPS_MAX)]


def test_modes_decays_filters_and_error_codes_are_all_told() -> None:
    modes = {names(row[0])[0] for row in rows("Queries")} & set(get_args(Mode))
    assert modes == set(get_args(Mode))
    filters = {name for row in rows("Queries") for name in names(row[0])} - modes - MODELS.keys()
    assert filters == {field.alias or name for name, field in Filters.model_fields.items()}
    assert set(get_args(DecayFunction)) <= set(names(section("Fields")))
    assert {names(row[0])[0] for row in rows("Error codes")} == {*get_args(ErrorCode)}


def test_the_words_of_the_responses_are_names_of_their_schema() -> None:
    response = schemas()["response"]
    known = set(re.findall(r'"(\w+)"', orjson.dumps(response).decode()))
    told = {word for word in names(section("Responses")) if re.fullmatch(r"[a-z_]+", word)}
    asked = {name for model in MODELS.values() for name in model.model_fields}
    assert told - known - asked - WARNINGS.keys() - {*get_args(ErrorCode)} == {"rerank"}
    assert response["properties"].keys() - set(names(PAGE)) == set()
