"""Options and fixtures of all tests: groups, the shared broker, commands in this process and in forked ones."""

import tests.bytecode  # noqa: F401 - before the first import of the product

# isort: split

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from recallflow.cli import main
from tests.groups import GROUPS, Selection
from tests.jwks_server import JwksServer
from tests.llm_server import LlmServer
from tests.process import watched
from tests.starts import COMMAND, Starts, creating, fork_server
from tools.broker import Broker, Cluster, connect_or_start

GIVE_UP_S = 300  # then a started process is aborted, so that the test that waits for it fails


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all groups of tests")
    parser.addoption("--quick", action="store_true", help="run the core without property tests and slow ones")
    parser.addoption("--group", action="append", default=[], choices=GROUPS, help="run this group too (repeatable)")
    parser.addoption("--require-all", action="store_true", help="fail where this machine lacks what a test needs")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the groups and the number of examples, and undo what a shell sets for background processes."""
    # A shell makes background processes ignore SIGINT; tests and all processes that they start inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("full" if config.getoption("--full") else "default")
    if config.getoption("--full") or "exhaustive" in config.getoption("--group"):
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")  # 1 s of imports that other groups do without
    config.pluginmanager.register(selection := Selection(config), "groups")
    if config.pluginmanager.has_plugin("dsession") and selection.needs_broker():
        config.pluginmanager.register(SharedBroker(), "shared_broker")


class SharedBroker:
    """The real broker that the workers of a run share; the process that runs them starts and stops it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._servers = ""

    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker the broker's address; the first worker's start waits for the broker."""
        if not self._servers:
            self._servers = self._stack.enter_context(connect_or_start()).bootstrap_servers
        node.workerinput["bootstrap_servers"] = self._servers

    def pytest_unconfigure(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Connect to the broker of this run. Tests use topics of their own, and must not stop it: see `own_broker`."""
    if servers := getattr(request.config, "workerinput", {}).get("bootstrap_servers"):
        yield Cluster(servers)
        return
    with connect_or_start() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """Start a broker that the tests of a module may stop and kill."""
    with Broker() as started:
        yield started


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the log handlers and levels that a command of the test has set."""
    root, ours = logging.getLogger(), logging.getLogger("recallflow")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.disable(logging.NOTSET)


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command in this process. `start` runs one in a process of its own."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        try:
            code = main(creating([str(argument) for argument in arguments]))
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
        finally:
            logging.disable(logging.NOTSET)  # pipe keeps warnings off its stderr
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def starts() -> Starts:
    return fork_server()


@pytest.fixture
def llm_server() -> Iterator[LlmServer]:
    """Start a server of models whose answers and faults the test sets."""
    with LlmServer() as made:
        yield made


@pytest.fixture
def jwks_server() -> Iterator[JwksServer]:
    with contextlib.closing(JwksServer()) as made:
        yield made


@pytest.fixture(scope="module")
def start(starts: Starts) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that runs a command or a script in a forked process with pipes as its streams.

    `before` is Python code that the process runs first.
    """
    with contextlib.ExitStack() as stack:

        def begin(
            *arguments: str | Path, script: str = COMMAND, before: str = "", **environment: str
        ) -> subprocess.Popen[bytes]:
            surroundings = os.environ | {"RUST_BACKTRACE": "0"} | environment
            process = starts.start(f"{before}\n{script}", creating([*map(str, arguments)]), surroundings)
            stack.enter_context(watched(process, GIVE_UP_S))
            return process

        yield begin
