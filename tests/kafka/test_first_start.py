"""A first start on Kafka that is killed at each step, or has no room on its disk, leaves a directory that starts."""

from pathlib import Path

from benchmarks.broker import Cluster
from tests.kafka.harness import Names, flags, watched
from tests.starts import fork_server

SCRIPT = "import sys; from tests.processes.crash import main; main(*sys.argv[1:])"


def test_an_interrupted_first_start_leaves_a_directory_that_starts(
    broker: Cluster, topics: Names, tmp_path: Path
) -> None:
    named = flags(topics)
    broker.create_topics(dict.fromkeys(named[1::2], 1))
    words = ["run", "--bootstrap-servers", broker.bootstrap_servers, *named, "--deployment", "EACH"]
    process = fork_server().start(SCRIPT, ["first_start", str(tmp_path / "s"), *words], text=True)
    with watched(process):
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    *broken, last = said.splitlines()
    assert broken == []
    moments, disks = map(int, last.split())
    assert moments > 8
    assert disks >= 3
