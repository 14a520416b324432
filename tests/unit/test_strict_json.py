"""What is not JSON, says a thing twice, or names nobody is refused by the field's name, wherever it stands."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.errors import InvalidRecord
from recallflow.parsing import MAX_DEPTH, parse, parse_control

OWNER: dict[str, Any] = {"tenant_id": "acme", "user_id": "ann"}
MEMORY = OWNER | {"type": "memory", "content": "Tea."}


def refused(value: bytes) -> dict[str, str]:
    with pytest.raises(InvalidRecord) as raised:
        (parse_control if b"tenant.settings" in value else parse)(value)
    return {one.field: one.problem for one in raised.value.fields}


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'{"deep": [1, [NaN]]}'])
@pytest.mark.parametrize(
    ("event", "field"),
    [
        (MEMORY | {"metadata": {"a": "HERE"}}, "metadata"),
        (OWNER | {"type": "memory.update", "memory_id": "m", "metadata": {"a": "HERE"}}, "metadata"),
        ({"type": "tenant.settings", "tenant_id": "acme", "name": "n", "settings": {"a": "HERE"}}, "settings"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused(event: dict[str, Any], field: str, number: bytes) -> None:
    problems = refused(orjson.dumps(event).replace(b'"HERE"', number))
    assert "which JSON does not have" in problems[field]


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_everything_else_is_kept_as_it_was_said(value: object) -> None:
    event = parse(orjson.dumps(MEMORY | {"metadata": {"a": value}}))
    assert orjson.loads(event.model_dump_json())["metadata"] == {"a": value}


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b'{"type": "memory", "content": "x", "tenant_id": "a", "user_id": "u", "user_id": "v"}', "user_id"),
        (b'{"type": "memory", "content": "x", "tenant_id": "a", "user_id": "u", "user\\u005fid": "v"}', "user_id"),
        (b'{"type": "memory", "content": "x", "tenant_id": "a", "user_id": "u", "metadata": {"a": 1, "a": 2}}', "a"),
        (b'{"type": "user.stats", "type": "user.stats", "tenant_id": "a", "user_id": "u"}', "type"),
        (b'{"type": "tenant.settings", "tenant_id": "a", "name": "n", "name": "n", "settings": {}}', "name"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(value: bytes, field: str) -> None:
    assert refused(value) == {field: "is given twice; give it once"}


def test_the_same_name_in_two_objects_is_no_second_one() -> None:
    named = [{"name": "Ann", "type": "person"}, {"name": "Bob", "type": "person"}]
    parse(orjson.dumps(MEMORY | {"entities": named, "metadata": {"name": '"name": "name":', "a\\b": 1}}))


@pytest.mark.parametrize("field", ["tenant_id", "user_id", "environment", "id"])
@pytest.mark.parametrize("blank", [" ", "\u3000 \u00a0", "\u2003"])
def test_a_name_of_blanks_names_nobody(field: str, blank: str) -> None:
    assert "is blank" in refused(orjson.dumps(MEMORY | {field: blank}))[field]
    parse(orjson.dumps(MEMORY | {field: f"{blank}x{blank}"}))


def test_lone_surrogate_and_leap_second_are_named() -> None:
    assert "lone surrogate" in refused(orjson.dumps(MEMORY).replace(b"Tea.", b"\\ud83d"))[""]
    assert "leap second" in refused(orjson.dumps(MEMORY | {"timestamp": "2026-06-30T23:59:60Z"}))["timestamp"]


def test_the_deepest_that_is_said_to_be_taken_is() -> None:
    def nested(levels: int) -> bytes:  # the event and its metadata are two of them
        lists = b"[" * (levels - 2) + b"]" * (levels - 2)
        return orjson.dumps(MEMORY | {"metadata": {"a": "HERE"}}).replace(b'"HERE"', lists)

    parse(nested(MAX_DEPTH))
    assert f"more than {MAX_DEPTH} levels" in refused(nested(MAX_DEPTH + 1))[""]
