"""Requests of memories and their errors."""

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import orjson
import pytest

from recallflow.errors import DeliveryFailed, FieldProblem, InvalidRecord, OverQuota, QueryTimeout
from recallflow.responses import ErrorBody, Receipt, Response
from recallflow.telemetry import TRACE_HEADER
from tests.unit.gateway.serving import Engine, Everybody, config_in, local_gateway

ANN = {"tenant_id": "acme", "user_id": "ann"}
QUERY = {"type": "recall", **ANN, "query": "what can't Ann eat?"}
EVENT = {"type": "memory", **ANN, "content": "Ann is allergic to peanuts"}


def test_an_answer_comes_as_the_engine_gave_it(engine: Engine, client: httpx.Client) -> None:
    engine.answer = lambda query: Response(query_id=query.id or "", status="ok", memories=[])
    answered = client.post("/memory/query", json=QUERY | {"id": "q1"})
    assert (answered.status_code, answered.headers["content-type"]) == (200, "application/json")
    assert answered.json() == {"query_id": "q1", "status": "ok", "memories": []}


def test_all_invalid_fields_are_reported_together(client: httpx.Client) -> None:
    answered = client.post("/memory/query", json=QUERY | {"k": "many", "mode": "best", "user_id": ""})
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert (error["code"], {one["field"] for one in error["fields"]}) == ("invalid_event", {"k", "mode", "user_id"})
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
    assert (answered.status_code, answered.json()["error"]) == (status, {"code": code, "message": "why"})
    assert ("retry-after" in answered.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueryTimeout("q", 10, None), 408, "deadline"), (DeliveryFailed("memory.events is away"), 503, "unavailable"),
        (OverQuota("events_per_s", "too many"), 429, "over_quota"),
        (InvalidRecord("id_conflict", [FieldProblem("id", "taken")]), 409, "id_conflict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
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
    engine.in_the_way = "Kafka is unavailable"
    answered = client.post(path, json=body)
    assert (answered.status_code, answered.json()["error"]["code"]) == (503, "unavailable")
    assert "Kafka is unavailable" in answered.text


def test_an_event_is_accepted_with_its_position(engine: Engine, client: httpx.Client) -> None:
    answered = client.post("/memory/events", json=EVENT)
    assert (answered.status_code, answered.json()) == (202, {"position": "memory:0:0", "applied": False})
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
        assert (answered.status_code, "www-authenticate" in answered.headers) == (status, status == 401)
    assert (engine.asked, engine.stored) == ([], [])


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/memory/query", 405)])
def test_unknown_path_is_refused_in_the_same_form(client: httpx.Client, path: str, status: int) -> None:
    answered = client.get(path)
    assert answered.status_code == status
    assert answered.json()["error"]["message"]


def test_probes_report_liveness_and_readiness(engine: Engine, client: httpx.Client) -> None:
    assert (client.get("/livez").text, client.get("/readyz").text) == ("alive\n", "ready\n")
    engine.in_the_way = "Kafka is unavailable"
    refused = client.get("/readyz")
    assert (refused.status_code, refused.text) == (503, "not ready: Kafka is unavailable\n")
    assert client.get("/livez").status_code == 200


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MALFORMED = {
    "words": "peanuts", "no id": "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "half": PARENT[:40],
    "capitals": PARENT.upper(), "long": PARENT + "0" * 10_000, "forbidden version": "ff" + PARENT[2:],
}  # fmt: skip


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


SCOPE = "tenant_id=acme&user_id=ann"
JSON = {"content-type": "application/json"}
IDS = ["p/q", "x/history", "/", "a/", "100%", "%2F", "%252F", "a b+c", "ä/ö?x=1#y", "..", "a;b"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("gateway")
    with local_gateway(config_in(folder)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def raw(client: httpx.Client, method: str, target: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(str(client.base_url)).netloc, timeout=30)
    connection.request(method, target, b"{}" if headers else None, headers or {})
    answered = connection.getresponse()
    found = answered.status, orjson.loads(answered.read())
    connection.close()
    return found


@pytest.mark.parametrize("memory_id", IDS)
def test_memory_ids_with_special_characters_are_reachable(real: httpx.Client, memory_id: str) -> None:
    other = {"x/history": "x"}.get(memory_id, "other")
    for one in (memory_id, other):
        assert real.post("/memory/events", json=EVENT | {"id": one, "content": f"It is {one}."}).status_code == 202
    target = f"/memories/{quote(memory_id, safe='').replace('..', '%2E%2E')}"
    for path, name in ((target, "id"), (f"{target}/history", "id")):
        status, found = raw(real, "GET", f"{path}?{SCOPE}")
        assert (status, {version[name] for version in found.get("versions", ())}) == (200, {memory_id}), path
    assert raw(real, "PATCH", f"{target}?{SCOPE}&wait=applied", JSON)[0] == 400  # nothing is changed by {}
    assert raw(real, "DELETE", f"{target}?{SCOPE}&wait=applied")[0] == 202
    assert raw(real, "GET", f"{target}?{SCOPE}")[0] == 404
    assert raw(real, "GET", f"/memories/{other}?{SCOPE}")[0] == 200


def test_an_id_of_mem0s_may_hold_a_slash(real: httpx.Client) -> None:
    below = "/mem0/acme"
    answered = real.post(f"{below}/memories", json={"messages": "Ann skis.", "user_id": "ann/b"}).json()
    mem0_id = answered["results"][0]["id"]
    assert mem0_id.startswith("ann%2Fb:")
    for target in (f"{below}/memories/{mem0_id}", f"{below}/memories/{quote(mem0_id, safe='')}"):
        status, found = raw(real, "GET", target)
        assert (status, found.get("memory")) == (200, "Ann skis."), target
    assert raw(real, "GET", f"{below}/memories/{mem0_id}/history")[0] == 200


@pytest.mark.parametrize("bad", ["%ff", "a%C3", "%ED%A0%80"])
@pytest.mark.parametrize(
    "target",
    ["/memories/{}?" + SCOPE, "/memories?tenant_id=acme&user_id={}", "/memories?{}=1&" + SCOPE,
     "/mem0/acme/v1/memories/u:{}/", "/mem0/{}/v1/ping/", "/mem0/acme/v1/memories/?user_id={}"],
    ids=["path", "value", "name", "mem0 path", "mem0 tenant", "mem0 value"],
)  # fmt: skip
def test_invalid_utf8_is_refused(engine: Engine, client: httpx.Client, target: str, bad: str) -> None:
    status, said = raw(client, "GET", target.format(bad))
    assert ((status, said["error"]["code"]), engine.asked) == ((400, "invalid_event"), [])


@pytest.mark.parametrize(
    ("method", "path", "given", "says"),
    [
        ("POST", "/memory/events", "wiat=applied", "wait"),
        ("POST", "/memory/events", "wait=applied&wait=stored", "twice"),
        ("POST", "/memory/events/batch", "wait=applied", "body"), ("POST", "/memory/query", "k=5", "body"),
        ("POST", "/graph/trace", "user_id=ann", "body"), ("POST", "/graph/explore", "hops=2", "body"),
        ("POST", "/graph/rollout", "tenant_id=acme", "body"), ("PATCH", "/memories/m", f"{SCOPE}&wiat=applied", "wait"),
        ("DELETE", "/memories/m", f"{SCOPE}&wiat=applied", "wait"),
        ("DELETE", "/memories/m", f"{SCOPE}&user_id=bob", "twice"),
        ("GET", "/memories/m", f"{SCOPE}&enviroment=e", "environment"),
        ("GET", "/graph/rollout", "tenant=acme", "tenant_id"),
        ("POST", "/mem0/acme/v3/memories/add/", "user_id=ann", "not supported"),
        ("POST", "/mem0/acme/v3/memories/search/", "top_k=5", "not supported"),
        ("POST", "/mem0/acme/v3/memories/", "pages=5", "not supported"),
        ("PUT", "/mem0/acme/v1/memories/u:m/", "user_id=ann", "not supported"),
        ("GET", "/mem0/acme/v1/memories/u:m/", "user_id=ann", "not supported"),
        ("GET", "/mem0/acme/v1/memories/", "user_id=ann&user_id=bob", "twice"),
        ("DELETE", "/mem0/acme/v1/memories/", "user_id=ann&user_id=bob", "twice"),
        ("DELETE", "/mem0/acme/v1/memories/u:m/", "delete_linkd=true", "not supported"),
    ],
    ids=lambda value: value.replace("/", " ") if isinstance(value, str) else "",
)  # fmt: skip
def test_unknown_parameter_is_refused_by_name(
    engine: Engine, client: httpx.Client, method: str, path: str, given: str, says: str
) -> None:
    kind = "application/x-ndjson" if path.endswith("batch") else "application/json"
    body = None if method in ("GET", "DELETE") else orjson.dumps(EVENT)
    answered = client.request(method, f"{path}?{given}", content=body, headers={"content-type": kind})
    assert answered.status_code == 400
    [field] = answered.json()["error"]["fields"]
    assert field["field"] in given
    assert says in field["problem"]
    assert (engine.asked, engine.stored) == ([], [])


def test_decimal_parameter_may_begin_with_zeros(engine: Engine, client: httpx.Client) -> None:
    assert client.get(f"/memories?{SCOPE}&filters.min_confidence=00.5").status_code == 200
    assert engine.asked[0][0].model_dump()["filters"]["min_confidence"] == 0.5


def test_ignored_parameters_of_mem0_clients_are_accepted(client: httpx.Client) -> None:
    assert client.get("/mem0/acme/v1/ping/?org_id=o&project_id=p").status_code == 200


def test_forgetting_an_unknown_memory_returns_not_found(engine: Engine, client: httpx.Client) -> None:
    engine.receipt = Receipt(id="m", position="memory:0:0", outcome="unchanged", memory_id="m")
    waited = client.delete(f"/memories/m?{SCOPE}&wait=applied")
    assert (waited.status_code, waited.json()["error"]["code"]) == (404, "not_found")
    assert client.delete(f"/memories/m?{SCOPE}").status_code == 202  # nobody knows yet
    engine.receipt = None
    assert client.delete(f"/memories/m?{SCOPE}&wait=applied").status_code == 202


@pytest.mark.parametrize("wait", ["", "&wait=applied"], ids=["at once", "applied"])
def test_engine_in_the_process_can_always_preview_a_forget(real: httpx.Client, wait: str) -> None:
    refused = real.delete(f"/memories/never?{SCOPE}{wait}")
    assert (refused.status_code, refused.json()["error"]["fields"][0]["field"]) == (404, "memory_id")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (["application/json"], 202), (["Application/JSON ; Charset=UTF-8"], 202),
        (['application/json; charset="utf-8"'], 202), (["application/json; charset=utf-16"], 415),
        (["application/json;x=y; charset=latin-1"], 415), (["application/json; charset=utf-8; charset=utf-16"], 415),
        (["application/json", "application/json"], 415), (["application/json", "text/plain"], 415),
        (["text/plain", "application/json"], 415), (["application/json, text/plain"], 415), ([], 415),
    ],
    ids=["plain", "utf-8", "quoted", "utf-16", "latin-1", "two charsets", "twice", "then text", "text first", "list",
         "none"],
)  # fmt: skip
def test_a_body_is_of_one_type_and_in_utf8(client: httpx.Client, given: list[str], status: int) -> None:
    headers = [("content-type", one) for one in given]
    answered = client.post("/memory/events", content=orjson.dumps(EVENT), headers=headers)
    assert answered.status_code == status, answered.text
    lines = [(name, value.lower().replace("json", "x-ndjson")) for name, value in headers]
    batch = client.post("/memory/events/batch", content=orjson.dumps(EVENT), headers=lines)
    assert batch.status_code == {202: 200}.get(status, status)
