"""A first start on Kafka that is cut off at any moment leaves a directory that starts, and one of which a part was lost
later does not pass for such a one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.flows.topics import Topics
from recallflow.state.directory import BEGIN, RECOVERY

Command = Callable[..., subprocess.CompletedProcess[str]]

DRIVER = Path(__file__).parents[1] / "recovery" / "first_start.py"


@pytest.fixture
def run_words(broker: Cluster, topics: Callable[[str], str]) -> list[str]:
    """`run`, on topics of this test's own."""
    flags = {"memory": "memory", "query": "queries", "control": "control", "response": "responses",
             "receipt": "receipts", "dead-letter": "dead_letters"}  # fmt: skip
    names = {flag: topics(getattr(Topics, field)) for flag, field in flags.items()}
    broker.create_topics(dict.fromkeys(names.values(), 1))
    named = [word for flag, name in names.items() for word in (f"--{flag}-topic", name)]
    return ["run", "--bootstrap-servers", broker.bootstrap_servers, *named]


def test_a_first_start_that_is_cut_off_leaves_a_directory_that_starts(tmp_path: Path, run_words: list[str]) -> None:
    words: list[str | Path] = [sys.executable, DRIVER, tmp_path / "s", *run_words, "--deployment", "EACH"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    *broken, last = found.stdout.splitlines()
    assert broken == []
    moments, disks = map(int, last.split())
    assert moments > 10
    assert disks >= 5


@pytest.mark.parametrize("damage", ["emptied", "gone"])
def test_a_recovery_store_that_was_lost_is_no_first_start(
    tmp_path: Path, run_words: list[str], command: Command, damage: str
) -> None:
    """The folder alone is no store: without it nobody knows which queries were answered."""
    state_dir = tmp_path / "s"
    starting = [sys.executable, "-c", START, *run_words, "--create", "--state-dir", str(state_dir)]
    assert subprocess.run(starting, check=False, capture_output=True, timeout=60, env=os.environ).returncode == 0
    assert (state_dir / BEGIN).exists()
    shutil.rmtree(state_dir / RECOVERY)
    if damage == "emptied":
        (state_dir / RECOVERY).mkdir()
    ended = command(*run_words, "--state-dir", state_dir)
    assert ended.returncode == 1
    assert "has lost its recovery store" in ended.stderr
    assert "recallflow state rebuild --give-up-unanswered" in ended.stderr
    checked = command("state", "verify", "--state-dir", state_dir)
    assert (checked.returncode, "has lost its recovery store" in checked.stdout) == (1, True)
    copied = command("state", "checkpoint", "--state-dir", state_dir, tmp_path / "copy")
    assert (copied.returncode, "could not be run on" in copied.stderr, (tmp_path / "copy").exists()) == (1, True, False)


# A start up to where the dataflow would run.
START = """
import os, sys
from recallflow.cli import main
from recallflow.flows import kafka
kafka.run_dataflow = lambda *_: os._exit(0)
sys.exit(main(sys.argv[1:]))
"""
