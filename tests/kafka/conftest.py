"""What tests of the commands on a real broker share; they keep apart by the names of their topics."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.starts import creating

SCRIPT = "import sys; from recallflow.cli import main; sys.exit(main())"


@pytest.fixture
def topics() -> Callable[[str], str]:
    """The name of a topic of this test's own, the same for the same word: `memory.events` → `memory.events-3f9c…`."""
    suffix = uuid.uuid4().hex[:12]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture(autouse=True)
def _own_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands remember of a user is this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `recallflow …` to its end."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", SCRIPT, *creating([*map(str, arguments)])]
        return subprocess.run(words, env=_environment(), capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `recallflow …`; what still runs at the end of the test is killed."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str | Path) -> subprocess.Popen[str]:
            words = [sys.executable, "-c", SCRIPT, *creating([*map(str, arguments)])]
            process = subprocess.Popen(words, env=_environment(), stderr=subprocess.PIPE, text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield begin


def _environment() -> dict[str, str]:
    """Without a broker of the surroundings: a command that names none shall fail."""
    return {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
