"""What the tests share: hypothesis' profiles, makers of events and index entries, the dataflow as a function, and
commands as processes."""

import contextlib
import functools
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings
from uv import find_uv_bin

from benchmarks.broker import BOOTSTRAP_VARIABLE, BOTH_WAYS, Cluster, connect_or_start
from benchmarks.locomo import MissingDataError, shared
from recallflow.cli import main
from recallflow.decisions import History
from recallflow.flows.embedded import Processed, process
from recallflow.flows.settings import Settings
from recallflow.state.rows import Entry
from tests.interpreters import interpreter
from tests.llm_server import LlmServer
from tests.starts import COMMAND, Starts, creating

# A slow machine is no defect, so there is no deadline. CI tries the same examples every time: a red build is then the
# change's doing; who runs the tests by hand gets new ones with each run.
settings.register_profile("dev", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

GIVE_UP_S = 300  # a process that says nothing for so long hangs: it is killed, and the test that waits for it fails

BROKER_FOLDERS = {"kafka", "faults"}
INCLUDE_ALL = "--nothing-left-out"


def pytest_configure() -> None:
    """A shell has what it runs in the background ignore the keyboard, which tests and all that they start inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(INCLUDE_ALL, action="store_true", help="fail where this machine lacks what some tests need")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What this machine lacks the means for is left out, and says so at the end; with `--nothing-left-out` it fails,
    but for another Python: a distribution has one alone."""
    for item in items:
        for marker in item.iter_markers("python"):
            if interpreter(marker.args[0]) is None:
                item.add_marker(pytest.mark.skip(f"left out: needs Python {marker.args[0]}, on the PATH or of pyenv"))
    if config.getoption(INCLUDE_ALL):
        return
    for item in items:
        if item.path.parent.name in BROKER_FOLDERS and not has_broker():
            item.add_marker(pytest.mark.skip(f"left out: needs a Kafka broker; {BOTH_WAYS}"))
        if item.get_closest_marker("shared") and not has_models():
            item.add_marker(pytest.mark.skip("left out: needs real models; set RECALLFLOW_SHARED to their folder"))
        if item.get_closest_marker("index") and not has_index():
            item.add_marker(pytest.mark.skip("left out: needs the package index, and nothing answers there"))
        for marker in item.iter_markers("needs"):
            if shutil.which(marker.args[0]) is None:
                item.add_marker(pytest.mark.skip(f"left out: needs {marker.args[0]} on the PATH; .ci/run installs it"))


def has_broker() -> bool:
    """Whether a Kafka is named, or one can be assembled here."""
    return BOOTSTRAP_VARIABLE in os.environ or None not in (shutil.which("java"), shutil.which("mvn"))


def has_models() -> bool:
    """Whether the folder that RECALLFLOW_SHARED names, or its default, is there."""
    try:
        shared("models")
    except MissingDataError:
        return False
    return True


@functools.cache
def has_index() -> bool:
    """Whether the package index answers, wherever the environment says that it is."""
    asked = [find_uv_bin(), "pip", "compile", "--quiet", "--no-cache", "--no-deps", "-"]
    return subprocess.run(asked, input=b"six", capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    """One real broker for all tests that need one; they keep apart by the names of their topics."""
    with connect_or_start() as cluster:
        yield cluster


_ENTRY: dict[str, Any] = {
    "version": 0,
    "created_ms": 0,
    "episode": -1,
    "flags": 0,
    "author": None,
    "author_stems": "",
    "stems": "",
    "change": 0,
    "created_logged": True,
    "ingested_ms": 0,
    "kind": "message",
    "layer": "long_term",
    "role": None,
    "session_id": None,
    "project_id": None,
    "category": None,
    "tags": [],
    "importance": 0.5,
    "confidence": 1.0,
    "valid_from_ms": None,
    "valid_to_ms": None,
    "expires_ms": None,
    "metadata": [],
}


@pytest.fixture(scope="session")
def make_entry() -> Callable[..., Entry]:
    """An index entry of which only the fields a test is about need to be named."""

    def make(seq: int, **fields: Any) -> Entry:
        return Entry(**_ENTRY | {"seq": seq, "id": f"m{seq}"} | fields)

    return make


@pytest.fixture(scope="session")
def make_event() -> Callable[..., dict[str, Any]]:
    """An event of Ann's at acme; every event has a timestamp, so that no test depends on the clock."""

    def make(event_type: str, at_ms: int = 0, /, **fields: Any) -> dict[str, Any]:
        return {"type": event_type, "tenant_id": "acme", "user_id": "ann", "timestamp": at_ms} | fields

    return make


@pytest.fixture(scope="session")
def run_flow() -> Callable[..., Processed]:
    """Runs events through the whole dataflow. One state partition unless a test asks for more: each costs 12 ms."""

    def run(
        events: Iterable[dict[str, Any]],
        state_dir: Path | None = None,
        partitions: int = 1,
        decisions: History | None = None,
        **chosen: Any,
    ) -> Processed:
        lines = [orjson.dumps(event) for event in events]
        return process(lines, Settings(partitions=partitions, **chosen), state_dir, decisions)

    return run


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command sets logging up for its process, and `pipe` keeps warnings off its stderr: no other test notices."""
    root, ours = logging.getLogger(), logging.getLogger("recallflow")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.disable(logging.NOTSET)


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end, in this process. In one of its own, to be talked to and killed: `start`."""

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
def starts() -> Iterator[Starts]:
    """What commands are started by."""
    with contextlib.closing(Starts()) as made:
        yield made


@pytest.fixture
def llm_server() -> Iterator[LlmServer]:
    """Models behind HTTP, as a test gives their answers and faults."""
    with LlmServer() as made:
        yield made


@pytest.fixture(scope="module")
def start(starts: Starts) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command, or another script, in a process of its own, to be talked to and killed; all its streams are
    pipes. `before`: what that process does first."""
    with contextlib.ExitStack() as stack:

        def begin(
            *arguments: str | Path, script: str = COMMAND, before: str = "", **environment: str
        ) -> subprocess.Popen[bytes]:
            surroundings = os.environ | {"RUST_BACKTRACE": "0"} | environment
            process = starts.start(f"{before}\n{script}", creating([*map(str, arguments)]), surroundings)
            watchdog = threading.Timer(GIVE_UP_S, process.kill)
            watchdog.start()
            stack.callback(_end, process, watchdog)
            return process

        yield begin


def _end(process: subprocess.Popen[bytes], watchdog: threading.Timer) -> None:
    watchdog.cancel()
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
