"""POST /memory/query and POST /memory/events, over real HTTP, and the trace of a request."""

from typing import Any

import httpx
import pytest

from recallflow.errors import DeliveryFailed, FieldProblem, InvalidRecord, OverQuota, QueryTimeout
from recallflow.responses import ErrorBody, Response
from recallflow.telemetry import TRACE_HEADER
from tests.unit.gateway.serving import Engine, Everybody

ANN = {"tenant_id": "acme", "user_id": "ann"}
QUERY = {"type": "recall", **ANN, "query": "what can't Ann eat?"}
EVENT = {"type": "memory", **ANN, "content": "Ann is allergic to peanuts"}


def test_an_answer_comes_as_the_engine_gave_it(engine: Engine, client: httpx.Client) -> None:
    engine.answer = lambda query: Response(query_id=query.id or "", status="ok", memories=[])
    answered = client.post("/memory/query", json=QUERY | {"id": "q1"})
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json() == {"query_id": "q1", "status": "ok", "memories": []}


def test_all_invalid_fields_are_reported_together(client: httpx.Client) -> None:
    answered = client.post("/memory/query", json=QUERY | {"k": "many", "mode": "best", "user_id": ""})
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert error["code"] == "invalid_event"
    assert {one["field"] for one in error["fields"]} == {"k", "mode", "user_id"}
    assert all(one["problem"] for one in error["fields"])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("not_found", 404), ("unauthenticated", 401), ("forbidden", 403), ("over_quota", 429), ("too_large", 413),
        ("catching_up", 503),
    ],
)  # fmt: skip
def test_engine_error_code_sets_the_status(engine: Engine, client: httpx.Client, code: str, status: int) -> None:
    engine.answer = lambda _: Response(query_id="q", status="error", error=ErrorBody(code=code, message="why"))
    answered = client.post("/memory/query", json=QUERY)
    assert answered.status_code == status
    assert answered.json()["error"] == {"code": code, "message": "why"}
    assert ("retry-after" in answered.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueryTimeout("q", 10, None), 408, "deadline"),
        (DeliveryFailed("memory.events is away"), 503, "unavailable"),
        (OverQuota("events_per_s", "too many"), 429, "over_quota"),
        (InvalidRecord("id_conflict", [FieldProblem("id", "taken")]), 409, "id_conflict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_error_has_its_http_status(
    engine: Engine, client: httpx.Client, error: Exception, status: int, code: str
) -> None:
    def fail(_: object) -> None:
        raise error

    engine.refuse = fail
    answered = client.post("/memory/query", json=QUERY)
    assert (answered.status_code, answered.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/memory/query", QUERY), ("/mem0/acme/v3/memories/search/", {"query": "tea", "user_id": "ann"})],
    ids=["ours", "mem0"],
)
def test_timeout_reports_the_engine_obstacle(
    engine: Engine, client: httpx.Client, path: str, body: dict[str, str]
) -> None:
    def fail(_: object) -> None:
        raise QueryTimeout("q", 10, None)

    engine.refuse = fail
    assert client.post(path, json=body).status_code == 408
    engine.in_the_way = "Kafka is away"
    answered = client.post(path, json=body)
    assert (answered.status_code, answered.json()["error"]["code"]) == (503, "unavailable")
    assert "Kafka is away" in answered.text


def test_an_event_is_accepted_with_its_position(engine: Engine, client: httpx.Client) -> None:
    answered = client.post("/memory/events", json=EVENT)
    assert answered.status_code == 202
    assert answered.json() == {"position": "memory:0:0", "applied": False}
    assert [event.user_id for event, _ in engine.stored] == ["ann"]


def test_waiting_request_returns_the_receipt(engine: Engine, client: httpx.Client) -> None:
    answered = client.post("/memory/events?wait=applied", json=EVENT).json()
    assert answered["applied"] is True
    assert answered["receipt"]["outcome"] == "created"
    engine.receipt = None
    assert client.post("/memory/events?wait=applied", json=EVENT).json()["applied"] is False


@pytest.mark.parametrize(("path", "body"), [("/memory/query", EVENT), ("/memory/events", QUERY)])
def test_misplaced_body_error_names_the_right_path(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answered = client.post(path, json=body)
    assert answered.status_code == 400
    assert "/memory/" in answered.json()["error"]["fields"][0]["problem"]


def test_only_credentials_become_record_headers(engine: Engine, client: httpx.Client) -> None:
    given = {"Authorization": "Bearer a.b.c", "X-API-Key": "rfk", "X-End-User-Id": "ann", "Cookie": "c=1"}
    client.post("/memory/events", json=EVENT, headers=given)
    assert engine.stored[0][1] == (("authorization", b"Bearer a.b.c"), ("x-api-key", b"rfk"), ("x-end-user-id", b"ann"))


@pytest.mark.parametrize(("code", "status"), [("unauthenticated", 401), ("forbidden", 403)])
def test_unauthorised_request_is_refused_before_the_engine(
    engine: Engine, everybody: Everybody, client: httpx.Client, code: Any, status: int
) -> None:
    def refuse(*_: object) -> None:
        raise InvalidRecord(code, [FieldProblem("", "no")])

    everybody.refuse = refuse
    for path, body in (("/memory/query", QUERY), ("/memory/events", EVENT)):
        answered = client.post(path, json=body)
        assert answered.status_code == status
        assert ("www-authenticate" in answered.headers) == (status == 401)
    assert (engine.asked, engine.stored) == ([], [])


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/memory/query", 405)])
def test_unknown_path_is_refused_in_the_same_form(client: httpx.Client, path: str, status: int) -> None:
    answered = client.get(path)
    assert answered.status_code == status
    assert answered.json()["error"]["message"]


def test_probes_report_liveness_and_readiness(engine: Engine, client: httpx.Client) -> None:
    assert (client.get("/livez").text, client.get("/readyz").text) == ("alive\n", "ready\n")
    engine.in_the_way = "Kafka is away"
    refused = client.get("/readyz")
    assert (refused.status_code, refused.text) == (503, "not ready: Kafka is away\n")
    assert client.get("/livez").status_code == 200


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MALFORMED = {
    "words": "peanuts",
    "no id": "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    "half": PARENT[:40],
    "capitals": PARENT.upper(),
    "long": PARENT + "0" * 10_000,
    "forbidden version": "ff" + PARENT[2:],
}


def test_trace_of_the_caller_reaches_the_engine_and_returns(engine: Engine, client: httpx.Client) -> None:
    for path, body in (("/memory/query", QUERY), ("/memory/events", EVENT)):
        answered = client.post(path, json=body, headers={TRACE_HEADER: PARENT, "x-api-key": "k"})
        assert answered.headers[TRACE_HEADER] == PARENT
    refused = client.post("/memory/query", json={}, headers={TRACE_HEADER: PARENT})
    assert (refused.status_code, refused.headers[TRACE_HEADER]) == (400, PARENT)
    for _, headers in (*engine.asked, *engine.stored):
        assert dict(headers) == {"x-api-key": b"k", TRACE_HEADER: PARENT.encode()}


@pytest.mark.parametrize("given", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_parent_is_none(engine: Engine, client: httpx.Client, given: str) -> None:
    answered = client.post("/memory/query", json=QUERY, headers={TRACE_HEADER: given})
    assert answered.status_code == 200
    assert TRACE_HEADER not in answered.headers
    assert [headers for _, headers in engine.asked] == [()]
