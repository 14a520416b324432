"""Lost disks, old checkpoints, removed records and changed topics: state is rebuilt, and nothing is sent twice."""

import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from recallflow.cli import main
from recallflow.owner import partition_of, state_partition
from recallflow.state.description import describe
from recallflow.state.folders import partition_folder
from recallflow.state.verify import verify
from tests.kafka import harness
from tests.kafka.harness import GIVE_UP_S, Deployment, Names, other_outputs, own_topics, produce, until
from tools.broker import Cluster

USERS = [f"user{n}" for n in range(12)]
LOG_PARTITIONS = 3
EVENTS = 60
QUERIES = 12


@dataclass
class LosingDeployment(harness.Deployment):
    def send(self, count: int, queries: int = 0) -> None:
        told = [
            {"type": "message", "id": f"m{number}", "content": f"walnut {number}", "session_id": f"s{number % 3}"}
            | {"user_id": USERS[number % len(USERS)], "receipt": True}
            for number in range(self.sent, self.sent + count)
        ]
        asked = [
            {"type": "recall", "id": f"q{number}", "query": "walnut", "k": 3, "user_id": USERS[number % len(USERS)]}
            for number in range(self.asked, self.asked + queries)
        ]
        produce(self.broker, self.topics.memory, *told)
        produce(self.broker, self.topics.queries, *asked)
        self.sent, self.asked = self.sent + count, self.asked + queries

    def remove(self, topic: str, number: int, offset: int) -> int:
        """Remove records below an offset, as retention does; return the first offset that is left."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        (removed,) = admin.delete_records([TopicPartition(topic, number, offset)]).values()
        return int(removed.result().low_watermark)

    def lose(self, *users: str) -> None:
        for number in {*map(home, users)}:
            shutil.rmtree(partition_folder(self.state_dir, number), ignore_errors=True)


def home(user: str) -> int:
    return state_partition("acme", user, LOG_PARTITIONS)


@pytest.fixture
def fresh(broker: Cluster, topics: Names, tmp_path: Path) -> LosingDeployment:
    own = own_topics(topics)
    broker.create_topics({own.memory: LOG_PARTITIONS, own.queries: LOG_PARTITIONS, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    return LosingDeployment(broker, own, tmp_path / "s", sync_ms=10)


@pytest.fixture
def deployment(fresh: LosingDeployment) -> LosingDeployment:
    """Return a deployment that applied events, answered queries, and was stopped."""
    fresh.send(1)
    with fresh.running():
        fresh.outputs(fresh.topics.receipts, 1)  # queries from before the first start are not answered
        fresh.send(EVENTS, QUERIES)
        fresh.check_outputs()
    return fresh


def undisturbed(deployment: LosingDeployment, topics: Names, path: Path) -> str:
    """Return the state hash of another deployment that reads the same memories and loses nothing."""
    own = other_outputs(deployment.topics, topics, "other.")
    name = ("--deployment", own.queries)
    other = LosingDeployment(deployment.broker, own, path, deployment.sent, sync_ms=10, flags=name)
    deployment.broker.create_topics({own.queries: LOG_PARTITIONS})
    deployment.broker.create_topics(dict.fromkeys(other.topics.outputs(), 1))
    with other.running():
        other.check_outputs()
    return other.hash()


def test_lost_partitions_and_old_checkpoints_are_caught_up(
    deployment: LosingDeployment, topics: Names, tmp_path: Path
) -> None:
    """The group knows the offsets of a checkpoint, also when the outputs are gone."""
    deployment.lose("user0", "user1")
    deployment.send(30, QUERIES)
    with deployment.running():
        deployment.check_outputs()
    assert verify(deployment.state_dir).problems == []
    copy = tmp_path / "copy"
    assert main(["state", "checkpoint", "--state-dir", str(deployment.state_dir), str(copy)]) == 0
    with deployment.running():
        deployment.send(30, QUERIES)
        deployment.check_outputs()
    for topic in deployment.topics.outputs():
        deployment.remove(topic, 0, OFFSET_END)
    restored = replace(deployment, state_dir=tmp_path / "restored")
    assert main(["state", "restore", str(copy), "--state-dir", str(restored.state_dir)]) == 0
    with restored.running():
        restored.send(12, QUERIES)
        assert restored.outputs(deployment.topics.responses, QUERIES).total() == QUERIES
        assert restored.outputs(deployment.topics.receipts, 12).total() == 12
    assert restored.hash() == undisturbed(restored, topics, tmp_path / "other")


def test_a_new_directory_sends_nothing_twice(deployment: LosingDeployment, topics: Names, tmp_path: Path) -> None:
    """The group knows the offsets; then a new group knows none."""
    produce(deployment.broker, deployment.topics.memory, *[b"{"] * 5)
    deployment.send(40)
    assert deployment.ends(kill_after=25)[0] == -signal.SIGKILL  # some outputs were sent, others were not
    groups: list[tuple[str, ...]] = [(), ("--deployment", topics("forgotten"))]
    for number, group in enumerate(groups):
        new = replace(deployment, state_dir=tmp_path / f"new{number}", flags=group)
        with new.running():
            new.send(20)
            produce(new.broker, new.topics.memory, *[b"{"] * 5)
            letters = 5 * (number + 2)
            assert [*new.outputs(new.topics.receipts, new.sent).values()] == [1] * new.sent
            assert [*new.outputs(new.topics.dead_letters, letters).values()] == [1] * letters
        deployment.sent = new.sent
        assert [*new.outputs(new.topics.receipts).values()] == [1] * new.sent
        assert [*new.outputs(new.topics.responses).values()] == [1] * new.asked
        assert verify(new.state_dir).problems == []


def test_other_settings_are_refused_and_change_with_a_new_deployment(
    deployment: LosingDeployment, topics: Names, tmp_path: Path
) -> None:
    """The procedure of docs/how-to/several-machines.md#change-shared-settings repeats and loses no output."""
    gap = ("--episode-gap-minutes", "20")
    code, said = replace(deployment, state_dir=tmp_path / "refused", flags=gap).ends()
    assert code == 2
    assert "episode_gap_minutes is 30.0 there and 20.0 here" in said
    aside = other_outputs(deployment.topics, topics, "filling.")
    aside = replace(aside, memory=deployment.topics.memory, queries=deployment.topics.queries)
    deployment.broker.create_topics(dict.fromkeys(aside.outputs(), 1))
    name, new_dir = topics("new"), tmp_path / "new"
    filling = replace(deployment, topics=aside, state_dir=new_dir, flags=(*gap, "--deployment", f"{name}-filling"))
    with filling.running():
        deployment.send(20)
        filling.outputs(aside.receipts, deployment.sent)
    with deployment.running():
        deployment.send(20, QUERIES)
        deployment.check_outputs()
    new = replace(deployment, state_dir=new_dir, flags=(*gap, "--deployment", name))
    with new.running():
        new.check_outputs()
        new.send(20, QUERIES)
        new.check_outputs()
    assert verify(new_dir).problems == []


def test_deployment_begins_with_the_records_after_retention(fresh: LosingDeployment) -> None:
    fresh.send(EVENTS)
    left = [fresh.remove(fresh.topics.memory, number, 5) for number in range(LOG_PARTITIONS)]
    assert left == [5] * LOG_PARTITIONS
    fresh.sent -= sum(left)
    for _ in range(2):  # the second time it rebuilds partitions from what is left
        with fresh.running():
            fresh.outputs(fresh.topics.receipts, fresh.sent)
            fresh.send(20, QUERIES)
            fresh.check_outputs()
        fresh.lose("user0", "user1")
    assert verify(fresh.state_dir).problems == []


def test_removed_queries_are_given_up_on_request_and_memories_never(deployment: LosingDeployment) -> None:
    answered = deployment.asked
    deployment.send(0, QUERIES)
    deployment.remove(deployment.topics.queries, 1, OFFSET_END)
    gone = [home(USERS[number % len(USERS)]) for number in range(answered, deployment.asked)].count(1)
    assert 0 < gone < QUERIES
    code, said = deployment.ends()
    assert code == 1
    assert "--give-up-unanswered" in said
    yielding = replace(deployment, flags=("--give-up-unanswered",), errors=[])
    with yielding.running():
        yielding.check_outputs(answered + QUERIES - gone)
    assert f":1: {gone} unanswered records were deleted" in yielding.errors[-1]
    assert verify(deployment.state_dir).problems == []
    deployment.send(30)
    assert deployment.remove(deployment.topics.memory, 0, OFFSET_END) > 0
    for attempt in (deployment, yielding):
        code, said = attempt.ends()
        assert code == 1
        assert "restore a checkpoint" in said
        assert "--give-up-unanswered" not in said


def test_removed_outputs_are_repeated_only_on_request(deployment: LosingDeployment) -> None:
    """Since the last mark only the outputs tell which records were answered."""
    hasty = replace(deployment, sync_ms=60_000)
    with hasty.start():
        hasty.send(0, QUERIES)
        hasty.check_outputs()
    for topic in deployment.topics.outputs():
        deployment.remove(topic, 0, OFFSET_END)
    code, said = hasty.ends()
    assert code == 1
    assert "--accept-repeats" in said
    accepting = replace(deployment, flags=("--accept-repeats",))
    with accepting.running():
        assert accepting.outputs(deployment.topics.responses, QUERIES).total() == QUERIES


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
def growing(broker: Cluster, topics: Names, tmp_path: Path) -> Growing:
    own = own_topics(topics)
    counts = {own.memory: 2, own.queries: 2}
    broker.create_topics({**counts, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 2))
    return Growing(broker, own, tmp_path / "s", counts=counts)


def replayed(growing: Growing, path: Path) -> str:
    """The state hash of a directory that lost everything, and reads the whole log again."""
    other = replace(growing, state_dir=path)
    with other.running() as process:
        process.await_ready()
        other.check_outputs()  # nothing came out once more
    return other.hash()


def test_added_partitions_are_read_in_order(growing: Growing, tmp_path: Path) -> None:
    """An owner's state keeps its partition: records in added partitions are sent on to it.

    Kafka drops the offsets of an idle group after a week; the directory has the number of partitions.
    """
    own = growing.topics
    growing.send(len(USERS))
    with growing.running():
        growing.check_outputs()
        growing.send(24, 12)
        growing.grow(own.memory, 3)
        growing.grow(own.queries, 3)
        growing.send(24, 12)
        growing.check_outputs()
    assert f"{own.memory} has 3 partitions, and had 2" in growing.errors[-1]
    admin = AdminClient({"bootstrap.servers": growing.broker.bootstrap_servers})
    for forgotten in admin.delete_consumer_groups([f"recallflow-{own.memory}"]).values():
        forgotten.result()
    for topic in (own.memory, own.queries, *own.outputs()):
        growing.grow(topic, 5)
    growing.send(24, 12)
    with growing.running():
        growing.check_outputs()
    assert describe(growing.state_dir).fingerprint.partitions == 2
    assert growing.hash() == replayed(growing, tmp_path / "other")
