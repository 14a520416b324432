"""Topics that change under a running engine: partitions that are added, topics that are made anew."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import Cluster
from recallflow.connectors.kafka.outgoing import NUMBER_HEADER, SOURCE_HEADER
from recallflow.connectors.kafka.partitioner import partition_of
from recallflow.flows.known import TOPICS
from recallflow.flows.topics import Topics
from recallflow.state.directory import StateDirectory, describe
from recallflow.state.logical import state_hash

Names = Callable[[str], str]

GIVE_UP_S = 60.0
USERS = [f"user{n}" for n in range(30)]
FLAGS = {
    "--memory-topic": "memory",
    "--query-topic": "queries",
    "--control-topic": "control",
    "--response-topic": "responses",
    "--receipt-topic": "receipts",
    "--dead-letter-topic": "dead_letters",
}

# The real command. Epochs and batches are small, so that a kill falls between two of them; it comes with the n-th
# record that the state is given.
SCRIPT = """
import os, signal, sys
from recallflow.cli import main
from recallflow.connectors.kafka import hub
from recallflow.operators.partition import PartitionLogic

left = int(sys.argv[1])
hub.BATCH_MAX = 5
on_batch = PartitionLogic.on_batch

def mortal(self, values):
    global left
    left -= sum(len(batch.items) for batch in values)
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return on_batch(self, values)

if left:
    PartitionLogic.on_batch = mortal
sys.exit(main(sys.argv[2:]))
"""


@dataclass
class Deployment:
    """A main flow on a real broker, whose topics grow."""

    broker: Cluster
    topics: Topics
    state_dir: Path
    counts: dict[str, int]  # of the memory and the query topic, as producers know them
    sent: int = 0
    asked: int = 0
    workers: int = 1
    epoch_ms: int = 50
    options: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)

    def start(self, kill_after: int = 0) -> subprocess.Popen[bytes]:
        where = ["--state-dir", str(self.state_dir), "--bootstrap-servers", self.broker.bootstrap_servers]
        named = [word for flag, name in FLAGS.items() for word in (flag, getattr(self.topics, name))]
        options = ["--epoch-ms", str(self.epoch_ms), "--workers", str(self.workers), *self.options]
        command = [sys.executable, "-c", SCRIPT, str(kill_after), "run", *options, *where, *named]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def ends(self, kill_after: int = 0) -> tuple[int, str]:
        """Runs until it ends by itself: exit code, and what it said."""
        process = self.start(kill_after)
        with _watched(process):
            _, said = process.communicate()
        return process.returncode, said.decode()

    @contextlib.contextmanager
    def running(self, kill_after: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """Runs it, and stops it as an operator does, unless it was killed by then."""
        process = self.start(kill_after)
        with _watched(process):
            yield process
            if not kill_after:
                process.send_signal(signal.SIGTERM)
            _, said = process.communicate()
            self.said.append(said.decode())
            assert process.returncode == (-signal.SIGKILL if kill_after else 0), said.decode()

    def send(self, count: int, queries: int = 0) -> None:
        """Produces events, one after the other acknowledged, to the partitions that their keys hash to."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 0})
        for number in range(self.sent, self.sent + count):
            user = USERS[number % len(USERS)]
            # Each version of an owner's only memory stands in its history: no two may change places.
            first = {"type": "message", "id": "latest", "session_id": "s"}
            later = {"type": "memory.update", "memory_id": "latest"}
            told = (first if number < len(USERS) else later) | {"content": f"walnut {number}", "receipt": True}
            self._produce(producer, self.topics.memory, user, told)
        for number in range(self.asked, self.asked + queries):
            asked = {"type": "recall", "id": f"q{number}", "query": "walnut", "k": 3}
            self._produce(producer, self.topics.queries, USERS[number % len(USERS)], asked)
        self.sent, self.asked = self.sent + count, self.asked + queries

    def _produce(self, producer: Producer, topic: str, user: str, fields: dict[str, Any]) -> None:
        key = f"acme/{user}".encode()
        event = orjson.dumps({"tenant_id": "acme", "user_id": user, **fields})
        producer.produce(topic, event, key, partition_of(key, self.counts[topic]))
        assert producer.flush(GIVE_UP_S) == 0

    def grow(self, topic: str, count: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for future in admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result()
        until(lambda: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == count)
        until(lambda: all(p.leader >= 0 for p in admin.list_topics(topic, timeout=5).topics[topic].partitions.values()))
        if topic in self.counts:
            self.counts[topic] = count

    def remake(self, topic: str, count: int) -> None:
        """Deletes a topic and makes another one of its name."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for future in admin.delete_topics([topic]).values():
            future.result()
        until(lambda: topic not in admin.list_topics(timeout=5).topics)
        self.broker.create_topics({topic: count})

    def outputs(self, topic: str) -> Counter[tuple[Any, ...]]:
        """How often each output stands in a topic."""
        settings = {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": topic, "enable.partition.eof": True}
        found: Counter[tuple[Any, ...]] = Counter()
        with contextlib.closing(Consumer(settings)) as consumer:
            numbers = consumer.list_topics(topic, timeout=5).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            unread = set(numbers)
            while unread:
                message: Any = consumer.poll(GIVE_UP_S)
                assert message is not None
                if message.error() is None:
                    headers = dict(message.headers())
                    found[headers[SOURCE_HEADER], headers[NUMBER_HEADER]] += 1
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    unread.discard(message.partition())
        return found

    def partitions(self, topic: str) -> set[int]:
        """Those that hold anything."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap_servers, "group.id": topic})
        with contextlib.closing(consumer):
            numbers = consumer.list_topics(topic, timeout=5).topics[topic].partitions
            return {n for n in numbers if consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=5)[1]}

    def check_outputs(self) -> None:
        """Waits for all receipts and responses; each is there once."""
        for topic, count in ((self.topics.receipts, self.sent), (self.topics.responses, self.asked)):
            until(lambda topic=topic, count=count: self._there(topic, count))  # type: ignore[misc]
            found = self.outputs(topic)
            assert [*found.values()] == [1] * count, topic

    def _there(self, topic: str, count: int) -> bool:
        assert not self.outputs(self.topics.dead_letters)
        return self.outputs(topic).total() >= count

    def hash(self) -> str:
        with StateDirectory.open(self.state_dir, describe(self.state_dir)[0], 1024 * 1024) as directory:
            return state_hash(directory)


@contextlib.contextmanager
def _watched(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Nothing outlives the test, and nothing hangs it."""
    # Not SIGKILL: that is what a test may be waiting for.
    watchdog = threading.Timer(2 * GIVE_UP_S, process.send_signal, [signal.SIGABRT])
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + GIVE_UP_S
    while not true():
        assert time.monotonic() < deadline_s


def named(plain: Topics, topics: Names, prefix: str = "") -> Topics:
    """Topics of this test's own; those of the memories and of control events stay."""
    return replace(
        plain,
        queries=topics(f"{prefix}queries"),
        responses=topics(f"{prefix}responses"),
        receipts=topics(f"{prefix}receipts"),
        dead_letters=topics(f"{prefix}dead.letters"),
    )


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    own = named(Topics(memory=topics("memory.events"), control=topics("control.events")), topics)
    counts = {own.memory: 2, own.queries: 2}
    broker.create_topics({**counts, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 2))
    return Deployment(broker, own, tmp_path / "s", counts)


def replayed(deployment: Deployment, topics: Names, path: Path, workers: int = 1) -> str:
    """The state hash of a fresh engine that reads the whole log."""
    own = named(deployment.topics, topics, f"other.{workers}.")
    broker = deployment.broker
    broker.create_topics({own.queries: 2})
    broker.create_topics(dict.fromkeys(own.outputs(), 2))
    other = Deployment(broker, own, path, {}, deployment.sent, workers=workers)
    with other.running():
        other.check_outputs()
    return other.hash()


def test_added_partitions_are_read_in_order_and_their_queries_answered(
    deployment: Deployment, topics: Names, tmp_path: Path
) -> None:
    memory, queries = deployment.topics.memory, deployment.topics.queries
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
        deployment.send(60, 30)
        deployment.grow(memory, 3)
        deployment.grow(queries, 3)
        deployment.send(60, 30)
        deployment.check_outputs()
        deployment.grow(memory, 5)
        deployment.grow(queries, 5)
        deployment.send(60, 30)
        deployment.check_outputs()
    assert f"{memory} has 3 partitions, and had 2" in deployment.said[-1]
    assert f"{queries} has 5 partitions, and had 3" in deployment.said[-1]
    with deployment.running():  # whose parts are those of the beginning
        deployment.send(30, 30)
        deployment.check_outputs()
    assert deployment.hash() == replayed(deployment, topics, tmp_path / "other", workers=2)


def test_kills_around_the_growth_lose_nothing_and_do_nothing_twice(
    deployment: Deployment, topics: Names, tmp_path: Path
) -> None:
    deployment.workers = 2
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
    for count, kills in ((3, (25, 40)), (4, (5, 30))):
        with deployment.running(kill_after=kills[0]):
            deployment.send(40, 20)
            for topic in (deployment.topics.memory, deployment.topics.queries, *deployment.topics.outputs()):
                deployment.grow(topic, count)
            deployment.send(40, 20)
        code, said = deployment.ends(kills[1])
        assert code == -signal.SIGKILL, said
    with deployment.running():
        deployment.check_outputs()
    assert deployment.hash() == replayed(deployment, topics, tmp_path / "other")


def test_what_was_sent_before_its_topic_grew_is_found_after_a_kill(deployment: Deployment) -> None:
    """All outputs come again after a kill without a snapshot, when their topics have more partitions to hash to."""
    deployment.epoch_ms = 60_000
    process = deployment.start()
    with _watched(process):
        deployment.send(len(USERS))
        deployment.check_outputs()
        deployment.send(20, 20)  # not from the beginning: what was asked before the first start is not answered
        deployment.check_outputs()
    for topic in deployment.topics.outputs():
        deployment.grow(topic, 5)
    with deployment.running():
        deployment.send(20, 20)
        deployment.check_outputs()
    with deployment.running():
        deployment.send(20, 20)
        deployment.check_outputs()
    assert max(deployment.partitions(deployment.topics.responses)) >= 2


def test_an_input_made_anew_stops_the_flow_and_the_next_start(deployment: Deployment) -> None:
    """With more records than were read, so that no offset gives it away."""
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
    remade = deployment.topics.memory
    deployment.remake(remade, 2)
    deployment.send(3 * len(USERS))
    deployment.options = ("--deployment", "another")  # the group has forgotten that the first one said goodbye
    code, said = deployment.ends()
    assert code == 1
    assert f"{remade} was deleted and made anew" in said
    assert "Start with another state directory" in said


@pytest.mark.parametrize("name", ["queries", "control"])
def test_an_input_made_anew_while_it_is_read_stops_the_flow(deployment: Deployment, name: str) -> None:
    deployment.send(len(USERS))
    process = deployment.start()
    with _watched(process):
        deployment.check_outputs()
        deployment.remake(getattr(deployment.topics, name), 2)
        _, said = process.communicate()
    assert process.returncode == 1
    assert getattr(deployment.topics, name) in said.decode()


@pytest.mark.parametrize("live", [True, False], ids=["live", "stopped"])
def test_an_output_topic_made_anew_is_written_on_and_nothing_twice(deployment: Deployment, live: bool) -> None:
    responses = deployment.topics.responses
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
        deployment.send(0, 40)
        deployment.check_outputs()
        if live:
            deployment.remake(responses, 2)
            deployment.asked = 0
            until(lambda: responses in orjson.loads((deployment.state_dir / TOPICS).read_bytes())["anew"])
            deployment.send(0, 10)
            deployment.check_outputs()
    if not live:
        deployment.remake(responses, 2)
        deployment.asked = 0
    deployment.epoch_ms = 60_000
    process = deployment.start()
    with _watched(process):
        deployment.send(0, 10)
        deployment.check_outputs()
    with deployment.running():  # once more: without a snapshot since
        deployment.send(0, 10)
        deployment.check_outputs()
