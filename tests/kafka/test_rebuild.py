"""What a lost disk took is read again from the log, and nothing is answered twice."""

import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.broker import Cluster
from recallflow.cli import main
from recallflow.flows.rebuild import positions
from recallflow.flows.settings import Settings
from recallflow.owner import state_partition
from recallflow.state.directory import RECOVERY, REWIND
from recallflow.state.files import read_checked
from recallflow.state.folders import partition_folder
from recallflow.state.verify import verify
from tests.kafka import harness
from tests.kafka.harness import GIVE_UP_S, Names, other_outputs, own_topics

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
        # Users who share a state partition share a log partition too: the ingestion clock of a state partition depends
        # on how its log partitions happened to be interleaved, and with it the hash that is compared here.
        partition = state_partition("acme", user, Settings().partitions) % LOG_PARTITIONS
        producer.produce(topic, orjson.dumps(event), f"acme/{user}".encode(), partition)

    def remove_to_end(self, topic: str, number: int) -> int:
        """Removes all of a partition, as retention would; returns how many of its records no run had read."""
        read = positions(self.state_dir).get(f"{topic}:{number}", 0)
        return self.remove(topic, number, OFFSET_END) - read

    def remove(self, topic: str, number: int, offset: int) -> int:
        """Removes records below an offset; returns where the partition begins now."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        (removed,) = admin.delete_records([TopicPartition(topic, number, offset)]).values()
        return int(removed.result().low_watermark)

    def lose(self, *users: str) -> list[int]:
        """Deletes the state partitions of users."""
        numbers = sorted({state_partition("acme", user, Settings().partitions) for user in users})
        for number in numbers:
            shutil.rmtree(partition_folder(self.state_dir, number))
        return numbers


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
    other = Deployment(deployment.broker, own, path, deployment.sent, epoch_ms=10)
    deployment.broker.create_topics({own.queries: LOG_PARTITIONS})
    deployment.broker.create_topics(dict.fromkeys(other.topics.outputs(), 1))
    with other.running():
        other.check_outputs()
    return other.hash()


@pytest.mark.parametrize("kills", [(), (40, 50, 60)], ids=["undisturbed", "killed"])
def test_lost_partitions_are_read_again(
    deployment: Deployment, topics: Names, tmp_path: Path, capfd: pytest.CaptureFixture[str], kills: tuple[int, ...]
) -> None:
    numbers = deployment.lose("user0", "user1")
    code, said = deployment.ends()
    assert code == 1
    assert "recallflow state rebuild" in said

    assert main(["state", "rebuild", "--state-dir", str(deployment.state_dir)]) == 0
    said = capfd.readouterr().out
    assert all(f"p{number:03d}" in said for number in numbers)
    assert set(read_checked(deployment.state_dir / REWIND).values()) == {0}

    deployment.send(60, QUERIES)
    for kill_after in kills:
        code, said = deployment.ends(kill_after)
        assert code == -signal.SIGKILL, said
    with deployment.running():
        deployment.check_outputs()
    assert not (deployment.state_dir / REWIND).exists()
    assert verify(deployment.state_dir).problems == []
    assert deployment.hash() == undisturbed(deployment, topics, tmp_path / "other")


def test_a_new_directory_sends_nothing_a_second_time(deployment: Deployment, tmp_path: Path) -> None:
    refuse(deployment, 5)
    deployment.send(60)
    assert deployment.ends(kill_after=40)[0] == -signal.SIGKILL  # some of its last outputs were sent, and others not
    named = ("--deployment", tmp_path.name)  # that of the killed one is held until its session has run out
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


def refuse(deployment: Deployment, count: int) -> None:
    """Produces memory events that are refused."""
    producer = Producer({"bootstrap.servers": deployment.broker.bootstrap_servers})
    for number in range(count):
        producer.produce(deployment.topics.memory, b"{", f"acme/{USERS[number]}".encode(), number % LOG_PARTITIONS)
    assert producer.flush(GIVE_UP_S) == 0


def test_a_rebuild_that_was_killed_can_be_asked_for_again(
    deployment: Deployment, topics: Names, tmp_path: Path
) -> None:
    deployment.lose("user2")
    for kill_after in (20, 25):  # of some 60 records
        assert main(["state", "rebuild", "--state-dir", str(deployment.state_dir)]) == 0
        code, said = deployment.ends(kill_after)
        assert code == -signal.SIGKILL, said
    deployment.lose("user3")  # and while it is at it, another disk goes
    assert main(["state", "rebuild", "--state-dir", str(deployment.state_dir)]) == 0
    deployment.send(30)
    with deployment.running():
        deployment.check_outputs()
    assert deployment.hash() == undisturbed(deployment, topics, tmp_path / "other")


def test_a_lost_recovery_store_costs_the_open_queries_and_nothing_else(
    deployment: Deployment, topics: Names, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answered = deployment.asked
    shutil.rmtree(deployment.state_dir / RECOVERY)
    deployment.send(30, QUERIES)  # nobody will know that these were not answered
    code, said = deployment.ends()
    assert (code, "recallflow state rebuild" in said) == (1, True)
    command = ["state", "rebuild", "--state-dir", str(deployment.state_dir), "--query-topic", deployment.topics.queries]
    command += ["--bootstrap-servers", deployment.broker.bootstrap_servers]
    assert main(command) == 1
    assert "--give-up-unanswered" in capfd.readouterr().err
    assert main([*command, "--give-up-unanswered"]) == 0
    assert "never will be" in " ".join(capfd.readouterr().out.split())

    with deployment.running():
        deployment.check_outputs(answered)
        deployment.send(1, QUERIES)
        deployment.check_outputs(answered + QUERIES)
    assert main([*command, "--give-up-unanswered"]) == 2
    assert deployment.hash() == undisturbed(deployment, topics, tmp_path / "other")


def test_queries_that_kafka_removed_are_given_up_by_word_only(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    """Retention goes on while the engine is down. What is left is answered, and what is gone is counted."""
    answered = deployment.asked
    command = ["state", "rebuild", "--give-up-unanswered", "--state-dir", str(deployment.state_dir)]
    command += ["--query-topic", deployment.topics.queries]
    command += ["--bootstrap-servers", deployment.broker.bootstrap_servers]
    assert main(command) == 2
    assert "there is nothing to give up" in " ".join(capfd.readouterr().err.split())
    assert main([*command[:-4], "--query-topic", "others", *command[-2:]]) == 2
    assert "reads no queries from others" in " ".join(capfd.readouterr().err.split())

    deployment.send(0, QUERIES)
    gone = deployment.remove_to_end(deployment.topics.queries, 1)
    assert 0 < gone < QUERIES
    code, said = deployment.ends()
    assert code == 1
    assert f"{gone} records from offset " in said
    assert "recallflow state rebuild --give-up-unanswered" in said
    assert main(command) == 0
    assert f"{gone} queries given up" in capfd.readouterr().out

    with deployment.running():
        deployment.check_outputs(answered + QUERIES - gone)
        deployment.send(1, QUERIES)
        deployment.check_outputs(answered + 2 * QUERIES - gone)
    assert main(command) == 2
    assert verify(deployment.state_dir).problems == []


def test_memories_that_kafka_removed_are_never_given_up(
    deployment: Deployment, capfd: pytest.CaptureFixture[str]
) -> None:
    deployment.send(30)
    assert deployment.remove_to_end(deployment.topics.memory, 0) > 0
    code, said = deployment.ends()
    assert code == 1
    assert "restore a checkpoint that reaches into what is left" in said
    assert "--give-up-unanswered" not in said
    command = ["state", "rebuild", "--give-up-unanswered", "--state-dir", str(deployment.state_dir)]
    command += ["--query-topic", deployment.topics.queries]
    assert main([*command, "--bootstrap-servers", deployment.broker.bootstrap_servers]) == 2
    assert "nothing to give up" in capfd.readouterr().err


def test_a_checkpoint_older_than_what_the_outputs_hold_is_refused_unless_told(
    deployment: Deployment, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was answered since is known from the output topics only; where retention removed it, it would come twice."""
    copy = tmp_path / "copy"
    assert main(["state", "checkpoint", "--state-dir", str(deployment.state_dir), str(copy)]) == 0
    with deployment.running():
        deployment.send(0, QUERIES)
        deployment.check_outputs()
    # A run whose outputs are all gone, and that has nothing to do, has nothing to repeat.
    for topic in deployment.topics.outputs():
        deployment.remove(topic, 0, OFFSET_END)
    with deployment.running():
        deployment.send(0, 1)
        assert deployment.outputs(deployment.topics.responses, 1).total() == 1

    capfd.readouterr()
    restored = replace(deployment, state_dir=tmp_path / "restored")
    assert main(["state", "restore", str(copy), "--state-dir", str(restored.state_dir)]) == 0
    code, said = restored.ends()
    assert code == 1
    told = re.search(
        r"responses-\S+:0 lacks outputs from after the last snapshot \((\S+ \S+)\): its oldest record is of "
        r"(\S+ \S+?)\. Up to (\d+) outputs in 1 partitions .*recallflow run --accept-repeats\)",
        said,
    )
    assert told is not None, said
    assert datetime.fromisoformat(told[1]) <= datetime.fromisoformat(told[2])
    assert int(told[3]) == QUERIES
    again = restored.ends()[1]
    assert f"({told[1]})" in again  # a start that was refused is none

    accepting = replace(restored, flags=("--accept-repeats",))
    with accepting.running():  # one is still there; the others come again
        assert accepting.outputs(deployment.topics.responses, QUERIES + 1).total() == QUERIES + 1
    with restored.running():
        restored.send(0, 1)
        assert restored.outputs(deployment.topics.responses, QUERIES + 2).total() == QUERIES + 2
