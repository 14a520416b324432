"""No event and no question is larger than its share: each limit refuses what is over it, and says so."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from recallflow import limits
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.operators.graph.write import with_statement
from recallflow.parsing import parse
from recallflow.state.graph_codec import Statement
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
