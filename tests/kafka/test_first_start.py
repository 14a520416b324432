"""A first start on Kafka that is cut off at any moment leaves a directory that starts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.broker import Cluster
from recallflow.flows.topics import Topics

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
    assert moments > 8
    assert disks >= 4
