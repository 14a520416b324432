"""Whatever ends a command ends it with exit code 1 and one line; a traceback is for who asks for it."""

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from recallflow.cli.failures import hooked
from recallflow.connectors import line_parts
from recallflow.state.directory import RECOVERY

# Breaks `where` (module.Class.method) with `what`, and runs the command.
CHILD = """
import importlib, os, resource, signal, sys
from recallflow.cli import main

what, places = sys.argv.pop(1), sys.argv.pop(1).split(",")

def fail(*_):
    if what == "disk":
        return resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, resource.RLIM_INFINITY))
    if what == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    raise {"type": TypeError, "memory": MemoryError, "keyboard": KeyboardInterrupt, "stop": AssertionError}[what]

for place in places:
    module, owner, name = place.rsplit(".", 2)
    setattr(getattr(importlib.import_module("recallflow." + module), owner), name, fail)
sys.exit(main())
"""
LINES = b"".join(
    orjson.dumps({"tenant_id": "acme", "user_id": "ann", "timestamp": 1} | fields) + b"\n"
    for fields in (
        {"type": "message", "content": "The bicycle is in the cellar."},
        {"type": "recall", "query": "Where?"},
    )
)
PLACES = [
    "connectors.line_parts.LineSource.list_parts",
    "connectors.line_parts.LineSource.build_part",
    "connectors.line_parts.LinePart.next_batch",
    "connectors.line_parts.LinePart.snapshot",
    "connectors.line_parts.LinePart.close",
    "connectors.line_parts.InOrder.write_batch",
    "connectors.line_parts.InOrder.snapshot",
    "operators.partition.PartitionLogic.on_batch",
    "operators.partition.PartitionLogic.snapshot",
    "state.directory.StateDirectory.sync",
]

# Told to stop while the command is still being loaded.
LOADING = """
import os, signal, sys

class Stopped:
    def find_spec(self, name, *_):
        if name == "bytewax":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stopped())
from recallflow.cli import main
sys.exit(main())
"""
Broken = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def broken(tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]) -> Broken:
    """Runs `recallflow …` with something in it broken."""

    def run(what: str, places: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        log = tmp_path / "log.jsonl"
        log.write_bytes(LINES)
        command = {
            "pipe": ["pipe", "--create", "--state-dir", str(tmp_path / "s")],
            "replay": [
                "replay",
                str(log),
                "--embedded",
                "--create",
                "--state-dir",
                str(tmp_path / "s"),
                "--workers",
                "2",
            ],
            "demo": ["demo"],
            "run": ["run", "--create", "--state-dir", str(tmp_path / "s"), "--bootstrap-servers", "127.0.0.1:9"],
        }[words[0]]
        begun = start(what, places, *command, *words[1:], script=CHILD)
        out, err = begun.communicate(LINES, timeout=120)
        return subprocess.CompletedProcess(words, begun.returncode, out, err)

    return run


def the_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a command said of its failure, which is the only line but a bar of progress."""
    assert done.returncode == 1, done.stderr.decode()
    said = re.sub(r"log\.jsonl: +\d+%.*?events/s\]", "", done.stderr.decode().replace("\r", ""))
    assert re.fullmatch(r"\s*recallflow: [^\n]+\n", said), said
    return said.strip()


@pytest.mark.parametrize("place", [place for place in PLACES if not place.endswith("LinePart.close")])
def test_a_defect_of_ours_is_one_line(broken: Broken, place: str) -> None:
    line = the_line(broken("type", place, "pipe"))
    assert line.startswith("recallflow: a defect of recallflow: TypeError in ")
    assert line.endswith("; run again with --debug for the traceback")


@pytest.mark.parametrize("command", ["pipe", "replay", "demo"])
def test_each_command_says_it(broken: Broken, command: str) -> None:
    assert "a defect of recallflow: TypeError" in the_line(broken("type", "operators.step.StateStep.take", command))


def test_the_line_names_where_it_went_wrong(broken: Broken) -> None:
    line = the_line(broken("type", "connectors.line_parts.Position.__new__", "pipe"))
    number = next(
        n for n, text in enumerate(Path(line_parts.__file__).read_text().splitlines(), 1) if "Record(Position(" in text
    )
    assert f"TypeError in connectors/line_parts.py:{number};" in line


def test_with_debug_there_is_a_traceback_and_what_native_code_says(broken: Broken) -> None:
    done = broken("type", PLACES[5], "pipe", "--debug")
    assert done.returncode == 1
    assert b"Traceback (most recent call last)" in done.stderr
    assert b"panicked at" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"recallflow: a defect of recallflow: TypeError")


def test_a_recovery_store_that_does_not_fit_is_one_line_with_the_way_out(broken: Broken, tmp_path: Path) -> None:
    """As after a restore by hand of half of it."""
    assert broken("type", PLACES[4], "pipe").returncode == 0
    (store,) = (tmp_path / "s" / RECOVERY).glob("*.sqlite3")
    with sqlite3.connect(store) as file:
        file.execute("UPDATE parts SET part_count = 2")
    assert "Restore a checkpoint" in the_line(broken("type", PLACES[4], "pipe"))


def test_out_of_memory_says_so(broken: Broken) -> None:
    assert the_line(broken("memory", PLACES[5], "pipe")).startswith("recallflow: out of memory: ")


def test_an_interrupt_says_nothing(broken: Broken) -> None:
    for place in PLACES[4:6]:
        done = broken("keyboard", place, "pipe")
        assert (done.returncode, done.stderr) in ((130, b""), (0, b"")), place


def test_a_full_disk_under_the_recovery_store_is_one_line(broken: Broken) -> None:
    """No file may grow over what the state partitions are content with."""
    line = the_line(broken("disk", "connectors.line_parts.InOrder.snapshot", "pipe"))
    assert line.startswith("recallflow: the recovery store could not be written (")
    assert line.endswith("start again, it continues where it stopped")


@pytest.mark.parametrize("command", ["demo", "run"])
def test_a_disk_that_was_full_before_is_one_line(command: str) -> None:
    """Without room for so much as a temporary file."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    done = subprocess.run(
        [sys.executable, "-c", f"{full}\nfrom recallflow.cli import main\nraise SystemExit(main())", command],
        env={},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (1, 2)
    assert re.fullmatch(rb"recallflow: [^\n]+\n", done.stderr), done.stderr


@pytest.mark.parametrize("place", ["flows.kafka.KafkaFlow.run", "connectors.kafka.topic_reader.TopicReader.partitions"])
def test_a_signal_while_it_starts_ends_it_with_0_and_a_word(broken: Broken, place: str) -> None:
    done = broken("stop", place, "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(b"stopped before it began to work\n")


def test_a_signal_while_it_is_loaded_ends_it_with_0_and_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", LOADING, "run"], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0
    assert re.fullmatch(rb"[^\n]+ stopped before it began to work\n", done.stderr), done.stderr


def test_a_thread_that_fails_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise TypeError("on a thread")

    before = threading.excepthook
    with hooked(debug=False):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    said = capsys.readouterr().err
    assert re.fullmatch(r"recallflow: a defect of recallflow: TypeError: on a thread[^\n]*\n", said), said
    assert threading.excepthook is before
