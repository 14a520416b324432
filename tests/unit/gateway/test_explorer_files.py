"""The files of the explorer: what they may load, and that there are no others."""

import re

import httpx
import pytest

FROM_ELSEWHERE = re.compile(rb"""(?:src|href|from|import|url)\s*[=(]?\s*["']?(?:https?:)?//""")


def reached(client: httpx.Client) -> dict[str, httpx.Response]:
    """The page, and all that it and its files name, by name."""
    found = {"": client.get("/explore")}
    ahead = [""]
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

    assert {"main.js", "worker.js", "library/d3.js", "colours.css", "icon.svg"} <= files.keys()
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
