"""`recallflow erase` beside a running engine: deletions, the report about the rest, and findings."""

import signal
import subprocess
from collections.abc import Callable
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
from tests.kafka.harness import FLAGS, Names, Start, flags, read_topic

Cli = Callable[..., subprocess.CompletedProcess[str]]

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
    assert engine.stderr is not None
    assert any(" ready after " in line for line in engine.stderr)


@pytest.fixture
def deployed(broker: Cluster, topics: Names, tmp_path: Path, cli: Cli, start: Start) -> Deployed:
    """Two users with memories and questions, a checkpoint of the stopped engine, and the engine running again."""
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    named = {name: flags(topics, flag)[1] for flag, name in FLAGS.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    compacted = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(named["responses"], 1, 1, config=compacted)])[named["responses"]].result()
    assert cli("topics", "create", *where).returncode == 0
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
    assert cli("state", "checkpoint", deployed.checkpoint, *deployed.state_dir).returncode == 0
    await_ready(start("run", *where, *deployed.state_dir))
    return deployed


def test_erase_removes_a_user_and_reports_the_rest(
    broker: Cluster, deployed: Deployed, cli: Cli, tmp_path: Path
) -> None:
    told = cli("export", "acme", ANN, "--state-dir", deployed.checkpoint, "--out", tmp_path / "ann.jsonl")
    assert told.returncode == 0, told.stderr
    before = cli("erase", "acme", ANN, "--verify-only", "--export", tmp_path / "ann.jsonl", "--checkpoint",
                     deployed.checkpoint, *deployed.where, *deployed.state_dir, "--timeout-s", "0")  # fmt: skip
    assert before.returncode == 1
    assert before.stdout.count("FOUND") >= 2  # in the directory and in the checkpoint
    done = cli(
        "erase", "acme", ANN, "--verify", "--export", tmp_path / "ann.jsonl", "--compact-kafka", "--checkpoint",
        deployed.checkpoint, *deployed.where, *deployed.state_dir, "--timeout-s", "10",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stderr.startswith("recallflow: directories of other members were not searched. ")
    said = done.stdout.strip()
    assert f"{deployed.checkpoint}: user {ANN} of tenant acme is erased" in said
    assert f"{deployed.topics['memory']}: 3 records" in said
    assert "cleanup.policy=delete: no expiry (retention.ms=-1)" in said
    assert f"{deployed.topics['queries']}: 1 records" in said
    assert f"retention.ms={7 * DAY_MS}" in said
    assert f"{deployed.topics['responses']}: 1 records" in said
    assert f"{deployed.topics['responses']}: tombstones written" in said
    assert said.count("tombstones written") == 1
    assert "\nnothing was found\n" in said
    assert said.endswith("no pending purges")
    assert not any(words in done.stdout for words in ("cottage", "Prince"))

    assert cli("state", "restore", deployed.checkpoint, "--state-dir", tmp_path / "restored").returncode == 0
    assert verify(tmp_path / "restored").problems == []
    with StateDirectory.existing(tmp_path / "restored", CACHE_BYTES) as directory:
        assert [one["type"] for one in export(directory, "acme", ANN)] == ["erased"]
        assert [one["type"] for one in export(directory, "acme", BOB)].count("memory") == 2
    in_use = cli("erase", "acme", ANN, "--checkpoint", deployed.folder, *deployed.where)
    assert (in_use.returncode, "NOT erased" in in_use.stdout) == (1, True)  # no checkpoint: the engine has it open

    under_key = [one for one in read_topic(broker, deployed.topics["responses"]) if one.key() == KEY]
    assert [one.value() is None for one in under_key] == [False, True]
    assert not read_topic(broker, deployed.topics["dead_letters"])
    with deployed.client(broker) as client:
        assert client.search("where is the cottage", user=ANN)[:] == ()
        assert [one.content for one in client.search("where is the cottage", user=BOB, k=1)] == [
            "The cottage stands on Bobland Bay"
        ]


def test_erasure_without_engine_fails_with_the_event_stored(broker: Cluster, topics: Names, cli: Cli) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, *flags(topics)]
    assert cli("topics", "create", *where).returncode == 0
    done = cli("erase", "acme", ANN, "--timeout-s", "0", *where)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no engine applied the erasure within 0 s; is the engine running (recallflow run)?" in done.stderr
    (event,) = read_topic(broker, flags(topics, "--memory-topic")[1])
    assert event.key() == KEY
