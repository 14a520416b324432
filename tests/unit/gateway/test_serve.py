"""`recallflow serve` over a state directory: admission, decisions about rollouts, host names, and the end."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.control import ControlHistory
from recallflow.credentials import ApiKeyText
from recallflow.flows.admission import LiveAdmission
from recallflow.flows.gateway import TenantRollouts, to_file
from recallflow.flows.settings import AuthSettings
from recallflow.operators.authorise import Authoriser, Trust
from tests.unit.gateway.serving import Engine, Everybody, config_in, gateway, local_gateway, served
from tests.unit.senders import SECRET, api_key, token

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
        api_key(TENANTS, timestamp=before_ms),
        api_key(ANNS, end_users=["ann"], timestamp=before_ms),
        api_key(DEPLOYMENTS, "*", timestamp=before_ms),
        api_key(OTHERS, "globex", timestamp=before_ms),
        api_key(NARROW, end_users=["bea"], environments=["test"], projects=["atlas"], timestamp=before_ms),
        api_key(REVOKED, timestamp=before_ms),
        api_key(REVOKED, revoked=True, timestamp=before_ms + 1_000),
    ]
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
    ("nothing", {}, 401),
    ("an unknown key", headers(ApiKeyText.new()), 401),
    ("a revoked key", headers(REVOKED), 401),
    ("another tenant's key", headers(OTHERS), 401),
    ("a key and a token", headers(TENANTS, authorization="Bearer a.b.c"), 401),
    ("a token that is none", {"authorization": "Bearer a.b.c"}, 401),
    ("an expired token", {"authorization": f"Bearer {token(SECRET, 'HS256', None, exp=1_600_000_000)}"}, 401),
    ("another tenant's token", {"authorization": f"Bearer {token(SECRET, 'HS256', None, tenant_id='globex')}"}, 403),
    ("another user's", headers(TENANTS, **{"x-end-user-id": "bob"}), 403),
]
LET_IN: list[tuple[str, dict[str, str]]] = [
    ("the tenant's key", headers(TENANTS)),
    ("ann's key", headers(ANNS)),
    ("the deployment's key", headers(DEPLOYMENTS)),
    ("a token", {"authorization": f"Bearer {token(SECRET, 'HS256', None)}"}),
    ("for ann", headers(TENANTS, **{"x-end-user-id": "ann"})),
]


@pytest.mark.parametrize(("given", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_invalid_credentials_are_refused_on_every_route(guarded: str, given: dict[str, str], status: int) -> None:
    scope = "tenant_id=acme&user_id=ann"
    with httpx.Client(base_url=guarded, headers=given, timeout=30) as client:
        answers = [
            client.post("/memory/query", json=QUERY),
            client.post("/memory/events", json=EVENT),
            *(client.get(f"{path}?{scope}") for path in ("/memories", "/episodes", "/graph/status", "/graph/explore")),
            client.get(f"/memories/m?{scope}"),
            client.delete(f"/memories/m?{scope}"),
            client.patch(f"/memories/m?{scope}", json={"content": "else"}),
            client.get(f"/graph/trace?{scope}&query=tea"),
            client.post("/graph/rollout", json=DECISION),
        ]
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
            client.get("/memories"),
            client.get(f"/memories/{made.json()['receipt']['memory_id']}"),
        ]
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
            client.get("/memories?tenant_id=acme&user_id=ann"),
            client.post("/memory/query", json=QUERY),
            client.post("/memory/events", json=EVENT),
        ]
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
    assert answered.status_code == 400
    assert [one["field"] for one in answered.json()["error"]["fields"]] == [left_out]


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


def test_port_in_use_ends_with_status_2(cli: Callable[..., Any], guarded: str, tmp_path: Path) -> None:
    assert cli("serve", "--port", guarded.rpartition(":")[2], "--state-dir", tmp_path / "s").returncode == 2


def test_control_file_without_state_dir_ends_with_status_2(cli: Callable[..., Any]) -> None:
    assert cli("serve", "--control", "control.jsonl").returncode == 2


def test_unwritable_decision_is_not_an_internal_error(tmp_path: Path) -> None:
    decisions = ControlHistory()
    present = LiveAdmission(Authoriser(decisions, Trust("off")))
    rollouts = TenantRollouts(present, decisions, to_file(tmp_path, decisions))
    with served(build_app(Engine(), Everybody(), rollouts, Limits(), CollectorRegistry())) as url:
        refused = httpx.post(f"{url}/graph/rollout", json=DECISION, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert "--control" in refused.text
        assert httpx.get(f"{url}/graph/rollout", params={"tenant_id": "acme"}).json()["mode"] == "off"
