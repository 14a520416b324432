"""Replays to Kafka: after kills every message is sent and none counts twice; each topic gets the whole log."""

import gzip
import signal
from pathlib import Path

import orjson

from benchmarks.broker import Cluster
from tests.kafka.harness import Command, Names, read_topic, watched
from tests.starts import fork_server

COUNT = 1_500
ACKNOWLEDGED = (130, 470)  # records in a run that is killed
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


def test_a_killed_replay_continues_without_repetition(
    broker: Cluster, command: Command, topics: Names, tmp_path: Path
) -> None:
    log, topic = tmp_path / "log", topics("memory.events")
    lines(log)
    broker.create_topics({topic: 2})
    words = ["replay", str(log), "--bootstrap-servers", broker.bootstrap_servers, "--memory-topic", topic]
    for last in ACKNOWLEDGED:
        # At this rate some of the log is not sent yet, and some is and not acknowledged.
        killed = fork_server().start(KILLED, [str(last), *words, "--rate", "1500"], text=True)
        with watched(killed):
            _, errors = killed.communicate()
        assert killed.returncode == -signal.SIGKILL, errors
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    found = [orjson.loads(message.value() or b"") for message in read_topic(broker, topic)]
    assert {one["content"] for one in found} == {f"line {n}" for n in range(COUNT)}
    assert len({one["id"] for one in found}) == COUNT  # what was sent again has the id it had, and applies once
    before = orjson.loads(done.stdout)["before"]  # it went on where it was, and did not begin anew
    assert sum(ACKNOWLEDGED) - len(ACKNOWLEDGED) * SAVED_EVERY < before <= sum(ACKNOWLEDGED)
