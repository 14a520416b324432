"""`recallflow erase` beside an engine that runs: what it removes, what it says of the rest, and what it finds."""

import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.broker import Cluster
from recallflow.client import RecallClient
from recallflow.flows.export import export
from recallflow.state.checkpoint import CACHE_BYTES
from recallflow.state.directory import StateDirectory
from recallflow.state.verify import verify
from tests.kafka.harness import FLAGS, Command, Names, Start, flags, read_topic

ANN, BOB = "ann.of.green.gables@example.com", "bob.the.builder@example.com"
KEY = f"acme/{ANN}".encode()
DAY_MS = 86_400_000


class Deployed(NamedTuple):
    """A deployment with a compacted topic of responses, and a checkpoint of it."""

    folder: Path
    where: list[str]
    topics: dict[str, str]  # by what the settings call them
    checkpoint: Path

    @property
    def state_dir(self) -> list[str]:
        return ["--state-dir", str(self.folder)]

    def client(self, broker: Cluster) -> RecallClient:
        called = {"memory": "memory", "query": "queries", "response": "responses", "control": "control"}
        names = {f"{name}_topic": self.topics[topic] for name, topic in called.items()}
        return RecallClient(broker.bootstrap_servers, "acme", timeout_s=60.0, **names)  # type: ignore[arg-type]


def await_ready(engine: subprocess.Popen[str]) -> None:
    """Returns once an engine answers."""
    assert engine.stderr is not None
    assert any(" ready after " in line for line in engine.stderr)


@pytest.fixture
def deployed(broker: Cluster, topics: Names, tmp_path: Path, command: Command, start: Start) -> Deployed:
    """Two users told something and asked; then the engine was stopped, and a checkpoint taken. It runs again."""
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    named = {name: flags(topics, flag)[1] for flag, name in FLAGS.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    compacted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(named["responses"], 1, 1, config=compacted)])[named["responses"]].result()
    assert command("topics", "create", *where).returncode == 0
    deployed = Deployed(tmp_path / "s", where, named, tmp_path / "checkpoint")
    engine = start("run", *where, *deployed.state_dir)
    await_ready(engine)
    with deployed.client(broker) as client:
        for user, place in ((ANN, "Prince Edward Island"), (BOB, "Bobland Bay")):
            told = client.add(f"The cottage stands on {place}", user=user, id=f"{user}:1", tags=[f"about {place}"])
            said = {"role": "user", "content": f"Everybody likes the sea; {place} has plenty of it"}
            client.add(said, user=user, session=f"session of {user}")
            assert client.search("where is the cottage", user=user, after=told)
    engine.send_signal(signal.SIGTERM)
    assert engine.wait() == 0
    assert command("state", "checkpoint", deployed.checkpoint, *deployed.state_dir).returncode == 0
    await_ready(start("run", *where, *deployed.state_dir))
    return deployed


def test_a_person_is_erased_and_it_is_said_what_remains(
    broker: Cluster, deployed: Deployed, command: Command, tmp_path: Path
) -> None:
    told = command("export", "acme", ANN, "--state-dir", deployed.checkpoint, "--out", tmp_path / "ann.jsonl")
    assert told.returncode == 0, told.stderr
    before = command("erase", "acme", ANN, "--verify-only", "--export", tmp_path / "ann.jsonl", "--checkpoint",
                     deployed.checkpoint, *deployed.where, *deployed.state_dir, "--timeout-s", "0")  # fmt: skip
    assert before.returncode == 1
    assert before.stdout.count("FOUND") >= 2  # in the directory and in the checkpoint
    done = command(
        "erase",
        "acme",
        ANN,
        "--verify",
        "--export",
        tmp_path / "ann.jsonl",
        "--compact-kafka",
        "--checkpoint",
        deployed.checkpoint,
        *deployed.where,
        *deployed.state_dir,
        "--timeout-s",
        "10",
    )
    assert done.returncode == 0, done.stdout
    assert done.stderr.startswith("recallflow: no other member's directory was searched: ")
    said = done.stdout.strip()
    assert f"{deployed.checkpoint}: user {ANN} of tenant acme is erased" in said
    assert f"{deployed.topics['memory']}: 3 records" in said
    assert "cleanup.policy=delete: without limit of time (retention.ms=-1)" in said
    assert f"{deployed.topics['queries']}: 1 records" in said
    assert f"retention.ms={7 * DAY_MS}" in said
    assert f"{deployed.topics['responses']}: 1 records" in said
    assert f"{deployed.topics['responses']}: tombstones written" in said
    assert said.count("tombstones written") == 1
    assert said.endswith("nothing was found")
    assert not any(words in done.stdout for words in ("cottage", "Prince"))

    under_key = [one for one in read_topic(broker, deployed.topics["responses"]) if one.key() == KEY]
    assert [one.value() is None for one in under_key] == [False, True]
    assert not read_topic(broker, deployed.topics["dead_letters"])
    with deployed.client(broker) as client:
        assert client.search("where is the cottage", user=ANN)[:] == ()
        assert [one.content for one in client.search("where is the cottage", user=BOB, k=1)] == [
            "The cottage stands on Bobland Bay"
        ]


def test_a_checkpoint_without_a_person_can_be_restored(deployed: Deployed, command: Command, tmp_path: Path) -> None:
    assert command("erase", "acme", ANN, "--checkpoint", deployed.checkpoint, *deployed.where).returncode == 0
    assert command("state", "restore", deployed.checkpoint, "--state-dir", tmp_path / "restored").returncode == 0
    assert verify(tmp_path / "restored").problems == []
    with StateDirectory.existing(tmp_path / "restored", CACHE_BYTES) as directory:
        assert [one["type"] for one in export(directory, "acme", ANN)] == ["erased"]
        assert [one["type"] for one in export(directory, "acme", BOB)].count("memory") == 2


def test_what_cannot_be_erased_is_listed(deployed: Deployed, command: Command) -> None:
    """A directory that the engine has open is no checkpoint that could be changed."""
    done = command("erase", "acme", ANN, "--checkpoint", deployed.folder, *deployed.where)
    said = done.stdout.strip()
    assert done.returncode == 1
    assert f"{deployed.folder}: NOT erased: {deployed.folder} is in use by recallflow run" in said
    assert "What Kafka holds of user" in said


def test_an_erasure_that_nobody_applies_is_said_to_wait(broker: Cluster, topics: Names, command: Command) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    assert command("topics", "create", *where).returncode == 0
    done = command("erase", "acme", ANN, "--timeout-s", "0", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nobody has applied the erasure within 0 s; is the engine running (recallflow run)?" in done.stderr
    (event,) = read_topic(broker, flags(topics, "--memory-topic")[1])
    assert event.key() == KEY
