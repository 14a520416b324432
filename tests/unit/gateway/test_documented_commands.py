"""The commands that the README and docs/how-to/gateway.md show of the gateway."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.conftest import GIVE_UP_S
from tests.pages import readme
from tests.unit.gateway.serving import Served, Start, serving

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gateway.md"
ADDRESS = "localhost:8080"
SAID = "Ann is allergic to peanuts."
CHANGED = "Ann is allergic to nuts."


@pytest.fixture
def served(start: Start, tmp_path: Path) -> Iterator[Served]:
    with serving(start, "--state-dir", tmp_path / "memories") as served:
        yield served


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
def test_the_requests_of_the_page_are_answered_as_it_says(served: Served) -> None:
    store, recall, listing, change, forget, routed = requests()
    memory = f"curl '{ADDRESS}/memories/m-1?tenant_id=acme&user_id=ann'"

    status, stored = ask(served.url, store)
    assert (status, stored["applied"], stored["receipt"]["memory_id"]) == (202, True, "m-1")
    status, found = ask(served.url, recall)
    assert (status, [(one["id"], one["content"]) for one in found["memories"]]) == (200, [("m-1", SAID)])
    status, found = ask(served.url, listing)
    page = found["memory_page"]["memories"]
    assert (status, [(one["id"], one["content"]) for one in page]) == (200, [("m-1", SAID)])
    status, changed = ask(served.url, change)
    assert (status, changed["position"].startswith("local:")) == (202, True)
    assert ask(served.url, memory)[1]["versions"][0]["content"] == CHANGED
    status, forgotten = ask(served.url, forget)
    assert (status, forgotten["position"].startswith("local:")) == (202, True)
    assert ask(served.url, memory)[0] == 404
    assert ask(served.url, routed)[0] == 202
    workspaces = f"curl '{ADDRESS}/memories?tenant_id=acme&user_id=webrenew'"
    assert len(ask(served.url, workspaces)[1]["memory_page"]["memories"]) == 1


@pytest.mark.examples
@pytest.mark.needs("curl")
def test_the_gateway_answers_as_the_readme_asks(start: Start, cli: Callable[..., Any], tmp_path: Path) -> None:
    (block,) = readme("sh gateway")
    serve, ask = block.splitlines()
    memory = tmp_path / "memory"
    assert cli("remember", "I moved from Leeds to Porto in March", "--state-dir", memory).returncode == 0
    words = [str(memory) if word == "memory" else word for word in shlex.split(serve)]
    assert words[:2] == ["recallflow", "serve"]
    with serving(start, *words[2:]) as served:
        asked = shlex.split(ask.replace("http://127.0.0.1:8080", served.url))
        done = subprocess.run(asked, capture_output=True, check=True, timeout=GIVE_UP_S)
        page = subprocess.run(["curl", f"{served.url}/explore"], capture_output=True, check=True, timeout=GIVE_UP_S)
    assert [one["content"] for one in orjson.loads(done.stdout)["memories"]] == ["I moved from Leeds to Porto in March"]
    assert page.stdout.startswith(b"<!doctype html>")
