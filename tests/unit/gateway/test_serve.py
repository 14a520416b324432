"""The gateway: credentials, host names, workspaces, files and documented requests."""

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread, Timer
from typing import Any
from unittest.mock import Mock

import httpx
import orjson
import pytest
from confluent_kafka import KafkaError
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.explorer import permitted_owners
from recallflow.connectors.http.requests import Limits
from recallflow.connectors.kafka import control as kafka_control
from recallflow.connectors.kafka.control import ControlTable
from recallflow.control import ControlHistory, OwnerMapping
from recallflow.credentials import ApiKeyText, Headers
from recallflow.errors import FieldProblem, InvalidRecord, UsageError
from recallflow.events import Event
from recallflow.flows import gateway as gateway_flow
from recallflow.flows.admission import LiveAdmission
from recallflow.flows.config import Config, ServeSettings
from recallflow.flows.gateway import TenantRollouts, file_store
from recallflow.flows.settings import AuthSettings
from recallflow.kafka_options import KafkaOptions
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.owner import Owner
from tests.conftest import GIVE_UP_S
from tests.pages import readme
from tests.unit.connectors.fake_consumer import FakeKafka
from tests.unit.gateway.serving import (
    Engine,
    Everybody,
    Served,
    Start,
    Undecided,
    config_in,
    gateway,
    local_gateway,
    served,
    serving,
)
from tests.unit.senders import SECRET, api_key, token
from tools.broker import HOST, free_ports

ANN = {"tenant_id": "acme", "user_id": "ann"}
EVENT = {"type": "memory", **ANN, "content": "Ann is allergic to peanuts"}
QUERY = {"type": "recall", **ANN, "query": "what can't Ann eat?"}
DECISION = {"tenant_id": "acme", "mode": "shadow", "by": "kim", "why": "a week of it"}
TENANTS, ANNS, DEPLOYMENTS, REVOKED, OTHERS, NARROW = (ApiKeyText.new() for _ in range(6))


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of keys that were made, and of one that was taken back."""
    before_ms = time.time_ns() // 1_000_000 - 60_000
    made = [
        api_key(TENANTS, timestamp=before_ms), api_key(ANNS, end_users=["ann"], timestamp=before_ms),
        api_key(DEPLOYMENTS, "*", timestamp=before_ms), api_key(OTHERS, "globex", timestamp=before_ms),
        api_key(NARROW, end_users=["bea"], environments=["test"], projects=["atlas"], timestamp=before_ms),
        api_key(REVOKED, timestamp=before_ms), api_key(REVOKED, revoked=True, timestamp=before_ms + 1_000),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("control") / "control.jsonl"
    path.write_bytes(b"".join(event.model_dump_json(exclude_none=True).encode() + b"\n" for event in made))
    return path


@pytest.fixture(scope="module")
def guarded(control: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = config_in(tmp_path_factory.mktemp("guarded"), auth=AuthSettings(secret=SECRET.decode()))
    with local_gateway(config, control) as url:
        yield url


def headers(key: ApiKeyText, **more: str) -> dict[str, str]:
    return {"x-api-key": key.text(), **more}


REFUSED: list[tuple[str, dict[str, str], int]] = [
    ("nothing", {}, 401), ("an unknown key", headers(ApiKeyText.new()), 401), ("a revoked key", headers(REVOKED), 401),
    ("another tenant's key", headers(OTHERS), 401),
    ("a key and a token", headers(TENANTS, authorization="Bearer a.b.c"), 401),
    ("a token that is none", {"authorization": "Bearer a.b.c"}, 401),
    ("an expired token", {"authorization": f"Bearer {token(SECRET, 'HS256', None, exp=1_600_000_000)}"}, 401),
    ("another tenant's token", {"authorization": f"Bearer {token(SECRET, 'HS256', None, tenant_id='globex')}"}, 403),
    ("another user's", headers(TENANTS, **{"x-end-user-id": "bob"}), 403),
]  # fmt: skip
LET_IN: list[tuple[str, dict[str, str]]] = [
    ("the tenant's key", headers(TENANTS)), ("ann's key", headers(ANNS)),
    ("the deployment's key", headers(DEPLOYMENTS)),
    ("a token", {"authorization": f"Bearer {token(SECRET, 'HS256', None)}"}),
    ("for ann", headers(TENANTS, **{"x-end-user-id": "ann"})),
]  # fmt: skip


@pytest.mark.parametrize(("given", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_invalid_credentials_are_refused_on_every_route(guarded: str, given: dict[str, str], status: int) -> None:
    scope = "tenant_id=acme&user_id=ann"
    with httpx.Client(base_url=guarded, headers=given, timeout=30) as client:
        answers = [
            client.post("/memory/query", json=QUERY), client.post("/memory/events", json=EVENT),
            *(client.get(f"{path}?{scope}") for path in ("/memories", "/episodes", "/graph/status", "/graph/explore")),
            client.get(f"/memories/m?{scope}"), client.delete(f"/memories/m?{scope}"),
            client.patch(f"/memories/m?{scope}", json={"content": "else"}),
            client.get(f"/graph/trace?{scope}&query=tea"), client.post("/graph/rollout", json=DECISION),
        ]  # fmt: skip
    assert {one.status_code for one in answers} == {status}
    assert not any(secret in one.text for one in answers for secret in given.values())


@pytest.mark.parametrize("given", [case[1] for case in LET_IN], ids=[case[0] for case in LET_IN])
def test_valid_credentials_are_accepted(guarded: str, given: dict[str, str]) -> None:
    with httpx.Client(base_url=guarded, headers=given, timeout=30) as client:
        assert client.post("/memory/events?wait=applied", json=EVENT).json()["applied"] is True
        assert client.post("/memory/query", json=QUERY).json()["memories"][0]["content"] == EVENT["content"]


FORGED = f"rfk_{NARROW.name}_{ApiKeyText.new().secret}"  # who knows the name of a key does not know its secret
BEAS_TOKEN = token(SECRET, "HS256", None, end_users=["bea"], environments=["test"], projects=["atlas"])


BEAS = [headers(NARROW), {"authorization": f"Bearer {BEAS_TOKEN}"}, headers(NARROW, **{"x-end-user-id": "bea"})]


@pytest.mark.parametrize("given", BEAS)
def test_ids_left_out_are_those_of_the_credentials(guarded: str, given: dict[str, str]) -> None:
    with httpx.Client(base_url=guarded, headers=given, timeout=30) as client:
        bare = {"type": "memory", "content": "Bea has a boat"}
        made = client.post("/memory/events?wait=applied", json=bare)
        assert made.json()["receipt"]["outcome"] == "created", made.text
        lines = client.post("/memory/events/batch", content=b'{"type": "memory", "content": "Bea sails"}\n',
                            headers={"content-type": "application/x-ndjson"})  # fmt: skip
        assert "position" in lines.json()
        query = {"type": "recall", "query": "Has Bea a boat?"}
        answers = [
            client.post("/memory/query", json=query),
            client.post("/memory/query", json=query | {"tenant_id": "acme", "user_id": "bea", "environment": "test"}),
            client.get("/memories"), client.get(f"/memories/{made.json()['receipt']['memory_id']}"),
        ]  # fmt: skip
        assert [one.status_code for one in answers] == [200] * 4
        assert {one["content"] for one in answers[0].json()["memories"]} == {"Bea has a boat", "Bea sails"}
        assert answers[0].json()["memories"][0]["id"] == answers[1].json()["memories"][0]["id"]
        # What is given is judged, and never replaced.
        for wrong in ({"tenant_id": "globex"}, {"user_id": "ann"}, {"environment": "prod"}):
            assert client.post("/memory/query", json=query | wrong).status_code in (401, 403)
        assert client.post("/memory/events", json=bare | {"user_id": None}).status_code == 400


@pytest.mark.parametrize(
    ("given", "status"), [({}, 401), (headers(TENANTS), 400), (headers(DEPLOYMENTS), 400), ({"x-api-key": FORGED}, 401)]
)
def test_ids_that_credentials_do_not_name_are_missed(guarded: str, given: dict[str, str], status: int) -> None:
    answer = httpx.post(f"{guarded}/memory/query", json={"type": "recall", "query": "tea?"}, headers=given, timeout=30)
    assert (answer.status_code, "tea" in answer.text) == (status, False)
    for_ann = headers(TENANTS, **{"x-end-user-id": "ann"})
    asked = httpx.post(f"{guarded}/memory/query", json={"type": "recall", "query": "tea?"}, headers=for_ann, timeout=30)
    assert asked.status_code == 200  # the tenant of the key, and the user of the header


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "evil.example:127.0.0.1", "localhost.x", "", "::1"],
)
def test_request_with_a_foreign_host_is_refused(guarded: str, host: str) -> None:
    known = headers(TENANTS, host=host)
    with httpx.Client(base_url=guarded, headers=known, timeout=30) as client:
        answers = [
            *(client.get(path) for path in ("/explore", "/metrics", "/readyz", "/openapi.json", "/nowhere")),
            client.get("/memories?tenant_id=acme&user_id=ann"), client.post("/memory/query", json=QUERY),
            client.post("/memory/events", json=EVENT),
        ]  # fmt: skip
    assert {(one.status_code, one.json()["error"]["code"]) for one in answers} == {(421, "misdirected")}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080"])
def test_requests_with_local_host_names_are_answered(guarded: str, host: str) -> None:
    assert httpx.get(f"{guarded}/readyz", headers={"host": host}, timeout=30).status_code == 200


@pytest.mark.parametrize(("listens", "status", "warned"), [("127.0.0.2", 421, False), ("0.0.0.0", 200, True)])
def test_listening_address_decides_host_names_and_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, listens: str, status: int, warned: bool
) -> None:
    config = config_in(tmp_path)
    config = replace(config, serve=replace(config.serve, host=listens))
    with local_gateway(config) as url:
        at = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{at}/readyz", timeout=30).status_code == 200
        assert httpx.get(f"{at}/readyz", headers={"host": "memory.example"}, timeout=30).status_code == status
    assert any(record.name.endswith("flows.gateway") and listens in record.args for record in caplog.records
               if record.args) is warned  # fmt: skip


def test_key_of_one_user_is_forbidden_for_another(guarded: str) -> None:
    asked = QUERY | {"user_id": "bob"}
    answered = httpx.post(f"{guarded}/memory/query", json=asked, headers=headers(ANNS), timeout=30)
    assert (answered.status_code, answered.json()["error"]["code"]) == (403, "forbidden")


def test_decisions_need_a_key_for_all_tenants(guarded: str, control: Path) -> None:
    url = f"{guarded}/graph/rollout"
    for key in (TENANTS, ANNS):
        assert httpx.post(url, json=DECISION, headers=headers(key), timeout=30).status_code == 403
    assert b"graph.rollout" not in control.read_bytes()
    decided = httpx.post(url, json=DECISION, headers=headers(DEPLOYMENTS), timeout=30)
    assert (decided.status_code, decided.json()) == (202, DECISION)
    shown = httpx.get(f"{url}?tenant_id=acme", headers=headers(TENANTS), timeout=30).json()
    assert (shown["mode"], shown["by"]) == ("shadow", f"kim (key {DEPLOYMENTS.name})")
    status = httpx.get(f"{guarded}/graph/status", params=ANN, headers=headers(TENANTS), timeout=30).json()
    assert status["graph_status"]["rollout"]["mode"] == "shadow"
    assert httpx.get(f"{url}?tenant_id=acme", headers=headers(ANNS), timeout=30).status_code == 403
    assert control.read_bytes().count(b"graph.rollout") == 1


@pytest.mark.parametrize("left_out", ["tenant_id", "mode", "by", "why"])
def test_a_decision_says_all_of_it(guarded: str, left_out: str) -> None:
    given = {name: value for name, value in DECISION.items() if name != left_out}
    answered = httpx.post(f"{guarded}/graph/rollout", json=given, headers=headers(DEPLOYMENTS), timeout=30)
    assert (answered.status_code, [one["field"] for one in answered.json()["error"]["fields"]]) == (400, [left_out])


def test_pending_query_is_answered_before_the_end() -> None:
    engine, answers = Engine(), list[int]()
    engine.release.clear()
    with gateway(engine) as client:
        url = f"{client.base_url}/memory/query"
        asking = Thread(target=lambda: answers.append(httpx.post(url, json=QUERY, timeout=30).status_code))
        asking.start()
        while not engine.under_way:
            assert asking.is_alive()
        Timer(0.2, engine.release.set).start()  # after the server was told to stop
    asking.join()
    assert answers == [200]


def test_only_pages_of_configured_origins_may_call() -> None:
    page = "https://chat.example.com"
    app = build_app(Engine(), Everybody(), Undecided(), Limits(), CollectorRegistry(), origins=(page,))
    method = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    with served(app) as url:
        asked = [httpx.options(f"{url}/memory/query", headers=method | {"origin": one}) for one in (page, "https://b")]
        refused = httpx.post(f"{url}/memory/query", headers={"origin": page})
    assert [one.status_code for one in asked] == [200, 400]
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (415, page)
    with pytest.raises(UsageError, match="cors_origins"):
        ServeSettings(cors_origins=("*",))


def test_unwritable_decision_is_not_an_internal_error(tmp_path: Path) -> None:
    decisions = ControlHistory()
    present = LiveAdmission(Authoriser(decisions, Trust("off")))
    rollouts = TenantRollouts(present, decisions, file_store(tmp_path, decisions))
    with served(build_app(Engine(), Everybody(), rollouts, Limits(), CollectorRegistry())) as url:
        refused = httpx.post(f"{url}/graph/rollout", json=DECISION, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert "--control" in refused.text
        assert httpx.get(f"{url}/graph/rollout", params={"tenant_id": "acme"}).json()["mode"] == "off"


DOCUMENT = build_app(Engine(), Everybody(), Undecided(), Limits(), CollectorRegistry()).openapi()
IN_PROJECT = {"tenant_id": "acme", "user_id": "ann", "project_id": "git@github.com:webrenew/memories.git"}
AUTO = {"x-workspace-routing": "auto", "x-organisations": "other, WebRenew"}
MEMORY = {"type": "memory", **IN_PROJECT, "content": "Deploys are on Fridays."}
BODIES: dict[str, dict[str, Any]] = {
    "POST /memory/query": {"type": "recall", "query": "when?", **IN_PROJECT},
    "POST /memory/events": MEMORY, "POST /memory/events/batch": MEMORY,
    "POST /graph/trace": {"query": "when?", **IN_PROJECT}, "POST /graph/explore": IN_PROJECT,
    "PATCH /memories/{memory_id}": {"content": "Deploys are on Mondays."},
}  # fmt: skip
ROUTED = [
    f"{method.upper()} {path}"
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if any(one["name"] == "x-workspace-routing" for one in operation.get("parameters", ()))
]


def send(client: httpx.Client, name: str, headers: dict[str, str]) -> httpx.Response:
    method, path = name.split(" ")
    body = BODIES.get(f"{method} {path.removeprefix('/api/sdk/v1').removeprefix('/api')}")
    parameters = IN_PROJECT | ({"query": "when?"} if path.endswith("/trace") else {})
    kind = "x-ndjson" if path.endswith("/batch") else "json"
    return client.request(
        method, path.replace("{memory_id}", "m-1"), params=parameters if body is None or method == "PATCH" else None,
        content=None if body is None else orjson.dumps(body),
        headers=headers | ({} if body is None else {"content-type": f"application/{kind}"}),
    )  # fmt: skip


@pytest.mark.parametrize("name", ROUTED)
def test_auto_routes_to_the_projects_workspace(engine: Engine, client: httpx.Client, name: str) -> None:
    send(client, name, AUTO | {"x-end-user-id": "ann"})
    send(client, name, {"x-end-user-id": "ann"})
    found = [(event.user_id, dict(headers)["x-end-user-id"]) for event, headers in [*engine.asked, *engine.stored]]
    assert found == [("WebRenew", b"WebRenew"), ("ann", b"ann")]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-workspace-routing": "always"}, {"x-workspace-routing": ""},
        {"x-workspace-routing": "auto", "x-organisations": b"w\xc3\xa9brenew"},
        [("x-workspace-routing", "auto"), ("x-workspace-routing", "auto")],
    ],
)  # fmt: skip
def test_unreadable_routing_headers_are_refused(client: httpx.Client, headers: Any) -> None:
    answered = client.post("/memory/events", json=MEMORY, headers=headers)
    assert (answered.status_code, answered.json()["error"]["code"]) == (400, "invalid_event")
    assert answered.json()["error"]["fields"][0]["field"] in AUTO


def test_admission_judges_the_workspace_by_mapping(tmp_path: Path) -> None:
    anns, both = ApiKeyText.new(), ApiKeyText.new()
    decided = time.time_ns() // 1_000_000 - 60_000
    mapping = {"type": "owner.mapping", "tenant_id": "acme", "name": "webrenew", "workspace": "org_w"}
    control = tmp_path / "control.jsonl"
    control.write_bytes(
        b"".join(
            event.model_dump_json(exclude_none=True).encode() + b"\n"
            for event in (
                api_key(anns, end_users=["ann"], timestamp=decided),
                api_key(both, end_users=["ann", "org_w"], timestamp=decided),
                OwnerMapping.model_validate(mapping | {"timestamp": decided}),
            )
        )
    )
    with local_gateway(config_in(tmp_path), control) as url, httpx.Client(base_url=url, timeout=30) as client:
        routed = {"x-workspace-routing": "auto", "x-end-user-id": "ann"}
        assert send(client, "POST /memory/events", routed | {"x-api-key": anns.text()}).status_code == 403
        assert send(client, "POST /memory/events", routed | {"x-api-key": both.text()}).status_code == 202
        bobs = routed | {"x-end-user-id": "bob", "x-api-key": both.text()}
        assert send(client, "POST /memory/events", bobs).status_code == 403
        found = client.get(
            "/memories", params={"tenant_id": "acme", "user_id": "org_w"}, headers={"x-api-key": both.text()}
        )
        assert [one["content"] for one in found.json()["memory_page"]["memories"]] == [MEMORY["content"]]


@pytest.mark.parametrize(
    ("alias", "path"),
    [(f"/api/sdk/v1/graph/{name}", f"/graph/{name}") for name in ("status", "trace", "explore", "rollout")]
    + [("/api/graph/explore", "/graph/explore")],
)
def test_an_alias_is_documented_and_answers_as_its_route(alias: str, path: str) -> None:
    assert DOCUMENT["paths"][alias].keys() == DOCUMENT["paths"][path].keys()
    asked = []
    for one in (alias, path):
        with gateway(engine := Engine()) as client:
            parameters = {"tenant_id": "acme"} if one.endswith("rollout") else IN_PROJECT
            parameters = parameters | ({"query": "when?"} if one.endswith("trace") else {})
            answered = client.get(one, params=parameters)
            asked.append((answered.status_code, answered.json(), [query for query, _ in engine.asked]))
    assert (asked[0], asked[0][0]) == (asked[1], 200)


FROM_ELSEWHERE = re.compile(rb"""(?:src|href|from|import|url)\s*[=(]?\s*["']?(?:https?:)?//""")


def reached(client: httpx.Client) -> dict[str, httpx.Response]:
    found = {page: client.get(page) for page in ("/", "/docs", "/explore")}
    ahead = [*found]
    while ahead:
        text = found[ahead.pop()].text
        named = re.findall(r'"(?:explore/|\./)([\w/]+\.(?:js|css|svg))"', text) + re.findall(r'URL\("(\w+\.js)"', text)
        for name in named:
            if name not in found:
                found[name] = client.get(f"/explore/{name}")
                ahead.append(name)
    return found


def test_every_file_is_sent_under_a_strict_policy(client: httpx.Client) -> None:
    files = reached(client)
    assert {"main.js", "reference.js", "worker.js", "library/d3.js", "colours.css", "icon.svg"} <= files.keys()
    for name, response in files.items():
        assert response.status_code == 200, name
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        ours = b"" if name.startswith("library/") else response.content
        assert not FROM_ELSEWHERE.search(ours.replace(b"http://www.w3.org/2000/svg", b"")), name


def test_a_file_that_is_there_is_not_sent_again(client: httpx.Client) -> None:
    tag = client.get("/explore/main.js").headers["etag"]
    again = client.get("/explore/main.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers


@pytest.mark.parametrize("name", ["nothing.js", "../routes.py", "%2e%2e/routes.py", "..%2froutes.py", "", "library/"])
def test_no_other_file_is_sent(client: httpx.Client, name: str) -> None:
    response = client.get(f"/explore/{name}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_owners_are_listed_as_far_as_credentials_reach(
    engine: Engine, everybody: Everybody, client: httpx.Client
) -> None:
    ann, bo, eve = (
        Owner(tenant, "prod", user) for tenant, user in (("acme", "ann"), ("acme", "bo"), ("globex", "eve"))
    )
    engine.known = [eve, bo, ann]

    def listed() -> list[str]:
        return [one["user_id"] for one in client.get("/explore/owners").json()["owners"]]

    def refuse(event: Event, _: Headers) -> None:
        if event.tenant_id != "acme":
            raise InvalidRecord("unauthenticated", [FieldProblem("", "an API key of another tenant")])
        if event.user_id != "ann":
            raise InvalidRecord("forbidden", [FieldProblem("user_id", "for other users")])

    assert listed() == ["ann", "bo", "eve"]
    everybody.refuse = refuse
    assert listed() == ["ann"]
    engine.known = [eve]
    assert client.get("/explore/owners").status_code == 401


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gateway.md"
ADDRESS = "localhost:8080"
SAID = "Ann is allergic to peanuts."
CHANGED = "Ann is allergic to nuts."


@pytest.fixture
def documented(start: Start, tmp_path: Path) -> Iterator[Served]:
    with serving(start, "--state-dir", tmp_path / "memories") as documented:
        yield documented


def requests() -> list[str]:
    """The requests that the page shows."""
    [shown] = [one for one in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S) if "curl " in one]
    return re.split(r"^(?=curl )", shown, flags=re.M)[1:]


def ask(url: str, request: str) -> tuple[int, dict[str, Any]]:
    assert request.count(ADDRESS) == 1
    ours = request.replace(ADDRESS, url.removeprefix("http://")).replace("curl ", "curl -sS -w '\\n%{http_code}' ", 1)
    done = subprocess.run(["bash", "-c", ours], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    body, status = done.stdout.splitlines()
    return int(status), orjson.loads(body)


@pytest.mark.examples
@pytest.mark.needs("curl")
def test_the_requests_of_the_page_are_answered_as_it_says(documented: Served) -> None:
    store, recall, listing, change, forget, routed = requests()
    memory = f"curl '{ADDRESS}/memories/m-1?tenant_id=acme&user_id=ann'"
    status, stored = ask(documented.url, store)
    assert (status, stored["applied"], stored["receipt"]["memory_id"]) == (202, True, "m-1")
    status, found = ask(documented.url, recall)
    assert (status, [(one["id"], one["content"]) for one in found["memories"]]) == (200, [("m-1", SAID)])
    status, found = ask(documented.url, listing)
    page = found["memory_page"]["memories"]
    assert (status, [(one["id"], one["content"]) for one in page]) == (200, [("m-1", SAID)])
    status, changed = ask(documented.url, change)
    assert (status, changed["position"].startswith("local:")) == (202, True)
    assert ask(documented.url, memory)[1]["versions"][0]["content"] == CHANGED
    status, forgotten = ask(documented.url, forget)
    assert ((status, forgotten["position"].startswith("local:")), ask(documented.url, memory)[0]) == ((202, True), 404)
    assert ask(documented.url, routed)[0] == 202
    workspaces = f"curl '{ADDRESS}/memories?tenant_id=acme&user_id=webrenew'"
    assert len(ask(documented.url, workspaces)[1]["memory_page"]["memories"]) == 1


@pytest.mark.examples
@pytest.mark.needs("curl")
def test_the_gateway_answers_as_the_readme_asks(start: Start, cli: Callable[..., Any], tmp_path: Path) -> None:
    (block,) = readme("sh gateway")
    serve, ask = block.splitlines()
    memory = tmp_path / "memory"
    assert cli("remember", "I moved from Leeds to Porto in March", "--state-dir", memory).returncode == 0
    words = [str(memory) if word == "memory" else word for word in shlex.split(serve)]
    assert words[:2] == ["recallflow", "serve"]
    with serving(start, *words[2:]) as documented:
        asked = shlex.split(ask.replace("http://127.0.0.1:8080", documented.url))
        done = subprocess.run(asked, capture_output=True, check=True, timeout=GIVE_UP_S)
        page = subprocess.run(["curl", f"{documented.url}/explore"], capture_output=True, check=True, timeout=GIVE_UP_S)
    assert [one["content"] for one in orjson.loads(done.stdout)["memories"]] == ["I moved from Leeds to Porto in March"]
    assert page.stdout.startswith(b"<!doctype html>")


def test_a_gateway_that_reads_no_decisions_any_more_refuses_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    config = replace(config, kafka=KafkaOptions(f"{HOST}:{free_ports(None)[0]}", {"log_level": "0"}))
    config = replace(config, serve=replace(config.serve, port=0, timeout_s=1.0))
    kafka = FakeKafka(**{config.topics.control: 1})
    monkeypatch.setattr(kafka_control, "ControlTable", partial(ControlTable, new_consumer=kafka.consumer))
    seen: list[httpx.Response] = []

    def served_until_it_fails(app: Any, *_: Any) -> None:
        with served(app) as url, httpx.Client(base_url=url, timeout=30) as client:
            assert "Kafka has not answered yet" in client.get("/readyz").text
            kafka.fail(config.topics.control, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
            kafka.await_(lambda: "control topic" in client.get("/readyz").text)
            seen.extend([
                client.get("/readyz"), client.post("/memory/query", json={"type": "user.stats", **ANN}),
                client.post("/memory/events", json={"type": "memory", "content": "x", **ANN}),
                client.get("/memories", params=ANN), client.get("/graph/rollout?tenant_id=acme"),
                client.post("/graph/rollout", json=DECISION),
            ])  # fmt: skip

    monkeypatch.setattr(gateway_flow, "serve", served_until_it_fails)
    gateway_flow.serve_kafka(config)
    assert [one.status_code for one in seen] == [503] * 6
    assert all(f"{config.topics.control}:0: cannot be read: " in one.text for one in seen)


def test_key_without_permitted_owners_gets_an_empty_list() -> None:
    handler = Mock(**{"service.owners.return_value": [Owner("a", "e", "u"), Owner("b", "e", "u")]})
    handler.admission.check.side_effect = [InvalidRecord.of(code, "no") for code in ("forbidden", "unauthenticated")]
    assert permitted_owners(handler, ()) == []
