"""What the README shows of the gateway works as it stands, but for its address."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.conftest import GIVE_UP_S
from tests.pages import readme
from tests.unit.gateway.serving import Start, serving


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
