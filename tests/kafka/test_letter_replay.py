"""`recallflow dlq replay` on a real broker: each dead letter is sent once, also across crashes."""

import signal
from pathlib import Path

import orjson
import pytest

from recallflow.connectors.kafka.topic_reader import TopicReader
from recallflow.fields import parse_time
from recallflow.kafka_options import KafkaOptions
from tests.kafka.engine import Engine
from tests.kafka.harness import read_topic, until
from tests.process import Process

LETTERS = 7
# Kill the replay at its n-th record (each letter has two), or behind its n-th commit.
DYING = """
import os, signal
from recallflow.connectors.kafka import sender
sender.REPLAYED_AT_ONCE = 2
produce, transact = sender.Sender.send, sender.LetterReplay._transact
left = {{"send": {sends}, "commit": {commits}}}

def dying(name, call):
    def made(self, *given, **named):
        found = call(self, *given, **named)
        left[name] -= 1
        if not left[name]:
            self._producer.flush(10)
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return made

sender.Sender.send = dying("send", produce)
sender.LetterReplay._transact = dying("commit", transact)
"""


def replay(engine: Engine, folder: Path, *more: str, setup: str = "") -> tuple[int, str]:
    """Return exit code and last line of a replay."""
    topics = ("--memory-topic", "memory"), ("--query-topic", "queries"), ("--dead-letter-topic", "dead_letters")
    with Process(folder / "replay.log", "dlq", "replay", *more, *engine.options(dict(topics))) as process:
        process.setup = setup
        ended = process.ends()
        return ended.code, ended.error


@pytest.mark.parametrize(("sends", "commits"), [(6, 0), (3, 0), (0, 5)], ids=["second batch", "first batch", "between"])
def test_letters_are_replayed_once_across_a_crash(deserted: Engine, tmp_path: Path, sends: int, commits: int) -> None:
    topics, broken = deserted.topics, [b'{"type": "message", "number": %d}' % number for number in range(LETTERS)]
    with deserted.running(tmp_path / "state"):
        deserted.produce(topics.memory, "acme/ann", *broken, b'{"password": "hunter2"}')
        until(lambda: len(read_topic(deserted.broker, topics.dead_letters)) == LETTERS + 1)
    appended = {one.value(): one.timestamp()[1] for one in read_topic(deserted.broker, topics.memory)}
    assert replay(deserted, tmp_path, "--dry-run") == (0, f"{LETTERS + 1} would be sent again")
    dying = DYING.format(sends=sends, commits=commits)
    assert replay(deserted, tmp_path, setup=dying)[0] == -signal.SIGKILL
    assert replay(deserted, tmp_path)[0] == 0
    assert replay(deserted, tmp_path) == (0, "0 sent again")
    with TopicReader(KafkaOptions(deserted.broker.bootstrap_servers)) as reader:  # as engines read: committed records
        again = [*reader.read_to_end(topics.memory, 0, LETTERS + 1)]
    assert sorted(one.value() for one in again) == sorted(appended)
    for one in again:
        assert dict(one.headers())["recallflow-time"] == str(appended[one.value()]).encode()


def test_replayed_message_keeps_the_time_of_its_first_append(deserted: Engine, tmp_path: Path) -> None:
    topics = deserted.topics
    with deserted.running(tmp_path / "state", "--skip", f"{topics.memory}:0:0"), deserted.client() as client:
        event = {"type": "message", "id": "m", "tenant_id": "acme", "user_id": "ann", "content": "tea"}
        deserted.produce(topics.memory, "acme/ann", orjson.dumps(event))
        until(lambda: len(read_topic(deserted.broker, topics.dead_letters)) == 1)
        assert replay(deserted, tmp_path, "--code", "skipped")[0] == 0
        until(lambda: len(client.search("tea", user="ann")) == 1)
        (memory,) = client.search("tea", user="ann")
    assert parse_time(memory.created_at) == read_topic(deserted.broker, topics.memory)[0].timestamp()[1]
