"""Fixtures for tests of commands on a real broker; each test has its own topic names."""

import contextlib
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.engine import deserted, deserted_topics, engine, guarded_engine, user  # noqa: F401
from tests.process import command as finished
from tests.process import surroundings
from tests.starts import COMMAND, Starts, creating


@pytest.fixture
def topics() -> Callable[[str], str]:
    """The name of a topic of this test's own, the same for the same word: `memory.events` → `memory.events-3f9c…`."""
    suffix = uuid.uuid4().hex[:12]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture(autouse=True)
def _own_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `recallflow …` to its end, in a forked process."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        ended = finished(*arguments)
        return subprocess.CompletedProcess(arguments, ended.code, ended.out, ended.said)

    return run


@pytest.fixture
def start(starts: Starts) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts `recallflow …`; processes that still run at the end of the test are killed."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str | Path) -> subprocess.Popen[str]:
            process = starts.start(COMMAND, creating([*map(str, arguments)]), surroundings(), text=True)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield begin
