"""The files of the explorer and their content security policy."""

import re

import httpx
import pytest

from recallflow.credentials import Headers
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Event
from recallflow.owner import Owner
from tests.unit.gateway.serving import Engine, Everybody

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

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


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
