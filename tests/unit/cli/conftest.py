"""The environment of commands, and state directories that are made once."""

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from tests.unit.cli.harness import PARSER, event, jsonl

CALLERS_OWN = ("CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "KAFKA_BOOTSTRAP_SERVERS", "NO_COLOR")


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """Hide the caller's terminal and broker, make directories of one partition (each costs 12 ms), share the parser."""
    with pytest.MonkeyPatch.context() as changed:
        for name in CALLERS_OWN:
            changed.delenv(name, raising=False)
        changed.setenv("TERM", "xterm-256color")
        changed.setenv("RECALLFLOW_ENGINE_PARTITIONS", "1")
        changed.setattr("recallflow.cli.commands.commands", lambda: PARSER)
        # Once a test of this process has run several Bytewax workers, Bytewax passes errors of steps to this hook.
        changed.setattr("sys.excepthook", lambda *_: None)
        yield


@pytest.fixture(scope="session")
def mcp() -> None:
    """Import the library of `recallflow mcp` outside of a test, as that takes a second."""
    import_module("recallflow.flows.mcp")


@pytest.fixture
def default_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECALLFLOW_ENGINE_PARTITIONS")


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a state directory of so many partitions with one message in it. Tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("templates")

    def template(partitions: int) -> Path:
        path = folder / str(partitions)
        if not path.exists():
            process([jsonl(event("message", content="hello"))], Settings(partitions=partitions), path)
        return path

    return template


@pytest.fixture
def filled(templates: Callable[[int], Path], tmp_path: Path) -> Path:
    """Return a state directory of two partitions with one message in it."""
    return shutil.copytree(templates(2), tmp_path / "filled")
