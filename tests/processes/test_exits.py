"""A command that fails ends with exit status 1 and one line; a traceback only with --debug."""

import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.cli.commands import uncaught_errors_in_one_line
from recallflow.flows import embedded

# Break a function, `module.Class.method`, and run the command.
CHILD = """
import importlib, os, signal, sys
from recallflow.cli import main

what, place = sys.argv.pop(1), sys.argv.pop(1)

def fail(*_):
    if what == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    raise {"type": TypeError, "memory": MemoryError, "keyboard": KeyboardInterrupt, "stop": AssertionError}[what]

module, owner, name = place.rsplit(".", 2)
setattr(getattr(importlib.import_module("recallflow." + module), owner), name, fail)
sys.exit(main())
"""
LINES = b"".join(
    orjson.dumps({"tenant_id": "acme", "user_id": "ann", "timestamp": 1} | fields) + b"\n"
    for fields in (
        {"type": "message", "content": "The bicycle is in the cellar."}, {"type": "recall", "query": "Where?"},
    )
)  # fmt: skip
SOURCE = "flows.embedded.split_batches"
STEP = "operators.step.StateStep.take"
PLACES = [SOURCE, STEP, "flows.embedded.StateLoop.continue_logs", "state.directory.StateDirectory.sync"]
Broken = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def broken(tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]) -> Broken:
    """Run a command with a function of it broken."""

    def run(what: str, place: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        log = tmp_path / "log.jsonl"
        log.write_bytes(LINES)
        state = ["--create", "--state-dir", str(tmp_path / "s")]
        command = {
            "pipe": ["pipe", "--partitions", "2", *state],
            "replay": ["replay", str(log), "--embedded", "--partitions", "2", *state], "demo": ["demo"],
            "run": ["run", "--bootstrap-servers", "127.0.0.1:9", *state],
        }[words[0]]  # fmt: skip
        process = start(what, place, *command, *words[1:], script=CHILD)
        out, err = process.communicate(LINES, timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return run


def the_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the one line of a failure; a bar of progress may precede it."""
    assert done.returncode == 1, done.stderr.decode()
    said = re.sub(r"log\.jsonl: +\d+%.*?events/s\]", "", done.stderr.decode().replace("\r", ""))
    assert re.fullmatch(r"\s*recallflow: [^\n]+\n", said), said
    return said.strip()


@pytest.mark.parametrize(
    ("command", "place"), [*(("pipe", place) for place in PLACES), ("replay", STEP), ("demo", STEP)]
)
def test_defect_gives_one_line(broken: Broken, command: str, place: str) -> None:
    line = the_line(broken("type", place, command))
    assert "defect of recallflow: TypeError in " in line
    assert "--debug" in line


def test_defect_is_located(broken: Broken) -> None:
    line = the_line(broken("type", "flows.embedded.Position.__new__", "pipe"))
    source = Path(embedded.__file__).read_text().splitlines()
    number = next(n for n, text in enumerate(source, 1) if "Record(Position(" in text)
    assert f"TypeError in flows/embedded.py:{number};" in line


@pytest.mark.parametrize("place", [SOURCE, STEP])
def test_interrupt_writes_nothing(broken: Broken, place: str) -> None:
    done = broken("keyboard", place, "pipe")
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize(
    "place", ["flows.member.KafkaFlow.run", "connectors.kafka.topic_reader.TopicReader.partitions"]
)
def test_signal_during_start_ends_with_status_0(broken: Broken, place: str) -> None:
    done = broken("stop", place, "run")
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_failing_thread_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise TypeError("on a thread")

    before = threading.excepthook
    with uncaught_errors_in_one_line(debug=False):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    said = capsys.readouterr().err
    assert re.fullmatch(r"recallflow: a defect of recallflow: TypeError: on a thread[^\n]*\n", said), said
    assert threading.excepthook is before
