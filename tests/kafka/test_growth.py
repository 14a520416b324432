"""Topics that change under a running engine: partitions that are added, topics that are made anew."""

import contextlib
import signal
import urllib.request
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.partitioning import partition_of
from recallflow.state.directory import describe
from recallflow.state.sources import TOPICS
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, own_topics, until, watched

USERS = [f"user{n}" for n in range(30)]


@dataclass(kw_only=True)
class Growing(Deployment):
    """A main flow on a real broker, whose topics grow."""

    counts: dict[str, int]  # of the memory and the query topic, as producers know them

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

    def partitions(self, topic: str) -> set[int]:
        """Those that hold anything."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap_servers, "group.id": topic})
        with contextlib.closing(consumer):
            numbers = consumer.list_topics(topic, timeout=5).topics[topic].partitions
            return {n for n in numbers if consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=5)[1]}


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Growing:
    own = own_topics(topics)
    counts = {own.memory: 2, own.queries: 2}
    broker.create_topics({**counts, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 2))
    return Growing(broker, own, tmp_path / "s", counts=counts)


def replayed(deployment: Growing, path: Path) -> str:
    """The state hash of a directory that lost everything, and reads the whole log again."""
    port = free_ports(None)[0]
    other = replace(deployment, state_dir=path, flags=("--metrics-port", str(port)))
    with other.running():
        until(lambda: is_ready(port))
        other.check_outputs()  # nothing came out once more
    return other.hash()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=GIVE_UP_S) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def test_what_lies_in_added_partitions_goes_home_in_order(deployment: Growing, tmp_path: Path) -> None:
    """An owner's state stays where it is: records in other partitions are sent on to its own."""
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
    assert f"{memory} has 3 partitions, and had 2" in deployment.errors[-1]
    assert f"{queries} has 5 partitions, and had 3" in deployment.errors[-1]
    with deployment.running():
        deployment.send(30, 30)
        deployment.check_outputs()
    assert deployment.hash() == replayed(deployment, tmp_path / "other")


def test_a_deployment_that_kafka_forgot_keeps_its_partitions_though_its_topics_have_grown(
    deployment: Growing, tmp_path: Path
) -> None:
    """Offsets of a group that is away for a week are gone; how many partitions its state has, the directory says."""
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
        deployment.send(30, 30)
        deployment.check_outputs()
    admin = AdminClient({"bootstrap.servers": deployment.broker.bootstrap_servers})
    for forgotten in admin.delete_consumer_groups([f"recallflow-{deployment.topics.memory}"]).values():
        forgotten.result()
    deployment.grow(deployment.topics.memory, 5)
    deployment.grow(deployment.topics.queries, 5)
    deployment.send(60, 30)
    with deployment.running():
        deployment.check_outputs()
    assert describe(deployment.state_dir).fingerprint.partitions == 2
    assert deployment.hash() == replayed(deployment, tmp_path / "other")


def test_kills_around_the_growth_lose_nothing_and_do_nothing_twice(deployment: Growing, tmp_path: Path) -> None:
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
    assert deployment.hash() == replayed(deployment, tmp_path / "other")


def test_what_was_sent_before_its_topic_grew_is_found_after_a_kill(deployment: Growing) -> None:
    """All outputs come again after a kill without a snapshot, when their topics have more partitions to hash to."""
    deployment.epoch_ms = 60_000
    process = deployment.start()
    with watched(process):
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


def test_an_input_made_anew_stops_the_flow_and_the_next_start(deployment: Growing) -> None:
    """With more records than were read, so that no offset gives it away."""
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
    remade = deployment.topics.memory
    deployment.remake(remade, 2)
    deployment.send(3 * len(USERS))
    code, said = deployment.ends()
    assert code == 1
    assert f"{remade} was deleted and made anew" in said
    assert "Start with another state directory" in said


@pytest.mark.parametrize("name", ["queries", "control"])
def test_an_input_made_anew_while_it_is_read_stops_the_flow(deployment: Growing, name: str) -> None:
    deployment.send(len(USERS))
    process = deployment.start()
    with watched(process):
        deployment.check_outputs()
        deployment.remake(getattr(deployment.topics, name), 2)
        _, said = process.communicate()
    assert process.returncode == 1
    assert getattr(deployment.topics, name) in said.decode()


@pytest.mark.parametrize("live", [True, False], ids=["live", "stopped"])
def test_an_output_topic_made_anew_is_written_on_and_nothing_twice(deployment: Growing, live: bool) -> None:
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
    with watched(process):
        deployment.send(0, 10)
        deployment.check_outputs()
    with deployment.running():  # once more: without a snapshot since
        deployment.send(0, 10)
        deployment.check_outputs()
