"""The contract of events: limits, strict JSON, types, and the published schemas."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallflow import limits
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import EMBEDDED_BYTES, Event, MemoryEvent, embedding_input
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings, TopicNames
from recallflow.operators.graph.write import with_statement
from recallflow.parsing import parse, parse_control
from recallflow.queries import QueryEvent
from recallflow.responses import Receipt
from recallflow.schema import asyncapi, schemas
from recallflow.state.graph_codec import Statement
from tests.groups import share
from tests.unit.operators.harness import make_event, run_flow

# Event type and field → its limit, and how so many of it look.
LISTS: dict[tuple[str, str], tuple[int, Callable[[int], Any]]] = {
    ("message", "content"): (limits.PARTS_MAX, lambda n: [{"type": "text", "text": "tea"}] * n),
    ("memory", "tags"): (limits.LABELS_MAX, lambda n: [f"t{i}" for i in range(n)]),
    ("memory", "topics"): (limits.LABELS_MAX, lambda n: [f"t{i}" for i in range(n)]),
    ("memory", "entities"): (limits.ENTITIES_MAX, lambda n: [{"name": f"e{i}"} for i in range(n)]),
    ("memory", "relations"): (
        limits.RELATIONS_MAX,
        lambda n: [{"source": "a", "type": "t", "target": f"e{i}"} for i in range(n)],
    ),
    ("memory", "summary"): (limits.SUMMARY_CHARACTERS, lambda n: "x" * n),
    ("graph.edges", "edges"): (
        limits.EDGES_MAX,
        lambda n: [{"source": "a", "type": "t", "target": f"e{i}"} for i in range(n)],
    ),
    ("graph.archive", "entities"): (limits.EDGES_MAX, lambda n: [f"e{i}" for i in range(n)]),
    ("recall", "entity_urns"): (limits.URNS_MAX, lambda n: [f"urn:a:{i}" for i in range(n)]),
    ("recall", "filters.tags"): (limits.FILTER_VALUES_MAX, lambda n: {"tags": [f"t{i}" for i in range(n)]}),
    ("recall", "wait_for"): (limits.POSITIONS_MAX, lambda n: [f"t:0:{i}" for i in range(n)]),
}
REQUIRED = {"message": {"content": "tea"}, "memory": {"content": "tea"}, "recall": {"query": "tea?"}}


def event(kind: str, **fields: Any) -> bytes:
    return orjson.dumps({"type": kind, "tenant_id": "acme", "user_id": "ann"} | REQUIRED.get(kind, {}) | fields)


def refusal(value: bytes) -> tuple[FieldProblem, ...]:
    with pytest.raises(InvalidRecord) as refused:
        parse(value)
    return refused.value.fields


@pytest.mark.parametrize(("kind", "field"), LISTS)
def test_one_more_than_the_limit_is_refused(kind: str, field: str) -> None:
    limit, made = LISTS[kind, field]
    name = field.partition(".")[0]
    parse(event(kind, **{name: made(limit)}))
    problems = refusal(event(kind, **{name: made(limit + 1)}))
    assert [one.field for one in problems if f"{limit:,}" in one.problem] == [field]


def test_event_of_too_many_values_is_refused() -> None:
    held = {"a": [[0] * 100] * 98}
    parse(event("message", metadata=held))
    (problem,) = refusal(event("message", metadata=held | {"b": [0] * 200}))
    assert problem.field == "metadata"
    assert f"{limits.VALUES_MAX:,}" in problem.problem
    # Commas in a text are no values.
    parse(event("message", content="," * (2 * limits.VALUES_MAX)))


def test_unknown_fields_are_accepted_up_to_a_limit() -> None:
    own = {f"f{n}": n for n in range(limits.UNKNOWN_FIELDS_MAX)}
    parse(event("message", **own))
    (problem,) = refusal(event("message", **own, one_more=1))
    assert f"at most {limits.UNKNOWN_FIELDS_MAX}" in problem.problem


def test_refusal_has_a_bounded_list_of_problems() -> None:
    wrong = refusal(event("memory", tags=[1] * limits.LABELS_MAX))
    assert len(wrong) == limits.PROBLEMS_MAX + 1
    assert wrong[-1].problem == f"and {limits.LABELS_MAX - limits.PROBLEMS_MAX} more"
    assert InvalidRecord("invalid_event", wrong).fields == wrong  # what was kept and is read again is the same
    (long,) = refusal(event("recall", weights={"x" * 100_000: 1}))
    assert len(long.problem) <= limits.PROBLEM_CHARACTERS


def test_edge_keeps_its_newest_statements() -> None:
    statements: tuple[Statement, ...] = ()
    for seq in range(limits.STATEMENTS_MAX + 50):
        statements = with_statement(statements, Statement(f"m{seq}", seq, 0, True, False, None))
    assert [one.seq for one in statements] == [*range(50, limits.STATEMENTS_MAX + 50)]


def test_a_memory_is_the_evidence_of_so_many_edges() -> None:
    def edges(first: int, count: int) -> dict[str, Any]:
        given = [{"source": "m", "target": f"entity:{n}", "type": "about", "evidence": "m"} for n in range(count)]
        return make_event("graph.edges", edges=[one | {"type": f"t{first}"} for one in given], receipt=True)

    most = limits.EVIDENCE_MAX // limits.EDGES_MAX
    whole = [edges(n, limits.EDGES_MAX) for n in range(most)]
    done = run_flow([make_event("memory", id="m", content="tea"), *whole, edges(most, 1), edges(0, 1)])
    assert [one["outcome"] for one in done.receipts] == [*["updated"] * most, "unchanged"]
    assert [one["line"] for one in done.rejected] == [most + 2]


def test_a_memory_is_superseded_by_so_many() -> None:
    most = limits.SUPERSEDED_MAX

    def supersede(*numbers: int) -> dict[str, Any]:
        given = [{"source": f"m{n}", "target": "old", "type": "supersedes"} for n in numbers]
        return make_event("graph.edges", edges=given, receipt=True)

    memories = [make_event("memory", id=f"m{n}", content="tea") for n in range(most + 1)]
    old = make_event("memory", id="old", content="tea")
    archived = make_event("graph.archive", edges=supersede(3)["edges"], receipt=True)
    done = run_flow([*memories, old, supersede(*range(most)), supersede(most), archived, supersede(most)])
    assert [one["outcome"] for one in done.receipts] == ["updated"] * 3
    assert [one["line"] for one in done.rejected] == [most + 4]


def test_long_text_is_found_by_its_beginning() -> None:
    read = "tea " * (limits.READ_CHARACTERS // 4)
    told = [make_event("memory", id=name, content=read + rest) for name, rest in (("all", "tea"), ("part", "walnut"))]
    asked = [make_event("recall", query="walnut", mode="relevance"), make_event("memory.get", memory_id="part")]
    done = run_flow([make_event("memory", id="short", content="walnut", receipt=True), *told, *asked])
    assert [(one["memory_id"], one["code"]) for one in done.receipts] == [
        ("short", None), ("all", "READ_IN_PART"), ("part", "READ_IN_PART")
    ]  # fmt: skip
    recalled, got = done.responses
    scores = {memory["id"]: memory["score"] for memory in recalled["memories"]}
    assert scores["all"] == scores["part"] < scores["short"]
    assert got["versions"][0]["content"].endswith("walnut")


OWNER: dict[str, Any] = {"tenant_id": "acme", "user_id": "ann"}
MEMORY = OWNER | {"type": "memory", "content": "Tea."}


def refused(value: bytes) -> dict[str, str]:
    with pytest.raises(InvalidRecord) as raised:
        (parse_control if b"tenant.settings" in value else parse)(value)
    return {one.field: one.problem for one in raised.value.fields}


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


STRANGE: tuple[Any, ...] = (
    None, True, [], {}, [[]], [None], {"": ""}, {"a": {"b": [1]}}, "", " ", "*", "..", "a/b", "\u0000", "a\u0000b",
    "\n", "\u202egnp.exe", "\u200b", "\ufeff", "e\u0301", "ß", "İ", "\U0001f469\u200d\U0001f467", "' OR 1=1 --",
    "{{7*7}}", "%s%n", "NaN", "__proto__", "x" * 513, "\u0e01" * 200, "\ufdfa" * 100, "\ud800", ["x"] * 2_000, 0, -1,
    1.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 1e308, 5e-324, 9_999_999_999, -62_135_596_800_001, "yesterday",
    253_402_300_800_000, "2026-02-30T00:00:00Z", "30000-01-01T00:00:00Z", "2026-06-30T23:59:60Z",
)  # fmt: skip


def test_strange_values_in_any_field_cause_no_internal_error() -> None:
    draw, lines = Random(1), list[bytes]()
    for _ in range(share(12)):
        kind = draw.choice([*MODELS])
        event = make_event(kind, **LEAST.get(kind, {}))
        for _ in range(draw.randint(1, 3)):
            event[draw.choice([*MODELS[kind].model_fields])] = draw.choice(STRANGE)
        lines.append(json.dumps(event, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass"))
    done = process(lines, Settings(partitions=1))
    codes = {one["error"]["code"] for one in [*done.rejected, *done.responses] if one.get("error")}
    assert codes >= {"invalid_event", "invalid_json", "unknown_type"}
    assert "internal_error" not in codes


@given(st.text(), st.integers(1, 3_000))
def test_long_text_is_cut_at_a_whole_character(text: str, times: int) -> None:
    content = text * times
    read = embedding_input(None, content)
    assert content.startswith(read)
    size = len(read.encode())
    assert size <= EMBEDDED_BYTES
    assert read == content or size > EMBEDDED_BYTES - 4


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


def refused_fields(leaf: Leaf, value: object) -> set[str]:
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


def test_the_schemas_have_numbers_at_every_depth() -> None:
    names = {leaf.name for leaf in NUMBERS}
    assert {"recall.k", "recall.decay.tau_days", "recall.weights.recency", "graph.edges.edges.weight"} <= names
    assert {"quota.limit", "graph.explore.hops", "memory.importance", "recall.reply_to.partition"} <= names


@pytest.mark.parametrize("leaf", [*NUMBERS, *leaves({"boolean"})], ids=lambda leaf: leaf.name)
def test_value_of_another_type_is_refused(leaf: Leaf) -> None:
    values: list[Any] = [0, 1, "yes", "true", []] if leaf.schema["type"] == "boolean" else [True, False, "5", [5], {}]
    for value in values:
        assert dotted(leaf) in refused_fields(leaf, value)


@pytest.mark.parametrize("leaf", NUMBERS, ids=lambda leaf: leaf.name)
@settings(max_examples=share(0.15))
@given(data=st.data())
def test_numbers_beyond_their_bounds_are_refused(leaf: Leaf, data: st.DataObject) -> None:
    if leaf.name in CUT_TO_BOUNDS:
        assert refused_fields(leaf, data.draw(st.integers(-(2**63), 2**63 - 1))) == set()
        return
    if leaf.name in FLOAT32:
        beyond = 3.5e38
        at = ".".join(str(part) for part in leaf.path[:-1])
        assert at in refused_fields(leaf, data.draw(st.floats(min_value=beyond, allow_infinity=False)))
        assert at in refused_fields(leaf, data.draw(st.floats(max_value=-beyond, allow_infinity=False)))
        return
    least = leaf.schema["minimum" if "minimum" in leaf.schema else "exclusiveMinimum"]
    most = leaf.schema["maximum"]
    assert dotted(leaf) in refused_fields(leaf, data.draw(st.integers(int(most) + 1, 2**63 - 1)))
    assert dotted(leaf) in refused_fields(leaf, data.draw(st.integers(-(2**63), int(least) - 1)))
    assert refused_fields(leaf, most) == set()


def dotted(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path))


@pytest.mark.parametrize("leaf", leaves({"array", "object"}), ids=lambda leaf: leaf.name)
def test_more_than_fit_are_refused(leaf: Leaf) -> None:
    schema = leaf.schema
    if schema["type"] == "array":
        beyond: Any = [example(schema["items"], SCHEMAS[leaf.contract]["$defs"])] * (schema["maxItems"] + 1)
    else:
        beyond = {f"n{number}": 1 for number in range(schema["maxProperties"] + 1)}
    assert dotted(leaf) in refused_fields(leaf, beyond)


FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("name", schemas())
def test_the_documented_schema_is_the_models(name: str) -> None:
    documented = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    assert documented == schemas()[name], f"recallflow schema {name} > docs/schemas/{name}.json"


def test_there_is_no_schema_without_a_model() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(schemas())


def test_asyncapi_has_valid_examples_and_topics() -> None:
    document = asyncapi()
    for message in document["components"]["messages"].values():
        for example in message.get("examples", []):
            payload = example["payload"]
            read = Receipt.model_validate if "outcome" in payload else lambda given: parse(orjson.dumps(given))
            read(payload)
    assert {channel["address"] for channel in document["channels"].values()} == {
        *TopicNames().read_topics(), *TopicNames(audit="audit.log").outputs(), *TopicNames().enrichment_output_topics(),
        TopicNames().enrichment,
    }  # fmt: skip


def test_all_references_resolve() -> None:
    document = asyncapi()
    for place in re.findall(rb'"\$ref":"#/([^"]+)"', orjson.dumps(document)):
        found = document
        for name in place.decode().split("/"):
            found = found[name]
