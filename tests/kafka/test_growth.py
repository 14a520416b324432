"""Topics that change under a running engine: added partitions, and topics that are deleted and created again."""

import urllib.request
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from benchmarks.broker import HOST, Cluster, free_ports
from recallflow.brokers.options import KafkaOptions
from recallflow.connectors.kafka.tails import Ends
from recallflow.owner import partition_of
from recallflow.state.description import describe
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, own_topics, until, watched

USERS = [f"user{n}" for n in range(12)]


@dataclass(kw_only=True)
class Growing(Deployment):
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
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for future in admin.delete_topics([topic]).values():
            future.result()
        until(lambda: topic not in admin.list_topics(timeout=5).topics)
        self.broker.create_topics({topic: count})


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


def test_added_partitions_are_read_in_order(deployment: Growing, tmp_path: Path) -> None:
    """An owner's state keeps its partition: records in added partitions are sent on to it.

    Kafka drops the offsets of an idle group after a week; the directory has the number of partitions.
    """
    own = deployment.topics
    deployment.send(len(USERS))
    with deployment.running():
        deployment.check_outputs()
        deployment.send(24, 12)
        deployment.grow(own.memory, 3)
        deployment.grow(own.queries, 3)
        deployment.send(24, 12)
        deployment.check_outputs()
    assert f"{own.memory} has 3 partitions, and had 2" in deployment.errors[-1]
    admin = AdminClient({"bootstrap.servers": deployment.broker.bootstrap_servers})
    for forgotten in admin.delete_consumer_groups([f"recallflow-{own.memory}"]).values():
        forgotten.result()
    for topic in (own.memory, own.queries, *own.outputs()):
        deployment.grow(topic, 5)
    deployment.send(24, 12)
    with deployment.running():
        deployment.check_outputs()
    assert describe(deployment.state_dir).fingerprint.partitions == 2
    assert deployment.hash() == replayed(deployment, tmp_path / "other")


def test_recreated_input_topic_stops_the_flow_and_its_restart(deployment: Growing) -> None:
    deployment.send(len(USERS))
    remade = deployment.topics.queries
    process = deployment.start()
    with watched(process):
        deployment.check_outputs()
        deployment.remake(remade, 2)
        _, said = process.communicate()
    assert process.returncode == 1
    assert remade in said.decode()
    deployment.send(0, 3 * len(USERS))  # no offset gives it away
    code, errors = deployment.ends()
    assert code == 1
    assert f"{remade} was deleted and recreated" in errors


def test_ends_of_added_partitions_are_read(broker: Cluster, topics: Names) -> None:
    """A member that started later sends to them; the next owner of its partitions reads them as well."""
    name = topics("responses")
    broker.create_topics({name: 1})
    ends = Ends(KafkaOptions(broker.bootstrap_servers), {name: 1})
    until(lambda: ends.ask() == {name: {0: 0}})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})  # which has to live until it has answered
    admin.create_partitions([NewPartitions(name, 2)])[name].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(name, b"{}", partition=1)
    assert producer.flush(GIVE_UP_S) == 0
    until(lambda: ends.ask() == {name: {0: 0, 1: 1}})
    assert ends.latest()[0] == {name: {0: 0, 1: 1}}
