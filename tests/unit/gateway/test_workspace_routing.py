"""Workspace routing by header, on every route that takes an event or a query; and the aliases of the graph's routes."""

import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry

from recallflow.connectors.http.app import build_app
from recallflow.connectors.http.requests import Limits
from recallflow.control import ControlHistory, OwnerMapping, owner_mappings
from recallflow.credentials import ApiKeyText
from tests.unit.gateway.serving import Engine, Everybody, Undecided, config_in, gateway, local_gateway
from tests.unit.senders import api_key

DOCUMENT = build_app(Engine(), Everybody(), Undecided(), Limits(), CollectorRegistry()).openapi()
ANN = {"tenant_id": "acme", "user_id": "ann", "project_id": "git@github.com:webrenew/memories.git"}
AUTO = {"x-workspace-routing": "auto", "x-organisations": "other, WebRenew"}
MEMORY = {"type": "memory", **ANN, "content": "Deploys are on Fridays."}
BODIES: dict[str, dict[str, Any]] = {
    "POST /memory/query": {"type": "recall", "query": "when?", **ANN},
    "POST /memory/events": MEMORY,
    "POST /memory/events/batch": MEMORY,
    "POST /graph/trace": {"query": "when?", **ANN},
    "POST /graph/explore": ANN,
    "PATCH /memories/{memory_id}": {"content": "Deploys are on Mondays."},
}
ROUTED = [
    f"{method.upper()} {path}"
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if any(one["name"] == "x-workspace-routing" for one in operation.get("parameters", ()))
]


def send(client: httpx.Client, name: str, headers: dict[str, str]) -> httpx.Response:
    method, path = name.split(" ")
    body = BODIES.get(f"{method} {path.removeprefix('/api/sdk/v1').removeprefix('/api')}")
    parameters = ANN | ({"query": "when?"} if path.endswith("/trace") else {})
    kind = "x-ndjson" if path.endswith("/batch") else "json"
    return client.request(
        method,
        path.replace("{memory_id}", "m-1"),
        params=parameters if body is None or method == "PATCH" else None,
        content=None if body is None else orjson.dumps(body),
        headers=headers | ({} if body is None else {"content-type": f"application/{kind}"}),
    )


@pytest.mark.parametrize("name", ROUTED)
def test_auto_routes_to_the_projects_workspace(engine: Engine, client: httpx.Client, name: str) -> None:
    send(client, name, AUTO | {"x-end-user-id": "ann"})
    send(client, name, {"x-end-user-id": "ann"})
    found = [(event.user_id, dict(headers)["x-end-user-id"]) for event, headers in [*engine.asked, *engine.stored]]
    assert found == [("WebRenew", b"WebRenew"), ("ann", b"ann")]


def test_every_route_of_events_and_queries_is_routed() -> None:
    others = {f"{m.upper()} {p}" for p, methods in DOCUMENT["paths"].items() for m in methods} - set(ROUTED)
    assert {name for name in others if not name.endswith("/graph/rollout")} == {
        "GET /livez", "GET /readyz", "GET /metrics",
    }  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [
        {"x-workspace-routing": "always"},
        {"x-workspace-routing": ""},
        {"x-workspace-routing": "auto", "x-organisations": b"w\xc3\xa9brenew"},
        [("x-workspace-routing", "auto"), ("x-workspace-routing", "auto")],
    ],
)
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


def test_a_revoked_mapping_is_no_mapping_any_more() -> None:
    decisions = ControlHistory()
    for at, workspace in ((1, "org_w"), (2, None)):
        decisions.add(at, OwnerMapping(type="owner.mapping", tenant_id="acme", name="webrenew", workspace=workspace))
    assert [owner_mappings(decisions, "acme", at) for at in (0, 1, 2)] == [
        {}, {"webrenew": "org_w"}, {"webrenew": None},
    ]  # fmt: skip


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
            parameters = {"tenant_id": "acme"} if one.endswith("rollout") else ANN
            parameters = parameters | ({"query": "when?"} if one.endswith("trace") else {})
            answered = client.get(one, params=parameters)
            asked.append((answered.status_code, answered.json(), [query for query, _ in engine.asked]))
    assert asked[0] == asked[1]
    assert asked[0][0] == 200
