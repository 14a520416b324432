"""A disk that becomes full ends a command with one line, and nothing that was acknowledged is lost."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from tests.processes.conftest import pipe

Start = Callable[..., subprocess.Popen[bytes]]

LIMIT_BYTES = 600_000  # enough to open a state directory, and for some hundred of the events below
OWNERS = [{"tenant_id": "acme", "user_id": f"user{number}"} for number in range(3)]


def event(number: int) -> bytes:
    words = " ".join(f"word{number}-{n}" for n in range(30))
    return orjson.dumps(
        {"type": "message", "id": f"m{number}", "content": words, "session_id": "s"} | OWNERS[number % 3]
    )


def get(number: int) -> bytes:
    query = {"type": "memory.get", "id": f"q{number}", "memory_id": f"m{number}"}
    return orjson.dumps(query | OWNERS[number % 3])


def file_size_limit(limit_bytes: int) -> str:
    """Return a preparation of a process that limits file sizes like a full disk."""
    return (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))"
    )


def one_line(err: bytes) -> str:
    assert re.fullmatch(rb"recallflow: [^\n]+\n", err), err.decode()
    return err.decode()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state_dir = tmp_path_factory.mktemp("template") / "s"
    pipe(state_dir, [])
    return state_dir


@pytest.fixture
def state_dir(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "s")


def test_full_disk_loses_nothing_that_was_acknowledged(start: Start, state_dir: Path) -> None:
    """Each answer acknowledges the events before it."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    acknowledged, count = 0, 1_500
    assert engine.stdin is not None
    assert engine.stdout is not None
    for first in range(0, count, 20):
        try:
            engine.stdin.write(b"".join(event(n) + b"\n" for n in range(first, first + 20)) + get(first) + b"\n")
            engine.stdin.flush()
        except BrokenPipeError:
            break
        if not (line := engine.stdout.readline()):
            break
        assert orjson.loads(line)["status"] == "ok"
        acknowledged = first + 20
    assert engine.wait() == 1
    assert 0 < acknowledged < count  # it stopped in the middle
    answers = process([get(n) for n in range(acknowledged)], Settings(), state_dir).responses
    assert {answer["status"] for answer in answers} == {"ok"}
    stats = [orjson.dumps({"type": "user.stats"} | owner) for owner in OWNERS]
    answers = process([*(event(n) for n in range(count)), *stats], Settings(), state_dir).responses
    assert [answer["stats"]["memories"] for answer in answers] == [500, 500, 500]


def test_full_disk_ends_pipe_while_its_input_stays_open(start: Start, state_dir: Path) -> None:
    """The thread that waits for the next line does not keep the process from ending."""
    engine = start("pipe", "--state-dir", state_dir, before=file_size_limit(LIMIT_BYTES))
    assert engine.stdin is not None
    assert engine.stderr is not None
    engine.stdin.write(b"".join(event(n) + b"\n" for n in range(1_000)))
    engine.stdin.flush()
    assert engine.wait() == 1
    assert re.search(r"state partition \d+ could not be written: .* free disk space", one_line(engine.stderr.read()))


def test_directory_that_cannot_be_created_is_named(start: Start, tmp_path: Path) -> None:
    engine = start("pipe", "--state-dir", tmp_path / "s", before=file_size_limit(1))
    _, err = engine.communicate(event(0) + b"\n")
    assert engine.returncode == 1
    assert str(tmp_path / "s") in one_line(err)


@pytest.mark.parametrize("command", ["demo", "run"])
def test_disk_without_room_for_temporary_files_gives_one_line(start: Start, command: str) -> None:
    process = start(command, before=file_size_limit(0))
    _, err = process.communicate(timeout=120)
    assert process.returncode in (1, 2)
    assert one_line(err)
