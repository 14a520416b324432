"""The wire contract that docs/events.md states: limits, bounds, codes, and an effect of every type of event."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from recallflow import limits
from recallflow.errors import ErrorCode
from recallflow.events import Event, MemoryEvent
from recallflow.parsing import MAX_DEPTH
from recallflow.queries import HOPS_MAX, HOPS_MIN, K_MAX, K_MIN, MAX_TOKENS_MAX, QueryEvent
from tests.unit.operators.harness import make_event, run_flow

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
MODELS = {kind.model_fields["type"].annotation.__args__[0]: kind
          for union in (MemoryEvent, QueryEvent) for kind in get_args(get_args(union)[0])}  # fmt: skip
NUMBER = re.compile(r"\d[\d,]*")


def section(title: str) -> str:
    """Return the text under a heading, up to the next one of its level."""
    return re.split(r"^#{1,2} ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.M)[0]


def rows(title: str) -> list[list[str]]:
    """Return the cells of all tables of a section, without heads."""
    lines = re.findall(r"^\|(.*)\|$", section(title), re.M)
    heads = {at - 1 for at, line in enumerate(lines) if set(line) <= {"-", "|"}}
    return [
        [cell.strip() for cell in line.split("|")]
        for at, line in enumerate(lines)
        if at not in heads and at - 1 not in heads
    ]


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


def test_documented_limits_are_those_of_the_code() -> None:
    told = [[int(number.replace(",", "")) for number in NUMBER.findall(row[1])] for row in rows("Limits")]
    assert told == AT_MOST + READ
    clamped = re.findall(r"clamped to (\d+) to (\d+)", section("Fields"))
    assert [tuple(map(int, pair)) for pair in clamped] == [(K_MIN, K_MAX), (HOPS_MIN, HOPS_MAX)]


def test_documented_error_codes_are_those_of_the_code() -> None:
    assert {row[0].strip("`") for row in rows("Error codes")} == {*get_args(ErrorCode)}
