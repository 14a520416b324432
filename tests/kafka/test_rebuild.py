"""What a lost disk took is read again from the log, and nothing is answered twice."""

import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Cluster
from recallflow.cli import main
from recallflow.owner import state_partition
from recallflow.state.folders import partition_folder
from recallflow.state.verify import verify
from tests.kafka import harness
from tests.kafka.harness import GIVE_UP_S, Names, other_outputs, own_topics, watched

USERS = [f"user{n}" for n in range(12)]
LOG_PARTITIONS = 3
EVENTS = 240
QUERIES = 24


@dataclass
class Deployment(harness.Deployment):
    """A main flow that loses parts of its state directory, or of its topics."""

    def send(self, count: int, queries: int = 0) -> None:
        """Produces memory events, each of which asks for a receipt, and queries."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number in range(self.sent, self.sent + count):
            told = {"id": f"m{number}", "content": f"walnut {number}", "session_id": f"s{number % 3}", "receipt": True}
            self._produce(producer, self.topics.memory, number, {"type": "message"} | told)
        for number in range(self.asked, self.asked + queries):
            asked = {"type": "recall", "id": f"q{number}", "query": "walnut", "k": 3}
            self._produce(producer, self.topics.queries, number, asked)
        assert producer.flush(GIVE_UP_S) == 0
        self.sent, self.asked = self.sent + count, self.asked + queries

    def _produce(self, producer: Producer, topic: str, number: int, fields: Mapping[str, Any]) -> None:
        user = USERS[number % len(USERS)]
        event = {"tenant_id": "acme", "user_id": user, **fields}
        producer.produce(topic, orjson.dumps(event), f"acme/{user}".encode(), home(user))

    def remove(self, topic: str, number: int, offset: int) -> int:
        """Removes records below an offset, as retention would; returns where the partition begins now."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        (removed,) = admin.delete_records([TopicPartition(topic, number, offset)]).values()
        return int(removed.result().low_watermark)

    def lose(self, *users: str) -> list[int]:
        """Deletes the state partitions of users."""
        numbers = sorted({*map(home, users)})
        for number in numbers:
            shutil.rmtree(partition_folder(self.state_dir, number))
        return numbers


def home(user: str) -> int:
    return state_partition("acme", user, LOG_PARTITIONS)


@pytest.fixture
def deployment(broker: Cluster, topics: Names, tmp_path: Path) -> Deployment:
    """Has taken in events, answered queries, and been stopped."""
    own = own_topics(topics)
    broker.create_topics({own.memory: LOG_PARTITIONS, own.queries: LOG_PARTITIONS, own.control: 1})
    broker.create_topics(dict.fromkeys(own.outputs(), 1))
    made = Deployment(broker, own, tmp_path / "s", epoch_ms=10)
    made.send(1)
    with made.running():
        made.outputs(own.receipts, 1)  # it reads: what is asked from now on is answered
        made.send(EVENTS, QUERIES)
        made.check_outputs()
    return made


def undisturbed(deployment: Deployment, topics: Names, path: Path) -> str:
    """The state hash of another deployment that reads the same memories and loses nothing."""
    own = other_outputs(deployment.topics, topics, "other.")
    name = ("--deployment", own.queries)
    other = Deployment(deployment.broker, own, path, deployment.sent, epoch_ms=10, flags=name)
    deployment.broker.create_topics({own.queries: LOG_PARTITIONS})
    deployment.broker.create_topics(dict.fromkeys(other.topics.outputs(), 1))
    with other.running():
        other.check_outputs()
    return other.hash()


@pytest.mark.parametrize("kills", [(), (40, 50, 60)], ids=["undisturbed", "killed"])
def test_lost_partitions_are_read_again(
    deployment: Deployment, topics: Names, tmp_path: Path, kills: tuple[int, ...]
) -> None:
    """By whoever starts, from their own partitions of the log."""
    deployment.lose("user0", "user1")
    deployment.send(60, QUERIES)
    for kill_after in kills:
        code, said = deployment.ends(kill_after)
        assert code == -signal.SIGKILL, said
    with deployment.running():
        deployment.check_outputs()
    assert verify(deployment.state_dir).problems == []
    assert deployment.hash() == undisturbed(deployment, topics, tmp_path / "other")


@pytest.mark.parametrize(
    ("flags", "note"),
    [((), ""), (("--deployment", "renamed"), ""), (("--deployment", "renamed"), '{"host":"vm","released":true}')],
    ids=["known", "forgotten", "of format 8"],
)
def test_a_new_directory_sends_nothing_a_second_time(
    deployment: Deployment, topics: Names, tmp_path: Path, flags: tuple[str, ...], note: str
) -> None:
    """Also under another name, so that nobody knows how far its partitions were, or after an engine of another version,
    which left a note that is no place."""
    refuse(deployment, 5)
    deployment.send(60)
    assert deployment.ends(kill_after=40)[0] == -signal.SIGKILL  # some of its last outputs were sent, and others not
    named = tuple(topics(flag) if flag == "renamed" else flag for flag in flags)
    if note:
        leave(deployment, named[-1], note)
    for number in range(2):  # the second one finds what two have sent
        new = replace(deployment, state_dir=tmp_path / f"new{number}", flags=named)
        with new.running():
            new.send(20)
            refuse(new, 5)
            letters = 5 * (number + 2)
            assert [*new.outputs(new.topics.receipts, new.sent).values()] == [1] * new.sent
            assert [*new.outputs(new.topics.dead_letters, letters).values()] == [1] * letters
        deployment.sent = new.sent
        assert [*new.outputs(new.topics.receipts).values()] == [1] * new.sent
        assert [*new.outputs(new.topics.responses).values()] == [1] * new.asked
        assert verify(new.state_dir).problems == []


def leave(deployment: Deployment, group: str, note: str) -> None:
    """Commits a note beside the offset of the first partition, as one engine for a whole deployment did."""
    consumer = Consumer({"bootstrap.servers": deployment.broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(deployment.topics.memory, 0, 0, note)], asynchronous=False)
    consumer.close()


def refuse(deployment: Deployment, count: int) -> None:
    """Produces memory events that are refused."""
    producer = Producer({"bootstrap.servers": deployment.broker.bootstrap_servers})
    for number in range(count):
        producer.produce(deployment.topics.memory, b"{", f"acme/{USERS[number]}".encode(), number % LOG_PARTITIONS)
    assert producer.flush(GIVE_UP_S) == 0


def test_disks_that_go_while_others_are_read_again(deployment: Deployment, topics: Names, tmp_path: Path) -> None:
    for user, kill_after in (("user2", 20), ("user1", 25), ("user3", 30)):  # of some 80 records
        deployment.lose(user)
        code, said = deployment.ends(kill_after)
        assert code == -signal.SIGKILL, said
    deployment.lose("user0")
    deployment.send(30)
    with deployment.running():
        deployment.check_outputs()
    assert deployment.hash() == undisturbed(deployment, topics, tmp_path / "other")


def test_a_deployment_begins_with_what_retention_left(deployment: Deployment, tmp_path: Path) -> None:
    """And what it began with is enough for whoever loses a folder later."""
    left = [deployment.remove(deployment.topics.memory, number, 5) for number in range(LOG_PARTITIONS)]
    assert left == [5] * LOG_PARTITIONS
    new = replace(deployment, state_dir=tmp_path / "new", flags=("--deployment", tmp_path.name))
    for _ in range(2):
        with new.running():
            new.send(20, QUERIES)
            new.check_outputs()
        new.lose("user0", "user1")
    assert verify(new.state_dir).problems == []


def test_queries_that_kafka_removed_are_given_up_by_word_only(deployment: Deployment) -> None:
    """Retention goes on while the engine is down. What is left is answered, and what is gone is counted."""
    answered = deployment.asked
    deployment.send(0, QUERIES)
    deployment.remove(deployment.topics.queries, 1, OFFSET_END)
    gone = [home(USERS[number % len(USERS)]) for number in range(answered, deployment.asked)].count(1)
    assert 0 < gone < QUERIES
    code, said = deployment.ends()
    assert code == 1
    assert f"{gone} records from offset " in said
    assert "recallflow run --give-up-unanswered" in said

    told = replace(deployment, flags=("--give-up-unanswered",), errors=[])
    with told.running():
        told.check_outputs(answered + QUERIES - gone)
    assert f"{gone} queries are gone from the topic and given up" in told.errors[-1]
    with deployment.running():  # once was enough
        deployment.send(1, QUERIES)
        deployment.check_outputs(answered + 2 * QUERIES - gone)
    assert verify(deployment.state_dir).problems == []


def test_memories_that_kafka_removed_are_never_given_up(deployment: Deployment) -> None:
    deployment.send(30)
    assert deployment.remove(deployment.topics.memory, 0, OFFSET_END) > 0
    for flags in ((), ("--give-up-unanswered",)):
        code, said = replace(deployment, flags=flags).ends()
        assert code == 1
        assert "restore a checkpoint that reaches into what is left" in said
        assert "--give-up-unanswered" not in said


def test_an_older_checkpoint_is_read_on_silently(deployment: Deployment, topics: Names, tmp_path: Path) -> None:
    """How far its partitions are the group knows, also where retention took the outputs since."""
    copy = tmp_path / "copy"
    assert main(["state", "checkpoint", "--state-dir", str(deployment.state_dir), str(copy)]) == 0
    with deployment.running():
        deployment.send(60, QUERIES)
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


def test_outputs_that_are_gone_since_the_last_mark_come_twice_by_word_only(deployment: Deployment) -> None:
    """Of what was not marked they alone say whether it was answered."""
    hasty = replace(deployment, epoch_ms=60_000)
    process = hasty.start()
    with watched(process):
        hasty.send(0, QUERIES)
        hasty.check_outputs()
    for topic in deployment.topics.outputs():
        deployment.remove(topic, 0, OFFSET_END)
    code, said = hasty.ends()
    assert code == 1
    assert "lacks outputs from after the last mark" in said
    assert "recallflow run --accept-repeats" in said
    accepting = replace(deployment, flags=("--accept-repeats",))
    with accepting.running():
        assert accepting.outputs(deployment.topics.responses, QUERIES).total() == QUERIES
    with deployment.running():
        deployment.send(0, 1)
        assert deployment.outputs(deployment.topics.responses, QUERIES + 1).total() == QUERIES + 1
