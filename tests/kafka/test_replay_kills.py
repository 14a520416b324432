"""A replay to Kafka that is killed and run again sends every message, and none that would count twice."""

import gzip
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from benchmarks.broker import Cluster
from tests.kafka.harness import Command, Names, read_topic

COUNT = 3_000
KILLS = 3
MOST = 800  # acknowledged in a run that is killed: in all of them together fewer than there are
SAVED_EVERY = 100  # acknowledged records

# The real command. However fast the machine is, it is killed once the n-th record of the run is acknowledged, and keeps
# how far it got by the count of records: its clock goes on with them.
KILLED = f"""
import os, signal, sys
from types import SimpleNamespace
from recallflow.cli import main, publish

last, acknowledged = int(sys.argv.pop(1)), 0

class Killed(publish.Publisher):
    def __init__(self, options, topic, reached, credentials=()):
        def told(count):
            global acknowledged
            acknowledged = count
            reached(count)
            if count >= last:
                os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(options, topic, told, credentials)

publish.Publisher = Killed
publish.time = SimpleNamespace(monotonic=lambda: acknowledged * publish.SAVE_EVERY_S / {SAVED_EVERY})
sys.exit(main())
"""


def lines(path: Path) -> None:
    """Events without ids, packed."""
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    path.write_bytes(gzip.compress(b"\n".join(orjson.dumps(event | {"content": f"line {n}"}) for n in range(COUNT))))


def document(path: Path) -> None:
    path.write_bytes(
        orjson.dumps([{"role": "user", "content": f"line {n}"} for n in range(COUNT)], option=orjson.OPT_INDENT_2)
    )


@pytest.mark.parametrize("write", [lines, document])
def test_kills_at_any_time_lose_and_repeat_nothing(
    broker: Cluster, command: Command, topics: Names, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    log, topic = tmp_path / "log", topics("memory.events")
    write(log)
    broker.create_topics({topic: 2})
    words = ["replay", str(log), "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topic]
    chosen = random.Random(write.__name__)
    acknowledged = [chosen.randint(1, MOST) for _ in range(KILLS)]
    for last in acknowledged:
        # At this rate some of the log is not sent yet, and some is and not acknowledged.
        killed = [sys.executable, "-c", KILLED, str(last), *words, "--rate", "1500"]
        ended = subprocess.run(killed, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    found = [orjson.loads(message.value() or b"") for message in read_topic(broker, topic)]
    assert {one["content"] for one in found} == {f"line {n}" for n in range(COUNT)}
    assert len({one["id"] for one in found}) == COUNT  # what was sent again has the id it had, and applies once
    before = orjson.loads(done.stdout)["before"]  # it went on where it was, and did not begin anew
    assert sum(acknowledged) - KILLS * SAVED_EVERY < before <= sum(acknowledged)
