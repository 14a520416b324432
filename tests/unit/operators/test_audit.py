"""The access record: who asked for whose memory and the outcome, without any text."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from recallflow.credentials import ApiKeyText
from recallflow.operators.audit import NUMBER
from recallflow.outputs import Audited, Output
from recallflow.records import Principal, Refusal
from recallflow.schema import schemas
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness

Event = dict[str, Any]

ANN = {"tenant_id": "acme", "user_id": "ann"}
TEXT, QUESTION = "The vault opens at nine", "When does the vault open?"
SENDER = Principal("key-1", ("p",))
FIELDS = {"type", "time", "principal", "tenant_id", "user_id", "environment", "id", "position", "status", "code"}


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "state", rules={"audited": True})


def audits(outputs: list[Output]) -> list[Event]:
    found = [one for one in outputs if isinstance(one, Audited)]
    assert {one.number for one in found} <= {NUMBER}
    assert not any(word in one.body.decode() for one in found for word in (TEXT, QUESTION, "vault"))
    records = [orjson.loads(one.body) for one in found]
    assert all(record.keys() == {*FIELDS, "memories"} for record in records)
    return records


def memory(number: int, **fields: Any) -> Event:
    return ANN | {"type": "memory", "id": f"m{number}", "content": TEXT, "project_id": "p"} | fields


def test_answer_is_audited_with_sender_and_count(harness: Harness) -> None:
    harness.run(MEMORIES, memory(0), memory(1), memory(2, project_id="q"))
    asked = ANN | {"type": "recall", "id": "q1", "query": QUESTION, "environment": "prod"}
    assert audits(harness.run(QUERIES, asked, principal=SENDER, append_ms=60_000)) == [
        {
            "type": "recall", "time": "1970-01-01T00:01:00Z", "principal": "key-1", "tenant_id": "acme",
            "user_id": "ann", "environment": "prod", "id": "q1", "position": "queries:0:0", "status": "ok",
            "code": None, "memories": 2,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "memories"),
    [
        ({"type": "memory.get", "memory_id": "m0"}, 1), ({"type": "memory.history", "memory_id": "m0"}, 1),
        ({"type": "graph.explore"}, 2), ({"type": "graph.trace", "query": QUESTION}, 2),
        ({"type": "graph.facts", "types": ["opens"]}, 1),
        ({"type": "recall", "query": QUESTION, "k": 1, "max_tokens": 1_000}, 2), ({"type": "user.stats"}, 0),
        ({"type": "episodes.list"}, 0), ({"type": "memories.list"}, 2),
    ],
)  # fmt: skip
def test_every_kind_of_query_is_counted(harness: Harness, question: Event, memories: int) -> None:
    relations = [{"source": "vault", "type": "opens", "target": "nine"}]
    harness.run(MEMORIES, memory(0, relations=relations), memory(1, content="Something else", layer="rule"))
    (record,) = audits(harness.run(QUERIES, ANN | question))
    assert (record["memories"], record["principal"]) == (memories, None)


def test_unanswerable_queries_are_recorded(harness: Harness) -> None:
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "memory.get", "memory_id": "none"}))
    assert (record["status"], record["code"], record["memories"]) == ("error", "not_found", None)
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "graph.status"}, principal=SENDER))
    assert (record["principal"], record["code"]) == ("key-1", "forbidden")


UNKNOWN = Refusal("authorise", "unauthenticated", "", "no credentials")


def test_records_refused_for_their_sender_are_recorded(harness: Harness) -> None:
    refused: Any = {"refusal": UNKNOWN}
    (asked,) = audits(harness.run(QUERIES, ANN | {"type": "recall", "query": QUESTION}, **refused))
    (told,) = audits(harness.run(MEMORIES, memory(0, environment="staging"), **refused))
    assert [asked["code"], told["code"]] == ["unauthenticated"] * 2
    assert [asked["position"], told["position"]] == ["queries:0:0", "memories:0:0"]
    assert (told["type"], told["user_id"], told["environment"], told["id"]) == ("memory", "ann", "staging", "m0")
    (wide,) = audits(harness.run(MEMORIES, memory(1, project_id="q"), principal=SENDER))
    assert (wide["code"], wide["principal"]) == ("forbidden", "key-1")


def test_invalid_event_is_audited_with_its_known_fields(harness: Harness) -> None:
    wrong = {"type": "recall", "tenant_id": TEXT * 20, "user_id": {"name": TEXT}, "id": 7, "query": QUESTION}
    (record,) = audits(harness.run(QUERIES, wrong))
    assert (record["type"], record["tenant_id"], record["user_id"]) == ("recall", None, None)
    assert (record["id"], record["code"]) == ("queries:0:0", "invalid_event")
    assert audits(harness.run(MEMORIES, memory(0, content=None))) == []  # nobody asked, and nobody was kept out


@pytest.mark.parametrize("field", ["tenant_id", "user_id", "environment", "id"])
def test_a_credential_in_an_ids_place_is_not_recorded(harness: Harness, field: str) -> None:
    key = ApiKeyText.new().text()
    (record,) = audits(harness.run(QUERIES, ANN | {"type": "recall", "query": QUESTION, field: key}, refusal=UNKNOWN))
    assert key not in str(record)


def test_an_erasure_is_recorded(harness: Harness) -> None:
    harness.run(MEMORIES, memory(0))
    (record,) = audits(harness.run(MEMORIES, ANN | {"type": "user.erase", "timestamp": 9}))
    assert (record["type"], record["status"], record["environment"]) == ("user.erase", "ok", None)
    (record,) = audits(harness.run(MEMORIES, ANN | {"type": "user.erase"}, principal=SENDER))
    assert (record["status"], record["code"]) == ("error", "forbidden")


def test_schema_has_all_fields_of_the_record() -> None:
    assert schemas()["audit"]["properties"].keys() == {*FIELDS, "memories"}
