"""Numbers and truth values follow the schemas in every event; others are refused by field name."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow.errors import InvalidRecord
from recallflow.parsing import parse, parse_control
from recallflow.schema import schemas
from tests.groups import share

SCHEMAS = schemas()
PARSERS = {"memory-event": parse, "query-event": parse, "control-event": parse_control}
# Beside what the schemas require, an event says something: the least of it; and a field may belong to a mode.
SAID: dict[str, dict[str, Any]] = {
    "graph.explore.limit": {"whole": True}, "memory.forget": {"memory_id": "m"}, "memory.update": {"summary": "s"},
    "graph.archive": {"entities": ["m"]}, "recall.max_episodes": {"mode": "episode"},
    "recall.whole_episodes": {"mode": "episode"},
}  # fmt: skip
CUT_TO_BOUNDS = {"recall.k", "recall.traversal_depth"}  # with a warning
FLOAT32 = {"memory.embedding", "message.embedding", "memory.update.embedding", "memory.embedding.embedding"}


class Leaf(NamedTuple):
    """A field of an event: of a number, or of a truth value. `path` leads through fields, items (0) and keys."""

    contract: str
    event: str
    path: tuple[str | int, ...]
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        return ".".join([self.event, *(str(part) for part in self.path if part != 0)])


def leaves(kinds: set[str]) -> list[Leaf]:
    found = []
    for contract in PARSERS:
        schema = SCHEMAS[contract]
        for event, reference in schema["discriminator"]["mapping"].items():
            of_event = schema["$defs"][reference.rpartition("/")[2]]
            found += [
                Leaf(contract, event, *leaf) for leaf in walk(of_event, schema["$defs"]) if leaf[1]["type"] in kinds
            ]
    return found


def walk(
    schema: dict[str, Any], known: dict[str, Any], within: frozenset[str] = frozenset()
) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yield the numbers, truth values, bounded lists and objects of a schema; recursive ones once."""
    entered = [arm["$ref"] for arm in schema.get("anyOf", [schema]) if "$ref" in arm]
    if not within.isdisjoint(entered):
        return
    within |= {*entered}
    arms = [resolved(arm, known) for arm in schema.get("anyOf", [schema])]
    if any(arm.get("type") == "string" for arm in arms):
        return  # a time, or anything that metadata may hold
    for arm in arms:
        if arm.get("type") in ("integer", "number", "boolean"):
            yield (), arm
        if "maxItems" in arm or "maxProperties" in arm:
            yield (), arm
        for name, field in arm.get("properties", {}).items():
            yield from (((name, *path), leaf) for path, leaf in walk(field, known, within))
        if "items" in arm:
            yield from (((0, *path), leaf) for path, leaf in walk(arm["items"], known, within))
        if isinstance(held := arm.get("additionalProperties"), dict):
            yield from ((("recency", *path), leaf) for path, leaf in walk(held, known, within))


def resolved(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def example(schema: dict[str, Any], known: dict[str, Any]) -> Any:
    """The least that a schema takes."""
    schema = resolved(schema.get("anyOf", [schema])[0], known)
    match schema:
        case {"const": value}:
            return value
        case {"enum": [value, *_]}:
            return value
        case {"type": "object"}:
            return {name: example(schema["properties"][name], known) for name in schema.get("required", [])}
        case {"type": "array"}:
            return [example(schema["items"], known)] * max(1, schema.get("minItems", 0))
        case {"type": "boolean"}:
            return False
        case {"type": "integer" | "number"}:
            return 1
        case {"pattern": str(pattern)} if "{64}" in pattern:  # a hash
            return "0" * 64
    return "x"


def refused(leaf: Leaf, value: object) -> set[str]:
    """The fields that are wrong with the least event that has this value there."""
    schema = SCHEMAS[leaf.contract]
    known = schema["$defs"]
    reference = schema["discriminator"]["mapping"][leaf.event]
    event = example({"$ref": reference}, known) | SAID.get(leaf.event, {}) | SAID.get(leaf.name, {})
    assert wrong(leaf, event) == set()
    place(event, {"$ref": reference}, leaf.path, value, known)
    return wrong(leaf, event)


def place(
    holder: Any, schema: dict[str, Any], path: tuple[str | int, ...], value: object, known: dict[str, Any]
) -> None:
    """Puts a value where a path leads to, and the least that has to be on the way."""
    arms = [resolved(arm, known) for arm in schema.get("anyOf", [schema])]
    arms = [resolved(arm, known) for one in arms for arm in one.get("anyOf", [one])]
    at, *rest = path
    arm = next(one for one in arms if ("items" in one if at == 0 else one.get("type") == "object"))
    inner = arm["items"] if at == 0 else arm.get("properties", {}).get(at) or arm["additionalProperties"]
    if not rest:
        held = value
    else:
        options = [resolved(one, known) for one in inner.get("anyOf", [inner])]
        held = example(next(one for one in options if one.get("type") in ("object", "array")), known)
        place(held, inner, tuple(rest), value, known)
    if isinstance(holder, list):
        holder[:] = [held]
    else:
        holder[at] = held


def wrong(leaf: Leaf, event: dict[str, Any]) -> set[str]:
    try:
        PARSERS[leaf.contract](orjson.dumps(event))
    except InvalidRecord as error:
        return {one.field for one in error.fields}
    return set()


NUMBERS = leaves({"integer", "number"})
TRUTHS = leaves({"boolean"})


def test_the_schemas_have_numbers_at_every_depth() -> None:
    names = {leaf.name for leaf in NUMBERS}
    assert {"recall.k", "recall.decay.tau_days", "recall.weights.recency", "graph.edges.edges.weight"} <= names
    assert {"quota.limit", "graph.explore.hops", "memory.importance", "recall.reply_to.partition"} <= names


@pytest.mark.parametrize("leaf", NUMBERS, ids=lambda leaf: leaf.name)
def test_other_value_for_a_number_is_refused(leaf: Leaf) -> None:
    values: list[Any] = [True, False, "5", [5], {}]
    for value in values:
        assert dotted(leaf) in refused(leaf, value)


@pytest.mark.parametrize("leaf", TRUTHS, ids=lambda leaf: leaf.name)
def test_other_value_for_a_truth_value_is_refused(leaf: Leaf) -> None:
    values: list[Any] = [0, 1, "yes", "true", []]
    for value in values:
        assert dotted(leaf) in refused(leaf, value)


@pytest.mark.parametrize("leaf", NUMBERS, ids=lambda leaf: leaf.name)
@settings(max_examples=share(0.15))
@given(data=st.data())
def test_numbers_beyond_their_bounds_are_refused(leaf: Leaf, data: st.DataObject) -> None:
    if leaf.name in CUT_TO_BOUNDS:
        assert refused(leaf, data.draw(st.integers(-(2**63), 2**63 - 1))) == set()
        return
    if leaf.name in FLOAT32:
        beyond = 3.5e38
        at = ".".join(str(part) for part in leaf.path[:-1])
        assert at in refused(leaf, data.draw(st.floats(min_value=beyond, allow_infinity=False)))
        assert at in refused(leaf, data.draw(st.floats(max_value=-beyond, allow_infinity=False)))
        return
    least = leaf.schema["minimum" if "minimum" in leaf.schema else "exclusiveMinimum"]
    most = leaf.schema["maximum"]
    assert dotted(leaf) in refused(leaf, data.draw(st.integers(int(most) + 1, 2**63 - 1)))
    assert dotted(leaf) in refused(leaf, data.draw(st.integers(-(2**63), int(least) - 1)))
    assert refused(leaf, most) == set()


def dotted(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path))


@pytest.mark.parametrize("leaf", leaves({"array", "object"}), ids=lambda leaf: leaf.name)
def test_more_than_fit_are_refused(leaf: Leaf) -> None:
    schema = leaf.schema
    if schema["type"] == "array":
        beyond: Any = [example(schema["items"], SCHEMAS[leaf.contract]["$defs"])] * (schema["maxItems"] + 1)
    else:
        beyond = {f"n{number}": 1 for number in range(schema["maxProperties"] + 1)}
    assert dotted(leaf) in refused(leaf, beyond)
